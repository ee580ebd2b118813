"""Sources of rows, and fetches, which read rows and realign them: put each at its place in a rank's index buffer."""

from __future__ import annotations

import functools
import os
import reprlib
import time
from collections.abc import Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from routing_replay import _calls, _convert, _native, _values, errors
from routing_replay._calls import Operation
from routing_replay._values import INT32, UINT64, integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, geometry_json, invalid, plain, token_ids
from routing_replay_trainer.plan import Plan

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # Seconds between inspections of samples that are not ready.
_BYTE = np.dtype(np.uint8)
REPLAYED, UNRECORDED, PAD, LIVE = 0, 1, 2, 3  # States of a local row.

Missing = Literal["strict", "live", "drop"]
_MISSING = {"strict": 0, "live": 1, "drop": 2}
# The native library's names for the arguments of LocalSource.add.
_ARGUMENTS = {
    "payload": "rows",
    "append.tensor.dtype": "rows",
    "append.tensor.shape": "rows",
    "tensor.dtype": "rows",
    "tensor.shape": "rows",
    "tensor.layer_ids": "layers",
    "token_ids": "tokens",
}


@dataclass(slots=True)
class FetchSequence:
    """What a fetch expects of one sequence of the micro-batch, in addition to the plan's description.

    sample: id, or handle (routing_replay.Run.handle)
    num_tokens: expected number of tokens; a sample with another number counts as missing
    tokens: the trainer's token ids [n] from position 0 on; a sample with other tokens counts as missing. The sample's
        last token has no row and is not compared. Without num_tokens the last given id may be that token, so it is not
        compared either; and the service then compares only up to the last multiple of the run's block_rows, because it
        has no token checks in between
    content_id: the content id that the ranks of the replica agreed on. The sample must be readable with this content,
        or the fetch fails, whatever `missing` says. Exception: if `tokens` are given but the sample was recorded
        without tokens, `missing` decides
    live: True: no rows are read, because the sequence belongs to no sample (""), or because the ranks agreed that it
        falls back
    rows: for a part of a sample, the number of rows, counted from the sample's first row, that the sample must have;
        for begin_step a sample with fewer rows is missing (OUT_OF_RANGE)
    """

    sample: str | int
    num_tokens: int | None = None
    tokens: ArrayLike | None = None
    content_id: int | None = None
    live: bool = False
    rows: int | None = None

    def _fill(self, made: _core.Sequence, check_every: int) -> None:
        """Writes the fields to the native struct `made`. check_every: see `Source`"""
        sample, num_tokens = self.sample, self.num_tokens
        if isinstance(sample, str):
            name = _values.utf8(sample, "sample")
            made.sample, made.sample_size = name, len(name)
        else:
            made.handle = integer(sample, "sample")
        if num_tokens is not None:
            made.num_tokens, made.has_num_tokens = integer(num_tokens, "num_tokens", sample=sample), 1
        if self.tokens is not None:
            ids = token_ids(self.tokens, sample)
            rows = _checked_rows(ids.size, num_tokens, check_every)
            made.check_rows, made.check_crc = rows, LIBRARY.rr_token_crc(0, ids.ctypes.data, rows)
            made.has_token_check = 1
        if self.content_id is not None:
            made.content_id = integer(self.content_id, "content_id", UINT64, self.sample)
            made.has_content_id = 1
        if self.live:
            made.live = 1


def _checked_rows(tokens: int, num_tokens: int | None, every: int) -> int:
    """Returns for how many rows a source can compare the token ids of a trainer. tokens: number of these ids. All rows
    if num_tokens is given; else a multiple of `every`, because a longer sample has no token check elsewhere."""
    if num_tokens is not None:
        return max(0, min(tokens, num_tokens - 1))
    return max(0, tokens - 1) // every * every


@dataclass(eq=False)  # Not frozen, for speed: every fetch makes one.
class Batch:
    """One micro-batch on one rank, ready to be replayed. plan: the plan that was fetched
    indices: per local MoE layer, in the order of plan.layers, ids [local rows, K] in the compact dtype (views of one
        buffer, or one array where layers are alike); filler ids where a row is not replayed. Empty if the ids are on a
        device
    states: [local rows] uint8: REPLAYED, UNRECORDED (routes live: no route was recorded, or the sample fell back), PAD
        (takes filler ids: padding, or the last token of a sequence if the plan says so) or LIVE (routes live, because
        the token belongs to no sample)
    replayed_rows, unrecorded_rows, pad_rows, live_rows: number of rows in each state
    fallback_sequences: number of sequences that route live because their sample is missing
    sequences: per sequence that the rank reads: {"sequence", "sample", "status", "message", "committed_rows",
        "num_tokens" and "content_id" where they are known, "revision", "unrecorded", "weights"}; the status is
        UNSPECIFIED if the ranks agreed that the sequence routes live
    """

    plan: Plan
    indices: Sequence[NDArray[Any]] | NDArray[Any]
    states: NDArray[np.uint8]
    replayed_rows: int
    unrecorded_rows: int
    pad_rows: int
    fallback_sequences: int
    sequences: Sequence[dict[str, Any]]

    @property
    def live_rows(self) -> int:
        return len(self.states) - self.replayed_rows - self.unrecorded_rows - self.pad_rows


