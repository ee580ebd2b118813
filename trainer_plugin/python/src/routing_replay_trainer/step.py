"""Between a trainer and the source of its rows: the cache of a step, what is read ahead, and one deadline.

    source = StepSource(ServiceSource(run), cache_bytes=4 << 30, deadline=120.0)
    source.begin_step()
    source.prefetch([(plan, sequences), …])         # threads read while the trainer computes
    batch = source.fetch(plan, sequences=sequences, missing="live")   # in the log-prob pass, and in every epoch

`megatron.attach` and `hf.attach` put one around their source, and `begin_step` of what they give begins its steps.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref
from typing import Any

from routing_replay import errors
from routing_replay._values import INT64, integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, invalid, seconds, unmet
from routing_replay_trainer.fetch import FetchSequence, Missing, RowSource, _Fetch
from routing_replay_trainer.plan import Plan


class Workers:
    """Starts its threads with the first job. Thread-safe. The threads are daemons and hold no reference to who made
    this, so neither an exception elsewhere nor the end of the program waits for them."""

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()  # The step that each is for, and what to run.
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._stopped = False

    def add(self, step: int, run: Callable[[], None]) -> None:
        with self._changed:
            if self._stopped:
                return
            self._jobs.append((step, run))
            while len(self._threads) < self._count:
                thread = threading.Thread(target=self._work, name="routing-replay-prefetch", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def drop_before(self, step: int) -> None:
        """Jobs of steps that are over."""
        with self._changed:
            self._jobs = deque(job for job in self._jobs if job[0] >= step)
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Waits until nothing is left to do; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def stop(self, timeout: float) -> None:
        """What has not begun never will; waits up to `timeout` seconds for what has."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify_all()
            threads, self._threads = self._threads, []
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopped)
                if self._stopped:
                    return
                _, run = self._jobs.popleft()
                self._running += 1
            try:
                run()
            finally:
                del run
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()


_NOW, _IN_STEP, _OF_NEXT_STEP = 0, 1, 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # Seconds between attempts to reach a service.


