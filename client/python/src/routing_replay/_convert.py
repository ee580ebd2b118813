"""From arguments to structures of the library, and from its results to values of routing_replay.types."""

from __future__ import annotations

import functools
import inspect
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_int32, c_int64, c_size_t, c_void_p, pointer
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from routing_replay import _native, _values
from routing_replay.geometry import Geometry
from routing_replay.recorded import RecordedRows
from routing_replay.types import (
    AS_RECORDED,
    Append,
    AppendOutcome,
    Commit,
    Payload,
    Prefix,
    Producer,
    Provenance,
    ReleaseOutcome,
    RowRange,
    RunSettings,
    RunSummary,
    SampleLike,
    SampleRead,
    SampleRows,
    SampleState,
    ServerInfo,
    TokenCheck,
    WeightSpan,
    weight_spans,
)

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")

PRODUCERS = {"rollout": 1, "trainer": 2}
PRODUCER_NAMES: dict[int, Producer] = {1: "rollout", 2: "trainer"}

_NO_ROWS = (
    "is not an array of ids: read what an engine sent with its adapter of routing_replay.engines (sglang.rows, "
    "vllm.rows, envelope.rows …), or say what the bytes are with a Payload"
)
_OF_RECORDED = ("row_start", "take", "unrecorded", "tokens", "layers", "weights", "engine", "surplus_rows")
_DTYPES = {
    kind: _native.text(name)
    for kind, name in (("u1", "U8"), ("i1", "I8"), ("u2", "U16"), ("i2", "I16"), ("i4", "I32"), ("i8", "I64"))
}
_RAW = _native.text("RAW")
_BASES = {"all": _native.text("ALL_LAYERS"), "moe": _native.text("MOE_LAYERS")}
_EXPLICIT = _native.text("EXPLICIT")


class Taking(Generic[A]):
    """Gives a method that takes an `Append`, or the like, the parameters of that class: one signature for all."""

    def __init__(self, made: type[A]) -> None:
        self._made = made
        self._parameters = list(inspect.signature(made).parameters.values())

    def __call__(self, method: Callable[[S, A], T]) -> Any:
        made = self._made

        names = [parameter.name for parameter in self._parameters]

        @functools.wraps(method)
        def call(self: S, *arguments: Any, **options: Any) -> T:
            try:
                given = made(*arguments, **options)
            except TypeError:
                for name in options.keys() - names:
                    what = f"is no option of {made.noun}; these are: {', '.join(names[2:])}"  # type: ignore[attr-defined]
                    raise TypeError(f"{name!r} {what}") from None
                raise
            return method(self, given)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = inspect.Signature([own, *self._parameters])  # type: ignore[attr-defined]
        return call


if TYPE_CHECKING:

    def taking(made: Callable[P, A]) -> Callable[[Callable[[S, A], T]], Callable[Concatenate[S, P], T]]: ...

else:
    taking = Taking


# Arguments.


def appends(given: Sequence[Append]) -> tuple[Any, list[Any]]:
    """rr_append of each, and what has to live until they have been taken. InvalidArgumentError naming a field."""
    made = (_native.Append * len(given))()
    kept: list[Any] = []
    for one, target in zip(given, made, strict=True):
        if isinstance(one.rows, RecordedRows):
            one = _of_recorded(one, one.rows)
        kept.append(_fill(target, one))
    return made, kept


def _of_recorded(append: Append, recorded: RecordedRows) -> Append:
    """With what the rows say of themselves; what was given wins."""
    given = {name: value for name in _OF_RECORDED if (value := getattr(append, name)) is not AS_RECORDED}
    if append.weight_version is not None:
        given["weight_version"] = append.weight_version
    return replace(append, **(recorded.options(given) | {"rows": recorded.rows}))