class _Records(Sequence[dict[str, Any]]):
    """The native library's reports about the sequences of a fetch. They are converted to dicts when first read."""

    def __init__(self, owner: _native.Handle, said: _core.Records) -> None:
        self._owner = owner
        self._said = said

    @functools.cached_property
    def _all(self) -> list[dict[str, Any]]:
        return [{"sequence": one.sequence, "sample": str(one.sample), **_state(one.said)} for one in self._said]

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return self._said.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == list(other)


def _state(said: _native.SampleRows) -> dict[str, Any]:
    """Converts a source's report about a sample."""
    weights = said.weights[: said.weights_count]
    known = {
        "status": str(said.status),
        "message": str(said.message),
        "committed_rows": said.committed_rows,
        "revision": said.revision,
        "unrecorded": [list(pair) for pair in said.unrecorded.pairs()],
        "weights": [[span.begin, span.end, span.version, str(span.label)] for span in weights],
    }
    if said.content_id:
        known["content_id"] = said.content_id
    if (tokens := said.num_tokens.value) is not None:
        known["num_tokens"] = tokens
    return known


class _Fetch:
    """An rrt_fetch. Holds a reference to the plan, which must outlive it."""

    __slots__ = ("_handle", "missing", "plan", "pointer")

    def __init__(self, plan: Plan, missing: Missing, options: _core.FetchOptions) -> None:
        self.plan = plan
        self.missing = missing
        self._handle = _core.make(LIBRARY.rrt_fetch_new, plan.pointer, byref(options))
        self.pointer = self._handle.pointer

    def give_up(self, why: str) -> None:
        """Ends the fetch early: samples whose rows have not arrived fall back, as the policy says."""
        encoded = why.encode(errors="replace")
        LIBRARY.rrt_fetch_give_up(self.pointer, _native.Text(encoded, len(encoded)))


def _batch(plan: Plan, indices: Any, states: Any, records: int | None, counted: Any = None) -> Batch:
    """Makes the batch of a finished fetch. records: an rrt_records, which is freed with the batch; counted: the
    structure with the counts of rows, if it is not `records`"""
    owner = _native.Handle(LIBRARY.rr_free, records)
    found = _core.Records.from_address(owner.pointer or 0)
    counted = found if counted is None else counted
    counts = counted.replayed_rows, counted.unrecorded_rows, counted.pad_rows, found.fallback_sequences
    return Batch(plan, indices, states, *counts, _Records(owner, found))


class _Target:
    """The destination of a fetch's rows."""

    __slots__ = ("_buffer", "_plan", "_states", "native")

    def __init__(self, plan: Plan, out: NDArray[np.uint8] | None) -> None:
        self._plan = plan
        self._buffer = np.empty(plan.buffer_bytes, _BYTE) if out is None else _index_buffer(out, plan)
        self._states = np.empty(plan.rows, _BYTE)
        self.native = _core.Target(
            _native.data_of(self._buffer), plan.buffer_bytes, _native.data_of(self._states), plan.rows
        )

    def batch(self, records: int | None) -> Batch:
        """Makes the batch once the rows have arrived. records: rrt_records, freed with the batch"""
        return _batch(self._plan, slabs(self._plan, self._buffer), self._states, records)


def slabs(plan: Plan, buffer: NDArray[np.uint8]) -> Sequence[NDArray[Any]] | NDArray[Any]:
    """Returns views of an index buffer: the ids [rows, K] of each local layer, or one array [layers, rows, K] if the
    layers are alike."""
    if plan.layers_alike:
        first = plan.layers[0]
        return np.ndarray((len(plan.layers), plan.rows, first.top_k), first.dtype, buffer)
    return tuple(np.ndarray((plan.rows, layer.top_k), layer.dtype, buffer, layer.offset) for layer in plan.layers)


