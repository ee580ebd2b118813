"""From an engine's loop to an appender, without the loop waiting for the work in between."""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routing_replay.errors import DeadlineExceededError, InternalError, ResourceExhaustedError, RoutingReplayError

if TYPE_CHECKING:
    from routing_replay.run import Run
    from routing_replay.types import AppendOutcome, OnFull

_log = logging.getLogger("routing_replay")
_KEPT = 100_000  # Samples that an error names, or whose trouble is remembered.
_REASONED = 100  # Failures whose reason an error keeps.
_EXIT_TIMEOUT = 30.0  # Seconds that the end of the interpreter waits for queued rows.

Judge = Callable[["AppendOutcome"], None]


class Patience:
    """Seconds that one call of the engine may wait for room, for all of its outputs together."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @contextlib.contextmanager
    def used(self) -> Iterator[float]:
        """What is left for a wait, whose duration is subtracted."""
        began = time.monotonic()
        try:
            yield self.left
        finally:
            self.left = max(0.0, self.left - (time.monotonic() - began))


@dataclass(frozen=True)
class Job:
    """One append: `run()` makes it, `mark()` marks its rows as unrecorded instead. Both in the thread."""

    sample: str
    size: int  # Bytes held until it is made.
    run: Callable[[], Any]
    mark: Callable[[], Any]


class Troubles(dict[str, tuple[RoutingReplayError, bool]]):
    """Errors by sample, and whether they were reported. One is kept until it was reported and more of its sample is
    put: a commit may be cancelled, or asked again. Not thread-safe."""

    def note(self, sample: str, error: RoutingReplayError) -> None:
        if sample not in self and len(self) >= _KEPT:
            del self[next(iter(self))]
        self[sample] = self.get(sample, (error, False))[0], False

    def report(self, sample: str) -> RoutingReplayError | None:
        if sample not in self:
            return None
        self[sample] = self[sample][0], True
        return self[sample][0]

    def appended(self, sample: str) -> None:
        if sample in self and self[sample][1]:
            del self[sample]


class HandOver:
    """A queue, bounded in bytes, and a thread that makes the appends in order. Thread-safe.

    After os.fork the child has an empty one; what the parent had queued, the parent sends.

    Reading, decoding and encoding rows takes milliseconds per megabyte: the thread does it, the engine's loop only
    queues. An event loop that waits for room waits by itself, without an executor.

    run: its new appender, which is closed with this, makes the appends
    max_queued_bytes: of rows that wait for the thread; the appender has a bound of its own
    on_full: "block" waits for at most queue_timeout seconds and then drops, "drop" drops at once, "raise" raises
        ResourceExhaustedError. Dropped rows are marked as unrecorded in the store and counted
    queue_timeout: of each call of the engine, see `patience`
    """

    def __init__(self, run: Run, max_queued_bytes: int, on_full: OnFull, queue_timeout: float) -> None:
        self._max_queued_bytes = max_queued_bytes
        self._on_full = on_full
        self._queue_timeout = queue_timeout
        self._closed = False
        self._start_empty()
        self.appender = run.appender(on_outcome=self._outcome)
        run.add_source(self)
        _all.add(self)
        _open.add(self)

    def _start_empty(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[concurrent.futures.Future[bool], Job] = {}  # In event loops: whether its rows are taken.
        self._jobs: collections.deque[tuple[Job, bool]] = collections.deque()  # And whether its rows are dropped.
        self._queued_bytes = 0
        self._queued = self._done = 0  # Jobs so far.
        self._marks = 0  # Those of `mark`.
        self._thread: threading.Thread | None = None
        self._failed: dict[str, RoutingReplayError] = {}  # By sample, since the last flush.
        self._rejected: RoutingReplayError | None = None  # What the appender's flush raised, since the last flush.
        self._counts = dict.fromkeys(("handed_over", "refused", "dropped"), 0)
        # Of a sample: jobs that are not done, and appends without outcome.
        self._unsettled: collections.Counter[str] = collections.Counter()
        self._troubles = Troubles()
        self._judges: dict[int, Judge | None] = {}  # Of appends without outcome, by sequence number.
        self._early: dict[int, AppendOutcome] = {}  # Outcomes that came before `append` had the sequence number.

    def patience(self) -> Patience:
        """For one call of the engine."""
        return Patience(self._queue_timeout)

    def put(self, job: Job, patience: Patience) -> bool:
        """Queues the job; without room, on_full decides. Whether its rows are taken."""
        with self._changed:
            if self._must_wait(job):
                with patience.used() as seconds:
                    self._changed.wait_for(lambda: not self._must_wait(job), seconds)
            return self._add(job)

    async def put_async(self, job: Job, patience: Patience) -> bool:
        """As `put`, for an event loop, which goes on while it waits for room. A cancelled job is dropped."""
        with self._changed:
            if not self._must_wait(job) or not patience.left:
                return self._add(job)
            turn: concurrent.futures.Future[bool] = concurrent.futures.Future()
            self._waiting[turn] = job
        try:
            with patience.used() as seconds:
                await asyncio.wait([asyncio.wrap_future(turn)], timeout=seconds)
        except BaseException:
            with self._changed:
                if self._waiting.pop(turn, None) is not None:
                    self.drop(job)
            raise
        with self._changed:
            return turn.result() if self._waiting.pop(turn, None) is None else self._add(job)

    def mark(self, job: Job) -> None:
        """Queues a job that only marks rows; from a thread that must not wait."""
        with self._changed:
            if not self._closed:
                self._marks += 1
                self._queue(job, True)

    def drop(self, job: Job, why: str = "its request has ended") -> None:
        """Counts a job as dropped, and marks its rows."""
        with self._changed:
            if self._closed:
                return
            level = logging.DEBUG if self._counts["dropped"] else logging.WARNING
            _log.log(level, "rows of sample %s are dropped: %s", job.sample, why)
            self._counts["dropped"] += 1
            self._troubles.note(job.sample, ResourceExhaustedError(why, sample=job.sample))
            self._queue(Job(job.sample, 0, job.mark, job.mark), True)  # Releases the rows.

    def _must_wait(self, job: Job) -> bool:
        return self._on_full == "block" and not self._closed and not self._has_room(job)

    def _has_room(self, job: Job) -> bool:
        """A job larger than the whole queue may go alone."""
        return self._queued_bytes == 0 or self._queued_bytes + job.size <= self._max_queued_bytes

    def _admit(self) -> None:
        """Queues what waits in event loops, in order, as far as there is room."""
        while self._waiting:
            turn, job = next(iter(self._waiting.items()))
            if self._must_wait(job):
                return
            del self._waiting[turn]
            turn.set_result(self._add(job))

    def _add(self, job: Job) -> bool:
        if self._closed:
            return False
        if not self._has_room(job):
            if self._on_full == "raise":
                what = f"{job.size} bytes and {self._queued_bytes} that wait are more than {self._max_queued_bytes}"
                raise ResourceExhaustedError(what, reason="OVER_BUDGET", sample=job.sample)
            self.drop(job, "there is no room in time")
            return False
        self._queued_bytes += job.size
        self._troubles.appended(job.sample)
        self._queue(job, False)
        return True

    def _queue(self, job: Job, dropped: bool) -> None:
        self._jobs.append((job, dropped))
        self._queued += 1
        self._unsettled[job.sample] += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="routing-replay-hand-over", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job, dropped = self._jobs.popleft()
            error = self._do(job, dropped)
            with self._changed:
                self._done += 1
                self._settled(job.sample)
                if error is not None and not dropped:
                    self._troubles.note(job.sample, error)
                self._queued_bytes -= 0 if dropped else job.size
                self._counts["handed_over"] += error is None and not dropped
                self._counts["refused"] += error is not None
                if error is not None and len(self._failed) < _KEPT:
                    self._failed.setdefault(job.sample, error)
                self._admit()

    def _do(self, job: Job, dropped: bool) -> RoutingReplayError | None:
        """Makes the append. Rejected rows are marked, so that a trainer that waits for the sample learns of it."""
        try:
            job.mark() if dropped else job.run()
            return None
        except RoutingReplayError as error:
            _log.warning("rows of sample %s are rejected: %s", job.sample, error)
            found: RoutingReplayError = error
        except Exception as error:  # An engine's object of another shape.
            _log.exception("rows of sample %s cannot be taken", job.sample)
            found = InternalError(f"sample {job.sample}: {error!r}", sample=job.sample)
        if not dropped:
            self._do(job, True)
        return found

    def append(self, sample: str, rows: Any, judge: Judge | None = None, **options: Any) -> None:
        """For jobs: `Appender.append`, whose outcome `judge` gets."""
        with self._changed:
            self._unsettled[sample] += 1
        try:
            sequence = self.appender.append(sample, rows, **options)
        except BaseException:
            self._settled(sample)
            raise
        with self._changed:
            outcome = self._early.pop(sequence, None)
            if outcome is None:
                self._judges[sequence] = judge
                return
        self._judge(judge, outcome)

    def _outcome(self, outcome: AppendOutcome) -> None:
        with self._changed:
            if outcome.sequence not in self._judges:
                self._early[outcome.sequence] = outcome
                return
            judge = self._judges.pop(outcome.sequence)
        self._judge(judge, outcome)

    def _judge(self, judge: Judge | None, outcome: AppendOutcome) -> None:
        try:
            if judge is not None:
                judge(outcome)
        finally:
            self._settled(outcome.sample)

    def _settled(self, sample: str) -> None:
        """A job or an append of the sample is done."""
        with self._changed:
            self._unsettled[sample] -= 1
            if not self._unsettled[sample]:
                del self._unsettled[sample]
            self._changed.notify_all()

    def flush(self, timeout: float) -> None:
        """Waits until everything so far is acknowledged; raises the first error since the last flush, which names every
        sample that failed. DeadlineExceededError after `timeout` seconds, and the failures come with the next flush."""
        deadline = time.monotonic() + timeout
        marks = -1
        while marks != self._marks:  # What the server rejected is marked behind what is waited for.
            with self._changed:
                marks, last = self._marks, self._queued
                if not self._changed.wait_for(functools.partial(self._has_done, last), _left(deadline)):
                    raise DeadlineExceededError(f"{last - self._done} appends still wait for their turn")
            try:
                self.appender.flush(_left(deadline))
            except RoutingReplayError as error:
                if not error.failed_samples:  # Not in time, or closed.
                    raise
                with self._changed:
                    self._rejected = _joined(self._rejected, error)
        with self._changed:
            failed, self._failed = self._failed, {}
            rejected, self._rejected = self._rejected, None
        if failed:
            failures = list(itertools.islice(failed.items(), _REASONED))
            raise _joined(failures[0][1].with_failures(list(failed), failures), rejected)
        if rejected is not None:
            raise rejected

    def _has_done(self, jobs: int) -> bool:
        return self._done >= jobs

    def settle_sample(self, sample: str, deadline: float) -> RoutingReplayError | None:
        """Until everything put of a sample has its outcome; what went wrong before it was the appender's."""
        with self._changed:
            if not self._changed.wait_for(lambda: sample not in self._unsettled, _left(deadline)):
                raise DeadlineExceededError("rows of the sample still wait for their turn", sample=sample)
            return self._troubles.report(sample)

    def metrics(self) -> dict[str, int]:
        """Counters handed_over, refused and dropped (appends), the gauge waiting_bytes, and the appender's."""
        with self._changed:
            return {**self.appender.metrics(), **self._counts, "waiting_bytes": self._queued_bytes}

    def close(self, timeout: float) -> None:
        """Waits for what is queued, for at most `timeout` seconds. Idempotent."""
        deadline = time.monotonic() + timeout
        if not self._closed:
            try:
                self.flush(timeout)
            except RoutingReplayError as error:
                _log.warning("closing an attachment: %s", error)
        with self._changed:  # Also for what has found room meanwhile.
            self._changed.wait_for(lambda: self._done == self._queued, _left(deadline))
            lost = 0 if self._closed else self._queued - self._done
            self._closed = True
            self._changed.notify_all()
            self._admit()
        if lost:
            _log.warning("rows of %d outputs are lost, which still waited when their attachment was closed", lost)
        _open.discard(self)
        self.appender.close(_left(deadline))


def _joined(error: RoutingReplayError | None, other: RoutingReplayError | None) -> Any:
    """The first one, with the failures of both."""
    if error is None or other is None:
        return error or other
    return error.with_failures(other.failed_samples, other.failures)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_all: weakref.WeakSet[HandOver] = weakref.WeakSet()
_open: weakref.WeakSet[HandOver] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for handover in list(_all):
        handover._start_empty()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _at_exit() -> None:
    """Before the appenders are closed: what was registered last comes first."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for handover in list(_open):
        handover.close(_left(deadline))


getattr(threading, "_register_atexit", atexit.register)(_at_exit)
