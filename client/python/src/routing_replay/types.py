"""Data classes of the values that calls take and return."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int64
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from routing_replay import _native, _values

Producer = Literal["rollout", "trainer"]
RowRange = tuple[int, int]  # Half-open: rows begin, begin + 1, … end - 1.

OnFull = Literal["block", "drop", "raise"]


@dataclass(frozen=True)
class Payload:
    """Rows as an engine sent them, not decoded. The parameter `rows` accepts an array or a Payload.

    data: the bytes (or the text, for base64)
    encoding: "RAW" (C order, little-endian), "NPY", "BASE64" (of RAW), "BASE64_NPY"
    compression: "NONE" or "ZSTD" (then raw_size, the number of bytes before compression, is required)
    dtype: "U8", "I8", "U16", "I16", "I32" or "I64"; not needed for "NPY" and "BASE64_NPY", which state it
    shape: (rows, layers, K); not needed for "NPY" and "BASE64_NPY"
    """

    data: bytes | str | memoryview
    encoding: str = "RAW"
    compression: str = "NONE"
    raw_size: int = 0
    dtype: str | None = None
    shape: Sequence[int] | None = None


def token_ids(tokens: ArrayLike, field: str = "tokens", sample: str | None = None) -> np.ndarray:
    """Converts token ids, integers of any dtype on one axis, to uint32 [n].

    InvalidArgumentError naming `field` for another dtype, more axes, no ids at all, or ids of more than 32 bits.
    """
    native, _array = _values.native_tokens(tokens, field, sample)
    return _native.give(
        _native.lib.rr_token_ids,
        _native.Ids,
        lambda ids: np.frombuffer(ctypes.string_at(ids.data, 4 * ids.count), "<u4"),
        byref(native),
        _native.text(field),
        _native.text(sample or ""),
    )


def sample_handle(sample: str, run: int | None = None) -> int:
    """The handle of a sample: an integer that replaces its id in a batch. It is the same on every machine, and never 0.
    With "shard:" it also depends on the list of servers: use `Run.handle`."""
    handle = c_int64()
    name = _values.native_text(sample, "sample")
    _native.check(_native.lib.rr_sample_handle(run, name, byref(handle)))
    return handle.value


@dataclass(frozen=True)
class TokenCheck:
    """A check of tokens: the CRC32C over the token ids (uint32, little-endian) of positions 0 … rows - 1."""

    rows: int
    crc32c: int


def token_check(tokens: ArrayLike) -> TokenCheck:
    """Makes the check of these tokens, one per row to be checked, from position 0 on. Raises the errors of
    `token_ids`."""
    ids = token_ids(tokens)
    return TokenCheck(ids.size, _native.lib.rr_token_crc(0, ids.ctypes.data, ids.size))


@dataclass(frozen=True)
class WeightSpan:
    """Rows [begin, end) were routed under weights with this version and label. version -1: unknown."""

    begin: int
    end: int
    version: int
    label: str = ""


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Rows of one sample as an engine returned them, with everything that its response says of them.

    `append`, `put` and `Trajectory.add` accept it as `rows`. The first missing_rows rows from row_start on were not
    recorded; the rows of `rows` that `take` selects follow them.

    rows: ids [rows, layers, K] of an integer dtype, or a Payload that holds them; None: nothing was recorded
    row_start: absolute row of the first row, missing ones included
    take: half-open range of the first axis of `rows`; only these are used; None: all
    layers: what the axis of layers holds: "all", "moe" or decoder layer ids; None: its length decides
    weights: weight versions of ranges of absolute rows, ascending and disjoint; may be empty
    engine: name and version of the engine, for information, for example "vllm 0.33.0"
    surplus_rows: number of rows outside of `take`: 1 if the engine returned a row for the last token
    missing_rows: rows from row_start on that the engine did not return; they become unrecorded
    tokens: token ids, uint32, one per position from 0 on, or None
    """

    rows: ArrayLike | Payload | None
    row_start: int = 0
    take: RowRange | None = None
    layers: Literal["all", "moe"] | Sequence[int] | None = None
    weights: tuple[WeightSpan, ...] = ()
    engine: str = ""
    surplus_rows: int = 0
    missing_rows: int = 0
    tokens: np.ndarray | None = None

    def without(self, end: int) -> RecordedRows:
        """Returns these rows with all rows before the absolute row `end` counted as missing. Used if these rows may
        belong to another request or to other weights."""
        begin, past = self.take or (0, 0)
        lost = min(end - self.row_start - self.missing_rows, past - begin)
        if lost <= 0:
            return self
        missing = self.missing_rows + lost
        if begin + lost == past:
            return replace(self, rows=None, take=None, missing_rows=missing)
        return replace(self, take=(begin + lost, past), missing_rows=missing)


