"""One server, or several that share a store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from routing_replay import _calls, _checkpoint, _shard_core
from routing_replay._shard import ShardTransport
from routing_replay._transport import Transport, connection_of
from routing_replay.geometry import Geometry
from routing_replay.run import Run
from routing_replay.sharded import ShardedRun
from routing_replay.types import RestoreOutcome, RunSummary, ServerInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.types import ConnectionOptions

T = TypeVar("T")


class Client:
    """One server, or several that share a store. Thread-safe. Does not wait for the server; connects when first used.

    endpoint: "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers that share a store;
        each client begins at one of them by chance and stays there until it is unavailable, then goes on to the next.
        "dns:///host:port": the same of all addresses of a name, calls going to them in turn. "file:PATH": of a file
        that holds one of these, which is waited for within call_timeout when the client is first used, and read again
        whenever the server cannot be reached, as one that was started anew may have another port; the environment's
        ROUTING_REPLAY_ENDPOINT if absent.
        "shard:a:7400,b:7400" stands for several servers that know nothing of each other, over which samples are
        spread: see ShardedRun
    options: see ConnectionOptions: use_http_proxy, call_timeout, tls, cacert, cert, key, server_name, token_file

    Of the last six the environment's ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and _TOKEN_FILE are taken
    if absent. Files are read again: the token's for every call, the others' for every new connection.

    After os.fork the child makes a connection of its own when it first uses the client.
    Raises InvalidArgumentError for an endpoint that cannot be one.
    """

    def __init__(self, endpoint: str | None = None, **options: Unpack[ConnectionOptions]) -> None:
        connection = connection_of(**options)
        servers = _shard_core.shard(endpoint)
        self._transport: Transport | ShardTransport
        if servers is None:
            self._transport = Transport(endpoint, connection)
        else:
            self._transport = ShardTransport(servers, connection)

    def run(
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
        """Makes the run, or joins it; without a geometry it only joins.

        ttl: seconds after which an idle sample is removed
        strict: rows that conflict with stored ones are an error instead of a count
        block_rows: rows per block, a power of two
        codec: "RAW" or "PACKED"
        durability: what an acknowledged append has come through: "memory", "written" (to the operating system) or
            "synced" (to the disk); by default what the server does. More than its store can is an InvalidArgumentError
        resume_at: training goes on from a checkpoint with this group: samples of this and of higher groups, of both
            producers, are what an earlier life of the training left, and are removed; `Run.dropped` tells how much. For
            the one coordinator, before any worker appends
        wait: seconds to wait for a run that nobody has made yet, where there is no geometry to make it with, and for a
            server that cannot be reached, beyond call_timeout: a trainer may start before the rollout

        Raises FailedPreconditionError if the run has another geometry or other settings, NotFoundError (NO_RUN) if it
        is not there to join, and with `wait` DeadlineExceededError if it was not made in time.
        """
        waiting = _calls.Waiting(name, wait) if wait else None
        call = _calls.open_run(name, geometry, ttl, strict, block_rows, codec, durability, resume_at)
        while True:
            try:
                return self._open(name, call)
            except _calls.NOT_THERE as error:
                if waiting is None:
                    raise
                time.sleep(waiting.pause(error))

    def _open(self, name: str, call: _calls.Call[_calls.OpenedRun]) -> Run:
        if isinstance(self._transport, ShardTransport):
            answer, lives = self._transport.open_run(call.request)
            return ShardedRun(self._transport, name, call.read(answer)._replace(lives=lives))
        return Run(self._transport, name, self._do(call))

    def restore(
        self,
        directory: _checkpoint.Directory,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        timeout: float = 120.0,
        on_progress: _checkpoint.OnProgress | None = None,
    ) -> RestoreOutcome:
        """Appends the samples of a directory that `Run.checkpoint` wrote, those that are not there yet.

        run: name of the run, made if it is not there (with other settings than the server's: `run` first); as it was
            exported if absent
        groups: samples of groups[0] <= group < groups[1]; all if absent
        timeout: seconds for the read of a sample that is there already
        on_progress: called on this thread

        What the run has already must be the same, row by row, and is appended to where it ends: done twice it does
        nothing the second time, and one that was stopped goes on. AlreadyExistsError (CONFLICTING_ROWS) naming sample,
        row and layer where the run holds something else; FailedPreconditionError (NOT_COMMITTED) where no export has
        ended; DataLossError naming a sample whose file is damaged. Rows, unrecorded rows, weights, groups, seals and
        the token check at the end come back; revisions, content ids and provenance are those of new samples.
        """
        source = _checkpoint.source(directory, groups)
        contents = source.contents()
        with self.run(contents["run"] if run is None else run, Geometry.from_json(contents["geometry"])) as opened:
            return _checkpoint.drive(_checkpoint.restore(source, opened, timeout, on_progress))

    def runs(self) -> list[RunSummary]:
        """The runs of the server."""
        runs: list[RunSummary] = []
        page_token = ""
        while True:
            page, page_token = self._do(_calls.list_runs(page_token))
            runs += page
            if not page_token:
                return runs

    def server_info(self) -> ServerInfo:
        """Version, memory, counters."""
        return self._do(_calls.server_info())

    def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders for at most `timeout` seconds each, then closes the connection."""
        self._transport.close(timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _do(self, call: _calls.Call[T]) -> T:
        return call.read(self._transport.call(call.method, call.request, call.repeat))
