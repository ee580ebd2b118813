"""Mode R2 of the Hugging Face interface, with any model: recording, replaying and writing."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from hf_cases import LENGTHS, Cases, Choices, Rollout, loss_of, over
from local_group import LocalGroup, fake_run
from routing_replay import errors, sample_handle

from routing_replay_trainer import hf


class RecordCases(Cases):
    @over("left")
    def test_r2_replays_what_was_recorded(self, model: Any, rollout: Rollout) -> None:
        peer = copy.deepcopy(model)
        with Choices() as live, torch.no_grad():
            loss_of(model, rollout.call)
        with self.attached(model, None, mode="R2") as replay:
            with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                loss_of(model, rollout.call)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            own = Rollout(rollout.layers, "left", recorded=live.chosen)
            peer.load_state_dict(model.state_dict())
            expected = self.by_hand(peer, own)
            with replay.micro_batch(rollout.samples, **rollout.said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
            self.assert_same(model, out, peer, expected)
            replay.release_records()
            with (
                self.assertRaisesRegex(errors.FailedPreconditionError, "NOT_FOUND"),
                replay.micro_batch(rollout.samples, **rollout.said),
            ):
                loss_of(model, rollout.call)

    @over("right", "left", "packed")
    def test_r2_records_are_written(self, model: Any, rollout: Rollout) -> None:
        """Expects whole rows of the samples, as the model chose them without replay."""
        with Choices() as live, torch.no_grad():
            loss_of(model, rollout.call)
        run = fake_run()
        writer = hf.RecordWriter(None, run)
        with self.attached(model, None, mode="R2", writer=writer) as replay:
            with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                loss_of(model, rollout.call)
            with replay.micro_batch(rollout.samples, **rollout.said):  # This pass replays, so it records nothing.
                loss = loss_of(model, rollout.call)[1]
            loss.backward()
            replay.end_step()
        self.assertEqual(writer.write(group=3), rollout.samples)
        self.assertEqual(writer.write(), [])
        self.assert_written(run, rollout, live.chosen)

    @over("packed")
    def test_r2_records_of_passes_that_were_given_up(self, model: Any, rollout: Rollout) -> None:
        """Records of a pass that failed, or whose step was abandoned, are neither written nor replayed. Records that a
        pass has replayed stay, even if the step is abandoned then."""

        def record(replay: Any) -> None:
            with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                loss_of(model, rollout.call)

        def fails(replay: Any) -> None:
            with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                loss_of(model, rollout.call)
                raise RuntimeError("no memory")

        def train(replay: Any) -> None:
            with replay.micro_batch(rollout.samples, **rollout.said):
                loss_of(model, rollout.call)

        run = fake_run()
        writer = hf.RecordWriter(None, run)
        with self.attached(model, None, mode="R2", writer=writer) as replay:
            with self.assertRaisesRegex(RuntimeError, "no memory"):
                fails(replay)
            replay.abandon_step()
            self.assertEqual(replay.metrics()["routing_replay/record_bytes"], 0)
            record(replay)
            replay.abandon_step()
            with self.assertRaisesRegex(errors.FailedPreconditionError, "NOT_FOUND"):
                train(replay)
            self.assertEqual(writer.write(), [])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            record(replay)
            train(replay)
            replay.abandon_step()
            train(replay)
            replay.abandon_step()
        with Choices() as live, torch.no_grad():
            loss_of(model, rollout.call)
        self.assertEqual(writer.write(group=3), rollout.samples)
        self.assert_written(run, rollout, live.chosen)

    @over("packed")
    def test_r2_sequences_under_one_name(self, model: Any, rollout: Rollout) -> None:
        """A name that occurs twice is rejected, in one micro-batch and in two micro-batches of one recording pass. A
        sample may be recorded again after it was replayed, or after its step has ended."""

        def passes(replay: Any, samples: list[str], grad: bool = False) -> None:
            with replay.micro_batch(samples, **rollout.said), torch.set_grad_enabled(grad):
                loss_of(model, rollout.call)

        first, second = rollout.samples
        with self.attached(model, None, mode="R2") as replay:
            for names, recorded in (([first, first], []), ([second, "other"], rollout.samples)):
                if recorded:
                    passes(replay, recorded)
                with self.assertRaises(errors.InvalidArgumentError) as caught:
                    passes(replay, names)
                self.assertEqual((caught.exception.field, caught.exception.sample), ("sequences", names[0]))
            passes(replay, rollout.samples, grad=True)
            replay.abandon_step()
            passes(replay, rollout.samples)
            replay.end_step()
            passes(replay, rollout.samples)
            passes(replay, rollout.samples, grad=True)
            passes(replay, rollout.samples)
            replay.abandon_step()

    @over("right", "packed")
    def test_r2_records_whole_samples_by_id(self, model: Any, rollout: Rollout) -> None:
        """What cannot be recorded is rejected before the forward. A sample may be replayed by its handle."""

        def passes(replay: Any, samples: list[Any], grad: bool = False) -> None:
            with replay.micro_batch(samples, **rollout.said), torch.set_grad_enabled(grad):
                loss_of(model, rollout.call)

        with self.attached(model, None, mode="R2") as replay:
            for wrong in (1 << 62, hf.Sequence(rollout.samples[1], 0, LENGTHS[1] - 1)):
                with self.assertRaisesRegex(errors.InvalidArgumentError, "sequences: .* in part, or by handle"):
                    passes(replay, [rollout.samples[0], wrong])
                self.assertEqual(replay.kept, 0)
            passes(replay, rollout.samples)
            replay.end_step()
            replay.metrics()
            passes(replay, [sample_handle(sample) for sample in rollout.samples], grad=True)
            self.assertEqual(replay.metrics()["routing_replay/replayed_rows"], sum(LENGTHS) - len(LENGTHS))
            replay.abandon_step()
            with self.assertRaisesRegex(errors.FailedPreconditionError, "NOT_FOUND"):
                passes(replay, [7, 8], grad=True)
            replay.abandon_step()

    @over("right")
    def test_rows_and_samples_without_tokens(self, model: Any, rollout: Rollout) -> None:
        """A masked row fills up the rectangle, and one sample has a single token: neither has anything to replay."""
        call = {name: torch.cat([own, own[:1]]) for name, own in rollout.call.items()}
        call["attention_mask"][0, 1:] = 0
        call["attention_mask"][2] = 0
        names = [*rollout.samples, "dummy"]
        own = {rollout.samples[1]: LENGTHS[1] - 1}
        for mode in ("R3", "R2"):
            for tokens in ({"tokens": call["input_ids"]}, {}):
                said = tokens | {"attention_mask": call["attention_mask"]}
                run = fake_run()
                writer = hf.RecordWriter(None, run) if mode == "R2" else None
                source = rollout if mode == "R3" else None
                with (
                    self.subTest(mode, tokens=bool(tokens)),
                    self.attached(model, source, mode=mode, writer=writer) as replay,
                ):
                    if mode == "R2":
                        with replay.micro_batch(names, **said), torch.no_grad():
                            loss_of(model, call)
                    replay.metrics()
                    with replay.micro_batch(names, **said):
                        loss_of(model, call)
                    metrics = replay.metrics()
                    self.assertEqual(metrics["routing_replay/replayed_rows"], sum(own.values()))
                    replay.abandon_step()
                if writer is not None:
                    self.assertEqual(writer.write(), rollout.samples)
                    told = [len(said.args[1]) for said in run.put.call_args_list]
                    self.assertEqual(told, [0, *own.values()])

    @over("packed")
    def test_r2_records_of_ranks_are_put_together(self, model: Any, rollout: Rollout) -> None:
        """Two ranks each record a part of a stream of two samples. The first rank writes the whole rows of both
        samples."""
        stream = torch.cat([rollout.call["input_ids"], torch.zeros(1, 1, dtype=torch.int64)], 1)
        group, run, live = LocalGroup(2), fake_run(), []
        writers = [hf.RecordWriter(group[rank], run if rank == 0 else None) for rank in range(2)]
        for rank, writer in enumerate(writers):
            call = {"input_ids": stream[:, rank * 6 : rank * 6 + 6]}
            with Choices() as own, torch.no_grad():
                model(**call)
            live.append(own.chosen)
            with (
                self.attached(model, None, mode="R2", ranks={"cp": rank}, cp_size=2, writer=writer) as replay,
                replay.micro_batch(rollout.samples, tokens=stream, position_ids=[*range(7), *range(4), 0]),
                torch.no_grad(),
            ):
                model(**call)
        with ThreadPoolExecutor(2) as pool:
            written = list(pool.map(lambda writer: writer.write(group=3), writers))
        self.assertEqual(written, [rollout.samples, []])
        self.assert_written(run, rollout, [torch.cat(both) for both in zip(*live, strict=True)])

    def assert_written(self, run: Any, rollout: Rollout, chosen: list[torch.Tensor]) -> None:
        """Checks what was appended. chosen: for each layer, the chosen ids of all rows of the micro-batch"""
        appended = {call.args[0]: call for call in run.put.call_args_list}
        self.assertEqual(list(appended), rollout.samples)
        for sample, tokens, place in zip(rollout.samples, rollout.tokens, rollout.places, strict=True):
            rows, said = appended[sample].args[1], dict(appended[sample].kwargs)
            self.assertTrue(np.array_equal(said.pop("tokens"), tokens[:-1]))
            self.assertEqual(said, {"num_tokens": len(tokens), "producer": "trainer", "group": 3})
            np.testing.assert_array_equal(rows, torch.stack([ids[place[:-1]] for ids in chosen], 1).cpu().numpy())
