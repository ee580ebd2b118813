"""One run of a server."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from routing_replay import _append, _calls, _checkpoint, _commits, _core, _counters, _read, _turns, _values
from routing_replay._transport import SERVICE, Broken, Transport, is_refusal
from routing_replay.appender import Appender
from routing_replay.errors import ResourceExhaustedError
from routing_replay.trajectory import Trajectory
from routing_replay.types import (
    AppendOutcome,
    CheckpointOutcome,
    Commit,
    OnFull,
    Producer,
    ReleaseOutcome,
    SampleLike,
    SampleRows,
    SampleState,
    SampleStates,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from routing_replay._turns import Existing
    from routing_replay.geometry import Geometry
    from routing_replay.types import AppendOptions, Rows, RunSettings

T = TypeVar("T")


class Run:
    """One run of a server, made by `Client.run`. Thread-safe; usable in the child after os.fork.

    Calls without a timeout of their own take at most the client's call_timeout and are repeated within it while the
    server is unavailable. All raise RoutingReplayError.
    """

    def __init__(self, transport: Transport, name: str, opened: _calls.OpenedRun) -> None:
        self._transport = transport
        self._name = name
        self._opened = opened
        self._lock = threading.Lock()  # Held for moments only, so that a fork can hardly meet it taken.
        self._appender: Appender | None = None
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()  # The transport keeps them until they close.
        self._handovers: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def name(self) -> str:
        return self._name

    @property
    def geometry(self) -> Geometry:
        return self._opened.geometry

    @property
    def dropped(self) -> ReleaseOutcome:
        """What resume_at of `Client.run` removed."""
        return self._opened.dropped

    @property
    def settings(self) -> RunSettings:
        """In force, defaults filled in."""
        return self._opened.settings

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
        appender = Appender(
            self._transport,
            self._name,
            self._opened.core,
            max_queued_bytes=max_queued_bytes,
            on_full=on_full,
            queue_timeout=queue_timeout,
            append_timeout=append_timeout,
            encode_blocks=encode_blocks,
            on_outcome=on_outcome,
        )
        with self._lock:
            self._appenders.add(appender)
        return appender

    def _hand_over(self, source: Any) -> None:
        """Another queue, before an appender of this run, that has _settle_sample and _has_open."""
        with self._lock:
            self._handovers.add(source)

    def append(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> int:
        """Appends through an appender that the run keeps for this: see `Appender.append`."""
        return self._default_appender().append(sample, rows, **options)

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
        attempt: of the appends, see AppendOptions
        timeout: seconds to wait for the appends; what the server is asked then takes at most call_timeout for each call

        Never raises for trouble of the service, be it that the server is away: `Commit.status` says what became of the
        sample, and `Commit.error` why. Of an append that failed it says so until more of the sample is appended, and
        `flush` raises it as well. InvalidArgumentError for arguments that are none. In a coroutine:
        `await asyncio.to_thread(run.commit, sample)`, or routing_replay.aio.
        """
        return _checkpoint.drive(_commits.commit(self, sample, num_tokens, tokens, attempt, timeout))

    def _settle_sample(self, key: _commits.Key, timeout: float) -> _commits.Trouble | None:
        deadline = time.monotonic() + timeout
        trouble: _commits.Trouble | None = None
        while True:
            with self._lock:
                handovers, appenders = list(self._handovers), list(self._appenders)
            for source in [*handovers, *appenders]:
                trouble = _commits.worse(trouble, source._settle_sample(key, deadline))
            if not any(handover._has_open(key) for handover in handovers):  # Marks of what was refused.
                return trouble

    def metrics(self) -> dict[str, int]:
        """Counters of what `append` queued: see `Appender.metrics`. And of all calls of adapters in this process, for
        whichever run: adapter_refused, adapter_refused_<reason>, adapter_surplus_rows (left out)."""
        return {**self._default_appender().metrics(), **_counters.metrics()}

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
        opened = self._opened
        writer = _turns.new_writer(
            opened.core, sample, existing=existing, strict=opened.settings.strict, group=group, engine=engine
        )
        return Trajectory(self, writer, self._default_appender() if appender is None else appender)

    def put(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> AppendOutcome:
        """One append in one call per weight version, acknowledged when it returns. The server decodes what is sent as
        it is. One that is refused counts in metrics() as that of `append`."""
        with self._default_appender().counting_refusals():
            plan = _append.make_plan(self._opened.core, False, sample, rows, **options)
            answers = [self._transport.call("Put", message) for message in self._opened.core.put_messages(plan)]
        return _append.outcome_from(_core.put_outcome(answers))

    def seal(self, sample: str, num_tokens: int, *, revision: int = 0, producer: Producer = "rollout") -> SampleState:
        """No more rows will come: rows 0 … num_tokens - 2 must be committed. Idempotent."""
        return self._do(_calls.seal(self._name, sample, num_tokens, revision, producer))

    def truncate(
        self, sample: str, rows: int, *, expected_revision: int | None = None, producer: Producer = "rollout"
    ) -> SampleState:
        """Back to rows [0, rows), unsealed, under the next revision."""
        return self._do(_calls.truncate(self._name, sample, rows, expected_revision, producer))

    # Rows out.

    def read(
        self,
        samples: Iterable[SampleLike],
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> Sequence[SampleRows]:
        """Reads and decodes; every byte is checked against its CRC32C. One result per sample, in the order asked.

        samples: ids, handles, or SampleRead where more is to be said
        layers: global decoder layer ids, ascending; all MoE layers if absent
        wait: wait until shortly before `timeout` for rows that are not committed yet, instead of NOT_READY, and for
            samples that nobody has begun, instead of NOT_FOUND
        only_begun: with wait, a sample that nobody has begun is NOT_FOUND at once

        A sample that cannot be read has a status that says why; it does not fail the others. Raises DataLossError
        naming sample, layer and row for damaged bytes; DeadlineExceededError after `timeout` seconds. What a server
        that goes away did not bring to its end is asked of the next one, or of the same one when it is back
        ("shard:" apart, where its samples are UNAVAILABLE): UnavailableError if none is there in time, AbortedError
        (OLD_REVISION) naming a sample that changed meanwhile.
        """
        reader = _read.make_reader(self._opened.core, samples, layers, producer, wait, only_begun)
        self._read_into(reader, timeout)
        return _read.rows_from(reader)

    def read_one(
        self,
        sample: SampleLike,
        *,
        layers: Sequence[int] | None = None,
        producer: Producer = "rollout",
        wait: bool = False,
        only_begun: bool = False,
        timeout: float = 120.0,
    ) -> SampleRows:
        """As `read`, of one sample."""
        rows = self.read([sample], layers=layers, producer=producer, wait=wait, only_begun=only_begun, timeout=timeout)
        return rows[0]

    def read_messages(self, request: bytes, timeout: float = 120.0) -> Iterator[bytes]:
        """The messages of a Read as they come (read.proto), for callers with a core of their own.

        `request` is a serialized ReadRequest. Closing the iterator ends the call. Raises RoutingReplayError. A read
        of which nothing came yet waits for a server that is away, or goes on to the next one; after an
        UnavailableError in its middle a new read does.
        """
        deadline = time.monotonic() + _values.seconds(timeout)
        retry = _core.Retry(int(deadline * 1e9))
        while True:
            came = False
            try:
                for message in self._read_once(request, deadline):
                    came = True
                    yield message
                return
            except Broken as broken:
                time.sleep(broken.wait(None if came else retry))

    @property
    def has_other_servers(self) -> bool:
        """Whether another server may be there when the present one is away."""
        return self._transport.has_others

    def _read_into(self, reader: _core.Reader, timeout: float) -> None:
        deadline = time.monotonic() + _values.seconds(timeout)
        retry = _core.Retry(int(deadline * 1e9))
        while (request := reader.request()) is not None:
            try:
                for message in self._read_once(request, deadline):
                    reader.push(message)
                    retry = _core.Retry(int(deadline * 1e9))
                reader.end()
            except Broken as broken:
                time.sleep(broken.wait(retry))
                reader.broke()

    def _read_once(self, request: bytes, deadline: float) -> Iterator[bytes]:
        channel = self._transport.channel()
        left = max(0.0, deadline - time.monotonic())
        metadata = self._transport.metadata()
        call = channel.unary_stream(SERVICE + "Read")(request, timeout=left, metadata=metadata)
        try:
            yield from call
        except grpc.RpcError as failure:
            raise Broken(self._transport.failed(channel, failure, metadata), is_refusal(failure)) from None
        finally:
            call.cancel()

    # What is there.

    def stat(self, sample: str, *, producer: Producer = "rollout") -> SampleState:
        """NotFoundError (NO_SAMPLE) if there is none."""
        for state in self.stat_many([sample], producer=producer):
            return state
        raise _calls.no_sample(self._name, sample)

    def stat_many(self, samples: Iterable[str], *, producer: Producer = "rollout") -> SampleStates:
        """The ones that exist, in the order asked."""
        states: SampleStates = []
        for names in _calls.names_in_calls(samples):
            waiting = [names]
            while waiting:
                some = waiting.pop()
                try:
                    states += self._do(_calls.stat(self._name, some, producer))
                except ResourceExhaustedError as error:
                    waiting += _calls.halves(some, error)
        return states

    def list(self, *, groups: tuple[int, int] | None = None, producer: Producer = "rollout") -> SampleStates:
        """All samples, or those of groups[0] <= group < groups[1], by id."""
        states: SampleStates = []
        page_token = ""
        while True:
            page, page_token = self._do(_calls.list_page(self._name, self._opened.lives, groups, producer, page_token))
            states += page
            if not page_token:
                return states

    def release(
        self, samples: Iterable[str | int], *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """Gives samples back, by default of both producers. Unknown ones are not counted, so a retry is harmless.

        samples: ids or handles, as a batch carries them (a tensor's elements, too); handle 0, of no sample, is skipped
        keep_until_checkpoint: sealed samples stay, for their time to live, until a `checkpoint` holds them, so that
            training that has to go back to the checkpoint before can replay them again. Others, which no checkpoint
            takes, are given back now; so are the trainer's, unless producer="trainer" asks for them: a checkpoint holds
            the samples of one producer. To truncate or restart a sample takes this back
        """
        return _calls.sum_of(map(self._do, _calls.releases(self._name, samples, keep_until_checkpoint, producer)))

    def release_groups(
        self, begin: int, end: int, *, keep_until_checkpoint: bool = False, producer: Producer | None = None
    ) -> ReleaseOutcome:
        """Gives back all samples with begin <= group < end; see `release`."""
        mode = _calls.release_mode(keep_until_checkpoint)
        return self._do(_calls.release(self._name, mode, groups=(begin, end), producer=producer))

    def checkpoint(
        self,
        directory: _checkpoint.Directory,
        groups: tuple[int, int] | None = None,
        *,
        producer: Producer = "rollout",
        drop_missing: bool = False,
        release_awaiting: bool = True,
        timeout: float = 120.0,
        on_progress: _checkpoint.OnProgress | None = None,
    ) -> CheckpointOutcome:
        """Writes the sealed samples to a directory, those that are not there yet, beside running appends.

        directory: made if it is not there; an exported run, from which `Client.restore` and a trainer's
            DirectorySource read. One that was stopped at any moment goes on when this is called again, and what it
            held before can be read until then
        groups: samples of groups[0] <= group < groups[1]; all if absent
        drop_missing: samples of these groups that the directory holds and the run does not (they were released) leave
            the directory, but for those that the run gave back because the directory holds them.
            FailedPreconditionError, and nothing is changed, where a server lost the run and it was made again since
            the directory last saw them: they may be nowhere else. Restore the directory first, or take another one
        release_awaiting: samples that were released with keep_until_checkpoint are given back once the directory holds
            them, which may then be the only one; False for a copy that is no checkpoint
        timeout: seconds for one portion of some tens of MB
        on_progress: called on this thread

        FailedPreconditionError if the directory holds another run; AlreadyExistsError if it holds something else;
        DataLossError naming a sample that the store lost, AbortedError naming one that changes whenever it is read: all
        others are in the directory then; errors of `read`.
        """
        return _checkpoint.drive(
            _checkpoint.export(self, directory, groups, producer, drop_missing, release_awaiting, timeout, on_progress)
        )

    def drop(self) -> ReleaseOutcome:
        """Removes the run and all that is in it."""
        return self._do(_calls.drop(self._name))

    def close(self, timeout: float = 60.0) -> None:
        """Flushes and ends the run's appenders; the run itself stays on the server."""
        with self._lock:
            appenders, self._appender = list(self._appenders), None
        for appender in appenders:
            appender.close(timeout)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self._name}: {self.geometry!r}>"

    def _default_appender(self) -> Appender:
        if self._appender is None:
            made = self.appender()
            with self._lock:
                if self._appender is None:
                    self._appender = made
            if self._appender is not made:  # Another thread was faster.
                made.close()
        return self._appender

    def _work(self, work: Callable[[], T]) -> T:
        """What may take long, as a step of _checkpoint."""
        return work()

    def _do(self, call: _calls.Call[T]) -> T:
        return call.read(self._transport.call(call.method, call.request, call.repeat))

    def __reduce__(self) -> Any:
        raise TypeError("a Run cannot be pickled; make a Client in the other process")
