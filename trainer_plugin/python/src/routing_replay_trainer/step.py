"""Between a trainer and the source of its rows: caches the slices of a step, reads ahead, and applies one deadline.

    source = StepSource(ServiceSource(run), cache_bytes=4 << 30, deadline=120.0)
    source.begin_step()
    source.prefetch([(plan, sequences), …])         # threads read while the trainer computes
    batch = source.fetch(plan, sequences=sequences, missing="live")   # in the log-prob pass, and in every epoch

`megatron.attach` and `hf.attach` put one around their source; the `begin_step` of what they return begins its steps.
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
from routing_replay._values import INT64, integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, seconds, unmet
from routing_replay_trainer.fetch import FIRST_PAUSE, LONGEST_PAUSE, FetchSequence, Missing, Source, _Fetch
from routing_replay_trainer.plan import Plan

_NOW, _IN_STEP, _OF_NEXT_STEP = 0, 1, 2
_THREADS = 2  # Threads that read ahead.
_Jobs = SimpleQueue[Callable[[], Any] | None]


def _work(jobs: _Jobs) -> None:
    """Runs jobs in a daemon thread that holds no reference to its owner, so neither an exception elsewhere nor the end
    of the program waits for it. None ends it."""
    while (run := jobs.get()) is not None:
        run()
        del run


class StepSource(Source):
    """A source that reads every slice of a step once, although several passes need it.

    source: a LocalSource, ServiceSource or DirectorySource
    cache_bytes: held at most for slices, read ahead or for later passes; 0: nothing is
    deadline: seconds that all fetches of a step together may wait, trying again while the service is unavailable. What
        has not come then is missing, and `missing` of the fetch says what that means: DeadlineExceededError under
        "strict". What the ranks had agreed to replay is an error in any case: a rank cannot fall back alone.
        Where no step is begun it is that of each fetch, and nothing is kept: only within a step are samples taken to
        stay what they are

    Fetches raise DeadlineExceededError, CancelledError after `close`. Thread-safe as the source is, in the process that
    made it.
    """

    def __init__(self, source: Source, *, cache_bytes: int = 1 << 30, deadline: float = 120.0) -> None:
        super().__init__(source.geometry)
        self._source = source
        self.deadline = seconds(deadline, "fetch_deadline")
        self._cache_bytes = integer(cache_bytes, "cache_bytes", (0, INT64[1]))
        self._cache = _core.make(LIBRARY.rrt_step_cache_new, self._cache_bytes)
        self._process = os.getpid()
        self._jobs: _Jobs = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._step = 0
        self._begun = False
        self._waited = 0.0  # In this step.
        self._counts = {"wait_s": 0.0, "ahead_failures": 0, "timeouts": 0}
        self._seen = dict.fromkeys(("hits", "misses", "evictions", "bytes_read"), 0)  # Values of the last `counts`.

    def begin_step(self, *, goes_on: bool = False) -> None:
        """Begins a step: drops what was read for the previous one, but not what was read ahead for this one.

        goes_on: continues the present step, if there is one: everything stays, and only the deadline starts again
        """
        with self._lock:
            self._waited = 0.0
            if goes_on and self._begun:
                return
            self._step, self._begun = self._step + 1, True
        LIBRARY.rrt_step_cache_end_step(self._cache.pointer)

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """As `Source.inspect`; waits as long as the step's deadline allows."""
        with self._waiting() as end:
            if timeout is not None:
                end = min(end, time.monotonic() + timeout)
            return self._patiently(lambda: self._source.inspect(sequences, timeout=_some(end)), end)

    def prefetch(
        self, batches: Iterable[tuple[Plan, Sequence[FetchSequence] | None]], *, next_step: bool = False
    ) -> None:
        """Announces micro-batches, as `fetch` will be called for them: threads read their slices in this order.

        next_step: for the step that `begin_step` begins next

        They take no more than the cache holds, and wait for room until what was read is used; they do not wait for rows
        that are not committed yet, whatever the source does. Nothing is raised here: a slice that could not be read
        ahead is read, or rejected, when it is fetched. FailedPreconditionError if it is for a step that has not begun.
        """
        if not self._begun and not next_step:
            raise unmet("prefetch", "begin_step comes first, unless it is for the next step")
        if not self._cache_bytes:
            return
        while len(self._threads) < _THREADS:
            name = "routing-replay-prefetch"
            self._threads.append(threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True))
            self._threads[-1].start()
        for plan, sequences in batches:
            self._jobs.put(functools.partial(self._ahead, plan, sequences, self._step + int(next_step)))

    def close(self) -> None:
        """Stops the threads, and all waiting calls: CancelledError."""
        self._stop()
        for thread in self._threads:
            thread.join(self.deadline)

    def counts(self) -> dict[str, float]:
        """Since the last call: wait_s (seconds of fetches), timeouts, hits and misses of slices, evictions, bytes_read,
        ahead_failures; and the present values of bytes and most_bytes."""
        cache = _core.StepCacheCounts()
        LIBRARY.rrt_step_cache_counters(self._cache.pointer, byref(cache))
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
            for name, before in self._seen.items():
                self._seen[name] = getattr(cache, name)
                counts[name] = self._seen[name] - before
        return {**counts, "bytes": cache.bytes, "most_bytes": cache.most_bytes}

    def __del__(self) -> None:
        if getattr(self, "_process", None) == os.getpid():  # After a fork the threads belong to the parent.
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        LIBRARY.rrt_step_cache_stop(self._cache.pointer)
        for _ in self._threads:
            self._jobs.put(None)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[float]:
        """The time until which the deadline allows to wait; time inside this context counts."""
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
        """All rows of the fetch until `end`; those that have not arrived then fall back, by the policy."""
        cached = self._begun or ahead != _NOW
        if cached:
            LIBRARY.rrt_step_cache_attach(self._cache.pointer, fetch.pointer, ahead)
        try:
            while not cached or _has_to_read(fetch, end - time.monotonic()):
                self._patiently(lambda: self._source._bring(fetch, _some(end)), end)
                if not cached:
                    return
        except (TimeoutError, ConnectionError) as error:
            with self._lock:
                self._counts["timeouts"] += ahead == _NOW
            why = f"fetches of the step may wait {self.deadline:g} s together: {error}"
            if fetch.missing == "strict":
                raise errors.DeadlineExceededError(f"fetch: {why}", code_name="DEADLINE_EXCEEDED") from error
            fetch.give_up(why)
        finally:
            # Done here, not when the last traceback that holds the fetch is gone: others wait for what it was to read.
            LIBRARY.rrt_step_cache_detach(fetch.pointer)

    def _patiently(self, attempt: Any, end: float) -> Any:
        """Retries, until `end`, while the service is unavailable."""
        pause = FIRST_PAUSE
        while True:
            try:
                return attempt()
            except ConnectionError:
                if end - time.monotonic() <= pause or self._stopping.wait(pause):
                    raise
                pause = min(2 * pause, LONGEST_PAUSE)

    def _ahead(self, plan: Plan, sequences: Sequence[FetchSequence] | None, step: int) -> None:
        """Runs in a thread."""
        now = self._step
        if step < now or self._stopping.is_set():
            return
        try:
            fetch = self._start(plan, sequences, "live")
            self._read(fetch, _IN_STEP if step == now else _OF_NEXT_STEP, time.monotonic() + self.deadline)
        except errors.CancelledError:
            pass
        except Exception:
            # Whoever fetches these rows gets the error.
            with self._lock:
                self._counts["ahead_failures"] += 1


def _has_to_read(fetch: _Fetch, seconds: float) -> bool:
    """Waits for what others read, and returns whether the fetch must read something itself."""
    reads = ctypes.c_int32()
    LIBRARY.rrt_step_cache_next(fetch.pointer, max(0, int(seconds * 1000)), byref(reads))
    return bool(reads.value)


def _some(end: float) -> float:
    """Not for a call that could not even begin."""
    left = end - time.monotonic()
    if left <= 0:
        raise errors.DeadlineExceededError("no time is left", code_name="DEADLINE_EXCEEDED")
    return left