class Staged:
    """The rows of a fetch before they are realigned: everything is checked and planned, and a device realigns them with
    one kernel launch.

    shape: the rrt_staged_shape of the block that is copied to the device: a packed realign plan, followed by the staged
        rows in the compact form in which they arrived
    """

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch = fetch
        self.shape = _core.StagedShape()
        out = c_void_p()
        LIBRARY.rrt_staged_new(fetch.pointer, byref(out), byref(self.shape))
        self._handle = _native.Handle(LIBRARY.rr_object_free, out.value)

    def write(self, block: NDArray[np.uint8]) -> Batch:
        """Writes what the device needs into `block`, whose address must be a multiple of 16. Returns the batch, without
        indices."""
        LIBRARY.rrt_staged_write(self._handle.pointer, block.ctypes.data, block.size)
        begin = self.shape.states_offset
        states = block[begin : begin + self._fetch.plan.rows].copy()
        records = c_void_p()
        LIBRARY.rrt_fetch_result(self._fetch.pointer, None, byref(records))
        return _batch(self._fetch.plan, (), states, records.value, self.shape)


def _inspected(kept: _core.Records) -> list[dict[str, Any]]:
    return [_state(one.said) for one in kept]


# The arguments of one fetch: plan, sequences, index buffer.
_Asked = tuple[Plan, Sequence[FetchSequence] | None, NDArray[np.uint8] | None]


