"""The channel to a server over the grpcio of the host process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any, NamedTuple, Protocol

# gRPC looks once, when it is imported; without it any call in a forked child may hang.
_FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
if "grpc" not in sys.modules:
    os.environ.setdefault(_FORK_VARIABLE, "1")
_SUPPORTS_FORK = os.environ.get(_FORK_VARIABLE, "0").lower() in ("1", "y", "yes", "t", "true", "on", "enabled")

import grpc  # noqa: E402

from routing_replay import _core, _fork, _values, errors  # noqa: E402

_log = logging.getLogger("routing_replay")
SERVICE = "/routing_replay.v1.RoutingReplay/"
DEFAULTS = _core.defaults()
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
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


Metadata = tuple[tuple[str, str], ...] | None


def is_refusal(failure: Any) -> bool:
    """Whether the server did not take the token of a call."""
    return failure.code() is grpc.StatusCode.UNAUTHENTICATED


class Connection(NamedTuple):
    """How a Client gets to its servers, beside their endpoint."""

    use_http_proxy: bool
    call_timeout: float  # Seconds.
    security: dict[str, Any]  # As the core takes it.


def connection_of(
    use_http_proxy: bool = False,
    call_timeout: float | None = None,
    tls: bool = False,
    cacert: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    server_name: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Connection:
    """Of the ConnectionOptions of a Client."""
    files = {"cacert": cacert, "cert": cert, "key": key, "token_file": token_file}
    security: dict[str, Any] = {name: os.fspath(path) for name, path in files.items() if path is not None}
    security |= {"tls": bool(tls), "server_name": _values.text(server_name or "", "server_name")}
    seconds = DEFAULTS["call_timeout_ms"] / 1000
    if call_timeout is not None:
        seconds = _values.seconds(call_timeout, "call_timeout")
    return Connection(bool(use_http_proxy), seconds, security)


def security_of(connection: Connection) -> _core.Security:
    return _core.Security({**connection.security, "use_http_proxy": connection.use_http_proxy})


def metadata_of(security: _core.Security) -> Metadata:
    """What a call carries."""
    authorization = security.authorization()
    return (("authorization", authorization),) if authorization else None


def judged(security: _core.Security, error: _core.CoreError, metadata: Metadata) -> _core.CoreError:
    """What a failed call said; a token that was replaced meanwhile is a server that was away for a moment."""
    if metadata is not None and security.token_replaced(metadata[0][1], error):
        return _core.rpc_error(UNAVAILABLE, "the token was replaced meanwhile", b"")
    return error


def credentials_of(keys: _core.ChannelKeys) -> grpc.ChannelCredentials:
    root, key, certificate = (text.encode() or None for text in (keys.root_certificates, keys.key, keys.certificate))
    return grpc.ssl_channel_credentials(root, key, certificate)


def channel_options(use_http_proxy: bool) -> list[tuple[str, int]]:
    return [(name, value) for name, value in _core.defaults(use_http_proxy)["channel_options"]]


class Broken(Exception):
    """A stream that ended with an error. `refused`: the server did not take its token."""

    def __init__(self, error: _core.CoreError, refused: bool = False) -> None:
        super().__init__()
        self.error = error
        self.refused = refused

    def wait(self, retry: _core.Retry | None) -> float:
        """Seconds until a server is asked again. Raises the error where it is final."""
        wait = None if retry is None else retry.wait(self.error, time.monotonic_ns())
        if wait is None:
            raise self.error.exception() from None
        if not self.refused and retry is not None and not retry.told:
            retry.told = True
            _log.warning("a read waits for its server: %s", self.error.exception())
        return wait


class Closing(Protocol):
    """What a transport closes before it closes itself."""

    def close(self, timeout: float) -> None: ...


class Streaming(Closing, Protocol):
    """Such a thing with a stream of its own."""

    @property
    def streaming(self) -> bool: ...


class Transport:
    """A channel that is made when it is first used, anew in a process that was forked. Thread-safe."""

    def __init__(self, endpoint: str | None, connection: Connection) -> None:
        self._security = security_of(connection)
        self._servers = _core.Servers(endpoint)
        self._server: _core.Server | None = None  # That the channel leads to, …
        self._keys: _core.ChannelKeys | None = None  # … and what it was made with.
        self.call_timeout = connection.call_timeout
        self._options = channel_options(connection.use_http_proxy)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False
        self.appenders: set[Streaming] = set()  # Not closed yet; each adds and discards itself.
        self._grpc_threads: set[threading.Thread] = set()  # Of streams that have ended.
        _fork.register(self)

    def channel(self) -> grpc.Channel:
        """Raises CancelledError once closed, what `check_fork` says, and InvalidArgumentError for security settings
        that do not fit the server or their files."""
        check_fork()
        note_use()
        with self._lock:
            if self._channel is not None and not self._closed:
                return self._channel
        server = self._servers.present(self.call_timeout)
        keys = self._security.channel(server.judged)
        with self._lock:
            if self._closed:
                raise errors.CancelledError("the client is closed")
            if self._channel is None:
                options = [*self._options, *server.channel_options, *keys.channel_options, _READ_WITHOUT_THREAD]
                if keys.encrypted:
                    self._channel = grpc.secure_channel(server.target, credentials_of(keys), options)
                else:
                    self._channel = grpc.insecure_channel(server.target, options)
                self._server, self._keys = server, keys
                _fork.note_channel()
            return self._channel

    @property
    def has_others(self) -> bool:
        """Whether another server may be there when the present one is away."""
        return self._servers.has_others

    def metadata(self) -> Metadata:
        """What a new call carries. InvalidArgumentError where the token's file cannot be read."""
        return metadata_of(self._security)

    def failed(self, channel: grpc.Channel | None, failure: grpc.RpcError, metadata: Metadata) -> _core.CoreError:
        """What a call on the channel says that failed. If there was no server, the next channel leads to another one,
        or to where the endpoint's file says now."""
        error = core_error(failure)
        if error.code == UNAVAILABLE:
            self.leave(channel)
        return judged(self._security, error, metadata)

    def leave(self, channel: grpc.Channel | None) -> None:
        """No server answers there."""
        with self._lock:
            server = self._server if channel is self._channel else None
        if server is not None:
            self._servers.on_unavailable(server)
            self._follow()

    def _follow(self) -> None:
        """Lets go of a channel that would lead elsewhere by now, or be made with other certificates."""
        with contextlib.suppress(errors.DeadlineExceededError, errors.InvalidArgumentError):
            server = self._servers.present(0)
            keys = self._security.channel(server.judged)
            with self._lock:
                if self._server is not None and (self._server.target, self._keys) != (server.target, keys):
                    self._channel = self._server = None

    def call(self, method: str, request: bytes, repeat: bool = True) -> bytes:
        """A unary call under the client's deadline. `repeat`: made again while the server is unavailable, on the next
        one where there are several.

        Raises the RoutingReplayError of the last attempt.
        """
        return self._call(method, request, repeat, time.monotonic() + self.call_timeout)

    def _call(self, method: str, request: bytes, repeat: bool, deadline: float) -> bytes:
        retry = _core.Retry(int(deadline * 1e9))
        if not repeat:  # Otherwise it would wait for a server that will not come back there.
            self._servers.look_again()
            self._follow()
            if self.has_others:
                self._call("GetServerInfo", b"", True, deadline)  # Goes on to one that answers.
        while True:
            channel = self.channel()
            stub = channel.unary_unary(SERVICE + method)
            metadata = self.metadata()
            left = max(0.0, deadline - time.monotonic())
            try:
                return stub(request, timeout=left, metadata=metadata, wait_for_ready=not repeat)
            except grpc.RpcError as failure:
                error = self.failed(channel, failure, metadata)
                again = repeat or is_refusal(failure)  # Then nothing was made.
            wait = retry.wait(error, time.monotonic_ns()) if again else None
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
        endpoint, security = self._servers.endpoint, self._security.settings
        _core.leak((self._channel, self._servers, self._security))  # Somebody may have been in there.
        self._channel = self._server = None
        self._servers = _core.Servers(endpoint)
        self._security = _core.Security(security)


def _after_fork() -> None:
    global _lost_in_fork
    _lost_in_fork = _lost_in_fork or (_grpc_in_use and not _SUPPORTS_FORK)


os.register_at_fork(after_in_child=_after_fork)
