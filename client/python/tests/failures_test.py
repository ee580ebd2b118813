"""What goes wrong is told: each sample whose append failed, a server that is away, a token that cannot be read."""

from __future__ import annotations

import asyncio
import logging
import pickle
import tempfile
import threading
import unittest
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
from support import Gate, Server, ServerTest, random_routes

import routing_replay as rr
from routing_replay import _calls, _failures, aio, errors

GEOMETRY = rr.Geometry.uniform(num_layers=2, num_experts=16, top_k=2)
ROWS = random_routes(np.random.default_rng(1), 20, 2, 16, 2)
LOG = "routing_replay"
PATIENCE = 60.0


def outcome(sample: str) -> dict[str, object]:
    return {"sample": sample, "error": {"code_name": "FAILED_PRECONDITION", "message": "a gap", "reason": "GAP"}}


class FailuresTest(unittest.TestCase):
    def test_an_error_names_all(self) -> None:
        failures = _failures.Failures("run")
        with self.assertLogs(LOG, logging.WARNING):
            failures.add([outcome(f"s{i % 150}") for i in range(300)] + [{"sample": "good"}])
        error = errors.FailedPreconditionError("a gap")
        failures.attach(error)
        for told in (error, pickle.loads(pickle.dumps(error))):
            self.assertEqual(told.failed_samples, [f"s{i}" for i in range(150)])
            self.assertEqual([sample for sample, _ in told.failures], [f"s{i}" for i in range(100)])
            self.assertEqual({why.reason for _, why in told.failures}, {"GAP"})
        again = errors.FailedPreconditionError("a gap")
        failures.attach(again)
        self.assertEqual((again.failed_samples, again.failures), ([], []))

    def test_a_line_for_each_sample_and_a_count_of_the_rest(self) -> None:
        failures = _failures.Failures("run")
        with self.assertLogs(LOG, logging.WARNING) as logs:
            failures.add([outcome(f"s{i // 2}") for i in range(2000)])
            failures.attach(None)
        told = [line for line in logs.output if "an append of sample" in line]
        self.assertIn("run run: an append of sample s0 failed: FAILED_PRECONDITION (GAP): a gap", told[0])
        rest = [int(line.split("appends of ")[1].split()[0]) for line in logs.output if "more samples" in line]
        self.assertLess(len(logs.output), 1000)
        self.assertEqual(len(told) + sum(rest), 1000)

    def test_what_is_kept_is_bounded(self) -> None:
        failures = _failures.Failures("run")
        error = errors.FailedPreconditionError("a gap")
        with self.assertLogs(LOG, logging.WARNING) as logs:
            failures.add([outcome(f"s{i}") for i in range(100_010)])
            failures.attach(error)
        self.assertEqual((len(error.failed_samples), len(error.failures)), (100_000, 100))
        lines = [line for line in logs.output if "an append of sample" in line]
        rest = [int(line.split("appends of ")[1].split()[0]) for line in logs.output if "more samples" in line]
        self.assertEqual(len(lines) + sum(rest), 100_010)


