"""The client for asyncio: as routing_replay, with calls that are awaited.

64 agents at once, which share one run, its queue and its connection:

    import asyncio

    from routing_replay import Geometry
    from routing_replay.aio import Client, Run

    async def agent(run: Run, name: str) -> None:
        trajectory = run.trajectory(name, group=7)
        context = await first_context(name)
        for _ in range(3):
            answer = await ask_engine(context, start=trajectory.next_row(context))
            context = answer.context
            await trajectory.add(answer.rows, tokens=context, start=answer.start, weight_version=17)
        await trajectory.seal()
        done = await run.commit(name, len(context))           # Of this sample alone.
        print(name, done.status)

    async def main() -> None:
        async with Client("server:7400") as client:
            run = await client.run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
            await asyncio.gather(*(agent(run, f"step7/{i}") for i in range(64)))
            await run.flush()                                 # Raises what was rejected.

Methods, parameters, meanings and errors are those of routing_replay. Waiting happens in threads of the library, not in
the loop's executor; the loop goes on. A call that is cancelled, or times out in asyncio.wait_for, raises when it has
ended, which is soon: nothing touches its arguments any more. Calls of one client may be made in several event loops; an
appender with on_outcome belongs to one.

A client does not survive os.fork: in the child its calls raise FailedPreconditionError, where a new one can be made.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from routing_replay import _calls, _values, appender, client, run, trajectory
from routing_replay._calls import Done, Operation
from routing_replay.appender import Line, OnOutcome
from routing_replay.errors import RoutingReplayError

__all__ = ["Appender", "Client", "Run", "Trajectory"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


# Native calls in an event loop: their ends come out of one queue, whose descriptor the loop watches.


class _UnderWay:
    """An operation, the future of its result, and that of its end for a caller who has cancelled it."""

    __slots__ = ("ended", "future", "operation")

    def __init__(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        self.operation = operation
        self.future = future
        self.ended: asyncio.Future[None] | None = None

    def end(self, error: int | None) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        if self.future.done() and error is None:
            self.discard()
            return
        try:
            result = self.operation.end(error)
        except BaseException as failure:
            if not self.future.done():
                self.future.set_exception(failure)
        else:
            self.future.set_result(result)

    def discard(self) -> None:
        if self.operation.discard is not None:
            self.operation.discard()


class _Loop:
    """The operations of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _calls.Queue()
        self._tag = 0
        self._under_way: dict[int, _UnderWay] = {}  # Until their end has come: the library writes to their memory.
        reference = weakref.ref(self)

        def take() -> None:
            if (self := reference()) is not None:
                self._take()

        loop.add_reader(self._queue.descriptor, take)

    def start(self, operation: Operation[T], future: asyncio.Future[T]) -> int:
        self._tag += 1
        operation.start(self._queue.pointer, self._tag)
        self._under_way[self._tag] = _UnderWay(operation, future)
        return self._tag

    async def cancel(self, tag: int) -> None:
        """Returns when the operation has ended."""
        found = self._under_way.get(tag)
        if found is None:
            return
        found.ended = asyncio.get_running_loop().create_future()
        self._queue.cancel(tag)
        while not found.ended.done():
            with contextlib.suppress(asyncio.CancelledError):  # The first one is on its way to the caller.
                await asyncio.wait((found.ended,))

    def _take(self) -> None:
        while ended := self._queue.take():
            for tag, error in ended:
                self._under_way.pop(tag).end(error)

    def __del__(self) -> None:
        self._queue.close()  # Waits: what is under way is cancelled.
        for left in self._under_way.values():
            left.discard()


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


async def done(operation: Operation[T]) -> T:
    """The result of the operation. Its memory is not used any more when this returns or raises, cancelled or not."""
    if isinstance(operation, Done):
        return operation.wait()
    running = asyncio.get_running_loop()
    loop = _loops.get(running)
    if loop is None:
        loop = _loops[running] = _Loop(running)
    future: asyncio.Future[T] = running.create_future()
    tag = loop.start(operation, future)
    try:
        return await future
    except asyncio.CancelledError:
        await loop.cancel(tag)
        raise