def _fill(target: _native.Append, append: Append) -> list[Any]:
    sample = append.sample
    target.sample = _values.native_text(sample, "append.sample")
    target.producer = producer(append.producer, "append.producer", sample)
    if append.row_start is not AS_RECORDED:
        target.row_start = _values.integer(append.row_start, "append.row_start", sample=sample)
    target.revision = _values.integer(append.revision, "append.revision", sample=sample)
    target.restart = _values.integer(append.restart, "append.restart_nonce", _values.UINT64, sample)
    target.attempt = _values.optional(append.attempt, "append.attempt", _values.UINT32, sample)
    if append.group is not None:
        target.group = _values.optional(append.group, "append.group", sample=sample)
    if append.num_tokens is not None:
        target.num_tokens = _values.optional(append.num_tokens, "append.seal_num_tokens", sample=sample)
    version = -1 if append.weight_version is None else append.weight_version
    target.weight_version = _values.integer(version, "append.weight_version", sample=sample)
    if append.weight_label != "":
        target.weight_label = _values.native_text(append.weight_label, "append.weight_label", sample)
    if append.engine is not AS_RECORDED:
        target.engine = _values.native_text(append.engine, "append.engine", sample)
    target.seal = bool(append.seal)
    kept: list[Any] = []
    if append.unrecorded is not AS_RECORDED:
        target.unrecorded = _values.native_ranges(append.unrecorded, "append.unrecorded", sample)
    if append.surplus_rows is not AS_RECORDED:
        target.surplus_rows = _values.integer(append.surplus_rows, "append.surplus_rows", _values.NATURAL, sample)
    if append.weights is not AS_RECORDED and append.weights is not None:
        target.weights, target.weights_count = spans(append.weights, "append.weights", sample)
    if append.prefix is not None:
        _fill_prefix(target, append.prefix, sample)
    if append.tokens is not AS_RECORDED and append.tokens is not None:
        target.tokens, array = _values.native_tokens(append.tokens, "append.token_ids", sample)
        kept.append(array)
    take = None if append.take is AS_RECORDED else append.take
    if append.rows is not None:
        layers = None if append.layers is AS_RECORDED else append.layers
        made, payload = tensor(append.rows, layers, sample, take, "append.tensor.take")
        target.rows = made
        kept.append(payload)
        return kept
    missing = sum(one.end - one.begin for one in target.unrecorded.data[: target.unrecorded.count])
    _values.integer(missing, "append.unrecorded", sample=sample)
    if take is not None:
        raise _values.invalid("append.tensor.take", "there are no rows to take from", sample)
    return kept


def _fill_prefix(target: _native.Append, prefix: Prefix, sample: str) -> None:
    if not isinstance(prefix, Prefix):
        raise _values.invalid("append.prefix", f"{prefix!r} is not a Prefix", sample)
    target.prefix_sample = _values.native_text(prefix.sample, "append.prefix.sample", sample)
    target.prefix_rows = _values.integer(prefix.rows, "append.prefix.rows", sample=sample)
    target.prefix_revision = _values.integer(prefix.revision, "append.prefix.revision", sample=sample)


def producer(value: Any, field: str, sample: Any = None) -> int:
    if isinstance(value, str) and value in PRODUCERS:
        return PRODUCERS[value]
    raise _values.invalid(field, f"must be 'rollout' or 'trainer', got {value!r}", sample)


def spans(given: Any, field: str, sample: Any = None) -> tuple[Any, int]:
    """rr_weight_span of each, and how many."""
    known = weight_spans(given, field, sample)
    made = (_native.WeightSpan * len(known))()
    for one, target in zip(known, made, strict=True):
        target.begin, target.end, target.version, target.label = (
            one.begin,
            one.end,
            one.version,
            _native.text(one.label),
        )
    return made, len(known)


def tensor(
    rows: Any, layers: Any, sample: str, take: RowRange | None = None, field: str = "take"
) -> tuple[Any, np.ndarray]:
    """A pointer to an rr_tensor, and the array that holds its bytes."""
    made, data = _payload(rows, sample) if isinstance(rows, Payload) else _array(rows, sample)
    made.data, made.size = data.ctypes.data, data.nbytes
    if isinstance(layers, str):
        if layers not in _BASES:
            raise _values.invalid("layers", f'must be "all", "moe" or a list of layer ids, got {layers!r}', sample)
        made.layer_basis = _BASES[layers]
    elif layers is not None:
        ids = _values.integers(layers, "layers", _values.INT32, sample)
        made.layer_basis = _EXPLICIT
        made.layer_ids, made.layer_count = int32s(ids), len(ids)
    if take is not None:
        [(begin, end)] = _values.row_ranges([take], field, sample)
        made.take = pointer(_native.Range(begin, end))
    return pointer(made), data


