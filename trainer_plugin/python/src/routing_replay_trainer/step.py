"""Wraps the source of a trainer's rows: caches the slices of a step, prefetches them, and applies one deadline per
step.

    source = StepSource(ServiceSource(run), cache_bytes=4 << 30, deadline=120.0)
    source.begin_step()
    source.prefetch([(plan, sequences), …])         # threads read while the trainer computes
    batch = source.fetch(plan, sequences=sequences, missing="live")   # in the log-prob pass, and in every epoch

`megatron.attach` and `hf.attach` wrap their source in a StepSource; the `begin_step` of the replay that they return
also begins the step here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import byref
from queue import SimpleQueue
from typing import Any

from routing_replay import errors
from routing_replay._values import INT64, integer, seconds

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, invalid, unmet
from routing_replay_trainer.fetch import FetchSequence, Missing, Source, _Fetch
from routing_replay_trainer.plan import Plan

_NOW, _AHEAD = 0, 1
_THREADS = 2  # Number of threads that prefetch.
_Jobs = SimpleQueue[Callable[[], Any] | None]


def _work(jobs: _Jobs) -> None:
    """Runs jobs in a daemon thread until it gets None. While it waits for a job, the thread holds no reference to the
    StepSource, and so does not keep it alive. The end of the program does not wait for the thread."""
    while (run := jobs.get()) is not None:
        run()
        del run


class StepSource(Source):
    """A source that reads each slice of a step only once, even if several passes need it.

    source: a LocalSource, ServiceSource or DirectorySource
    cache_bytes: limit for cached slices, whether prefetched or kept for later passes; 0: nothing is cached
    deadline: seconds that all fetches of a step together may wait, retries while the service is unavailable included.
        Samples that have not arrived then are missing, and `missing` of the fetch says what happens: "strict" raises
        DeadlineExceededError. If the ranks have agreed to replay such a sample, the fetch fails whatever `missing`
        says, because a rank must not fall back alone. Without begin_step, the deadline applies to each fetch, and
        nothing is cached, because only within a step are samples assumed not to change

    After `close`, fetches of a step raise CancelledError. Thread-safe if `source` is, but only in the process that made
    it.
    """

    def __init__(self, source: Source, *, cache_bytes: int = 1 << 30, deadline: float = 120.0) -> None:
        super().__init__(source.geometry)
        self._source = source
        self.deadline = seconds(deadline, "fetch_deadline")
        if self.deadline == 0:
            raise invalid("fetch_deadline", f"must be above 0 seconds, got {deadline!r}")
        self._cache_bytes = integer(cache_bytes, "cache_bytes", (0, INT64[1]))
        self._cache = _core.make(LIBRARY.rrt_step_cache_new, self._cache_bytes)
        self._process = os.getpid()
        self._jobs: _Jobs = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._step = 0
        self._begun = False
        self._waited = 0.0  # Seconds waited in this step.
        self._counts = {"wait_s": 0.0, "timeouts": 0}
        self._seen = dict.fromkeys(("hits", "misses", "bytes_read"), 0)  # Totals at the last `counts`.

    def begin_step(self, *, goes_on: bool = False) -> None:
        """Begins a step: evicts the slices of the previous step.

        goes_on: if True and there is a current step, it continues: all slices stay, and only the deadline starts again
        """
        with self._lock:
            self._waited = 0.0
            if goes_on and self._begun:
                return
            self._step, self._begun = self._step + 1, True
        LIBRARY.rrt_step_cache_end_step(self._cache.pointer)

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """As `Source.inspect`; waits until the step's deadline, or for `timeout` seconds if that ends earlier."""
        with self._waiting() as end:
            if timeout is not None:
                end = min(end, time.monotonic() + timeout)
            return self._source.inspect(sequences, timeout=_some(end))

    def prefetch(self, batches: Iterable[tuple[Plan, Sequence[FetchSequence] | None]]) -> None:
        """Announces micro-batches that will be fetched in this step with the same arguments: threads read their slices
        in this order.

        When the cache is full, the threads wait until cached slices are used. They never wait for rows that are not
        committed yet, even if the source does (wait=True). Read errors are not raised here: if a slice cannot be
        prefetched, its fetch reads it, or raises the error. Raises FailedPreconditionError if no step has begun.
        """
        if not self._begun:
            raise unmet("prefetch", "begin_step comes first")
        if not self._cache_bytes:
            return
        while len(self._threads) < _THREADS:
            name = "routing-replay-prefetch"
            self._threads.append(threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True))
            self._threads[-1].start()
        for plan, sequences in batches:
            self._jobs.put(functools.partial(self._ahead, plan, sequences, self._step))

    def close(self) -> None:
        """Stops the threads. Calls that wait raise CancelledError."""
        self._stop()
        for thread in self._threads:
            thread.join(self.deadline)

    def counts(self) -> dict[str, float]:
        """Returns counts since the last call: wait_s (seconds in fetches and inspections), timeouts, hits and misses of
        slices, bytes_read. Also returns `bytes`, the size of the slices that are in the cache at this moment."""
        cache = _core.StepCacheCounts()
        LIBRARY.rrt_step_cache_counters(self._cache.pointer, byref(cache))
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
            for name, before in self._seen.items():
                self._seen[name] = getattr(cache, name)
                counts[name] = self._seen[name] - before
        return {**counts, "bytes": cache.bytes}

    def __del__(self) -> None:
        if getattr(self, "_process", None) == os.getpid():  # After a fork the threads exist only in the parent.
            self._stop()

    def _stop(self) -> None:
        LIBRARY.rrt_step_cache_stop(self._cache.pointer)
        for _ in self._threads:
            self._jobs.put(None)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[float]:
        """Counts the time spent in this context as waiting. Yields the step's deadline as time.monotonic() tells it."""
        started = time.monotonic()
        with self._lock:
            left = self.deadline - (self._waited if self._begun else 0.0)
        try:
            yield started + left
        finally:
            with self._lock:
                self._waited += time.monotonic() - started
                self._counts["wait_s"] += time.monotonic() - started

    def _start(self, plan: Plan, sequences: Sequence[FetchSequence] | None, missing: Missing) -> _Fetch:
        return self._source._start(plan, sequences, missing)

    def _bring(self, fetch: _Fetch, timeout: float | None) -> None:
        with self._waiting() as end:
            self._read(fetch, _NOW, end)

    def _read(self, fetch: _Fetch, ahead: int, end: float) -> None:
        """Reads all rows of the fetch until the time `end`. If samples have not arrived by `end`, raises
        DeadlineExceededError under the policy "strict"; under other policies these samples fall back."""
        cached = self._begun
        if cached:
            LIBRARY.rrt_step_cache_attach(self._cache.pointer, fetch.pointer, ahead)
        try:
            while not cached or _has_to_read(fetch, end - time.monotonic()):
                self._source._bring(fetch, _some(end))
                if not cached:
                    return
        except (TimeoutError, ConnectionError) as error:
            with self._lock:
                self._counts["timeouts"] += ahead == _NOW
            why = f"fetches of the step may wait {self.deadline:g} s together: {error}"
            if fetch.missing == "strict":
                raise errors.DeadlineExceededError(f"fetch: {why}") from error
            fetch.give_up(why)
        finally:
            # Detach here, because a traceback may keep the fetch alive, and other fetches wait for slices that this
            # one was to read.
            LIBRARY.rrt_step_cache_detach(fetch.pointer)

    def _ahead(self, plan: Plan, sequences: Sequence[FetchSequence] | None, step: int) -> None:
        """Reads the rows of a micro-batch into the cache; called in a prefetch thread."""
        if step != self._step:
            return
        with contextlib.suppress(Exception):  # The error is raised when these rows are fetched.
            fetch = self._start(plan, sequences, "live")
            self._read(fetch, _AHEAD, time.monotonic() + self.deadline)


def _has_to_read(fetch: _Fetch, seconds: float) -> bool:
    """Returns True if this fetch must read slices itself. First may wait for other fetches (a prefetch: for room)."""
    reads = ctypes.c_int32()
    LIBRARY.rrt_step_cache_next(fetch.pointer, max(0, int(seconds * 1000)), byref(reads))
    return bool(reads.value)


def _some(end: float) -> float:
    """Returns the seconds that are left until `end`; raises DeadlineExceededError if there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise errors.DeadlineExceededError("the deadline passed before the read began")
    return left
