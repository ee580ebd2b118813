"""From the arguments of `append` to a plan of the core."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_replay import _core, _values
from routing_replay.errors import from_detail
from routing_replay.recorded import RecordedRows
from routing_replay.types import (
    AppendOptions,
    AppendOutcome,
    Payload,
    Prefix,
    Producer,
    RowRange,
    WeightSpan,
    token_ids,
    weight_spans,
)

_NO_ROWS = (
    "is no array of ids: read what an engine sent with its adapter of routing_replay.engines (sglang.rows, vllm.rows, "
    "envelope.rows …), or say what the bytes are with a Payload"
)
_OPTIONS = AppendOptions.__annotations__.keys()
_ATTEMPT = 0x41545054 << 32  # The upper half of a nonce by which the server knows an attempt (append.proto).
_LISTED_BYTES = 64  # An item of a list is as much work as so many bytes.
_DTYPES = {"u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "i4": "I32", "i8": "I64"}


def make_plan(run: _core.Run, encode: bool, sample: str, rows: Any = None, **options: Any) -> _core.Plan:
    """A plan of types.AppendOptions. InvalidArgumentError for what the ingest checks refuse."""
    for name in options.keys() - _OPTIONS:
        raise TypeError(f"{name!r} is no option of an append; these are: {', '.join(_OPTIONS)}")
    if isinstance(rows, RecordedRows):
        rows, options = rows.rows, rows.options(options)
    return _plan(run, encode, sample, rows, **options)


def _plan(
    run: _core.Run,
    encode: bool,
    sample: str,
    rows: Any,
    *,
    row_start: int = 0,
    take: RowRange | None = None,
    unrecorded: Sequence[RowRange] = (),
    tokens: Any = None,
    layers: str | Sequence[int] | None = None,
    seal: bool = False,
    num_tokens: int | None = None,
    group: int | None = None,
    weight_version: int | None = None,
    weight_label: str = "",
    weights: Sequence[WeightSpan] = (),
    revision: int = 0,
    restart: int = 0,
    attempt: int | None = None,
    prefix: Prefix | None = None,
    engine: str = "",
    surplus_rows: int = 0,
    producer: Producer = "rollout",
) -> _core.Plan:
    append: dict[str, Any] = {
        "sample": _values.text(sample, "append.sample"),
        "producer": _values.text(producer, "append.producer", sample),
        "row_start": _values.integer(row_start, "append.row_start", sample=sample),
        "revision": _values.integer(revision, "append.revision", sample=sample),
        "restart_nonce": _values.integer(restart, "append.restart_nonce", _values.UINT64, sample),
        "weight_label": _values.text(weight_label, "append.weight_label", sample),
        "engine": _values.text(engine, "append.engine", sample),
        "seal": bool(seal),
    }
    if attempt is not None:
        if append["restart_nonce"]:
            raise _values.invalid("append.attempt", "together with restart: an attempt begins anew by itself", sample)
        append["restart_nonce"] = _ATTEMPT | _values.integer(attempt, "append.attempt", _values.UINT32, sample)
    holes = _values.row_ranges(unrecorded, "append.unrecorded", sample)
    if holes:
        append["unrecorded"] = holes
    if surplus_rows:
        append["surplus_rows"] = _values.integer(surplus_rows, "append.surplus_rows", _values.NATURAL, sample)
    spans = [] if weights is None else weight_spans(weights, "append.weights", sample)
    if spans:
        append["weights"] = [listed(span) for span in spans]
    for key, value in (("seal_num_tokens", num_tokens), ("group", group), ("weight_version", weight_version)):
        if value is not None:
            append[key] = _values.integer(value, f"append.{key}", sample=sample)
    if prefix is not None:
        append["prefix"] = _prefix(prefix, sample)
    ids = None if tokens is None else token_ids(tokens, "append.token_ids", sample)
    if rows is None:
        if take is not None:
            raise _values.invalid("append.tensor.take", "there are no rows to take from", sample)
        missing = _values.integer(sum(end - begin for begin, end in holes), "append.unrecorded", sample=sample)
        return _core.plan_unrecorded(append, missing, ids)
    tensor, payload = tensor_of(rows, layers, sample)
    if take is not None:
        tensor["take"] = _values.row_ranges([take], "append.tensor.take", sample)[0]
    return run.plan(append, tensor, payload, ids, encode)


def size_of(rows: Any) -> int:
    """Bytes that are to be read of `rows`, or what lists cost; roughly, and 0 for what cannot be rows."""
    if isinstance(rows, RecordedRows):
        return size_of(rows.rows)
    if isinstance(rows, Payload):
        return max(_bytes_of(rows.data), rows.raw_size if isinstance(rows.raw_size, int) else 0)
    if not isinstance(rows, (list, tuple)):
        return _bytes_of(rows)
    inner, count = rows, 1
    for _ in range(3):
        if isinstance(inner, (list, tuple)) and inner:
            inner, count = inner[0], count * len(inner)
    return _LISTED_BYTES * count


def _bytes_of(data: Any) -> int:
    try:
        if isinstance(data, (str, bytes, bytearray, mmap.mmap)):
            return len(data)
        size = getattr(data, "nbytes", 0)
    except ValueError:  # A view that was released, a file that was closed.
        return 0
    return size if isinstance(size, int) else 0


def outcome_from(record: dict[str, Any]) -> AppendOutcome:
    error = record.get("error")
    return AppendOutcome(**(record | {"error": None if error is None else from_detail(error)}))


def listed(span: WeightSpan) -> list[Any]:
    """As the core reads it."""
    return [span.begin, span.end, span.version, span.label]


def _prefix(prefix: Prefix, sample: str) -> dict[str, Any]:
    if not isinstance(prefix, Prefix):
        raise _values.invalid("append.prefix", f"{prefix!r} is not a Prefix", sample)
    return {
        "sample": _values.text(prefix.sample, "append.prefix.sample", sample),
        "rows": _values.integer(prefix.rows, "append.prefix.rows", sample=sample),
        "revision": _values.integer(prefix.revision, "append.prefix.revision", sample=sample),
    }


def tensor_of(rows: Any, layers: str | Sequence[int] | None, sample: str) -> tuple[dict[str, Any], np.ndarray]:
    """Description and bytes."""
    tensor, payload = _payload(rows, sample) if isinstance(rows, Payload) else _array(rows, sample)
    if layers == "all":
        tensor["layer_basis"] = "ALL_LAYERS"
    elif layers == "moe":
        tensor["layer_basis"] = "MOE_LAYERS"
    elif isinstance(layers, str):
        raise _values.invalid("layers", f'{layers!r} is neither "all" nor "moe" nor a list of layer ids', sample)
    elif layers is not None:
        tensor["layer_basis"] = "EXPLICIT"
        tensor["layer_ids"] = _values.integers(layers, "layers", _values.INT32, sample)
    return tensor, payload


def _payload(rows: Payload, sample: str) -> tuple[dict[str, Any], np.ndarray]:
    tensor: dict[str, Any] = {
        "encoding": _values.text(rows.encoding, "append.tensor.encoding", sample),
        "compression": _values.text(rows.compression, "append.tensor.compression", sample),
        "raw_size": _values.integer(rows.raw_size, "append.tensor.raw_size", sample=sample),
    }
    if rows.ids_and_weights:
        tensor["ids_and_weights"] = True
    if rows.dtype is not None:
        tensor["dtype"] = _values.text(rows.dtype, "append.tensor.dtype", sample)
    if rows.shape is not None:
        tensor["shape"] = _values.integers(rows.shape, "append.tensor.shape", sample=sample)
    try:
        view = memoryview(rows.data.encode() if isinstance(rows.data, str) else rows.data)
        data = np.frombuffer(view.cast("B"), np.uint8)
    except (TypeError, ValueError) as error:
        raise _values.invalid("payload", f"is no contiguous bytes: {error}", sample) from None
    if isinstance(view.obj, mmap.mmap) and view.obj.size() < len(view.obj):  # To read it would end the process.
        raise _values.invalid("payload", "its file was cut after it was opened", sample, "LENGTH")
    return tensor, data


def as_array(rows: Any) -> np.ndarray:
    """A numpy array of what numpy takes, or of a torch tensor on any device."""
    if hasattr(rows, "detach"):
        rows = rows.detach().cpu().numpy()
    return np.asarray(rows)


def _array(rows: Any, sample: str) -> tuple[dict[str, Any], np.ndarray]:
    if isinstance(rows, (str, bytes, bytearray, Mapping)):
        raise _values.invalid("append.tensor.dtype", f"a {type(rows).__name__} {_NO_ROWS}", sample, "DTYPE")
    try:
        array = as_array(rows)
    except ValueError as error:
        raise _values.invalid("append.tensor.shape", str(error), sample, "SHAPE") from None
    except (TypeError, OverflowError, RuntimeError) as error:  # torch has more dtypes than numpy.
        raise _values.invalid("append.tensor.dtype", f"is no array of ids: {error}", sample, "DTYPE") from None
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    if kind not in _DTYPES:
        raise _values.invalid("append.tensor.dtype", f"numpy {array.dtype} is not one of ids", sample, "DTYPE")
    tensor = {"encoding": "RAW", "dtype": _DTYPES[kind], "shape": list(array.shape)}
    return tensor, np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
