"""os.fork at the worst moment: while the parent's appender is at work."""

from __future__ import annotations

import os
import sys
import threading
import time
import unittest

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
CHILD_SECONDS = 60


def in_child(body: object) -> int:
    """Runs `body` in a forked child; its exit status, or -1 if it hung."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()  # type: ignore[operator]
            status = 0
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    deadline = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


class ForkTest(ServerTest):
    def test_parent_and_child_both_go_on(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("fork", GEOMETRY)
        for round_number in range(5):
            for i in range(40):
                run.append(f"parent/{round_number}/{i}", ROWS, seal=True)

            def child(name: str = f"child/{round_number}") -> None:
                assert run.metrics()["appends"] == 0  # The child's run has its own counters.
                run.append(name, ROWS[:100])
                run.append(name, ROWS[100:], row_start=100, seal=True)
                run.flush(30)
                np.testing.assert_array_equal(run.read_one(name).rows, ROWS)
                assert run.stat(name).sealed
                with rr.Client(self.server.endpoint) as other:
                    assert other.run("fork").read_one(name).ok

            self.assertEqual(in_child(child), 0)
            run.flush(60)
            names = [f"parent/{round_number}/{i}" for i in range(40)]
            for sample in run.read(names):
                np.testing.assert_array_equal(sample.rows, ROWS)
        self.assertEqual(run.metrics()["failed"], 0)
        client.close()

    def test_the_parent_is_not_held_up(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("quick", GEOMETRY)
        for i in range(3):
            run.append(f"a{i}", ROWS)
            run.flush(30)
            start = time.monotonic()
            child = os.fork()
            if child == 0:
                os._exit(0)
            # If all of gRPC's calls were stopped before the fork, the fork would take 4 s.
            self.assertLess(time.monotonic() - start, 1.5)
            os.waitpid(child, 0)
        client.close()

    def test_while_other_threads_compute(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("busy", GEOMETRY)
        run.append("p", ROWS)
        stop = threading.Event()

        def compute() -> None:
            while not stop.is_set():
                sum(range(1000))

        threads = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
        self.addCleanup(stop.set)
        for thread in threads:
            thread.start()
        interval = sys.getswitchinterval()
        for i in range(5):

            def child(name: str = f"child/{i}") -> None:
                run.append(name, ROWS, seal=True)
                run.flush(30)
                self.assertEqual(sys.getswitchinterval(), interval)

            self.assertEqual(in_child(child), 0)
        run.flush()
        self.assertEqual(sys.getswitchinterval(), interval)
        client.close()

    def test_grandchildren(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("grand", GEOMETRY)
        run.append("p", ROWS)
        run.flush()

        def child() -> None:
            run.append("c", ROWS)
            run.flush(30)

            def grandchild() -> None:
                run.append("g", ROWS)
                run.flush(30)

            assert in_child(grandchild) == 0

        self.assertEqual(in_child(child), 0)
        self.assertEqual([s.committed_rows for s in run.stat_many(["p", "c", "g"])], [300, 300, 300])
        client.close()


if __name__ == "__main__":
    unittest.main()
