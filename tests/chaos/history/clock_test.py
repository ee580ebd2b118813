"""The machine's clock is set while a server runs (see shim.c)."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
import unittest
from concurrent import futures
from pathlib import Path

import numpy as np
import routing_replay as rr
from processes import Server, Shim


class ClockTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.shim = Shim(directory)
        if not self.shim.works:
            self.skipTest("no C compiler")
        self.server = Server(os.environ["ROUTING_REPLAY_SERVER"], directory, [], self.shim.environment)
        self.addCleanup(self.server.stop)
        client = self.enterContext(rr.Client(self.server.endpoint))
        self.run_ = client.run("r", rr.Geometry(num_layers=1, num_experts=8, top_k=2))

    def read_what_never_comes(self, timeout: float) -> None:
        """Waits for a sample that nobody appends. At the timeout, one of the server's timers has expired."""
        with contextlib.suppress(rr.errors.DeadlineExceededError):
            self.run_.read(["never"], wait=True, timeout=timeout)

    # gRPC's timers wait for a time of day. When the clock is set back by an hour, they expire an hour late. The
    # server's stop must not depend on them.
    def test_a_stop_does_not_wait_for_a_clock_that_was_set_back(self) -> None:
        self.shim.set(0, 3600)
        self.read_what_never_comes(0.5)
        self.shim.set(0, 0)
        time.sleep(0.5)
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.process.wait(30), 0)

    def test_a_read_waits_on_when_the_clock_is_set_forward(self) -> None:
        rows = np.array([[[1, 2]]], np.uint8)
        with futures.ThreadPoolExecutor() as pool:
            read = pool.submit(self.run_.read, ["x"], wait=True, timeout=20)
            time.sleep(0.5)
            self.shim.set(0, 3600)
            self.run_.put("x", rows)
            time.sleep(0.5)
            self.run_.put("x", rows, row_start=1, seal=True)
            self.assertEqual([str(one.status) for one in read.result()], ["OK"])


if __name__ == "__main__":
    unittest.main()
