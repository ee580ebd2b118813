"""commit of a single sample; runs that are joined before they are made; release by handle."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import unittest
from typing import Any

import numpy as np
from attach_calls_test import ANSWER, PROMPT, Llm
from attach_calls_test import GEOMETRY as ENGINE_GEOMETRY
from support import Gate, ServerTest, random_routes, reserve_address

import routing_replay as rr
from routing_replay import aio
from routing_replay.engines import attach

GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 500, 4, 64, 4)
TOKENS = np.arange(501)
PATIENCE = 60.0


class QuietTest(ServerTest):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.client = self.open(self.server.endpoint)

    def open(self, endpoint: str, **options: Any) -> rr.Client:
        client = rr.Client(endpoint, **options)
        self.addCleanup(client.close, 0)
        return client


class CommitTest(QuietTest):
    def setUp(self) -> None:
        super().setUp()
        self.run_ = self.client.run(self.run_name, GEOMETRY)

    def unrecorded(self, sample: str) -> tuple[tuple[int, int], ...]:
        return self.run_.stat(sample).unrecorded

    def test_what_was_appended(self) -> None:
        run = self.run_
        run.append("s", ROWS[:9], tokens=TOKENS[:9])
        self.assertEqual(run.commit("s"), rr.Commit("s", "committed", 9, None, None))
        run.append("s", ROWS[9:20], row_start=9, tokens=TOKENS[9:20], seal=True)
        self.assertEqual(run.commit("s", 21), rr.Commit("s", "committed", 20, 21, None))
        turns = run.trajectory("t")
        turns.add(ROWS[:9], tokens=TOKENS[:10])
        self.assertEqual(run.commit("t", 10), rr.Commit("t", "committed", 9, 10, None))  # This call seals the sample.
        self.assertTrue(run.commit("t", 10).ok)
        self.assertEqual(self.unrecorded("t"), ())

    def test_a_server_that_is_away_takes_no_longer_than_the_timeout(self) -> None:
        gate = Gate(self.server)
        run = self.open(gate.endpoint, call_timeout=PATIENCE).run(self.run_name, GEOMETRY)
        gate.shut()
        began = time.monotonic()
        said = run.commit("s", 10, timeout=1)
        self.assertLess(time.monotonic() - began, PATIENCE / 2)
        self.assertEqual((said.status, said.committed_rows), ("missing", 0))
        self.assertIsNotNone(said.error)

    def test_other_samples_are_not_waited_for(self) -> None:
        go = threading.Event()
        self.addCleanup(go.set)
        slow = self.run_.appender(on_outcome=lambda outcome: go.wait(PATIENCE))
        slow.append("slow", ROWS[:9], seal=True)
        self.run_.append("s", ROWS[:9], seal=True)
        self.assertTrue(self.run_.commit("s", 10).ok)
        self.assertTrue(self.run_.commit("slow", 10).ok)  # Unlike flush, commit does not wait for on_outcome.
        with self.assertRaises(rr.DeadlineExceededError):
            slow.flush(0.1)
        go.set()
        slow.flush()

    def test_a_sample_of_which_nothing_came(self) -> None:
        said = self.run_.commit("never")
        self.assertEqual((said.status, said.committed_rows, said.error.reason), ("missing", 0, "NO_SAMPLE"))
        said = self.run_.commit("never", 10)
        self.assertEqual((said.status, said.committed_rows, said.num_tokens), ("marked", 9, 10))
        self.assertEqual(self.unrecorded("never"), ((0, 9),))
        self.assertEqual(self.run_.read_one("never").status, "NOT_RECORDED")

    def test_rows_that_the_server_rejected(self) -> None:
        run = self.run_
        run.append("gap", ROWS[:9], tokens=TOKENS[:9])
        run.append("gap", ROWS[20:30], row_start=20, tokens=TOKENS[20:30], seal=True)
        said = run.commit("gap", tokens=TOKENS[:31])
        self.assertEqual((said.status, said.committed_rows, said.error.reason), ("marked", 30, "GAP"))
        self.assertEqual(self.unrecorded("gap"), ((9, 30),))
        self.assertEqual(run.stat("gap").token_check, rr.token_check(TOKENS[:30]))
        with self.assertRaises(rr.FailedPreconditionError):
            run.flush()  # flush still reports it.
        run.append("alone", ROWS[20:30], row_start=20)
        said = run.commit("alone")
        self.assertEqual((said.status, said.error.reason), ("missing", "GAP"))

    def test_a_name_that_is_taken(self) -> None:
        """If the sample id is taken by another trajectory, commit reports this, and the stored rows stay as they
        are."""
        run = self.run_
        run.put("s", ROWS[:9], tokens=TOKENS[:9])
        run.append("s", ROWS[:20], tokens=TOKENS[1:21], seal=True)
        said = run.commit("s", 21)
        self.assertEqual((said.status, said.error.reason), ("missing", "OTHER_TOKENS"))
        self.assertEqual(run.stat("s").committed_rows, 9)
        run.put("t", ROWS[:9], seal=True)
        self.assertEqual(run.commit("t", 21).error.reason, "SEALED")

    def test_tokens_are_told_and_compared(self) -> None:
        run = self.run_
        run.append("s", ROWS[:9])  # The engine does not report its tokens.
        self.assertEqual(run.commit("s", tokens=TOKENS[:10]), rr.Commit("s", "committed", 9, 10, None))
        self.assertEqual(run.stat("s").token_check, rr.token_check(TOKENS[:9]))
        for sample, seal in (("open", False), ("sealed", True)):
            run.put(sample, ROWS[:9], tokens=TOKENS[:9], seal=seal)
            said = run.commit(sample, tokens=TOKENS[1:11])
            self.assertEqual((said.status, said.error.reason), ("missing", "OTHER_TOKENS"))
            self.assertEqual(run.commit(sample, tokens=TOKENS[:9], num_tokens=10).status, "committed")
        self.assertTrue(run.commit("one", tokens=[5]).ok)

    def test_a_queue_that_is_full(self) -> None:
        dropping = self.run_.appender(max_queued_bytes=1, on_full="drop")
        dropping.append("s", ROWS[:9])
        dropping.append("s", ROWS[9:20], row_start=9, seal=True)
        for _ in range(2):
            said = self.run_.commit("s", 21)
            self.assertEqual((said.status, said.error.reason), ("marked", "OVER_BUDGET"))
        self.assertTrue(self.unrecorded("s"))

    def test_who_asks_again_is_told_the_same(self) -> None:
        """Commit gives the same answer again until more of the sample is appended."""
        run = self.run_
        run.append("gap", ROWS[:9])
        run.append("gap", ROWS[20:30], row_start=20)
        run.put("other", ROWS[:9], tokens=TOKENS[:9], seal=True)
        run.append("other", ROWS[:9], tokens=TOKENS[1:10], seal=True)
        for _ in range(2):
            said = [run.commit(sample, count) for sample, count in (("gap", None), ("other", 10), ("other", None))]
            self.assertEqual([one.status for one in said], ["missing"] * 3)
            self.assertEqual([one.error.reason for one in said], ["GAP", "OTHER_TOKENS", "OTHER_TOKENS"])
        run.append("gap", ROWS[9:30], row_start=9, seal=True)
        self.assertTrue(run.commit("gap", 31).ok)
        run.append("other", ROWS[:20], tokens=TOKENS[1:21], restart=1, seal=True)
        self.assertTrue(run.commit("other", 21).ok)

    def test_a_server_that_is_away(self) -> None:
        gate = Gate(self.server)
        run = self.open(gate.endpoint, call_timeout=0.3).run(self.run_name, GEOMETRY)
        gate.shut()
        appender = run.appender(append_timeout=0.3)
        appender.append("s", ROWS[:9], seal=True)
        said = run.commit("s", 10, timeout=1)
        self.assertEqual((said.status, said.committed_rows), ("missing", 0))
        self.assertIsInstance(said.error, rr.RoutingReplayError)
        patient = run.appender()
        patient.append("t", ROWS[:9], seal=True)
        self.assertIsInstance(run.commit("t", timeout=0.2).error, rr.DeadlineExceededError)
        gate.open()
        self.assertTrue(run.commit("t", 10, timeout=PATIENCE).ok)

    def test_arguments(self) -> None:
        run = self.run_
        for arguments, options, field in (
            ((7,), {}, "sample"),
            (("s", 0), {}, "num_tokens"),
            (("s", 9), {"tokens": TOKENS[:7]}, "tokens"),
            (("s",), {"timeout": -1}, "timeout"),
            (("s", 9), {"attempt": 2**32}, "attempt"),
        ):
            with self.subTest(field), self.assertRaises(rr.InvalidArgumentError) as caught:
                run.commit(*arguments, **options)
            self.assertEqual(caught.exception.field, field)
        self.assertIsInstance(run.commit("no id", 9).error, rr.InvalidArgumentError)

    def test_what_went_through_an_engine(self) -> None:
        run = self.client.run(f"{self.run_name}_engine", ENGINE_GEOMETRY)
        llm = Llm()
        attachment = attach.vllm(llm, run)
        self.addCleanup(attachment.detach)
        llm.generate(["a", "b"])
        tokens = len(PROMPT + ANSWER)
        for sample in ("0/0", "1/0"):
            self.assertEqual(run.commit(sample, tokens), rr.Commit(sample, "committed", tokens - 1, tokens, None))
        llm.enqueue(["c"])
        llm.queue[0].outputs[0].routed_experts = np.full((tokens - 1, 4, 4), 3, np.uint8)  # Ids that occur twice.
        llm.wait_for_completion()
        self.assertTrue(run.commit("2/0", tokens).ok)
        self.assertEqual(run.stat("2/0").unrecorded, ((0, tokens - 1),))


class AttemptTest(QuietTest):
    """The same prompt is dispatched to two workers that do not know of each other."""

    def setUp(self) -> None:
        super().setUp()
        self.run_ = self.client.run(self.run_name, GEOMETRY)
        self.other = self.open(self.server.endpoint).run(self.run_name)

    def test_a_later_attempt_replaces_an_earlier_one(self) -> None:
        first, second = self.run_, self.other
        first.append("s", ROWS[:9], tokens=TOKENS[:9], attempt=0)
        first.flush()
        second.append("s", ROWS[100:120], tokens=TOKENS[100:120], attempt=2)
        second.flush()
        # Attempt 2 has begun. What the first worker appends to "s" with attempts 0 and 1 comes too late.
        first.append("s", ROWS[9:30], row_start=9, tokens=TOKENS[9:30], attempt=0, seal=True)
        first.append("s", ROWS[:9], tokens=TOKENS[:9], attempt=1, seal=True)
        first.append("t", ROWS[:9], attempt=0, seal=True)
        self.assertEqual([first.commit("s", 31, attempt=number).status for number in (0, 1)], ["missing"] * 2)
        self.assertEqual(first.commit("s", 31, attempt=0).error.reason, "OLD_REVISION")
        first.flush()  # Not an error: the stored rows are newer.
        self.assertEqual(first.metrics()["stale_appends"], 2)
        second.append("s", ROWS[120:130], row_start=20, tokens=TOKENS[120:130], attempt=2, seal=True)
        self.assertEqual(second.commit("s", 31, attempt=2), rr.Commit("s", "committed", 30, 31, None))
        np.testing.assert_array_equal(first.read_one("s").rows, ROWS[100:130])
        self.assertTrue(first.read_one("t").ok)
        first.append("s", ROWS[:9], attempt=7, seal=True)  # No worker knows a revision.
        self.assertEqual(first.commit("s", 10, attempt=7), rr.Commit("s", "committed", 9, 10, None))
        np.testing.assert_array_equal(first.read_one("s").rows, ROWS[:9])

    def test_numbers_of_other_types(self) -> None:
        """The attempt may be an element of a batch's column: a tensor has __index__ like an int, but another hash."""

        class Tensor:
            def __index__(self) -> int:
                return 3

        run = self.run_
        for name, attempt in (("tensor", Tensor()), ("numpy", np.int64(3))):
            run.append(name, ROWS[20:30], row_start=20, attempt=attempt)
            self.assertEqual(run.commit(name, attempt=3).error.reason, "GAP")
            self.assertEqual(run.commit(name, attempt=attempt).error.reason, "GAP")

    def test_failures_beside_stale_appends(self) -> None:
        run = self.run_
        run.put("s", ROWS[:9], attempt=1)
        run.append("s", ROWS[:9], attempt=0)
        run.append("gap", ROWS[9:20], row_start=9, attempt=0)
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            run.flush()
        self.assertEqual((caught.exception.reason, caught.exception.failed_samples), ("GAP", ["gap"]))
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            run.put("s", ROWS[:9], attempt=0)
        self.assertEqual((caught.exception.reason, caught.exception.revision), ("OLD_REVISION", 0))
        run.append("s", ROWS[:9], revision=7)
        with self.assertRaises(rr.FailedPreconditionError):
            run.flush()

    def test_rejections_that_no_later_attempt_explains(self) -> None:
        """The samples were truncated, and no later attempt exists. So the rejected rows are lost, and flush reports
        them."""
        run = self.run_
        run.put("s", ROWS[:9], attempt=1)
        run.truncate("s", 5)
        run.put("t", ROWS[:9])
        run.truncate("t", 0)
        run.append("s", ROWS[9:20], row_start=9, attempt=1)
        run.append("t", ROWS[:20], attempt=1)
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            run.flush()
        self.assertEqual((caught.exception.reason, caught.exception.failed_samples), ("OLD_REVISION", ["s", "t"]))
        self.assertEqual([run.commit(sample, attempt=1).status for sample in "st"], ["missing", "missing"])
        self.assertEqual(run.metrics()["stale_appends"], 0)

    def test_rows_that_do_not_begin_an_attempt(self) -> None:
        run = self.run_
        run.put("s", ROWS[:9], attempt=0)
        run.append("s", ROWS[9:20], row_start=9, attempt=1)
        said = run.commit("s", attempt=1)
        self.assertEqual((said.status, said.error.reason, said.committed_rows), ("missing", "GAP", 9))
        # Attempt 1 has none of the rows of attempt 0, so commit marks all of its 20 rows.
        self.assertEqual(run.commit("s", 21, attempt=1).status, "marked")
        self.assertEqual(run.stat("s").unrecorded, ((0, 20),))
        # All rows of attempt 0 are stored, and none of attempt 1.
        run.put("t", ROWS[:20], attempt=0, seal=True)
        self.assertTrue(run.commit("t", 21, attempt=0).ok)
        self.assertEqual(run.commit("t", attempt=1).error.reason, "GAP")
        self.assertEqual(run.stat("t").unrecorded, ())
        self.assertEqual(run.commit("t", 21, attempt=1).status, "marked")
        # Attempt 1 has replaced the rows of attempt 0, whose worker learns this from the error.
        self.assertEqual(run.commit("t", 21, attempt=0).error.reason, "OLD_REVISION")
        self.assertEqual(run.commit("t", attempt=0).error.reason, "OLD_REVISION")

    def test_an_attempt_that_is_none(self) -> None:
        for options in ({"attempt": -1}, {"attempt": 2**32}, {"attempt": 1.5}, {"attempt": 1, "restart": 1}):
            with self.subTest(options), self.assertRaises(rr.InvalidArgumentError) as caught:
                self.run_.append("s", ROWS[:9], **options)
            self.assertEqual(caught.exception.field, "append.attempt")

    def test_in_an_event_loop(self) -> None:
        async def work() -> dict[str, int]:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run(self.run_name)
                await run.append("s", ROWS[:9], attempt=1, seal=True)
                await run.append("s", ROWS[:20], attempt=0, seal=True)
                self.assertEqual((await run.commit("s", 21, attempt=0)).error.reason, "OLD_REVISION")
                self.assertTrue((await run.commit("s", 10, attempt=1)).ok)
                await run.flush()
                return run.metrics()

        self.assertEqual(asyncio.run(work())["stale_appends"], 1)


