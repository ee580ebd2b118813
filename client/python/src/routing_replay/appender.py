"""Appends rows in the background."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_size_t, c_uint64
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import PLAIN_CALL, Operation, blocking, in_main_thread
from routing_replay._convert import like
from routing_replay._native import lib
from routing_replay.errors import ResourceExhaustedError, RoutingReplayError
from routing_replay.types import Append, AppendOutcome, OnFull

if TYPE_CHECKING:
    from routing_replay.run import Link

_log = logging.getLogger("routing_replay")
_EXIT_TIMEOUT = 5.0  # Seconds for which the interpreter, when it exits, waits for queued appends.
_LINGER_TIMEOUT = 125.0  # Seconds for which an appender that is closed in the background sends its queue.
_BLOCK, _DROP, _RAISE = range(3)
ON_FULL = {"block": _BLOCK, "drop": _DROP, "raise": _RAISE}

OnOutcome = Callable[[AppendOutcome], None]
C = TypeVar("C", bound="Closing")
N = TypeVar("N")


class Line(_native.Handle):
    """An appender of the native library, with its run. The client keeps a reference until the appender is closed."""

    __slots__ = ("run", "run_name")

    def __init__(self, run: _native.Handle, run_name: str, options: _native.AppenderOptions) -> None:
        super().__init__(lib.rr_object_free, _native.made(lib.rr_run_new_appender, run.pointer, byref(options)))
        self.run = run
        self.run_name = run_name
        _lines.add(self)

    def metrics(self) -> dict[str, int]:
        return _native.give(lib.rr_appender_metrics, _native.Counters, _native.Counters.dict, self.pointer)

    def closing(self, timeout: float) -> Operation[None]:
        """Makes the operation that waits until the queued appends have an outcome, and then closes the appender."""
        return Operation(lib.rr_appender_close, (self.pointer,), (), timeout=timeout, kept=self)

    def report(self, error: RoutingReplayError) -> None:
        _log.warning("closing the appender of run %s: %s", self.run_name, error)

    def close(self, timeout: float) -> None:
        """Closes the appender, and logs errors."""
        try:
            self.closing(timeout).wait()
        except RoutingReplayError as error:
            self.report(error)

    def report_outcomes(self, on_outcome: OnOutcome) -> None:
        """Calls on_outcome for each outcome until the appender is closed. Asking for more tells the library that
        the earlier outcomes are handled, for which flush waits."""
        more = lib.rr_appender_outcomes, (self.pointer,), _native.Outcomes, _convert.outcomes, 1e9, self
        try:
            while found := _calls.operation(*more).here():
                for outcome in found:
                    try:
                        on_outcome(outcome)
                    except BaseException:
                        _log.exception("on_outcome of run %s failed for sample %s", self.run_name, outcome.sample)
        except RoutingReplayError as error:
            _log.warning("outcomes of run %s are not reported any more: %s", self.run_name, error)


class Closing:
    """An object that is closed at the end of a `with`."""

    def close(self) -> None: ...

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AppenderCalls:
    """What the blocking Appender and the asyncio Appender have in common."""

    def __init__(self, link: Link, line: Line, on_full: OnFull | None, on_outcome: OnOutcome | None) -> None:
        self._link = link
        self.line = line
        self._never_waits_in_loop = on_full is None and not link.in_loop
        self._on_outcome = on_outcome
        self._drop_reported = False
        link.lines.add(line)
        if on_outcome is not None:
            self._start_reporting()

    def _start_reporting(self) -> None:
        """Starts the thread that calls on_outcome. The thread does not keep this object alive."""
        _reporting.add(self)
        report, arguments = self.line.report_outcomes, (self._on_outcome,)
        threading.Thread(target=report, args=arguments, name="routing-replay-outcomes", daemon=True).start()

    def queue(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
        """Queues the append Append(*arguments, **options) and returns its sequence number."""
        number = _native.queue(self.line.pointer, arguments, options)
        if number > 0:
            return number
        if number < -_native.DROPPED:
            self._report_drop([Append(*arguments, **options)])
            return -_native.DROPPED - number
        if number < 0:
            failure = _native.take_error(-number)
            if not isinstance(failure, ResourceExhaustedError):
                raise failure
        return self.queue_one(Append(*arguments, **options))

    def queue_one(self, append: Append, on_full: int | None = None) -> int:
        """Queues an append and returns its sequence number. on_full: a value of ON_FULL; None: the appender's own"""
        made, sequence, dropped = _native.Append(), c_uint64(), c_size_t()
        _kept = _convert.append(append, made)
        on_full = self._on_full() if on_full is None else on_full
        if on_full == _BLOCK and in_main_thread():
            on_full = _RAISE  # While this call waits, no signal handler could run; they run while _queueing waits.
        error = lib.rr_appender_append(
            self.line.pointer, byref(made), 1, on_full, PLAIN_CALL, byref(sequence), byref(dropped)
        )
        if error is not None:
            failure = _native.take_error(error)
            if on_full == _RAISE and isinstance(failure, ResourceExhaustedError):
                return self._queueing([append], itemgetter(0)).wait()
            raise failure
        if dropped.value:
            self._report_drop([append])
        return sequence.value

    def _queueing(self, appends: Sequence[Append], numbers: Callable[[Any], N] = list) -> Operation[N]:
        """Makes the operation that queues the appends. numbers: makes its result from the array of sequence numbers"""
        self._link.check()
        made, kept = _convert.appends(appends)
        count = len(appends)
        sequences, dropped = (c_uint64 * count)(), c_size_t()

        def read() -> N:
            if dropped.value:
                self._report_drop(appends)
            return numbers(sequences)

        outputs = sequences, byref(dropped)
        arguments = self.line.pointer, made, count, self._on_full()
        return Operation(lib.rr_appender_append, arguments, outputs, read, kept=kept)

    def _on_full(self) -> int:
        """The on_full of a library call. _DROP for a blocking appender without on_full if an event loop, which must not
        wait, runs in this thread; else _BLOCK, with which the library does what the appender's options say."""
        return _DROP if self._never_waits_in_loop and asyncio._get_running_loop() is not None else _BLOCK

    def _report_drop(self, appends: Sequence[Append]) -> None:
        level = logging.DEBUG if self._drop_reported else logging.WARNING
        self._drop_reported = True
        names = ", ".join(dict.fromkeys(append.sample for append in appends[:10]))
        _log.log(level, "append queue of run %s is full: rows of sample %s are dropped", self.line.run_name, names)

    def _flushing(self, timeout: float) -> Operation[None]:
        seconds = _values.seconds(timeout)
        return Operation(lib.rr_appender_flush, (self.line.pointer,), (), timeout=seconds, kept=self.line)

    def metrics(self) -> dict[str, int]:
        """Counters since the appender was made: appends, acknowledged, failed, rows, trimmed_rows, conflicting_rows,
        unrecorded_rows, payload_bytes, resent_bytes, reconnects, credit_rejections, dropped_appends, dropped_rows,
        stale_appends (rejected because their sample has a later attempt); and the gauges queued_bytes and
        open_appends."""
        return self.line.metrics()


