"""Rows in, in the background."""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation
from routing_replay._convert import taking
from routing_replay._native import lib
from routing_replay.errors import InvalidArgumentError, RoutingReplayError
from routing_replay.types import Append, AppendOutcome, OnFull

if TYPE_CHECKING:
    from routing_replay.run import RunCalls

_log = logging.getLogger("routing_replay")
_EXIT_TIMEOUT = 5.0  # Seconds that an interpreter that ends waits for what was queued.
_LINGER_TIMEOUT = 125.0  # Seconds for what an appender that nobody has any more had queued.
_ON_FULL = {"block": 0, "drop": 1, "raise": 2}

Note = Callable[[AppendOutcome], None]


class Line(_native.Handle):
    """An appender of the library, and whose it is. Its client has it until it is closed, whoever else lets go of it."""

    __slots__ = ("run", "run_name")

    def __init__(self, run: _native.Handle, run_name: str, options: _native.AppenderOptions) -> None:
        super().__init__(lib.rr_appender_free, None)
        made = c_void_p()
        _native.check(lib.rr_run_new_appender(run.pointer, byref(options), byref(made)))
        self.pointer = made.value
        self.run = run
        self.run_name = run_name
        _lines.add(self)

    def metrics(self) -> dict[str, int]:
        return _native.give(lib.rr_appender_metrics, _native.Counters, lambda counters: counters.dict(), self.pointer)

    def closing(self, timeout: float) -> Operation[None]:
        return Operation(lib.rr_appender_close, (self.pointer,), (), _nothing, timeout=timeout, kept=self)

    def forget(self) -> None:
        """The end of the interpreter has not to wait for it."""
        _lines.discard(self)

    def tell(self, error: RoutingReplayError) -> None:
        _log.warning("closing the appender of run %s: %s", self.run_name, error)

    def close(self, timeout: float) -> None:
        """Waits for what is queued, and says what came of it in the log."""
        self.forget()
        try:
            self.closing(timeout).wait()
        except RoutingReplayError as error:
            self.tell(error)


class Outcomes:
    """Who is told of outcomes, in order per sample. A note is of the next append of its sample."""

    def __init__(self, on_outcome: Callable[[AppendOutcome], None] | None, run_name: str) -> None:
        self._on_outcome = on_outcome
        self._run_name = run_name
        self.start_afresh()

    def start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, collections.deque[Note | None]] = {}

    @contextlib.contextmanager
    def expecting(self, appends: Sequence[Append], sequences: Any, note: Note | None) -> Iterator[None]:
        """While they are being queued; those without a sequence number are not."""
        with self._lock:
            for append in appends:
                self._notes.setdefault(append.sample, collections.deque()).append(note)
        try:
            yield
        except BaseException:
            with self._lock:
                for append, sequence in zip(reversed(appends), reversed(sequences), strict=True):
                    if not sequence:
                        self._take(append.sample, collections.deque.pop)
            raise

    def tell(self, outcomes: Sequence[AppendOutcome]) -> None:
        for outcome in outcomes:
            with self._lock:
                note = self._take(outcome.sample, collections.deque.popleft)
            for told in (note, self._on_outcome):
                if told is not None:
                    self._tell(told, outcome)

    def _take(self, sample: str, take: Callable[[Any], Note | None]) -> Note | None:
        notes = self._notes.get(sample)
        if notes is None:
            return None
        taken = take(notes)
        if not notes:
            del self._notes[sample]
        return taken

    def _tell(self, told: Note, outcome: AppendOutcome) -> None:
        try:
            told(outcome)
        except BaseException:
            _log.exception("on_outcome of run %s failed for sample %s", self._run_name, outcome.sample)


def outcomes_of(line: Line) -> Operation[list[AppendOutcome]]:
    """Those since the last call, which have been told then; waits for some. None once the appender is closed."""
    return _calls.operation(
        lib.rr_appender_outcomes, (line.pointer,), _native.Outcomes, _convert.outcomes, timeout=1e9, kept=line
    )


