"""Index buffers on a GPU: what one copy and one launch transfer, and the warning without kernels."""

from __future__ import annotations

import sys
import unittest
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import _core

SKIPPED = 77  # CTest's status for a skipped test.


class KernelsTest(unittest.TestCase):
    def test_what_is_missing_is_said(self) -> None:
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            _core.cuda_library(4711)
        self.assertIn(caught.exception.field, ("cuda.library", "cuda.driver", "cuda.device"))


try:
    import torch
    from host_queue import HostQueue

    from routing_replay_trainer import ops
    from routing_replay_trainer._device_buffers import DeviceBuffers, buffers_for
    from routing_replay_trainer._hooks import Tally
    from routing_replay_trainer.metrics import Counters
except ImportError as missing:
    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(KernelsTest))
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with torch")
    sys.exit(SKIPPED if result.wasSuccessful() else 1)

LENGTHS = {"a": 9, "b": 40, "c": 2}


class BuffersTest(unittest.TestCase):
    """Tests index buffers on the CPU, with a stand-in for the GPU's queue. If there is a GPU, a subclass tests them
    there, with a real queue."""

    def queue(self) -> Any:
        return HostQueue()

    def setUp(self) -> None:
        self.random = np.random.default_rng(3)
        self.sources = {}
        for experts, top_k in ((64, 6), (300, 3)):
            geometry = {"num_layers": 4, "moe_layers": [1, 2, 3], "num_experts": experts, "top_k": top_k}
            source = trainer.LocalSource(geometry)
            for name, tokens in LENGTHS.items():
                rows = self.random.random((tokens - 1, 3, experts)).argsort(2)[..., :top_k]
                source.add(name, rows.astype(np.int32))
            self.sources[experts] = (geometry, source)

    def plan(self, geometry: Any, names: list[str], rows: int) -> trainer.Plan:
        """Makes a plan of samples with these names. No source has the sample `d`."""
        lengths = [LENGTHS.get(name, 5) for name in names]
        micro_batch = {
            "format": "THD",
            "sequences": [{"sample": name, "tokens": tokens} for name, tokens in zip(names, lengths, strict=True)],
            "cu_seqlens_padded": [*np.cumsum([0, *lengths])[:-1].tolist(), rows] if lengths else [0],
            "total_rows": rows,
            "partition": "contiguous",
        }
        return trainer.plan(geometry, micro_batch, ep_size=4)

    def assert_brought(self, buffers: DeviceBuffers, number: int, batch: Any, plan: Any, expected: Any) -> None:
        kept = buffers.tensors(number, plan)
        self.assertEqual(len(kept), 1 + len(plan.layers))
        for key, tensor in kept.items():
            wanted = expected.states if key[0] == "states" else expected.indices[key[1]]
            self.assertEqual(tensor.cpu().numpy().tolist(), wanted.tolist(), key)
        np.testing.assert_array_equal(batch.states, expected.states)
        for field in ("replayed_rows", "unrecorded_rows", "pad_rows", "fallback_sequences", "sequences"):
            self.assertEqual(getattr(batch, field), getattr(expected, field))

    def test_one_copy_and_one_launch_bring_what_a_fetch_brings(self) -> None:
        queue = self.queue()
        buffers = DeviceBuffers(queue)
        held = []
        for _ in range(2):
            for geometry, source in self.sources.values():
                for names, rows in ((["a", "d"], 15), (["b", "a", "c"], 51), (["c"], 64), ([], 0)):
                    plan = self.plan(geometry, names, rows)
                    expected = source.fetch(plan, missing="live")
                    number = buffers.take(plan)
                    batch = buffers.fetch(number, source, plan, missing="live")
                    self.assert_brought(buffers, number, batch, plan, expected)
                    buffers.give(number)
            held.append(buffers.slots.bytes)
        self.assertEqual(held[0], held[1])
        if isinstance(queue, HostQueue):
            expected = (12, 12, 0) if queue.realigns else (16, 0, 16)
            self.assertEqual((queue.did["send"], queue.did["realign"], queue.did["copy"]), expected)

    def test_passes_in_flight_have_buffers_of_their_own(self) -> None:
        buffers = DeviceBuffers(self.queue())
        geometry, source = self.sources[64]
        flying = []
        for names, rows in ((["a"], 9), (["b"], 40), (["c"], 2), (["a", "c"], 11), (["b"], 48), (["a"], 10)):
            plan = self.plan(geometry, names, rows)
            number = buffers.take(plan)
            flying.append((number, buffers.fetch(number, source, plan), plan))
        for number, batch, plan in flying:
            self.assert_brought(buffers, number, batch, plan, source.fetch(plan))
            buffers.give(number)

    def test_what_is_recorded_is_read_once(self) -> None:
        buffers = DeviceBuffers(self.queue())
        for geometry, source in self.sources.values():
            plan = self.plan(geometry, ["a"], 12)
            whole = np.empty(plan.buffer_bytes, np.uint8)
            expected = source.fetch(plan, out=whole)
            number = buffers.take(plan)
            buffers.empty(number, plan)
            read = buffers.reader(number, plan)
            self.assertFalse(read().any())
            for key, tensor in buffers.tensors(number, plan).items():
                if key[0] == "ids":
                    tensor.copy_(torch.from_numpy(expected.indices[key[1]].astype(np.int64)))
            buffers.give(number)
            np.testing.assert_array_equal(read(), whole)

    def test_a_failed_fetch_leaves_nothing_behind(self) -> None:
        buffers = DeviceBuffers(self.queue())
        geometry, source = self.sources[300]
        plan = self.plan(geometry, ["d"], 5)
        number = buffers.take(plan)
        with self.assertRaises(errors.FailedPreconditionError):
            buffers.fetch(number, source, plan)
        buffers.give(number)
        self.assertEqual(buffers.take(plan), number)

    def test_a_model_on_the_host_has_buffers_there(self) -> None:
        self.assertNotIsInstance(buffers_for(torch.nn.Linear(2, 2)), DeviceBuffers)
        self.assertNotIsInstance(buffers_for(torch.nn.Module()), DeviceBuffers)


class NoKernelsTest(BuffersTest):
    def queue(self) -> Any:
        return HostQueue(realigns=False)


class TallyTest(unittest.TestCase):
    def test_no_call_is_lost(self) -> None:
        tally, counters = Tally(), Counters()
        for _ in range(1300):
            tally.called(torch.arange(len(ops.COUNTERS)))
        for expected in (1300, 0):
            tally.count_into(counters)
            said = counters.report()
            self.assertEqual(said.get("routing_replay/clamped_ids", 0), expected * ops.COUNTERS.index("clamped_ids"))


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
class CudaBuffersTest(BuffersTest):
    def queue(self) -> Any:
        from routing_replay_trainer._device_buffers import Queue

        return Queue(torch.device("cuda", torch.cuda.current_device()))

    def test_more_passes_than_pinned_blocks(self) -> None:
        queue = self.queue()
        buffers = DeviceBuffers(queue)
        geometry, source = self.sources[300]
        plan = self.plan(geometry, ["b", "a"], 49)
        expected = source.fetch(plan)
        for _ in range(20):
            number = buffers.take(plan)
            batch = buffers.fetch(number, source, plan)
            buffers.give(number)
        self.assert_brought(buffers, number, batch, plan, expected)
        self.assertLessEqual(sum(len(memory) for memory, _ in queue._blocks), 4 * 49 * 3 * 3 * 2 * 2)


if __name__ == "__main__":
    unittest.main()
