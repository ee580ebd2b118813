"""Passes rows from an engine's loop to an appender in a thread, so that the loop does not have to decode or encode
them."""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from routing_replay import _values
from routing_replay.errors import DeadlineExceededError, InternalError, ResourceExhaustedError, RoutingReplayError
from routing_replay.run import Run

_log = logging.getLogger("routing_replay")
_KEPT = 100_000  # Limit for the samples that an error names, and for those whose errors are remembered.
_REASONED = 100  # Limit for the failures that an error lists.
_EXIT_TIMEOUT = 30.0  # Seconds that the interpreter's exit waits for queued rows.
_PATIENCE = 60.0  # Seconds that one call of the engine may wait for room.


@dataclass(frozen=True)
class Job:
    """One append. `run()` makes the append; `mark()` marks its rows as unrecorded instead. Both run in the hand-over's
    thread."""

    sample: str
    size: int  # Bytes held until the append is made.
    run: Callable[[], Any]
    mark: Callable[[], Any]
    taken: Callable[[], Any] | None = None  # Called when the rows are accepted into the queue.


class HandOver:
    """A queue, bounded in bytes, and a thread that makes the appends in order. Thread-safe.

    Reading, decoding and encoding rows takes milliseconds per megabyte, so the thread does this and the engine's loop
    only queues. If there is no room, a call of the engine waits for at most _PATIENCE seconds. With `put_async`, only
    the coroutine waits, without a thread. Rows for which there is no room in time are dropped: marked as unrecorded in
    the store, and counted.

    run: the appends go through a new appender of this run, which is closed with the hand-over
    max_queued_bytes: limit for rows that wait for the thread; the appender has its own limit
    """

    def __init__(self, run: Run, max_queued_bytes: int) -> None:
        self._max_queued_bytes = _values.integer(max_queued_bytes, "max_queued_bytes", _values.NATURAL)
        self._closed = False
        self._changed = threading.Condition()
        self._waiting: dict[concurrent.futures.Future[None], Job] = {}  # Jobs that wait for room in event loops.
        # Jobs, each with a flag: whether its rows are dropped.
        self._jobs: collections.deque[tuple[Job, bool]] = collections.deque()
        self._queued_bytes = 0
        self._queued = self._done = 0  # Number of jobs queued, and of jobs done, so far.
        self._unsettled: collections.Counter[str] = collections.Counter()  # Number of unfinished jobs by sample.
        self._thread: threading.Thread | None = None
        self._failed: dict[str, RoutingReplayError] = {}  # Failures by sample since the last flush.
        # Errors by sample, with a flag: whether `settle_sample` has reported the error. An entry is removed when it has
        # been reported and more of the sample is put.
        self._troubles: dict[str, tuple[RoutingReplayError, bool]] = {}
        self._counts = dict.fromkeys(("handed_over", "rejected", "dropped"), 0)
        self.appender = run.appender()
        run.add_source(self)
        _open.add(self)

    def put(self, jobs: Iterable[Job]) -> None:
        """Queues the jobs of one call of the engine, which waits for room once, for all of them together."""
        end = time.monotonic() + _PATIENCE
        with self._dropping_rest(jobs) as left:
            for job in left:
                with self._changed:
                    self._changed.wait_for(lambda job=job: not self._must_wait(job), _left(end))
                    self._add(job)

    async def put_async(self, jobs: Iterable[Job]) -> None:
        """As `put`, for an event loop, which goes on while it waits for room. Jobs of a call that is cancelled are
        dropped."""
        end = time.monotonic() + _PATIENCE
        with self._dropping_rest(jobs) as left:
            for job in left:
                await self._put_async(job, end)

    async def _put_async(self, job: Job, end: float) -> None:
        with self._changed:
            if not self._must_wait(job) or not _left(end):
                self._add(job)
                return
            turn: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._waiting[turn] = job
        add = self._drop
        try:
            await asyncio.wait([asyncio.wrap_future(turn)], timeout=_left(end))
            add = self._add
        finally:
            with self._changed:
                if self._waiting.pop(turn, None) is not None:
                    add(job)

    @contextlib.contextmanager
    def _dropping_rest(self, jobs: Iterable[Job]) -> Iterator[Iterator[Job]]:
        """The jobs of one call. Each job is made only when its turn comes, because it holds a copy of rows. If the call
        ends early, for example because it was cancelled while it waited, the remaining jobs are dropped."""
        left = iter(jobs)
        try:
            yield left
        finally:
            for job in left:
                with self._changed:
                    self._drop(job)

    def _drop(self, job: Job, why: str = "its request has ended") -> None:
        """Counts a job as dropped, and marks its rows."""
        if self._closed:
            return
        level = logging.DEBUG if self._counts["dropped"] else logging.WARNING
        _log.log(level, "rows of sample %s are dropped: %s", job.sample, why)
        self._counts["dropped"] += 1
        self._note(job.sample, ResourceExhaustedError(why, sample=job.sample))
        self._queue(Job(job.sample, 0, job.mark, job.mark), True)  # Releases the rows.

    def _must_wait(self, job: Job) -> bool:
        return not self._closed and not self._has_room(job)

    def _has_room(self, job: Job) -> bool:
        """Returns True if the job may be queued now. A job that is larger than the whole queue may be queued alone."""
        return self._queued_bytes == 0 or self._queued_bytes + job.size <= self._max_queued_bytes

    def _admit(self) -> None:
        """Queues the jobs that wait in event loops, in order, as far as there is room."""
        while self._waiting:
            turn, job = next(iter(self._waiting.items()))
            if self._must_wait(job):
                return
            del self._waiting[turn]
            self._add(job)
            turn.set_result(None)

    def _add(self, job: Job) -> None:
        if self._closed:
            return
        if not self._has_room(job):
            self._drop(job, "there is no room in time")
            return
        self._queued_bytes += job.size
        if self._troubles.get(job.sample, (None, False))[1]:
            del self._troubles[job.sample]
        self._queue(job, False)
        if job.taken is not None:
            job.taken()

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
                self._unsettled[job.sample] -= 1
                if not self._unsettled[job.sample]:
                    del self._unsettled[job.sample]
                self._queued_bytes -= 0 if dropped else job.size
                self._counts["handed_over"] += error is None and not dropped
                if error is not None:
                    self._counts["rejected"] += 1
                    self._note(job.sample, error)
                    if len(self._failed) < _KEPT:
                        self._failed.setdefault(job.sample, error)
                self._changed.notify_all()
                self._admit()

    def _do(self, job: Job, dropped: bool) -> RoutingReplayError | None:
        """Makes the append. Rejected rows are marked as unrecorded, so that a trainer that waits for the sample stops
        waiting."""
        try:
            job.mark() if dropped else job.run()
            return None
        except RoutingReplayError as error:
            _log.warning("rows of sample %s are rejected: %s", job.sample, error)
            found: RoutingReplayError = error
        except Exception as error:  # For example because an object of the engine has an unknown shape.
            _log.exception("rows of sample %s cannot be taken", job.sample)
            found = InternalError(f"sample {job.sample}: {error!r}", sample=job.sample)
        if not dropped:
            self._do(job, True)
        return found

    def _note(self, sample: str, error: RoutingReplayError) -> None:
        if sample not in self._troubles and len(self._troubles) >= _KEPT:
            del self._troubles[next(iter(self._troubles))]
        self._troubles[sample] = self._troubles.get(sample, (error, False))[0], False

    def flush(self, timeout: float) -> None:
        """See `Attachment.flush`."""
        deadline = time.monotonic() + timeout
        with self._changed:
            last = self._queued
            if not self._changed.wait_for(lambda: self._done >= last, timeout):
                raise DeadlineExceededError(f"{last - self._done} appends still wait for their turn")
        rejected: RoutingReplayError | None = None
        try:
            self.appender.flush(_left(deadline))
        except RoutingReplayError as error:
            if not error.failed_samples:  # The flush timed out, or the appender is closed.
                raise
            rejected = error
        with self._changed:
            failed, self._failed = self._failed, {}
        if failed:
            failures = list(itertools.islice(failed.items(), _REASONED))
            first = failures[0][1].with_failures(list(failed), failures)
            raise first if rejected is None else first.with_failures(rejected.failed_samples, rejected.failures)
        if rejected is not None:
            raise rejected

    def settle_sample(self, sample: str, deadline: float) -> RoutingReplayError | None:
        """See `Run.add_source`."""
        with self._changed:
            if not self._changed.wait_for(lambda: sample not in self._unsettled, _left(deadline)):
                raise DeadlineExceededError("rows of the sample still wait for their turn", sample=sample)
            error = self._troubles.get(sample, (None, True))[0]
            if error is not None:
                self._troubles[sample] = error, True
            return error

    def metrics(self) -> dict[str, int]:
        """See `Attachment.metrics`. handed_over, rejected and dropped count appends."""
        with self._changed:
            return {**self.appender.metrics(), **self._counts, "waiting_bytes": self._queued_bytes}

    def close(self, timeout: float) -> None:
        """Waits for what is queued, for at most `timeout` seconds. Idempotent."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and self._done == self._queued, timeout)
            lost = 0 if self._closed else self._queued - self._done
            self._closed = True
            self._changed.notify_all()
            self._admit()
        if lost:
            _log.warning("rows of %d outputs are lost, which still waited when their attachment was closed", lost)
        _open.discard(self)
        self.appender.close(_left(deadline))


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_open: weakref.WeakSet[HandOver] = weakref.WeakSet()
# Engines do not work in a forked child, so waiting jobs belong to the parent.
os.register_at_fork(after_in_child=_open.clear)


def _at_exit() -> None:
    """Sends the queued rows when the interpreter exits. Runs before the appenders are closed, because exit handlers run
    in reverse order of registration."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for handover in list(_open):
        handover.close(_left(deadline))


getattr(threading, "_register_atexit", atexit.register)(_at_exit)
