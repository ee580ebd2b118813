"""Calls of the library that may wait. Such a call either blocks or delivers its completion through a queue.

Each client method is written once, as a function that makes an `Operation`. `blocking` turns this function into a
method that waits for the operation; `routing_replay.aio` makes the coroutine method from it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from routing_replay import _native
from routing_replay._native import Call, Ended, Handle, check, lib, made
from routing_replay.errors import FailedPreconditionError, RoutingReplayError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")

_HANDLER_MS = 50  # The longest wait in the library, in milliseconds, before Python can run signal handlers.
PLAIN_CALL = byref(Call(-1, None, 0))


@dataclass(slots=True)
class Operation(Generic[T]):
    """A call that may wait, together with its arguments, which must stay alive until the call has ended.

    function: the library function; it takes the inputs, the rr_call and the output pointers
    read: makes the result from the outputs; by default the result is None
    discard: frees the outputs of a call that was cancelled but succeeded before the cancellation took effect
    timeout: seconds; None: the client's call_timeout
    kept: objects that must stay alive while the call runs
    """

    function: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    read: Callable[[], Any] = lambda: None
    discard: Callable[[], object] | None = None
    timeout: float | None = None
    kept: Any = None

    def then(self, convert: Callable[[T], U]) -> Operation[U]:
        """The same operation, with `convert` applied to its result."""
        read = self.read
        self.read = lambda: convert(read())
        return self  # type: ignore[return-value]

    def start(self, queue: int, tag: int) -> None:
        """Starts the call; its completion is delivered through the queue. Raises errors in the arguments at once."""
        check(self.function(*self.inputs, self._call(queue, tag), *self.outputs))

    def _call(self, queue: int | None, tag: int) -> Any:
        return byref(Call(-1 if self.timeout is None else round(self.timeout * 1000), queue, tag))

    def end(self, error: int | None) -> T:
        """Returns the result of a call that has ended, or raises its error. To be called only once."""
        check(error)
        result: T = self.read()
        return result

    def drop(self, error: int | None) -> None:
        """Frees the error or the outputs of a call that was cancelled, because nobody will use them."""
        if error is not None:
            lib.rr_free(error)
        elif self.discard is not None:
            self.discard()

    def here(self) -> T:
        """Makes the call in this thread and blocks until it has ended."""
        return self.end(self.function(*self.inputs, self._call(None, 0), *self.outputs))

    def wait(self) -> T:
        """Blocks until the call ends. In the main thread signal handlers run meanwhile, and an exception in a handler
        cancels the call."""
        if not in_main_thread():
            return self.here()
        try:
            queue = _interruptible.pop()
        except IndexError:
            queue = Queue()
        return self.end(queue.wait_for(self))


def making(
    function: Any, inputs: tuple[Any, ...], timeout: float | None, kept: Any, free: Any = lib.rr_object_free
) -> Operation[Handle]:
    """Makes the operation for a library function that creates an object, which `free` frees."""
    out = c_void_p()

    def handle() -> Handle:
        return Handle(free, out.value)

    return Operation(function, inputs, (byref(out),), handle, handle, timeout, kept)


def operation(
    function: Any,
    inputs: tuple[Any, ...],
    kind: Any,
    read: Callable[[Any], T],
    timeout: float | None = None,
    kept: Any = None,
) -> Operation[T]:
    """Makes the operation for a library function that returns a structure; `read` copies the structure to a Python
    value."""
    owner = making(function, inputs, timeout, kept, lib.rr_free)
    return owner.then(lambda owner: read(kind.from_address(owner.pointer)))


def in_main_thread() -> bool:
    """True in the thread in which Python runs signal handlers; there a wait must be interruptible."""
    return threading.get_ident() == _main_thread


def blocking(build: Callable[Concatenate[S, P], Operation[T]]) -> Callable[Concatenate[S, P], T]:
    """Makes the blocking form of the method `build`: same parameters, but it returns the result, not an Operation."""

    @functools.wraps(build)
    def call(self: S, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return build(self, *arguments, **keywords).wait()

    signature = inspect.signature(build)
    result = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    call.__annotations__ = {**build.__annotations__, "return": result}
    call.build = build  # type: ignore[attr-defined]
    return call


class Queue(Handle):
    """A completion queue (rr_queue). ended: the buffer into which `take` writes the calls that have ended"""

    __slots__ = ("descriptor", "ended")

    def __init__(self) -> None:
        super().__init__(lib.rr_object_free, made(lib.rr_queue_new))
        self.descriptor: int = lib.rr_queue_descriptor(self.pointer)
        self.ended = (Ended * 64)()

    def close(self) -> None:
        """Cancels the running calls and waits for them."""
        pointer, self.pointer = self.pointer, None
        self._free(pointer)

    def take(self) -> int:
        """Takes calls that have ended, and returns their number."""
        count: int = lib.rr_queue_take(self.pointer, self.ended, len(self.ended))
        return count

    def cancel(self, tag: int) -> None:
        lib.rr_queue_cancel(self.pointer, tag)

    def wait_for(self, operation: Operation[Any]) -> int | None:
        """Starts the operation, which must be the only one in this queue, waits for it, and returns its error. An
        exception in a signal handler cancels the operation."""
        ended = self.ended[0]
        ended.tag, pid = 0, os.getpid()
        try:
            _waiting[self] = operation
            operation.start(self.pointer, 1)
            while not lib.rr_queue_wait(self.pointer, _HANDLER_MS, byref(ended)):
                if os.getpid() != pid:
                    raise FailedPreconditionError("the process forked in a signal handler, while the call waited")
        except BaseException:
            # A handler may raise again before the operation has ended. Then queue and operation stay in _waiting, and
            # are never freed.
            with contextlib.suppress(BaseException):
                self.close()
                operation.drop(ended.error if ended.tag else None)
                del _waiting[self]
            raise
        del _waiting[self]
        _interruptible.append(self)
        return ended.error


_main_thread = threading.main_thread().ident
# Idle queues for waits in the main thread; there may be several, because a signal handler may wait, too.
_interruptible: list[Queue] = []
# The operations for which the main thread waits, by queue. Kept here, because the library writes to the memory of an
# operation until the operation has ended.
_waiting: dict[Queue, Operation[Any]] = {}


# A thread passes the library's log lines to the logger "routing_replay".

_log = logging.getLogger("routing_replay")
_thread: threading.Thread | None = None
_lock = threading.Lock()


def pass_lines_on() -> None:
    """Starts the thread that logs the library's lines, unless it runs already."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_pass_on, name="routing-replay-log", daemon=True)
            _thread.start()


def _pass_on() -> None:
    while True:
        try:
            for line in operation(lib.rr_log, (), _native.Texts, lambda lines: list(map(str, lines)), 1e9).here():
                _log.warning("%s", line)
        except RoutingReplayError:  # The process forked, or the wait timed out.
            time.sleep(1)


def _after_fork_in_child() -> None:
    global _main_thread, _thread, _lock
    _main_thread = threading.main_thread().ident  # The child's main thread is the thread that called fork.
    lib.rr_fork_in_child()
    _interruptible.clear()
    _lock = threading.Lock()
    if _thread is not None:
        _thread = None
        pass_lines_on()


os.register_at_fork(
    before=lib.rr_fork_before, after_in_parent=lib.rr_fork_in_parent, after_in_child=_after_fork_in_child
)
