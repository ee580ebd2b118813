"""One run of a server."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_int64, c_void_p
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation
from routing_replay._convert import taking
from routing_replay._native import lib
from routing_replay.appender import Appender, Line, linger
from routing_replay.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    RoutingReplayError,
)
from routing_replay.geometry import Geometry
from routing_replay.recorded import adapter_metrics
from routing_replay.trajectory import Existing, Trajectory, TrajectoryCalls
from routing_replay.types import (
    Append,
    AppendOutcome,
    CheckpointOutcome,
    CheckpointProgress,
    Commit,
    OnFull,
    Producer,
    ReleaseOutcome,
    RunSettings,
    SampleLike,
    SampleRows,
    SampleState,
    SampleStates,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


Path = str | os.PathLike[str]
OnProgress = Callable[[CheckpointProgress], None]


class Link:
    """What a client, its runs and their appenders share: who is there, so that closing the client closes all.

    pid: of the only process that may use it
    """

    def __init__(self, client: _native.Handle, pid: int | None) -> None:
        self._client: _native.Handle | None = client
        self._pid = pid
        self.runs: weakref.WeakSet[RunCalls] = weakref.WeakSet()
        self.lines: set[Line] = set()  # Appenders that are not closed.
        weakref.finalize(self, linger, self.lines).atexit = False

    def check(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise FailedPreconditionError("an asyncio client does not survive os.fork; make a new one")

    @property
    def client(self) -> _native.Handle:
        self.check()
        if self._client is None:
            raise closed()
        return self._client

    def drop(self) -> None:
        """Calls that are under way go on."""
        self._client = None
        for run in list(self.runs):
            run.drop_native()


def closed() -> CancelledError:
    return CancelledError("the client is closed")


class Progressing:
    """Tells of progress: on the thread that works, or by `post`. What `on_progress` raises ends the work."""

    def __init__(self, on_progress: OnProgress | None, post: Callable[..., object] | None = None) -> None:
        self._on_progress = on_progress
        self._post = post
        self.error: BaseException | None = None
        self.function = _native.Progress() if on_progress is None else _native.Progress(self._call)

    def _call(self, context: Any, samples: int, total: int, size: int) -> int:
        progress = CheckpointProgress(samples, total, size)
        self._tell(progress) if self._post is None else self._post(self._tell, progress)
        return self.error is not None

    def _tell(self, progress: CheckpointProgress) -> None:
        if self.error is None and self._on_progress is not None:
            try:
                self._on_progress(progress)
            except BaseException as error:
                self.error = error

    def done(self, operation: Operation[Any]) -> Any:
        """Blocks, in this thread where it is told of progress."""
        try:
            return operation.wait() if self._on_progress is None else operation.here()
        finally:
            if self.error is not None:
                raise self.error


class Source(Protocol):
    """Another queue, before an appender of a run."""

    def settle_sample(self, sample: str, deadline: float) -> RoutingReplayError | None:
        """Waits until what was put of a sample is the appender's, and told; what went wrong since the last time.
        DeadlineExceededError."""


class RunCalls:
    """What the Runs of threads and of event loops have in common."""

    def __init__(self, link: Link, native: _native.Handle) -> None:
        self.link = link
        self._native: _native.Handle | None = native
        self._set(_native.RunInfo)
        link.runs.add(self)

    def _set(self, kind: Any) -> None:
        def read(said: Any) -> None:
            self._name, self._geometry = str(said.name), Geometry.of_native(said.geometry)
            self._settings, self._dropped = _convert.settings(said.settings), _convert.released(said.dropped)

        _native.give(lib.rr_run_describe, kind, read, self.native.pointer)

    @property
    def native(self) -> _native.Handle:
        self.link.check()
        if self._native is None:
            raise closed()
        return self._native

    def drop_native(self) -> None:
        self._native = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def dropped(self) -> ReleaseOutcome:
        """What resume_at of `Client.run` removed."""
        return self._dropped

    @property
    def settings(self) -> RunSettings:
        """In force, defaults filled in."""
        return self._settings

    def handle(self, sample: str) -> int:
        """What an int64 column of a batch carries of a sample in place of its id; over several servers it tells which
        one has the sample, too."""
        handle = c_int64()
        name = _values.native_text(sample, "sample")
        _native.check(lib.rr_sample_handle(self.native.pointer, name, byref(handle)))
        return handle.value

    def _operation(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        kind: Any,
        read: Callable[[Any], Any],
        timeout: float | None = None,
        kept: Any = None,
    ) -> Operation[Any]:
        native = self.native
        return _calls.operation(function, (native.pointer, *arguments), kind, read, timeout, (native, kept))

    def _counted(self, function: Any, arguments: tuple[Any, ...]) -> Operation[ReleaseOutcome]:
        native, out = self.native, _native.Released()
        return Operation(
            function, (native.pointer, *arguments), (byref(out),), lambda: _convert.released(out), kept=native
        )

    def _putting(self, append: Append) -> Operation[AppendOutcome]:
        made, kept = _convert.appends([append])
        return self._operation(
            lib.rr_run_put, (made,), _native.Outcomes, lambda said: _convert.outcomes(said)[0], kept=kept
        )

    def _committing(
        self, sample: str, num_tokens: int | None, tokens: ArrayLike | None, attempt: int | None, timeout: float
    ) -> Operation[Commit]:
        said, kept = (None, None) if tokens is None else _values.native_tokens(tokens, "tokens", sample)
        arguments = (
            _values.native_text(sample, "sample"),
            _values.optional(num_tokens, "num_tokens", (1, _values.INT64[1]), sample),
            None if said is None else byref(said),
            _values.optional(attempt, "attempt", _values.UINT32, sample),
        )
        seconds = _values.seconds(timeout)
        return self._operation(lib.rr_run_commit, arguments, _native.Commit, _convert.commit, seconds, kept)

    def _stating(self, samples: Iterable[str], producer: Producer) -> Operation[SampleStates]:
        names, count = _convert.names(samples)
        arguments = names, count, _convert.producer(producer, "producer")
        return self._operation(lib.rr_run_stat, arguments, _native.SampleStates, _convert.states)

    def _only(self, sample: str, found: SampleStates) -> SampleState:
        if not found:
            why = f"run {self._name} has no sample {sample}"
            raise NotFoundError(why, reason="NO_SAMPLE", sample=sample or None)
        return found[0]

    def _listing(self, groups: tuple[int, int] | None, producer: Producer) -> Operation[SampleStates]:
        arguments = _convert.groups(groups), _convert.producer(producer, "producer")
        return self._operation(lib.rr_run_list, arguments, _native.SampleStates, _convert.states)

    def _sealing(self, sample: str, num_tokens: int, revision: int, producer: Producer) -> Operation[SampleState]:
        arguments = (
            _values.native_text(sample, "sample"),
            _convert.producer(producer, "producer"),
            _values.integer(num_tokens, "num_tokens", sample=sample),
            _values.integer(revision, "revision", sample=sample),
        )
        return self._operation(lib.rr_run_seal, arguments, _native.SampleStates, _first_state)

    def _truncating(
        self, sample: str, rows: int, expected_revision: int | None, producer: Producer
    ) -> Operation[SampleState]:
        arguments = (
            _values.native_text(sample, "sample"),
            _convert.producer(producer, "producer"),
            _values.integer(rows, "rows", sample=sample),
            _values.optional(expected_revision, "expected_revision", sample=sample),
        )
        return self._operation(lib.rr_run_truncate, arguments, _native.SampleStates, _first_state)

    def _releasing(
        self,
        samples: Iterable[str | int],
        groups: tuple[int, int] | None,
        producer: Producer | None,
    ) -> Operation[ReleaseOutcome]:
        of = 0 if producer is None else _convert.producer(producer, "producer")
        named = _convert.names_and_handles(samples)
        arguments = *named, _convert.groups(groups), of
        return self._counted(lib.rr_run_release, arguments)

    def _reading(
        self,
        samples: Iterable[SampleLike],
        layers: Sequence[int] | None,
        producer: Producer,
        wait: bool,
        only_begun: bool,
        out: Sequence[Any] | None,
        timeout: float,
    ) -> Operation[list[SampleRows]]:
        asked = _convert.read(samples, layers, producer, wait, only_begun)
        arrays = None if out is None else _convert.destinations(asked, out)
        native, found = self.native, c_void_p()

        def read() -> list[SampleRows]:
            return _convert.rows(owner(), arrays)

        def owner() -> _native.Handle:
            return _native.Handle(lib.rr_free, found.value)

        arguments = native.pointer, byref(asked)
        kept = native, arrays, out
        return Operation(lib.rr_run_read, arguments, (byref(found),), read, owner, _values.seconds(timeout), kept)

    def _exporting(
        self,
        directory: Path,
        groups: tuple[int, int] | None,
        producer: Producer,
        previous: Path | None,
        timeout: float,
        progressing: Progressing,
    ) -> Operation[CheckpointOutcome]:
        options = _native.ExportOptions(
            _values.native_text(os.fspath(directory), "directory"),
            _values.native_text("" if previous is None else os.fspath(previous), "previous"),
            _convert.groups(groups),
            _convert.producer(producer, "producer"),
            _values.milliseconds(timeout),
            progressing.function,
        )
        native, out = self.native, _native.Exported()

        def read() -> CheckpointOutcome:
            return CheckpointOutcome(**{name: getattr(out, name) for name, *_ in _native.Exported._fields_})

        arguments = native.pointer, byref(options)
        return Operation(lib.rr_run_export, arguments, (byref(out),), read, kept=(native, progressing))

    def _abandoned(self) -> list[Line]:
        """Its appenders that are not closed, and of which nobody knows any more."""
        lines = [line for line in self.link.lines if line.run is self._native]
        self.link.lines.difference_update(lines)
        return lines

    def __reduce__(self) -> Any:
        raise TypeError("a Run cannot be pickled; make a Client in the other process")


def _first_state(said: Any) -> SampleState:
    return _convert.states(said)[0]


class Run(RunCalls):
    """One run of a server, made by `Client.run`. Thread-safe; usable in the child after os.fork.

    Calls without a timeout of their own take at most the client's call_timeout and are repeated within it while the
    server is unavailable. All raise RoutingReplayError.

    Of a client of "shard:a:7400,b:7400": every client of the run must state the same servers, in any order. The id of a
    sample says which of them has it (client/shard/members.h): an id may begin with a place tag that ends in ":", as in
    "a:prompt-7/0"; a tag that is the host of one server goes there, other samples with one tag are together, and
    "prompt-7:1" is with "prompt-7". A fork must be with its parent: InvalidArgumentError says how to name it. Batches
    carry `handle(sample)`. A run is made on all of them; it is joined, and used, without those that cannot be reached:
    samples of theirs have the status UNAVAILABLE, `release` leaves them out, and what would not be whole without them
    (`list`, `drop`) raises UnavailableError naming one, as does an append to one of them. One that is back without the
    run raises DataLossError from `list`; `Client.run` with the geometry makes the run there again. After a `drop` that
    failed, what the others had is gone: call it again. Each server has an equal share of max_queued_bytes.
    """

    def __init__(self, link: Link, native: _native.Handle) -> None:
        super().__init__(link, native)
        self._lock = threading.Lock()  # Held for moments only, so that a fork can hardly meet it taken.
        self._appender: Appender | None = None
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()
        self._sources: weakref.WeakSet[Any] = weakref.WeakSet()

    # Rows in.

    def appender(
        self,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        encode_blocks: bool = True,
        on_outcome: Callable[[AppendOutcome], None] | None = None,
    ) -> Appender:
        """A new appender with its own queue and connection.

        max_queued_bytes: bound of what waits in memory (default 64 MiB)
        on_full: what `append` does when the queue is full: "block" for at most queue_timeout seconds (default 60) and
            then drop; "drop"; or "raise" ResourceExhaustedError. If absent: "block", but "drop" in a thread whose event
            loop runs, which would stand still (routing_replay.aio waits there, and stops nobody). The rows of a dropped
            append are marked as unrecorded in the store, so that a trainer learns of it at once, and are counted in
            metrics()
        append_timeout: seconds for which an append is tried while the server is unreachable or full (default 120)
        encode_blocks: decode, check, narrow and tile here and send blocks; False sends what the engine gave
        on_outcome: called once per append, in order per sample, from a thread of the appender; must not call it
        """
        return self._new_appender(
            max_queued_bytes=max_queued_bytes,
            on_full=on_full,
            queue_timeout=queue_timeout,
            append_timeout=append_timeout,
            encode_blocks=encode_blocks,
            on_outcome=on_outcome,
        )

    def _new_appender(self, **options: Any) -> Appender:
        made = Appender(self, **options)
        with self._lock:
            self._appenders.add(made)
        return made

    def _hand_over(self, source: Source) -> None:
        """Another queue, before an appender of this run."""
        with self._lock:
            self._sources.add(source)

    @taking(Append)
    def append(self, append: Append) -> int:
        """Appends through an appender that the run keeps for this: see `Appender.append`."""
        return self._default_appender()._append_many([append], None)[0]

    def append_many(self, appends: Iterable[Append]) -> list[int]:
        """Several appends, in this order: see `Appender.append_many`."""
        return self._default_appender().append_many(appends)

    def flush(self, timeout: float = 120.0) -> None:
        """Waits for the outcomes of what `append` queued: see `Appender.flush`."""
        if self._appender is not None:
            self._appender.flush(timeout)

    def commit(
        self,
        sample: str,
        num_tokens: int | None = None,
        *,
        tokens: ArrayLike | None = None,
        attempt: int | None = None,
        timeout: float = 120.0,
    ) -> Commit:
        """Waits until all that was appended of one sample has its outcome, and says whether it is in the store: before
        a rollout worker gives its key on. Beside other samples, which are not waited for.

        What went through any appender of this Run object counts, and through `engines.attach`, but not what other
        processes append.

        num_tokens: of the sample, where it is complete: what did not come is then marked as unrecorded up to there, and
            the sample sealed, so that no trainer waits for it. If absent, nothing is marked that was not before
        tokens: token ids from position 0 on, num_tokens of them or one fewer, which say num_tokens: compared with those
            that the rows came with, and told to the store where it does not know them and the sample is not sealed yet
        attempt: of the appends, see Append
        timeout: seconds for all of it: the wait for the appends, and what the server is asked then

        Never raises for trouble of the service, be it that the server is away: `Commit.status` says what became of the
        sample, and `Commit.error` why. Of an append that failed it says so until more of the sample is appended, and
        `flush` raises it as well. InvalidArgumentError for arguments that are none. In a coroutine:
        `await asyncio.to_thread(run.commit, sample)`, or routing_replay.aio.
        """
        end = time.monotonic() + _values.seconds(timeout)
        committing = self._committing(sample, num_tokens, tokens, attempt, timeout)
        try:
            trouble = self._settle(sample, end) if attempt is None else None
        except DeadlineExceededError as error:
            return Commit(sample, "missing", 0, None, error)
        return told(committing.by(end).wait(), trouble)

    def _settle(self, sample: str, end: float) -> RoutingReplayError | None:
        with self._lock:
            sources = list(self._sources)
        trouble: RoutingReplayError | None = None
        for source in sources:
            trouble = trouble or source.settle_sample(sample, end)
        return trouble

    def metrics(self) -> dict[str, int]:
        """Counters of what `append` queued: see `Appender.metrics`. And of all calls of adapters in this process, for
        whichever run: adapter_refused, adapter_refused_<reason>, adapter_surplus_rows (left out)."""
        return {**self._default_appender().metrics(), **adapter_metrics()}

    def trajectory(
        self,
        sample: str,
        *,
        group: int | None = None,
        engine: str = "",
        existing: Existing = "none",
        appender: Appender | None = None,
    ) -> Trajectory:
        """A sample that grows turn by turn, appended through the run's own appender unless another one is given.

        existing: "none" if the sample is new, so that nobody need be asked; "resume" if a writer before this one may
            have begun it: the first turn then goes on after its rows, if they belong to the same tokens; "replace" to
            take such rows back
        """
        through = self._default_appender() if appender is None else appender
        return Trajectory(through, sample, TrajectoryCalls.new(through, sample, group, engine, existing))

    @taking(Append)
    def put(self, append: Append) -> AppendOutcome:
        """One append in one call per weight version, acknowledged when it returns. The server decodes what is sent as
        it is. One that is refused counts in metrics() as that of `append`. Parameters as of `Append`."""
        with self._default_appender().counting_refusals():
            return self._putting(append).wait()

    def seal(self, sample: str, num_tokens: int, *, revision: int = 0, producer: Producer = "rollout") -> SampleState:
        """No more rows will come: rows 0 … num_tokens - 2 must be committed. Idempotent."""
        return self._sealing(sample, num_tokens, revision, producer).wait()

    def truncate(
        self, sample: str, rows: int, *, expected_revision: int | None = None, producer: Producer = "rollout"
    ) -> SampleState:
        """Back to rows [0, rows), unsealed, under the next revision."""
        return self._truncating(sample, rows, expected_revision, producer).wait()

    # Rows out.

    def read(
        self,
        samples: Iterable[SampleLike],
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        out: Sequence[Any] | None = None,
        timeout: float = 120.0,
    ) -> list[SampleRows]:
        """Reads and decodes; every byte is checked against its CRC32C. One result per sample, in the order asked.

        samples: ids, handles, or SampleRead where more is to be said
        layers: global decoder layer ids, ascending; all MoE layers if absent
        wait: wait until shortly before `timeout` for rows that are not committed yet, instead of NOT_READY, and for
            samples that nobody has begun, instead of NOT_FOUND
        only_begun: with wait, a sample that nobody has begun is NOT_FOUND at once
        out: memory for the ids, one buffer per sample: writable, contiguous numpy arrays, torch tensors of the CPU
            (pinned ones, too), or what else has the buffer protocol. Ids are laid out as [layers, rows, K] of
            `Run.geometry.dtype`, narrower where all layers read are, from its beginning; `rows` of the result is a view
            of it. OutOfRangeError where one is too small. If absent, the arrays of one read share its memory

        A sample that cannot be read has a status that says why; it does not fail the others. Raises DataLossError
        naming sample, layer and row for damaged bytes; DeadlineExceededError after `timeout` seconds. What a server
        that goes away did not bring to its end is asked of the next one, or of the same one when it is back
        ("shard:" apart, where its samples are UNAVAILABLE): UnavailableError if none is there in time, AbortedError
        (OLD_REVISION) naming a sample that changed meanwhile.
        """
        return self._reading(samples, layers, producer, wait, only_begun, out, timeout).wait()

    def read_one(
        self,
        sample: SampleLike,
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        out: Any = None,
        timeout: float = 120.0,
    ) -> SampleRows:
        """As `read`, of one sample; `out` is its buffer."""
        buffers = None if out is None else [out]
        return self._reading([sample], layers, producer, wait, only_begun, buffers, timeout).wait()[0]

    # What is there.

    def stat(self, sample: str, *, producer: Producer = "rollout") -> SampleState:
        """NotFoundError (NO_SAMPLE) if there is none."""
        return self._only(sample, self._stating([sample], producer).wait())

    def stat_many(self, samples: Iterable[str], *, producer: Producer = "rollout") -> SampleStates:
        """The ones that exist, in the order asked."""
        return self._stating(samples, producer).wait()

    def list(self, *, groups: tuple[int, int] | None = None, producer: Producer = "rollout") -> SampleStates:
        """All samples, or those of groups[0] <= group < groups[1], by id."""
        return self._listing(groups, producer).wait()

    def release(self, samples: Iterable[str | int], *, producer: Producer | None = None) -> ReleaseOutcome:
        """Gives samples back, by default of both producers. Unknown ones are not counted, so a retry is harmless.

        samples: ids or handles, as a batch carries them (a tensor's elements, too); handle 0, of no sample, is skipped
        """
        return self._releasing(samples, None, producer).wait()

    def release_groups(self, begin: int, end: int, *, producer: Producer | None = None) -> ReleaseOutcome:
        """Gives back all samples with begin <= group < end; see `release`."""
        return self._releasing((), (begin, end), producer).wait()

    def checkpoint(
        self,
        directory: Path,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        previous: Path | None = None,
        timeout: float = 120.0,
        on_progress: OnProgress | None = None,
    ) -> CheckpointOutcome:
        """Writes the sealed samples to a new directory, beside running appends.

        directory: must not exist, or be empty; an exported run, from which `Client.restore` and a trainer's
            DirectorySource read. It appears whole: what a stopped call leaves is named DIRECTORY.part, and the next
            call removes that
        groups: samples of groups[0] <= group < groups[1]; all if absent
        previous: directory of an earlier checkpoint of the run. Samples with the same content are hard links to its
            files, and samples of these groups that the run has released since are taken over. Either directory may be
            removed later
        timeout: seconds for one portion of some tens of MB
        on_progress: called on this thread

        AlreadyExistsError if the directory is not empty; FailedPreconditionError if `previous` holds another run;
        DataLossError naming a sample that the store or `previous` lost, AbortedError naming one that changes whenever
        it is read: all others are in the directory then; errors of `read`.
        """
        progressing = Progressing(on_progress)
        return progressing.done(self._exporting(directory, groups, producer, previous, timeout, progressing))

    def drop(self) -> ReleaseOutcome:
        """Removes the run and all that is in it."""
        return self._counted(lib.rr_run_drop, ()).wait()

    def close(self, timeout: float = 60.0) -> None:
        """Flushes and ends the run's appenders; the run itself stays on the server."""
        with self._lock:
            appenders, self._appender = list(self._appenders), None
        for appender in appenders:
            appender.close(timeout)
        for line in self._abandoned():
            line.close(_values.seconds(timeout))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self._name}: {self._geometry!r}>"

    def _default_appender(self) -> Appender:
        if self._appender is None:
            made = self._new_appender()
            with self._lock:
                if self._appender is None:
                    self._appender = made
            if self._appender is not made:  # Another thread was faster.
                made.close()
        return self._appender


def told(commit: Commit, trouble: RoutingReplayError | None) -> Commit:
    """With what went wrong before the appender, where rows are marked in the place of those that did not come."""
    if trouble is None:
        return commit
    if commit.ok:
        return replace(commit, status="marked", error=trouble)
    known = getattr(commit.error, "reason", None) not in ("NO_SAMPLE", "NOT_COMMITTED")
    return commit if known else replace(commit, error=trouble)
