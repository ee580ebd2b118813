"""Ends: of the interpreter, of the appender's thread, of the client; and what must not be mistaken for a list."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
import unittest

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import aio

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
LAST_WORD = """
import sys, numpy as np, routing_replay as rr
run = rr.Client(sys.argv[1]).run("last", rr.Geometry(3, 64, 4))
run.append(sys.argv[2], np.random.rand(99, 3, 64).argsort(axis=2)[:, :, :4], seal=True)
"""


class EndTest(ServerTest):
    def setUp(self) -> None:
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_an_append_as_the_last_word_arrives(self) -> None:
        run = self.client.run("last", GEOMETRY)
        for name in ("a", "b", "c"):
            subprocess.run([sys.executable, "-c", LAST_WORD, self.server.endpoint, name], check=True, timeout=60)
            self.assertTrue(run.stat(name).sealed)

    def test_an_outcome_that_ends_its_thread_does_not(self) -> None:
        run = self.client.run("outcome", GEOMETRY)
        with run.appender(on_outcome=lambda outcome: sys.exit(3)) as appender:
            for name in ("a", "b"):
                appender.append(name, ROWS)
                appender.flush(30)
        self.assertEqual(len(run.stat_many(["a", "b"])), 2)

    def test_a_thread_that_has_ended_says_why(self) -> None:
        run = self.client.run("broken", GEOMETRY)
        appender = run.appender()
        appender._channel = lambda: 1 / 0  # type: ignore[method-assign]
        appender.append("a", ROWS)
        for call in (lambda: appender.flush(30), lambda: appender.append("b", ROWS)):
            with self.assertRaisesRegex(rr.InternalError, "ZeroDivisionError"):
                call()

    def test_nothing_is_sent_once_the_client_is_closed(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("closed", GEOMETRY)
        client.close()
        with self.assertRaises(rr.CancelledError):
            run.append("a", ROWS)
            run.flush(30)

    def test_a_fork_does_not_wait(self) -> None:
        run = self.client.run("quick", GEOMETRY)
        for i in range(3):
            run.append(f"a{i}", ROWS)
            run.flush(30)
            start = time.monotonic()
            child = os.fork()
            if child == 0:
                os._exit(0)
            self.assertLess(time.monotonic() - start, 1.5)  # It took 4 s when gRPC had stopped all calls before.
            os.waitpid(child, 0)

    def test_small_arrays_do_not_overtake_large_ones(self) -> None:
        async def body() -> list[int]:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run("order", GEOMETRY)
                large = np.concatenate([ROWS] * 40).astype(np.int64)
                sequences = await asyncio.gather(
                    run.append("o", large), run.append("o", ROWS[:3], row_start=len(large), seal=True)
                )
                await run.flush(30)
                return sequences

        self.assertEqual(asyncio.run(body()), [1, 2])
        self.assertTrue(self.client.run("order").stat("o").sealed)

    def test_a_loop_that_ends_too_early_says_so(self) -> None:
        async def body() -> None:
            run = await aio.Client(self.server.endpoint).run("early", GEOMETRY)
            await run.append("x", ROWS)

        logging.disable(logging.NOTSET)
        with self.assertLogs("routing_replay", logging.WARNING) as logs:
            asyncio.run(body())
        self.assertIn("1 appends of run early have no outcome", logs.output[0])

    def test_one_id_is_not_a_list_of_ids(self) -> None:
        run = self.client.run("ids", GEOMETRY)
        for name in ("s", "t"):
            run.append(name, ROWS)
        run.flush(30)
        for call in (
            lambda: run.release("st"),
            lambda: run.stat_many("st"),
            lambda: run.read("st"),
            lambda: run.read(["s"], layers="01"),
            lambda: run.append("u", ROWS, layers="012"),
        ):
            with self.assertRaises(rr.InvalidArgumentError):
                call()
        self.assertEqual(len(run.stat_many(["s", "t"])), 2)


if __name__ == "__main__":
    unittest.main()
