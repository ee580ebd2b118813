"""Threads that run jobs in the order given, until they are stopped."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Job(NamedTuple):
    """step: for which step it is; run once, unless that is over"""

    step: int
    run: Callable[[], None]


class Workers:
    """Starts its threads with the first job. Thread-safe. The threads are daemons and hold no reference to who made
    this, so neither an exception elsewhere nor the end of the program waits for them."""

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._stopped = False

    def add(self, job: Job) -> None:
        with self._changed:
            if self._stopped:
                return
            self._jobs.append(job)
            while len(self._threads) < self._count:
                thread = threading.Thread(target=self._work, name="routing-replay-prefetch", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def drop_before(self, step: int) -> None:
        """Jobs of steps that are over."""
        with self._changed:
            self._jobs = deque(job for job in self._jobs if job.step >= step)
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Waits until nothing is left to do; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def stop(self, timeout: float) -> None:
        """What has not begun never will; waits so many seconds for what has."""
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
                job = self._jobs.popleft()
                self._running += 1
            try:
                job.run()
            finally:
                del job
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