class AioCommitTest(QuietTest):
    def test_what_was_appended_and_what_was_not(self) -> None:
        async def work() -> list[rr.Commit]:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run(self.run_name, GEOMETRY)
                for number in range(20):
                    await run.append(f"s{number}", ROWS[:9], tokens=TOKENS[:9], seal=True)
                said = list(await asyncio.gather(*(run.commit(f"s{number}", 10) for number in range(20))))
                await run.append("gap", ROWS[20:30], row_start=20, tokens=TOKENS[20:30], seal=True)
                return [*said, await run.commit("gap", 31), await run.commit("never")]

        *good, gap, never = asyncio.run(work())
        self.assertEqual([one.ok for one in good], [True] * 20)
        self.assertEqual((gap.status, gap.committed_rows, gap.error.reason), ("marked", 30, "GAP"))
        self.assertEqual((never.status, never.error.reason), ("missing", "NO_SAMPLE"))

    def test_a_commit_that_is_cancelled_behind_its_wait(self) -> None:
        async def work() -> None:
            gate = Gate(self.server)
            async with aio.Client(gate.endpoint) as client:
                run = await client.run(self.run_name, GEOMETRY)
                await run.append("gap", ROWS[20:30], row_start=20)
                with self.assertRaises(rr.FailedPreconditionError):
                    await run.flush()
                gate.shut()
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(run.commit("gap"), 0.2)
                gate.open()
                self.assertEqual((await run.commit("gap")).error.reason, "GAP")

        asyncio.run(work())

    def test_a_wait_that_is_cancelled(self) -> None:
        async def work() -> None:
            gate = Gate(self.server)
            async with aio.Client(gate.endpoint) as client:
                run = await client.run(self.run_name, GEOMETRY)
                gate.shut()
                await run.append("s", ROWS[:9], seal=True)
                waiting = asyncio.create_task(run.commit("s", 10))
                await asyncio.sleep(0)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                gate.open()
                self.assertTrue((await run.commit("s", 10)).ok)

        asyncio.run(work())