class AppenderCalls:
    """What the Appenders of threads and of event loops have in common."""

    _waits_in_loop = True

    def __init__(
        self,
        run: RunCalls,
        max_queued_bytes: int | None,
        on_full: OnFull | None,
        queue_timeout: float | None,
        append_timeout: float | None,
        encode_blocks: bool,
        outcomes: Outcomes | None,
    ) -> None:
        queue = -1 if queue_timeout is None else _values.milliseconds(queue_timeout, "queue_timeout")
        append = -1 if append_timeout is None else _values.milliseconds(append_timeout, "append_timeout")
        size = (
            -1 if max_queued_bytes is None else _values.integer(max_queued_bytes, "max_queued_bytes", _values.NATURAL)
        )
        full = 0 if on_full is None else _values.choice(on_full, "on_full", _ON_FULL)
        options = _native.AppenderOptions(size, queue, append, full, bool(encode_blocks), outcomes is not None)
        self.line = Line(run.native, run.name, options)
        self._link = run.link
        self._outcomes = outcomes
        self._drops_in_loop = on_full is None and not self._waits_in_loop
        self._told_of_drop = False
        self._link.lines.add(self.line)

    def _queueing(self, appends: Sequence[Append]) -> tuple[Operation[list[int]], Any]:
        """And where the sequence numbers go of those that are queued."""
        self._link.check()
        made, kept = _convert.appends(appends)
        count = len(appends)
        sequences, dropped = (c_uint64 * count)(), c_size_t()
        arguments = self.line.pointer, made, count

        def read() -> list[int]:
            if dropped.value:
                self._tell_of_drop(appends)
            return list(sequences)

        # In a thread whose event loop runs, which would stand still, nothing is waited for.
        timeout = 0.0 if self._drops_in_loop and asyncio._get_running_loop() is not None else None
        outputs = sequences, byref(dropped)
        return Operation(lib.rr_appender_append, arguments, outputs, read, None, timeout, kept), sequences

    def _tell_of_drop(self, appends: Sequence[Append]) -> None:
        level = logging.DEBUG if self._told_of_drop else logging.WARNING
        self._told_of_drop = True
        names = ", ".join(dict.fromkeys(append.sample for append in appends[:10]))
        _log.log(level, "append queue of run %s is full: rows of sample %s are dropped", self.line.run_name, names)

    def _flushing(self, timeout: float) -> Operation[None]:
        seconds = _values.seconds(timeout)
        return Operation(lib.rr_appender_flush, (self.line.pointer,), (), _nothing, timeout=seconds, kept=self.line)

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """An InvalidArgumentError that leaves it counts as a refused append: also of a turn, or of a response that is
        read right before its append."""
        try:
            yield
        except InvalidArgumentError as error:
            self._count(error)
            raise

    def _count(self, error: InvalidArgumentError) -> None:
        lib.rr_appender_count_refusal(self.line.pointer, _native.text(error.reason or ""))

    def metrics(self) -> dict[str, int]:
        """Counters since the start: appends, acknowledged, failed, rows, trimmed_rows, conflicting_rows,
        unrecorded_rows, payload_bytes, resent_bytes, reconnects, credit_refusals, dropped_appends, dropped_rows,
        stale_appends (of those that failed: of an attempt that a later one has replaced); and the gauges queued_bytes
        and open_appends."""
        return self.line.metrics()


