"""The asyncio client behaves like the client for threads."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import logging
import os
import signal
import tempfile
import time
import unittest
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from support import Gate, Server, random_routes

import routing_replay as rr
from routing_replay import aio
from routing_replay.appender import _lines

GEOMETRY = rr.Geometry(num_layers=3, num_experts=300, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 400, 3, 300, 4)
TOKENS = np.arange(401)
LARGE = np.concatenate([ROWS] * 40).astype(np.int64)  # Encoded in another thread.
LARGE_TOKENS = np.arange(len(LARGE) + 1)


class AioTest(unittest.IsolatedAsyncioTestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)

    async def asyncSetUp(self) -> None:
        self.client = aio.Client(self.server.endpoint)
        self.run_ = await self.client.run(self.id().rsplit(".", 1)[-1], GEOMETRY)
        self.addAsyncCleanup(self.client.close)

    async def test_append_and_read(self) -> None:
        run = self.run_
        await asyncio.gather(*(run.append(f"a{i}", ROWS, tokens=TOKENS, seal=True, group=i) for i in range(30)))
        await run.flush()
        for sample in await run.read([f"a{i}" for i in range(30)]):
            self.assertEqual(sample.rows.dtype, np.uint16)
            np.testing.assert_array_equal(sample.rows, ROWS)
        self.assertEqual(run.metrics()["acknowledged"], 30)
        self.assertTrue((await run.stat("a1")).sealed)
        self.assertEqual(len(await run.list(groups=(3, 5))), 2)
        self.assertEqual((await run.release(["a1"])).samples, 1)
        self.assertEqual((await run.release_groups(2, 4)).samples, 2)
        self.assertEqual((await run.put("p", ROWS)).committed_rows, 400)
        self.assertEqual((await run.truncate("p", 10)).revision, 1)
        self.assertTrue((await run.put("p", num_tokens=11, revision=1)).sealed)
        self.assertEqual((await self.client.server_info()).version, rr.__version__)
        self.assertEqual((await run.drop()).samples, 28)

    async def test_cancelled_reads_blame_no_server(self) -> None:
        await self.run_.put("long", LARGE, seal=True)
        with self.assertNoLogs("routing_replay"):
            for i in range(40):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.run_.read(["long"] * 3), 0.0005 * i)

    async def test_nothing_closed_is_kept(self) -> None:
        run = await self.client.run("kept", GEOMETRY)
        appender = run.appender()
        await appender.append("a", ROWS)
        await appender.close()
        await run.append("b", ROWS)
        gone = [weakref.ref(appender), weakref.ref(run)]
        del appender, run
        deadline = time.monotonic() + 30
        while any(reference() for reference in gone) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)  # Until its next turn, the loop holds the tasks that have just ended.
            gc.collect()
        self.assertEqual([reference() for reference in gone], [None] * 2)
        await self.client.close()
        async with aio.Client(self.server.endpoint) as client:
            self.assertEqual((await (await client.run("kept")).stat("b")).committed_rows, 400)

    async def test_a_cancelled_close_goes_on_in_the_background(self) -> None:
        for i in range(8):
            run = await self.client.run("closing", GEOMETRY)
            await run.append(f"s{i}", ROWS)
            closing = asyncio.create_task(run.close())
            await asyncio.sleep(0)
            closing.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await closing
        lines = [weakref.ref(line) for line in _lines if line.run_name == "closing"]
        del run, closing
        deadline = time.monotonic() + 30
        while any(reference() for reference in lines) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            gc.collect()
        self.assertFalse(any(reference() for reference in lines))
        self.assertEqual(len(await (await self.client.run("closing")).stat_many(f"s{i}" for i in range(8))), 8)

    async def test_a_server_that_has_moved_is_found_again(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "endpoint")
            first, second = Server(), Server()
            self.addCleanup(second.stop)
            file.write_text(first.endpoint)
            async with aio.Client(f"file:{file}", call_timeout=20) as client:
                run = await client.run("r", GEOMETRY)
                await run.append("a", ROWS)
                await run.flush(60)
                first.stop()
                file.write_text(second.endpoint)
                await client.run("r", GEOMETRY)
                await run.append("b", ROWS)
                await run.flush(60)
                self.assertEqual((await run.stat("b")).committed_rows, 400)

    async def test_errors(self) -> None:
        run = self.run_
        bad = ROWS.copy()
        bad[7, 2, 1] = 300
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            await run.append("s", bad)
        self.assertEqual((caught.exception.row, caught.exception.layer), (7, 2))
        await run.append("s", ROWS, row_start=5)
        with self.assertRaises(rr.FailedPreconditionError):
            await run.flush()
        with self.assertRaises(rr.NotFoundError):
            await run.stat("s")
        with self.assertRaises(rr.NotFoundError):
            await self.client.run("no-such-run")
        with self.assertRaises(rr.InvalidArgumentError):
            await run.read(["s"], layers=[9])

    async def test_the_loop_goes_on_while_a_read_waits(self) -> None:
        await self.run_.put("late", ROWS[:10])
        all_rows = rr.SampleRead("late", rows=[(0, 400)])
        reading = asyncio.create_task(self.run_.read_one(all_rows, wait=True, timeout=60))
        await asyncio.sleep(0.1)
        await self.run_.append("late", ROWS[10:], row_start=10)
        await self.run_.flush()
        np.testing.assert_array_equal((await reading).rows, ROWS)

    async def test_small_arrays_do_not_overtake_large_ones(self) -> None:
        run = self.run_
        sequences = await asyncio.gather(
            run.append("o", LARGE), run.append("o", ROWS[:3], row_start=len(LARGE), seal=True)
        )
        await run.flush(30)
        self.assertEqual(sequences, [1, 2])
        self.assertTrue((await run.stat("o")).sealed)

    async def test_cancelling(self) -> None:
        appender = self.run_.appender()
        await self.run_.put("s", ROWS)
        await appender.append("t", ROWS)
        waiting = asyncio.create_task(self.run_.read_one(rr.SampleRead("s", rows=[(400, 401)]), wait=True))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        await appender.flush()
        await appender.close()
        with self.assertRaises(rr.CancelledError):
            await appender.append("s", ROWS)

    async def test_turns_that_are_cancelled_at_any_time(self) -> None:
        rng = np.random.default_rng(7)
        for i in range(60):
            trajectory = self.run_.trajectory(f"s{i}")
            for turn in range(5):
                tokens = LARGE_TOKENS + turn * (i % 3)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(trajectory.add(LARGE, tokens=tokens), rng.uniform(0, 0.01))
            await trajectory.add(LARGE, tokens=tokens, seal=True)
            await self.run_.flush()
            state = await self.run_.stat(f"s{i}")
            self.assertEqual((state.committed_rows, state.sealed), (len(LARGE), True))
            self.assertEqual((trajectory.rows, trajectory.num_tokens), (len(LARGE), len(LARGE) + 1))
            self.assertEqual(state.token_check, rr.token_check(tokens[:-1]))

    async def test_calls_that_are_cancelled_at_any_time(self) -> None:
        """After a cancelled call nothing touches its arguments, and the next calls are not affected."""
        rng = np.random.default_rng(8)
        for i in range(100):
            rows = LARGE.copy()
            for call in (self.run_.append(f"a{i}", rows), self.run_.put(f"p{i}", rows), self.run_.read_one("p")):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(call, rng.uniform(0, 0.01))
            rows[:] = 0
        await self.run_.flush()
        for state in await self.run_.list():
            self.assertEqual(state.committed_rows, len(LARGE))
        read = await self.run_.read([state.sample for state in await self.run_.list()])
        for sample in read:
            np.testing.assert_array_equal(sample.rows, LARGE)

    async def test_rows_of_every_kind(self) -> None:
        text = base64.b64encode(LARGE.tobytes())
        payload = rr.Payload(memoryview(text), "BASE64", dtype="I64", shape=LARGE.shape)
        for i, rows in enumerate([LARGE, payload, rr.RecordedRows(payload), rr.RecordedRows(LARGE), LARGE.tolist()]):
            await self.run_.append(f"a{i}", rows)
            await self.run_.put(f"p{i}", rows)
        await self.run_.flush()
        for sample in await self.run_.read([f"{kind}{i}" for kind in "ap" for i in range(5)]):
            np.testing.assert_array_equal(sample.rows, LARGE)

    async def test_a_full_executor_of_the_loop(self) -> None:
        """Threads that wait for appends occupy the whole executor of the loop. The appends end all the same, because
        they need none of its threads."""
        loop = asyncio.get_running_loop()
        workers = min(32, (os.cpu_count() or 1) + 4)

        def worker(i: int) -> Any:
            trajectory = self.run_.trajectory(f"t{i}")
            for call in (self.run_.append(f"s{i}", LARGE), trajectory.add(LARGE, tokens=LARGE_TOKENS)):
                asyncio.run_coroutine_threadsafe(call, loop).result(60)

        await asyncio.gather(*(asyncio.to_thread(worker, i) for i in range(workers)))
        await self.run_.flush()
        self.assertEqual(len(await self.run_.list()), 2 * workers)

    async def test_an_endpoint_that_is_not_there_yet(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "endpoint")
            async with aio.Client(f"file:{file}", call_timeout=0.2) as client:
                with self.assertRaises(rr.DeadlineExceededError):
                    await client.server_info()
            async with aio.Client(f"file:{file}", call_timeout=20) as client:
                asking = asyncio.create_task(client.server_info())
                await asyncio.sleep(0.1)
                file.write_text(self.server.endpoint)
                await asking

    async def test_fork(self) -> None:
        await self.client.server_info()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                self.client.server_info().send(None)
            except rr.FailedPreconditionError:
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        await self.client.server_info()


class AioTroubleTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_server_that_is_out_of_reach(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        gate = Gate(server)
        self.addCleanup(gate.shut)
        client = aio.Client(gate.endpoint, call_timeout=2)
        run = await client.run("r", GEOMETRY)
        await run.append("s", ROWS[:100])
        await run.flush()
        gate.shut()
        dropping = run.appender(max_queued_bytes=1000, on_full="drop")
        raising = run.appender(max_queued_bytes=1000, on_full="raise")
        blocking = run.appender(max_queued_bytes=1000, queue_timeout=0.1)
        for appender, name in ((dropping, "d"), (raising, "r"), (blocking, "b")):
            await appender.append(f"{name}1", ROWS)
        with self.assertLogs("routing_replay", logging.WARNING):
            await dropping.append("d2", ROWS, seal=True)
        with self.assertRaises(rr.ResourceExhaustedError):
            await raising.append("r2", ROWS)
        await blocking.append("b2", ROWS)
        with self.assertRaises(rr.DeadlineExceededError):
            await blocking.flush(0.1)
        with self.assertRaises(rr.UnavailableError):
            await run.stat("s")
        gate.open()
        for appender in (dropping, raising, blocking):
            await appender.flush(60)
        self.assertEqual((await run.read_one("d2")).status, "NOT_RECORDED")
        np.testing.assert_array_equal((await run.read_one("d1")).rows, ROWS)
        self.assertEqual(blocking.metrics()["dropped_appends"], 1)
        await client.close()

    async def test_closing_does_not_hang(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        client = aio.Client(server.endpoint)
        run = await client.run("r", GEOMETRY)
        server.stop()
        await run.append("s", ROWS)
        begin = time.monotonic()
        await client.close(timeout=0.2)
        self.assertLess(time.monotonic() - begin, 10)
        with self.assertRaises(rr.CancelledError):
            await run.stat("s")

    def test_a_loop_that_ends_without_close(self) -> None:
        server = Server()
        self.addCleanup(server.stop)

        async def main() -> None:
            run = await aio.Client(server.endpoint).run("r", GEOMETRY)
            await run.append("s", ROWS)
            await run.flush()

        begin = time.monotonic()
        asyncio.run(main())
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
