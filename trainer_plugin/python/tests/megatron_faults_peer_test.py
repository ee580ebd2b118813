"""Replay in Megatron-Core's real routers: errors, rejections, and calls in an unusual order."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np
from local_group import LocalGroup
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import megatron

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import megatron_models as models
    import torch
    from megatron.core.pipeline_parallel.schedules import set_current_microbatch
    from megatron_case import MegatronCase, Staged
    from megatron_rollouts import LENGTHS, MICRO_BATCHES, Rollout

    from routing_replay_trainer.megatron import _replay
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)


def chunks_in_flight(replay: Any) -> int:
    return sum(chunk.passes.in_flight for chunk in replay._chunks)


class FaultsTest(MegatronCase):
    def test_a_copy_of_an_attached_model_is_rejected(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        self.attach(chunks, config, rollout.source)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "is a copy of an attached model"):
            self.attach(copy.deepcopy(chunks), config, rollout.source)

    def test_a_model_is_attached_once(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 2)
        for inject, other in (("native", "fused"), ("fused", "native")):
            replay = self.attach(chunks, config, rollout.source, inject=inject)
            for second in (inject, other):
                with self.assertRaisesRegex(errors.FailedPreconditionError, "attached to this model already"):
                    self.attach(chunks, config, rollout.source, inject=second)
            # A second attach is also rejected for a module that wraps the attached one.
            around = torch.nn.Module()
            around.config, around.decoder = config, chunks[0].decoder
            with self.assertRaisesRegex(errors.FailedPreconditionError, "attached to this router already"):
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

    def test_ranks_that_decide_together_begin_a_step(self) -> None:
        config = self.config()
        chunks = self.chunks(config)
        rollout = Rollout(config, 8)
        others = types.SimpleNamespace(rank=0, size=2)
        for alone in (None, types.SimpleNamespace(rank=0, size=1)):
            with self.assertRaisesRegex(errors.InvalidArgumentError, "agree: .* all 2 ranks") as caught:
                self.attach(chunks, config, rollout.source, missing="live", agree=alone)
            self.assertEqual(caught.exception.field, "agree")
        replay = self.attach(chunks, config, rollout.source, missing="live", agree=others)
        set_current_microbatch(chunks[0], 0)
        with (
            self.assertRaisesRegex(errors.FailedPreconditionError, "begin_step comes first"),
            replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0)),
        ):
            chunks[0](self.hidden(0))

    def test_micro_batches_with_groups_of_their_own(self) -> None:
        """A micro-batch whose local_cp_size differs (dynamic context parallelism) is rejected by name if ranks would
        have to agree."""
        config = self.config()
        rollout = Rollout(config, 2)
        sequences, packed = rollout.samples(0), rollout.packed(0)
        own = rollout.packed(0)
        own.local_cp_size = 2
        for missing in ("live", "drop"):
            # The other rank never takes part: an agreement would end at the deadline.
            options = {"missing": missing, "agree": LocalGroup(2)[0], "fetch_deadline": 0.1}
            chunks = self.chunks(config)
            replay = self.attach(chunks, config, rollout.source, **options)
            rejected = self.assertRaisesRegex(errors.InvalidArgumentError, "local_cp_size: 2, .*dynamic")
            for told, called in (
                ({"packed_seq_params": own}, {}),
                ({"padding": {"policy": "verl"}, "local_cp_size": 2}, {}),
                ({"local_cp_size": 2, "packed_seq_params": packed}, {}),
                ({}, {"packed_seq_params": own}),
            ):
                if told:
                    with rejected:
                        replay.prefetch([{"sequences": sequences, "lengths": LENGTHS[0], **told}])
                with rejected, replay.micro_batch(sequences, **told, index=0):
                    chunks[0](self.hidden(0), **called)
            same = {"padding": {"policy": "verl"}, "local_cp_size": 1}
            with self.assertRaisesRegex(errors.FailedPreconditionError, "begin_step comes first"):
                replay.prefetch([{"sequences": sequences, "lengths": LENGTHS[0], **same}])
        model = models.Model(models.make_config(), [1, 2, 3, 4])
        strict = self.attach(model, model.config, Rollout(model.config, 2).source)
        own = rollout.packed(4)
        own.local_cp_size, own.cp_group = 2, types.SimpleNamespace(rank=lambda: 1)
        with strict.micro_batch(rollout.samples(4), index=0), torch.no_grad():
            model(self.hidden(4)[:8], packed_seq_params=own)
        rows = [3, 4, 5, 6, 7, 8, 13, 14]  # The second of two zigzag ranks, with documents of 12 and of 4 tokens.
        ids, recorded = Rollout(model.config, 2).ids(4, 1)
        used = models.moe_layers(model)[1].seen[0][1].nonzero()[:, 1].view(8, -1)
        self.assertTrue(recorded[rows].all())
        self.assertEqual(used.tolist(), ids[rows].sort(1).values.tolist())

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

        with self.assertRaisesRegex(errors.InvalidArgumentError, "routes 3 rows"):
            forward(0, self.hidden(0)[:3])
        self.assertEqual(replay.kept, 0)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "micro-batch 0 of step 1, chunk 0"):
            forward(0, self.hidden(0))
            replay.end_step()
        self.assertEqual(replay.kept, 0)
        set_current_microbatch(chunks[0], 5)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "runs micro-batch 5"):
            forward(0, self.hidden(0))
        with self.assertRaisesRegex(errors.InvalidArgumentError, "index: not given"):
            forward(None, self.hidden(0), of=0, schedule=False)
        with torch.no_grad():
            # schedule=False ignores the current_microbatch 5 that the last schedule has left in the layers.
            forward(0, self.hidden(0), schedule=False)
        packed = rollout.packed(1)
        with (
            self.assertRaisesRegex(errors.FailedPreconditionError, "NOT_FOUND"),
            replay.micro_batch(["none"], packed_seq_params=packed),
        ):
            chunks[0](self.hidden(1))
        wrong = torch.zeros(sum(LENGTHS[5]), dtype=torch.int64)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_MISMATCH"):
            forward(5, self.hidden(5), tokens=wrong)
        forward(5, self.hidden(5)).sum().backward()
        replay.end_step()

    def test_an_exception_in_a_micro_batch(self) -> None:
        """A loss fails after the forward part. After `abandon_step`, the step can run again."""
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

        failing = False
        forward(0)
        failing = True
        with self.assertRaisesRegex(RuntimeError, "no memory"):
            forward(1)
        replay.abandon_step()
        self.assertEqual(replay.kept, 0)
        failing = False
        for output in (forward(0), forward(1)):
            output.sum().backward()
        replay.end_step()

    def test_an_exception_of_the_schedule_gives_its_step_up(self) -> None:
        """A schedule raises an exception outside of any micro_batch, with passes in flight. The exception is passed on
        unchanged, and the next step works. A pass that was never finished is still reported."""
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
                    stack.enter_context(self.assertRaisesRegex(errors.FailedPreconditionError, "not finished|never"))
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
                    stack.enter_context(self.assertRaisesRegex(errors.FailedPreconditionError, "called a second time"))
                stack.enter_context(torch.set_grad_enabled(grad))
                packed = rollout.packed(0)
                stack.enter_context(replay.micro_batch(rollout.samples(0), packed_seq_params=packed, index=0))
                for _ in range(2):  # Without backward passes, each forward pass is a step of its own.
                    chunks[0](self.hidden(0))
        replay.abandon_step()

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
                    rejected = self.assertRaisesRegex(errors.InvalidArgumentError, "index: not given, .*give index")
                    stack.enter_context(rejected)
                packed = rollout.packed(0)
                stack.enter_context(replay.micro_batch(rollout.samples(0), packed_seq_params=packed, index=index))
                chunks[0](self.hidden(0).requires_grad_()).sum().backward()
        replay.end_step()

    def test_rejections_name_the_option(self) -> None:
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
            with self.subTest(words), self.assertRaisesRegex(errors.FailedPreconditionError, words):
                megatron.attach(model, config, source=source)
        config = models.make_config()
        with self.assertRaisesRegex(errors.InvalidArgumentError, "model"):
            megatron.attach(models.Model(config, [1, 2]), config, source=source)

    def test_what_is_announced_wrongly_is_named(self) -> None:
        config = self.config()
        rollout = Rollout(config, 7)
        replay = self.attach(self.chunks(config), config, rollout.source)
        samples, packed = rollout.samples(0), rollout.packed(0)
        for field, wrong in (
            ("micro_batch.samples", {"sequences": samples, "samples": 3, "packed_seq_params": packed}),
            ("lengths", {"sequences": samples, "index": 3, "lengths": [3]}),
        ):
            with self.assertRaises(errors.InvalidArgumentError) as caught:
                replay.prefetch([wrong])
            self.assertEqual(caught.exception.field, field)

    def test_a_replay_is_not_copied(self) -> None:
        for inject in ("native", "fused"):
            config = self.config()
            chunks = self.chunks(config)
            replay = self.attach(chunks, config, Rollout(config, 7).source, inject=inject)
            for take in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy({"of": [one]})):
                with self.assertRaisesRegex(errors.FailedPreconditionError, "neither copied nor pickled"):
                    take(replay)
            copied = copy.deepcopy(chunks[0])
            self.assertTrue(torch.equal(copied(self.hidden(0)), chunks[0](self.hidden(0))))

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
                    with self.assertRaisesRegex(errors.FailedPreconditionError, "has been detached since"):
                        output.sum().backward()
                    chunks[0](self.hidden(0).requires_grad_()).sum().backward()

    def test_a_step_is_begun_with_the_tokens_of_its_sequences(self) -> None:
        config = self.config()
        rollout = Rollout(config, 7)
        replay = self.attach(self.chunks(config), config, rollout.source)
        tokens = [torch.tensor(ids) for ids in rollout.tokens[0]]
        rectangle = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        for said in ({"tokens": tokens}, {"tokens": rectangle, "lengths": LENGTHS[0]}, {"lengths": LENGTHS[0]}, {}):
            begun = replay.begin_step(rollout.samples(0), **said)
            self.assertEqual(begun.replayed, len(LENGTHS[0]))
        for said in ({"tokens": [ids + 1 for ids in tokens]}, {"tokens": rectangle + 1, "lengths": LENGTHS[0]}):
            with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_MISMATCH"):
                replay.begin_step(rollout.samples(0), **said)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "LENGTH_MISMATCH"):
            replay.begin_step(rollout.samples(0), tokens=rectangle)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "^INVALID.*tokens"):
            replay.begin_step(rollout.samples(0), tokens=torch.cat(tokens), lengths=LENGTHS[0])

    def test_a_run_without_hash_layers(self) -> None:
        """Hash layers choose by themselves, whether or not the run has their routes; the other layers replay."""
        config = models.make_config()
        rollout = Rollout(config, 3)
        part = trainer.LocalSource(rollout.source.geometry | {"moe_layers": [2, 3]})
        for sample, rows, tokens in zip(rollout.samples(0), rollout.rows[0], rollout.tokens[0], strict=True):
            part.add(sample, rows[:, 2:].astype(np.int32), tokens=tokens)
        for mode in ("R3", "shadow"):
            for source in (rollout.source, part):
                model = models.Model(config, [1, 2, 3, 4])
                for hashed in model.decoder.layers[:2]:
                    hashed.mlp.router.tid2eid = torch.zeros(1)
                with torch.no_grad():
                    model(self.hidden(0))
                replay = self.attach(model, config, source, mode=mode)
                with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0):
                    output = model(self.hidden(0))
                output.sum().backward()
                replay.end_step()
                metrics = replay.metrics()
                self.assertEqual(metrics["routing_replay/replayed_rows"], sum(LENGTHS[0]) - len(LENGTHS[0]))
                for layer, moe in models.moe_layers(model).items():
                    live, used = (seen[1] for seen in moe.seen[:2])
                    if layer < 2:
                        self.assertTrue(torch.equal(used, live))
                        self.assertNotIn(f"routing_replay/overlap/layer_{layer:02}", metrics)
                    elif mode == "R3":
                        ids, recorded = rollout.ids(0, layer)
                        used = used.nonzero()[:, 1].view(len(ids), -1)
                        self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())
                replay.detach()
        # Without its table, this is no hash layer any more. It must replay, but the run has no routes for it.
        model.decoder.layers[1].mlp.router.tid2eid = None
        with self.assertRaisesRegex(errors.InvalidArgumentError, "layer 1 chooses by scores|not that of the model"):
            self.attach(model, config, part)


class StagedFaultsTest(Staged, FaultsTest):
    """Runs the tests of FaultsTest with index buffers as on a GPU."""


if __name__ == "__main__":
    unittest.main()
