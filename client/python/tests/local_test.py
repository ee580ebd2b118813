"""local_server: the server runs inside the context, and ends with the context or with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np
from support import random_routes

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=2, num_experts=16, top_k=2)
PARENT = """
import routing_replay, time
with routing_replay.local_server() as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class LocalServerTest(unittest.TestCase):
    def test_serves_and_restores_the_environment(self) -> None:
        os.environ["ROUTING_REPLAY_ENDPOINT"] = "nowhere:1"
        self.addCleanup(os.environ.pop, "ROUTING_REPLAY_ENDPOINT", None)
        rows = random_routes(np.random.default_rng(0), 9, 2, 16, 2)
        with rr.local_server() as server, rr.Client() as client:
            self.assertEqual(os.environ["ROUTING_REPLAY_ENDPOINT"], server.endpoint)
            run = client.run("r", GEOMETRY)
            run.append("a", rows, seal=True)
            run.flush()
            np.testing.assert_array_equal(run.read_one("a").rows, rows)
        self.assertFalse(alive(server.pid))
        self.assertEqual(os.environ["ROUTING_REPLAY_ENDPOINT"], "nowhere:1")

    def test_two_at_once(self) -> None:
        with rr.local_server() as one, rr.local_server("--memory-budget", "64MiB") as other:
            self.assertNotEqual(one.endpoint, other.endpoint)
            with rr.Client() as client:
                self.assertEqual(client.server_info().budget_bytes, 64 << 20)
        self.assertNotIn("ROUTING_REPLAY_ENDPOINT", os.environ)

    def test_dies_with_a_killed_parent(self) -> None:
        with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            self.assertTrue(alive(pid))
            parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertFalse(alive(pid))

    def test_a_server_that_cannot_start(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "exit status 2"), rr.local_server("--memory-budget", "none"):
            self.fail("it started")
        with self.assertRaises(rr.InvalidArgumentError) as caught, rr.local_server(timeout=float("nan")):
            self.fail("it started")
        self.assertEqual(caught.exception.field, "timeout")

    def test_what_the_server_says_is_passed_on(self) -> None:
        code = "import routing_replay as rr\nwith rr.local_server() as server: print(server.endpoint)"
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory, "server")
            program.write_text(f'#!/bin/sh\necho "a word" >&2\nexec {os.environ["ROUTING_REPLAY_SERVER"]} "$@"\n')
            program.chmod(0o700)
            environment = {**os.environ, "ROUTING_REPLAY_SERVER": str(program)}
            run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        self.assertEqual(run.stderr, b"a word\n")

    def test_no_program(self) -> None:
        code = "import os, routing_replay as rr; os.environ['PATH'] = ''\nwith rr.local_server(): pass"
        environment = {key: value for key, value in os.environ.items() if key != "ROUTING_REPLAY_SERVER"}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        self.assertRegex(run.stderr, "FileNotFoundError: no routing-replay-server: install the package")


if __name__ == "__main__":
    unittest.main()
