"""Any form of ids → what `append` takes, by its looks alone; the bytes stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from routing_replay import _counters, _payloads, _values
from routing_replay._convert import as_array
from routing_replay.engines._fields import Tokens, invalid
from routing_replay.errors import InvalidArgumentError
from routing_replay.geometry import Geometry
from routing_replay.recorded import RecordedRows
from routing_replay.types import Payload

_SHORT_ROWS = {"refuse": False, "missing_at_front": True}
_DTYPES = {"u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "i4": "I32", "i8": "I64"}
Resolver = Callable[[Any], Any]
Row = tuple[int, int] | Literal["npy"] | None
_NOT_ALL = (
    "Are these all tokens, not those of a delta or of a stream's last event? Then pass the sampled ids as "
    "output_token_ids"
)
# By what a text begins with; anything else is flat base64.
_BEGINNINGS = {b"k05VTVBZ": "npy", b"nrlre1:": "nrlre1", b"{": "reference"} | dict.fromkeys(
    (b"gASV", b"gAWV", b"gAJ", b"gAN"), "pickle"
)


def as_bytes(text: Any, field: str) -> memoryview:
    """A view of text or bytes."""
    try:
        return memoryview(text.encode("ascii") if isinstance(text, str) else text).cast("B")
    except (TypeError, UnicodeEncodeError):
        raise invalid(field, "is no text of ASCII", "ENCODING") from None


def kind_of(data: memoryview) -> str:
    """ "npy" or "pickle" in base64, "nrlre1", "reference" (of `attach`) or "flat"."""
    head = bytes(data[:8])
    return next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "flat")


def base64_payload(text: Any, field: str, row: Row = None, dtype: str | None = None) -> Payload:
    """Base64 of a .npy file, "nrlre1:…", or flat ids of rows [layers, K] = `row`; "npy": of no flat ids.

    dtype: as SGLang names it; None: int32
    """
    data = as_bytes(text, field)
    kind = kind_of(data)
    if kind == "npy" or (kind == "flat" and row == "npy"):
        return Payload(data, "BASE64_NPY")
    if kind == "nrlre1":
        form = _payloads.open_nrlre1(data)
        return form.payload(data[form.begin : form.end])
    if kind == "reference":
        raise invalid(field, "is a reference: the rows are in the service, as the sample that it names", "ENCODING")
    if kind == "pickle" and dtype is None:
        raise invalid(field, "is a pickle; it is never opened here. Pass a resolver that knows it", "ENCODING")
    described = {"shape": list(row or ())} | ({} if dtype is None else {"dtype": dtype})
    kind_of_ids = open_object("sglang", described).dtype if row else None
    return _flat(Payload(data, "BASE64", dtype=kind_of_ids), row, field)


def flat_payload(array: np.ndarray, row: Row, field: str) -> Payload:
    """An array of flat ids, or of [rows, layers * K], of rows [layers, K] = `row`."""
    dtype = _DTYPES.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    if dtype is None:
        raise _values.invalid("append.tensor.dtype", f"numpy {array.dtype} is not one of ids", reason="DTYPE")
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    found = _flat(Payload(data.reshape(-1).view(np.uint8).data, dtype=dtype), row, field)
    if array.ndim == 2 and found.shape is not None and found.shape[0] != array.shape[0]:
        raise invalid(field, f"{list(array.shape)} is not rows of {list(row or ())}", "LENGTH")
    return found


def _flat(ids: Payload, row: Row, field: str) -> Payload:
    """How many rows there are is told by the length."""
    if not isinstance(row, tuple):
        raise invalid(field, "flat ids say neither layers nor K: pass the run's geometry", "SHAPE")
    return _payloads.with_shape(replace(ids, shape=row))


def row_of(geometry: Any, layers: Any) -> tuple[int, int] | None:
    """[layers, K] of a row of flat ids; None if no geometry tells it."""
    if geometry is None:
        return None
    if not isinstance(geometry, Geometry):
        raise invalid("geometry", f"a {type(geometry).__name__} is no Geometry")
    if layers is None or (isinstance(layers, str) and layers == "all"):
        return geometry.num_layers, geometry.max_top_k
    if isinstance(layers, str) and layers == "moe":
        return len(geometry.moe_layers), geometry.max_top_k
    return len(_values.integers(layers, "layers", _values.INT32)), geometry.max_top_k


def open_object(dialect: Any, described: Any) -> _payloads.Form:
    """What an object beside ids says: _payloads.open_object, for values of any kind."""
    name = _values.text(dialect, "dialect")
    try:
        return _payloads.open_object(name, described)
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid("append.tensor", f"cannot be said in JSON: {error}", "SHAPE") from None


def object_payload(value: Any, dialect: str, field: str) -> tuple[Payload, int | None]:
    """{data, shape, dtype, …}, and the row at which it says to start."""
    described, data = _apart(value, field)
    form = open_object(dialect, described)
    return form.payload(data), _said(form, described)


def base85_payload(value: Any, dtype: str, field: str) -> tuple[Payload, int | None]:
    """{data: base85, shape}; decoded here."""
    described, data = _apart(value, field)
    form = open_object("any", {"dtype": dtype} | described)
    return form.payload(_payloads.decode_base85(data), "RAW"), _said(form, described)


def _said(form: _payloads.Form, described: dict[str, Any]) -> int | None:
    return None if described.get("start") is None else form.start


def _apart(value: Any, field: str) -> tuple[dict[str, Any], memoryview]:
    """What an object says of its data, and the data."""
    if not isinstance(value, Mapping):
        raise invalid(field, f"a {type(value).__name__} is not an object with data and shape")
    if "data" not in value:
        raise invalid(f"{field}.data", "is missing")
    described = {key: value[key] for key in ("shape", "dtype", "start", "__ndarray__") if key in value}
    return described, as_bytes(value["data"], f"{field}.data")


def shaped_payload(header: Any, text: Any, dtype: str | None, field: str) -> Payload:
    """[shape as JSON, base64]; the header may be a list of axes or an object with shape and dtype."""
    described = _values.json_value(header, field, "SHAPE") if isinstance(header, (str, bytes)) else header
    if isinstance(described, list):
        described = {"shape": described}
    if dtype is not None and isinstance(described, dict):
        described = {"dtype": dtype} | described
    return open_object("any", described).payload(as_bytes(text, field))


def nested(value: Any, field: str) -> np.ndarray:
    """An array, a tensor, or nested lists of integers (which cost about a hundred times what base64 costs)."""
    try:
        array = as_array(value)
    except ValueError as error:
        raise invalid(field, f"lists of different lengths: {error}", "SHAPE") from None
    except (TypeError, OverflowError, RuntimeError) as error:
        raise invalid(field, f"is no array of ids: {error}", "DTYPE") from None
    if array.size == 0 and isinstance(value, (list, tuple)):
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise invalid(field, f"numpy {array.dtype} is not one of ids", "DTYPE")
    return array


def check_alike(rows: Any, first: Any, field: str) -> None:
    """Parts of one sample have the dtype and the axes, but for the first one, of its first part."""
    (kind, axes), (first_kind, first_axes) = kind_and_axes(rows), kind_and_axes(first)
    if kind != first_kind:
        raise invalid(field, f"dtype {kind} after {first_kind}", "DTYPE")
    if axes[1:] != first_axes[1:]:
        raise invalid(field, f"{list(axes)} after {list(first_axes)}", "SHAPE")


def check_resolver(resolver: Any) -> None:
    if resolver is not None and not callable(resolver):
        raise invalid("resolver", f"a {type(resolver).__name__} cannot be called")


def any_payload(
    value: Any, field: str, row: Row, dtype: str | None, resolver: Resolver | None
) -> tuple[Any, int | None]:
    """What `append` takes of any form, and the row at which it says to start."""
    check_resolver(resolver)
    if dtype is not None:
        _values.text(dtype, "dtype")
    if isinstance(value, Payload):
        return value, None
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        if resolver is not None and kind_of(as_bytes(value, field)) in ("pickle", "reference"):
            return any_payload(resolver(value), field, row, dtype, None)
        return base64_payload(value, field, row, dtype), None
    if isinstance(value, Mapping):
        return object_payload(value, "prime_rl", field)
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and all(isinstance(part, (str, bytes, memoryview)) for part in value):
            return shaped_payload(value[0], value[1], dtype, field), None
        return nested(value, field), None
    if hasattr(value, "__array__") or hasattr(value, "detach"):
        array = nested(value, field)
        return flat_payload(array, row, field) if array.ndim in (1, 2) else array, None
    if resolver is not None:
        return any_payload(resolver(value), field, row, dtype, None)
    raise invalid(field, f"a {type(value).__name__} is no form of ids; if it is a reference, pass a resolver")


def start_of(said: int | None, asked: Any, field: str) -> int:
    """The first row: what an object says of itself, which must be what was asked for, if anything was."""
    start = _values.integer(asked, "start")
    if said is not None and start not in (0, said):
        raise invalid(field, f"starts at row {said}, not at {start}", "ROW_COUNT")
    return start if said is None else said


def row_count(rows: Any) -> int:
    """Length of the first of the three axes; 0 for lists that hold nothing."""
    _, axes = kind_and_axes(rows)
    if len(axes) != 3 and axes != (0,):
        raise invalid("append.tensor.shape", f"{list(axes)} is not [rows, layers, K]", "SHAPE")
    return axes[0]


def kind_and_axes(rows: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and axes of what `append` takes, undecoded."""
    if not isinstance(rows, Payload):
        return str(rows.dtype), rows.shape
    found = _payloads.with_shape(rows)
    return str(found.dtype), tuple(found.shape or ())