class Appender(AppenderCalls, Closing):
    """A queue of appends that is sent in the background. Thread-safe. Made by `Run.appender`.

    on_outcome is called in a thread of the appender, once per append; calls for one sample are in the order of its
    appends. It must not call the appender. When the interpreter exits, it waits only a few seconds for queued appends,
    so call flush first.

    Survives broken connections, and restarts of a server that keeps its runs: unacknowledged appends are sent again. A
    run that is gone (dropped, or lost with a server that keeps runs in memory) is not created again, because its
    acknowledged rows would be missing without notice. Its appends end with NotFoundError (NO_RUN), which flush raises
    and on_outcome receives. After `Client.run` has created the run again, the appender goes on. Appends of one sample
    are applied in the order of the calls.

    After os.fork the child has an empty appender of its own; the parent sends what it had queued.
    """

    @like(Append)
    def append(self, *arguments: Any, **options: Any) -> int:
        """Queues one append and returns its sequence number: 1, 2, … The parameters are the fields of `Append`.

        Rows are copied or encoded before this returns. With asyncio a thread does this for large rows, and a cancelled
        append may have been queued all the same. Raises InvalidArgumentError at once if a shape, a dtype or an id is
        wrong. Errors of the service are not raised here, but by `flush`. When the queue is full, on_full decides.
        """
        return self.queue(arguments, options)

    @blocking
    def append_many(self, appends: Iterable[Append]) -> Operation[list[int]]:
        """Queues several appends in this order with one call, and returns their sequence numbers.
        If an argument has a wrong type, none is queued. If the library rejects one, for example for a wrong id, those
        before it are queued. The error names the sample.
        """
        return self._queueing(_values.items(appends, "appends", "Append"))

    @blocking
    def flush(self, timeout: float = 120.0) -> Operation[None]:
        """Waits until every append made so far has an outcome: it is acknowledged or has failed.

        Raises the first error since the last flush; its `failed_samples` names the samples with failed appends. After
        `timeout` seconds raises DeadlineExceededError; then the next flush reports the failures.
        """
        return self._flushing(timeout)

    def close(self, timeout: float = 60.0) -> None:
        """Flushes for at most `timeout` seconds, then abandons the remaining appends and logs this. Idempotent."""
        self._link.close([self.line], timeout)


# What happens to appenders that nobody refers to, and when the interpreter exits.

_lines: weakref.WeakSet[Line] = weakref.WeakSet()
_reporting: weakref.WeakSet[AppenderCalls] = weakref.WeakSet()
_lingering: set[Line] = set()


def linger(lines: Iterable[Line]) -> None:
    """Closes, in the background, the appenders of a client that nobody refers to, after their queues were sent."""
    close_in_background([line for line in lines if line.metrics()["open_appends"]])


def close_in_background(lines: Iterable[Line]) -> None:
    _lingering.update(lines)
    for line in lines:
        with contextlib.suppress(RuntimeError):  # The interpreter is exiting: _at_exit closes the appender.
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
    for appender in list(_reporting):
        appender._start_reporting()


os.register_at_fork(after_in_child=_after_fork_in_child)
# threading._register_atexit, as in concurrent.futures: _at_exit then runs while threads can still be started.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