def _payload(rows: Payload, sample: str) -> tuple[_native.Tensor, np.ndarray]:
    made = _native.Tensor()
    made.encoding = _values.native_text(rows.encoding, "append.tensor.encoding", sample)
    made.compression = _values.native_text(rows.compression, "append.tensor.compression", sample)
    made.raw_size = _values.integer(rows.raw_size, "append.tensor.raw_size", sample=sample)
    made.ids_and_weights = bool(rows.ids_and_weights)
    if rows.dtype is not None:
        made.dtype = _values.native_text(rows.dtype, "append.tensor.dtype", sample)
    if rows.shape is not None:
        _set_shape(made, _values.integers(rows.shape, "append.tensor.shape", sample=sample))
    try:
        view = memoryview(rows.data.encode() if isinstance(rows.data, str) else rows.data)
        data = np.frombuffer(view.cast("B"), np.uint8)
    except (TypeError, ValueError) as error:
        raise _values.invalid("payload", f"must be contiguous bytes: {error}", sample) from None
    if isinstance(view.obj, mmap.mmap) and view.obj.size() < len(view.obj):  # To read it would end the process.
        raise _values.invalid("payload", "its file was cut after it was opened", sample, "LENGTH")
    return made, data


def as_array(rows: Any) -> np.ndarray:
    """A numpy array of what numpy takes, or of a torch tensor on any device."""
    if hasattr(rows, "detach"):
        rows = rows.detach().cpu().numpy()
    return np.asarray(rows)


def _array(rows: Any, sample: str) -> tuple[_native.Tensor, np.ndarray]:
    if not isinstance(rows, np.ndarray) and isinstance(rows, (str, bytes, bytearray, Mapping)):
        raise _values.invalid("append.tensor.dtype", f"a {type(rows).__name__} {_NO_ROWS}", sample, "DTYPE")
    try:
        array = as_array(rows)
    except ValueError as error:
        raise _values.invalid("append.tensor.shape", str(error), sample, "SHAPE") from None
    except (TypeError, OverflowError, RuntimeError) as error:  # torch has more dtypes than numpy.
        raise _values.invalid("append.tensor.dtype", f"is not an array of ids: {error}", sample, "DTYPE") from None
    dtype = _DTYPES.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    if dtype is None:
        raise _values.invalid("append.tensor.dtype", f"numpy {array.dtype} is not one of ids", sample, "DTYPE")
    made = _native.Tensor()
    made.encoding, made.dtype = _RAW, dtype
    _set_shape(made, array.shape)
    return made, np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _set_shape(made: _native.Tensor, axes: Sequence[int]) -> None:
    made.shape, made.shape_count = (c_int64 * len(axes))(*axes), len(axes)


def int32s(values: Sequence[int]) -> Any:
    return (c_int32 * len(values))(*values)


def groups(value: RowRange | None) -> Any:
    """A pointer to an rr_range, or None."""
    if value is None:
        return None
    [(begin, end)] = _values.row_ranges([value], "groups")
    return pointer(_native.Range(begin, end))


def names(samples: Iterable[str]) -> tuple[Any, int]:
    """rr_text of each id, once, and how many."""
    if isinstance(samples, str) or not isinstance(samples, Iterable):
        raise _values.invalid("samples", f"{samples!r} is not a list of ids")
    known = list(dict.fromkeys(_values.text(name, "samples") for name in samples))
    return _native.texts(known), len(known)


def names_and_handles(samples: Iterable[str | int]) -> tuple[Any, int, Any, int]:
    """As `names`, and the handles, once; handle 0 is that of no sample."""
    if isinstance(samples, str) or not isinstance(samples, Iterable):
        raise _values.invalid("samples", f"{samples!r} is not a list of ids and handles")
    known: list[str] = []
    handles: dict[int, None] = {}
    for one in samples:
        if isinstance(one, str):
            known.append(one)
        elif (handle := _values.integer(one, "samples")) != 0:
            handles[handle] = None
    return *names(known), (c_int64 * len(handles))(*handles), len(handles)


