"""Any form of ids → what `append` takes, by its looks alone; the bytes stay where they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from routing_replay import _core
from routing_replay._append import as_array
from routing_replay.engines._fields import invalid
from routing_replay.recorded import RecordedRows
from routing_replay.types import Payload

Resolver = Callable[[Any], Any]
_NPY_BASE64 = b"k05VTVBZ"
_PICKLES = (b"gASV", b"gAWV", b"gAJ", b"gAN")


def as_bytes(text: Any, field: str) -> memoryview:
    """A view of text or bytes."""
    try:
        return memoryview(text.encode("ascii") if isinstance(text, str) else text).cast("B")
    except (TypeError, UnicodeEncodeError):
        raise invalid(field, "is no text of ASCII", "ENCODING") from None


def base64_payload(text: Any, field: str, row: tuple[int, int] | None = None, dtype: str | None = None) -> Payload:
    """Base64 of a .npy file, "nrlre1:…", or flat ids of rows [layers, K] = `row`.

    dtype: as SGLang names it; None: int32
    """
    data = as_bytes(text, field)
    head = bytes(data[:8])
    if head == _NPY_BASE64:
        return Payload(data, "BASE64_NPY")
    if head.startswith(b"nrlre1:"):
        form = _core.open_nrlre1(data)
        begin, end = form["data"]
        return _payload(form["tensor"], data[begin:end])
    if dtype is None and head.startswith(_PICKLES):
        raise invalid(field, "is a pickle; it is never opened here. Pass a resolver that knows it", "ENCODING")
    if row is None:
        raise invalid(field, "flat base64 says neither layers nor K: pass the run's geometry", "SHAPE")
    described: dict[str, Any] = {"shape": list(row)}
    if dtype is not None:
        described["dtype"] = dtype
    tensor = _core.open_object("sglang", described)["tensor"]
    tensor["shape"] = _core.payload_shape(tensor, data)["shape"]
    return _payload(tensor, data)


def object_payload(value: Any, dialect: str, field: str) -> tuple[Payload, int]:
    """{data, shape, dtype, …}, and the row at which it starts."""
    if not isinstance(value, Mapping):
        raise invalid(field, f"a {type(value).__name__} is not an object with data and shape")
    if "data" not in value:
        raise invalid(f"{field}.data", "is missing")
    form = _core.open_object(dialect, {key: value[key] for key in _DESCRIBING if key in value})
    return _payload(form["tensor"], as_bytes(value["data"], f"{field}.data")), form["start"]


_DESCRIBING = ("shape", "dtype", "start", "__ndarray__")


def base85_payload(value: Mapping[str, Any], dtype: str, field: str) -> tuple[Payload, int]:
    """{data: base85, shape}; decoded here."""
    described = {"dtype": dtype} | {key: value[key] for key in _DESCRIBING if key in value}
    form = _core.open_object("any", described)
    data = _core.decode_base85(as_bytes(value["data"], f"{field}.data"))
    return _payload(form["tensor"] | {"encoding": "RAW"}, data), form["start"]


def shaped_payload(header: Any, text: Any, dtype: str | None, field: str) -> Payload:
    """[shape as JSON, base64]; the header may be a list of axes or an object with shape and dtype."""
    try:
        described = json.loads(header) if isinstance(header, (str, bytes)) else header
    except ValueError as error:
        raise invalid(field, f"the header is no JSON: {error}", "SHAPE") from None
    if isinstance(described, list):
        described = {"shape": described}
    if dtype is not None and isinstance(described, dict):
        described = {"dtype": dtype} | described
    form = _core.open_object("any", described)
    return _payload(form["tensor"], as_bytes(text, field))


def nested(value: Any, field: str) -> np.ndarray:
    """Nested lists of integers as an array. Costs about a hundred times what base64 costs."""
    try:
        array = as_array(value)
    except ValueError as error:
        raise invalid(field, f"lists of different lengths: {error}", "SHAPE") from None
    if array.size == 0:
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise invalid(field, f"numpy {array.dtype} is not one of ids", "DTYPE")
    return array


def any_payload(
    value: Any, field: str, row: tuple[int, int] | None, dtype: str | None, resolver: Resolver | None
) -> tuple[Any, int | None]:
    """What `append` takes of any form, and the row at which it says to start."""
    if isinstance(value, Payload):
        return value, None
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        if resolver is not None and bytes(as_bytes(value, field)[:8]).startswith(_PICKLES):
            return any_payload(resolver(value), field, row, dtype, None)
        return base64_payload(value, field, row, dtype), None
    if isinstance(value, Mapping):
        return object_payload(value, "prime_rl", field)
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and all(isinstance(part, (str, bytes, memoryview)) for part in value):
            return shaped_payload(value[0], value[1], dtype, field), None
        return nested(value, field), None
    if hasattr(value, "__array__") or hasattr(value, "detach"):
        return nested(value, field), None
    if resolver is not None:
        return any_payload(resolver(value), field, row, dtype, None)
    raise invalid(field, f"a {type(value).__name__} is no form of ids; if it is a reference, pass a resolver")


def row_count(rows: Any) -> int:
    """Length of the first axis."""
    if isinstance(rows, Payload):
        return kind_and_axes(rows)[1][0]
    if rows.ndim == 0:
        raise invalid("append.tensor.shape", "an array without axes", "SHAPE")
    return int(rows.shape[0])


def kind_and_axes(rows: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and axes of what `append` takes, undecoded."""
    if not isinstance(rows, Payload):
        return str(rows.dtype), rows.shape
    found = _core.payload_shape(_description(rows), as_bytes(rows.data, "payload"))
    return found["dtype"], tuple(found["shape"])


def check_narrowest(payload: Payload) -> None:
    _core.check_narrowest(_description(payload), payload.data)


def account(
    rows: Any, prompt_tokens: int, output_tokens: int, start: int, short_rows: str, **others: Any
) -> RecordedRows:
    """RecordedRows of `rows`, counted."""
    claim = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "start": start, "short_rows": short_rows}
    found = _core.account_rows(claim | {"rows": 0 if rows is None else row_count(rows)})
    begin, end = found["take"]
    return RecordedRows(
        rows,
        row_start=found["row_start"],
        take=None if rows is None else (begin, end),
        missing_rows=found["missing_rows"],
        surplus_rows=found["surplus_rows"],
        **others,
    )


def absent(
    field: str, why: str, policy: str, prompt_tokens: int, output_tokens: int, start: int, **others: Any
) -> RecordedRows:
    """Rows of a response that holds none: all unrecorded, or an error."""
    if policy == "unrecorded":
        return account(None, prompt_tokens, output_tokens, start, "missing_at_front", **others)
    if policy != "raise":
        raise invalid("absent", f'{policy!r} is neither "raise" nor "unrecorded"')
    raise invalid(field, f'{why}; with absent="unrecorded" its rows become unrecorded')


def _payload(tensor: dict[str, Any], data: Any) -> Payload:
    return Payload(data, tensor["encoding"], dtype=tensor["dtype"], shape=tensor["shape"])


def _description(payload: Payload) -> dict[str, Any]:
    tensor: dict[str, Any] = {"encoding": payload.encoding, "compression": payload.compression}
    if payload.dtype is not None:
        tensor["dtype"] = payload.dtype
    if payload.shape is not None:
        tensor["shape"] = [int(axis) for axis in payload.shape]
    return tensor