Rows: TypeAlias = ArrayLike | Payload | RecordedRows


@dataclass(slots=True)
class Append:
    """One append: the parameters of `append` and `put`, and an item of `append_many`. If `rows` is the result of an
    adapter, it states row_start, take, unrecorded and layers, which must be absent here. Its tokens and its engine are
    used if these are absent here, and its weights if weights and weight_version are absent here.

    sample: id
    rows: ids [rows, layers, K] of an integer dtype (uint8, uint16 or a signed one), a Payload, the result of an adapter
        of routing_replay.engines, or None: to create or seal a sample, or if all rows are unrecorded
    row_start: absolute row of the first row (default 0)
    take: half-open range of `rows`' first axis; only these are appended
    unrecorded: half-open ranges inside the append whose rows the engine did not deliver; they are not in `rows`
    tokens: token ids, one per row, or one per position from 0 on (then the whole history is checked); None, not an
        empty list, if they are unknown
    layers: "all" (one column per decoder layer), "moe" (per MoE layer) or decoder layer ids; if absent, the length of
        the axis decides
    seal: no more rows will come; num_tokens is then one more than the rows up to the end of this append. Without rows,
        also give row_start (the number of rows so far) or num_tokens
    num_tokens: seals the sample, with this number of tokens
    group: int64 of the caller, for example the training step
    weight_version, weight_label: number and name of the version of the weights that routed the rows
    weights: WeightSpans, the versions for ranges of absolute rows, ascending and disjoint; rows in no range have
        weight_version
    revision: the revision of the sample that the rows belong to, from `stat` or `truncate`
    restart: if not 0, these rows replace the sample from its beginning. Use a new number for each restart, and give
        it to all appends of the restart
    attempt: number of the attempt at this sample: 0, 1, …, less than 2^32. Use it if a framework may dispatch a prompt
        again, with the same number on every append of one attempt. The first append of a later attempt, which must
        start at row 0, replaces all rows that an earlier attempt has appended, sealed or not. From then on, appends of
        the earlier attempt are rejected (OLD_REVISION), change nothing, and count as stale_appends; `flush` does not
        raise an error for them. Rows that came without an attempt are replaced if `revision` is the sample's revision.
        Cannot be combined with restart
    engine: free text, for example "vllm 0.33.0"
    producer: "rollout" or "trainer"
    """

    sample: str
    rows: Rows | None = None
    _: KW_ONLY
    row_start: int | None = None
    take: RowRange | None = None
    unrecorded: Sequence[RowRange] | None = None
    tokens: ArrayLike | None = None
    layers: Literal["all", "moe"] | Sequence[int] | None = None
    seal: bool = False
    num_tokens: int | None = None
    group: int | None = None
    weight_version: int | None = None
    weight_label: str = ""
    weights: Sequence[WeightSpan] | None = None
    revision: int = 0
    restart: int = 0
    attempt: int | None = None
    engine: str | None = None
    producer: Producer = "rollout"


@dataclass(frozen=True)
class AppendOutcome:
    """The server's answer to one append.

    If there is an error, nothing of the append was stored. Exception: a long append is sent in several messages, and
    the first ones may have been stored; committed_rows says how far.

    trimmed_rows: rows that were stored already; the stored rows stay. Of the trimmed rows, conflicting_rows have other
    ids than the stored ones, late_rows are stored as unrecorded, and the tokens of unverified_rows cannot be compared.
    """

    sample: str
    committed_rows: int
    revision: int
    content_id: int
    sealed: bool
    trimmed_rows: int
    conflicting_rows: int
    late_rows: int
    unrecorded_rows: int
    unverified_rows: int
    sequence: int = 0  # The number that `append` returned; 0 for `put`.
    error: Exception | None = None


@dataclass(frozen=True)
class Commit:
    """The state of a sample that was appended: see `Run.commit`.

    status: "committed": everything appended is in the store. "marked": rows are missing, and marked there as
        unrecorded, so that no trainer waits for them. "missing": the store lacks rows, and could not be updated. A
        trainer sees this (NOT_FOUND, NOT_READY) and falls back
    committed_rows, num_tokens: state of the sample in the store; num_tokens is None if it is not sealed
    error: the reason, if the status is not "committed"
    """

    sample: str
    status: Literal["committed", "marked", "missing"]
    committed_rows: int
    num_tokens: int | None
    error: Exception | None

    @property
    def ok(self) -> bool:
        return self.status == "committed"