def read(
    samples: Iterable[SampleLike], layers: Sequence[int] | None, of: str, wait: bool, only_begun: bool
) -> _native.Read:
    """InvalidArgumentError naming what is wrong."""
    if isinstance(samples, (str, SampleRead)) or not isinstance(samples, Iterable):
        raise _values.invalid("samples", f"{samples!r} is not a list of samples")
    asked = [_sample(sample, f"samples[{i}]") for i, sample in enumerate(samples)]
    made = _native.Read(producer=producer(of, "producer"), wait=bool(wait), only_begun=bool(only_begun))
    made.samples, made.count = (_native.SampleRead * len(asked))(*asked), len(asked)
    if layers is not None:
        ids = _values.integers(layers, "layers")
        if any(not -(2**31) <= layer < 2**31 for layer in ids):
            raise _values.invalid("layers", "is not a 32-bit integer")
        made.layers, made.layer_count = int32s(ids), len(ids)
    return made


def _sample(sample: SampleLike, path: str) -> _native.SampleRead:
    made = _native.SampleRead()
    if isinstance(sample, str):
        made.sample = _values.native_text(sample, path)
    elif not isinstance(sample, SampleRead):
        made.handle = _values.integer(sample, path)
    else:
        made.rows = _values.native_ranges(sample.rows, f"{path}.rows")
        if sample.token_checks:
            checks = [_check(check, f"{path}.token_checks") for check in sample.token_checks]
            made.token_checks = (_native.TokenCheck * len(checks))(*checks)
            made.token_checks_count = len(checks)
        if sample.sample is not None:
            made.sample = _values.native_text(sample.sample, f"{path}.sample")
        if sample.handle is not None:
            made.handle = _values.integer(sample.handle, f"{path}.handle")
        for key in ("num_tokens", "min_weight_version", "max_weight_version"):
            setattr(made, key, _values.optional(getattr(sample, key), f"{path}.{key}"))
    return made


def _check(check: TokenCheck, field: str) -> _native.TokenCheck:
    if not isinstance(check, TokenCheck):
        raise _values.invalid(field, f"{check!r} is not a TokenCheck")
    crc32c = _values.integer(check.crc32c, field, _values.UINT32)
    return _native.TokenCheck(_values.integer(check.rows, field), crc32c)


