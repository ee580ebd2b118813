"""A sample that grows turn by turn, for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from routing_replay import _turns, _values
from routing_replay._turns import Missing, Turn
from routing_replay.aio.appender import LARGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from routing_replay.aio.appender import Appender
    from routing_replay.aio.run import Run
    from routing_replay.recorded import RecordedRows
    from routing_replay.types import Rows


class Trajectory:
    """As routing_replay.Trajectory, for one event loop. Made by `aio.Run.trajectory`. Meanings and errors are alike."""

    def __init__(self, run: Run, writer: _turns.Writer, appender: Appender) -> None:
        self._run = run
        self._writer = writer
        self._appender = appender
        self._lock = asyncio.Lock()

    async def add(self, rows: Rows | RecordedRows | None = None, **options: Any) -> Turn:
        """One answer of the engine. Options as of routing_replay.Trajectory.add."""
        large = getattr(rows, "nbytes", 0) >= LARGE_BYTES
        with self._appender.counting_refusals():
            return await self._do(self._writer.add(rows, **options), large)

    async def abort(self, rows: Rows | RecordedRows | None = None, **options: Any) -> Turn:
        """A turn that was aborted."""
        return await self.add(rows, outcome="aborted", **options)

    async def cut(self, num_tokens: int, *, seal: bool = False, missing: Missing = "raise") -> Turn:
        """Leaves the first `num_tokens` tokens and their rows."""
        return await self._do(self._writer.cut(num_tokens, seal, missing))

    async def seal(self, num_tokens: int | None = None, *, missing: Missing = "raise") -> Turn:
        """No more turns will come."""
        return await self._do(self._writer.seal(num_tokens, missing))

    async def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """A new sample that begins as this one."""
        async with self._lock:
            wait = _values.seconds(wait, "wait")
            state = self._writer.state()
            if wait > 0 and state["rows"] != state["acknowledged_rows"]:
                await self._appender._settled(self._writer.last_sequence, wait)
            return Trajectory(self._run, self._writer.fork(sample), self._appender)

    async def siblings(self, samples: Sequence[str], *, wait: float = 1.0) -> list[Trajectory]:
        """As `fork`, for each of `samples`."""
        return [await self.fork(sample, wait=wait) for sample in samples]

    def next_row(self, tokens: ArrayLike) -> int:
        """The first row that a request with this context must give."""
        return self._writer.next_row(tokens)

    @property
    def sample(self) -> str:
        return self._writer.sample

    @property
    def num_tokens(self) -> int:
        return self._writer.state()["num_tokens"]

    @property
    def rows(self) -> int:
        return self._writer.state()["rows"]

    @property
    def acknowledged_rows(self) -> int:
        return self._writer.state()["acknowledged_rows"]

    @property
    def sealed(self) -> bool:
        return self._writer.state()["sealed"]

    def metrics(self) -> dict[str, int]:
        """See routing_replay.Trajectory.metrics."""
        return self._writer.state()["counters"]

    def __repr__(self) -> str:
        state = self._writer.state()
        return f"<aio.Trajectory {self.sample}: {state['num_tokens']} tokens, {state['rows']} rows>"

    async def _do(self, steps: _turns.Steps, large: bool = False) -> Turn:
        async with self._lock:
            step = await self._advance(large, steps)
            while not isinstance(step, Turn):
                try:
                    answer = await self._execute(step)
                except BaseException as error:
                    step = await self._advance(large, steps, error=error)
                else:
                    step = await self._advance(large, steps, answer)
            return step

    async def _advance(self, large: bool, steps: _turns.Steps, answer: Any = None, error: Any = None) -> Any:
        """Large arrays are encoded in a thread, so that the loop goes on."""
        advance = functools.partial(_turns.advance, steps, answer, error)
        return await asyncio.get_running_loop().run_in_executor(None, advance) if large else advance()

    async def _execute(self, step: Any) -> Any:
        if isinstance(step, _turns.Queue):
            return await self._appender._enqueue(step.plan, self.sample, self._writer.note)
        if isinstance(step, _turns.Settle):
            return await self._appender._settle(self._writer.last_sequence)
        if isinstance(step, _turns.Truncate):
            return await self._run.truncate(self.sample, step.rows, expected_revision=step.expected_revision)
        return await self._run.stat_many([self.sample])
