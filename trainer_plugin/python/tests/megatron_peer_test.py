"""Replay in Megatron-Core's real routers: the same probabilities, maps and gradients as the peer told by hand."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np

import routing_replay_trainer as trainer
from routing_replay_trainer import megatron
from routing_replay_trainer.collective import LocalGroup

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import megatron_models as models
    import torch
    from host_queue import HostQueue
    from megatron.core import __version__ as megatron_version
    from megatron.core.pipeline_parallel.schedules import set_current_microbatch
    from megatron_rollouts import (
        CHUNKS,
        LENGTHS,
        MICRO_BATCHES,
        PIPELINE,
        CountingSource,
        Rollout,
        by_hand,
        interleaved,
    )

    from routing_replay_trainer._device_buffers import DeviceBuffers
    from routing_replay_trainer.megatron import _replay
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)

# sqrtsoftplus is of 0.18 and later.
OLDER = tuple(map(int, megatron_version.split(".")[:2])) < (0, 18)
SCORE_FUNCTIONS = ("softmax", "sigmoid") if OLDER else ("softmax", "sigmoid", "sqrtsoftplus")


def chunks_in_flight(replay: Any) -> int:
    return sum(chunk.passes.in_flight for chunk in replay._chunks)


class MegatronTest(unittest.TestCase):
    def setUp(self) -> None:
        models.set_up(self)

    def config(self, **options: Any) -> Any:
        return models.make_config(
            num_layers=8,
            moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1],
            pipeline_model_parallel_size=PIPELINE,
            virtual_pipeline_model_parallel_size=CHUNKS,
            **options,
        )

    def chunks(self, config: Any) -> list[Any]:
        """Those of pipeline rank 0."""
        return [models.Model(config, [1, 2]), models.Model(config, [5, 6])]

    def hidden(self, index: int) -> torch.Tensor:
        """What a chunk gets: [rows, 1, H]."""
        generator = torch.Generator().manual_seed(index)
        return torch.randn(sum(LENGTHS[index]), 1, models.HIDDEN, generator=generator)

    def attach(self, chunks: Any, config: Any, source: Any, **options: Any) -> Any:
        replay = megatron.attach(chunks, config, source=source, ranks={"pp": 0}, **options)
        self.addCleanup(replay.detach)
        return replay

    def step(self, replay: Any, rollout: Rollout, chunks: list[Any]) -> dict[tuple[int, int], torch.Tensor]:
        """Runs the schedule; outputs by (micro-batch, chunk)."""
        outputs = {}
        for kind, index, chunk in interleaved():
            if kind == "forward":
                set_current_microbatch(chunks[chunk], index)
                with replay.micro_batch(
                    rollout.samples(index),
                    tokens=torch.tensor(np.concatenate(rollout.tokens[index])),
                    packed_seq_params=rollout.packed(index),
                ):
                    outputs[index, chunk] = chunks[chunk](self.hidden(index).requires_grad_())
            else:
                outputs[index, chunk].square().sum().backward()
        return outputs

    def assert_as_by_hand(self, chunks: list[Any], peers: list[Any], rollout: Rollout, outputs: Any) -> None:
        for chunk, peer in enumerate(peers):
            for index in range(MICRO_BATCHES):
                expected = by_hand(peer, rollout, index, self.hidden(index).requires_grad_())
                expected.square().sum().backward()
                self.assertTrue(torch.equal(outputs[index, chunk], expected), (index, chunk))
        for chunk, peer in zip(chunks, peers, strict=True):
            for (name, ours), theirs in zip(chunk.named_parameters(), peer.parameters(), strict=True):
                self.assertIsNotNone(ours.grad, name)
                difference = (ours.grad - theirs.grad).abs().max().item()  # Sums of micro-batches, in another order.
                self.assertLessEqual(difference, 2e-6 * theirs.grad.abs().max().item(), name)

    def test_fused(self) -> None:
        """Our operator in place of the peer's function: the same map; probabilities and gradients within rounding."""
        for scores in SCORE_FUNCTIONS:
            with self.subTest(scores):
                options = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
                config = self.config(moe_router_score_function=scores, moe_router_topk_scaling_factor=2.5, **options)
                chunks = self.chunks(config)
                peers = copy.deepcopy(chunks)
                for peer in peers:
                    peer.eval()
                rollout = Rollout(config, 1)
                replay = self.attach(chunks, config, rollout.source, inject="fused")
                outputs = self.step(replay, rollout, chunks)
                for (index, chunk), output in outputs.items():
                    hidden = self.hidden(index).requires_grad_()
                    expected = by_hand(peers[chunk], rollout, index, hidden)
                    expected.square().sum().backward()
                    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
                for chunk, peer in zip(chunks, peers, strict=True):
                    for (name, ours), theirs in zip(chunk.named_parameters(), peer.parameters(), strict=True):
                        difference = (ours.grad - theirs.grad).abs().max().item()
                        self.assertLessEqual(difference, 1e-5 * theirs.grad.abs().max().item(), name)
                    for layer, moe in models.moe_layers(chunk).items():
                        maps = [routing_map for _, routing_map in moe.seen]
                        for _, routing_map in models.moe_layers(peer)[layer].seen:
                            self.assertEqual(sum(torch.equal(routing_map, ours) for ours in maps), 2)
                layers = sum(len(models.moe_layers(chunk)) for chunk in chunks)
                called = replay._tally._calls
                called.add(counters := torch.tensor(list(called.read().values())))
                # Each row of a layer once, although it is routed again in recompute.
                rows = layers * sum(sum(lengths) for lengths in LENGTHS)
                self.assertEqual(int(counters[:3].sum()), rows)
                self.assertEqual(replay.metrics()["routing_replay/clamped_ids"], 0)
                # A copy routes live, and so does the model that is let go.
                copied = copy.deepcopy(chunks[0])
                replay.detach()
                live = chunks[0](self.hidden(0))
                self.assertTrue(torch.equal(copied(self.hidden(0)), live))
                self.assertNotIn("routing", vars(models.moe_layers(chunks[0])[1].mlp.router))

    def test_fused_needs_no_router_replay(self) -> None:
        config = models.make_config(moe_enable_routing_replay=False)
        model = models.Model(config, [1, 2, 3, 4])
        config.moe_router_fusion = True  # Would need Transformer Engine if it were asked.
        rollout = Rollout(config, 3)
        replay = self.attach(model, config, rollout.source, inject="fused")
        with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0), torch.no_grad():
            model(self.hidden(0))
        ids, recorded = rollout.ids(0, 0)
        used = models.moe_layers(model)[0].seen[0][1].nonzero()[:, 1].view(len(ids), -1)
        self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())

    def test_interleaved_with_recompute(self) -> None:
        for options in (
            {},
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
        ):
            for scores in SCORE_FUNCTIONS:
                with self.subTest(scores=scores, **options):
                    config = self.config(moe_router_score_function=scores, **options)
                    chunks = self.chunks(config)
                    peers = copy.deepcopy(chunks)
                    for peer in peers:
                        peer.eval()
                    rollout = Rollout(config, 1)
                    replay = self.attach(chunks, config, rollout.source)
                    self.assert_as_by_hand(chunks, peers, rollout, self.step(replay, rollout, chunks))
                    self.assertEqual(replay.kept, 0)
                    replay.end_step()
                    for chunk, peer in zip(chunks, peers, strict=True):
                        for layer, moe in models.moe_layers(chunk).items():
                            forward = 2 if options else 1
                            self.assertEqual(len(moe.seen), forward * MICRO_BATCHES)
                            self.assertFalse(moe.mlp.router.router_replay.replay_backward_list)
                            self.assertIsNone(moe.mlp.router.router_replay.target_topk_idx)
                            theirs = models.moe_layers(peer)[layer].seen
                            for probs, routing_map in theirs:
                                same = [torch.equal(probs, p) and torch.equal(routing_map, m) for p, m in moe.seen]
                                self.assertEqual(sum(same), forward)

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
        # So does this one outside of a micro-batch, and again when it is let go.
        live = copied[0](hidden)
        self.assertTrue(torch.equal(chunks[0](hidden), live))
        replay.detach()
        with replay.micro_batch(rollout.samples(1), packed_seq_params=rollout.packed(1)):
            self.assertTrue(torch.equal(chunks[0](hidden), live))
        self.assertNotIn("get_replay_topk", vars(models.moe_layers(chunks[0])[1].mlp.router.router_replay))

    def test_a_copy_of_an_attached_model_is_attached(self) -> None:
        """The copy has the hooks and the bound methods of what it is a copy of."""
        for inject in ("native", "fused"):
            with self.subTest(inject):
                config = self.config()
                chunks = self.chunks(config)
                peers = copy.deepcopy(chunks)
                rollout = Rollout(config, 2)
                self.attach(chunks, config, rollout.source, inject=inject)
                copies = copy.deepcopy(chunks)
                replay = self.attach(copies, config, rollout.source, inject=inject)
                outputs = self.step(replay, rollout, copies)
                replay.end_step()
                self.assertEqual(
                    replay.metrics()["routing_replay/replayed_rows"],
                    CHUNKS * sum(n - 1 for own in LENGTHS for n in own),
                )
                if inject == "native":
                    self.assert_as_by_hand(copies, peers, rollout, outputs)

    def test_a_model_is_attached_once(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        for inject, other in (("native", "fused"), ("fused", "native")):
            replay = self.attach(chunks, config, rollout.source, inject=inject)
            for second in (inject, other):
                with self.assertRaisesRegex(trainer.FailedPreconditionError, "attached to this model already"):
                    self.attach(chunks, config, rollout.source, inject=second)
            # Also through a module around the one that was attached.
            around = torch.nn.Module()
            around.config, around.decoder = config, chunks[0].decoder
            with self.assertRaisesRegex(trainer.FailedPreconditionError, "attached to this router already"):
                self.attach([around, chunks[1]], config, rollout.source, inject=other)
            self.step(replay, rollout, chunks)
            replay.end_step()
            self.assertGreater(replay.metrics()["routing_replay/replayed_rows"], 0)
            replay.detach()

    def test_an_attach_that_fails_leaves_nothing(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        with (
            mock.patch.object(_replay.PassHooks, "install", side_effect=[None, RuntimeError("no")]),
            self.assertRaisesRegex(RuntimeError, "no"),
        ):
            megatron.attach(chunks, config, source=rollout.source, ranks={"pp": 0}, inject="fused")
        self.assertNotIn("routing", vars(models.moe_layers(chunks[0])[1].mlp.router))
        replay = self.attach(chunks, config, rollout.source)
        self.step(replay, rollout, chunks)
        replay.end_step()

    def test_an_mtp_router_stays_live(self) -> None:
        config = models.make_config(mtp_num_layers=1)
        model = models.Model(config, [1, 2, 3, 4], mtp=True)
        rollout = Rollout(config, 3)
        replay = self.attach([model], config, rollout.source)
        with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0):
            output = model(self.hidden(0).requires_grad_())
        output.sum().backward()
        router = model.mtp.layers[0].mtp_model_layer
        ids, recorded = rollout.ids(0, 0)
        mtp_ids = router.seen[0][1].nonzero()[:, 1].view(len(ids), -1)
        first = models.moe_layers(model)[0].seen[0][1].nonzero()[:, 1].view(len(ids), -1)
        self.assertEqual(first[recorded].tolist(), ids[recorded].sort(1).values.tolist())
        self.assertNotEqual(mtp_ids[recorded].tolist(), first[recorded].tolist())
        self.assertNotIn("get_replay_topk", vars(router.mlp.router.router_replay))

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
        held = replay.buffer_bytes
        for _ in range(3):
            self.step(replay, rollout, chunks)
        self.assertEqual(replay.buffer_bytes, held)
        self.assertEqual(replay.kept, 0)

    def test_r2_replays_what_a_rank_recorded(self) -> None:
        """After the weights have changed, the training pass takes the experts of the forward-only pass."""
        for inject in ("native", "fused"):
            with self.subTest(inject):
                config = self.config(recompute_granularity="selective", recompute_modules=["moe"])
                chunks = self.chunks(config)
                rollout = Rollout(config, 7)
                replay = self.attach(chunks, config, None, mode="R2", inject=inject)
                for index in range(MICRO_BATCHES):
                    for chunk in chunks:
                        set_current_microbatch(chunk, index)
                        tokens = torch.tensor(np.concatenate(rollout.tokens[index]))
                        packed = rollout.packed(index)
                        with (
                            torch.no_grad(),
                            replay.micro_batch(rollout.samples(index), tokens=tokens, packed_seq_params=packed),
                        ):
                            chunk(self.hidden(index))
                recorded = [{k: [m for _, m in v.seen] for k, v in models.moe_layers(c).items()} for c in chunks]
                for chunk in chunks:
                    for layer in models.moe_layers(chunk).values():
                        layer.seen.clear()
                        with torch.no_grad():
                            layer.mlp.router.weight.add_(torch.randn_like(layer.mlp.router.weight))
                self.step(replay, rollout, chunks)
                layers = sum(len(models.moe_layers(chunk)) for chunk in chunks)
                rows = sum(tokens - 1 for own in LENGTHS for tokens in own)
                held = rows * layers * config.moe_router_topk
                self.assertEqual(replay.metrics()["routing_replay/record_bytes"], held)
                differing = 0
                for chunk, before in zip(chunks, recorded, strict=True):
                    for number, layer in models.moe_layers(chunk).items():
                        self.assertEqual(len(layer.seen), 2 * MICRO_BATCHES)
                        maps = [m for _, m in layer.seen]
                        for index, expected in enumerate(before[number]):
                            kept = rollout.ids(index, number)[1]
                            same = [len(m) == len(expected) and torch.equal(m[kept], expected[kept]) for m in maps]
                            self.assertGreaterEqual(sum(same), 2)
                            live = layer.mlp.router.routing(layer.mlp.router.gating(self.hidden(index)))[1]
                            differing += int((live != expected).any(1).sum())
                self.assertGreater(differing, 0)
                replay.release_records()
                self.assertEqual(replay.metrics()["routing_replay/record_bytes"], 0)
                with self.assertRaisesRegex(trainer.FailedPreconditionError, "NOT_FOUND"):
                    self.step(replay, rollout, chunks)

    def test_r2_with_documents_that_nobody_has_named(self) -> None:
        """What has a name is recorded, written and replayed; the rest routes live, and not on filler."""
        config = models.make_config()
        model = models.Model(config, [1, 2, 3, 4])
        rollout = Rollout(config, 8)
        run = mock.Mock()
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
        self.assertEqual([call.args[0] for call in run.append.call_args_list], named)
        self.assertEqual(len(run.append.call_args.args[1]), LENGTHS[0][0] - 1)

    def test_r2_records_are_written_as_whole_rows(self) -> None:
        """Two pipeline ranks record; the first one appends the rows of all layers."""
        config = self.config()
        rollout = Rollout(config, 8)
        group = LocalGroup(PIPELINE)
        run = mock.Mock()
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
        appended = {call.args[0]: call for call in run.append.call_args_list}
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

    def test_shadow_changes_nothing(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 5)
        live = copy.deepcopy(chunks)
        replay = self.attach(chunks, config, rollout.source, mode="shadow")
        outputs = self.step(replay, rollout, chunks)
        for (index, chunk), output in outputs.items():
            self.assertTrue(torch.equal(output, live[chunk](self.hidden(index))))
        metrics = replay.metrics()
        layer = models.moe_layers(live[0])[1]
        common = slots = none = 0
        for index, (_, routing_map) in enumerate(layer.seen):
            ids, recorded = rollout.ids(index, 1)
            hits = routing_map.gather(1, ids).sum(1)[recorded]
            common, slots, none = (
                common + hits.sum().item(),
                slots + ids[recorded].numel(),
                none + (hits == 0).sum().item(),
            )
        self.assertAlmostEqual(metrics["routing_replay/overlap/layer_01"], common / slots)
        self.assertGreater(metrics["routing_replay/no_overlap_fraction"], 0)
        self.assertLess(metrics["routing_replay/no_overlap_fraction"], 1)
        self.assertEqual(metrics["routing_replay/unrecorded_rows"], CHUNKS * sum(map(len, LENGTHS)))

    def test_a_step_reads_every_slice_once(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        source = CountingSource(rollout.source)
        replay = self.attach(chunks, config, source, missing="drop", max_fallback_fraction=0.2)
        rollout.source.remove("2/1")
        samples = [sample for index in range(MICRO_BATCHES) for sample in rollout.samples(index)]
        tokens = [ids for own in rollout.tokens for ids in own]
        for step in range(2):
            begun = replay.begin_step([*samples], tokens=tokens, weight_version=7, step=step)
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
                replay.begin_step([*samples], tokens=tokens, weight_version=7, step=step)
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
        with self.assertRaises(trainer.FallbackLimitError):
            replay.begin_step([*samples, *(f"absent{i}" for i in range(9))])

    def test_a_step_is_begun_with_what_its_micro_batches_take(self) -> None:
        config = self.config()
        rollout = Rollout(config, 7)
        replay = self.attach(self.chunks(config), config, rollout.source)
        stream = torch.tensor(np.concatenate(rollout.tokens[0]))
        said = {"packed_seq_params": rollout.packed(0), "cp_size": 1}
        begun = replay.begin_step(rollout.samples(0), tokens=stream, **said)
        self.assertEqual(begun.replayed, len(LENGTHS[0]))
        with self.assertRaisesRegex(trainer.FailedPreconditionError, "TOKENS_MISMATCH"):
            replay.begin_step(rollout.samples(0), tokens=stream + 1, **said)
        with self.assertRaisesRegex(trainer.InvalidArgumentError, "nonsense") as caught:
            replay.begin_step(rollout.samples(0), tokens=stream, **said, nonsense=3)
        self.assertEqual(caught.exception.field, "micro_batch.nonsense")

    def test_what_is_announced_wrongly_is_named(self) -> None:
        config = self.config()
        rollout = Rollout(config, 7)
        replay = self.attach(self.chunks(config), config, rollout.source)
        samples, packed = rollout.samples(0), rollout.packed(0)
        for field, wrong in (
            ("sequences", {"samples": samples, "packed_seq_params": packed}),
            ("micro_batch.samples", {"sequences": samples, "samples": 3, "packed_seq_params": packed}),
            ("micro_batches", samples),
            ("lengths", {"sequences": samples, "index": 3}),
        ):
            with self.assertRaises(trainer.InvalidArgumentError) as caught:
                replay.prefetch([wrong])
            self.assertEqual(caught.exception.field, field)

    def test_a_backward_part_after_detach(self) -> None:
        for options in (
            {},
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
        ):
            for inject in ("native", "fused"):
                with self.subTest(inject, **options):
                    config = self.config(**options)
                    chunks = self.chunks(config)
                    rollout = Rollout(config, 6)
                    replay = self.attach(chunks, config, rollout.source, inject=inject)
                    with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0):
                        output = chunks[0](self.hidden(0).requires_grad_())
                    output.sum().backward(retain_graph=True)
                    replay.end_step()
                    replay.detach()
                    with contextlib.ExitStack() as stack:
                        if options:
                            refused = self.assertRaisesRegex(trainer.FailedPreconditionError, "has been detached since")
                            stack.enter_context(refused)
                        output.sum().backward()
                    chunks[0](self.hidden(0).requires_grad_()).sum().backward()

    def test_a_replay_is_not_copied(self) -> None:
        for inject in ("native", "fused"):
            config = self.config()
            chunks = self.chunks(config)
            replay = self.attach(chunks, config, Rollout(config, 7).source, inject=inject)
            for take in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy({"of": [one]})):
                with self.assertRaisesRegex(trainer.FailedPreconditionError, "neither copied nor pickled"):
                    take(replay)
            copied = copy.deepcopy(chunks[0])
            self.assertTrue(torch.equal(copied(self.hidden(0)), chunks[0](self.hidden(0))))

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
        self.assertTrue(replay._steps.source.drain(30))
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

    def test_ranks_that_decide_together_begin_a_step(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 8)
        others = types.SimpleNamespace(rank=0, size=2)
        replay = self.attach(chunks, config, rollout.source, missing="live", agree=others)
        set_current_microbatch(chunks[0], 0)
        with (
            self.assertRaisesRegex(trainer.FailedPreconditionError, "begin_step comes first"),
            replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0)),
        ):
            chunks[0](self.hidden(0))

    def test_a_step_that_goes_wrong_leaves_nothing(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        replay = self.attach(chunks, config, rollout.source)

        def forward(index: int | None, hidden: torch.Tensor, of: int | None = None, **options: Any) -> Any:
            of = index if of is None else of
            packed = rollout.packed(of)
            with replay.micro_batch(rollout.samples(of), packed_seq_params=packed, index=index, **options):
                return chunks[0](hidden)

        with self.assertRaisesRegex(trainer.InvalidArgumentError, "routes 3 rows"):
            forward(0, self.hidden(0)[:3])
        self.assertEqual(replay.kept, 0)
        with self.assertRaisesRegex(trainer.FailedPreconditionError, "micro-batch 0, virtual stage 0"):
            forward(0, self.hidden(0))
            replay.end_step()
        self.assertEqual(replay.kept, 0)
        set_current_microbatch(chunks[0], 5)
        with self.assertRaisesRegex(trainer.InvalidArgumentError, "runs micro-batch 5"):
            forward(0, self.hidden(0))
        with self.assertRaisesRegex(trainer.InvalidArgumentError, "index: not given"):
            forward(None, self.hidden(0), of=0, schedule=False)
        with torch.no_grad():
            forward(0, self.hidden(0), schedule=False)  # After a schedule has ended with micro-batch 5.
        packed = rollout.packed(1)
        with (
            self.assertRaisesRegex(trainer.FailedPreconditionError, "NOT_FOUND"),
            replay.micro_batch(["none"], packed_seq_params=packed),
        ):
            chunks[0](self.hidden(1))
        wrong = torch.zeros(sum(LENGTHS[5]), dtype=torch.int64)
        with self.assertRaisesRegex(trainer.FailedPreconditionError, "TOKENS_MISMATCH"):
            forward(5, self.hidden(5), tokens=wrong)
        forward(5, self.hidden(5)).sum().backward()
        replay.end_step()

    def test_an_exception_in_a_micro_batch_gives_it_up(self) -> None:
        """A loss that fails after the forward part: the same micro-batch can run again, and so can the next step."""
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        replay = self.attach(chunks, config, rollout.source)

        def forward(index: int) -> torch.Tensor:
            with replay.micro_batch(rollout.samples(index), packed_seq_params=rollout.packed(index), index=index):
                output = chunks[0](self.hidden(index).requires_grad_())
                if failing:
                    raise RuntimeError("no memory")
                return output

        for again in (1, 0):
            failing = False
            first = forward(0)
            failing = True
            with self.assertRaisesRegex(RuntimeError, "no memory"):
                forward(1)
            failing = False
            outputs = [first, *[forward(1) for _ in range(again)]]
            for output in outputs:
                output.sum().backward()
            self.assertEqual(replay.kept, 0)
            replay.end_step()

    def test_an_exception_of_the_schedule_gives_its_step_up(self) -> None:
        """Outside of any micro_batch, with passes in flight: it comes out unchanged, the next step is a healthy one,
        and a pass that is really not finished is still told."""
        config = self.config(recompute_granularity="selective", recompute_modules=["moe"])
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        replay = self.attach(chunks, config, rollout.source)
        lost = RuntimeError("no memory")

        def schedule(*, forward_step_func: Any, data_iterator: Any, model: Any, **_: Any) -> None:
            outputs = []
            for index in range(MICRO_BATCHES):
                set_current_microbatch(model, index)
                outputs.append(forward_step_func(data_iterator, model))
                if index == fails_after:
                    raise lost
            for output in outputs[: MICRO_BATCHES - forgets]:
                output.sum().backward()

        def forward_step(iterator: Any, model: Any) -> torch.Tensor:
            return model(self.hidden(next(iterator)).requires_grad_())

        def describe(index: int) -> dict[str, Any]:
            return {"sequences": rollout.samples(index), "packed_seq_params": rollout.packed(index)}

        for fails_after, forgets in ((None, 0), (1, 0), (MICRO_BATCHES - 1, 0), (None, 1), (None, 0)):
            with contextlib.ExitStack() as stack:
                if fails_after is not None:
                    caught = stack.enter_context(self.assertRaises(RuntimeError))
                if forgets:
                    stack.enter_context(self.assertRaisesRegex(trainer.FailedPreconditionError, "not finished|never"))
                megatron.replayed(replay, schedule, describe)(
                    forward_step_func=forward_step,
                    data_iterator=iter(range(MICRO_BATCHES)),
                    model=chunks[0],
                    num_microbatches=MICRO_BATCHES,
                )
            if fails_after is not None:
                self.assertIs(caught.exception, lost)
            self.assertEqual((replay.kept, chunks_in_flight(replay)), (0, 0))

    def test_a_second_call_in_a_micro_batch_is_named(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        replay = self.attach(chunks, config, rollout.source)
        for grad in (False, True):
            with contextlib.ExitStack() as stack:
                if grad:
                    stack.enter_context(self.assertRaisesRegex(trainer.FailedPreconditionError, "called a second time"))
                stack.enter_context(torch.set_grad_enabled(grad))
                packed = rollout.packed(0)
                stack.enter_context(replay.micro_batch(rollout.samples(0), packed_seq_params=packed, index=0))
                for _ in range(2):  # Without backward parts, each is a step of its own.
                    chunks[0](self.hidden(0))
        replay.end_step()

    def test_layers_that_no_schedule_has_told(self) -> None:
        """Megatron's layers begin with current_microbatch = -1."""
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 6)
        replay = self.attach(chunks, config, rollout.source)
        set_current_microbatch(chunks[0], -1)
        for index in (None, 0):
            with contextlib.ExitStack() as stack:
                if index is None:
                    refused = self.assertRaisesRegex(trainer.InvalidArgumentError, "index: not given, .*give index")
                    stack.enter_context(refused)
                packed = rollout.packed(0)
                stack.enter_context(replay.micro_batch(rollout.samples(0), packed_seq_params=packed, index=index))
                chunks[0](self.hidden(0).requires_grad_()).sum().backward()
        replay.end_step()

    def test_refusals_name_the_option(self) -> None:
        source = trainer.LocalSource({"num_layers": 4, "num_experts": 8, "top_k": 2})
        for options, change, words in (
            ({}, {"moe_router_fusion": True}, "moe_router_fusion"),
            ({"moe_enable_routing_replay": False}, {}, "moe_enable_routing_replay"),
            ({"moe_router_load_balancing_type": "sinkhorn"}, {}, "sinkhorn"),
            ({}, {"overlap_moe_expert_parallel_comm": True}, "overlap_moe_expert_parallel_comm"),
            ({}, {"cuda_graph_impl": "local"}, "cuda_graph_impl"),
        ):
            config = models.make_config(**options)
            model = models.Model(config, [1, 2, 3, 4])
            for name, value in change.items():
                setattr(config, name, value)
            with self.subTest(words), self.assertRaisesRegex(trainer.FailedPreconditionError, words):
                megatron.attach(model, config, source=source)
        config = models.make_config()
        with self.assertRaisesRegex(trainer.InvalidArgumentError, "model"):
            megatron.attach(models.Model(config, [1, 2]), config, source=source)


class StagedMegatronTest(MegatronTest):
    """The same with index buffers as a GPU has them, on a queue that the CPU plays."""

    def setUp(self) -> None:
        super().setUp()
        staged = mock.patch.object(_replay, "buffers_for", lambda module: DeviceBuffers(HostQueue()))
        staged.start()
        self.addCleanup(staged.stop)


if __name__ == "__main__":
    unittest.main()
