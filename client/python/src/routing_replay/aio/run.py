"""One run of a server, for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from routing_replay import _counters, _native, _values
from routing_replay._convert import taking
from routing_replay._link import Link, OnProgress, Path, Progressing
from routing_replay._native import Operation, lib
from routing_replay.aio._loop import done
from routing_replay.aio.appender import Appender, close_line
from routing_replay.aio.trajectory import Trajectory
from routing_replay.run import RunCalls
from routing_replay.trajectory import Existing, TrajectoryCalls
from routing_replay.types import (
    Append,
    AppendOutcome,
    CheckpointOutcome,
    Commit,
    OnFull,
    Producer,
    ReleaseOutcome,
    SampleLike,
    SampleRows,
    SampleState,
    SampleStates,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Run(RunCalls):
    """As routing_replay.Run, made by `aio.Client.run`. Meanings and errors are the same."""

    def __init__(self, link: Link, native: _native.Handle) -> None:
        super().__init__(link, native)
        self._appender: Appender | None = None
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()

    def appender(
        self,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        encode_blocks: bool = True,
        on_outcome: Callable[[AppendOutcome], None] | None = None,
    ) -> Appender:
        """See routing_replay.Run.appender; on_outcome is called in the event loop. Without on_full it is
        "block": what waits is the coroutine."""
        made = Appender(
            self,
            max_queued_bytes=max_queued_bytes,
            on_full=on_full,
            queue_timeout=queue_timeout,
            append_timeout=append_timeout,
            encode_blocks=encode_blocks,
            on_outcome=on_outcome,
        )
        self._appenders.add(made)
        return made

    @taking(Append)
    async def append(self, append: Append) -> int:
        """Queues an append; waits only for room in the queue: see `Appender.append`."""
        return (await self._default_appender().append_many([append]))[0]

    async def append_many(self, appends: Iterable[Append]) -> list[int]:
        """Several appends, in this order: see `Appender.append_many`."""
        return await self._default_appender().append_many(appends)

    async def flush(self, timeout: float = 120.0) -> None:
        """Waits for the outcomes of what `append` queued."""
        if self._appender is not None:
            await self._appender.flush(timeout)

    async def commit(
        self,
        sample: str,
        num_tokens: int | None = None,
        *,
        tokens: ArrayLike | None = None,
        attempt: int | None = None,
        timeout: float = 120.0,
    ) -> Commit:
        """See routing_replay.Run.commit."""
        return await done(self._committing(sample, num_tokens, tokens, attempt, timeout))

    def metrics(self) -> dict[str, int]:
        """See routing_replay.Run.metrics."""
        return {**self._default_appender().metrics(), **_counters.metrics()}

    def trajectory(
        self,
        sample: str,
        *,
        group: int | None = None,
        engine: str = "",
        existing: Existing = "none",
        appender: Appender | None = None,
    ) -> Trajectory:
        """A sample that grows turn by turn; see routing_replay.Run.trajectory."""
        through = self._default_appender() if appender is None else appender
        return Trajectory(through, sample, TrajectoryCalls.new(through, sample, group, engine, existing))

    @taking(Append)
    async def put(self, append: Append) -> AppendOutcome:
        """See routing_replay.Run.put."""
        with self._default_appender().counting_refusals():
            return await done(self._putting(append))

    async def seal(
        self, sample: str, num_tokens: int, *, revision: int = 0, producer: Producer = "rollout"
    ) -> SampleState:
        """No more rows will come."""
        return await done(self._sealing(sample, num_tokens, revision, producer))

    async def truncate(
        self, sample: str, rows: int, *, expected_revision: int | None = None, producer: Producer = "rollout"
    ) -> SampleState:
        """Back to rows [0, rows), unsealed, under the next revision."""
        return await done(self._truncating(sample, rows, expected_revision, producer))

    async def read(
        self,
        samples: Iterable[SampleLike],
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        out: Sequence[Any] | None = None,
        timeout: float = 120.0,
    ) -> list[SampleRows]:
        """Reads and decodes: one result per sample, in the order asked; see routing_replay.Run.read. Nothing is written
        to `out` any more once this has ended, be it that it was cancelled."""
        return await done(self._reading(samples, layers, producer, wait, only_begun, out, timeout))

    async def read_one(
        self,
        sample: SampleLike,
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        out: Any = None,
        timeout: float = 120.0,
    ) -> SampleRows:
        """As `read`, of one sample; `out` is its buffer."""
        buffers = None if out is None else [out]
        return (await done(self._reading([sample], layers, producer, wait, only_begun, buffers, timeout)))[0]

    async def stat(self, sample: str, *, producer: Producer = "rollout") -> SampleState:
        """NotFoundError (NO_SAMPLE) if there is none."""
        return self._only(sample, await done(self._stating([sample], producer)))

    async def stat_many(self, samples: Iterable[str], *, producer: Producer = "rollout") -> SampleStates:
        """The ones that exist, in the order asked."""
        return await done(self._stating(samples, producer))

    async def list(self, *, groups: tuple[int, int] | None = None, producer: Producer = "rollout") -> SampleStates:
        """All samples, or those of groups[0] <= group < groups[1], by id."""
        return await done(self._listing(groups, producer))

    async def release(
        self, samples: Iterable[str | int], *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """See routing_replay.Run.release."""
        return await done(self._releasing(samples, None, keep_until_checkpoint, producer))

    async def release_groups(
        self, begin: int, end: int, *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """Gives back all samples with begin <= group < end; see routing_replay.Run.release."""
        return await done(self._releasing((), (begin, end), keep_until_checkpoint, producer))

    async def checkpoint(
        self,
        directory: Path,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        drop_missing: bool = False,
        release_awaiting: bool = True,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
    ) -> CheckpointOutcome:
        """See routing_replay.Run.checkpoint; on_progress is called in the event loop."""
        progressing = Progressing(on_progress, asyncio.get_running_loop().call_soon_threadsafe)
        exporting = self._exporting(directory, groups, producer, drop_missing, release_awaiting, timeout, progressing)
        return await progressed(progressing, exporting)

    async def drop(self) -> ReleaseOutcome:
        """Removes the run and all that is in it."""
        return await done(self._counted(lib.rr_run_drop, ()))

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes and ends the run's appenders; the run itself stays on the server."""
        appenders, self._appender = list(self._appenders), None
        for appender in appenders:
            await appender.close(timeout)
        for line in self._abandoned():
            await close_line(line, _values.seconds(timeout))

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Run {self._name}: {self._geometry!r}>"

    def _default_appender(self) -> Appender:
        if self._appender is None:
            self._appender = self.appender()
        return self._appender


async def progressed(progressing: Progressing, operation: Operation[Any]) -> Any:
    """What `on_progress` raised ends the work."""
    try:
        return await done(operation)
    finally:
        if progressing.error is not None:
            raise progressing.error
