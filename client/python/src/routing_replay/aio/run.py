"""Clients, runs, appenders and trajectories in event loops: the calls of the others, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from routing_replay import _native, _values
from routing_replay._calls import Operation
from routing_replay._convert import taking
from routing_replay._native import lib
from routing_replay.aio._loop import done
from routing_replay.appender import AppenderCalls, Line, Outcomes, outcomes_of
from routing_replay.client import ClientCalls
from routing_replay.errors import RoutingReplayError
from routing_replay.geometry import Geometry
from routing_replay.recorded import adapter_metrics
from routing_replay.run import Link, OnProgress, Path, Progressing, RunCalls
from routing_replay.trajectory import AbortedTurn, Existing, Missing, NewTurn, TrajectoryCalls, Turn
from routing_replay.types import (
    Append,
    AppendOutcome,
    CheckpointOutcome,
    Commit,
    OnFull,
    Producer,
    ReleaseOutcome,
    RestoreOutcome,
    RunSummary,
    SampleLike,
    SampleRows,
    SampleState,
    SampleStates,
    ServerInfo,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Client(ClientCalls):
    """As routing_replay.Client, with the same parameters, for event loops. Meanings and errors are the same."""

    _survives_fork = False

    async def run(
        self,
        name: str,
        geometry: Geometry | None = None,
        *,
        ttl: float | None = None,
        strict: bool = False,
        block_rows: int | None = None,
        codec: str | None = None,
        durability: str | None = None,
        resume_at: int | None = None,
        wait: float = 0.0,
    ) -> Run:
        """Makes the run, or joins it; see routing_replay.Client.run."""
        opening = self._opening(name, geometry, ttl, strict, block_rows, codec, durability, resume_at, wait)
        return Run(self._link, await done(opening))

    async def restore(
        self,
        directory: Path,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
    ) -> RestoreOutcome:
        """See routing_replay.Client.restore; on_progress is called in the event loop."""
        progressing = Progressing(on_progress, asyncio.get_running_loop().call_soon_threadsafe)
        return await progressed(progressing, self._restoring(directory, run, groups, timeout, progressing))

    async def runs(self) -> list[RunSummary]:
        """The runs of the server."""
        return await done(self._listing())

    async def server_info(self) -> ServerInfo:
        """Version, memory, counters."""
        return await done(self._asking())

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders, then closes the connection."""
        seconds = _values.seconds(timeout)
        for line in list(self._link.lines):
            await close_line(line, seconds)
        self._link.lines.clear()
        self._link.drop()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


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
        return {**self._default_appender().metrics(), **adapter_metrics()}

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

    async def release(self, samples: Iterable[str | int], *, producer: Producer | None = None) -> ReleaseOutcome:
        """See routing_replay.Run.release."""
        return await done(self._releasing(samples, None, producer))

    async def release_groups(self, begin: int, end: int, *, producer: Producer | None = None) -> ReleaseOutcome:
        """Gives back all samples with begin <= group < end; see routing_replay.Run.release."""
        return await done(self._releasing((), (begin, end), producer))

    async def checkpoint(
        self,
        directory: Path,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        previous: Path | None = None,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
    ) -> CheckpointOutcome:
        """See routing_replay.Run.checkpoint; on_progress is called in the event loop."""
        progressing = Progressing(on_progress, asyncio.get_running_loop().call_soon_threadsafe)
        exporting = self._exporting(directory, groups, producer, previous, timeout, progressing)
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
