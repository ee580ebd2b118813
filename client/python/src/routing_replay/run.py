"""One run of a server."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import byref
from operator import itemgetter
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation, blocking
from routing_replay._convert import like, taking
from routing_replay._native import lib
from routing_replay.appender import (
    ON_FULL,
    Appender,
    AppenderCalls,
    Closing,
    Line,
    OnOutcome,
    close_in_background,
    linger,
)
from routing_replay.errors import (
    CancelledError,
    FailedPreconditionError,
    NotFoundError,
)
from routing_replay.geometry import Geometry
from routing_replay.trajectory import Existing, Trajectory, TrajectoryCalls
from routing_replay.types import (
    Append,
    AppendOutcome,
    CheckpointOutcome,
    Commit,
    OnFull,
    Producer,
    ReleaseOutcome,
    RunSettings,
    SampleLike,
    SampleRows,
    SampleState,
    SampleStates,
    sample_handle,
)

A = TypeVar("A", bound=AppenderCalls)
T = TypeVar("T", bound=TrajectoryCalls)

Path = str | os.PathLike[str]


class Link:
    """State that a client, its runs and their appenders share, so that closing the client closes them all.

    in_loop: True for an asyncio client, which only the process that made it may use
    """

    def __init__(self, client: _native.Handle, in_loop: bool) -> None:
        self._client: _native.Handle | None = client
        self._pid = os.getpid() if in_loop else None
        self.in_loop = in_loop
        self.runs: weakref.WeakSet[RunCalls[Any, Any]] = weakref.WeakSet()
        self.lines: set[Line] = set()  # The appenders that are not closed.
        weakref.finalize(self, linger, self.lines).atexit = False

    def check(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise FailedPreconditionError("an asyncio client does not survive os.fork; make a new one")

    @property
    def client(self) -> _native.Handle:
        return self.open(self._client)

    def open(self, native: _native.Handle | None) -> _native.Handle:
        """Returns `native`. Raises CancelledError if it is None, because the client is closed."""
        self.check()
        if native is None:
            raise CancelledError("the client is closed")
        return native

    def close(self, lines: list[Line], timeout: float, drop: bool = False) -> None:
        """Flushes these appenders for at most `timeout` seconds each, then abandons the remaining appends and logs a
        warning. drop: closes the client as well"""
        seconds = _values.seconds(timeout)
        with self.closing(lines, drop):
            for line in lines:
                line.close(seconds)

    @contextlib.contextmanager
    def closing(self, lines: list[Line], drop: bool) -> Iterator[None]:
        """A context in which the caller closes the appenders. If it is interrupted, background threads close them."""
        try:
            yield
        except BaseException:
            close_in_background(lines)
            raise
        finally:
            self.lines.difference_update(lines)
            if drop:  # Calls in progress continue.
                self._client = None
                for run in list(self.runs):
                    run._native = None


class RunCalls(Generic[A, T]):
    """What the blocking Run and the asyncio Run have in common."""

    _appender_type: type[A]
    _trajectory_type: type[T]

    def __init__(self, link: Link, native: _native.Handle) -> None:
        self.link = link
        self._native: _native.Handle | None = native
        self._kept_appender: A | None = None
        # Held only for very short times, so that it is hardly ever locked when the process forks.
        self._lock = threading.RLock()
        _native.give(lib.rr_run_describe, _native.RunInfo, self._set, native.pointer)
        link.runs.add(self)

    def _set(self, found: Any) -> None:
        self.name, self.geometry = str(found.name), Geometry.of_native(found.geometry)
        self.settings = _convert.value(RunSettings, found.settings, ttl=found.settings.ttl_ms / 1000)
        self.dropped = _convert.value(ReleaseOutcome, found.dropped)
        self.place, self.places = str(found.place), [str(tag) for tag in found.places[: found.place_count]]

    @property
    def native(self) -> _native.Handle:
        return self.link.open(self._native)

    def handle(self, sample: str) -> int:
        """The handle of a sample: an int64 that replaces its id in a column of a batch. With "shard:" it also says
        which server has the sample."""
        return sample_handle(sample, self.native.pointer)

    def appender(
        self,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> A:
        """A new appender with its own queue and connection.

        max_queued_bytes: limit for appends that wait in memory (default 64 MiB)
        on_full: what `append` does when the queue is full. "block" waits for at most queue_timeout seconds (default 60)
            and then drops the append; "drop" drops it at once; "raise" raises ResourceExhaustedError. The default
            is "block", except for a blocking appender in a thread with a running event loop, which must not wait: there
            it is "drop". The store marks the rows of a dropped append as unrecorded, so that a trainer sees at once
            that they are missing; metrics() counts them. A signal handler that raises ends the wait
        append_timeout: seconds for which an append is retried while the server is unreachable or full (default 120)
        on_outcome: called with each outcome in a thread of the appender; see `Appender`. Must not call the appender
        """
        size = max_queued_bytes
        options = _native.AppenderOptions(
            -1 if size is None else _values.integer(size, "max_queued_bytes", _values.NATURAL),
            -1 if queue_timeout is None else _values.milliseconds(queue_timeout, "queue_timeout"),
            -1 if append_timeout is None else _values.milliseconds(append_timeout, "append_timeout"),
            0 if on_full is None else _values.choice(on_full, "on_full", ON_FULL),
            on_outcome is not None,
        )
        return self._appender_type(self.link, Line(self.native, self.name, options), on_full, on_outcome)

    def _default_appender(self) -> A:
        with self._lock:
            if self._kept_appender is None:
                self._kept_appender = self.appender()
            return self._kept_appender

    def _lines_to_close(self) -> list[Line]:
        """Returns the open appenders of the run, which the caller then closes. The next append makes a new one."""
        self._kept_appender = None
        return [line for line in list(self.link.lines) if line.run is self._native]

    def metrics(self) -> dict[str, int]:
        """Counters of what `append` queued: see `Appender.metrics`."""
        return self._default_appender().metrics()

    def trajectory(
        self,
        sample: str,
        *,
        group: int | None = None,
        existing: Existing = "none",
    ) -> T:
        """A sample that grows turn by turn, appended through the run's own appender.

        existing: "none" if the sample is new, which saves a request to the server; "resume" if an earlier writer may
            have begun the sample: the first turn then continues after the existing rows, if they belong to the same
            tokens; "replace" to remove existing rows
        """
        appender = self._default_appender()
        options = _native.TrajectoryOptions(
            _values.native_text(sample, "sample"),
            _values.native_text(existing, "existing", sample),
            _values.optional(group, "group", sample=sample),
        )
        made = _native.made(lib.rr_appender_new_trajectory, appender.line.pointer, byref(options))
        return self._trajectory_type(appender, sample, _native.Handle(lib.rr_object_free, made))

    def _operation(
        self, function: Any, arguments: tuple[Any, ...], kind: Any, read: Callable[[Any], Any], **options: Any
    ) -> Operation[Any]:
        native = self.native
        options["kept"] = native, options.get("kept")
        return _calls.operation(function, (native.pointer, *arguments), kind, read, **options)

    def _into(self, function: Any, arguments: tuple[Any, ...], out: Any, outcome: type[Any]) -> Operation[Any]:
        """Makes the operation for a library function that writes its result to the structure `out`."""
        native = self.native
        inputs = (native.pointer, *arguments)
        return Operation(function, inputs, (byref(out),), lambda: _convert.value(outcome, out), kept=native)

    def _states(self, function: Any, *arguments: Any) -> Operation[SampleStates]:
        return self._operation(function, arguments, _native.SampleStates, _convert.states)

    def _releasing(
        self, samples: Iterable[str | int], groups: tuple[int, int] | None, producer: Producer | None
    ) -> Operation[ReleaseOutcome]:
        number = 0 if producer is None else _convert.producer(producer, "producer")
        arguments = *_convert.names_and_handles(samples), _convert.groups(groups), number
        return self._into(lib.rr_run_release, arguments, _native.Released(), ReleaseOutcome)

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.geometry!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Run cannot be pickled; make a Client in the other process")


class Run(RunCalls[Appender, Trajectory], Closing):
    """One run of a server, made by `Client.run`. Thread-safe; usable in the child after os.fork.

    name, geometry: of the run
    settings: the settings in force, with defaults filled in
    dropped: number and size of the samples that resume_at of `Client.run` removed
    place: with "shard:", the place tag of the server on this machine, such as "node-3:". If sample ids begin with it
        (f"{run.place}math-7/0"), the samples are stored on this machine. The server is the one whose host is the value
        of the variable ROUTING_REPLAY_PLACE or, without this variable, an address or the name of this machine. The tag
        is "" if there is no such server, or more than one
    places: the place tags of all servers

    Calls without a timeout parameter, except checkpoint, take at most the client's call_timeout; until then they are
    retried while the server is unavailable. All errors are RoutingReplayError.

    With "shard:a:7400,b:7400" every client of the run must name the same servers. The id of a sample decides which
    server stores it, and a fork must be on the server of its parent. server/store/README.md ("Several servers without a
    shared store") says what each call does while servers cannot be reached.
    """

    _appender_type = Appender
    _trajectory_type = Trajectory

    # Appending rows.

    @like(Append)
    def append(self, *arguments: Any, **options: Any) -> int:
        """Appends through the run's own appender: see `Appender.append`."""
        return (self._kept_appender or self._default_appender()).queue(arguments, options)

    @blocking
    def append_many(self, appends: Iterable[Append]) -> Operation[list[int]]:
        """Several appends, in this order: see `Appender.append_many`."""
        return self._default_appender()._queueing(_values.items(appends, "appends", "Append"))

    @blocking
    def flush(self, timeout: float = 120.0) -> Operation[None]:
        """Waits for the outcomes of what `append` queued: see `Appender.flush`."""
        return self._default_appender()._flushing(timeout)

    @blocking
    def commit(
        self,
        sample: str,
        num_tokens: int | None = None,
        *,
        tokens: ArrayLike | None = None,
        attempt: int | None = None,
        timeout: float = 120.0,
    ) -> Operation[Commit]:
        """Waits until every append of one sample has its outcome, and returns whether the sample is in the store: call
        this before a rollout worker passes the sample's id on. Does not wait for other samples.

        It waits for appends through any appender of this Run object and through `engines.attach`, but not for those of
        other processes.

        num_tokens: number of tokens T, if the sample is complete: rows that are missing up to T - 2 are then marked as
            unrecorded and the sample is sealed, so that no trainer waits for it. If absent, rows after the last append
            are not marked, and the sample is not sealed
        tokens: token ids from position 0 on, num_tokens of them or one fewer. If num_tokens is absent, their number is
            used for it. They are compared with the tokens of the stored rows, and sent to the store if it does not know
            the tokens and the sample is not sealed
        attempt: the attempt number that the sample's appends were given, see Append
        timeout: seconds for everything: waiting for the appends and asking the server

        Never raises because of the service, not even if the server cannot be reached: `Commit.status` says what became
        of the sample, and `Commit.error` why. A failed append is reported again by every call until more of the sample
        is appended, and `flush` raises it as well. InvalidArgumentError for wrong arguments. In a coroutine use `await
        asyncio.to_thread(run.commit, sample)`, or routing_replay.aio.
        """
        native, kept = (None, None) if tokens is None else _values.native_tokens(tokens, "tokens", sample)
        arguments = (
            _values.native_text(sample, "sample"),
            _values.optional(num_tokens, "num_tokens", (1, _values.INT64[1]), sample),
            None if native is None else byref(native),
            _values.optional(attempt, "attempt", _values.UINT32, sample),
        )
        read = functools.partial(_convert.value, Commit)
        seconds = _values.seconds(timeout)
        return self._operation(lib.rr_run_commit, arguments, _native.Commit, read, timeout=seconds, kept=kept)

    @blocking
    @taking(Append)
    def put(self, append: Append) -> Operation[AppendOutcome]:
        """Makes one append without a queue; it is acknowledged when this returns. The parameters are the fields of
        `Append`."""
        made = _native.Append()
        kept = made, _convert.append(append, made)
        found = self._operation(lib.rr_run_put, (byref(made),), _native.Outcomes, _convert.outcomes, kept=kept)
        return found.then(itemgetter(0))

    @blocking
    def truncate(
        self, sample: str, rows: int, *, expected_revision: int | None = None, producer: Producer = "rollout"
    ) -> Operation[SampleState]:
        """Keeps the rows [0, rows) and removes the others. The sample is then unsealed, and its revision one higher."""
        name, number = _values.native_text(sample, "sample"), _convert.producer(producer, "producer")
        kept = _values.integer(rows, "rows", sample=sample)
        at = _values.optional(expected_revision, "expected_revision", sample=sample)
        return self._states(lib.rr_run_truncate, name, number, kept, at).then(itemgetter(0))

    # Reading rows.

    @blocking
    def read(
        self,
        samples: Iterable[SampleLike],
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> Operation[list[SampleRows]]:
        """Reads rows, checked against their CRC32C. Returns one result per sample, in the order of `samples`.

        samples: ids, handles, or SampleRead, which has further options such as row ranges
        layers: global decoder layer ids, ascending; all MoE layers if absent
        wait: True waits, until shortly before `timeout`, for rows that are not committed yet and samples that nobody
            has begun. False gives these samples the status NOT_READY or NOT_FOUND at once
        only_begun: with wait, only waits for samples that somebody has begun; others are NOT_FOUND at once

        All arrays of one read share one block of memory. A sample that cannot be read has a status that says why; it
        does not fail the others. Raises DataLossError naming sample, layer and row for damaged bytes;
        DeadlineExceededError after `timeout` seconds. If a server fails, the rest is read from the next one, or from
        the same one when it is back (except with "shard:", where its samples become UNAVAILABLE); UnavailableError if
        no server answers in time.
        """
        asked = _convert.read(samples, layers, producer, wait, only_begun)
        native, seconds = self.native, _values.seconds(timeout)
        inputs = native.pointer, byref(asked)
        return _calls.making(lib.rr_run_read, inputs, seconds, native, lib.rr_free).then(_convert.rows)

    @blocking
    def read_one(
        self,
        sample: SampleLike,
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> Operation[SampleRows]:
        """Reads one sample: see `read`."""
        options = {"layers": layers, "producer": producer, "wait": wait, "only_begun": only_begun, "timeout": timeout}
        read: Any = Run.read
        return read.build(self, [sample], **options).then(itemgetter(0))

    # Listing and removing samples.

    @blocking
    def stat(self, sample: str, *, producer: Producer = "rollout") -> Operation[SampleState]:
        """Returns the state of a sample. Raises NotFoundError (NO_SAMPLE) if it does not exist."""
        names, count = _convert.names([sample])

        def first(found: SampleStates) -> SampleState:
            if found:
                return found[0]
            why = f"run {self.name} has no sample {sample}"
            raise NotFoundError(why, reason="NO_SAMPLE", sample=sample or None)

        return self._states(lib.rr_run_stat, names, count, _convert.producer(producer, "producer")).then(first)

    @blocking
    def stat_many(self, samples: Iterable[str], *, producer: Producer = "rollout") -> Operation[SampleStates]:
        """Returns the states of those samples that exist, in the order of the request."""
        names, count = _convert.names(samples)
        return self._states(lib.rr_run_stat, names, count, _convert.producer(producer, "producer"))

    @blocking
    def list(self, *, groups: tuple[int, int] | None = None, producer: Producer = "rollout") -> Operation[SampleStates]:
        """Lists all samples, or those with groups[0] <= group < groups[1], sorted by id."""
        return self._states(lib.rr_run_list, _convert.groups(groups), _convert.producer(producer, "producer"))

    @blocking
    def release(self, samples: Iterable[str | int], *, producer: Producer | None = None) -> Operation[ReleaseOutcome]:
        """Removes samples, by default of both producers. Unknown samples are ignored, so a retry is harmless.

        samples: ids or handles, also as elements of a tensor; handle 0 stands for no sample and is skipped
        """
        return self._releasing(samples, None, producer)

    @blocking
    def release_groups(self, begin: int, end: int, *, producer: Producer | None = None) -> Operation[ReleaseOutcome]:
        """Removes all samples with begin <= group < end; see `release`."""
        return self._releasing((), (begin, end), producer)

    @blocking
    def checkpoint(
        self,
        directory: Path,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        previous: Path | None = None,
    ) -> Operation[CheckpointOutcome]:
        """Writes the sealed samples to a new directory. Appends may continue meanwhile.

        directory: where to write: a directory that is empty or does not exist. It becomes an exported run, which
            `Client.restore` and a trainer's DirectorySource can read. It gets this name only when it is complete; an
            interrupted call leaves DIRECTORY.part, which the next call removes
        groups: samples of groups[0] <= group < groups[1]; all if absent
        previous: directory of an earlier checkpoint of the run. Unchanged samples become hard links to its files, and
            so do samples of these groups that the run has released since. Each of the two directories may be removed
            without harm to the other

        AlreadyExistsError if the directory is not empty; FailedPreconditionError if `previous` holds another run;
        DataLossError naming a sample that the store or `previous` lost (all others are in the directory then); errors
        of `read`, and UnavailableError also if one server of "shard:" does not answer.
        """
        options = _native.ExportOptions(
            _values.native_text(os.fspath(directory), "directory"),
            _values.native_text("" if previous is None else os.fspath(previous), "previous"),
            _convert.groups(groups),
            _convert.producer(producer, "producer"),
        )
        return self._into(lib.rr_run_export, (byref(options),), _native.Exported(), CheckpointOutcome)

    @blocking
    def drop(self) -> Operation[ReleaseOutcome]:
        """Removes the run and everything in it."""
        return self._into(lib.rr_run_drop, (), _native.Released(), ReleaseOutcome)

    def close(self, timeout: float = 60.0) -> None:
        """Flushes the run's appenders for at most `timeout` seconds each and closes them. The server keeps the run."""
        self.link.close(self._lines_to_close(), timeout)
