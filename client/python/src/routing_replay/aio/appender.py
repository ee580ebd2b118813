"""Rows in, by a task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from routing_replay import _append, _calls, _core, _values
from routing_replay._commits import Key, Open, Trouble, attempt_of
from routing_replay._failures import Failures
from routing_replay._transport import DEFAULTS, SERVICE, UNAVAILABLE, Metadata
from routing_replay.aio import threads
from routing_replay.aio.transport import Transport
from routing_replay.appender import SETTLE_MARGIN, Note, queue_options
from routing_replay.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    RoutingReplayError,
)
from routing_replay.types import AppendOutcome, OnFull

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.types import AppendOptions, Rows

_log = logging.getLogger("routing_replay")


class _Changes:
    """Wakes all who wait. Who looks and then waits, without awaiting anything in between, misses nothing."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until the next notify, for at most so long."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            # Not wait_for, which before Python 3.12 forgets that it is cancelled where the waiter has just been woken.
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self._waiters.discard(waiter)


class Appender:
    """As routing_replay.Appender, in an event loop. Made by `Run.appender`. on_outcome is called in the loop."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        run: _core.Run,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        encode_blocks: bool = True,
        on_outcome: Callable[[AppendOutcome], None] | None = None,
    ) -> None:
        """See routing_replay.Run.appender."""
        self._transport = transport
        self._name = name
        self._run = run
        self._options = queue_options(max_queued_bytes, on_full, queue_timeout, append_timeout)
        self._encode_blocks = encode_blocks
        self._on_outcome = on_outcome
        self._core = self._options.new_core(name)
        self._failures = Failures(name)
        self._open = Open()
        self._changed = _Changes()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: RoutingReplayError | None = None  # Why it closed by itself.
        self._in_order = asyncio.Lock()  # Large rows are encoded elsewhere; small ones must not overtake them.
        self._notes: dict[int, Note] = {}  # Who is told of the outcome of which append.
        self._gave_up = False  # The present stream was ended because the server does not answer.
        transport.appenders.add(self)

    async def append(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> int:
        """Queues one append and returns its sequence number; see routing_replay.Appender.append.

        Large rows are encoded in a thread; do not change them before this returns. If it is cancelled, nothing was
        queued.
        """
        await self._transport.channel()
        make = functools.partial(_append.make_plan, self._run, self._encode_blocks, sample, rows, **options)
        async with self._in_order:
            with self.counting_refusals():
                plan = await threads.finish(_append.size_of(rows) >= threads.LARGE_BYTES, make)
            await self._wait_for_room(plan.bytes, sample)
            return self._add(plan, sample, None, attempt_of(options))[0]

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """See routing_replay.Appender.counting_refusals."""
        try:
            yield
        except InvalidArgumentError as error:
            self._core.count_refusal(error.reason)
            raise

    async def _enqueue(self, plan: _core.Plan, sample: str, note: Note | None = None) -> tuple[int, bool]:
        """As routing_replay.Appender._enqueue."""
        await self._transport.channel()
        async with self._in_order:
            await self._wait_for_room(plan.bytes, sample)
            return self._add(plan, sample, note, None)

    async def _settled(self, sequence: int, timeout: float) -> bool:
        """As routing_replay.Appender._settled."""
        await self._wait_for(lambda: self._closed or self._core.settled(sequence), timeout)
        return self._core.settled(sequence)

    async def _settle(self, sequence: int) -> None:
        """As routing_replay.Appender._settle."""
        if not await self._settled(sequence, self._options.append_timeout + SETTLE_MARGIN):
            raise self._failure or self._core.not_flushed() or CancelledError("the appender was closed")

    async def _settle_sample(self, key: Key, deadline: float) -> Trouble | None:
        """As routing_replay.Appender._settle_sample."""
        left = max(0.0, deadline - time.monotonic())
        if not await self._wait_for(lambda: self._closed or not self._open.has(key), left):
            raise DeadlineExceededError("appends of the sample have no outcome yet", sample=key[0])
        if self._open.has(key):
            raise self._failure or CancelledError("the appender was closed")
        return self._open.tell(key)

    def _add(self, plan: _core.Plan, sample: str, note: Note | None, attempt: int | None) -> tuple[int, bool]:
        if self._closed:
            raise self._failure or CancelledError("the appender is closed")
        sequence, dropped = self._options.add(self._core, plan)
        self._open.queued(sequence, sample, attempt, dropped)
        if note is not None:
            self._notes[sequence] = note
        if dropped:
            _log.warning("append queue of run %s is full: rows of sample %s are dropped", self._name, sample)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drive(), name="routing-replay-appender")
        self._changed.notify()
        return sequence, dropped

    async def _wait_for_room(self, size: int, sample: str) -> None:
        if self._core.has_room(size):
            return
        if self._options.on_full == "raise":
            error = self._core.no_room(sample)
            assert error is not None
            raise error
        if self._options.on_full in (None, "block"):
            await self._wait_for(lambda: self._closed or self._core.has_room(size), self._options.queue_timeout)

    async def flush(self, timeout: float = 120.0) -> None:
        """Waits until every append so far has its outcome; see routing_replay.Appender.flush."""
        timeout = _values.seconds(timeout)
        last = self._core.newest_open()
        in_time = await self._wait_for(lambda: self._closed or self._core.settled(last), timeout)
        if not in_time:
            error = self._core.not_flushed()
        elif not self._core.settled(last):
            error = self._failure or CancelledError("the appender was closed")
        else:
            error = self._failures.of_flush(self._core.take_error())
        if error is not None:
            raise error

    def metrics(self) -> dict[str, int]:
        """See routing_replay.Appender.metrics."""
        return {**self._core.metrics(), "stale_appends": self._failures.stale}

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        timeout = _values.seconds(timeout)
        try:
            if not self._closed:
                await self.flush(timeout)
        except RoutingReplayError as error:
            _log.warning("closing the appender of run %s: %s", self._name, error)
        await self._abandon()

    async def _abandon(self) -> None:
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._transport.appenders.discard(self)
        self._changed.notify()

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        """False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not predicate():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self._changed.wait(left)
        return True

    # The task. The core says what to do.

    async def _drive(self) -> None:
        try:
            await self._serve()
        except Exception as error:
            _log.exception("the appender of run %s has ended", self._name)
            self._fail(InternalError(f"the appender's task has ended: {error!r}"))
        except asyncio.CancelledError:
            left = self._core.metrics()["open_appends"]
            if left and not self._closed:  # The loop ends without close or flush.
                _log.warning("%d appends of run %s have no outcome: flush before the loop ends", left, self._name)
            if not self._closed:
                self._fail(CancelledError("the appender's task was cancelled"))
            raise

    def _fail(self, error: RoutingReplayError) -> None:
        """Nothing more can be sent: all that waits or comes raises `error`."""
        self._closed, self._failure = True, error
        self._changed.notify()

    async def _serve(self) -> None:
        while not self._closed:
            await self._deliver()
            action = self._core.next(time.monotonic_ns(), False)
            if action.step == _core.ASK and action.ask is not None:
                await self._ask(**action.ask)
            elif action.step == _core.CONNECT:
                await self._converse()
            elif action.step == _core.WAIT and not self._core.has_finished():
                await self._changed.wait(max(0.0, (action.until - time.monotonic_ns()) / 1e9))

    async def _ask(self, producer: str, samples: list[str]) -> None:
        call = _calls.stat(self._name, samples, producer)
        channel = metadata = None
        try:
            channel = await self._channel()
            if channel is None:
                return
            metadata = self._transport.metadata()
            stub = channel.unary_unary(SERVICE + call.method)
            seconds = DEFAULTS["ask_timeout_ms"] / 1000
            states = call.read(await stub(call.request, timeout=seconds, metadata=metadata))
        except (grpc.aio.AioRpcError, RoutingReplayError) as failure:
            if isinstance(failure, grpc.aio.AioRpcError) and failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._transport.leave(channel)
            self._core.on_ask_error(self._error_of(channel, failure, metadata), time.monotonic_ns())
            return
        self._core.on_states(_calls.states_for_core(states), time.monotonic_ns())

    async def _channel(self) -> grpc.aio.Channel | None:
        """See routing_replay.Appender._channel."""
        try:
            return await self._transport.channel()
        except (CancelledError, FailedPreconditionError) as final:
            self._fail(final)
            return None

    def _error_of(
        self,
        channel: grpc.aio.Channel | None,
        failure: grpc.aio.AioRpcError | RoutingReplayError,
        metadata: Metadata,
    ) -> _core.CoreError:
        """See routing_replay.Appender._error_of."""
        if isinstance(failure, RoutingReplayError):
            return _core.rpc_error(UNAVAILABLE, str(failure), b"")
        return self._transport.failed(channel, failure, metadata)

    async def _converse(self) -> None:
        """One stream, from its start to its end."""
        why: _core.CoreError | None = None
        self._gave_up = False
        channel = metadata = call = None
        sender: asyncio.Task[None] | None = None
        try:
            channel = await self._channel()
            if channel is None:
                return
            metadata = self._transport.metadata()
            call = channel.stream_stream(SERVICE + "Append")(metadata=metadata)
            sender = asyncio.get_running_loop().create_task(self._send(call, channel))
            while (message := await call.read()) is not grpc.aio.EOF:
                self._core.on_message(message, time.monotonic_ns())
                await self._deliver()
                self._changed.notify()
        except (grpc.aio.AioRpcError, RoutingReplayError) as failure:
            why = self._error_of(channel, failure, metadata)
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            why = _core.rpc_error(1, "the stream was ended", b"")
        finally:
            if call is not None:
                call.cancel()
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
        self._core.on_stream_end(why, time.monotonic_ns())

    async def _send(self, call: Any, channel: grpc.aio.Channel) -> None:
        try:
            await self._send_all(call, channel)
        except Exception as error:
            _log.exception("the appender of run %s has ended", self._name)
            self._fail(InternalError(f"the appender's task has ended: {error!r}"))
            call.cancel()

    async def _send_all(self, call: Any, channel: grpc.aio.Channel) -> None:
        while True:
            action = self._core.next(time.monotonic_ns(), True)
            if action.step == _core.SEND:
                try:
                    await call.write(action.take_message())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # The reader learns why.
            elif action.step == _core.CANCEL:
                self._gave_up = True
                self._transport.leave(channel)  # The server does not answer.
                call.cancel()
                return
            elif not self._core.has_finished():
                await self._changed.wait(max(0.0, (action.until - time.monotonic_ns()) / 1e9))
            await self._deliver()

    async def _deliver(self) -> None:
        finished = self._core.take_finished()
        if not finished:
            return
        self._failures.add(finished, self._open.outdated)
        ended = Open.ended(finished)
        for record in finished:
            note = self._notes.pop(record["sequence"], None)
            if note is not None:
                note(dict(record))
        if self._on_outcome is not None:
            for record in finished:
                self._tell(_append.outcome_from(record))
        self._open.finished(ended)
        self._core.delivered()
        self._changed.notify()

    def _tell(self, outcome: AppendOutcome) -> None:
        assert self._on_outcome is not None
        try:
            self._on_outcome(outcome)
        except Exception:
            _log.exception("on_outcome of run %s failed for sample %s", self._name, outcome.sample)
