"""One server, or several, for asyncio."""

from __future__ import annotations

import asyncio

from routing_replay import _values
from routing_replay._link import OnProgress, Path, Progressing
from routing_replay.aio._loop import done
from routing_replay.aio.appender import close_line
from routing_replay.aio.run import Run, progressed
from routing_replay.client import ClientCalls
from routing_replay.geometry import Geometry
from routing_replay.types import RestoreOutcome, RunSummary, ServerInfo


class Client(ClientCalls):
    """As routing_replay.Client, with the same parameters, for event loops. Meanings and errors are the same."""

    _survives_fork = False

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
        opening = self._opening(name, geometry, ttl, strict, block_rows, codec, durability, resume_at, wait)
        return Run(self._link, await done(opening))

    async def restore(
        self,
        directory: Path,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
    ) -> RestoreOutcome:
        """See routing_replay.Client.restore; on_progress is called in the event loop."""
        progressing = Progressing(on_progress, asyncio.get_running_loop().call_soon_threadsafe)
        return await progressed(progressing, self._restoring(directory, run, groups, timeout, progressing))

    async def runs(self) -> list[RunSummary]:
        """The runs of the server."""
        return await done(self._listing())

    async def server_info(self) -> ServerInfo:
        """Version, memory, counters."""
        return await done(self._asking())

    async def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders, then closes the connection."""
        seconds = _values.seconds(timeout)
        for line in list(self._link.lines):
            await close_line(line, seconds)
        self._link.lines.clear()
        self._link.drop()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