class StepSource(RowSource):
    """A source through which a rank reads every slice of a step once, although several passes need it.

    source: a LocalSource, ServiceSource or DirectorySource
    cache_bytes: held at most for slices, read ahead or for later passes
    deadline: seconds that all fetches of a step together may wait, trying again while the service is unavailable. What
        has not come then is missing, and `missing` of the fetch says what that means: DeadlineExceededError under
        "strict". What the ranks had agreed to replay is an error in any case: a rank cannot fall back alone.
        Where no step is begun it is that of each fetch, and nothing is kept: only within a step are samples taken to
        stay what they are
    threads: that read ahead

    Fetches raise DeadlineExceededError, CancelledError after `close`. Thread-safe as the source is. After os.fork the
    child begins with an empty cache; what it had announced is gone.
    """

    def __init__(
        self, source: RowSource, *, cache_bytes: int = 1 << 30, deadline: float = 120.0, threads: int = 2
    ) -> None:
        if not isinstance(source, RowSource) or isinstance(source, StepSource):
            raise invalid("source", f"must be a source of rows of this package, got {type(source).__name__}")
        self._source = source
        self._cache_bytes = integer(cache_bytes, "cache_bytes", (0, INT64[1]))
        self._deadline = seconds(deadline, "deadline")
        self._thread_count = integer(threads, "threads", (1, 256))
        self._closed = False
        self._reset()
        _LIVING.add(self)

    def _reset(self) -> None:
        self._cache = _core.make(LIBRARY.rrt_step_cache_new, self._cache_bytes)
        self._workers = Workers(self._thread_count)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._step = 0
        self._begun = False
        self._waited = 0.0  # In this step.
        self._counts = {"fetches": 0, "wait_s": 0.0, "ahead_failures": 0, "timeouts": 0}
        self._seen = dict.fromkeys(("hits", "misses", "evictions", "bytes_read"), 0)  # At the last `counts`.

    @property
    def geometry(self) -> Any:  # type: ignore[override]
        return self._source.geometry

    @property
    def deadline(self) -> float:
        return self._deadline

    def begin_step(self, *, goes_on: bool = False) -> None:
        """A step begins: what was read for the one before is dropped, but not what was read ahead for this one.

        goes_on: with the step that there is, if there is one: all of it stays, and only the deadline begins again
        """
        with self._lock:
            self._waited = 0.0
            if goes_on and self._begun:
                return
            self._step, self._begun = self._step + 1, True
        self._workers.drop_before(self._step)
        LIBRARY.rrt_step_cache_end_step(self._cache.pointer)

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """As `RowSource.inspect`; waits as long as the step's deadline leaves."""
        started = time.monotonic()
        left = self._left()
        end = started + (left if timeout is None else min(left, timeout))
        try:
            return self._patiently(lambda: self._source.inspect(sequences, timeout=_some(end)), end)
        finally:
            self._count(time.monotonic() - started, fetches=0)

    def prefetch(
        self, batches: Iterable[tuple[Plan, Sequence[FetchSequence] | None]], *, next_step: bool = False
    ) -> None:
        """Announces micro-batches, as `fetch` will be called for them: threads read their slices in this order.

        next_step: for the step that `begin_step` begins next

        They take no more than the cache holds, and wait for room until what was read is used; they do not wait for rows
        that are not committed yet, whatever the source does. Nothing is raised here: a slice that could not be read
        ahead is read, or rejected, when it is fetched. FailedPreconditionError if it is for
        a step that has not begun.
        """
        if not self._begun and not next_step:
            raise unmet("prefetch", "begin_step comes first, unless it is for the next step")
        for plan, sequences in batches:
            step = self._step + int(next_step)
            listed = None if sequences is None else list(sequences)
            self._workers.add(step, functools.partial(self._ahead, plan, listed, step))

    def drain(self, timeout: float) -> bool:
        """Waits until all that was announced is read; False if that takes longer."""
        return self._workers.drain(timeout)

    def close(self) -> None:
        """Stops the threads, and everybody who waits here: CancelledError."""
        self._closed = True
        self._stopping.set()
        LIBRARY.rrt_step_cache_stop(self._cache.pointer)
        self._workers.stop(self._deadline)

    def counts(self) -> dict[str, float]:
        """Since the last call: fetches, their wait_s (seconds), timeouts, hits and misses of slices, evictions,
        bytes_read, ahead_failures; and as it is: bytes and most_bytes that are held, slices."""
        cache = _core.StepCacheCounts()
        LIBRARY.rrt_step_cache_counters(self._cache.pointer, byref(cache))
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
            for name, before in self._seen.items():
                self._seen[name] = getattr(cache, name)
                counts[name] = self._seen[name] - before
        return {**counts, **{name: getattr(cache, name) for name in ("bytes", "most_bytes", "slices")}}

    def __enter__(self) -> StepSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._stopping.set()
            LIBRARY.rrt_step_cache_stop(self._cache.pointer)
            self._workers.stop(0)

    def _fetched(
        self, plan: Plan, sequences: Sequence[FetchSequence] | None, missing: Missing, target: Any = None
    ) -> _Fetch:
        fetch = self._start(plan, sequences, missing)
        started = time.monotonic()
        try:
            self._read(fetch, _NOW, started + self._left(), missing)
        finally:
            self._count(time.monotonic() - started)
        return fetch

    def _left(self) -> float:
        with self._lock:
            return self._deadline - (self._waited if self._begun else 0.0)

    def _count(self, seconds: float, fetches: int = 1) -> None:
        with self._lock:
            self._waited += seconds
            self._counts["fetches"] += fetches
            self._counts["wait_s"] += seconds

    def _start(self, plan: Plan, sequences: Sequence[FetchSequence] | None, missing: Missing) -> _Fetch:
        return self._source._start(plan, sequences, missing)

    def _bring(self, fetch: _Fetch, timeout: float | None, target: Any = None) -> None:
        """Past the cache and the deadline of the step."""
        self._source._bring(fetch, timeout)

    def _read(self, fetch: _Fetch, ahead: int, end: float, missing: Missing) -> None:
        """All rows of the fetch until `end`, or what is there then, as the policy says."""
        cached = self._begun or ahead != _NOW
        if cached:
            LIBRARY.rrt_step_cache_attach(self._cache.pointer, fetch.pointer, ahead)
        try:
            while not cached or _has_to_read(fetch, _until(end)):
                self._patiently(lambda: self._source._bring(fetch, _some(end)), end)
                if not cached:
                    return
        except (TimeoutError, ConnectionError) as error:
            with self._lock:
                self._counts["timeouts"] += ahead == _NOW
            why = f"fetches of the step may wait {self._deadline:g} s together: {error}"
            if missing == "strict":
                raise errors.DeadlineExceededError(f"fetch: {why}", code_name="DEADLINE_EXCEEDED") from error
            fetch.give_up(why)
        finally:
            # Here, not when the last traceback that knows the fetch is gone: others wait for what it was to read.
            LIBRARY.rrt_step_cache_detach(fetch.pointer)

    def _patiently(self, attempt: Any, end: float) -> Any:
        """Tries again, until `end`, while the service is unavailable."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except ConnectionError:
                if _until(end) <= pause or self._stopping.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _ahead(self, plan: Plan, sequences: Sequence[FetchSequence] | None, step: int) -> None:
        """In a thread."""
        now = self._step
        if step < now:
            return
        try:
            fetch = self._start(plan, sequences, "live")
            ahead = _IN_STEP if step == now else _OF_NEXT_STEP
            self._read(fetch, ahead, time.monotonic() + self._deadline, "live")
        except errors.CancelledError:
            pass
        except Exception:
            # Whoever fetches these rows is told.
            with self._lock:
                self._counts["ahead_failures"] += 1


def _has_to_read(fetch: _Fetch, seconds: float) -> bool:
    """Waits for what others read, and says whether the fetch is to read something itself."""
    reads = ctypes.c_int32()
    LIBRARY.rrt_step_cache_next(fetch.pointer, max(0, int(seconds * 1000)), byref(reads))
    return bool(reads.value)


def _until(end: float) -> float:
    return max(0.0, end - time.monotonic())


def _some(end: float) -> float:
    """Not for a call that could not even begin."""
    left = _until(end)
    if not left:
        raise errors.DeadlineExceededError("nothing of it is left", code_name="DEADLINE_EXCEEDED")
    return left


_LIVING: weakref.WeakSet[StepSource] = weakref.WeakSet()
_LEFT_BEHIND: list[Any] = []


def _after_fork() -> None:
    """In the child, where the threads that held locks or were reading are gone: nothing of theirs is touched."""
    for source in list(_LIVING):
        _LEFT_BEHIND.append((source._cache, source._workers, source._lock, source._stopping))
        source._reset()
        if source._closed:
            source.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
