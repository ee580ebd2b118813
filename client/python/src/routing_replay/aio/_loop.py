"""Native calls in an event loop: their ends come out of one queue, whose descriptor the loop watches."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any, TypeVar

from routing_replay import _calls, _native
from routing_replay._calls import Operation

T = TypeVar("T")


class _UnderWay:
    """An operation, who waits for what it gives, and who waits for its end alone."""

    __slots__ = ("ended", "future", "operation")

    def __init__(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        self.operation = operation
        self.future = future
        self.ended: asyncio.Future[None] | None = None

    def end(self, error: int | None) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        wanted = not self.future.done()
        if error is not None:
            raised = _native.take_error(error)
            if wanted:
                self.future.set_exception(raised)
        elif not wanted:
            self.discard()
        else:
            try:
                self.future.set_result(self.operation.result())
            except BaseException as error:
                self.future.set_exception(error)

    def discard(self) -> None:
        if self.operation.discard is not None:
            self.operation.discard()


class _Loop:
    """The operations of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _calls.Queue()
        self._tag = 0
        self._under_way: dict[int, _UnderWay] = {}  # Until their end has come: the library writes to their memory.
        here = weakref.ref(self)

        def take() -> None:
            if (self := here()) is not None:
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
    """What the operation gives. Its memory is not used any more when this returns or raises, cancelled or not."""
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
