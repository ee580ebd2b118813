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
from routing_replay._transport import SERVICE, call_seconds, channel_options, check_fork, core_error, note_use

_POLL_SECONDS = 0.05  # How often is looked for an endpoint's file.


class Closing(Protocol):
    """What a transport closes before it closes itself."""

    async def close(self, timeout: float) -> None: ...


class Transport:
    """A channel that is made when it is first used. For one event loop."""

    def __init__(self, endpoint: str | None, use_http_proxy: bool, call_timeout: float | None) -> None:
        self._target = _core.Target(endpoint)
        self.call_timeout = call_seconds(call_timeout)
        self._options = channel_options(use_http_proxy)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self.appenders: set[Closing] = set()  # Not closed yet; each adds and discards itself.
        self._pid = os.getpid()

    async def channel(self) -> grpc.aio.Channel:
        """Raises CancelledError once closed, FailedPreconditionError after a fork."""
        if self._closed:
            raise errors.CancelledError("the client is closed")
        if self._pid != os.getpid():
            raise errors.FailedPreconditionError("an asyncio client does not survive os.fork; make a new one")
        check_fork()
        if self._channel is None:
            note_use()
            target = self._target.known
            if target is None:
                target = await self._wait_for_target()
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(target, self._options)
        return self._channel

    async def _wait_for_target(self) -> str:
        """As Target.wait; the loop goes on, and no thread waits."""
        deadline = time.monotonic() + self.call_timeout
        while time.monotonic() + _POLL_SECONDS < deadline:
            with contextlib.suppress(errors.DeadlineExceededError):
                return self._target.wait(0)
            await asyncio.sleep(_POLL_SECONDS)
        return self._target.wait(max(0.0, deadline - time.monotonic()))

    def failed(self, failure: grpc.aio.AioRpcError) -> _core.CoreError:
        """As routing_replay._transport.Transport.failed."""
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            self._look_again()
        return core_error(failure)

    def _look_again(self) -> None:
        if self._target.look_again():
            self._channel = None

    async def call(self, method: str, request: bytes, repeat: bool = True) -> bytes:
        """As routing_replay._transport.Transport.call."""
        deadline = time.monotonic() + self.call_timeout
        retry = _core.Retry(int(deadline * 1e9))
        if not repeat:
            self._look_again()
        while True:
            stub = (await self.channel()).unary_unary(SERVICE + method)
            try:
                return await stub(request, timeout=max(0.0, deadline - time.monotonic()), wait_for_ready=not repeat)
            except grpc.aio.AioRpcError as failure:
                error = self.failed(failure)
            wait = retry.wait(error, time.monotonic_ns()) if repeat else None
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
