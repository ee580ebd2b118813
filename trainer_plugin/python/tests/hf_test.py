"""The Hugging Face interface over transformers' own models, on a GPU if torch sees one, otherwise on the CPU."""

from __future__ import annotations

import copy
import functools
import re
import sys
import unittest
from typing import Any
from unittest import mock

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import hf_models
    import torch
    import torch.distributed as dist
    from hf_cases import EXPERTS, TOP_K, Cases, Choices, Rollout, block_of, loss_of, moe_layers, new_model, over
    from hf_r2_cases import RecordCases
    from host_cuda import NoKernels
    from routing_replay import errors
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    from routing_replay_trainer import hf
    from routing_replay_trainer._device_buffers import DeviceBuffers
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with transformers")
    sys.exit(SKIPPED)


class TransformersTest(RecordCases):
    models = hf_models.MODELS

    @over("right")
    def test_logits_of_the_routers_are_asked_for(self, model: Any, rollout: Rollout) -> None:
        """With output_router_logits, transformers wraps routers itself, or fails in the same way without us."""
        peer = copy.deepcopy(model)
        try:
            copy.deepcopy(model)(**rollout.call, output_router_logits=True)
        except Exception as error:
            with self.attached(model, rollout) as replay:
                with (
                    self.assertRaisesRegex(type(error), re.escape(str(error))),
                    replay.micro_batch(rollout.samples, **rollout.said),
                ):
                    model(**rollout.call, output_router_logits=True)
                replay.abandon_step()
            return
        expected = self.by_hand(peer, rollout)
        with self.attached(model, rollout) as replay:
            model(**rollout.call, output_router_logits=True)
            with replay.micro_batch(rollout.samples, **rollout.said):
                out = model(**rollout.call, output_router_logits=True).logits
            out.sum().backward()
        self.assertTrue(torch.equal(out[rollout.call["attention_mask"].bool()], expected))
        # transformers leaves its own method on the model; such a model may be attached.
        peer(**rollout.call, output_router_logits=True)
        hf.attach(peer, source=rollout.source()).detach()

    @over("right")
    def test_bf16(self, model: Any, rollout: Rollout) -> None:
        model = model.bfloat16()
        peer = copy.deepcopy(model)
        expected = self.by_hand(peer, rollout)
        with self.attached(model, rollout) as replay:
            with replay.micro_batch(rollout.samples, **rollout.said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
        self.assert_same(model, out, peer, expected)

    @over("packed", "right")
    def test_the_last_row_of_a_sample(self, model: Any, rollout: Rollout) -> None:
        """The last row takes filler experts, and no layer calls topk, unless padding routes live or the sample falls
        back."""
        with Choices(rollout.forced), torch.no_grad():
            expected = loss_of(model, rollout.call)[0]
        calls = []

        def topk(scores: torch.Tensor, k: int, *arguments: Any, **options: Any) -> Any:
            if (scores.shape[-1], k) == (EXPERTS, TOP_K):
                calls.append(k)
            return own(scores, k, *arguments, **options)

        own, pads = torch.topk, 0 if rollout.layout == "packed" else 5
        for last_row, absent, lives in (("filler", False, pads > 0), ("live", False, True), ("filler", True, True)):
            options = {"missing": "live", "max_fallback_fraction": 1.0, "watch": "off", "last_row": last_row}
            with self.attached(model, rollout, **options) as replay:
                samples = [rollout.samples[0], "absent"] if absent else rollout.samples
                calls.clear()
                with mock.patch.object(torch, "topk", topk), replay.micro_batch(samples, **rollout.said):
                    out, loss = loss_of(model, rollout.call)
                self.assertEqual(len(calls), len(rollout.layers) if lives else 0)
                loss.backward()
                replay.end_step()
                metrics = replay.metrics()
            # The rows before a sample's last row do not depend on its choice.
            torch.testing.assert_close(out[:6], expected[:6], rtol=1e-4, atol=1e-5)
            unrecorded = 4 if absent else 2 if last_row == "live" else 0
            self.assertEqual(metrics["routing_replay/unrecorded_rows"], unrecorded)
            self.assertEqual(metrics["routing_replay/replayed_rows"], 6 if absent else 9)
            if absent and not pads:
                self.assertEqual(metrics["routing_replay/pad_rows"], 1)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "last_row"):
            hf.attach(model, source=rollout.source(), last_row="first")

    @over("right")
    def test_the_base_model_alone(self, model: Any, rollout: Rollout) -> None:
        """Frameworks that compute logits in pieces call the base model (`model.model`) directly."""
        peer = copy.deepcopy(model)
        with Choices(rollout.forced):
            expected = peer.model(**rollout.call).last_hidden_state
        with self.attached(model, rollout) as replay:
            with replay.micro_batch(rollout.samples, **rollout.said):
                out = model.model(**rollout.call).last_hidden_state
            out.sum().backward()
            self.assertEqual(replay.kept, 0)
        mask = rollout.call["attention_mask"].bool()
        self.assertTrue(torch.equal(out[mask], expected[mask]))

    @over("right")
    def test_another_code_is_rejected_by_name(self, model: Any, rollout: Rollout) -> None:
        block = block_of(model.model.layers[rollout.layers[-1]])
        own = type(block)
        place = f"layers.{rollout.layers[-1]}.(mlp|block_sparse_moe)"

        class Elsewhere(own):
            def forward(self, hidden_states: Any) -> Any:
                return hidden_states

        block.__class__ = Elsewhere
        with self.assertRaisesRegex(errors.FailedPreconditionError, f"{place}.*does not ask"):
            hf.attach(model, source=rollout.source())
        block.__class__ = type("OtherMoE", (torch.nn.Module,), {})
        with self.assertRaisesRegex(errors.FailedPreconditionError, f"{place}.*OtherMoE"):
            hf.attach(model, source=rollout.source())
        block.__class__ = own
        block.forward = lambda hidden_states: hidden_states
        with self.assertRaisesRegex(errors.FailedPreconditionError, f"{place}.*replaced"):
            hf.attach(model, source=rollout.source())
        del block.forward
        hf.attach(model, source=rollout.source()).detach()


