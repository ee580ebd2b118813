"""A client of one server, or of several that share a store."""

from __future__ import annotations

import os
from ctypes import byref
from typing import Any

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation, blocking
from routing_replay._native import lib
from routing_replay.appender import Closing
from routing_replay.geometry import Geometry
from routing_replay.run import Link, OnProgress, Path, Progress, Run
from routing_replay.types import RestoreOutcome, RunSummary, ServerInfo


class ClientCalls:
    """The common part of the blocking Client and the one for asyncio."""

    _in_loop = False
    _run_type: Any

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        use_http_proxy: bool = False,
        call_timeout: float | None = None,
        tls: bool = False,
        cacert: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        server_name: str | None = None,
        token_file: Path | None = None,
    ) -> None:
        """See the class."""
        options = _native.ClientOptions(
            _values.native_text(endpoint or "", "endpoint"),
            bool(use_http_proxy),
            bool(tls),
            -1 if call_timeout is None else _values.milliseconds(call_timeout, "call_timeout"),
        )
        options.server_name = _values.native_text(server_name or "", "server_name")
        for name, path in (("cacert", cacert), ("cert", cert), ("key", key), ("token_file", token_file)):
            if path is not None:
                setattr(options, name, _values.native_text(os.fspath(path), name))
        _calls.pass_lines_on()
        self._link = Link(_native.make(lib.rr_object_free, lib.rr_client_new, byref(options)), self._in_loop)

    def metrics(self) -> dict[str, Any]:
        """How appends and reads go to the server.

        transport: of the last stream, "grpc", or without gRPC "direct" (TCP), "unix" or "shm" (shared memory); None
            before the first; with several servers, of each, where they differ
        grpc_streams, direct_streams, unix_streams, shm_streams: how many were begun. Equal clients of a process count
            together

        By default the fastest that reaches the server is used. ROUTING_REPLAY_TRANSPORT in the environment of a new
        client may say one of the four.
        """
        return _native.give(lib.rr_client_metrics, _native.Transports, _convert.transports, self._link.client.pointer)

    def _asking(self, function: Any, kind: Any, read: Any, *arguments: Any, **more: Any) -> Operation[Any]:
        client = self._link.client
        return _calls.operation(function, (client.pointer, *arguments), kind, read, kept=client, **more)


class Client(ClientCalls, Closing):
    """One server, or several that share a store. Thread-safe. Does not wait for the server; connects when first used.

    endpoint: "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers that share a store;
        each client begins at a random one and stays there until it is unavailable, then goes on to the next.
        "dns:///host:port": the same for all addresses of a name, calls going to them in turn. "file:PATH": read from a
        file that holds one of these, which is waited for within call_timeout when the client is first used, and read
        again whenever the server cannot be reached, as a restarted one may have another port; if absent, the
        environment's ROUTING_REPLAY_ENDPOINT. "shard:a:7400,b:7400": servers that know nothing of each other, over
        which samples are spread: see Run
    use_http_proxy: HTTP proxies of the environment are ignored unless this is set
    call_timeout: seconds for a call without a timeout of its own (default 30)
    tls: encrypt, with the system's authorities; cacert or cert imply it. "unix:" stays plaintext
    cacert: PEM file of the authority that signs servers' certificates
    cert, key: PEM files, the client's own certificate and its key, where servers ask for one
    server_name: the name in the server's certificate, if it is not the one in the endpoint
    token_file: its first line is a bearer token that is sent with every call. Over a connection that is not encrypted
        it goes to addresses of this machine alone; elsewhere calls raise InvalidArgumentError

    The last six default to the environment's ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and _TOKEN_FILE.
    Files are read again: the token's for every call, the others' for every new connection.

    A client without references is freed, with its connections, once its appenders have sent their queues. After os.fork
    the child makes a connection of its own when it first uses the client. Raises InvalidArgumentError for a malformed
    endpoint.
    """

    _run_type = Run

    @blocking
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
    ) -> Operation[Run]:
        """Makes the run, or joins it; without a geometry it only joins.

        ttl: seconds after which an idle sample is removed
        strict: rows that conflict with stored ones are an error instead of a count
        block_rows: rows per block, a power of two
        codec: "RAW" or "PACKED"
        durability: where acknowledged appends are stored: "memory", "written" (to the operating system) or "synced" (to
            the disk); by default as the server is configured. InvalidArgumentError if its store cannot give it
        resume_at: training resumes from a checkpoint with this group: samples of this and of higher groups, of both
            producers, are left over from before, and are removed; `Run.dropped` says how much. Only one coordinator may
            pass it, before any worker appends
        wait: seconds to wait for a run that does not exist yet (if no geometry is given), and for a server that cannot
        be
            reached, in addition to call_timeout: so a trainer may start before the rollout

        Raises FailedPreconditionError if the run has another geometry or other settings, NotFoundError (NO_RUN) if it
        does not exist and there is no geometry, and with `wait` DeadlineExceededError if it was not made in time.
        """
        settings = _native.RunSettings(
            0 if ttl is None else _values.milliseconds(ttl, "ttl"),
            bool(strict),
            0 if block_rows is None else _values.integer(block_rows, "block_rows", _values.INT32),
            _values.native_text("" if codec is None else codec, "codec"),
            _values.native_text("" if durability is None else durability, "durability"),
        )
        link, client = self._link, self._link.client
        arguments = (
            client.pointer,
            _values.native_text(name, "run"),
            None if geometry is None else byref(geometry.native),
            byref(settings),
            _values.optional(resume_at, "resume_at"),
            _values.milliseconds(wait, "wait"),
        )
        opening = _calls.making(
            lib.rr_object_free, lib.rr_client_open_run, arguments, None, (client, geometry, settings)
        )
        return opening.then(lambda native: self._run_type(link, native))

    @blocking
    def restore(
        self,
        directory: Path,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Operation[RestoreOutcome]:
        """Appends the samples of a directory that `Run.checkpoint` wrote, unless the run has them.

        run: name of the run, made if it does not exist (for other settings than the server's call `run` first); by
            default the name it was exported under
        groups: samples of groups[0] <= group < groups[1]; all if absent
        on_progress: called in this thread, of asyncio in the event loop

        Rows that the run already has are compared, and the append continues where they end: a second call does nothing,
        and an interrupted one is continued. AlreadyExistsError (CONFLICTING_ROWS) naming a sample whose rows in the run
        differ; FailedPreconditionError (NOT_COMMITTED) if the directory has no finished export; DataLossError naming a
        sample whose file is damaged. Rows, unrecorded rows, weights, groups, seals and the token check at the end are
        restored; revisions, content ids and provenance are those of new samples.
        """
        progress = Progress(on_progress, self._in_loop)
        options = _native.ImportOptions(
            _values.native_text(os.fspath(directory), "directory"),
            _values.native_text("" if run is None else run, "run"),
            _convert.groups(groups),
            progress.function,
        )
        return self._asking(
            lib.rr_client_import,
            _native.Imported,
            lambda found: _convert.value(RestoreOutcome, found),
            byref(options),
            **progress.options,
        )

    @blocking
    def runs(self) -> Operation[list[RunSummary]]:
        """The runs of the server."""
        return self._asking(lib.rr_client_runs, _native.RunSummaries, _convert.summaries)

    @blocking
    def server_info(self) -> Operation[ServerInfo]:
        """Version, memory, counters."""
        return self._asking(lib.rr_client_server_info, _native.ServerInfo, _convert.server_info)

    def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders for at most `timeout` seconds each, then closes the connection."""
        self._link.close(list(self._link.lines), timeout)
        self._link.drop()
