"""The client for asyncio: the same methods as in routing_replay, but awaited.

Example: 64 agents at once, which share one run, its append queue and its connection:

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
        done = await run.commit(name, len(context))           # Waits for this sample alone.
        print(name, done.status)

    async def main() -> None:
        async with Client("server:7400") as client:
            run = await client.run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
            await asyncio.gather(*(agent(run, f"step7/{i}") for i in range(64)))
            await run.flush()                                 # Raises the first error of a failed append.

Methods, parameters, meanings and errors are those of routing_replay. The library's own threads wait for the server, so
the event loop is never blocked. A call that is cancelled, or times out in asyncio.wait_for, ends soon afterwards and
only then raises; from then on the library does not touch the call's arguments. A `close` that is cancelled goes on in
the background, for at most 125 seconds. Calls of one client may be made in several event loops.

A client does not survive os.fork: in the child its calls raise FailedPreconditionError; make a new client there.

At most 1,024 calls of a process run at a time. A further call begins when one of them has ended; until then it can
neither time out nor be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from routing_replay import _calls, _values, appender, client, run, trajectory
from routing_replay._calls import Operation
from routing_replay.appender import Line
from routing_replay.errors import RoutingReplayError
from routing_replay.run import Link
from routing_replay.types import Append

__all__ = ["Appender", "Client", "Run", "Trajectory"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


# Native calls in an event loop. Their completions arrive in one queue, whose file descriptor the loop watches.


class _Loop:
    """The native calls that coroutines of one event loop await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _calls.Queue()
        self._tag = 0
        # Operations are kept until their completion arrives, because the library writes to their memory.
        self._under_way: dict[int, tuple[Operation[Any], asyncio.Future[int | None]]] = {}
        reference = weakref.ref(self)

        def take() -> None:
            if (self := reference()) is not None:
                self._take()

        loop.add_reader(self._queue.descriptor, take)

    async def wait(self, operation: Operation[T]) -> T:
        self._tag += 1
        tag, make_future = self._tag, asyncio.get_running_loop().create_future
        ended = make_future()
        self._under_way[tag] = operation, ended
        try:
            operation.start(self._queue.pointer, tag)
        except RoutingReplayError:  # The call has not begun, so it will have no completion.
            del self._under_way[tag]
            raise
        try:
            error = await ended
        except asyncio.CancelledError:
            self._queue.cancel(tag)
            while ended.cancelled() and tag in self._under_way:
                ended = make_future()
                self._under_way[tag] = operation, ended
                # The task may be cancelled again here. The caller gets only the first CancelledError, raised below.
                with contextlib.suppress(asyncio.CancelledError):
                    await ended
            if not ended.cancelled():
                operation.drop(ended.result())
            raise
        return operation.end(error)

    def _take(self) -> None:
        while count := self._queue.take():
            for one in self._queue.ended[:count]:
                operation, ended = self._under_way.pop(one.tag)
                if ended.cancelled():
                    operation.drop(one.error)
                else:
                    ended.set_result(one.error)

    def __del__(self) -> None:
        self._queue.close()  # Cancels the running calls and waits for them.
        for operation, _ in self._under_way.values():
            operation.drop(None)


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


async def done(operation: Operation[T]) -> T:
    """Awaits the operation and returns its result. When this returns or raises, even if it was cancelled, the library
    no longer uses the operation's memory."""
    running = asyncio.get_running_loop()
    loop = _loops.get(running)
    if loop is None:
        loop = _loops[running] = _Loop(running)
    return await loop.wait(operation)


# Clients, runs, appenders and trajectories: coroutine forms of the blocking methods.


@overload
def awaited(
    method: Callable[Concatenate[Any, P], T], *, build: Any = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
@overload
def awaited(
    method: Callable[Concatenate[Any, P], Any], made: Callable[..., T]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
def awaited(method: Any, made: Any = None, build: Any = None) -> Any:
    """Makes a coroutine function from a blocking method, with the same parameters and documentation. `build`
    makes the operation; by default it is that of the blocking method. Only type checkers use `made`, the class of the
    result if that is an asyncio form (aio.Run for Run)."""
    build = method.build if build is None else build

    @functools.wraps(method)
    async def call(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        return await done(build(self, *arguments, **keywords))

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return call


async def _close(link: Link, lines: list[Line], timeout: float, drop: bool = False) -> None:
    """Does the same as Link.close, without blocking the event loop."""
    seconds = _values.seconds(timeout)
    with link.closing(lines, drop):
        for line in lines:
            try:
                await done(line.closing(seconds))
            except RoutingReplayError as error:
                line.report(error)


class _Closing:
    """An object that is closed at the end of an `async with`."""

    async def close(self, timeout: float = 60.0) -> None:
        raise NotImplementedError

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class Trajectory(trajectory.TrajectoryCalls):
    """routing_replay.Trajectory for an event loop. Made by `Run.trajectory`. Concurrent turns are added one by one."""

    add = awaited(trajectory.Trajectory.add)
    seal = awaited(trajectory.Trajectory.seal)

    async def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """See routing_replay.Trajectory.fork."""
        return await done(trajectory.Trajectory.fork.build(self, sample, wait=wait))  # type: ignore[attr-defined]


def _queueing(appender: Appender, *arguments: Any, **options: Any) -> Operation[int]:
    return appender._queueing([Append(*arguments, **options)], itemgetter(0))


class Appender(appender.AppenderCalls, _Closing):
    """routing_replay.Appender for an event loop: `append` waits only while the queue is full. Made by `Run.appender`.
    on_outcome is called in another thread than the event loop's."""

    append = awaited(appender.Appender.append, build=_queueing)
    append_many = awaited(appender.Appender.append_many)
    flush = awaited(appender.Appender.flush)

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons the remaining appends and logs this. Idempotent."""
        await _close(self._link, [self.line], timeout)


class Run(run.RunCalls[Appender, Trajectory], _Closing):
    """routing_replay.Run for an event loop, made by `aio.Client.run`."""

    _appender_type = Appender
    _trajectory_type = Trajectory

    append = awaited(
        run.Run.append,
        build=lambda self, *arguments, **options: _queueing(self._default_appender(), *arguments, **options),
    )
    append_many = awaited(run.Run.append_many)
    flush = awaited(run.Run.flush)
    commit = awaited(run.Run.commit)
    put = awaited(run.Run.put)
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
        """Flushes the run's appenders for at most `timeout` seconds each and closes them. The server keeps the run."""
        await _close(self.link, self._lines_to_close(), timeout)


class Client(client.ClientCalls, _Closing):
    """routing_replay.Client for event loops, with the same parameters."""

    _in_loop = True
    _run_type = Run

    run = awaited(client.Client.run, Run)
    restore = awaited(client.Client.restore)
    server_info = awaited(client.Client.server_info)

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders for at most `timeout` seconds each, then closes the connection."""
        await _close(self._link, list(self._link.lines), timeout, drop=True)