class Appender(AppenderCalls):
    """A queue of appends that is sent in the background. Thread-safe. Made by `Run.appender`.

    on_outcome is called from a thread of the appender, once per append, in order per sample; it must not call the
    appender. At the end of the interpreter what is queued is waited for, but not for long: flush.

    Survives broken connections, and restarts of a server that keeps its runs: what is not acknowledged is asked for and
    sent again. A run that is gone (dropped, or lost with a server that keeps runs in memory) is not made again, as rows
    that were acknowledged would be missing without a word: its appends end with NotFoundError (NO_RUN), which flush
    raises and on_outcome is told. After `Client.run` has made it again the appender goes on. Appends of one sample are
    applied in the order of the calls.

    After os.fork the child has an empty appender of its own; what the parent had queued, the parent sends.
    """

    _waits_in_loop = False

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
        takes_notes: bool = False,
    ) -> None:
        """See `Run.appender`."""
        outcomes = Outcomes(on_outcome, run.name) if on_outcome is not None or takes_notes else None
        super().__init__(run, max_queued_bytes, on_full, queue_timeout, append_timeout, encode_blocks, outcomes)
        self._takes_notes = takes_notes
        if outcomes is not None:
            self._start_telling(outcomes)
            _told.add(self)

    @taking(Append)
    def append(self, append: Append) -> int:
        """Queues one append and returns its sequence number: 1, 2, … Parameters as of `Append`.

        Rows are copied or encoded before this returns. Raises InvalidArgumentError at once for what the ingest checks
        refuse (with encode_blocks). Never raises for trouble of the service: when the queue is full, on_full decides.
        """
        return self._append_many([append], None)[0]

    def append_many(self, appends: Iterable[Append]) -> list[int]:
        """Queues several appends, in this order, with one call; their sequence numbers.

        Where one is wrong, those before it are queued, and the error names it as `append[i]`.
        """
        return self._append_many(_values.items(appends, "appends", "Append"), None)

    def _append(self, sample: str, rows: Any, note: Note, **options: Any) -> int:
        """As `append`; `note` gets its outcome."""
        return self._append_many([Append(sample, rows, **options)], note)[0]

    def _append_many(self, appends: Sequence[Append], note: Note | None) -> list[int]:
        try:
            queueing, sequences = self._queueing(appends)
        except InvalidArgumentError as error:
            self._count(error)
            raise
        if self._outcomes is None or not self._takes_notes:
            return queueing.here()
        with self._outcomes.expecting(appends, sequences, note):
            return queueing.here()

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until every append so far has its outcome.

        Raises the first error since the last flush, whose `failed_samples` names every sample of which an append
        failed; DeadlineExceededError after `timeout` seconds, and the failures come with the next flush.
        """
        self._flushing(timeout).wait()

    def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons what is left (logged). Idempotent."""
        seconds = _values.seconds(timeout)
        self._link.lines.discard(self.line)
        self.line.close(seconds)

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start_telling(self, outcomes: Outcomes) -> None:
        name = "routing-replay-outcomes"
        threading.Thread(target=_tell, args=(self.line, outcomes), name=name, daemon=True).start()

    def _after_fork_in_child(self) -> None:
        if self._outcomes is not None:
            self._outcomes.start_afresh()
            self._start_telling(self._outcomes)


def _tell(line: Line, outcomes: Outcomes) -> None:
    """A thread's, until the appender is closed."""
    try:
        while found := outcomes_of(line).here():
            outcomes.tell(found)
    except RoutingReplayError as error:
        _log.warning("outcomes of run %s are told no more: %s", line.run_name, error)


def _nothing() -> None:
    """There is no result."""


# What nobody has any more, and the end.

_lines: weakref.WeakSet[Line] = weakref.WeakSet()  # That are not closed.
_told: weakref.WeakSet[Appender] = weakref.WeakSet()
_lingering: set[Line] = set()


def linger(lines: Iterable[Line]) -> None:
    """Closes the appenders of a client that is gone, once what they have queued is sent."""
    waiting = [line for line in lines if line.metrics()["open_appends"]]
    _lingering.update(waiting)
    for line in waiting:
        with contextlib.suppress(RuntimeError):  # The interpreter ends, and waits for it by itself.
            threading.Thread(target=_close, args=(line,), name="routing-replay-linger", daemon=True).start()


def _close(line: Line) -> None:
    line.close(_LINGER_TIMEOUT)
    _lingering.discard(line)


def _at_exit() -> None:
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for line in list(_lines):
        line.close(max(0.0, deadline - time.monotonic()))


def _after_fork_in_child() -> None:
    _lingering.clear()
    for appender in list(_told):
        appender._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
# Before the interpreter refuses new threads; as concurrent.futures does.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
