"""Router replay as torch operators: registrations, gradients and compilation against the numpy face."""

from __future__ import annotations

import sys
import unittest
from typing import Any

import numpy as np

import routing_replay_trainer as trainer

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import torch
    from torch.utils.checkpoint import checkpoint

    from routing_replay_trainer import ops
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with torch")
    sys.exit(SKIPPED)

ROUTERS = (
    (trainer.Router(8, 2), torch.float32),
    (trainer.Router(16, 4, pre_softmax=True, scaling_factor=2.5), torch.float64),
    (trainer.Router(300, 4, "sigmoid", scaling_factor=2.5, num_groups=4, group_topk=2), torch.bfloat16),
    (trainer.Router(64, 6, "sqrtsoftplus", rounding="each_step"), torch.bfloat16),
)
STATES = torch.tensor([0, 1, 2, 0, 1, 0, 0], dtype=torch.uint8)


def bits(tensor: torch.Tensor) -> np.ndarray:
    """As the numpy face takes it."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


class OpsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.random = torch.Generator().manual_seed(7)

    def inputs(self, router: trainer.Router, dtype: torch.dtype) -> tuple[Any, ...]:
        """logits, ids, bias."""
        rows, experts = len(STATES), router.num_experts
        logits = torch.randn(rows, experts, generator=self.random).to(dtype)
        ids = torch.rand(rows, experts, generator=self.random).topk(router.top_k).indices
        return logits, ids.to(ops.id_dtype(experts)), torch.randn(experts, generator=self.random)

    def test_the_numpy_face_gives_the_same(self) -> None:
        for router, dtype in ROUTERS:
            with self.subTest(router):
                logits, ids, bias = self.inputs(router, dtype)
                upstream = torch.randn(logits.shape, generator=self.random).to(dtype)
                leaf = logits.clone().requires_grad_()
                ours = ops.router_replay(router, leaf, ids, STATES, expert_bias=bias)
                ours.probs.backward(upstream)
                theirs = trainer.router_replay_forward(
                    router, bits(logits), ids.numpy(), STATES.numpy(), expert_bias=bias.numpy()
                )
                np.testing.assert_array_equal(bits(ours.probs), theirs.probs)
                np.testing.assert_array_equal(ours.routing_map.numpy(), theirs.routing_map)
                np.testing.assert_array_equal(ours.chosen.numpy(), theirs.chosen)
                self.assertEqual(dict(zip(ops.COUNTERS, ours.counters.tolist(), strict=True)), theirs.counters)
                gradient = trainer.router_replay_backward(router, bits(logits), theirs.chosen, bits(upstream))
                np.testing.assert_array_equal(bits(leaf.grad), gradient)

    def test_live_rows_record_the_choice(self) -> None:
        router = trainer.Router(16, 4)
        logits = torch.randn(5, 16, generator=self.random)
        live = ops.router_live(router, logits)
        self.assertEqual(live.chosen.tolist(), logits.topk(4).indices.tolist())
        torch.testing.assert_close(ops.router_replay(router, logits, live.chosen).probs, live.probs, rtol=0, atol=0)

    def test_registrations(self) -> None:
        for router, dtype in ROUTERS:
            with self.subTest(router):
                logits, ids, bias = self.inputs(router, dtype)
                config = ops._config(router)
                forward, backward = torch.ops.routing_replay.router_forward, torch.ops.routing_replay.router_backward
                leaf = logits.clone().requires_grad_()
                torch.library.opcheck(forward.default, (leaf, ids, STATES, bias, *config))
                torch.library.opcheck(backward.default, (logits, ids, torch.ones_like(logits), *config))

    def test_compiled_and_checkpointed(self) -> None:
        for router, dtype in ROUTERS:
            logits, ids, bias = self.inputs(router, dtype)

            def loss(values: torch.Tensor, router: Any = router, ids: Any = ids, bias: Any = bias) -> torch.Tensor:
                return ops.router_replay(router, values * 2, ids, STATES, expert_bias=bias).probs.square().sum()

            gradients = []
            for run in (
                loss,
                torch.compile(loss, fullgraph=True, backend="aot_eager"),
                lambda values, loss=loss: checkpoint(loss, values, use_reentrant=True),
                lambda values, loss=loss: checkpoint(loss, values, use_reentrant=False),
            ):
                leaf = logits.clone().requires_grad_()
                run(leaf).backward()
                gradients.append(leaf.grad)
            for gradient in gradients[1:]:
                self.assertTrue(torch.equal(gradient, gradients[0]), router)

    def test_refusals_name_the_field(self) -> None:
        router = trainer.Router(8, 2)
        logits, ids, _ = self.inputs(router, torch.float32)
        for field, arguments in (
            ("router.logits", (logits[:, :7], ids, STATES)),
            ("router.logits", (logits.half(), ids, STATES)),
            ("router.indices", (logits, ids[:, :1], STATES)),
            ("router.indices", (logits, ids[:3], STATES)),
            ("router.indices", (logits, ids.long(), STATES)),
            ("router.states", (logits, ids, STATES[:3])),
            ("router.states", (logits, ids, STATES.int())),
            ("states", (logits, ids, STATES + 2)),
        ):
            with self.subTest(field), self.assertRaises(trainer.InvalidArgumentError) as caught:
                ops.router_replay(router, *arguments)
            self.assertEqual(caught.exception.field, field)

    def test_rows_of_other_layouts_in_memory(self) -> None:
        router = trainer.Router(8, 2)
        logits, ids, _ = self.inputs(router, torch.float32)
        expected = ops.router_replay(router, logits, ids, STATES)
        strided = torch.empty(8, len(STATES)).t().copy_(logits).requires_grad_()
        ours = ops.router_replay(router, strided, ids.repeat(1, 2)[:, :2], STATES)
        self.assertTrue(torch.equal(ours.probs, expected.probs))
        ours.probs.sum().backward()
        empty = ops.router_replay(router, logits[:0], ids[:0])
        self.assertEqual(empty.probs.shape, (0, 8))


if __name__ == "__main__":
    unittest.main()