@unittest.skipIf(torch.cuda.is_available(), "the GPU here is a real one")
class NoKernelsTest(NoKernels, Cases):
    models = hf_models.MODELS

    @over("right", "packed")
    def test_inference_first(self, model: Any, rollout: Rollout) -> None:
        """A first pass under inference_mode allocates buffers to which later passes write, outside of it."""
        peer = copy.deepcopy(model)
        expected = self.by_hand(peer, rollout)
        with self.attached(model, rollout) as replay:
            self.assertIsInstance(replay._buffers, DeviceBuffers)
            with torch.inference_mode(), replay.micro_batch(rollout.samples, **rollout.said):
                self.assertTrue(torch.equal(loss_of(model, rollout.call)[0], expected))
            replay.end_step()
            with replay.micro_batch(rollout.samples, **rollout.said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
            self.assert_same(model, out, peer, expected)


@unittest.skipIf(torch.cuda.is_available(), "its ranks share the CPU")
class ShardedTest(unittest.TestCase):
    """A single rank with gloo: what FSDP does to modules, their classes and their hooks."""

    @classmethod
    def setUpClass(cls) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls) -> None:
        dist.destroy_process_group()

    def test_fsdp2(self) -> None:
        for name in hf_models.MODELS:
            for first in ("attached", "sharded"):
                with self.subTest(name, first=first):
                    model, peer, rollout = self.start(name)
                    replay = hf.attach(model, source=rollout.source(), last_row="live") if first == "attached" else None
                    mesh = init_device_mesh("cpu", (1,))
                    for layer in model.model.layers:
                        fully_shard(block_of(layer), mesh=mesh)
                        fully_shard(layer, mesh=mesh)
                    fully_shard(model, mesh=mesh)
                    replay = replay or hf.attach(model, source=rollout.source(), last_row="live")
                    self.check(model, model, peer, rollout, replay)

    def test_fsdp(self) -> None:
        for name in hf_models.MODELS:
            for first in ("attached", "sharded"):
                with self.subTest(name, first=first):
                    model, peer, rollout = self.start(name)
                    replay = hf.attach(model, source=rollout.source(), last_row="live") if first == "attached" else None
                    layer = model.model.layers[rollout.layers[-1]]
                    wrapped = {type(layer), type(block_of(layer))}
                    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=wrapped)
                    sharded = FullyShardedDataParallel(
                        model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
                    )
                    replay = replay or hf.attach(sharded, source=rollout.source(), last_row="live")
                    self.check(sharded, model, peer, rollout, replay)

    def start(self, name: str) -> tuple[Any, Any, Rollout]:
        model = new_model(hf_models.MODELS[name])
        peer = copy.deepcopy(model)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model, peer, Rollout(moe_layers(model), "right")

    def check(self, called: Any, model: Any, peer: Any, rollout: Rollout, replay: Any) -> None:
        with Choices(rollout.forced):
            expected, loss = loss_of(peer, rollout.call)
        loss.backward()
        with replay.micro_batch(rollout.samples, **rollout.said):
            out, loss = loss_of(called, rollout.call)
        loss.backward()
        replay.end_step()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        theirs = dict(peer.named_parameters())
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            wanted = theirs[name.replace("_fsdp_wrapped_module.", "")].grad
            if wanted is not None:
                torch.testing.assert_close(gradient.view_as(wanted), wanted, rtol=1e-5, atol=1e-6, msg=name)
        replay.detach()


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Leaves out `Cases`, which has no models. Of NoKernelsTest only one test runs, because a GPU in name only changes
    nothing in the others."""
    own = map(loader.loadTestsFromTestCase, (TransformersTest, ShardedTest))
    return unittest.TestSuite([*own, NoKernelsTest("test_inference_first")])


if __name__ == "__main__":
    unittest.main()
