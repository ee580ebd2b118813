"""One run of a server, for asyncio."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from routing_replay import _append, _calls, _checkpoint, _commits, _core, _counters, _read, _turns, _values
from routing_replay._transport import SERVICE, Broken, is_refusal
from routing_replay.aio import steps, threads
from routing_replay.aio.appender import Appender
from routing_replay.aio.trajectory import Trajectory
from routing_replay.aio.transport import Transport
from routing_replay.errors import ResourceExhaustedError
from routing_replay.types import (
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
    from typing_extensions import Unpack

    from routing_replay._turns import Existing
    from routing_replay.geometry import Geometry
    from routing_replay.types import AppendOptions, Rows, RunSettings

T = TypeVar("T")


class Run:
    """As routing_replay.Run, made by `aio.Client.run`. For one event loop. Meanings and errors are the same."""

    def __init__(self, transport: Transport, name: str, opened: _calls.OpenedRun) -> None:
        self._transport = transport
        self._name = name
        self._opened = opened
        self._appender: Appender | None = None
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()  # The transport keeps them until they close.

    @property
    def name(self) -> str:
        return self._name

    @property
    def geometry(self) -> Geometry:
        return self._opened.geometry

    @property
    def dropped(self) -> ReleaseOutcome:
        """What resume_at of `Client.run` removed."""
        return self._opened.dropped

    @property
    def settings(self) -> RunSettings:
        """In force, defaults filled in."""
        return self._opened.settings

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
        appender = Appender(
            self._transport,
            self._name,
            self._opened.core,
            max_queued_bytes=max_queued_bytes,
            on_full=on_full,
            queue_timeout=queue_timeout,
            append_timeout=append_timeout,
            encode_blocks=encode_blocks,
            on_outcome=on_outcome,
        )
        self._appenders.add(appender)
        return appender

    async def append(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> int:
        """Queues an append; waits only for room in the queue."""
        return await self._default_appender().append(sample, rows, **options)

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
        return await steps.drive(_commits.commit(self, sample, num_tokens, tokens, attempt, timeout))

    async def _settle_sample(self, key: _commits.Key, timeout: float) -> _commits.Trouble | None:
        deadline = time.monotonic() + timeout
        trouble: _commits.Trouble | None = None
        for appender in list(self._appenders):
            trouble = _commits.worse(trouble, await appender._settle_sample(key, deadline))
        return trouble

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
        opened = self._opened
        writer = _turns.new_writer(
            opened.core, sample, existing=existing, strict=opened.settings.strict, group=group, engine=engine
        )
        return Trajectory(self, writer, self._default_appender() if appender is None else appender)

    async def put(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> AppendOutcome:
        """See routing_replay.Run.put."""
        core = self._opened.core

        def make() -> list[bytes]:
            return list(core.put_messages(_append.make_plan(core, False, sample, rows, **options)))

        with self._default_appender().counting_refusals():
            messages = await threads.finish(_append.size_of(rows) >= threads.LARGE_BYTES, make)
            answers = [await self._transport.call("Put", message) for message in messages]
        return _append.outcome_from(_core.put_outcome(answers))

    async def seal(
        self, sample: str, num_tokens: int, *, revision: int = 0, producer: Producer = "rollout"
    ) -> SampleState:
        """No more rows will come."""
        return await self._do(_calls.seal(self._name, sample, num_tokens, revision, producer))

    async def truncate(
        self, sample: str, rows: int, *, expected_revision: int | None = None, producer: Producer = "rollout"
    ) -> SampleState:
        """Back to rows [0, rows), unsealed, under the next revision."""
        return await self._do(_calls.truncate(self._name, sample, rows, expected_revision, producer))

    async def read(
        self,
        samples: Iterable[SampleLike],
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> Sequence[SampleRows]:
        """Reads and decodes: one result per sample, in the order asked."""
        reader = _read.make_reader(self._opened.core, samples, layers, producer, wait, only_begun)
        await self._read_into(reader, timeout)
        return _read.rows_from(reader)

    async def read_one(
        self,
        sample: SampleLike,
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> SampleRows:
        """As `read`, of one sample."""
        rows = await self.read(
            [sample], layers=layers, producer=producer, wait=wait, only_begun=only_begun, timeout=timeout
        )
        return rows[0]

    async def read_messages(self, request: bytes, timeout: float = 120.0) -> AsyncIterator[bytes]:
        """The messages of a Read as they come; see routing_replay.Run.read_messages."""
        deadline = time.monotonic() + _values.seconds(timeout)
        retry = _core.Retry(int(deadline * 1e9))
        while True:
            came = False
            try:
                async for message in self._read_once(request, deadline):
                    came = True
                    yield message
                return
            except Broken as broken:
                await asyncio.sleep(broken.wait(None if came else retry))

    @property
    def has_other_servers(self) -> bool:
        """Whether another server may be there when the present one is away."""
        return self._transport.has_others

    async def _read_into(self, reader: _core.Reader, timeout: float) -> None:
        deadline = time.monotonic() + _values.seconds(timeout)
        retry = _core.Retry(int(deadline * 1e9))
        while (request := reader.request()) is not None:
            try:
                async for message in self._read_once(request, deadline):
                    reader.push(message)
                    retry = _core.Retry(int(deadline * 1e9))
                reader.end()
            except Broken as broken:
                await asyncio.sleep(broken.wait(retry))
                reader.broke()

    async def _read_once(self, request: bytes, deadline: float) -> AsyncIterator[bytes]:
        channel = await self._transport.channel()
        left = max(0.0, deadline - time.monotonic())
        metadata = self._transport.metadata()
        call = channel.unary_stream(SERVICE + "Read")(request, timeout=left, metadata=metadata)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as failure:
            raise Broken(self._transport.failed(channel, failure, metadata), is_refusal(failure)) from None
        finally:
            call.cancel()

    async def stat(self, sample: str, *, producer: Producer = "rollout") -> SampleState:
        """NotFoundError (NO_SAMPLE) if there is none."""
        for state in await self.stat_many([sample], producer=producer):
            return state
        raise _calls.no_sample(self._name, sample)

    async def stat_many(self, samples: Iterable[str], *, producer: Producer = "rollout") -> SampleStates:
        """The ones that exist, in the order asked."""
        states: SampleStates = []
        for names in _calls.names_in_calls(samples):
            waiting = [names]
            while waiting:
                some = waiting.pop()
                try:
                    states += await self._do(_calls.stat(self._name, some, producer))
                except ResourceExhaustedError as error:
                    waiting += _calls.halves(some, error)
        return states

    async def list(self, *, groups: tuple[int, int] | None = None, producer: Producer = "rollout") -> SampleStates:
        """All samples, or those of groups[0] <= group < groups[1], by id."""
        states: SampleStates = []
        page_token = ""
        while True:
            page, page_token = await self._do(
                _calls.list_page(self._name, self._opened.lives, groups, producer, page_token)
            )
            states += page
            if not page_token:
                return states

    async def release(
        self, samples: Iterable[str | int], *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """See routing_replay.Run.release."""
        calls = _calls.releases(self._name, samples, keep_until_checkpoint, producer)
        return _calls.sum_of([await self._do(call) for call in calls])

    async def release_groups(
        self, begin: int, end: int, *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """Gives back all samples with begin <= group < end; see routing_replay.Run.release."""
        mode = _calls.release_mode(keep_until_checkpoint)
        return await self._do(_calls.release(self._name, mode, groups=(begin, end), producer=producer))

    async def checkpoint(
        self,
        directory: _checkpoint.Directory,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        drop_missing: bool = False,
        release_awaiting: bool = True,
        timeout: float = 120.0,
        on_progress: _checkpoint.OnProgress | None = None,
    ) -> CheckpointOutcome:
        """See routing_replay.Run.checkpoint; files are written in a thread, on_progress is called in the event loop."""
        return await steps.drive(
            _checkpoint.export(self, directory, groups, producer, drop_missing, release_awaiting, timeout, on_progress)
        )

    async def drop(self) -> ReleaseOutcome:
        """Removes the run and all that is in it."""
        return await self._do(_calls.drop(self._name))

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes and ends the run's appenders; the run itself stays on the server."""
        appenders, self._appender = list(self._appenders), None
        for appender in appenders:
            await appender.close(timeout)

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Run {self._name}: {self.geometry!r}>"

    def _default_appender(self) -> Appender:
        if self._appender is None:
            self._appender = self.appender()
        return self._appender

    async def _work(self, work: Callable[[], T]) -> T:
        """As routing_replay.Run._work: in a thread."""
        return await threads.finish(True, work)

    async def _do(self, call: _calls.Call[T]) -> T:
        return call.read(await self._transport.call(call.method, call.request, call.repeat))
