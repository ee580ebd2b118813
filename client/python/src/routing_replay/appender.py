"""Rows in, in the background."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from routing_replay import _append, _calls, _core, _fork, _transport, _values
from routing_replay._commits import Key, Open, Trouble, attempt_of
from routing_replay._failures import Failures
from routing_replay._transport import DEFAULTS, SERVICE, Metadata, Transport, check_fork
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
_START_TIMEOUT = 0.5  # Seconds that the first append waits for its stream to begin.
SETTLE_MARGIN = 5.0  # Seconds after an append's time in which it gets its outcome.
_EXIT_TIMEOUT = 5.0  # Seconds that an interpreter that ends waits for what was queued.

Note = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class QueueOptions:
    """How much an appender holds and for how long; times in seconds."""

    max_queued_bytes: int
    on_full: OnFull | None
    queue_timeout: float
    append_timeout: float

    def new_core(self, run: str) -> _core.Appender:
        return _core.Appender(run, self.max_queued_bytes, round(self.append_timeout * 1000))

    def add(self, core: _core.Appender, plan: _core.Plan) -> tuple[int, bool]:
        """Adds the plan, or only its mark where there is no room: sequence number, whether it was dropped."""
        now = time.monotonic_ns()
        if core.has_room(plan.bytes):
            return core.add(plan, now), False
        return core.add_dropped(plan, now), True


def queue_options(
    max_queued_bytes: int | None, on_full: OnFull | None, queue_timeout: float | None, append_timeout: float | None
) -> QueueOptions:
    """With defaults where nothing is given."""
    size = DEFAULTS["max_queued_bytes"] if max_queued_bytes is None else max_queued_bytes
    queue = DEFAULTS["queue_timeout_ms"] / 1000 if queue_timeout is None else queue_timeout
    append = DEFAULTS["append_timeout_ms"] / 1000 if append_timeout is None else append_timeout
    return QueueOptions(
        _values.integer(size, "max_queued_bytes", _values.NATURAL),
        None
        if on_full is None
        else _values.choice(on_full, "on_full", {name: name for name in ("block", "drop", "raise")}),
        _values.seconds(queue, "queue_timeout"),
        _values.seconds(append, "append_timeout"),
    )


class Appender:
    """A queue of appends that a thread of its own sends. Thread-safe. Made by `Run.appender`.

    on_outcome is called from the appender's threads, once per append, in order per sample; it must not call the
    appender. At the end of the interpreter what is queued is waited for, but not for long: flush.

    Survives broken connections, and restarts of a server that keeps its runs: what is not acknowledged is asked for and
    sent again. A run that is gone (dropped, or lost with a server that keeps runs in memory) is not made anew, as rows
    that were acknowledged would be missing without a word: its appends end with NotFoundError (NO_RUN), which flush
    raises and on_outcome is told. After `Client.run` has made it again the appender goes on. Appends of one sample are
    applied in the order of the calls.

    After os.fork the child has an empty appender of its own; what the parent had queued, the parent sends. Where gRPC
    cannot live on in the child, `append` raises FailedPreconditionError there.
    """

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
        """See `Run.appender`."""
        self._transport = transport
        self._name = name
        self._run = run
        self._options = queue_options(max_queued_bytes, on_full, queue_timeout, append_timeout)
        self._encode_blocks = encode_blocks
        self._on_outcome = on_outcome
        self._start_afresh()
        transport.appenders.add(self)
        _appenders.add(self)
        _fork.register(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._delivery = threading.Lock()
        self._core = self._options.new_core(self._name)
        self._failures = Failures(self._name)
        self._open = Open()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure: RoutingReplayError | None = None  # Why it closed by itself.
        self._stream = 0  # Number of the present stream; its sender stops when there is another one.
        self._call: Any = None
        self._told_of_drop = False
        self._notes: dict[int, Note] = {}  # Who is told of the outcome of which append.
        self._resting = False  # A fork is near: no call of gRPC may be going on.
        self._calling = False
        self._grpc_threads: set[threading.Thread] = set()  # That served the newest stream.

    def append(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> int:
        """Queues one append and returns its sequence number: 1, 2, …

        rows: ids [rows, layers, K] of an integer dtype (copied or encoded before this returns), or a Payload; None to
            open, to seal, or for rows that are all unrecorded
        options: see AppendOptions

        Integer dtypes are uint8, uint16 and the signed ones. Raises the cause if the appender has ended by itself.
        Raises InvalidArgumentError at once for what the ingest checks refuse (with encode_blocks). Never raises for
        trouble of the service: when the queue is full, on_full decides.
        """
        return self._append(sample, rows, None, **options)

    def _append(self, sample: str, rows: Rows | None, note: Note | None, **options: Unpack[AppendOptions]) -> int:
        """As `append`; `note` gets the record of its outcome."""
        check_fork()
        with self.counting_refusals():
            plan = _append.make_plan(self._run, self._encode_blocks, sample, rows, **options)
        return self._enqueue(plan, sample, note, attempt_of(options))[0]

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """An InvalidArgumentError that leaves it counts as a refused append: also of a turn, or of a response that is
        read right before its append."""
        try:
            yield
        except InvalidArgumentError as error:
            with self._lock:
                self._core.count_refusal(error.reason)
            raise

    def _enqueue(
        self, plan: _core.Plan, sample: str, note: Note | None = None, attempt: int | None = None
    ) -> tuple[int, bool]:
        """Sequence number, and whether only a mark of the append was taken. `note` gets the record of its outcome."""
        check_fork()
        with self._lock:
            self._wait_for_room(plan.bytes, sample)
            if self._closed:
                raise self._failure or CancelledError("the appender is closed")
            sequence, dropped = self._options.add(self._core, plan)
            self._open.queued(sequence, sample, attempt, dropped)
            if note is not None:
                self._notes[sequence] = note
            if dropped:
                self._tell_of_drop(sample)
            self._ensure_thread()
            self._changed.notify_all()
        return sequence, dropped

    def _enqueue_failed(
        self, plan: _core.Plan, why: RoutingReplayError, sample: str, note: Note | None, attempt: int | None
    ) -> int:
        """Sequence number of an append that cannot be sent anywhere: its outcome is `why`."""
        check_fork()
        with self._lock:
            if self._closed:
                raise self._failure or CancelledError("the appender is closed")
            error = _core.rpc_error(_transport.UNAVAILABLE, why.message, b"")
            sequence = self._core.add_failed(plan, error, time.monotonic_ns())
            self._open.queued(sequence, sample, attempt, False)
            if note is not None:
                self._notes[sequence] = note
            self._ensure_thread()
            self._changed.notify_all()
        return sequence

    def _settled(self, sequence: int, timeout: float) -> bool:
        """Waits for the outcomes of all appends up to `sequence`; False if there are some missing still."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._core.settled(sequence), timeout)
            return self._core.settled(sequence)

    def _settle(self, sequence: int) -> None:
        """As `_settled`, and raises why not. Every append has an outcome after its time."""
        if self._settled(sequence, self._options.append_timeout + SETTLE_MARGIN):
            return
        with self._lock:
            raise self._failure or self._core.not_flushed() or CancelledError("the appender was closed")

    def _settle_sample(self, key: Key, deadline: float) -> Trouble | None:
        """Waits for the outcomes of the appends of one sample, and tells what went wrong with them.
        DeadlineExceededError; why the appender has ended."""
        with self._lock:
            left = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._closed or not self._open.has(key), left):
                raise DeadlineExceededError("appends of the sample have no outcome yet", sample=key[0])
            if self._open.has(key):
                raise self._failure or CancelledError("the appender was closed")
            return self._open.tell(key)

    def _wait_for_room(self, size: int, sample: str) -> None:
        if self._core.has_room(size):
            return
        if self._options.on_full == "raise":
            error = self._core.no_room(sample)
            assert error is not None
            raise error
        if self._options.on_full == "block" or (self._options.on_full is None and not _in_event_loop()):
            self._changed.wait_for(lambda: self._closed or self._core.has_room(size), self._options.queue_timeout)

    def _tell_of_drop(self, sample: str) -> None:
        level = logging.DEBUG if self._told_of_drop else logging.WARNING
        self._told_of_drop = True
        _log.log(level, "append queue of run %s is full: rows of sample %s are dropped", self._name, sample)

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until every append so far has its outcome.

        Raises the first error since the last flush, whose `failed_samples` names every sample of which an append
        failed; DeadlineExceededError after `timeout` seconds, and the failures come with the next flush.
        """
        timeout = _values.seconds(timeout)
        with self._lock:
            last = self._core.newest_open()
            if not self._changed.wait_for(lambda: self._closed or self._core.settled(last), timeout):
                error = self._core.not_flushed()
            elif not self._core.settled(last):
                error = self._failure or CancelledError("the appender was closed")
            else:
                error = self._failures.of_flush(self._core.take_error())
        if error is not None:
            raise error

    def metrics(self) -> dict[str, int]:
        """Counters since the start: appends, acknowledged, failed, rows, trimmed_rows, conflicting_rows,
        unrecorded_rows, payload_bytes, resent_bytes, reconnects, credit_refusals, dropped_appends, dropped_rows,
        stale_appends (of those that failed: of an attempt that a later one has replaced); and the gauges queued_bytes
        and open_appends."""
        with self._lock:
            return {**self._core.metrics(), "stale_appends": self._failures.stale}

    def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        timeout = _values.seconds(timeout)
        try:
            if not self._closed:
                self.flush(timeout)
        except RoutingReplayError as error:
            _log.warning("closing the appender of run %s: %s", self._name, error)
        self._abandon()

    def _abandon(self) -> None:
        with self._lock:
            self._closed = True
            call, thread = self._call, self._thread
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)
            self._join_grpc()
        self._transport.appenders.discard(self)

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What the threads do. Each waits on _changed; the core says for what.

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="routing-replay-appender", daemon=True)
            self._thread.start()
            # An interpreter that ends refuses the threads that a stream needs (3.12), so that a program whose last word
            # is this append would lose it.
            self._changed.wait_for(lambda: self._call is not None or self._closed, _START_TIMEOUT)

    def _drive(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            _log.exception("the appender of run %s has ended", self._name)
            self._fail(InternalError(f"the appender's thread has ended: {error!r}"))

    def _fail(self, error: RoutingReplayError) -> None:
        """Nothing more can be sent: all that waits or comes raises `error`."""
        with self._lock:
            self._closed, self._failure = True, error
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            self._deliver()
            with self._lock:
                self._changed.wait_for(lambda: self._closed or not self._resting)
                if self._closed:
                    return
                action = self._core.next(time.monotonic_ns(), False)
                if action.step == _core.WAIT and not self._core.has_finished():
                    self._changed.wait(_until(action.until))
                self._calling = action.step in (_core.ASK, _core.CONNECT)
            if action.step == _core.ASK and action.ask is not None:
                self._ask(**action.ask)
            elif action.step == _core.CONNECT:
                self._converse()
            with self._lock:
                self._calling = False
                self._changed.notify_all()

    def _channel(self) -> grpc.Channel | None:
        """None once the client is closed, or where gRPC was lost in a fork: then nothing more can be sent."""
        try:
            return self._transport.channel()
        except (CancelledError, FailedPreconditionError) as final:
            self._fail(final)
            return None

    def _ask(self, producer: str, samples: list[str]) -> None:
        call = _calls.stat(self._name, samples, producer)
        channel = metadata = None
        try:
            channel = self._channel()
            if channel is None:
                return
            stub = channel.unary_unary(SERVICE + call.method)
            metadata = self._transport.metadata()
            states = call.read(stub(call.request, timeout=DEFAULTS["ask_timeout_ms"] / 1000, metadata=metadata))
        except (grpc.RpcError, RoutingReplayError) as failure:
            error = self._error_of(channel, failure, metadata)
            if isinstance(failure, grpc.RpcError) and failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._transport.leave(channel)
            with self._lock:
                self._core.on_ask_error(error, time.monotonic_ns())
            return
        with self._lock:
            self._core.on_states(_calls.states_for_core(states), time.monotonic_ns())

    def _error_of(
        self, channel: grpc.Channel | None, failure: grpc.RpcError | RoutingReplayError, metadata: Metadata
    ) -> _core.CoreError:
        """What the core is told; an endpoint that cannot be told yet is a server that is not there."""
        if isinstance(failure, RoutingReplayError):
            return _core.rpc_error(_transport.UNAVAILABLE, str(failure), b"")
        if self._closed:  # The end is our own; the server may be well.
            return _transport.core_error(failure)
        return self._transport.failed(channel, failure, metadata)

    def _converse(self) -> None:
        """One stream, from its start to its end."""
        with self._lock:
            self._stream += 1
            number = self._stream
        why: _core.CoreError | None = None
        told = False
        channel = metadata = None
        try:
            channel = self._channel()
            if channel is None:
                return
            metadata = self._transport.metadata()
            call = channel.stream_stream(SERVICE + "Append")(self._requests(number, channel), metadata=metadata)
            ended = threading.Event()
            told = call.add_callback(lambda: self._note_grpc_thread(ended))
            with self._lock:
                self._call = call
                closed = self._closed
                self._changed.notify_all()
            if closed:
                call.cancel()
            for message in call:
                with self._lock:
                    self._core.on_message(message, time.monotonic_ns())
                    self._changed.notify_all()
                self._deliver()
        except (grpc.RpcError, RoutingReplayError) as failure:
            why = self._error_of(channel, failure, metadata)
        if told:
            ended.wait(_transport.REST_TIMEOUT)
        with self._lock:
            self._stream += 1
            self._call = None
            self._core.on_stream_end(why, time.monotonic_ns())
            self._changed.notify_all()

    def _requests(self, number: int, channel: grpc.Channel) -> Iterator[bytes]:
        """Consumed by a thread of grpc, which comes back when the message before is on its way."""
        with self._lock:
            self._grpc_threads = {threading.current_thread()}
        while True:
            with self._lock:
                if self._stream != number or self._closed:
                    return
                action = self._core.next(time.monotonic_ns(), True)
                if action.step == _core.WAIT and not self._core.has_finished():
                    self._changed.wait(_until(action.until))
                elif action.step == _core.CANCEL:
                    self._changed.wait_for(lambda: self._call is not None or self._stream != number)
                call = self._call
            if action.step == _core.SEND:
                yield action.take_message()
            elif action.step == _core.CANCEL and call is not None:
                self._transport.leave(channel)  # The server does not answer.
                call.cancel()
            self._deliver()

    def _deliver(self) -> None:
        with self._delivery:
            with self._lock:
                finished = self._core.take_finished()
                if not finished:
                    return
                self._changed.notify_all()  # There is room.
                ended = Open.ended(finished)
                notes = [(self._notes.pop(record["sequence"], None), record) for record in finished]
            for note, record in notes:
                if note is not None:
                    note(dict(record))
            if self._on_outcome is not None:
                for record in finished:
                    self._tell(_append.outcome_from(record))
            with self._lock:
                self._failures.add(finished, self._open.outdated)  # With the core's own, so that one flush takes both.
                self._open.finished(ended)  # Now: who is told may have queued more of the sample.
                self._core.delivered()
                self._changed.notify_all()

    def _tell(self, outcome: AppendOutcome) -> None:
        assert self._on_outcome is not None
        try:
            self._on_outcome(outcome)
        except BaseException:
            _log.exception("on_outcome of run %s failed for sample %s", self._name, outcome.sample)

    # gRPC must be at rest while the process is forked. Ending a stream costs nothing but a new one.

    def _note_grpc_thread(self, ended: threading.Event) -> None:
        """Called when a stream ends, by the thread of grpc that waits for its events and ends with it."""
        with self._lock:
            self._grpc_threads.add(threading.current_thread())
        ended.set()

    def _before_fork(self) -> None:
        """Ends the stream and starts no other."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        with self._lock:
            self._resting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._call is not None or not self._calling, _transport.REST_TIMEOUT)
            call = self._call
        if call is not None:
            call.cancel()
        with self._lock:
            self._changed.wait_for(lambda: not self._calling, _transport.REST_TIMEOUT)
        self._join_grpc()

    @property
    def streaming(self) -> bool:
        """Whether there is, or may soon be, a stream."""
        return self._thread is not None and not self._resting and not self._closed

    def _join_grpc(self) -> None:
        with self._lock:
            threads, self._grpc_threads = self._grpc_threads, set()
        self._transport.join_grpc(threads)

    def _after_fork_in_parent(self) -> None:
        """Starts a stream where one is needed."""
        with self._lock:
            self._resting = False
            self._changed.notify_all()

    def _after_fork_in_child(self) -> None:
        """Leaves what is queued to the parent."""
        closed = self._closed
        _core.leak((self._call, self._core))
        self._start_afresh()
        self._closed = closed


def _in_event_loop() -> bool:
    """Whether an event loop runs in this thread: to wait would stop all that it serves."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _until(nanoseconds: int) -> float:
    return max(0.0, (nanoseconds - time.monotonic_ns()) / 1e9)


_appenders: weakref.WeakSet[Appender] = weakref.WeakSet()


def _at_exit() -> None:
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for appender in list(_appenders):
        appender.close(max(0.0, deadline - time.monotonic()))


# Before the interpreter refuses new threads, which a new stream needs; as concurrent.futures does.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
