"""Runs the README's recipe for rows in Mooncake as printed, with Mooncake's own master and store."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

import numpy as np
import recipes
import routing_replay_trainer as trainer
import torch
from mooncake.store import MooncakeDistributedStore

GEOMETRY = {"num_layers": 3, "num_experts": 300, "top_k": 4}
LENGTHS = (7, 12, 2)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class KeysTest(unittest.TestCase):
    def setUp(self) -> None:
        rpc, http, metrics = free_ports(3)
        master = subprocess.Popen(
            [
                Path(sys.executable).with_name("mooncake_master"),
                f"--rpc_port={rpc}",
                f"--metrics_port={metrics}",
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_port={http}",
            ],
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(master.wait)
        self.addCleanup(master.terminate)
        self.store = MooncakeDistributedStore()
        self.addCleanup(self.store.close)
        deadline = time.monotonic() + 30
        while self.store.setup(
            "127.0.0.1", f"http://127.0.0.1:{http}/metadata", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{rpc}"
        ):
            self.assertLess(time.monotonic(), deadline, "the master does not answer")
            time.sleep(0.2)

    def test_rows_of_keys_are_replayed(self) -> None:
        random = np.random.default_rng(1)
        keys = [f"s{i}" for i in range(len(LENGTHS))]
        rows = [random.random((n - 1, 3, 300)).argpartition(3, axis=2)[:, :, :4].astype(np.int16) for n in LENGTHS]
        for key, of in zip(keys, rows, strict=True):
            self.assertEqual(self.store.put_tensor(key, torch.from_numpy(of)), 0)

        source = trainer.LocalSource(GEOMETRY)
        recipes.run("Rows in Mooncake")["add_rows"](source, self.store, keys)
        ends = np.cumsum((0, *LENGTHS))
        shape = {"sequences": [{"tokens": n} for n in LENGTHS], "cu_seqlens_padded": ends.tolist()}
        plan = trainer.plan(GEOMETRY, shape | {"total_rows": sum(LENGTHS), "format": "THD", "partition": "contiguous"})
        batch = source.fetch(plan, sequences=[trainer.FetchSequence(key) for key in keys])
        self.assertEqual(batch.replayed_rows, sum(LENGTHS) - len(LENGTHS))
        for layer in range(3):
            for begin, end, own in zip(ends[:-1], ends[1:], rows, strict=True):
                np.testing.assert_array_equal(batch.indices[layer][begin : end - 1], own[:, layer])


if __name__ == "__main__":
    unittest.main()
