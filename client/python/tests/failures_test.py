"""Errors are reported: each sample whose append failed, a server that cannot be reached, a token file that cannot be
read."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np
from support import Gate, Server, ServerTest, random_routes

import routing_replay as rr
from routing_replay import aio

GEOMETRY = rr.Geometry(num_layers=2, num_experts=16, top_k=2)
ROWS = random_routes(np.random.default_rng(1), 20, 2, 16, 2)
LOG = "routing_replay"
PATIENCE = 60.0


class FlushTest(ServerTest):
    def wait_for_lines(self, lines: list[str]) -> None:
        """Waits until five lines are logged: the client logs in a thread of its own."""
        end = time.monotonic() + PATIENCE
        while len(lines) < 5 and time.monotonic() < end:
            time.sleep(0.01)

    def check(self, error: rr.RoutingReplayError, lines: list[str]) -> None:
        names = [f"gap{i}" for i in range(5)]
        self.assertEqual(sorted(error.failed_samples), names)
        self.assertEqual(sorted(sample for sample, _ in error.failures), names)
        self.assertIn(error.sample, names)
        for name in names:
            self.assertIn(name, str(error))
            self.assertTrue(any(name in line for line in lines), name)

    def test_flush_names_every_sample_that_failed(self) -> None:
        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            with self.assertLogs(LOG, logging.WARNING) as logs:
                for i in range(5):
                    run.append(f"gap{i}", ROWS, row_start=5)
                run.append("good", ROWS)
                with self.assertRaises(rr.FailedPreconditionError) as raised:
                    run.flush(PATIENCE)
                self.wait_for_lines(logs.output)
            self.check(raised.exception, logs.output)
            run.flush(PATIENCE)

    def test_in_an_event_loop_too(self) -> None:
        async def work() -> None:
            async with (
                aio.Client(self.server.endpoint) as client,
                await client.run(self.run_name, GEOMETRY) as run,
            ):
                with self.assertLogs(LOG, logging.WARNING) as logs:
                    for i in range(5):
                        await run.append(f"gap{i}", ROWS, row_start=5)
                    with self.assertRaises(rr.FailedPreconditionError) as raised:
                        await run.flush(PATIENCE)
                    self.wait_for_lines(logs.output)
                self.check(raised.exception, logs.output)
                await run.flush(PATIENCE)

        asyncio.run(work())

    def test_a_sample_that_nobody_has_begun(self) -> None:
        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            self.assertEqual(run.read_one("never", wait=True, only_begun=True, timeout=PATIENCE).status, "NOT_FOUND")
            self.assertEqual(run.read_one("never", wait=True, timeout=0.5).status, "NOT_FOUND")

            def begin() -> None:
                run.append("late", ROWS, seal=True)
                run.flush(PATIENCE)

            beginning = threading.Timer(0.2, begin)
            beginning.start()
            np.testing.assert_array_equal(run.read_one("late", wait=True, timeout=PATIENCE).rows, ROWS)
            beginning.join()

    def test_a_sample_that_nobody_has_begun_in_an_event_loop(self) -> None:
        async def work() -> None:
            async with (
                aio.Client(self.server.endpoint) as client,
                await client.run(self.run_name, GEOMETRY) as run,
            ):
                never = await run.read_one("never", wait=True, only_begun=True, timeout=PATIENCE)
                self.assertEqual(never.status, "NOT_FOUND")
                reading = asyncio.create_task(run.read_one("late", wait=True, timeout=PATIENCE))
                await asyncio.sleep(0.2)
                await run.append("late", ROWS, seal=True)
                np.testing.assert_array_equal((await reading).rows, ROWS)

        asyncio.run(work())


class LongAnswerTest(ServerTest):
    def test_states_that_do_not_fit_in_one_answer(self) -> None:
        """The read asks for samples in parts, and returns them in the requested order."""
        rows = random_routes(np.random.default_rng(2), 20_000, 2, 16, 2)
        holes = [(i, i + 1) for i in range(0, 40_000, 2)]
        names = [*(f"fork{i}" for i in range(24)), "parent"]
        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            run.append("parent", rows, unrecorded=holes)
            for name in names[:-1]:
                run.append(name, rows, unrecorded=holes)
            run.flush(PATIENCE)
            self.assertEqual([state.sample for state in run.stat_many(names)], names)

        async def work() -> None:
            async with aio.Client(self.server.endpoint) as client:
                states = await (await client.run(self.run_name)).stat_many(names)
                self.assertEqual([state.sample for state in states], names)

        asyncio.run(work())


class AwayTest(unittest.TestCase):
    """The server cannot be reached until a read has logged that it waits for it."""

    def setUp(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        self.gate = Gate(server)
        self.addCleanup(self.gate.shut)
        logger, gate = logging.getLogger(LOG), self.gate

        class OpensTheGate(logging.Handler):
            lines = 0

            def emit(self, record: logging.LogRecord) -> None:
                if "is waiting for its server" in record.getMessage():
                    self.lines += 1
                    gate.open()

        self.handler = OpensTheGate()
        logger.addHandler(self.handler)
        self.addCleanup(logger.removeHandler, self.handler)

    def test_a_read_waits_for_its_server(self) -> None:
        with rr.Client(self.gate.endpoint) as client, client.run("run", GEOMETRY) as run:
            run.append("s", ROWS, seal=True)
            run.flush(PATIENCE)
            self.gate.shut()
            np.testing.assert_array_equal(run.read_one("s", timeout=PATIENCE).rows, ROWS)
        self.assertEqual(self.handler.lines, 1)

    def test_in_an_event_loop_too(self) -> None:
        async def work() -> None:
            async with aio.Client(self.gate.endpoint) as client, await client.run("run", GEOMETRY) as run:
                await run.append("s", ROWS, seal=True)
                await run.flush(PATIENCE)
                self.gate.shut()
                np.testing.assert_array_equal((await run.read_one("s", timeout=PATIENCE)).rows, ROWS)

        asyncio.run(work())
        self.assertEqual(self.handler.lines, 1)


class CredentialsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)

    def test_a_token_file_that_is_away_for_a_moment(self) -> None:
        """The token file is missing when the first stream begins. The append succeeds when the file is back."""
        with tempfile.TemporaryDirectory() as directory:
            token = Path(directory, "token")
            token.write_text("secret")

            async def work() -> None:
                async with aio.Client(self.server.endpoint, token_file=str(token)) as client:
                    run = await client.run("run", GEOMETRY)
                    token.unlink()
                    await run.append("s", ROWS)
                    flushing = asyncio.create_task(run.flush(PATIENCE))
                    await asyncio.sleep(0.2)
                    token.write_text("secret")
                    await flushing

            asyncio.run(work())


if __name__ == "__main__":
    unittest.main()
