"""The channel to a server over the grpcio of the host process."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Protocol

# gRPC looks once, when it is imported; without it any call in a forked child may hang.
_FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
if "grpc" not in sys.modules:
    os.environ.setdefault(_FORK_VARIABLE, "1")
_SUPPORTS_FORK = os.environ.get(_FORK_VARIABLE, "0").lower() in ("1", "y", "yes", "t", "true", "on", "enabled")

import grpc  # noqa: E402

from routing_replay import _core, _fork, _values, errors  # noqa: E402

SERVICE = "/routing_replay.v1.RoutingReplay/"
DEFAULTS = _core.defaults()
_grpc_in_use = False
_lost_in_fork = False


def core_error(failure: Any) -> _core.CoreError:
    """What a failed call of grpc or of grpc.aio says."""
    details = b""
    for key, value in failure.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details = value
    return _core.rpc_error(failure.code().value[0], failure.details() or "", details)


def note_use() -> None:
    """Said before a channel is made."""
    global _grpc_in_use
    _grpc_in_use = True


def check_fork() -> None:
    """FailedPreconditionError in a child whose gRPC would hang or crash: it was in use when the process was forked, and
    had not been told to expect that."""
    if _lost_in_fork:
        raise errors.FailedPreconditionError(
            f"gRPC was in use before os.fork and without fork support: set {_FORK_VARIABLE}=1 before grpc is "
            "imported, import routing_replay before grpc, or start the process with spawn"
        )


# Who reads waits for messages itself, where a thread of grpc between costs more than a small read.
REST_TIMEOUT = 2.0  # Seconds that a fork waits for a stream to end.
_READ_WITHOUT_THREAD = ("SingleThreadedUnaryStream", 1)  # grpc.experimental.ChannelOptions


def channel_options(use_http_proxy: bool) -> list[tuple[str, int]]:
    return [(name, value) for name, value in _core.defaults(use_http_proxy)["channel_options"]]


class Closing(Protocol):
    """What a transport closes before it closes itself."""

    def close(self, timeout: float) -> None: ...


def call_seconds(call_timeout: float | None) -> float:
    """With the default where nothing is given."""
    return DEFAULTS["call_timeout_ms"] / 1000 if call_timeout is None else _values.seconds(call_timeout, "call_timeout")


class Streaming(Closing, Protocol):
    """Such a thing with a stream of its own."""

    @property
    def streaming(self) -> bool: ...


class Transport:
    """A channel that is made when it is first used, anew in a process that was forked. Thread-safe."""

    def __init__(self, endpoint: str | None, use_http_proxy: bool, call_timeout: float | None) -> None:
        self._target = _core.Target(endpoint)
        self.call_timeout = call_seconds(call_timeout)
        self._options = channel_options(use_http_proxy)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False
        self.appenders: set[Streaming] = set()  # Not closed yet; each adds and discards itself.
        self._grpc_threads: set[threading.Thread] = set()  # Of streams that have ended.
        _fork.register(self)

    def channel(self) -> grpc.Channel:
        """Raises CancelledError once closed, and what `check_fork` says."""
        check_fork()
        note_use()
        target = self._target.wait(self.call_timeout)
        with self._lock:
            if self._closed:
                raise errors.CancelledError("the client is closed")
            if self._channel is None:
                self._channel = grpc.insecure_channel(target, [*self._options, _READ_WITHOUT_THREAD])
                _fork.note_channel()
            return self._channel

    def failed(self, failure: grpc.RpcError) -> _core.CoreError:
        """What a call on the channel says that failed. The next channel leads to where the endpoint's file says now, if
        there was no server."""
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            self._look_again()
        return core_error(failure)

    def _look_again(self) -> None:
        if self._target.look_again():
            with self._lock:
                self._channel = None

    def call(self, method: str, request: bytes, repeat: bool = True) -> bytes:
        """A unary call under the client's deadline. `repeat`: made again while the server is unavailable.

        Raises the RoutingReplayError of the last attempt.
        """
        deadline = time.monotonic() + self.call_timeout
        retry = _core.Retry(int(deadline * 1e9))
        if not repeat:  # Otherwise it would wait for a server that will not come back there.
            self._look_again()
        while True:
            stub = self.channel().unary_unary(SERVICE + method)
            try:
                return stub(request, timeout=max(0.0, deadline - time.monotonic()), wait_for_ready=not repeat)
            except grpc.RpcError as failure:
                error = self.failed(failure)
            wait = retry.wait(error, time.monotonic_ns()) if repeat else None
            if wait is None:
                raise error.exception()
            time.sleep(wait)

    def join_grpc(self, threads: set[threading.Thread]) -> None:
        """Waits for these threads of gRPC, whose stream has ended, when no stream is left.

        One thread serves all streams of the channel. A fork, and the end of the interpreter, would leave what they hold
        locked for ever.
        """
        with self._lock:
            self._grpc_threads |= threads
            if any(appender.streaming for appender in list(self.appenders)):
                return
            ended, self._grpc_threads = self._grpc_threads, set()
        for thread in ended - {threading.current_thread()}:
            thread.join(REST_TIMEOUT)

    def close(self, timeout: float) -> None:
        """Closes what is left of the appenders, for at most `timeout` seconds each, then the channel."""
        _values.seconds(timeout)
        for appender in list(self.appenders):
            appender.close(timeout)
        with self._lock:
            channel, self._channel = self._channel, None
            self._closed = True
        if channel is not None:
            channel.close()

    def _before_fork(self) -> None:
        """Nothing: the calls of the caller's own threads are the caller's."""

    def _after_fork_in_parent(self) -> None:
        """Nothing: the channel goes on."""

    def _after_fork_in_child(self) -> None:
        """The parent's threads are not here, and its channel must not be touched, not even freed."""
        self._lock = threading.Lock()
        self._grpc_threads = set()
        if self._channel is not None:
            _core.leak(self._channel)
            self._channel = None


def _after_fork() -> None:
    global _lost_in_fork
    _lost_in_fork = _lost_in_fork or (_grpc_in_use and not _SUPPORTS_FORK)


os.register_at_fork(after_in_child=_after_fork)
