"""One server, for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from routing_replay import _calls, _checkpoint, _shard_core, _values
from routing_replay._transport import connection_of
from routing_replay.aio import steps, threads
from routing_replay.aio.run import Run
from routing_replay.aio.transport import Transport
from routing_replay.geometry import Geometry
from routing_replay.types import RestoreOutcome, RunSummary, ServerInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.types import ConnectionOptions

T = TypeVar("T")


class Client:
    """As routing_replay.Client, for the event loop in which it is first used. Meanings and errors are the same.

    Endpoints "shard:…" are refused with InvalidArgumentError.
    """

    def __init__(self, endpoint: str | None = None, **options: Unpack[ConnectionOptions]) -> None:
        if _shard_core.shard(endpoint) is not None:
            raise _values.invalid("endpoint", "several servers as one are for routing_replay.Client, not for asyncio")
        self._transport = Transport(endpoint, connection_of(**options))

    async def run(
        self,
        name: str,
        geometry: Geometry | None = None,
        *,
        ttl: float | None = None,
        strict: bool = False,
        block_rows: int | None = None,
        codec: str | None = None,
        durability: str | None = None,
        resume_at: int | None = None,
        wait: float = 0.0,
    ) -> Run:
        """Makes the run, or joins it; see routing_replay.Client.run."""
        waiting = _calls.Waiting(name, wait) if wait else None
        call = _calls.open_run(name, geometry, ttl, strict, block_rows, codec, durability, resume_at)
        while True:
            try:
                return Run(self._transport, name, await self._do(call))
            except _calls.NOT_THERE as error:
                if waiting is None:
                    raise
                await asyncio.sleep(waiting.pause(error))

    async def restore(
        self,
        directory: _checkpoint.Directory,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        timeout: float = 120.0,
        on_progress: _checkpoint.OnProgress | None = None,
    ) -> RestoreOutcome:
        """See routing_replay.Client.restore; files are read in a thread, on_progress is called in the event loop."""
        source = await threads.finish(True, lambda: _checkpoint.source(directory, groups))
        contents = source.contents()
        geometry = Geometry.from_json(contents["geometry"])
        async with await self.run(contents["run"] if run is None else run, geometry) as opened:
            return await steps.drive(_checkpoint.restore(source, opened, timeout, on_progress))

    async def runs(self) -> list[RunSummary]:
        """The runs of the server."""
        runs: list[RunSummary] = []
        page_token = ""
        while True:
            page, page_token = await self._do(_calls.list_runs(page_token))
            runs += page
            if not page_token:
                return runs

    async def server_info(self) -> ServerInfo:
        """Version, memory, counters."""
        return await self._do(_calls.server_info())

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders, then closes the connection."""
        await self._transport.close(timeout)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _do(self, call: _calls.Call[T]) -> T:
        return call.read(await self._transport.call(call.method, call.request, call.repeat))
