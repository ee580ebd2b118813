"""A sample that grows turn by turn, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from routing_replay import _append, _turns, _values
from routing_replay._turns import Missing, Turn
from routing_replay.aio import threads

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from routing_replay.aio.appender import Appender
    from routing_replay.aio.run import Run
    from routing_replay.recorded import RecordedRows
    from routing_replay.types import Rows


class Trajectory:
    """As routing_replay.Trajectory, for one event loop. Made by `aio.Run.trajectory`. Meanings and errors are alike.

    Large rows are encoded in a thread. Until then the properties and `metrics` tell of the time before the turn, and a
    cancellation waits. A turn that was cancelled may have been queued in part: the next one asks the server first.
    """

    def __init__(self, run: Run, writer: _turns.Writer, appender: Appender) -> None:
        self._run = run
        self._writer = writer
        self._appender = appender
        self._lock = asyncio.Lock()  # One turn after the other.
        self._inside = threading.Lock()  # Held by whoever is in the writer: the loop, or the thread of a turn.
        self._known = writer.state()  # When nobody was in it last.

    async def add(self, rows: Rows | RecordedRows | None = None, **options: Any) -> Turn:
        """One answer of the engine. Options as of routing_replay.Trajectory.add.

        Do not change `rows` before this returns.
        """
        large = _append.size_of(rows) >= threads.LARGE_BYTES
        with self._appender.counting_refusals():
            return await self._do(functools.partial(self._writer.add, rows, **options), large)

    async def abort(self, rows: Rows | RecordedRows | None = None, **options: Any) -> Turn:
        """A turn that was aborted."""
        return await self.add(rows, outcome="aborted", **options)

    async def cut(self, num_tokens: int, *, seal: bool = False, missing: Missing = "raise") -> Turn:
        """Leaves the first `num_tokens` tokens and their rows."""
        return await self._do(functools.partial(self._writer.cut, num_tokens, seal, missing))

    async def seal(self, num_tokens: int | None = None, *, missing: Missing = "raise") -> Turn:
        """No more turns will come."""
        return await self._do(functools.partial(self._writer.seal, num_tokens, missing))

    async def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """A new sample that begins as this one."""
        async with self._lock:
            wait = _values.seconds(wait, "wait")
            state = self._state()
            if wait > 0 and state["rows"] != state["acknowledged_rows"]:
                await self._appender._settled(self._writer.last_sequence, wait)
            with self._inside:
                return Trajectory(self._run, self._writer.fork(sample), self._appender)

    async def siblings(self, samples: Sequence[str], *, wait: float = 1.0) -> list[Trajectory]:
        """As `fork`, for each of `samples`."""
        return [await self.fork(sample, wait=wait) for sample in samples]

    def next_row(self, tokens: ArrayLike) -> int:
        """The first row that a request with this context must give. Waits for a turn that is being encoded."""
        self._writer.check()
        with self._inside:
            return self._writer.next_row(tokens)

    @property
    def sample(self) -> str:
        return self._writer.sample

    @property
    def num_tokens(self) -> int:
        return self._state()["num_tokens"]

    @property
    def rows(self) -> int:
        return self._state()["rows"]

    @property
    def acknowledged_rows(self) -> int:
        return self._state()["acknowledged_rows"]

    @property
    def sealed(self) -> bool:
        return self._state()["sealed"]

    def metrics(self) -> dict[str, int]:
        """See routing_replay.Trajectory.metrics."""
        return self._state()["counters"]

    def __repr__(self) -> str:
        state = self._state()
        return f"<aio.Trajectory {self.sample}: {state['num_tokens']} tokens, {state['rows']} rows>"

    def _state(self) -> dict[str, Any]:
        if self._inside.acquire(blocking=False):
            try:
                self._known = self._writer.state()
            finally:
                self._inside.release()
        return self._known

    async def _do(self, make: Callable[[], _turns.Steps], large: bool = False) -> Turn:
        self._writer.check()
        async with self._lock:
            steps = await threads.finish(large, make)
            try:
                step = await self._advance(large, steps)
                while not isinstance(step, Turn):
                    # That an append was queued is noted at once: a cancellation must not come between.
                    elsewhere = large and not isinstance(step, _turns.Queue)
                    try:
                        answer = await self._execute(step)
                    except Exception as error:
                        step = await self._advance(elsewhere, steps, error=error)
                    else:
                        step = await self._advance(elsewhere, steps, answer)
                return step
            finally:  # What was cancelled ends here.
                with self._inside:
                    steps.close()

    async def _advance(self, large: bool, steps: _turns.Steps, answer: Any = None, error: Any = None) -> Any:
        def advance() -> Any:
            with self._inside:
                return _turns.advance(steps, answer, error)

        self._state()
        return await threads.finish(large, advance)

    async def _execute(self, step: Any) -> Any:
        if isinstance(step, _turns.Queue):
            return await self._appender._enqueue(step.plan, self.sample, self._writer.note)
        if isinstance(step, _turns.Settle):
            return await self._appender._settle(self._writer.last_sequence)
        if isinstance(step, _turns.Truncate):
            return await self._run.truncate(self.sample, step.rows, expected_revision=step.expected_revision)
        return await self._run.stat_many([self.sample])
