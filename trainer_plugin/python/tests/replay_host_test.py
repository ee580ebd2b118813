"""The C++ example host reads from a service what a Python rollout worker has appended."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import numpy as np

LAYERS, EXPERTS, TOP_K = 6, 32, 4


class ReplayHostTest(unittest.TestCase):
    def setUp(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        self.server = Server()
        self.addCleanup(self.server.stop)
        client = routing_replay.Client(self.server.endpoint)
        self.addCleanup(client.close)
        geometry = routing_replay.Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K)
        self.run_ = client.run("example", geometry)

    def host(self, *samples: str) -> subprocess.CompletedProcess[str]:
        command = [os.environ["ROUTING_REPLAY_HOST"], self.server.endpoint, "example", *samples]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def append(self, sample: str, rows: int, **options: bool) -> None:
        random = np.random.default_rng(rows).random((rows, LAYERS, EXPERTS))
        self.run_.append(sample, random.argpartition(TOP_K, axis=2)[..., :TOP_K].astype(np.int32), **options)

    def test_it_replays_the_rows_of_its_rank(self) -> None:
        self.append("a", 7, seal=True)
        self.append("b", 11, seal=True)
        self.run_.flush()
        ran = self.host("a", "b")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        # The second of two context-parallel ranks has the middle halves of 8 and of 12 tokens.
        first, *layers = ran.stdout.splitlines()
        self.assertEqual(first, f"3 layers, 10 rows, {3 * 10 * TOP_K} bytes read")
        self.assertEqual([line.partition(":")[0] for line in layers], ["layer 3", "layer 4", "layer 5"])
        for line in layers:
            self.assertIn(": 10 rows replayed, 0 live, 0 pads; probabilities sum to 10,", line)

    def test_what_cannot_be_read(self) -> None:
        self.append("open", 3)
        self.run_.flush()
        for sample, why in (("nonesuch", "NOT_FOUND"), ("open", "open is not sealed")):
            ran = self.host(sample)
            self.assertEqual((ran.returncode, ran.stdout), (1, ""))
            self.assertIn(why, ran.stderr)


if __name__ == "__main__":
    unittest.main()
