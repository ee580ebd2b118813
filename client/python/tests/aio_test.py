"""The asyncio client does what the other one does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import logging
import os
import signal
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from support import Gate, Server, random_routes

import routing_replay as rr
from routing_replay import _core, aio
from routing_replay.aio import threads

GEOMETRY = rr.Geometry(num_layers=3, num_experts=300, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 400, 3, 300, 4)
TOKENS = np.arange(401)
LARGE = np.concatenate([ROWS] * 40).astype(np.int64)  # Encoded in another thread.
LARGE_TOKENS = np.arange(len(LARGE) + 1)


class Held:
    """A method of the core that waits to be let go, and knows how many threads were in it at once."""

    def __init__(self, holder: type, name: str) -> None:
        self._patch = mock.patch.object(holder, name, self._wrapped(getattr(holder, name)))
        self._now = 0
        self.most = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def _wrapped(self, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._now += 1
            self.most = max(self.most, self._now)
            self.begun.set()
            self.go.wait(60)
            try:
                return method(*arguments)
            finally:
                self._now -= 1

        return call

    async def wait(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0.001)

    def __enter__(self) -> Held:
        self._patch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.go.set()
        self._patch.stop()


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
        self.assertTrue((await run.seal("p", 11, revision=1)).sealed)
        self.assertIn(run.name, [summary.run for summary in await self.client.runs()])
        self.assertEqual((await self.client.server_info()).version, rr.__version__)
        self.assertEqual((await run.drop()).samples, 28)

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
            await asyncio.sleep(0.01)  # The loop still holds what has just ended.
            gc.collect()
        self.assertEqual([reference() for reference in gone], [None] * 2)
        await self.client.close()
        async with aio.Client(self.server.endpoint) as client:
            self.assertEqual((await (await client.run("kept")).stat("b")).committed_rows, 400)

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

    async def test_a_cancelled_turn_ends_when_its_thread_does(self) -> None:
        trajectory = self.run_.trajectory("s")
        with Held(_core.Trajectory, "turn") as held:
            turn = asyncio.create_task(trajectory.add(LARGE, tokens=LARGE_TOKENS, seal=True))
            await held.wait()
            for _ in range(3):
                turn.cancel()
                await asyncio.sleep(0.01)
            again = asyncio.create_task(trajectory.add(ROWS, tokens=TOKENS + 7, seal=True))
            await asyncio.sleep(0.01)
            self.assertFalse(turn.done() or again.done())
            # What can be asked meanwhile is not asked of the core.
            self.assertEqual((trajectory.rows, trajectory.num_tokens, trajectory.sealed), (0, 0, False))
            self.assertEqual((trajectory.metrics()["turns"], trajectory.acknowledged_rows), (0, 0))
            held.go.set()
            with self.assertRaises(asyncio.CancelledError):
                await turn
            self.assertEqual((await again).appended, ((0, 400),))
            self.assertEqual(held.most, 1)
        await self.run_.flush()
        np.testing.assert_array_equal((await self.run_.read_one("s")).rows, ROWS)
        self.assertEqual((trajectory.rows, trajectory.acknowledged_rows, trajectory.sealed), (400, 400, True))

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

    async def test_next_row_waits_for_a_turn_that_is_encoded(self) -> None:
        trajectory = self.run_.trajectory("s")
        with Held(_core.Trajectory, "turn") as held:
            turn = asyncio.create_task(trajectory.add(LARGE, tokens=LARGE_TOKENS))
            await held.wait()
            threading.Timer(0.05, held.go.set).start()
            self.assertEqual(trajectory.next_row(LARGE_TOKENS), len(LARGE))
            await turn

    async def test_a_cancelled_append_ends_when_its_thread_does(self) -> None:
        rows = LARGE.copy()
        for append in (self.run_.append, self.run_.put):
            with Held(_core.Run, "plan") as held:
                appending = asyncio.create_task(append("s", rows))
                await held.wait()
                appending.cancel()
                await asyncio.sleep(0.01)
                self.assertFalse(appending.done())
                held.go.set()
                with self.assertRaises(asyncio.CancelledError):
                    await appending
        await self.run_.flush()
        self.assertEqual(await self.run_.list(), [])

    async def test_large_rows_of_every_kind_are_encoded_elsewhere(self) -> None:
        text = base64.b64encode(LARGE.tobytes())
        payload = rr.Payload(memoryview(text), "BASE64", dtype="I64", shape=LARGE.shape)
        met = set()
        method = _core.Run.plan

        def plan(*arguments: Any) -> Any:
            met.add(threading.get_ident())
            return method(*arguments)

        with mock.patch.object(_core.Run, "plan", plan):
            kinds: list[Any] = [LARGE, payload, rr.RecordedRows(payload), rr.RecordedRows(LARGE), LARGE.tolist()]
            for i, rows in enumerate(kinds):
                await self.run_.append(f"a{i}", rows)
                await self.run_.put(f"p{i}", rows)
            self.assertNotIn(threading.get_ident(), met)
            await self.run_.append("small", ROWS)
            self.assertIn(threading.get_ident(), met)

    async def test_a_full_executor_of_the_loop(self) -> None:
        """Threads that wait for appends may fill it: these need none of it."""
        loop = asyncio.get_running_loop()
        workers = min(32, (os.cpu_count() or 1) + 4)

        def worker(i: int) -> Any:
            trajectory = self.run_.trajectory(f"t{i}")
            for call in (self.run_.append(f"s{i}", LARGE), trajectory.add(LARGE, tokens=LARGE_TOKENS)):
                asyncio.run_coroutine_threadsafe(call, loop).result(60)

        await asyncio.gather(*(asyncio.to_thread(worker, i) for i in range(workers)))
        await self.run_.flush()
        self.assertEqual(len(await self.run_.list()), 2 * workers)

    async def test_a_refused_put_is_counted(self) -> None:
        for rows, refused in ((np.zeros((5, 3, 4), np.int64), 1), (np.zeros((5, 3, 4)), 2)):
            with self.assertRaises(rr.InvalidArgumentError):
                await self.run_.put("s", rows)
            self.assertEqual(self.run_.metrics()["refused_appends"], refused)

    async def test_an_endpoint_that_is_not_there_yet(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "endpoint")
            async with aio.Client(f"file:{file}", call_timeout=0.2) as client:
                with self.assertRaises(rr.DeadlineExceededError):
                    await client.runs()
            async with aio.Client(f"file:{file}", call_timeout=20) as client:
                asking = asyncio.create_task(client.runs())
                await asyncio.sleep(0.1)
                file.write_text(self.server.endpoint)
                await asking

    async def test_fork(self) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self.client._transport._closed = False
                asyncio.set_event_loop(None)
                coroutine = self.client._transport.channel()
                coroutine.send(None)
            except rr.FailedPreconditionError:
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


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

    async def test_who_is_woken_and_cancelled_at_once_ends(self) -> None:
        changes = aio.appender._Changes()
        waiter = asyncio.ensure_future(changes.wait(60))
        await asyncio.sleep(0)
        changes.notify()
        waiter.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiter

    def test_threads_after_a_fork(self) -> None:
        asyncio.run(threads.finish(True, int))
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit(asyncio.run(threads.finish(True, int)))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

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
