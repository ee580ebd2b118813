"""The Python layer over the library: results in the caller's memory, several appends at once, lifetimes of objects."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import typing
import unittest
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support import Gate, ServerTest, random_routes

import routing_replay as rr
from routing_replay import _calls, aio

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
PATIENCE = 60.0

DROPPED = """
import gc, os, sys, time, numpy as np, routing_replay as rr

def sockets():
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))

def work():
    run = rr.Client(sys.argv[1]).run("dropped", rr.Geometry(3, 64, 4))
    run.append("s", np.random.rand(99, 3, 64).argsort(axis=2)[:, :, :4], seal=True)
    run.stat_many(["s"])

work()
gc.collect()
end = time.monotonic() + 60
while (sockets() or len(os.listdir("/proc/self/task")) > 2) and time.monotonic() < end:
    time.sleep(0.05)
print(sockets(), len(os.listdir("/proc/self/task")))
"""


def interrupted(call: Callable[[], object], count: int) -> bool:
    """Makes `call`, and raises KeyboardInterrupt before the count-th bytecode that the call executes in _calls.py.
    Returns false if the call executed fewer bytecodes there, so that nothing was raised."""

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != _calls.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count -= 1
            if count == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def fork(children: list[int]) -> None:
    if pid := os.fork():
        children.append(pid)


class NativeTest(ServerTest):
    def setUp(self) -> None:
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run(self.run_name, GEOMETRY)

    def test_a_client_that_is_dropped_goes_once_its_appends_are_sent(self) -> None:
        command = [sys.executable, "-c", DROPPED, self.server.endpoint]
        done = subprocess.run(command, check=True, timeout=100, capture_output=True, text=True)
        # No sockets. Two threads: the main thread and the one that writes the log.
        self.assertEqual(done.stdout.split(), ["0", "2"])
        self.assertTrue(self.client.run("dropped").stat("s").sealed)

    def test_several_appends_at_once(self) -> None:
        run = self.run_
        appends = [rr.Append(f"s{i}", ROWS[: 10 + i], group=i, seal=True) for i in range(50)]
        self.assertEqual(run.append_many(appends), list(range(1, 51)))
        run.flush(PATIENCE)
        for i, sample in enumerate(run.read([f"s{i}" for i in range(50)])):
            np.testing.assert_array_equal(sample.rows, ROWS[: 10 + i])
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            run.append_many([rr.Append("a", ROWS), rr.Append("b", np.full((2, 3, 4), 64)), rr.Append("c", ROWS)])
        self.assertEqual(caught.exception.sample, "b")
        run.flush(PATIENCE)
        self.assertEqual([state.sample for state in run.stat_many(["a", "b", "c"])], ["a"])
        self.assertEqual(run.append_many([]), [])

    def test_every_signature_is_its_own(self) -> None:
        for module in (rr, aio):
            for kind, names in (
                (module.Run, ("append", "put", "read", "commit", "checkpoint")),
                (module.Appender, ("append", "append_many")),
                (module.Client, ("run", "__init__")),
                (module.Trajectory, ("add",)),
            ):
                for name in names:
                    method = getattr(kind, name)
                    parameters = inspect.signature(method).parameters.values()
                    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
                    self.assertFalse([one for one in parameters if one.kind in variadic], method)
                    self.assertTrue(method.__doc__, method)
        public = [rr.Client, rr.Run, rr.Appender, rr.Trajectory, aio.Client, aio.Run, aio.Appender, aio.Trajectory]
        for kind in public:
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_"):
                    self.assertNotIn("Operation", str(typing.get_type_hints(method)), name)

    def test_the_functions_of_the_library_are_few_and_all_called(self) -> None:
        root = Path(__file__).parents[3]
        headers = [root / "client/include/routing_replay/c_api.h"]
        headers.append(root / "trainer_plugin/include/routing_replay/trainer/capi.h")
        functions = [name for one in headers for name in re.findall(r"^RRT?_API [^(]*?(\w+)\(", one.read_text(), re.M)]
        self.assertLessEqual(len(functions), 100)
        self.assertIn("rrt_fetch_read", functions)
        folders = root / "client/python/src", root / "trainer_plugin/python/src"
        called = "".join(one.read_text() for folder in folders for one in folder.rglob("*.py"))
        # Functions on tensors are called as launch("NAME", …): launch() in ops.py adds the prefix "rrt_".
        by_kind = ["rrt_" + name for name in re.findall(r'launch\(\s*"(\w+)"', called)]
        names = set(re.findall(r"(?:lib|library|LIBRARY)\.(rrt?_\w+)", called)) | set(by_kind)
        self.assertEqual(set(functions) - names, set())

    def test_a_signal_ends_a_wait_of_the_main_thread(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            self.run_.read_one("never", wait=True, timeout=PATIENCE)
        self.assertLess(time.monotonic() - began, PATIENCE / 2)
        self.assertEqual(self.run_.read_one("never").status, "NOT_FOUND")

    def test_a_signal_ends_the_wait_for_room(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        gate = Gate(self.server)
        self.addCleanup(gate.shut)
        with rr.Client(gate.endpoint) as client:
            run = client.run(self.run_name)
            run.append("s", ROWS)
            run.flush(PATIENCE)
            gate.shut()
            appender = run.appender(max_queued_bytes=1000)
            appender.append("s", ROWS, row_start=300)
            for wait in (
                lambda: appender.append("s", ROWS, row_start=600),
                lambda: appender.append_many([rr.Append("s", ROWS, row_start=600)]),
            ):
                began = time.monotonic()
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                with self.assertRaises(KeyboardInterrupt):
                    wait()
                self.assertLess(time.monotonic() - began, PATIENCE / 2)
            gate.open()
            appender.flush(PATIENCE)
            self.assertEqual(run.stat("s").committed_rows, 600)

    def test_a_call_interrupted_anywhere_leaves_nothing_behind(self) -> None:
        run = self.run_
        run.put("a", ROWS, seal=True)

        def interrupt_at(count: int, sample: str) -> bool:
            if not interrupted(lambda: run.read_one(sample, wait=True), count):
                return False
            np.testing.assert_array_equal(run.read_one("a").rows, ROWS)
            self.assertEqual(run.stat("a").committed_rows, 300)
            return True

        # Nobody appends to "never", so reading it waits: from about its 250th bytecode on, the call is in its waiting
        # loop. The counts below interrupt it before the loop and inside it.
        with unittest.mock.patch.object(_calls, "_HANDLER_MS", 1):
            self.assertTrue(all(interrupt_at(count, "never") for count in range(150, 400, 5)))
        self.assertGreater(next(count for count in itertools.count(1, 4) if not interrupt_at(count, "a")), 100)

    def test_a_fork_in_a_signal_handler_ends_the_call_of_the_child(self) -> None:
        children = []
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, lambda *_: fork(children)))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        parent = os.getpid()
        status = 1
        try:
            self.assertEqual(self.run_.read_one("never", wait=True, timeout=1).status, "NOT_FOUND")
        except rr.FailedPreconditionError:
            status = 0
        finally:
            if os.getpid() != parent:
                os._exit(status)
        for _ in range(200):
            done, status = os.waitpid(children[0], os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(children[0], signal.SIGKILL)
            os.waitpid(children[0], 0)
            self.fail("the child hangs")
        self.assertEqual(status, 0)

    def test_64_agents(self) -> None:
        """Runs 64 agents in one event loop, in the way that the docstring of routing_replay.aio shows."""
        tokens = np.arange(301)

        async def agent(run: aio.Run, name: str) -> rr.Commit:
            trajectory = run.trajectory(name, group=7)
            for end in (100, 200, 300):
                start = trajectory.next_row(tokens[: end + 1])
                await trajectory.add(ROWS[start:end], tokens=tokens[: end + 1], start=start, weight_version=17)
            await trajectory.seal()
            return await run.commit(name, 301)

        async def work() -> None:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run(self.run_name)
                commits = await asyncio.gather(*(agent(run, f"agent/{i}") for i in range(64)))
                self.assertTrue(all(commit.ok for commit in commits), commits)
                for sample in await run.read([f"agent/{i}" for i in range(64)]):
                    np.testing.assert_array_equal(sample.rows, ROWS)

        asyncio.run(work())

    def test_loops_that_come_and_go(self) -> None:
        async def work() -> int:
            async with aio.Client(self.server.endpoint) as client:
                return len(await (await client.run(self.run_name)).read(["a"]))

        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            self.assertEqual(asyncio.run(work()), 1)
        gc.collect()
        self.assertLess(len(os.listdir("/proc/self/fd")), before + 10)


if __name__ == "__main__":
    unittest.main()
