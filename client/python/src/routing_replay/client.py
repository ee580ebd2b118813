"""A client of one server or of several servers."""

from __future__ import annotations

import os
import reprlib
from ctypes import byref
from typing import Any

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation, blocking
from routing_replay._native import lib
from routing_replay.appender import Closing
from routing_replay.geometry import Geometry
from routing_replay.run import Link, Path, Run
from routing_replay.types import RestoreOutcome, ServerInfo


class ClientCalls:
    """What the blocking Client and the asyncio Client have in common."""

    _in_loop = False
    _run_type: Any

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        call_timeout: float | None = None,
        tls: bool = False,
        cacert: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        server_name: str | None = None,
        token_file: Path | None = None,
    ) -> None:
        """The class Client describes the parameters."""
        options = _native.ClientOptions(
            _values.native_text(endpoint or "", "endpoint"),
            bool(tls),
            -1 if call_timeout is None else _values.milliseconds(call_timeout, "call_timeout"),
        )
        options.server_name = _values.native_text(server_name or "", "server_name")
        for name, path in (("cacert", cacert), ("cert", cert), ("key", key), ("token_file", token_file)):
            if path is not None:
                setattr(options, name, _values.native_text(os.fspath(path), name))
        _calls.pass_lines_on()
        made = _native.made(lib.rr_client_new, byref(options))
        self._link = Link(_native.Handle(lib.rr_object_free, made), self._in_loop)

    def metrics(self) -> dict[str, Any]:
        """Returns which transports the appends and reads use.

        transport: "grpc" if the newest stream uses gRPC; else "direct" (TCP), "unix" or "shm" (shared memory); None
            before the first stream. If it differs between servers, all transports in use, as in "direct,grpc"
        grpc_streams, direct_streams, unix_streams, shm_streams: number of streams begun. Clients of one process with
            equal options share these counters

        By default the fastest transport that reaches the server is used. To force one, set the environment variable
        ROUTING_REPLAY_TRANSPORT to its name before the client is made.
        """
        return _native.give(lib.rr_client_metrics, _native.Transports, _convert.transports, self._link.client.pointer)

    def __reduce__(self) -> Any:
        raise TypeError("a Client cannot be pickled; make one in the other process")

    def _asking(self, function: Any, kind: Any, read: Any, *arguments: Any) -> Operation[Any]:
        client = self._link.client
        return _calls.operation(function, (client.pointer, *arguments), kind, read, kept=client)


