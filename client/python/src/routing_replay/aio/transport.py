"""The channel to a server over grpc.aio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Protocol

import grpc
import grpc.aio

from routing_replay import _core, _values, errors
from routing_replay._transport import (
    SERVICE,
    UNAVAILABLE,
    Connection,
    Metadata,
    channel_options,
    check_fork,
    core_error,
    credentials_of,
    is_refusal,
    judged,
    metadata_of,
    note_use,
    security_of,
)

_POLL_SECONDS = 0.05  # How often is looked for an endpoint's file.


class Closing(Protocol):
    """What a transport closes before it closes itself."""

    async def close(self, timeout: float) -> None: ...


class Transport:
    """A channel that is made when it is first used. For one event loop."""

    def __init__(self, endpoint: str | None, connection: Connection) -> None:
        self._security = security_of(connection)
        self._servers = _core.Servers(endpoint)
        self._server: _core.Server | None = None  # That the channel leads to, …
        self._keys: _core.ChannelKeys | None = None  # … and what it was made with.
        self.call_timeout = connection.call_timeout
        self._options = channel_options(connection.use_http_proxy)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self.appenders: set[Closing] = set()  # Not closed yet; each adds and discards itself.
        self._pid = os.getpid()

    async def channel(self) -> grpc.aio.Channel:
        """Raises CancelledError once closed, FailedPreconditionError after a fork. Who calls on it keeps it: a channel
        that is freed ends its calls."""
        if self._closed:
            raise errors.CancelledError("the client is closed")
        if self._pid != os.getpid():
            raise errors.FailedPreconditionError("an asyncio client does not survive os.fork; make a new one")
        check_fork()
        if self._channel is None:
            note_use()
            server = await self._wait_for_server()
            keys = self._security.channel(server.judged)
            if self._channel is None:
                options = [*self._options, *server.channel_options, *keys.channel_options]
                if keys.encrypted:
                    self._channel = grpc.aio.secure_channel(server.target, credentials_of(keys), options)
                else:
                    self._channel = grpc.aio.insecure_channel(server.target, options)
                self._server, self._keys = server, keys
        return self._channel

    async def _wait_for_server(self) -> _core.Server:
        """As Servers.present; the loop goes on, and no thread waits."""
        deadline = time.monotonic() + self.call_timeout
        while time.monotonic() + _POLL_SECONDS < deadline:
            with contextlib.suppress(errors.DeadlineExceededError):
                return self._servers.present(0)
            await asyncio.sleep(_POLL_SECONDS)
        return self._servers.present(max(0.0, deadline - time.monotonic()))

    @property
    def has_others(self) -> bool:
        """As routing_replay._transport.Transport.has_others."""
        return self._servers.has_others

    def metadata(self) -> Metadata:
        """As routing_replay._transport.Transport.metadata."""
        return metadata_of(self._security)

    def failed(
        self, channel: grpc.aio.Channel | None, failure: grpc.aio.AioRpcError, metadata: Metadata
    ) -> _core.CoreError:
        """As routing_replay._transport.Transport.failed."""
        error = core_error(failure)
        if error.code == UNAVAILABLE:
            self.leave(channel)
        return judged(self._security, error, metadata)

    def leave(self, channel: grpc.aio.Channel | None) -> None:
        """As routing_replay._transport.Transport.leave."""
        if self._server is not None and channel is self._channel:
            self._servers.on_unavailable(self._server)
            self._follow()

    def _follow(self) -> None:
        with contextlib.suppress(errors.DeadlineExceededError, errors.InvalidArgumentError):
            server = self._servers.present(0)
            keys = self._security.channel(server.judged)
            if self._server is not None and (self._server.target, self._keys) != (server.target, keys):
                self._channel = self._server = None

    async def call(self, method: str, request: bytes, repeat: bool = True) -> bytes:
        """As routing_replay._transport.Transport.call."""
        return await self._call(method, request, repeat, time.monotonic() + self.call_timeout)

    async def _call(self, method: str, request: bytes, repeat: bool, deadline: float) -> bytes:
        retry = _core.Retry(int(deadline * 1e9))
        if not repeat:
            self._servers.look_again()
            self._follow()
            if self.has_others:
                await self._call("GetServerInfo", b"", True, deadline)
        while True:
            channel = await self.channel()
            stub = channel.unary_unary(SERVICE + method)
            metadata = self.metadata()
            left = max(0.0, deadline - time.monotonic())
            try:
                return await stub(request, timeout=left, metadata=metadata, wait_for_ready=not repeat)
            except grpc.aio.AioRpcError as failure:
                error = self.failed(channel, failure, metadata)
                again = repeat or is_refusal(failure)
            wait = retry.wait(error, time.monotonic_ns()) if again else None
            if wait is None:
                raise error.exception()
            await asyncio.sleep(wait)

    async def close(self, timeout: float) -> None:
        """As routing_replay._transport.Transport.close."""
        _values.seconds(timeout)
        for appender in list(self.appenders):
            await appender.close(timeout)
        channel, self._channel = self._channel, None
        self._closed = True
        if channel is not None and self._pid == os.getpid():
            await channel.close()
