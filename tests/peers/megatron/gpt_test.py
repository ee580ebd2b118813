"""Megatron-Core's own GPTModel and MoELayer under its own forward_backward_func, in one process: on a GPU if torch sees
one, otherwise on the CPU."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import tempfile
import unittest
from typing import Any
from unittest import mock

import gpt
import routing_replay_trainer as trainer
import steps
import torch
from gpt import Layout
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from routing_replay import errors
from routing_replay_trainer import megatron

ONE = Layout()
DEEPER = {"num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]}


def setUpModule() -> None:
    store = os.path.join(unittest.enterModuleContext(tempfile.TemporaryDirectory()), "store")
    if gpt.DEVICE == "cuda":  # Losses and gradients are compared bit by bit, so sums must be computed in a fixed order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    backend = "cpu:gloo,cuda:nccl" if gpt.DEVICE == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    unittest.addModuleCleanup(torch.distributed.destroy_process_group)
    torch.set_num_threads(1)


def said(batch: gpt.MicroBatch) -> dict[str, Any]:
    return batch.said(trainer)


class GptTest(unittest.TestCase):
    def test_every_call_and_every_gradient(self) -> None:
        """Each micro-batch has two sequences. If a sequence is a whole sample, its last row has no route and gets
        filler; if it is only the first tokens of a sample (cut), its last row has a route like all others."""
        rows = 0
        for inject, recompute, scores, cut in itertools.product(
            ("native", "fused"), gpt.RECOMPUTE, ("softmax", "sigmoid", "sqrtsoftplus"), (False, True)
        ):
            with self.subTest(inject=inject, recompute=recompute, scores=scores, cut=cut):
                options = {"moe_router_score_function": scores, "moe_router_topk_scaling_factor": 2.5}
                rows += steps.replays(ONE, inject=inject, recompute=recompute, cut=cut, **DEEPER, **options)
        for inject, recompute in itertools.product(("native", "fused"), gpt.RECOMPUTE):
            with self.subTest(inject=inject, recompute=recompute, packed=True):
                rows += steps.replays(ONE, inject=inject, recompute=recompute, packed=True, **DEEPER)
        staged = () if gpt.DEVICE == "cuda" else ("native", "fused")  # On a GPU, all cases above use staged buffers.
        for inject, recompute in itertools.product(staged, gpt.RECOMPUTE):
            with self.subTest(inject=inject, recompute=recompute, staged=True):
                rows += steps.replays(ONE, inject=inject, recompute=recompute, staged=True, **DEEPER)
        print(f"{rows} rows and layers as recorded")

    def test_losses_of_routers(self) -> None:
        """The gradients of the router's weights must be equal to those with Megatron's own replay, and must contain the
        part that comes from the auxiliary losses."""
        for inject, kind in itertools.product(("native", "fused"), ("aux_loss", "seq_aux_loss", "global_aux_loss")):
            with self.subTest(inject=inject, kind=kind):
                said = {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.1}
                step = steps.Step(ONE, inject=inject, recompute="moe", cut=True, **DEEPER, **said)
                replay = step.attach()
                step.run(replay)
                step.compare(step.as_recorded())
                step.counted(replay)
                with_losses = gpt.gradients(step.chunks)
                _, without = step.by_hand({}, moe_aux_loss_coeff=0.0, moe_z_loss_coeff=None)
                name = next(name for name in without if "router.weight" in name)
                self.assertFalse(torch.equal(with_losses[name], without[name]))

    def test_capacity(self) -> None:
        """If the capacity of the experts has room for all tokens, nothing changes. If it has less, some experts of
        replayed rows are dropped, as the warning says. The others are those of the record. Megatron's own replay drops
        the same experts."""
        room = gpt.EXPERTS / gpt.TOP_K
        for inject, (factor, pads) in itertools.product(
            ("native", "fused"), ((room, False), (room, True), (0.5, False), (0.5, True))
        ):
            with self.subTest(inject=inject, factor=factor, pads=pads):
                options = {"moe_expert_capacity_factor": factor, "moe_pad_expert_input_to_capacity": pads}
                said = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.0}
                step = steps.Step(ONE, inject=inject, recompute="moe", cut=True, **DEEPER, **options, **said)
                with self.assertRaisesRegex(errors.FailedPreconditionError, "moe_expert_capacity_factor"):
                    step.attach(missing="strict")
                with self.assertLogs("routing_replay_trainer", "WARNING"):
                    replay = step.attach()
                step.run(replay)
                kept = told = 0
                for layer, calls in step.calls.maps.items():
                    for _, tokens in step.tokens():
                        record, _ = gpt.dense(step.rollout, tokens, layer)
                        kept += max(int((call & record).sum()) for call in calls)
                        told += int(record.sum())
                if factor < room:
                    self.assertLess(kept, told)
                elif pads:  # With padding up to the capacity, maps have all entries of the record, and more.
                    self.assertEqual(kept, told)
                else:
                    step.as_recorded()
                step.counted(replay)
                step.compare({})

    def test_rows_that_are_moved_by_one_are_found(self) -> None:
        """If the routes are one row late, the checks of the other tests must fail."""
        for inject in ("native", "fused"):
            step = steps.Step(ONE, inject=inject, recompute="moe", cut=True)
            replay = step.attach(step.rollout.shifted(trainer), watch="off")
            step.run(replay)
            with self.assertRaisesRegex(AssertionError, "calls as recorded"):
                step.as_recorded()
            with self.assertRaises(AssertionError):
                step.compare({})
            replay.detach()

    def test_r2(self) -> None:
        """After the weights have changed, a training step must use the experts that the forward-only step recorded."""
        for inject, recompute in itertools.product(("native", "fused"), gpt.RECOMPUTE):
            with self.subTest(inject=inject, recompute=recompute):
                step = steps.Step(ONE, inject=inject, recompute=recompute, **DEEPER)
                replay = megatron.attach(step.chunks, mode="R2", inject=inject)
                step.run(replay, forward_only=True)
                before = {layer: list(calls) for layer, calls in step.calls.maps.items()}
                self.assertEqual([len(calls) for calls in before.values()], [4] * 3)
                step.calls.maps.clear()
                with torch.no_grad():
                    for router in gpt.routers(step.chunks):
                        router.weight.add_(torch.randn_like(router.weight))
                step.run(replay)
                moved = 0
                for layer, calls in step.calls.maps.items():
                    self.assertEqual(len(calls), 4 * step.times)
                    for (_, tokens), expected in zip(step.tokens(), before[layer], strict=True):
                        own = torch.tensor(step.rollout.recorded[tokens.numpy()])
                        same = [torch.equal(call[own], expected[own]) for call in calls]
                        self.assertEqual(sum(same), step.times)
                said = step.counted(replay, watched=False)
                self.assertEqual(said["record_bytes"], 4 * 30 * 3 * gpt.TOP_K)
                replay.release_records()
                self.assertEqual(replay.metrics()["routing_replay/record_bytes"], 0)
                with self.assertRaisesRegex(errors.FailedPreconditionError, "NOT_FOUND"):
                    step.run(replay)
                replay.detach()
                step.calls.maps.clear()
                gpt.step(step.chunks, step.rollout)
                for layer, calls in step.calls.maps.items():
                    moved += sum(not torch.equal(live, old) for live, old in zip(calls, before[layer], strict=False))
                self.assertGreater(moved, 0)

    def test_shadow(self) -> None:
        """Shadow mode must change no bit, and report the share of the live choice that is in the record."""
        for inject in ("native", "fused"):
            step = steps.Step(ONE, inject=inject, recompute="moe", **DEEPER)
            replay = step.attach(mode="shadow")
            step.run(replay)
            ours = gpt.gradients(step.chunks)
            live = ONE.model(step.config)
            calls = gpt.Calls(live)
            losses = gpt.step(live, step.rollout)
            self.assertEqual(step.losses, losses)
            for name, gradient in gpt.gradients(live).items():
                self.assertTrue(torch.equal(ours[name], gradient), name)
            said = replay.metrics()
            for layer, maps in calls.maps.items():
                common = slots = 0
                for (_, tokens), chosen in zip(step.tokens(), maps[::2], strict=True):
                    told, recorded = gpt.dense(step.rollout, tokens, layer)
                    common += int((told & chosen)[recorded].sum())
                    slots += int(told[recorded].sum())
                self.assertAlmostEqual(said[f"routing_replay/overlap/layer_{layer:02}"], common / slots)
            replay.detach()

    def test_mtp(self) -> None:
        """The routers of the MTP block choose by themselves, while the other routers replay."""
        said = {"mtp_num_layers": 1, "mtp_loss_scaling_factor": 0.1}
        for inject, recompute in itertools.product(("native", "fused"), ("none", "full")):
            with self.subTest(inject=inject, recompute=recompute):
                step = steps.Step(ONE, inject=inject, recompute=recompute, **said)
                replay = step.attach()
                step.run(replay)
                step.as_recorded()
                step.counted(replay)
                self.assertEqual(len(step.calls.mtp), 4 * step.times)
                for (_, tokens), chosen in zip(step.tokens(), step.calls.mtp[:: step.times], strict=True):
                    told, recorded = gpt.dense(step.rollout, tokens, 1)
                    self.assertFalse(torch.equal(chosen[recorded], told[recorded]))
                replay.detach()

    def test_a_hybrid_model(self) -> None:
        """Which layers of a HybridModel are MoE layers is stated by the model's pattern, not by its configuration."""
        ONE.start()
        config = ONE.config(num_layers=6, moe_layer_freq=1)
        told = ONE.config(num_layers=6, moe_layer_freq=[0, 1, 0, 1, 0, 1])  # Only for the rollout.
        for inject in ("native", "fused"):
            with self.subTest(inject):
                rollout = gpt.Rollout(trainer, told, cut=True, packed=False, multiple=1)
                models = [[gpt.hybrid(config, "*E*E*E")] for _ in range(2)]
                calls = gpt.Calls(models[0])
                replay = megatron.attach(models[0], source=rollout.source, inject=inject, alarm_no_overlap=None)
                gpt.step(models[0], rollout, wrapped=lambda run, to=replay: megatron.replayed(to, run, said))
                ids = {}
                for index, batch in enumerate(rollout.micro_batches):
                    tokens = batch.at_routers(False)
                    for layer, maps in calls.maps.items():
                        self.assertTrue(torch.equal(maps[index], gpt.dense(rollout, tokens, layer)[0]))
                        ids[layer, index] = torch.tensor(rollout.routes[tokens.numpy(), rollout.moe.index(layer)])
                self.assertEqual(list(calls.maps), [1, 3, 5])
                replay.detach()
                gpt.step(models[1], rollout, gpt.told_by_hand(models[1], ids))
                theirs = gpt.gradients(models[1])
                for name, gradient in gpt.gradients(models[0]).items():
                    allowed = 0.0 if inject == "native" else 2e-5 * theirs[name].abs().max().item()
                    self.assertLessEqual((gradient - theirs[name]).abs().max().item(), allowed, name)

    def test_the_doctor(self) -> None:
        ONE.start()
        model = ONE.model(ONE.config(**DEEPER))
        for inject in ("native", "fused"):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertTrue(trainer.doctor(model, inject=inject))
            self.assertIn("routers: 3 of Megatron-Core: decoder.layers.1.mlp.router, ", printed.getvalue())
            self.assertIn("shadow pass: 15 rows, 3 layers, at least 100.0% ", printed.getvalue())
        self.assertTrue(model[0].training)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertFalse(trainer.doctor(ONE.model(ONE.config(**DEEPER, moe_enable_routing_replay=False))))
        self.assertRegex(printed.getvalue(), "routers: .*moe_enable_routing_replay=True")

    def test_memory_is_constant(self) -> None:
        step = steps.Step(ONE, recompute="full", **DEEPER)
        replay = step.attach()
        held = []
        for _ in range(8):
            step.run(replay)
            held.append((replay.kept, replay._buffers.slots.bytes))
        self.assertEqual(set(held[1:]), {held[1]})
        self.assertEqual(held[1][0], 0)

    def test_what_megatron_wants_transformer_engine_for(self) -> None:
        """Megatron's own attention and norm reject what these tests need. If this test fails, they no longer do, and
        the tests can use them."""
        ONE.start()
        with self.assertRaisesRegex(AssertionError, "only supported by TEDotProductAttention"):
            DotProductAttention(Layout(cp=2).config(), 1, None, "self")
        attention = DotProductAttention(ONE.config(), 1, mock.Mock(), "self")
        with self.assertRaisesRegex(AssertionError, "Packed sequence is not supported"):
            attention(None, None, None, None, packed_seq_params=mock.Mock())
        with self.assertRaisesRegex(AssertionError, "sequence parallel not supported"):
            WrappedTorchNorm(Layout(tp=2).config(), 16)


if __name__ == "__main__":
    unittest.main()