class Source:
    """The common part of the sources of this package. A fetch has three parts: it is described, its rows are read, and
    they are realigned. `step.StepSource`, which wraps a source for a trainer, replaces the reading by its own.

    geometry: geometry of the run
    producer, wait: passed to every fetch and inspection
    check_every: token checks exist at multiples of this many rows, and at the end of each sample
    """

    keeps_rows = False  # True if all rows are already in this process's memory.

    def __init__(self, geometry: Any, producer: str = "rollout", wait: bool = True, check_every: int = 1) -> None:
        self.geometry = geometry
        self._told = _convert.producer(producer, "producer"), bool(wait)
        self._check_every = check_every

    def fetch(
        self,
        plan: Plan,
        *,
        sequences: Sequence[FetchSequence] | None = None,
        missing: Missing = "strict",
        out: NDArray[np.uint8] | None = None,
    ) -> Batch:
        """Fetches the plan's rows and realigns them.

        sequences: one per sequence of the micro-batch; the samples of the plan's description if absent
        missing: what happens to a sequence whose sample cannot be replayed: "strict" raises FailedPreconditionError
            naming the sample; "live" and "drop" route all rows of the sequence live and count it
        out: index buffer [plan.buffer_bytes] to write into (for example pinned memory, or memory that a CUDA graph
            uses); the batch's indices are views of it. If absent, a new buffer is made. After an error the content of
            `out` is undefined

        Errors of a service or its connection are raised as routing_replay raises them.
        """
        (batch,) = self._fetched([(plan, sequences, out)], missing)
        return batch

    def fetch_all(
        self,
        plans: Sequence[Plan],
        *,
        sequences: Sequence[Sequence[FetchSequence] | None] | None = None,
        missing: Missing = "strict",
        out: Sequence[NDArray[np.uint8] | None] | None = None,
    ) -> list[Batch]:
        """Fetches several micro-batches, for example those of a step, one after the other. sequences, out: one per
        plan"""
        nothing = (None,) * len(plans)
        every = zip(plans, nothing if sequences is None else sequences, nothing if out is None else out, strict=True)
        return self._fetched(list(every), missing)

    def stage(
        self, plan: Plan, *, sequences: Sequence[FetchSequence] | None = None, missing: Missing = "strict"
    ) -> Staged:
        """As `fetch`, but does not realign the rows: with the returned Staged, a device does."""
        fetch = self._start(plan, sequences, missing)
        self._bring(fetch, None)
        return Staged(fetch)

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Returns what a fetch would report about each sample (as `Batch.sequences`), before its rows are fetched. A
        sample that is not sealed is NOT_READY, because its final state is unknown.

        timeout: seconds to wait for rows that are not committed yet and for the seal; by default the timeout of the
            source
        """
        raise NotImplementedError

    def _fetched(self, asked: Sequence[_Asked], missing: Missing) -> list[Batch]:
        return [self._fetched_one(*one, missing) for one in asked]

    def _fetched_one(
        self, plan: Plan, sequences: Sequence[FetchSequence] | None, out: NDArray[np.uint8] | None, missing: Missing
    ) -> Batch:
        target, records = _Target(plan, out), c_void_p()
        fetch = self._start(plan, sequences, missing)
        self._bring(fetch, None)
        LIBRARY.rrt_fetch_result(fetch.pointer, byref(target.native), byref(records))
        return target.batch(records.value)

    def _start(self, plan: Plan, sequences: Sequence[FetchSequence] | None, missing: Missing) -> _Fetch:
        return _Fetch(plan, missing, self._options(sequences, missing))

    def _bring(self, fetch: _Fetch, timeout: float | None) -> None:
        """Reads the rows that the fetch needs. timeout: in seconds; None is that of the source"""
        raise NotImplementedError

    def _options(self, sequences: Sequence[FetchSequence] | None, missing: Missing = "strict") -> _core.FetchOptions:
        producer, wait = self._told
        policy = _values.choice(missing, "missing", _MISSING)
        if sequences is None:
            return _core.FetchOptions(producer, policy, wait)
        made = _array_of(_core.Sequence, len(sequences))()
        for sequence, target in zip(sequences, made, strict=True):
            sequence._fill(target, self._check_every)
        return _core.FetchOptions(producer, policy, wait, made, len(sequences))


@functools.lru_cache
def _array_of(kind: Any, count: int) -> Any:
    """Returns the ctypes array type of this length. Cached, because otherwise ctypes makes a new type each time."""
    return kind * count


class _HostSource(Source):
    """A source that the native library reads without the service."""

    _handle: _native.Handle  # rrt_source

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        asked = self._handle.pointer, byref(self._options(sequences))
        return _native.give(LIBRARY.rrt_source_inspect, _core.Records, _inspected, *asked)

    def _bring(self, fetch: _Fetch, timeout: float | None) -> None:
        LIBRARY.rrt_source_fetch(self._handle.pointer, fetch.pointer)


class LocalSource(_HostSource):
    """A source of rows that the host already has, as arrays from Ray, TransferQueue or a pickle, for replay without the
    service. Several threads may call `fetch` at once, but not while samples are added or removed.

    geometry: as `Plan` takes it
    """

    keeps_rows = True

    def __init__(self, geometry: Any) -> None:
        super().__init__(geometry_json(geometry))
        self._handle = _core.make(LIBRARY.rrt_local_source_new, _core.text(self.geometry))

    def add(
        self,
        sample: str,
        rows: ArrayLike,
        *,
        num_tokens: int | None = None,
        unrecorded: Sequence[tuple[int, int]] = (),
        tokens: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        """Checks and narrows the rows of a sample and keeps a copy. Replaces an existing sample with this id.

        rows: ids [recorded rows, layers, K] of dtype uint8, uint16, int8, int16, int32 or int64; layers are all MoE
            layers or all decoder layers (dense columns are ignored), or those that `layers` names
        num_tokens: T; rows and unrecorded rows together must be T - 1. If absent: the number of these rows plus one
        unrecorded: half-open ranges of rows that `rows` does not contain
        tokens: token ids from position 0 on, one per row or more, which `fetch` compares with the trainer's

        Raises InvalidArgumentError naming sample, field (the argument), row and layer; existing samples are untouched
        then.
        """
        ids = np.empty(0, np.uint32) if tokens is None else token_ids(tokens, sample)
        try:
            tensor, _array = _convert.tensor(rows, layers, sample)
            LIBRARY.rrt_local_source_add(
                self._handle.pointer,
                _values.native_text(sample, "sample", sample),
                _values.optional(num_tokens, "num_tokens", sample=sample),
                _values.native_ranges(unrecorded, "unrecorded", sample),
                tensor,
                ids.ctypes.data,
                ids.size,
            )
        except errors.InvalidArgumentError as error:
            raise error.renamed(_ARGUMENTS) from None

    def record(self, plan: Plan, sequence: int, buffer: NDArray[np.uint8], *, tokens: ArrayLike | None = None) -> None:
        """For R2 (replay of the trainer's own choice) without the service: adds the rows that this rank itself recorded
        for one sequence of the plan.

        plan: must have all layers of this source's geometry; on a rank of a pipeline, both have only the rank's layers
        sequence: index in the micro-batch; the sample's id and num_tokens are taken from the plan's description
        buffer: [plan.buffer_bytes] uint8, the index buffer with the recorded ids
        tokens: as in `add`

        Rows that the rank does not hold are unrecorded; a plan with the same partition does not ask for them. The
        sample has no content_id, because ranks hold different parts of it. Raises InvalidArgumentError.
        """
        number = integer(sequence, "sequence", INT32)
        ids = np.empty(0, np.uint32) if tokens is None else token_ids(tokens, str(sequence))
        data = _index_buffer(buffer, plan)
        LIBRARY.rrt_local_source_record(
            self._handle.pointer, plan.pointer, number, ids.ctypes.data, ids.size, data.ctypes.data, data.size
        )

    def remove(self, sample: str) -> bool:
        """Removes a sample. Returns True if it existed."""
        name = str(plain(sample, "sample")).encode(errors="surrogatepass")
        return bool(LIBRARY.rrt_local_source_remove(self._handle.pointer, _native.Text(name, len(name))))


class DirectorySource(_HostSource):
    """A source of rows that were exported to a directory (format: proto/FORMAT.md, "Exported runs").

    Raises FailedPreconditionError if there is no finished export, DataLossError if files were changed since they were
    written. Keeps only the index in memory; rows are read when they are fetched. `producer` is that of the exported
    run. May be shared between threads.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = os.fsencode(directory)
        open_ = LIBRARY.rrt_directory_source_open
        self._handle, index = _core.make_described(open_, _native.Text(path, len(path)))
        self.run: str = index["run"]
        self.producer: Literal["rollout", "trainer"] = index["producer"]
        self.samples: tuple[str, ...] = tuple(index["samples"])
        super().__init__(index["geometry"], producer=self.producer)


class ServiceSource(Source):
    """A source of rows of one run on a routing-replay-server. Thread-safe. One `fetch_all` is cheaper than several
    `fetch`, because it is one call of the library. With missing="live" or "drop", a sample that does not arrive in time
    falls back.

    run: a routing_replay.Run, or a run of routing_replay.aio; the source uses the run's connection
    timeout: seconds for one `fetch` or `fetch_all`, including the wait for rows
    wait: True: wait for rows that are not committed yet. False: treat their sample as missing
    """

    def __init__(
        self,
        run: Any,
        *,
        timeout: float = 120.0,
        wait: bool = True,
        producer: Literal["rollout", "trainer"] = "rollout",
    ) -> None:
        super().__init__(geometry_json(run.geometry), producer, wait, run.settings.block_rows)
        self._run = run
        self._timeout = timeout

    def inspect(self, sequences: Sequence[FetchSequence], *, timeout: float | None = None) -> list[dict[str, Any]]:
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        records = self._inspected(sequences, end - time.monotonic())
        pause = _FIRST_PAUSE
        # The server waits for a seal only if the request states the expected length. Else ask again.
        while self._told[1] and end - time.monotonic() > pause:
            open_ones = [i for i, record in enumerate(records) if record["status"] == "NOT_READY"]
            if not open_ones:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            again = self._inspected([sequences[i] for i in open_ones], end - time.monotonic())
            for i, record in zip(open_ones, again, strict=True):
                records[i] = record
        return records

    def _inspected(self, sequences: Sequence[FetchSequence], seconds: float) -> list[dict[str, Any]]:
        native, options = self._run.native, self._options(sequences)
        return _calls.operation(
            LIBRARY.rrt_inspect,
            (native.pointer, byref(options)),
            _core.Records,
            _inspected,
            timeout=_values.seconds(max(seconds, 0.0)),
            kept=native,
        ).wait()

    def _fetched(self, asked: Sequence[_Asked], missing: Missing) -> list[Batch]:
        native, fetches = self._run.native, _array_of(_core.RowFetch, len(asked))()
        targets = [_Target(plan, out) for plan, _, out in asked]
        for fetch, (plan, named, _), target in zip(fetches, asked, targets, strict=True):
            fetch.plan, fetch.options, fetch.target = plan.pointer, self._options(named, missing), target.native
        return Operation(
            LIBRARY.rrt_fetch_rows,
            (native.pointer, fetches, len(fetches)),
            (),
            lambda: [target.batch(fetch.records) for target, fetch in zip(targets, fetches, strict=True)],
            lambda: [LIBRARY.rr_free(fetch.records) for fetch in fetches],
            timeout=_values.seconds(max(self._timeout, 0.0)),
            kept=(native, asked, targets),
        ).wait()

    def _bring(self, fetch: _Fetch, timeout: float | None) -> None:
        native, seconds = self._run.native, self._timeout if timeout is None else timeout
        Operation(
            LIBRARY.rrt_fetch_read,
            (fetch.pointer, native.pointer),
            (),
            lambda: None,
            timeout=_values.seconds(max(seconds, 0.0)),
            kept=(fetch, native),
        ).wait()


def _index_buffer(out: NDArray[np.uint8], plan: Plan) -> NDArray[np.uint8]:
    if not isinstance(out, np.ndarray):
        raise invalid("out", f"must be a numpy array, got {reprlib.repr(out)}")
    if out.dtype != _BYTE or out.shape != (plan.buffer_bytes,) or not out.flags.carray:
        raise invalid("out", f"must be uint8 ({plan.buffer_bytes},), writable, got {out.dtype} {out.shape}", "SHAPE")
    return out
