"""Rows in, in the background, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from routing_replay import _values
from routing_replay._convert import taking
from routing_replay.aio._loop import done
from routing_replay.appender import AppenderCalls, Line, Outcomes, outcomes_of
from routing_replay.errors import RoutingReplayError
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


class Appender(AppenderCalls):
    """As routing_replay.Appender, in an event loop. Made by `Run.appender`. on_outcome is called in the loop."""

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
        outcomes = None if on_outcome is None else Outcomes(on_outcome, run.name)
        super().__init__(run, max_queued_bytes, on_full, queue_timeout, append_timeout, encode_blocks, outcomes)
        if outcomes is not None:
            name = "routing-replay-outcomes"
            self._telling = asyncio.get_running_loop().create_task(_tell(self.line, outcomes), name=name)

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
            queueing, _ = self._queueing(given)
        return await done(queueing)

    async def flush(self, timeout: float = 120.0) -> None:
        """Waits until every append so far has its outcome; see routing_replay.Appender.flush."""
        await done(self._flushing(timeout))

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        seconds = _values.seconds(timeout)
        self._link.lines.discard(self.line)
        await close_line(self.line, seconds)

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


async def _tell(line: Line, outcomes: Outcomes) -> None:
    with contextlib.suppress(RoutingReplayError):
        while found := await done(outcomes_of(line)):
            outcomes.tell(found)
