"""Ends of the interpreter, of the appender's thread and of the client; and arguments that are not lists."""

from __future__ import annotations

import logging
import subprocess
import sys
import unittest

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
LAST_WORD = """
import sys, numpy as np, routing_replay as rr
run = rr.Client(sys.argv[1]).run("last", rr.Geometry(3, 64, 4))
run.append(sys.argv[2], np.random.rand(99, 3, 64).argsort(axis=2)[:, :, :4], seal=True)
"""
EARLY_END = """
import asyncio, sys, numpy as np, routing_replay as rr
from routing_replay import aio
async def main():
    run = await aio.Client(sys.argv[1]).run("early", rr.Geometry(3, 64, 4))
    await run.append("x", np.random.rand(99, 3, 64).argsort(axis=2)[:, :, :4])
asyncio.run(main())
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

    def test_nothing_is_sent_once_the_client_is_closed(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run("closed", GEOMETRY)
        client.close()
        with self.assertRaises(rr.CancelledError):
            run.append("a", ROWS)
            run.flush(30)

    def test_an_append_as_the_last_word_of_a_loop_arrives(self) -> None:
        run = self.client.run("early", GEOMETRY)
        subprocess.run([sys.executable, "-c", EARLY_END, self.server.endpoint], check=True, timeout=60)
        self.assertEqual(run.stat("x").committed_rows, 99)

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