def destinations(made: _native.Read, out: Sequence[Any]) -> list[Any]:
    """Says where the ids go: into these buffers, which the caller keeps. Those of torch may be pinned."""
    arrays = [_writable(one, f"out[{i}]") for i, one in enumerate(_values.items(out, "out", "arrays"))]
    if len(arrays) != made.count:
        raise _values.invalid("out", f"{len(arrays)} for {made.count} samples", reason="LENGTH")
    made.out = (c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    made.out_sizes = (c_size_t * len(arrays))(*(array.nbytes for array in arrays))
    return arrays


def _writable(one: Any, field: str) -> np.ndarray:
    """Without a copy."""
    try:
        if isinstance(one, np.ndarray):
            array = one
        elif hasattr(one, "__dlpack__") and not hasattr(one, "__array_interface__"):
            array = np.from_dlpack(one) if not hasattr(one, "numpy") else one.detach().numpy()
        else:
            array = np.frombuffer(memoryview(one).cast("B"), np.uint8)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise _values.invalid(field, f"is not memory of this machine: {error}") from None
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise _values.invalid(field, "is not contiguous and writable")
    return array


# Results.


def _spans(data: Any, count: int) -> tuple[WeightSpan, ...]:
    return tuple(WeightSpan(one.begin, one.end, one.version, str(one.label)) for one in data[:count])


def state(said: _native.SampleState) -> SampleState:
    check = said.token_check
    return SampleState(
        sample=str(said.sample),
        handle=said.handle,
        producer=PRODUCER_NAMES.get(said.producer, "rollout"),
        group=said.group,
        committed_rows=said.committed_rows,
        num_tokens=said.num_tokens.value,
        revision=said.revision,
        content_id=said.content_id,
        unrecorded=tuple(said.unrecorded.pairs()),
        weights=_spans(said.weights, said.weights_count),
        stored_bytes=said.stored_bytes,
        token_check=TokenCheck(check.rows, check.crc32c) if said.has_token_check else None,
        engine=str(said.engine),
        idle_ms=said.idle_ms,
        provenance=tuple(
            Provenance(one.begin, one.end, one.weight_version, str(one.weight_label), str(one.engine), one.appends)
            for one in said.provenance[: said.provenance_count]
        ),
    )


def states(said: Any) -> list[SampleState]:
    return [state(one) for one in said.data[: said.count]]


def released(said: _native.Released) -> ReleaseOutcome:
    return ReleaseOutcome(said.samples, said.bytes)


def settings(said: _native.RunSettings) -> RunSettings:
    return RunSettings(
        ttl=said.ttl_ms / 1000,
        strict=bool(said.strict),
        block_rows=said.block_rows,
        codec=str(said.codec),
        durability=str(said.durability),
    )


def summaries(said: Any) -> list[RunSummary]:
    return [
        RunSummary(
            run=str(one.name),
            geometry=Geometry.of_native(one.geometry),
            settings=settings(one.settings),
            samples=one.samples,
            sealed_samples=one.sealed_samples,
            committed_rows=one.committed_rows,
            stored_bytes=one.stored_bytes,
        )
        for one in said.data[: said.count]
    ]


_OF_SERVER = {field.name for field in fields(ServerInfo)} & {name for name, *_ in _native.ServerInfo._fields_}


def server_info(said: _native.ServerInfo) -> ServerInfo:
    plain = {name: getattr(said, name) for name in _OF_SERVER}
    texts = {"version": str(said.version), "store": str(said.store)}
    others = {"draining": bool(said.draining), "counters": said.counters.dict(), "uptime": said.uptime_ms / 1000}
    return ServerInfo(**(plain | texts | others))


def outcomes(said: Any) -> list[AppendOutcome]:
    return [
        AppendOutcome(
            sample=str(one.sample),
            committed_rows=one.committed_rows,
            revision=one.revision,
            content_id=one.content_id,
            sealed=bool(one.sealed),
            trimmed_rows=one.trimmed_rows,
            conflicting_rows=one.conflicting_rows,
            late_rows=one.late_rows,
            unrecorded_rows=one.unrecorded_rows,
            unverified_rows=one.unverified_rows,
            sequence=one.sequence,
            error=_native.read_error(one.error),
        )
        for one in said.data[: said.count]
    ]


def commit(said: _native.Commit) -> Commit:
    status: Any = str(said.status)
    error = _native.read_error(said.error)
    return Commit(str(said.sample), status, said.committed_rows, said.num_tokens.value, error)


class _Memory:
    """What numpy takes as the owner of an array's memory."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": typestr}


def rows(owner: _native.Handle, out: Sequence[np.ndarray] | None = None) -> list[SampleRows]:
    """Of an rr_rows, whose memory arrays keep; ids that went to `out` are views of that."""
    said = _native.Rows.from_address(owner.pointer or 0)
    layers = tuple(said.layers[: said.layer_count])
    typestr = "|u1" if said.id_bytes == 1 else "<u2"
    found = []
    for index, one in enumerate(said.samples[: said.count]):
        status = str(one.status)
        ranges = tuple(one.rows.pairs())
        ids = None
        if status == "OK":
            shape = (len(layers), sum(end - begin for begin, end in ranges), said.top_k)
            if 0 in shape:
                ids = np.empty(shape, typestr)
            elif out is None:
                ids = np.asarray(_Memory(owner, one.ids, shape, typestr))
            else:
                whole = out[index].reshape(-1).view(np.uint8)[: one.ids_size]
                ids = whole.view(typestr).reshape(shape)
            ids = ids.transpose(1, 0, 2)
        found.append(
            SampleRows(
                index=index,
                status=status,
                message=str(one.message),
                rows=ids,
                row_ranges=ranges,
                layers=layers,
                committed_rows=one.committed_rows,
                num_tokens=one.num_tokens.value,
                revision=one.revision,
                content_id=one.content_id,
                unrecorded=tuple(one.unrecorded.pairs()),
                weights=_spans(one.weights, one.weights_count),
            )
        )
    return found


class Form(NamedTuple):
    """How ids are said, and where they are. start: absolute row of the first row"""

    encoding: str
    dtype: str
    shape: list[int]
    begin: int
    end: int
    start: int

    def payload(self, data: Any, encoding: str | None = None) -> Payload:
        return Payload(data, encoding or self.encoding, dtype=self.dtype, shape=self.shape)


def form(said: _native.Form) -> Form:
    data = said.data.begin, said.data.end
    return Form(str(said.encoding), str(said.dtype), said.shape[: said.shape_count], *data, said.start)
