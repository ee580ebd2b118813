"""What a client, its runs and their appenders share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from routing_replay import _native
from routing_replay._native import Operation
from routing_replay.appender import Line, linger
from routing_replay.errors import CancelledError, FailedPreconditionError
from routing_replay.types import CheckpointProgress

if TYPE_CHECKING:
    from routing_replay.run import RunCalls

Path = str | os.PathLike[str]
OnProgress = Callable[[CheckpointProgress], None]


class Link:
    """What a client, its runs and their appenders share: who is there, so that closing the client closes all.

    pid: of the only process that may use it
    """

    def __init__(self, client: _native.Handle, pid: int | None) -> None:
        self._client: _native.Handle | None = client
        self._pid = pid
        self.runs: weakref.WeakSet[RunCalls] = weakref.WeakSet()
        self.lines: set[Line] = set()  # Appenders that are not closed.
        weakref.finalize(self, linger, self.lines).atexit = False

    def check(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise FailedPreconditionError("an asyncio client does not survive os.fork; make a new one")

    @property
    def client(self) -> _native.Handle:
        self.check()
        if self._client is None:
            raise closed()
        return self._client

    def drop(self) -> None:
        """Calls that are under way go on."""
        self._client = None
        for run in list(self.runs):
            run.drop_native()


def closed() -> CancelledError:
    return CancelledError("the client is closed")


class Progressing:
    """Tells of progress: on the thread that works, or by `post`. What `on_progress` raises ends the work."""

    def __init__(self, on_progress: OnProgress | None, post: Callable[..., object] | None = None) -> None:
        self._on_progress = on_progress
        self._post = post
        self.error: BaseException | None = None
        self.function = _native.Progress() if on_progress is None else _native.Progress(self._call)

    def _call(self, context: Any, samples: int, total: int, size: int) -> int:
        progress = CheckpointProgress(samples, total, size)
        self._tell(progress) if self._post is None else self._post(self._tell, progress)
        return self.error is not None

    def _tell(self, progress: CheckpointProgress) -> None:
        if self.error is None and self._on_progress is not None:
            try:
                self._on_progress(progress)
            except BaseException as error:
                self.error = error

    def done(self, operation: Operation[Any]) -> Any:
        """Blocks, in this thread where it is told of progress."""
        try:
            return operation.wait() if self._on_progress is None else operation.here()
        finally:
            if self.error is not None:
                raise self.error
