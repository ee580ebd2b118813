"""What adapters share: fields of responses, whether these are objects or dicts, and any form of ids → what `append`
takes, by its looks alone; the bytes stay where they are."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from routing_replay import _native, _values
from routing_replay._convert import Form, as_array, form
from routing_replay._convert import tensor as tensor_of
from routing_replay._native import give, lib, text
from routing_replay.errors import InvalidArgumentError
from routing_replay.geometry import Geometry
from routing_replay.recorded import RecordedRows, count_adapter
from routing_replay.types import Payload, WeightSpan, token_ids

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


# Fields of responses.


def invalid(field: str, what: str, reason: str = "FIELD") -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {what}", reason=reason, field=field)


def get(holder: Any, *names: str) -> Any:
    """The first of the fields that is there and not None."""
    for name in names:
        value = holder.get(name, None) if isinstance(holder, Mapping) else getattr(holder, name, None)
        if value is not None:
            return value
    return None


def has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, Mapping) else hasattr(holder, name)


def item(holder: Any, name: str, index: Any) -> Any:
    """The one of holder.name that says it has this index, or, where they say nothing, has this place."""
    number = _values.integer(index, "index", _values.NATURAL)
    values = get(holder, name)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, memoryview)):
        raise invalid(name, f"no item {number}: the response has none")
    said = [get(value, "index") for value in values]
    numbers = list(range(len(values))) if any(own is None for own in said) else said
    found = [value for value, own in zip(values, numbers, strict=True) if _plain(own) == number]
    if len(found) != 1:
        raise invalid(name, f"{len(found) or 'no'} item {number}: the response has those of {numbers}")
    return found[0]


def ids(values: Any, field: str) -> np.ndarray | None:
    """Token ids as uint32, perhaps none; None stays None."""
    if values is None:
        return None
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0:
        raise invalid(field, f"a {type(values).__name__} is not a list of token ids")
    return token_ids(values, field) if len(values) else np.empty(0, np.uint32)


def engine_name(name: str) -> str:
    """With the version of the package if this process has it loaded."""
    version = getattr(sys.modules.get(name), "__version__", None)
    return f"{name} {version}" if isinstance(version, str) else name


def join(prompt: np.ndarray | None, output: np.ndarray | None) -> np.ndarray | None:
    """All tokens, or None if they are not all known."""
    if prompt is None or output is None or not prompt.size + output.size:
        return None
    return np.concatenate([prompt, output])


@dataclass(frozen=True)
class Tokens:
    """The tokens of a sample, as far as a response tells of them.

    prompt, output: ids, or None
    prompt_tokens: how many the response says the model saw: more than the ids where media in the prompt were expanded
    output_tokens: how many were sampled
    all_output: whether that is all of them for sure: not those of a stream's last event, nor a count alone
    """

    prompt: np.ndarray | None
    output: np.ndarray | None
    prompt_tokens: int
    output_tokens: int
    all_output: bool = True

    @property
    def ids(self) -> np.ndarray | None:
        """All of them, or None if they are not all known, one per position."""
        return join(self.prompt, self.output)

    def fitting(self, rows: int | None, start: int) -> Tokens:
        """With the count of prompt tokens that so many rows from `start` on have: that of the ids, or, where it alone
        fits, or where there are no rows, the larger one that the response says; then ids and positions do not go
        together and the ids are left out."""
        if self.prompt is None:
            return self
        expanded = self.prompt_tokens > self.prompt.size
        if expanded and (rows is None or rows == max(0, self.prompt_tokens + self.output_tokens - 1 - start)):
            return replace(self, prompt=None)
        return replace(self, prompt_tokens=self.prompt.size)


def count(value: Any, field: str) -> int:
    """Of tokens, as a response says it."""
    return _values.integer(value, field, _values.NATURAL)


def output_weights(
    spans: Any, counted: Tokens, row_start: int, versions: Mapping[str, int] | None
) -> tuple[WeightSpan, ...]:
    """Weights of rows from spans {version, start, end} of output tokens."""
    if spans is None:
        return ()
    if isinstance(spans, (str, bytes, memoryview, Mapping)) or not isinstance(spans, Sequence):
        raise invalid("weight_versions", "is not a list")
    if versions is not None and not isinstance(versions, Mapping):
        raise invalid("versions", f"a {type(versions).__name__} is not a mapping")
    numbers = {str(name): _number(number) for name, number in (versions or {}).items()}
    said = [_version_span(span, numbers, f"weight_versions[{i}]") for i, span in enumerate(spans)]
    counts = counted.prompt_tokens, counted.output_tokens, row_start
    asked = (_native.WeightSpan * len(said))()
    for (begin, end, version, label), one in zip(said, asked, strict=True):
        one.begin, one.end, one.version = begin, end, version  # -1: what the label tells.
        one.label = _values.native_text(label, "weight_versions")
    rows = give(lib.rr_output_weights, _native.Weights, _weights, asked, len(said), *counts)
    return tuple(replace(span, version=numbers.get(span.label, span.version)) for span in rows)


def _weights(said: Any) -> list[WeightSpan]:
    return [WeightSpan(one.begin, one.end, one.version, str(one.label)) for one in said.data[: said.count]]


def _version_span(span: Any, numbers: Mapping[str, Any], field: str) -> tuple[int, int, int, str]:
    begin, end = (_values.integer(get(span, name), f"{field}.{name}") for name in ("start", "end"))
    version = get(span, "version")
    if isinstance(version, str):
        return begin, end, _values.integer(numbers.get(version, -1), f"{field}.version"), version
    return begin, end, _values.integer(version, f"{field}.version", _values.NATURAL), ""


def _plain(value: Any) -> Any:
    """A scalar as Python's own; what is none is no number."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def _number(value: Any) -> Any:
    """Of a weight version; -1 is unknown."""
    number = _plain(value)
    return _values.integer(number, "versions", (-1, 2**63 - 1)) if type(number) is int else number