class Client(ClientCalls, Closing):
    """A client of one server or of several servers. Thread-safe. Connects when it is first used, not when it is made.

    endpoint: "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers that share a store;
        each client begins at a random one and stays there until it is unavailable, then goes on to the next.
        "dns:///host:port": all addresses of a DNS name, likewise sharing a store; calls go to them in turn.
        "file:PATH": a file that holds an endpoint in one of these forms. The first call waits for the file, for at most
        call_timeout, and the file is read again whenever the server cannot be reached, because a restarted server may
        have another port. "shard:a:7400,b:7400": servers without a shared store, over which samples are spread: see
        Run. If absent: the environment variable ROUTING_REPLAY_ENDPOINT
    call_timeout: seconds for calls that have no timeout parameter (default 30), except checkpoint and restore
    tls: use TLS and trust the system's certificate authorities; implied by cacert and cert. "unix:" never uses TLS
    cacert: PEM file with the certificate authorities that signed the server's certificate
    cert, key: PEM files with the client's own certificate and its private key, for servers that ask for one
    server_name: the name in the server's certificate, if it is not the one in the endpoint
    token_file: file whose first line is a bearer token, which is sent with every call. Without TLS the token is sent
        only to addresses of this machine; calls to other addresses raise InvalidArgumentError

    Defaults of tls and the parameters after it: the environment variables ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY,
    _SERVER_NAME and _TOKEN_FILE. Files may change while the client runs: the token file is read for every call, the
    others for every new connection.

    When nothing refers to a client, its runs or its appenders, their queues are sent; then the connections are closed.
    After os.fork the child opens its own connection when it first uses the client. Raises InvalidArgumentError for a
    malformed endpoint.
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
        """Creates the run, or joins it if it exists. Without a geometry, only joins an existing run.

        ttl: seconds after which an idle sample is removed
        strict: an append whose rows differ from the stored ones fails; otherwise such rows are only counted
        block_rows: rows per block, a power of two
        codec: how blocks are stored: "RAW" (8 or 16 bits per id) or "PACKED" (as few bits per id as E needs)
        durability: how far an append is stored before it is acknowledged: "memory", "written" (to the operating system)
            or "synced" (to the disk). The default is the server's. InvalidArgumentError if the server's store does not
            support the value
        resume_at: the first group that training produces again after it resumed from a checkpoint. The samples of this
            group and of higher groups, of both producers, are stale and are removed; `Run.dropped` says how many. Only
            one coordinator may pass it, before any worker appends
        wait: seconds to wait, in addition to call_timeout, for a server that cannot be reached and, if no geometry is
            given, for a run that does not exist yet. This lets a trainer start before the rollout

        Raises FailedPreconditionError if the run exists with another geometry or, if any setting is given, with other
        settings. Without a geometry, raises NotFoundError (NO_RUN) if the run does not exist; with `wait` this becomes
        DeadlineExceededError if nobody created it in time.
        """
        settings = _native.RunSettings(
            0 if ttl is None else _values.milliseconds(ttl, "ttl"),
            bool(strict),
            0 if block_rows is None else _values.integer(block_rows, "block_rows", _values.INT32),
            _values.native_text("" if codec is None else codec, "codec"),
            _values.native_text("" if durability is None else durability, "durability"),
        )
        if geometry is not None and not isinstance(geometry, Geometry):
            raise _values.invalid("geometry", f"must be a Geometry, got {reprlib.repr(geometry)}")
        link, client = self._link, self._link.client
        arguments = (
            client.pointer,
            _values.native_text(name, "run"),
            None if geometry is None else byref(geometry.native),
            byref(settings),
            _values.optional(resume_at, "resume_at"),
            _values.milliseconds(wait, "wait"),
        )
        opening = _calls.making(lib.rr_client_open_run, arguments, None, (client, geometry, settings))
        return opening.then(lambda native: self._run_type(link, native))

    @blocking
    def restore(
        self,
        directory: Path,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
    ) -> Operation[RestoreOutcome]:
        """Appends to a run the samples of a directory that `Run.checkpoint` wrote.

        run: name of the run, which is created if it does not exist; by default the name of the run that was exported.
            For settings other than the server's defaults, call `Client.run` first
        groups: samples of groups[0] <= group < groups[1]; all if absent

        Rows that the run already has are compared, and only the missing rows are appended. So a second call does
        nothing, or continues a call that was interrupted. Raises AlreadyExistsError (CONFLICTING_ROWS) naming a sample
        whose rows in the run differ; FailedPreconditionError (NOT_COMMITTED) if the directory has no finished export;
        DataLossError naming a sample whose file is damaged. Rows, unrecorded rows, weights, groups, seals and each
        sample's CRC32C over all tokens are restored. Revisions and content ids are not: the samples get new ones.
        """
        options = _native.ImportOptions(
            _values.native_text(os.fspath(directory), "directory"),
            _values.native_text("" if run is None else run, "run"),
            _convert.groups(groups),
        )
        return self._asking(
            lib.rr_client_import,
            _native.Imported,
            lambda found: _convert.value(RestoreOutcome, found),
            byref(options),
        )

    @blocking
    def server_info(self) -> Operation[ServerInfo]:
        """Returns version, memory use and counters of the server."""
        return self._asking(lib.rr_client_server_info, _native.ServerInfo, _convert.server_info)

    def close(self, timeout: float = 60.0) -> None:
        """Flushes the appenders of every run for at most `timeout` seconds each, then closes the connection."""
        self._link.close(list(self._link.lines), timeout, drop=True)