class EventLoopTest(QuietTest):
    """A blocking Appender that is used in a coroutine must not block the other tasks of the event loop."""

    def test_a_full_queue_drops(self) -> None:
        gate = Gate(self.server)
        run = self.open(gate.endpoint).run(self.run_name, GEOMETRY)
        appender = run.appender(max_queued_bytes=4000)
        gate.shut()

        async def work() -> float:
            began = time.monotonic()
            for row in range(0, 400, 20):
                appender.append("s", ROWS[row : row + 20], row_start=row)
            return time.monotonic() - began

        self.assertLess(asyncio.run(work()), 30)  # If the appends blocked, each would take 60 s.
        self.assertGreater(appender.metrics()["dropped_appends"], 0)
        gate.open()
        self.assertEqual(run.commit("s", 401, timeout=PATIENCE).status, "marked")
        # With on_full="block" blocking is intended.
        blocking = run.appender(max_queued_bytes=4000, on_full="block", queue_timeout=0.3)
        gate.shut()

        async def wait() -> float:
            began = time.monotonic()
            while not blocking.metrics()["dropped_appends"]:
                blocking.append("t", ROWS[:100])
            return time.monotonic() - began

        self.assertGreaterEqual(asyncio.run(wait()), 0.3)
        gate.open()


class JoinTest(QuietTest):
    def later(self, work: Any) -> None:
        """Runs `work` 0.3 s later, while the caller waits."""
        timer = threading.Timer(0.3, work)
        timer.start()
        self.addCleanup(timer.join)

    def test_a_run_that_is_made_later(self) -> None:
        self.later(lambda: self.client.run(self.run_name, GEOMETRY))
        self.assertEqual(self.open(self.server.endpoint).run(self.run_name, wait=PATIENCE).geometry, GEOMETRY)
        name = f"{self.run_name}_aio"

        async def join() -> rr.Geometry:
            async with aio.Client(self.server.endpoint) as client:
                return (await client.run(name, wait=PATIENCE)).geometry

        self.later(lambda: self.client.run(name, GEOMETRY))
        self.assertEqual(asyncio.run(join()), GEOMETRY)

    def test_a_run_that_nobody_makes(self) -> None:
        with self.assertRaises(rr.DeadlineExceededError) as caught:
            self.client.run(self.run_name, wait=0.2)
        self.assertEqual(caught.exception.reason, "NO_RUN")
        self.assertIn(self.run_name, caught.exception.message)
        with self.assertRaises(rr.NotFoundError):
            self.client.run(self.run_name)
        with self.assertRaises(rr.InvalidArgumentError):
            self.client.run(self.run_name, wait=-1)

    def test_a_server_that_is_not_there_yet(self) -> None:
        with self.assertRaises(rr.DeadlineExceededError):
            self.open(reserve_address(), call_timeout=0.1).run("r", wait=0.2)
        gate = Gate(self.server)
        gate.shut()
        self.later(gate.open)
        run = self.open(gate.endpoint, call_timeout=0.1).run(self.run_name, GEOMETRY, wait=PATIENCE)
        self.assertEqual(run.geometry, GEOMETRY)


class ReleaseTest(QuietTest):
    def test_by_handle(self) -> None:
        run = self.client.run(self.run_name, GEOMETRY)
        names = [f"s{number}" for number in range(6)]
        for name in names:
            run.put(name, ROWS[:9], seal=True)
        column = np.array([rr.sample_handle(name) for name in names[:3]] + [0, rr.sample_handle("s0")])
        self.assertEqual(run.release(column).samples, 3)  # The padding (0) and the second s0 do not count.
        self.assertEqual(run.release(column).samples, 0)
        self.assertEqual(run.release(["s3", rr.sample_handle("s4"), "nobody"]).samples, 2)
        self.assertEqual([state.sample for state in run.list()], ["s5"])
        for wrong in ([1.5], [None], "s5", 7):
            with self.subTest(wrong), self.assertRaises(rr.InvalidArgumentError) as caught:
                run.release(wrong)
            self.assertEqual(caught.exception.field, "samples")

        async def release() -> int:
            async with aio.Client(self.server.endpoint) as client:
                return (await (await client.run(self.run_name)).release([rr.sample_handle("s5")])).samples

        self.assertEqual(asyncio.run(release()), 1)
        self.assertEqual(run.list(), [])


if __name__ == "__main__":
    unittest.main()
