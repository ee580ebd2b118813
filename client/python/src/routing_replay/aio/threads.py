"""What takes long, in threads, so that the loop goes on.

They are not those of the loop's own executor: a program that fills that one with callers who wait for an append would
wait for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Rows from here on are worth the way to a thread.
LARGE_BYTES = 1 << 18

_MAX_THREADS = 4

_pool: ThreadPoolExecutor | None = None


async def finish(large: bool, work: Callable[[], T]) -> T:
    """What `work` gives; in a thread if it is `large`.

    When this returns or raises, work is done or was never begun: a cancellation waits for it, so that what it uses and
    changes is never met half-way.
    """
    if not large:
        return work()
    job = _threads().submit(work)
    done = asyncio.wrap_future(job)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
            job.cancel()
    if cancelled is not None:
        if not done.cancelled():
            done.exception()  # Looked at, so that it is not logged.
        raise cancelled
    return done.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:  # A pool too many, of two loops, ends by itself.
        _pool = ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "routing-replay-aio")
    return _pool


def _after_fork() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_after_fork)
