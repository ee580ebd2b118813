"""One server, or several that share a store."""

from __future__ import annotations

import os
from ctypes import byref, c_void_p

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation
from routing_replay._native import lib
from routing_replay.geometry import Geometry
from routing_replay.run import Link, OnProgress, Path, Progressing, Run
from routing_replay.types import RestoreOutcome, RunSummary, ServerInfo


class ClientCalls:
    """What the Clients of threads and of event loops have in common."""

    _survives_fork = True

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
        pid = None if self._survives_fork else os.getpid()
        _calls.pass_lines_on()
        self._link = Link(_native.make(lib.rr_client_free, lib.rr_client_new, byref(options)), pid)

    def _opening(
        self,
        name: str,
        geometry: Geometry | None,
        ttl: float | None,
        strict: bool,
        block_rows: int | None,
        codec: str | None,
        durability: str | None,
        resume_at: int | None,
        wait: float,
    ) -> Operation[_native.Handle]:
        out = c_void_p()
        settings = _native.RunSettings(
            0 if ttl is None else _values.milliseconds(ttl, "ttl"),
            bool(strict),
            0 if block_rows is None else _values.integer(block_rows, "block_rows", _values.INT32),
            _values.native_text("" if codec is None else codec, "codec"),
            _values.native_text("" if durability is None else durability, "durability"),
        )
        client = self._link.client
        arguments = (
            client.pointer,
            _values.native_text(name, "run"),
            None if geometry is None else byref(geometry.native),
            byref(settings),
            _values.optional(resume_at, "resume_at"),
            _values.milliseconds(wait, "wait"),
        )

        def made() -> _native.Handle:
            return _native.Handle(lib.rr_run_free, out.value)

        return Operation(lib.rr_client_open_run, arguments, (byref(out),), made, made, kept=(client, geometry))

    def _listing(self) -> Operation[list[RunSummary]]:
        client = self._link.client
        return _calls.operation(
            lib.rr_client_runs, (client.pointer,), _native.RunSummaries, _convert.summaries, kept=client
        )

    def _asking(self) -> Operation[ServerInfo]:
        client = self._link.client
        return _calls.operation(
            lib.rr_client_server_info, (client.pointer,), _native.ServerInfo, _convert.server_info, kept=client
        )

    def _restoring(
        self,
        directory: Path,
        run: str | None,
        groups: tuple[int, int] | None,
        timeout: float,
        progressing: Progressing,
    ) -> Operation[RestoreOutcome]:
        options = _native.ImportOptions(
            _values.native_text(os.fspath(directory), "directory"),
            _values.native_text("" if run is None else run, "run"),
            _convert.groups(groups),
            _values.milliseconds(timeout),
            progressing.function,
        )
        client = self._link.client
        return _calls.operation(
            lib.rr_client_import,
            (client.pointer, byref(options)),
            _native.Imported,
            lambda said: RestoreOutcome(str(said.run), said.samples, said.appended, said.bytes),
            kept=(client, progressing),
        )


class Client(ClientCalls):
    """One server, or several that share a store. Thread-safe. Does not wait for the server; connects when first used.

    endpoint: "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers that share a store;
        each client begins at one of them by chance and stays there until it is unavailable, then goes on to the next.
        "dns:///host:port": the same of all addresses of a name, calls going to them in turn. "file:PATH": of a file
        that holds one of these, which is waited for within call_timeout when the client is first used, and read again
        whenever the server cannot be reached, as a restarted one may have another port; the environment's
        ROUTING_REPLAY_ENDPOINT if absent.
        "shard:a:7400,b:7400" stands for several servers that know nothing of each other, over which samples are
        spread: see Run
    use_http_proxy: HTTP proxies of the environment are ignored unless this is set
    call_timeout: seconds for a call without a timeout of its own (default 30)
    tls: encrypt, with the system's authorities; cacert or cert mean it, too. "unix:" stays plaintext
    cacert: PEM file, who signs servers' certificates
    cert, key: PEM files, the client's own certificate and its key, where servers ask for one
    server_name: the name in the server's certificate, where it is not the one in the endpoint
    token_file: its first line is a bearer token that is sent with every call. Over a connection that is not encrypted
        it goes to addresses of this machine alone; elsewhere calls raise InvalidArgumentError

    Of the last six the environment's ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and _TOKEN_FILE are taken
    if absent. Files are read again: the token's for every call, the others' for every new connection.

    A client that nobody has any more goes, with its connections, once what its appenders have queued is sent. After
    os.fork the child makes a connection of its own when it first uses the client.
    Raises InvalidArgumentError for an endpoint that cannot be one.
    """

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
        opening = self._opening(name, geometry, ttl, strict, block_rows, codec, durability, resume_at, wait)
        return Run(self._link, opening.wait())

    def restore(
        self,
        directory: Path,
        run: str | None = None,
        groups: tuple[int, int] | None = None,
        *,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
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
        progressing = Progressing(on_progress)
        return progressing.done(self._restoring(directory, run, groups, timeout, progressing))

    def runs(self) -> list[RunSummary]:
        """The runs of the server."""
        return self._listing().wait()

    def server_info(self) -> ServerInfo:
        """Version, memory, counters."""
        return self._asking().wait()

    def close(self, timeout: float = 60.0) -> None:
        """Flushes every run's appenders for at most `timeout` seconds each, then closes the connection."""
        seconds = _values.seconds(timeout)
        for line in list(self._link.lines):
            line.close(seconds)
        self._link.lines.clear()
        self._link.drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
