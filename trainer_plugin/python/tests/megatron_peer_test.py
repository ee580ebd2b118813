"""Replay in Megatron-Core's real routers: what a step of its whole models (tests/peers/megatron) does not cover."""

from __future__ import annotations

import copy
import sys
import threading
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np
from local_group import LocalGroup, fake_run
from routing_replay import errors
from step_test import drain

from routing_replay_trainer import megatron

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import megatron_models as models
    import torch
    from megatron.core.pipeline_parallel.schedules import set_current_microbatch
    from megatron_case import MegatronCase, Staged
    from megatron_rollouts import CHUNKS, LENGTHS, MICRO_BATCHES, PIPELINE, CountingSource, Rollout, by_hand
    from torch.overrides import TorchFunctionMode

    from routing_replay_trainer import _attached
    from routing_replay_trainer.megatron import _modules
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)

# Names of the torch functions that make the host wait for a device.
READS = ("cpu", "item", "tolist", "__index__", "__bool__", "__int__")


class MegatronTest(MegatronCase):
    def test_fused_needs_no_router_replay(self) -> None:
        config = models.make_config(moe_enable_routing_replay=False)
        model = models.Model(config, [1, 2, 3, 4])
        config.moe_router_fusion = True  # This would need Transformer Engine if it were used.
        rollout = Rollout(config, 3)
        replay = self.attach(model, config, rollout.source, inject="fused")
        with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0), torch.no_grad():
            model(self.hidden(0))
        ids, recorded = rollout.ids(0, 0)
        used = models.moe_layers(model)[0].seen[0][1].nonzero()[:, 1].view(len(ids), -1)
        self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())

    def test_other_models_stay_live(self) -> None:
        config = self.config()
        reference = self.chunks(config)
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        replay = self.attach(chunks, config, rollout.source)
        critic, copied = self.chunks(config), copy.deepcopy(chunks)
        peers = copy.deepcopy(chunks)
        self.assert_as_by_hand(chunks, peers, rollout, self.step(replay, rollout, chunks))
        hidden = self.hidden(1)
        for other in (reference[0], critic[0], copied[0]):
            alone = other(hidden)
            set_current_microbatch(chunks[0], 0)
            with replay.micro_batch(rollout.samples(1), packed_seq_params=rollout.packed(1)):
                self.assertTrue(torch.equal(other(hidden), alone))
        # The attached model also routes live: outside of a micro-batch, and after detach.
        live = copied[0](hidden)
        self.assertTrue(torch.equal(chunks[0](hidden), live))
        replay.detach()
        with replay.micro_batch(rollout.samples(1), packed_seq_params=rollout.packed(1)):
            self.assertTrue(torch.equal(chunks[0](hidden), live))
        self.assertNotIn("get_replay_topk", vars(models.moe_layers(chunks[0])[1].mlp.router.router_replay))

    def test_a_method_that_a_framework_has_wrapped(self) -> None:
        """NeMo-RL wraps this method in a function whose module has no RouterReplayAction."""
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        kind = type(models.moe_layers(chunks[0])[1].mlp.router.router_replay)
        own = kind.get_replay_topk
        with mock.patch.object(kind, "get_replay_topk", lambda *arguments: own(*arguments)):
            replay = self.attach(chunks, config, rollout.source)
            peers = copy.deepcopy(chunks)
            self.assert_as_by_hand(chunks, peers, rollout, self.step(replay, rollout, chunks))

    def test_forward_only_passes_leave_nothing(self) -> None:
        config = self.config(recompute_granularity="selective", recompute_modules=["moe"])
        chunks = self.chunks(config)
        rollout = Rollout(config, 4)
        replay = self.attach(chunks, config, rollout.source)
        peers = copy.deepcopy(chunks)
        for peer in peers:
            peer.eval()
        for _ in range(2):
            for index in range(MICRO_BATCHES):
                for chunk, peer in zip(chunks, peers, strict=True):
                    set_current_microbatch(chunk, index)
                    with (
                        torch.no_grad(),
                        replay.micro_batch(rollout.samples(index), packed_seq_params=rollout.packed(index)),
                    ):
                        ours = chunk(self.hidden(index))
                    self.assertEqual(replay.kept, 0)
                    self.assertTrue(torch.equal(ours, by_hand(peer, rollout, index, self.hidden(index))))
        self.assert_as_by_hand(chunks, peers, rollout, self.step(replay, rollout, chunks))
        self.step(replay, rollout, chunks)
        held = replay._buffers.slots.bytes
        for _ in range(3):
            self.step(replay, rollout, chunks)
        self.assertEqual(replay._buffers.slots.bytes, held)
        self.assertEqual(replay.kept, 0)

    def test_r2_with_documents_that_nobody_has_named(self) -> None:
        """Sequences with a sample are recorded, written and replayed; the others route live, without filler."""
        config = models.make_config()
        model = models.Model(config, [1, 2, 3, 4])
        rollout = Rollout(config, 8)
        run = fake_run()
        writer = megatron.RecordWriter(LocalGroup(1)[0], run)
        replay = self.attach(model, config, None, mode="R2", writer=writer)
        named = rollout.samples(0)[:1]
        before: list[torch.Tensor] = []
        for grad in (False, True):
            for layer in models.moe_layers(model).values():
                layer.seen.clear()
            with (
                torch.set_grad_enabled(grad),
                replay.micro_batch(named, packed_seq_params=rollout.packed(0), index=0),
            ):
                output = model(self.hidden(0))
            maps = [layer.seen[0][1] for layer in models.moe_layers(model).values()]
            self.assertTrue(all(map(torch.equal, maps, before)))  # Weights are the same.
            before = maps
        output.sum().backward()
        replay.end_step()
        writer.write()
        self.assertEqual([call.args[0] for call in run.put.call_args_list], named)
        self.assertEqual(len(run.put.call_args.args[1]), LENGTHS[0][0] - 1)

    def test_r2_records_are_written_as_whole_rows(self) -> None:
        """Two pipeline ranks record; the first one appends the rows of all layers."""
        config = self.config()
        rollout = Rollout(config, 8)
        group = LocalGroup(PIPELINE)
        run = fake_run()
        writers, seen = [], {}
        for pp, numbers in enumerate((([1, 2], [5, 6]), ([3, 4], [7, 8]))):
            chunks = [models.Model(config, chunk) for chunk in numbers]
            writers.append(megatron.RecordWriter(group[pp], run))
            replay = megatron.attach(chunks, config, mode="R2", ranks={"pp": pp}, writer=writers[-1])
            self.addCleanup(replay.detach)
            for index in range(MICRO_BATCHES):
                for chunk in chunks:
                    set_current_microbatch(chunk, index)
                    tokens = torch.tensor(np.concatenate(rollout.tokens[index]))
                    with (
                        torch.no_grad(),
                        replay.micro_batch(
                            rollout.samples(index), tokens=tokens, packed_seq_params=rollout.packed(index)
                        ),
                    ):
                        chunk(self.hidden(index))
                    for number, layer in models.moe_layers(chunk).items():
                        seen[index, rollout.moe.index(number)] = layer.seen[index][1]
        threads = [threading.Thread(target=writer.write, kwargs={"group": 4}) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        appended = {call.args[0]: call for call in run.put.call_args_list}
        for index in range(MICRO_BATCHES):
            start = 0
            for sample, tokens in zip(rollout.samples(index), rollout.tokens[index], strict=True):
                _, rows = appended[sample].args
                self.assertEqual(appended[sample].kwargs["producer"], "trainer")
                np.testing.assert_array_equal(appended[sample].kwargs["tokens"], tokens[:-1])
                self.assertEqual(rows.shape, (len(tokens) - 1, len(rollout.moe), config.moe_router_topk))
                for column in range(len(rollout.moe)):
                    chosen = seen[index, column][start : start + len(rows)].nonzero()[:, 1].reshape(len(rows), -1)
                    self.assertEqual(np.sort(rows[:, column]).tolist(), chosen.tolist())
                start += len(tokens)

    def test_the_last_row_of_a_sample(self) -> None:
        """The last row takes filler, and no layer calls topk; it routes live again if its sample falls back."""
        config = models.make_config()
        rollout = Rollout(config, 3)
        for inject in ("native", "fused"):
            for last_row, missing_sample in (("filler", False), ("live", False), ("filler", True)):
                model = models.Model(config, [1, 2, 3, 4])
                options = {"last_row": last_row, "missing": "live", "watch": "off", "max_fallback_fraction": 1.0}
                replay = self.attach(model, config, rollout.source, inject=inject, **options)
                samples = [*rollout.samples(0)[:-1], "absent"] if missing_sample else rollout.samples(0)
                with (
                    mock.patch.object(torch, "topk", wraps=torch.topk) as topk,
                    replay.micro_batch(samples, packed_seq_params=rollout.packed(0), index=0),
                ):
                    output = model(self.hidden(0))
                lives = last_row == "live" or missing_sample
                self.assertEqual(topk.call_count, 4 if inject == "native" and lives else 0)
                output.sum().backward()
                replay.end_step()
                live = sum(LENGTHS[0][-1:]) if missing_sample else len(LENGTHS[0]) if last_row == "live" else 0
                self.assertEqual(replay.metrics()["routing_replay/unrecorded_rows"], live)
                for layer, moe in models.moe_layers(model).items():
                    self.assertEqual(moe.seen[0][1].sum(1).tolist(), [2] * sum(LENGTHS[0]))
                    ids, recorded = rollout.ids(0, layer)
                    recorded[-live if missing_sample else len(recorded) :] = False
                    used = moe.seen[0][1].nonzero()[:, 1].view(len(ids), -1)
                    self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())
                replay.detach()
        with self.assertRaisesRegex(errors.InvalidArgumentError, "last_row"):
            self.attach(model, config, rollout.source, last_row="first")

    def test_a_sequence_of_no_sample_routes_live(self) -> None:
        config = models.make_config()
        rollout = Rollout(config, 3)
        for inject, nobody in (("native", None), ("native", 0), ("fused", None)):
            model = models.Model(config, [1, 2, 3, 4])
            with torch.no_grad():
                model(self.hidden(0))
            replay = self.attach(model, config, rollout.source, inject=inject, last_row="filler")
            samples = [nobody, rollout.samples(0)[1], nobody]
            begun = replay.begin_step(samples, tokens=rollout.tokens[0])
            self.assertEqual((begun.replayed, begun.fallen_back), (1, 0))
            with replay.micro_batch(samples, index=0), self.assertNoLogs("routing_replay_trainer"):
                model(self.hidden(0), packed_seq_params=rollout.packed(0)).sum().backward()
                replay.end_step()
            metrics = {name.rpartition("/")[2]: value for name, value in replay.metrics().items()}
            self.assertEqual((metrics["live_rows"], metrics["replayed_rows"]), (7, 8))
            self.assertEqual((metrics["unrecorded_rows"], metrics["fallback_sequences"]), (0, 0))
            self.assertAlmostEqual(metrics["live_fraction"], 7 / 15)
            first = models.moe_layers(model)[0].seen  # Earlier rows are the same with and without replay.
            rows = [*range(5), *range(14, 16)]
            self.assertTrue(torch.equal(first[0][1][rows], first[1][1][rows]))
            replay.detach()

    def test_a_copy_of_another_length_falls_back_alone(self) -> None:
        """Frameworks fill up a batch with rows that copy the first sample's columns, and so its id, but may have
        another length."""
        config = models.make_config()
        rollout = Rollout(config, 3)
        for missing, named in (("live", "live"), ("drop", "dropped")):
            model = models.Model(config, [1, 2, 3, 4])
            replay = self.attach(model, config, rollout.source, missing=missing, max_fallback_fraction=0.5)
            samples = [*rollout.samples(0)[:2], rollout.samples(0)[0]]
            begun = replay.begin_step(samples, lengths=LENGTHS[0])
            self.assertEqual((begun.replayed, getattr(begun, named)), (2, (samples[0],)))
            with replay.micro_batch(samples, index=0):
                model(self.hidden(0), packed_seq_params=rollout.packed(0)).sum().backward()
            replay.end_step()
            self.assertEqual(replay.metrics()["routing_replay/fallback_sequences"], 1)
            ids, recorded = rollout.ids(0, 0)
            recorded[-2:] = False
            used = models.moe_layers(model)[0].seen[0][1].nonzero()[:, 1].view(len(ids), -1)
            self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())
            replay.detach()

    def test_a_step_reads_every_slice_once(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        source = CountingSource(rollout.source)
        twin = types.SimpleNamespace(rank=0, size=2, all_reduce_max=lambda values, deadline: values)
        replay = self.attach(chunks, config, source, missing="drop", agree=twin, max_fallback_fraction=0.2)
        rollout.source.remove("2/1")
        samples = [sample for index in range(MICRO_BATCHES) for sample in rollout.samples(index)]
        tokens = [ids for own in rollout.tokens for ids in own]
        for step in range(2):
            begun = replay.begin_step([*samples], tokens=tokens, step=step)
            self.assertEqual(begun.dropped, ("2/1",))
            self.assertEqual(replay.last_step, begun)
            self.assertEqual(begun.replayed, len(samples) - 1)
            for index in range(MICRO_BATCHES):
                for chunk in chunks:
                    set_current_microbatch(chunk, index)
                    with (
                        torch.no_grad(),
                        replay.micro_batch(
                            rollout.samples(index),
                            tokens=rollout.tokens[index],
                            packed_seq_params=rollout.packed(index),
                        ),
                    ):
                        chunk(self.hidden(index))
            for _ in range(3):
                replay.begin_step([*samples], tokens=tokens, step=step)
                self.step(replay, rollout, chunks)
                replay.end_step()
            self.assertEqual(source.samples, (step + 1) * CHUNKS * (len(samples) - 1))
        self.assertEqual(source.inspections, 2 * 4)
        metrics = replay.metrics()
        self.assertEqual(metrics["routing_replay/step_dropped_samples"], 1)
        self.assertAlmostEqual(metrics["routing_replay/prefetch_hit_rate"], 0.75)
        self.assertAlmostEqual(metrics["routing_replay/fallback_fraction"], 1 / len(samples))
        self.assertIn("routing_replay/fetch_wait_s", metrics)
        rollout.source.add("2/1", rollout.rows[2][1].astype(np.int32))
        with self.assertRaises(errors.FallbackLimitError):
            replay.begin_step([*samples, *(f"absent{i}" for i in range(9))])

    def test_announced_micro_batches_are_there(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 7)
        source = CountingSource(rollout.source)
        replay = self.attach(chunks, config, source)
        samples = [sample for index in range(MICRO_BATCHES) for sample in rollout.samples(index)]
        replay.begin_step(samples)
        replay.prefetch(
            [
                {"sequences": rollout.samples(index), "packed_seq_params": rollout.packed(index), "index": index}
                for index in range(MICRO_BATCHES)
            ]
        )
        drain(replay._steps.source)
        for index in range(MICRO_BATCHES):
            for chunk in chunks:
                set_current_microbatch(chunk, index)
                with (
                    torch.no_grad(),
                    replay.micro_batch(rollout.samples(index), packed_seq_params=rollout.packed(index)),
                ):
                    chunk(self.hidden(index))
        self.assertEqual(source.samples, CHUNKS * len(samples))
        self.assertEqual(replay.metrics()["routing_replay/prefetch_hit_rate"], 1)

    def test_no_forward_step_waits_for_a_device(self) -> None:
        """Tensors with the boundaries of sequences are read before the schedule, and not in a forward step."""
        config = models.make_config()
        model = models.Model(config, [1, 2, 3, 4])
        rollout = Rollout(config, 10)
        replay = self.attach(model, config, rollout.source)
        reads: list[str] = []

        class Reads(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if getattr(func, "__name__", "") in READS:
                    reads.append(func.__name__)
                return func(*args, **(kwargs or {}))

        def describe(index: int) -> dict[str, Any]:
            packed = rollout.packed(index)
            packed.cu_seqlens_q_padded = packed.cu_seqlens_q
            packed.total_tokens = packed.cu_seqlens_q[-1]
            tokens = torch.tensor(np.concatenate(rollout.tokens[index]))
            lengths = torch.tensor(LENGTHS[index])
            said = {"tokens": tokens, "packed_seq_params": packed, "lengths": lengths, "index": index}
            return said | {"sequences": rollout.samples(index)}

        def forward_step(iterator: Any, of: Any) -> Any:
            return of(self.hidden(next(iterator)).requires_grad_())

        def schedule(*, forward_step_func: Any, data_iterator: Any, num_microbatches: int) -> None:
            for _ in range(num_microbatches):
                with Reads():
                    output = forward_step_func(data_iterator, model)
                output.sum().backward()

        run = megatron.replayed(replay, schedule, describe)
        run(forward_step_func=forward_step, data_iterator=iter(range(4)), num_microbatches=4)
        self.assertEqual(reads, [])
        self.assertEqual(replay.metrics()["routing_replay/fallback_fraction"], 0)

    def test_a_plan_is_made_once(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 11)
        with (
            mock.patch.object(_attached, "Plan", side_effect=_attached.Plan) as made,
            mock.patch.object(_modules, "config_json", side_effect=_modules.config_json) as read,
        ):
            replay = self.attach(chunks, config, CountingSource(rollout.source))
            at_attach = made.call_count
            for _ in range(2):
                replay.begin_step([sample for index in range(MICRO_BATCHES) for sample in rollout.samples(index)])
                said = [
                    {"tokens": torch.tensor(np.concatenate(rollout.tokens[index])), "index": index}
                    for index in range(MICRO_BATCHES)
                ]
                replay.prefetch(
                    [
                        one | {"sequences": rollout.samples(index), "packed_seq_params": rollout.packed(index)}
                        for index, one in enumerate(said)
                    ]
                )
                self.step(replay, rollout, chunks)
                replay.end_step()
            self.assertEqual(made.call_count - at_attach, MICRO_BATCHES * CHUNKS)
            self.assertEqual(read.call_count, 1)


class StagedMegatronTest(Staged, MegatronTest):
    """Runs the tests of MegatronTest with index buffers as on a GPU."""


if __name__ == "__main__":
    unittest.main()
