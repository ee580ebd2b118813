"""Runs the README's recipe for routes that stay in TransferQueue's columns as printed, with TransferQueue itself."""

from __future__ import annotations

import unittest

import numpy as np
import ray
import recipes
import routing_replay_trainer as trainer
import torch
import transfer_queue
from tensordict import TensorDict

GEOMETRY = {"num_layers": 3, "num_experts": 300, "top_k": 4}
LENGTHS = (7, 12, 2)


class ColumnsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
        cls.addClassCleanup(ray.shutdown)
        transfer_queue.init()
        cls.addClassCleanup(transfer_queue.close)

    def test_columns_are_replayed(self) -> None:
        random = np.random.default_rng(1)
        rows = [random.random((n, 3, 300)).argpartition(3, axis=2)[:, :, :4].astype(np.int16) for n in LENGTHS]
        tokens = [random.integers(0, 1000, n) for n in LENGTHS]
        keys = [f"s{i}" for i in range(len(LENGTHS))]
        columns = {
            name: torch.nested.as_nested_tensor([torch.from_numpy(one) for one in of], layout=torch.jagged)
            for name, of in (("input_ids", tokens), ("routed_experts", rows))
        }
        transfer_queue.kv_batch_put(keys, "train", TensorDict(columns, batch_size=len(keys)))

        source = trainer.LocalSource(GEOMETRY)
        recipes.run("Rows that your framework carries itself")["add_columns"](source, keys, "train")
        total, ends = sum(LENGTHS), np.cumsum((0, *LENGTHS))
        shape = {"sequences": [{"tokens": n} for n in LENGTHS], "cu_seqlens_padded": ends.tolist(), "total_rows": total}
        plan = trainer.plan(GEOMETRY, shape | {"format": "THD", "partition": "contiguous"})
        asked = [trainer.FetchSequence(key, tokens=of) for key, of in zip(keys, tokens, strict=True)]
        batch = source.fetch(plan, sequences=asked)
        self.assertEqual(batch.replayed_rows, total - len(LENGTHS))
        for layer in range(3):
            ids = batch.indices[layer]
            for begin, end, own in zip(ends[:-1], ends[1:], rows, strict=True):
                np.testing.assert_array_equal(ids[begin : end - 1], own[: end - begin - 1, layer])


if __name__ == "__main__":
    unittest.main()
