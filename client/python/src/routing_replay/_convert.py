"""Converts arguments to structures of the library, and its results to values of routing_replay.types."""

from __future__ import annotations

import ctypes
import functools
import inspect
import operator
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from ctypes import c_int32, c_int64, c_void_p, pointer
from dataclasses import fields, replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from routing_replay import _native, _values, types
from routing_replay.types import (
    Append,
    AppendOutcome,
    Payload,
    Producer,
    RecordedRows,
    RowRange,
    SampleLike,
    SampleRead,
    SampleRows,
    SampleState,
    ServerInfo,
    TokenCheck,
    WeightSpan,
)

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")

PRODUCERS: dict[Any, int] = {"rollout": 1, "trainer": 2}
PRODUCER_NAMES: dict[int, Producer] = {1: "rollout", 2: "trainer"}

_NO_ROWS = (
    "is not an array of ids: decode engine output with its adapter in routing_replay.engines (sglang.rows, "
    "vllm.rows, envelope.rows …), or pass raw bytes as a Payload"
)
_OF_ROWS = ("row_start", "take", "unrecorded", "layers")
DTYPES = {"u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "i4": "I32", "i8": "I64"}  # By numpy kind and item size.
_NATIVE_DTYPES = {kind: _native.text(name) for kind, name in DTYPES.items()}
_BASES = {"all": _native.text("ALL_LAYERS"), "moe": _native.text("MOE_LAYERS")}
_EXPLICIT = _native.text("EXPLICIT")


def taking(made: Callable[P, A]) -> Callable[[Callable[[S, A], T]], Callable[Concatenate[S, P], T]]:
    """Gives a method that takes an `Append` (or a similar class) the parameters of that class, so that the parameters
    are defined in one place only.
    """

    def decorate(method: Callable[[S, A], T]) -> Callable[Concatenate[S, P], T]:
        @functools.wraps(method)
        def call(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
            return method(self, made(*arguments, **options))

        return like(made)(call)

    return decorate


def like(made: Callable[P, A]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Makes help() and inspect show the parameters of the class `made` for a method; its calls do not change."""
    parameters = list(inspect.signature(made).parameters.values())

    def decorate(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        result = inspect.signature(method).return_annotation
        method.__signature__ = inspect.Signature([receiver, *parameters], return_annotation=result)  # type: ignore[attr-defined]
        return method

    return decorate


# Arguments.


def append(given: Append, made: _native.Append) -> list[Any]:
    """Fills an rr_append, and returns the objects that must stay alive until the library has read the rr_append. Raises
    InvalidArgumentError naming a field."""
    return _fill(made, _of_recorded(given, given.rows) if isinstance(given.rows, RecordedRows) else given)


def appends(given: Sequence[Append]) -> tuple[Any, list[Any]]:
    """Fills an array of rr_append; see `append`."""
    for index, one in enumerate(given):
        if not isinstance(one, Append):
            raise _values.invalid(f"appends[{index}]", f"must be an Append, got {reprlib.repr(one)}")
    made = (_native.Append * len(given))()
    return made, [append(one, target) for one, target in zip(given, made, strict=True)]


def _of_recorded(append: Append, recorded: RecordedRows) -> Append:
    """Returns the append with the fields that its RecordedRows state (row_start, weights, tokens, …)."""
    reject_given(append, _OF_ROWS, "append.", append.sample)
    start = _values.integer(recorded.row_start, "append.row_start")
    missing = _values.integer(recorded.missing_rows, "append.unrecorded")
    known = {name: getattr(recorded, name) for name in ("rows", "take", "layers")}
    for name in ("tokens", "engine"):
        known[name] = getattr(recorded if getattr(append, name) is None else append, name)
    if append.weights is None and append.weight_version is None:
        known["weights"] = recorded.weights
    return replace(append, row_start=start, unrecorded=[(start, start + missing)] if missing else None, **known)


def reject_given(given: Any, names: Iterable[str], path: str, sample: str) -> None:
    """Rejects options that RecordedRows state themselves."""
    for name in names:
        if getattr(given, name) is not None:
            raise _values.invalid(f"{path}{name}", "must be absent: the recorded rows state it", sample)


_ROLLOUT, _ZERO = "rollout", 0  # Compared by identity, for speed. Other objects, even equal ones, are converted.


def _fill(target: _native.Append, append: Append) -> list[Any]:
    """Converts only the options that are given: this saves time, which matters because rollouts make many appends."""
    sample = append.sample
    name = _values.utf8(sample, "append.sample")
    target.sample, target.sample_size = name, len(name)
    target.producer = 1 if append.producer is _ROLLOUT else producer(append.producer, "append.producer", sample)
    if append.row_start is not None:
        target.row_start = _values.integer(append.row_start, "append.row_start", sample=sample)
    if append.group is not None:
        target.group, target.has_group = _values.integer(append.group, "append.group", sample=sample), 1
    if append.num_tokens is not None:
        tokens = _values.integer(append.num_tokens, "append.seal_num_tokens", sample=sample)
        target.num_tokens, target.has_num_tokens = tokens, 1
    if append.attempt is not None:
        attempt = _values.integer(append.attempt, "append.attempt", _values.UINT32, sample)
        target.attempt, target.has_attempt = attempt, 1
    version = append.weight_version
    target.weight_version = -1 if version is None else _values.integer(version, "append.weight_version", sample=sample)
    if append.revision is not _ZERO:
        target.revision = _values.integer(append.revision, "append.revision", sample=sample)
    if append.restart is not _ZERO:
        target.restart = _values.integer(append.restart, "append.restart_nonce", _values.UINT64, sample)
    if append.weight_label != "":
        target.weight_label = _values.native_text(append.weight_label, "append.weight_label", sample)
    if append.engine is not None:
        target.engine = _values.native_text(append.engine, "append.engine", sample)
    if append.unrecorded is not None:
        target.unrecorded = _values.native_ranges(append.unrecorded, "append.unrecorded", sample)
    if append.seal:
        target.seal = 1
    kept: list[Any] = []
    if append.weights is not None:
        target.weights, target.weights_count = spans(append.weights, "append.weights", sample)
    if append.tokens is not None:
        target.tokens, array = _values.native_tokens(append.tokens, "append.token_ids", sample)
        kept.append(array)
    if append.rows is not None:
        target.rows, payload = tensor(append.rows, append.layers, sample, append.take, "append.tensor.take")
        kept.append(payload)
    elif append.take is not None:
        raise _values.invalid("append.tensor.take", "there are no rows to take from", sample)
    return kept


def producer(value: Any, field: str, sample: Any = None) -> int:
    return _values.choice(value, field, PRODUCERS, sample)


def spans(given: Any, field: str, sample: Any = None) -> tuple[Any, int]:
    """Returns an array with an rr_weight_span for each span, and its length."""
    made = []
    for span in _values.items(given, field, "WeightSpan", sample):
        if not isinstance(span, WeightSpan):
            raise _values.invalid(field, f"must be a WeightSpan, got {reprlib.repr(span)}", sample)
        numbers = _values.integers((span.begin, span.end, span.version), field, sample=sample)
        made.append(_native.WeightSpan(*numbers, _values.native_text(span.label, field, sample)))
    return array_of(_native.WeightSpan, made)


def array_of(kind: Any, items: Sequence[Any]) -> tuple[Any, int]:
    """A C array and its length."""
    return (kind * len(items))(*items), len(items)


def tensor(rows: Any, layers: Any, sample: str, take: RowRange | None = None, field: str = "take") -> tuple[int, Any]:
    """Returns the address of an rr_tensor, and the objects that must stay alive while the address is used."""
    made, data = _payload(rows, sample) if isinstance(rows, Payload) else _array(rows, sample)
    if layers is None:
        pass
    elif isinstance(layers, str):
        if layers not in _BASES:
            raise _values.invalid("layers", f'must be "all", "moe" or a list of layer ids, got {layers!r}', sample)
        made.layer_basis = _BASES[layers]
    else:
        made.layer_basis = _EXPLICIT
        ids = _values.integers(layers, "layers", _values.INT32, sample)
        made.layer_ids, made.layer_count = array_of(c_int32, ids)
    if take is not None:
        made.take = range_of(take, field, sample)
    return ctypes.addressof(made), (made, data)


def _payload(rows: Payload, sample: str) -> tuple[_native.Tensor, Any]:
    made = _native.Tensor()
    for name in ("encoding", "compression", "dtype"):
        if (given := getattr(rows, name)) is not None or name != "dtype":
            setattr(made, name, _values.native_text(given, f"append.tensor.{name}", sample))
    made.raw_size = _values.integer(rows.raw_size, "append.tensor.raw_size", sample=sample)
    if rows.shape is not None:
        shape = _values.integers(rows.shape, "append.tensor.shape", sample=sample)
        made.shape, made.shape_count = array_of(c_int64, shape)
    given = _values.utf8(rows.data, "payload", sample) if isinstance(rows.data, str) else rows.data
    view = _values.view(given, "payload", sample=sample)
    data = np.frombuffer(view, np.uint8)
    made.data, made.size = _native.data_of(data), data.nbytes
    return made, data


def as_array(rows: Any, of_shape: str, of_dtype: str, sample: str | None = None) -> np.ndarray:
    """A numpy array from anything that numpy accepts, or from a torch tensor on any device. of_shape, of_dtype: field
    that InvalidArgumentError names if the shape, or the dtype, is wrong"""
    try:
        return np.asarray(rows.detach().cpu().numpy() if hasattr(rows, "detach") else rows)
    except ValueError as error:
        raise _values.invalid(of_shape, str(error), sample, "SHAPE") from None
    except (TypeError, OverflowError, RuntimeError) as error:  # For example a dtype of torch that numpy lacks.
        raise _values.invalid(of_dtype, f"must be an array of ids: {error}", sample, "DTYPE") from None


def _array(rows: Any, sample: str) -> tuple[_native.Tensor, Any]:
    array = rows if type(rows) is np.ndarray else _ids(rows, sample)
    described = _described(array.dtype, array.shape)
    if described is None:
        raise bad_dtype("append.tensor.dtype", array, sample)
    made = _native.Tensor.from_buffer_copy(described)
    # The conversion takes a microsecond, and nearly all arrays do not need it.
    if not (array.flags.c_contiguous and array.dtype.isnative):
        array = _values.little_endian(array)
    made.data, made.size = _native.data_of(array), array.nbytes
    return made, (described, array)


def _ids(rows: Any, sample: str) -> np.ndarray:
    if isinstance(rows, (str, bytes, bytearray, Mapping)):
        raise _values.invalid("append.tensor.dtype", f"a {type(rows).__name__} {_NO_ROWS}", sample, "DTYPE")
    return as_array(rows, "append.tensor.shape", "append.tensor.dtype", sample)


@functools.lru_cache(1024)
def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _native.Tensor | None:
    """Makes the rr_tensor for arrays of this dtype and shape, without an address; None for a dtype that ids cannot
    have. The result is cached, because rollouts append many arrays with few different shapes."""
    name = _NATIVE_DTYPES.get(dtype.str[1:])
    if name is None:
        return None
    made = _native.Tensor()
    made.dtype = name
    made.shape, made.shape_count = array_of(c_int64, shape)
    return made


def bad_dtype(field: str, array: np.ndarray, sample: Any = None) -> Exception:
    return _values.invalid(field, f"ids must be uint8, uint16 or signed integers, got {array.dtype}", sample, "DTYPE")


def range_of(value: Any, field: str, sample: Any = None) -> Any:
    """A pointer to an rr_range."""
    [(begin, end)] = _values.row_ranges([value], field, sample)
    return pointer(_native.Range(begin, end))


def groups(value: RowRange | None) -> Any:
    return None if value is None else range_of(value, "groups")


def names(samples: Iterable[str]) -> tuple[Any, int]:
    """Returns an array with an rr_text for each distinct id, and its length."""
    known = dict.fromkeys(_values.text(name, "samples") for name in _values.items(samples, "samples", "ids"))
    return array_of(_native.Text, list(map(_native.text, known)))


def names_and_handles(samples: Iterable[str | int]) -> tuple[Any, int, Any, int]:
    """Returns an array of ids, as `names` does, and one of handles without 0, which stands for no sample."""
    given = _values.items(samples, "samples", "ids and handles")
    ids = [sample for sample in given if isinstance(sample, str)]
    handles = dict.fromkeys(_values.integer(sample, "samples") for sample in given if not isinstance(sample, str))
    handles.pop(0, None)
    return *names(ids), *array_of(c_int64, list(handles))


def read(
    samples: Iterable[SampleLike], layers: Sequence[int] | None, produced_by: str, wait: bool, only_begun: bool
) -> _native.Read:
    """Makes an rr_read. Raises InvalidArgumentError naming the argument that is wrong."""
    asked = [_sample(item, f"samples[{i}]") for i, item in enumerate(_values.items(samples, "samples", "samples"))]
    made = _native.Read(producer=producer(produced_by, "producer"), wait=bool(wait), only_begun=bool(only_begun))
    made.samples, made.count = array_of(_native.SampleRead, asked)
    if layers is not None:
        made.layers, made.layer_count = array_of(c_int32, _values.integers(layers, "layers", _values.INT32))
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
            made.token_checks, made.token_checks_count = array_of(_native.TokenCheck, checks)
        if sample.sample is not None:
            made.sample = _values.native_text(sample.sample, f"{path}.sample")
        if sample.handle is not None:
            made.handle = _values.integer(sample.handle, f"{path}.handle")
        for key in ("num_tokens", "min_weight_version", "max_weight_version"):
            setattr(made, key, _values.optional(getattr(sample, key), f"{path}.{key}"))
    return made


def _check(check: TokenCheck, field: str) -> _native.TokenCheck:
    if not isinstance(check, TokenCheck):
        raise _values.invalid(field, f"must be a TokenCheck, got {check!r}")
    crc32c = _values.integer(check.crc32c, field, _values.UINT32)
    return _native.TokenCheck(_values.integer(check.rows, field), crc32c)


# Results.


def value(kind: type[T], found: Any, **others: Any) -> T:
    """Makes an object of the dataclass `kind` from `others` and from the structure's fields of the same names."""
    readers = _readers(cast(Hashable, kind), cast(Hashable, type(found)))
    plain = {name: read(found) for name, read in readers if name not in others}
    return kind(**plain, **others)


@functools.lru_cache(None)
def _readers(kind: Any, structure: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    declared = dict(structure._fields_)
    return [(field.name, _reader(field, declared[field.name])) for field in fields(kind) if field.name in declared]


def _reader(field: Any, declared: Any) -> Callable[[Any], Any]:
    name = field.name
    items = getattr(types, declared._type_.__name__, None) if issubclass(declared, ctypes._Pointer) else None
    if items is not None:  # The field is a pointer to several items; the field NAME_count says how many.
        return lambda found: tuple(
            value(items, item) for item in getattr(found, name)[: getattr(found, f"{name}_count")]
        )
    converts: dict[Any, Callable[[Any], Any]] = {
        _native.Text: str,
        _native.Integer: operator.attrgetter("value"),
        _native.Ranges: lambda ranges: tuple(ranges.pairs()),
        c_void_p: _native.read_error,
    }
    convert = bool if field.type == "bool" else converts.get(declared)
    if convert is None:
        return operator.attrgetter(name)
    return lambda found: convert(getattr(found, name))


def states(found: Any) -> list[SampleState]:
    made = []
    for item in found:
        check = value(TokenCheck, item.token_check) if item.has_token_check else None
        made.append(value(SampleState, item, producer=PRODUCER_NAMES.get(item.producer, "rollout"), token_check=check))
    return made


def transports(found: _native.Transports) -> dict[str, Any]:
    counts = {f"{name}_streams": getattr(found, f"{name}_streams") for name in ("grpc", "direct", "unix", "shm")}
    return {"transport": str(found.transport) or None, **counts}


def server_info(found: _native.ServerInfo) -> ServerInfo:
    return value(ServerInfo, found, counters=found.counters.dict(), uptime=found.uptime_ms / 1000)


def outcomes(found: Any) -> list[AppendOutcome]:
    return [value(AppendOutcome, item) for item in found]


class _Memory:
    """Lends memory of a result to a numpy array. The result (owner) is freed with the last array that uses it."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": typestr}


def rows(owner: _native.Handle) -> list[SampleRows]:
    """Converts an rr_rows to results, whose arrays keep the memory of the rr_rows alive."""
    found = _native.Rows.from_address(owner.pointer or 0)
    layers = tuple(found.layers[: found.layer_count])
    typestr = "|u1" if found.id_bytes == 1 else "<u2"
    made = []
    for index, sample in enumerate(found.samples[: found.count]):
        ranges = tuple(sample.rows.pairs())
        ids = None
        if str(sample.status) == "OK":
            shape = (len(layers), sum(end - begin for begin, end in ranges), found.top_k)
            empty = 0 in shape
            ids = np.empty(shape, typestr) if empty else np.asarray(_Memory(owner, sample.ids, shape, typestr))
            ids = ids.transpose(1, 0, 2)
        made.append(value(SampleRows, sample, index=index, rows=ids, row_ranges=ranges, layers=layers))
    return made


def form(found: Any) -> list[int]:
    """Converts an rr_form to the shape of the ids."""
    shape: list[int] = found.shape[: found.shape_count]
    return shape
