"""Router replay on torch tensors: values compared with the numpy function, gradients and recompute."""

from __future__ import annotations

import sys
import unittest
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer

SKIPPED = 77  # CTest's status for a skipped test.
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
    (trainer.Router(61, 5, "sigmoid", scaling_factor=2.5), torch.float16),
)
# The devices to test. On a GPU results differ from the CPU's only in the last bits of exp and log.
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
TOLERANCE = {torch.float32: 4e-6, torch.float64: 4e-6, torch.bfloat16: 4 / 256, torch.float16: 4 / 2048}
STATES = torch.tensor([0, 1, 2, 0, 3, 0, 0], dtype=torch.uint8)


def bits(tensor: torch.Tensor) -> np.ndarray:
    """Converts a tensor to the form that the NumPy functions accept."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


class OpsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.random = torch.Generator().manual_seed(7)

    def inputs(self, router: trainer.Router, dtype: torch.dtype) -> tuple[Any, ...]:
        """Returns random logits, ids and expert bias."""
        rows, experts = len(STATES), router.num_experts
        logits = torch.randn(rows, experts, generator=self.random).to(dtype)
        ids = torch.rand(rows, experts, generator=self.random).topk(router.top_k).indices
        return logits, ids.to(ops.id_dtype(experts)), torch.randn(experts, generator=self.random)

    def test_the_numpy_face_gives_the_same(self) -> None:
        for router, dtype in ROUTERS:
            with self.subTest(router):
                logits, ids, bias = self.inputs(router, dtype)
                ours = ops.router_replay(router, logits, ids, STATES, expert_bias=bias)
                theirs = trainer.router_replay_forward(
                    router, bits(logits), ids.numpy(), STATES.numpy(), expert_bias=bias.numpy()
                )
                np.testing.assert_array_equal(bits(ours.probs), theirs.probs)
                np.testing.assert_array_equal(ours.routing_map.numpy(), theirs.routing_map)
                np.testing.assert_array_equal(ours.chosen.numpy(), theirs.chosen)
                self.assertEqual(dict(zip(ops.COUNTERS, ours.counters.tolist(), strict=True)), theirs.counters)

    def test_live_rows_record_the_choice(self) -> None:
        router = trainer.Router(16, 4)
        logits = torch.randn(5, 16, generator=self.random)
        live = ops.router_live(router, logits)
        self.assertEqual(live.chosen.tolist(), logits.topk(4).indices.tolist())
        torch.testing.assert_close(ops.router_replay(router, logits, live.chosen).probs, live.probs, rtol=0, atol=0)

    def test_choices_are_compared_as_sets(self) -> None:
        for experts, top_k in ((8, 1), (200, 8), (300, 64)):
            ids = torch.rand(2, 50, experts, generator=self.random).topk(top_k).indices
            ids[1, ::3] = ids[0, ::3].flip(1)
            states = torch.arange(50).remainder(5).eq(4).to(torch.uint8)
            counts = [0, 0, 0, 0]
            for live, replayed, state in zip(*ids.tolist(), states.tolist(), strict=True):
                common = len(set(live) & set(replayed))
                for at, more in enumerate((1, common < top_k, common == 0, common)):
                    counts[at] += more if state == trainer.REPLAYED else 0
            for device in DEVICES:
                live, replayed = ids.to(device)
                compact = replayed.to(ops.id_dtype(experts))
                got = ops.compare(live, compact, states.to(device))
                self.assertEqual(got.tolist(), counts)
                self.assertEqual(got.device.type, device)
        # An id that occurs twice in a row counts once.
        twice = torch.tensor([[1, 1, 2], [3, 3, 3]]), torch.tensor([[1, 1, 3], [4, 4, 4]], dtype=torch.uint8)
        self.assertEqual(ops.compare(*twice, torch.zeros(2, dtype=torch.uint8)).tolist(), [2, 2, 1, 1])

    def test_compiled_and_checkpointed(self) -> None:
        for router, dtype in ROUTERS:
            logits, ids, bias = self.inputs(router, dtype)

            def loss(values: torch.Tensor, router: Any = router, ids: Any = ids, bias: Any = bias) -> torch.Tensor:
                return ops.router_replay(router, values * 2, ids, STATES, expert_bias=bias).probs.square().sum()

            gradients = []
            for run in (
                loss,
                torch.compile(loss, backend="aot_eager"),
                lambda values, loss=loss: checkpoint(loss, values, use_reentrant=True),
                lambda values, loss=loss: checkpoint(loss, values, use_reentrant=False),
            ):
                leaf = logits.clone().requires_grad_()
                run(leaf).backward()
                gradients.append(leaf.grad)
            for gradient in gradients[1:]:
                self.assertTrue(torch.equal(gradient, gradients[0]), router)

    def test_second_gradients_are_rejected(self) -> None:
        router, dtype = ROUTERS[0]
        logits, ids, _ = self.inputs(router, dtype)
        loss = ops.router_replay(router, logits.requires_grad_(), ids, STATES).probs.square().sum()
        (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            gradient.sum().backward()

    def test_rejections_name_the_field(self) -> None:
        router = trainer.Router(8, 2)
        logits, ids, _ = self.inputs(router, torch.float32)
        for field, arguments in (
            ("router.logits", (logits[:, :7], ids, STATES)),
            ("router.logits", (logits.long(), ids, STATES)),
            ("router.indices", (logits, ids[:, :1], STATES)),
            ("router.indices", (logits, ids[:3], STATES)),
            ("router.indices", (logits, ids.long(), STATES)),
            ("router.states", (logits, ids, STATES[:3])),
            ("router.states", (logits, ids, STATES.int())),
            ("states", (logits, ids, STATES + 2)),
        ):
            with self.subTest(field), self.assertRaises(errors.InvalidArgumentError) as caught:
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


@unittest.skipIf(DEVICES == ["cpu"], "torch sees no GPU")
class CudaTest(unittest.TestCase):
    def setUp(self) -> None:
        self.random = torch.Generator().manual_seed(11)

    def inputs(self, router: trainer.Router, dtype: torch.dtype, rows: int) -> tuple[Any, ...]:
        """Returns random logits, ids, states, expert bias, and upstream gradients."""
        experts = router.num_experts
        logits, upstream = torch.randn(2, rows, experts, generator=self.random).to(dtype)
        ids = torch.rand(rows, experts, generator=self.random).topk(router.top_k).indices
        states = torch.randint(4, (rows,), generator=self.random, dtype=torch.uint8)
        bias = torch.randn(experts, generator=self.random)
        return logits, ids.to(ops.id_dtype(experts)), states, bias, upstream

    def run_on(self, device: str, router: trainer.Router, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        logits, ids, states, bias, upstream = (tensor.to(device) for tensor in inputs)
        leaf = logits.requires_grad_()
        out = ops.router_replay(router, leaf, ids, states, expert_bias=bias)
        out.probs.backward(upstream)
        return tuple(tensor.detach().cpu() for tensor in (*out, leaf.grad))

    def test_as_on_the_cpu(self) -> None:
        for router, dtype in ROUTERS:
            for rows in (0, 1, 33, 1000):
                with self.subTest(router, rows=rows):
                    inputs = self.inputs(router, dtype, rows)
                    ours, theirs = self.run_on("cuda", router, inputs), self.run_on("cpu", router, inputs)
                    # Of rows that route live, experts with scores that differ in the last bit may swap.
                    replayed = (inputs[2] == trainer.REPLAYED) | (inputs[2] == trainer.PAD)
                    for got, expected in zip(ours[1:3], theirs[1:3], strict=True):
                        self.assertTrue(torch.equal(got[replayed].int(), expected[replayed].int()))
                    self.assertEqual(ours[3].tolist()[:4], theirs[3].tolist()[:4])
                    alike = (ours[2].int() == theirs[2].int()).all(1)
                    self.assertGreaterEqual(int(alike.sum()), 0.99 * rows)
                    for got, expected in ((ours[0], theirs[0]), (ours[4], theirs[4])):
                        torch.testing.assert_close(got[alike], expected[alike], rtol=0, atol=40 * TOLERANCE[dtype])

    def test_in_a_captured_graph(self) -> None:
        router, dtype = ROUTERS[2]
        logits, ids, states, bias, upstream = (tensor.cuda() for tensor in self.inputs(router, dtype, 200))
        leaf = logits.requires_grad_()

        def step() -> tuple[torch.Tensor, ...]:
            out = ops.router_replay(router, leaf, ids, states, expert_bias=bias)
            return (*out, *torch.autograd.grad(out.probs, leaf, upstream), ops.compare(out.chosen, ids, states))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for _ in range(3):
            with torch.no_grad():
                leaf.copy_(torch.randn(leaf.shape, generator=self.random))
            graph.replay()
            for got, expected in zip(captured, step(), strict=True):
                self.assertTrue(torch.equal(got.cpu(), expected.cpu()))

    def test_nothing_waits_for_the_device(self) -> None:
        router, dtype = ROUTERS[0]
        logits, ids, states, bias, upstream = (tensor.cuda() for tensor in self.inputs(router, dtype, 100))
        leaf = logits.requires_grad_()
        torch.cuda.set_sync_debug_mode("error")
        try:
            out = ops.router_replay(router, leaf, ids, states, expert_bias=bias)
            out.probs.backward(upstream)
            ops.compare(out.chosen, ids, states)
        finally:
            torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    unittest.main()