def choice_count(response: Any) -> int:
    """1 where a response is its own choice."""
    choices = get(response, "choices")
    return len(choices) if isinstance(choices, Sequence) else 1


def refuse_shared(response: Any, choice: Any, place: Any, field: str) -> None:
    """What stands in the response itself belongs to none of several choices."""
    count = choice_count(response)
    if place is response and place is not choice and count > 1:
        raise invalid(field, f"stands in the response, which has {count} choices: whose is it?")


# Forms of ids.


def as_bytes(text: Any, field: str) -> memoryview:
    """A view of text or bytes."""
    try:
        return memoryview(text.encode("ascii") if isinstance(text, str) else text).cast("B")
    except (TypeError, UnicodeEncodeError):
        raise invalid(field, "is not ASCII text", "ENCODING") from None


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
        said = give(lib.rr_open_nrlre1, _native.Form, form, *_native.address_of(data))
        return said.payload(data[said.begin : said.end])
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
    return with_shape(replace(ids, shape=row))


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


def open_object(dialect: Any, described: Any) -> Form:
    """What an object beside ids says, which may hold values of any kind."""
    name = _values.native_text(dialect, "dialect")
    try:
        said = text(json.dumps(described))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid("append.tensor", f"is not JSON: {error}", "SHAPE") from None
    return give(lib.rr_open_object, _native.Form, form, name, said)


def object_payload(value: Any, dialect: str, field: str) -> tuple[Payload, int | None]:
    """{data, shape, dtype, …}, and the row at which it says to start."""
    described, data = _apart(value, field)
    said = open_object(dialect, described)
    return said.payload(data), _start(said, described)


def base85_payload(value: Any, dtype: str, field: str) -> tuple[Payload, int | None]:
    """{data: base85, shape}; decoded here."""
    described, data = _apart(value, field)
    said = open_object("any", {"dtype": dtype} | described)
    decoded = give(lib.rr_decode_base85, _native.Bytes, _native.take_bytes, *_native.address_of(data))
    return said.payload(decoded, "RAW"), _start(said, described)


def _start(said: Form, described: dict[str, Any]) -> int | None:
    return None if described.get("start") is None else said.start


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
        raise invalid(field, f"is not an array of ids: {error}", "DTYPE") from None
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
        raise invalid("resolver", f"must be callable, got a {type(resolver).__name__}")


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
    found = with_shape(rows)
    return str(found.dtype), tuple(found.shape or ())


def account(rows: Any, tokens: Tokens, start: Any, short_rows: str, **others: Any) -> RecordedRows:
    """RecordedRows of `rows`, counted; `tokens` as they fit the rows (see Tokens.fitting)."""
    start = _values.integer(start, "start")
    front = _values.choice(_values.text(short_rows, "short_rows"), "short_rows", _SHORT_ROWS)
    count = 0 if rows is None else row_count(rows)
    try:
        found = account_rows(tokens.prompt_tokens, tokens.output_tokens, start, count, front)
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
    count_adapter("adapter_surplus_rows", found.surplus_rows)
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
        raise invalid("absent", f'must be "raise" or "unrecorded", got {policy!r}')
    raise invalid(field, f'{why}; with absent="unrecorded" its rows become unrecorded')


# Which rows a tensor holds.


def with_shape(payload: Payload) -> Payload:
    """With the dtype and the shape that its bytes tell. A shape of two is [layers, K] of a row, of flat ids."""
    tensor, _data = tensor_of(payload, None, "")
    said = give(lib.rr_payload_shape, _native.Form, form, tensor)
    return replace(payload, dtype=said.dtype, shape=said.shape)


def check_narrowest(payload: Payload) -> None:
    """InvalidArgumentError if SkyRL would have written another dtype."""
    tensor, _data = tensor_of(payload, None, "")
    _native.check(lib.rr_check_narrowest(tensor))


class RowAccount(NamedTuple):
    """Which rows a tensor holds: proto/wire/payload/engine_output.h."""

    row_start: int
    take: tuple[int, int]
    missing_rows: int
    surplus_rows: int


def account_rows(
    prompt_tokens: int, output_tokens: int, start: int, rows: int, missing_at_front: bool = False
) -> RowAccount:
    """Which rows a tensor of so many holds. InvalidArgumentError (ROW_COUNT) if the tokens do not explain them."""
    account = _native.RowAccount()
    claim = _native.RowClaim(prompt_tokens, output_tokens, start, rows, missing_at_front)
    _native.check(lib.rr_account_rows(byref(claim), byref(account)))
    take = account.take.begin, account.take.end
    return RowAccount(account.row_start, take, account.missing_rows, account.surplus_rows)
