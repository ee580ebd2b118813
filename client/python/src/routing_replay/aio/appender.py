"""Rows in, in the background, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from routing_replay import _values
from routing_replay._convert import taking
from routing_replay.aio._loop import done
from routing_replay.appender import AppenderCalls, Line, Watch, outcomes_of
from routing_replay.errors import DeadlineExceededError, RoutingReplayError
from routing_replay.types import Append, AppendOutcome, OnFull

if TYPE_CHECKING:
    from routing_replay.run import RunCalls


async def close_line(line: Line, seconds: float) -> None:
    """As Line.close."""
    line.forget()
    try:
        await done(line.closing(seconds))
    except RoutingReplayError as error:
        line.tell(error)


class _Watch(Watch):
    """One event loop's."""

    def start_afresh(self) -> None:
        super().start_afresh()
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_here(self, predicate: Callable[[], bool], deadline: float) -> bool:
        while not predicate():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await asyncio.wait((waiting,), timeout=max(0.0, deadline - time.monotonic()))
            finally:
                self._waiting.discard(waiting)
            if not waiting.done():
                return predicate()
        return True


class Appender(AppenderCalls):
    """As routing_replay.Appender, in an event loop. Made by `Run.appender`. on_outcome is called in the loop."""

    _watch: _Watch | None

    def __init__(
        self,
        run: RunCalls,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        encode_blocks: bool = True,
        on_outcome: Callable[[AppendOutcome], None] | None = None,
    ) -> None:
        """See routing_replay.Run.appender."""
        watch = None if on_outcome is None else _Watch(on_outcome, run.name)
        super().__init__(run, max_queued_bytes, on_full, queue_timeout, append_timeout, encode_blocks, watch)
        if watch is not None:
            name = "routing-replay-outcomes"
            self._teller = asyncio.get_running_loop().create_task(_tell(self.line, watch), name=name)

    @taking(Append)
    async def append(self, append: Append) -> int:
        """Queues one append and returns its sequence number; see routing_replay.Appender.append.

        Waits for room in the queue. Large rows are encoded in a thread; do not change them before this returns. One
        that is cancelled may have been queued.
        """
        return (await self.append_many([append]))[0]

    async def append_many(self, appends: Iterable[Append]) -> list[int]:
        """Queues several appends, in this order; see routing_replay.Appender.append_many."""
        given = _values.items(appends, "appends", "Append")
        with self.counting_refusals():
            queueing, sequences = self._queueing(given)
        with self._expecting(given, sequences):
            return await done(queueing)

    async def flush(self, timeout: float = 120.0) -> None:
        """Waits until every append so far has its outcome; see routing_replay.Appender.flush."""
        seconds = _values.seconds(timeout)
        deadline = time.monotonic() + seconds
        try:
            await done(self._flushing(seconds))
        finally:
            await self._wait_for_told(deadline)

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        seconds = _values.seconds(timeout)
        deadline = time.monotonic() + seconds
        self._link.lines.discard(self.line)
        await close_line(self.line, seconds)
        await self._wait_for_told(deadline)

    async def _wait_for_told(self, deadline: float) -> None:
        if self._watch is not None and asyncio.current_task() is not self._teller:
            await self._watch.wait_here(self._watch.told_of_all(self.metrics()), deadline)

    async def _wait_for_sample(self, sample: str, deadline: float) -> None:
        watch = self._watch
        if watch is not None and not await watch.wait_here(watch.told_of(sample), deadline):
            raise DeadlineExceededError("outcomes of the sample are not told yet", sample=sample)

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


async def _tell(line: Line, watch: Watch) -> None:
    with contextlib.suppress(RoutingReplayError):
        while found := await done(outcomes_of(line)):
            watch.tell(found)


async def wait_for_sample(appenders: Sequence[Appender], sample: str, deadline: float) -> None:
    for appender in appenders:
        await appender._wait_for_sample(sample, deadline)