def account(rows: Any, tokens: Tokens, start: Any, short_rows: str, **others: Any) -> RecordedRows:
    """RecordedRows of `rows`, counted; `tokens` as they fit the rows (see Tokens.fitting)."""
    start = _values.integer(start, "start")
    front = _values.choice(_values.text(short_rows, "short_rows"), "short_rows", _SHORT_ROWS)
    count = 0 if rows is None else row_count(rows)
    try:
        found = _payloads.account_rows(tokens.prompt_tokens, tokens.output_tokens, start, count, front)
    except InvalidArgumentError as error:
        too_many = count >= tokens.prompt_tokens + tokens.output_tokens - start
        if tokens.all_output or error.reason != "ROW_COUNT" or not too_many:
            raise
        raise invalid("append.rows", f"{error.message}. {_NOT_ALL}", "ROW_COUNT") from None
    if found.surplus_rows and not tokens.all_output:
        raise invalid(
            "append.rows",
            f"{count} rows for {tokens.prompt_tokens} prompt tokens and {tokens.output_tokens} of output, one "
            f"too many. {_NOT_ALL}, and the last token's row is left out",
            "ROW_COUNT",
        )
    _counters.add("adapter_surplus_rows", found.surplus_rows)
    return RecordedRows(
        rows,
        row_start=found.row_start,
        take=None if rows is None else found.take,
        missing_rows=found.missing_rows,
        surplus_rows=found.surplus_rows,
        tokens=tokens.ids,
        **others,
    )


def absent(field: str, why: str, policy: str, tokens: Tokens, start: Any, **others: Any) -> RecordedRows:
    """Rows of a response that holds none: all unrecorded, or an error."""
    start = _values.integer(start, "start")
    if _values.text(policy, "absent") == "unrecorded":
        return account(None, tokens.fitting(None, start), start, "missing_at_front", **others)
    if policy != "raise":
        raise invalid("absent", f'{policy!r} is neither "raise" nor "unrecorded"')
    raise invalid(field, f'{why}; with absent="unrecorded" its rows become unrecorded')
