"""A sample that grows turn by turn, for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from routing_replay import _values
from routing_replay._convert import taking
from routing_replay.aio._loop import done
from routing_replay.trajectory import AbortedTurn, Missing, NewTurn, TrajectoryCalls, Turn

if TYPE_CHECKING:
    from routing_replay.aio.appender import Appender


class Trajectory(TrajectoryCalls):
    """As routing_replay.Trajectory, in an event loop. Made by `aio.Run.trajectory`. Meanings and errors are alike.

    Turns are done one after the other. One that was cancelled may have been queued in part: the next one asks the
    server first.
    """

    _appender: Appender
    _kind = "aio.Trajectory"

    @taking(NewTurn)
    async def add(self, turn: NewTurn) -> Turn:
        """One answer of the engine; see routing_replay.Trajectory.add. Do not change `rows` before this returns."""
        return await done(self._adding(turn))

    @taking(AbortedTurn)
    async def abort(self, turn: AbortedTurn) -> Turn:
        """A turn that was aborted."""
        return await done(self._adding(turn))

    async def cut(self, num_tokens: int, *, seal: bool = False, missing: Missing = "raise") -> Turn:
        """Leaves the first `num_tokens` tokens and their rows."""
        _values.integer(num_tokens, "num_tokens", sample=self._sample)
        return await done(self._cutting(num_tokens, seal, missing))

    async def seal(self, num_tokens: int | None = None, *, missing: Missing = "raise") -> Turn:
        """No more turns will come."""
        return await done(self._cutting(num_tokens, True, missing))

    async def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """A new sample that begins as this one."""
        return Trajectory(self._appender, sample, await done(self._forking(sample, wait)))

    async def siblings(self, samples: Sequence[str], *, wait: float = 1.0) -> list[Trajectory]:
        """As `fork`, for each of `samples`."""
        return [await self.fork(sample, wait=wait) for sample in samples]