# Clients, runs, appenders and trajectories: the methods of the blocking ones, awaited.


@overload
def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
@overload
def awaited(
    method: Callable[Concatenate[Any, P], Any], made: Callable[..., T]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
def awaited(method: Any, made: Any = None) -> Any:
    """A blocking method as a coroutine function, with the same parameters, documentation and operation; `made`: the
    class of its result, where that has a form for asyncio."""

    @functools.wraps(method)
    async def call(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        return await done(method.build(self, *arguments, **keywords))

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return call


async def _close(line: Line, timeout: float) -> None:
    """As Line.close."""
    try:
        await done(line.closing(timeout))
    except RoutingReplayError as error:
        line.report(error)


class _Closing:
    """Closed at the end of an `async with`."""

    async def close(self, timeout: float = 60.0) -> None:
        raise NotImplementedError

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class Trajectory(trajectory.TrajectoryCalls):
    """As routing_replay.Trajectory, in an event loop. Made by `Run.trajectory`. Turns are done one after the other."""

    _kind = "aio.Trajectory"

    add = awaited(trajectory.Trajectory.add)
    abort = awaited(trajectory.Trajectory.abort)
    cut = awaited(trajectory.Trajectory.cut)
    seal = awaited(trajectory.Trajectory.seal)

    async def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """See routing_replay.Trajectory.fork."""
        return await done(trajectory.Trajectory.fork.build(self, sample, wait=wait))  # type: ignore[attr-defined]


class Appender(appender.AppenderCalls, _Closing):
    """As routing_replay.Appender, in an event loop: `append` waits only for room in the queue. Made by `Run.appender`.
    on_outcome is called in the loop."""

    append = awaited(appender.Appender.append)
    append_many = awaited(appender.Appender.append_many)
    flush = awaited(appender.Appender.flush)

    def _start_reporting(self) -> None:
        assert self._on_outcome is not None
        reporting = _report(self.line, self._on_outcome)
        self._reporting = asyncio.get_running_loop().create_task(reporting, name="routing-replay-outcomes")

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        seconds = _values.seconds(timeout)
        self._link.lines.discard(self.line)
        await _close(self.line, seconds)


async def _report(line: Line, on_outcome: OnOutcome) -> None:
    with contextlib.suppress(RoutingReplayError):
        while found := await done(line.outcomes()):
            line.call(on_outcome, found)


class Run(run.RunCalls[Appender, Trajectory], _Closing):
    """As routing_replay.Run, made by `aio.Client.run`."""

    _appender_type = Appender
    _trajectory_type = Trajectory

    append = awaited(run.Run.append)
    append_many = awaited(run.Run.append_many)
    flush = awaited(run.Run.flush)
    commit = awaited(run.Run.commit)
    put = awaited(run.Run.put)
    seal = awaited(run.Run.seal)
    truncate = awaited(run.Run.truncate)
    read = awaited(run.Run.read)
    read_one = awaited(run.Run.read_one)
    stat = awaited(run.Run.stat)
    stat_many = awaited(run.Run.stat_many)
    list = awaited(run.Run.list)
    release = awaited(run.Run.release)
    release_groups = awaited(run.Run.release_groups)
    checkpoint = awaited(run.Run.checkpoint)
    drop = awaited(run.Run.drop)

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes and ends the run's appenders; the run itself stays on the server."""
        seconds = _values.seconds(timeout)
        self._kept_appender = None
        for line in [] if self._native is None else self.link.lines_of(self._native):
            await _close(line, seconds)
            self.link.lines.discard(line)


class Client(client.ClientCalls, _Closing):
    """As routing_replay.Client, with the same parameters, for event loops."""

    _in_loop = True
    _run_type = Run

    run = awaited(client.Client.run, Run)
    restore = awaited(client.Client.restore)
    runs = awaited(client.Client.runs)
    server_info = awaited(client.Client.server_info)

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders for at most `timeout` seconds each, then closes the connection."""
        seconds = _values.seconds(timeout)
        for line in self._link.lines_of(None):
            await _close(line, seconds)
            self._link.lines.discard(line)
        self._link.drop()
