"""What the tests share: a server of their own and random legal routes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

SERVER = os.environ["ROUTING_REPLAY_SERVER"]


class Server:
    """A routing-replay-server on a free port of the loopback interface."""

    def __init__(self, *flags: str, listen: str = "127.0.0.1:0") -> None:
        self._directory = tempfile.TemporaryDirectory()
        file = Path(self._directory.name, "endpoint")
        self.process = subprocess.Popen(
            [SERVER, "--listen", listen, "--endpoint-file", str(file), *flags], stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: exit status {self.process.poll()}")
            time.sleep(0.01)
        self.endpoint = file.read_text().strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._directory.cleanup()


class ServerTest(unittest.TestCase):
    """One server for all tests of a class."""

    flags: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(*cls.flags)
        cls.addClassCleanup(cls.server.stop)

    @property
    def run_name(self) -> str:
        return self.id().rsplit(".", 1)[-1]


def random_routes(rng: np.random.Generator, rows: int, layers: int, experts: int, top_k: int) -> np.ndarray:
    """ids [rows, layers, top_k], int32; those of a row and layer are all different."""
    scores = rng.random((rows, layers, experts))
    return scores.argpartition(top_k - 1, axis=2)[:, :, :top_k].astype(np.int32)
