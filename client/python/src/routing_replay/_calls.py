"""Calls of the library that may wait: here, or with an end in a queue."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_void_p
from typing import Any, Generic, TypeVar

from routing_replay import _native
from routing_replay._native import Call, Ended, Handle, check, lib, make
from routing_replay.errors import RoutingReplayError

T = TypeVar("T")


class Operation(Generic[T]):
    """A call that may wait, with its arguments, which have to live until it has ended.

    function: of the library: inputs, the rr_call, and where its output goes
    read: from the output to what the call gives; `discard` is for one that nobody wants any more
    """

    __slots__ = ("_function", "_inputs", "_kept", "_outputs", "_read", "_timeout_ms", "discard")

    def __init__(
        self,
        function: Any,
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        read: Callable[[], T],
        discard: Callable[[], object] | None = None,
        timeout: float | None = None,
        kept: Any = None,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._outputs = outputs
        self._read = read
        self.discard = discard
        self._timeout_ms = -1 if timeout is None else round(timeout * 1000)
        self._kept = kept

    def by(self, end: float) -> Operation[T]:
        """This one, which has to end at that time of time.monotonic()."""
        self._timeout_ms = max(0, round((end - time.monotonic()) * 1000))
        return self

    def start(self, queue: int, tag: int) -> None:
        """Its end comes out of the queue. Raises what is wrong with the arguments."""
        check(self._function(*self._inputs, byref(Call(self._timeout_ms, queue, tag)), *self._outputs))

    def result(self) -> T:
        """Once, after its end without an error."""
        return self._read()

    def here(self) -> T:
        """Blocks."""
        check(self._function(*self._inputs, byref(Call(self._timeout_ms, None, 0)), *self._outputs))
        return self._read()

    def wait(self) -> T:
        """Blocks; in the main thread a signal's handler is called meanwhile, and what it raises ends the call."""
        if threading.get_ident() != _main_thread:
            return self.here()
        queue = _interruptible.pop() if _interruptible else Queue()
        try:
            self.start(queue.pointer, 1)
            ended = queue.wait_for_one(self)
        finally:
            _interruptible.append(queue)
        check(ended)
        return self._read()


def operation(
    function: Any,
    inputs: tuple[Any, ...],
    kind: Any,
    read: Callable[[Any], T],
    timeout: float | None = None,
    kept: Any = None,
) -> Operation[T]:
    """Of a function that gives a result, which `read` copies."""
    out = c_void_p()

    def take() -> T:
        owner = Handle(lib.rr_free, out.value)
        return read(kind.from_address(owner.pointer))

    return Operation(function, inputs, (byref(out),), take, lambda: Handle(lib.rr_free, out.value), timeout, kept)


class Queue:
    """rr_queue"""

    def __init__(self) -> None:
        self._handle = make(lib.rr_queue_free, lib.rr_queue_new)
        self.pointer: int = self._handle.pointer  # type: ignore[assignment]
        self.descriptor: int = lib.rr_queue_descriptor(self.pointer)
        self._ended = (Ended * 64)()

    def close(self) -> None:
        """Cancels what is under way, and waits for it."""
        self._handle.__del__()
        self._handle.pointer = None

    def take(self) -> list[tuple[int, int | None]]:
        """Tags and errors of what has ended."""
        count = lib.rr_queue_take(self.pointer, self._ended, len(self._ended))
        return [(one.tag, one.error) for one in self._ended[:count]]

    def cancel(self, tag: int) -> None:
        lib.rr_queue_cancel(self.pointer, tag)

    def wait_for_one(self, operation: Operation[Any]) -> int | None:
        """The error with which the only operation that is under way ends. What a signal's handler raises cancels it."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        while True:
            try:
                poll.poll()
                ended = self.take()
            except BaseException:
                self.cancel(1)
                self._drop(operation, poll)
                raise
            if ended:
                return ended[0][1]

    def _drop(self, operation: Operation[Any], poll: select.poll) -> None:
        """Waits for its end: until then its memory is written to."""
        ended: list[tuple[int, int | None]] = []
        while not ended:
            with contextlib.suppress(BaseException):  # A handler that raises again.
                poll.poll()
                ended = self.take()
        if ended[0][1] is not None:
            lib.rr_error_free(ended[0][1])
        elif operation.discard is not None:
            operation.discard()


_main_thread = threading.main_thread().ident
_interruptible: list[Queue] = []  # For waits of the main thread, which may be nested in a signal's handler.


# Lines of the library for people: to the logger "routing_replay".

_log = logging.getLogger("routing_replay")
_thread: threading.Thread | None = None
_lock = threading.Lock()


def pass_lines_on() -> None:
    """Starts a thread that does so, once."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_pass_on, name="routing-replay-log", daemon=True)
            _thread.start()


def _pass_on() -> None:
    def read(said: Any) -> list[str]:
        return [str(line) for line in said.data[: said.count]]

    while True:
        try:
            for line in operation(lib.rr_log, (), _native.Texts, read, timeout=1e9).here():
                _log.warning("%s", line)
        except RoutingReplayError:  # A fork, or nothing for a day.
            time.sleep(1)


def _after_fork_in_child() -> None:
    global _main_thread, _thread, _lock
    _main_thread = threading.main_thread().ident  # Whoever forked.
    lib.rr_fork_in_child()
    _interruptible.clear()
    _lock = threading.Lock()
    if _thread is not None:
        _thread = None
        pass_lines_on()


os.register_at_fork(
    before=lib.rr_fork_before, after_in_parent=lib.rr_fork_in_parent, after_in_child=_after_fork_in_child
)