class FlushTest(ServerTest):
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
            self.check(raised.exception, logs.output)
            run.flush(PATIENCE)

    def test_a_failure_is_named_by_the_flush_that_raises_it(self) -> None:
        """Not lost to one that waited for appends before it, and comes to its end while the failure is being told."""
        entered, told, telling, go = (threading.Event() for _ in range(4))

        def on_outcome(outcome: rr.AppendOutcome) -> None:
            told.set()
            if outcome.error is not None:
                telling.set()
                with appender._changed:
                    appender._changed.notify_all()
                go.wait(PATIENCE)

        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            appender = run.appender(on_outcome=on_outcome)
            wait_for = appender._changed.wait_for

            def wait_late(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
                if threading.current_thread() is not flushing:
                    return wait_for(predicate, timeout)
                entered.set()
                return wait_for(lambda: telling.is_set() and predicate(), timeout)

            appender._changed.wait_for = wait_late  # type: ignore[method-assign]
            flushing = threading.Thread(target=appender.flush)
            appender.append("good", ROWS)
            flushing.start()
            self.assertTrue(entered.wait(PATIENCE) and told.wait(PATIENCE))
            appender.append("gap", ROWS, row_start=5)
            flushing.join(PATIENCE)
            go.set()
            with self.assertRaises(rr.FailedPreconditionError) as raised:
                appender.flush(PATIENCE)
            self.assertEqual(raised.exception.failed_samples, ["gap"])

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
        """They are asked for in parts, and come in the order asked."""
        rows = random_routes(np.random.default_rng(2), 20_000, 2, 16, 2)
        holes = [(i, i + 1) for i in range(0, 40_000, 2)]
        names = [*(f"fork{i}" for i in range(24)), "parent"]
        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            run.append("parent", rows, unrecorded=holes)
            for name in names[:-1]:
                run.append(name, prefix=rr.Prefix("parent", 40_000))
            run.flush(PATIENCE)
            with self.assertRaises(rr.ResourceExhaustedError) as raised:
                run._do(_calls.stat(self.run_name, names, "rollout"))
            self.assertEqual(raised.exception.reason, "LENGTH")
            self.assertEqual([state.sample for state in run.stat_many(names)], names)

        async def work() -> None:
            async with aio.Client(self.server.endpoint) as client:
                states = await (await client.run(self.run_name)).stat_many(names)
                self.assertEqual([state.sample for state in states], names)

        asyncio.run(work())


class AwayTest(unittest.TestCase):
    """The server is away until a read has said that it waits for it."""

    def setUp(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        self.gate = Gate(server)
        self.addCleanup(self.gate.shut)
        logger, gate = logging.getLogger(LOG), self.gate

        class OpensTheGate(logging.Handler):
            lines = 0

            def emit(self, record: logging.LogRecord) -> None:
                if "waits for its server" in record.getMessage():
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
    """What channel() and metadata() raise, an appender survives, or tells."""

    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)

    def broken(self, transport: object, name: str, error: Exception, times: int) -> None:
        real = getattr(transport, name)
        left = [times]

        def fail(*arguments: object) -> object:
            if left[0] > 0:
                left[0] -= 1
                raise error
            return real(*arguments)

        async def fail_in_loop(*arguments: object) -> object:
            return await fail(*arguments)  # type: ignore[misc]

        in_loop = asyncio.iscoroutinefunction(real)
        setattr(transport, name, fail_in_loop if in_loop else fail)

    TABLE = (
        (errors.InvalidArgumentError("token_file: cannot read"), None),
        (errors.DeadlineExceededError("no endpoint"), None),
        (errors.CancelledError("the client is closed"), errors.CancelledError),
        (errors.FailedPreconditionError("gRPC was in use before os.fork"), errors.FailedPreconditionError),
        (RuntimeError("anything"), errors.InternalError),
    )

    def test_an_appender(self) -> None:
        for method in ("channel", "metadata"):
            for error, told in self.TABLE:
                if method == "metadata" and told not in (None, errors.InternalError):
                    continue
                with self.subTest(method=method, error=error), rr.Client(self.server.endpoint) as client:
                    run = client.run("run", GEOMETRY)
                    self.broken(run._transport, method, error, 1)
                    appender = run.appender()
                    appender.append("s", ROWS)
                    if told is None:
                        appender.flush(PATIENCE)
                        continue
                    with self.assertRaises(told):
                        appender.flush(PATIENCE)
                    with self.assertRaises(told):
                        appender.append("s", ROWS)

    def test_an_appender_in_an_event_loop(self) -> None:
        async def work(method: str, error: Exception, told: type[Exception] | None) -> None:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run("run", GEOMETRY)
                appender = run.appender()
                if method == "channel":  # The first call is append's own.
                    await run._transport.channel()
                    real, calls = run._transport.channel, [0]

                    async def channel() -> grpc.aio.Channel:
                        calls[0] += 1
                        if calls[0] == 2:
                            raise error
                        return await real()

                    run._transport.channel = channel  # type: ignore[method-assign]
                else:
                    self.broken(run._transport, method, error, 1)
                await appender.append("s", ROWS)
                if told is None:
                    await appender.flush(PATIENCE)
                    return
                with self.assertRaises(told):
                    await appender.flush(PATIENCE)
                with self.assertRaises(told):
                    await appender.append("s", ROWS)

        for method in ("channel", "metadata"):
            for error, told in self.TABLE:
                if method == "metadata" and told not in (None, errors.InternalError):
                    continue
                with self.subTest(method=method, error=error):
                    asyncio.run(work(method, error, told))

    def test_a_token_file_that_is_away_for_a_moment(self) -> None:
        """The real cause, before the first stream."""
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
