"""The Hugging Face face over transformers' own models, on the CPU."""

from __future__ import annotations

import copy
import functools
import sys
import unittest
from typing import Any

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import hf_models
    import torch
    import torch.distributed as dist
    from hf_cases import Choices, Rollout, block_of, loss_of, moe_layers, new_model, over
    from hf_r2_cases import RecordCases
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    import routing_replay_trainer as trainer
    from routing_replay_trainer import hf
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with transformers")
    sys.exit(SKIPPED)


class TransformersTest(RecordCases):
    models = hf_models.MODELS

    @over("right")
    def test_logits_of_the_routers_are_asked_for(self, model: Any, rollout: Rollout) -> None:
        """transformers wraps routers of its own accord then."""
        peer = copy.deepcopy(model)
        try:
            copy.deepcopy(model)(**rollout.call, output_router_logits=True)
        except Exception as error:
            self.skipTest(f"this version of transformers cannot: {error}")
        expected = self.by_hand(peer, rollout)
        with self.attached(model, rollout) as replay:
            model(**rollout.call, output_router_logits=True)
            with replay.micro_batch(rollout.samples, **rollout.said):
                out = model(**rollout.call, output_router_logits=True).logits
            out.sum().backward()
        self.assertTrue(torch.equal(out[rollout.call["attention_mask"].bool()], expected))
        # What that leaves on a model is its own method, and may be attached.
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

    @over("right")
    def test_the_base_model_alone(self, model: Any, rollout: Rollout) -> None:
        """Hosts that make logits in pieces of their own call it."""
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
    def test_another_code_is_refused_by_name(self, model: Any, rollout: Rollout) -> None:
        block = block_of(model.model.layers[rollout.layers[-1]])
        own = type(block)
        place = f"layers.{rollout.layers[-1]}.(mlp|block_sparse_moe)"

        class Elsewhere(own):
            def forward(self, hidden_states: Any) -> Any:
                return hidden_states

        block.__class__ = Elsewhere
        with self.assertRaisesRegex(trainer.FailedPreconditionError, f"{place}.*does not ask"):
            hf.attach(model, source=rollout.source())
        block.__class__ = type("OtherMoE", (torch.nn.Module,), {})
        with self.assertRaisesRegex(trainer.FailedPreconditionError, f"{place}.*OtherMoE"):
            hf.attach(model, source=rollout.source())
        block.__class__ = own
        block.forward = lambda hidden_states: hidden_states
        with self.assertRaisesRegex(trainer.FailedPreconditionError, f"{place}.*replaced"):
            hf.attach(model, source=rollout.source())
        del block.forward
        hf.attach(model, source=rollout.source()).detach()


class ShardedTest(unittest.TestCase):
    """One rank of one, with gloo: what FSDP does to modules, their classes and their hooks."""

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
                    replay = hf.attach(model, source=rollout.source()) if first == "attached" else None
                    mesh = init_device_mesh("cpu", (1,))
                    for layer in model.model.layers:
                        fully_shard(block_of(layer), mesh=mesh)
                        fully_shard(layer, mesh=mesh)
                    fully_shard(model, mesh=mesh)
                    replay = replay or hf.attach(model, source=rollout.source())
                    self.check(model, model, peer, rollout, replay)

    def test_fsdp(self) -> None:
        for name in hf_models.MODELS:
            for first in ("attached", "sharded"):
                with self.subTest(name, first=first):
                    model, peer, rollout = self.start(name)
                    replay = hf.attach(model, source=rollout.source()) if first == "attached" else None
                    layer = model.model.layers[rollout.layers[-1]]
                    wrapped = {type(layer), type(block_of(layer))}
                    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=wrapped)
                    sharded = FullyShardedDataParallel(
                        model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
                    )
                    replay = replay or hf.attach(sharded, source=rollout.source())
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
    """Without `Cases` itself, which has no models."""
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (TransformersTest, ShardedTest)))


if __name__ == "__main__":
    unittest.main()