@dataclass(frozen=True)
class SampleState:
    """The state of a sample; its rows are not included. num_tokens is None until the sample is sealed."""

    sample: str
    handle: int
    producer: Producer
    group: int
    committed_rows: int
    num_tokens: int | None
    revision: int
    content_id: int
    unrecorded: tuple[RowRange, ...]
    weights: tuple[WeightSpan, ...]
    stored_bytes: int
    token_check: TokenCheck | None
    engine: str
    idle_ms: int

    @property
    def sealed(self) -> bool:
        return self.num_tokens is not None


SampleStates = list[SampleState]


@dataclass(frozen=True)
class SampleRead:
    """One sample to read, with options.

    sample, handle: names the sample; give one of them
    rows: half-open ranges, ascending; all committed rows if empty
    num_tokens: expected number of tokens; if it differs the status is LENGTH_MISMATCH
    token_checks: expected checks; the status is TOKENS_MISMATCH if one differs, and TOKENS_NOT_KNOWN if the store
        cannot compare them
    min_weight_version, max_weight_version: if any row has weights outside this range, the status is VERSION_REJECTED
    """

    sample: str | None = None
    handle: int | None = None
    rows: Sequence[RowRange] = ()
    num_tokens: int | None = None
    token_checks: Sequence[TokenCheck] = ()
    min_weight_version: int | None = None
    max_weight_version: int | None = None


SampleLike = str | int | SampleRead  # A sample to read: by its id, by its handle, or with options.


@dataclass(frozen=True)
class SampleRows:
    """One sample that was read.

    status: "OK", or why rows is None: "NOT_FOUND", "NOT_RECORDED", "NOT_READY", "LOST", "VERSION_REJECTED",
        "LENGTH_MISMATCH", "TOKENS_MISMATCH", "TOKENS_NOT_KNOWN", "OUT_OF_RANGE", "UNAVAILABLE"
    rows: ids [rows, layers, K], or None if status is not "OK". dtype uint8 if every layer read has E <= 256, else
        uint16. The first axis holds the rows of `row_ranges` in order, the second one the layers asked for; slots
        beyond a layer's own K are 0. A view of layer-major memory: rows[:, i] is contiguous.
    row_ranges: absolute rows, half-open; unrecorded rows are not among them
    layers: global decoder layer ids
    """

    index: int
    status: str
    message: str
    rows: np.ndarray | None
    row_ranges: tuple[RowRange, ...]
    layers: tuple[int, ...]
    committed_rows: int
    num_tokens: int | None
    revision: int
    content_id: int
    unrecorded: tuple[RowRange, ...]
    weights: tuple[WeightSpan, ...]

    @property
    def ok(self) -> bool:
        return self.status == "OK"


@dataclass(frozen=True)
class ReleaseOutcome:
    """How many samples were removed, and how many bytes this freed."""

    samples: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CheckpointOutcome:
    """The result of a checkpoint. samples: number of samples in the directory; `written` of them were read from the
    run, the others taken from the previous checkpoint. unsealed: number of samples that were left out, because more
    rows may come. bytes: size of the rows written, in the dtype of storage."""

    samples: int
    written: int
    unsealed: int
    bytes: int


@dataclass(frozen=True)
class RestoreOutcome:
    """The result of a restore. samples: number of samples of the directory; all are in `run`. appended: number of those
    to which this call added rows or a seal. bytes: size of the rows appended, in the dtype of storage."""

    run: str
    samples: int
    appended: int
    bytes: int


@dataclass(frozen=True)
class RunSettings:
    """The settings in force of a run, with defaults filled in. ttl: in seconds.

    durability: how far an append is stored before it is acknowledged: "memory", "written" or "synced"; "" if the server
        does not say.
    """

    ttl: float
    strict: bool
    block_rows: int
    codec: str
    durability: str = ""


@dataclass(frozen=True)
class ServerInfo:
    """The state of a server. uptime: in seconds. counters: values by metric name, which grow from 0 while the server
    runs. spill_budget_bytes: size limit of the server's directory for cold samples, 0 if it has no such directory.
    spilled_bytes: size of the files in this directory."""

    version: str
    store: str
    budget_bytes: int
    stored_bytes: int
    reserved_bytes: int
    samples: int
    runs: int
    uptime: float
    draining: bool
    counters: dict[str, int] = field(default_factory=dict)
    spill_budget_bytes: int = 0
    spilled_bytes: int = 0
