"""Code that the adapters share: reads fields of responses, which may be objects or dicts, and converts any form of ids
to what `append` takes. A form is recognised by its type and first bytes; the bytes are not copied."""

from __future__ import annotations

import base64
import functools
import re
import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from routing_replay import _native, _values
from routing_replay._convert import DTYPES, as_array, bad_dtype, form
from routing_replay._convert import tensor as tensor_of
from routing_replay._native import give, lib
from routing_replay.errors import InvalidArgumentError
from routing_replay.geometry import Geometry
from routing_replay.types import Payload, RecordedRows, WeightSpan, token_ids

_ROWS = (0, 1 << 22)  # How many rows a sample may have, as in routing_replay/wire/geometry.h.
_ALL_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64")
# For each dialect of `described_payload`: the dtypes that it uses, and the dtype of ids that state none.
_DIALECTS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "prime_rl": (_ALL_DTYPES, "uint8"),
    "skyrl": (("uint8", "int16", "int32"), None),
    "ms_swift": (_ALL_DTYPES, None),
    "nrlre1": (("int8", "int16", "int32"), None),
    "sglang": (("uint8", "uint16", "int32"), "int32"),
}
Row = tuple[int, int] | Literal["npy"] | None
_NOT_ALL = (
    "If these output tokens are all that were sampled, and not only those of a stream's last event or of a delta, "
    "pass their ids as output_token_ids"
)
# The form of a text by its first characters; any other text is flat base64. A reference is the JSON that `attach` puts
# in the place of rows.
_BEGINNINGS = {b"k05VTVBZ": "npy", b"nrlre1:": "nrlre1", b"{": "reference"} | dict.fromkeys(
    (b"gASV", b"gAWV", b"gAJ", b"gAN"), "pickle"
)


# Fields of responses.


def invalid(field: str, what: str, reason: str = "FIELD") -> InvalidArgumentError:
    return _values.invalid(field, what, None, reason)


def get(holder: Any, *names: str) -> Any:
    """Returns the first field of `holder` with one of these names whose value is not None; None if there is none."""
    read = holder.get if isinstance(holder, Mapping) else functools.partial(getattr, holder)
    return next((value for name in names if (value := read(name, None)) is not None), None)


def first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def item(holder: Any, name: str, index: Any) -> Any:
    """Returns the item of the list `holder.<name>` whose `index` field has this value. If some item has no such field,
    returns the item at this position of the list."""
    number = _values.integer(index, "index", _values.NATURAL)
    values = get(holder, name)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, memoryview)):
        raise invalid(name, f"the response has no list of this name, and so no item {number}")
    numbers = [get(value, "index") for value in values]
    numbers = list(range(len(values))) if any(number is None for number in numbers) else numbers
    places = zip(values, numbers, strict=True)
    found = [value for value, place in places if isinstance(place, (int, np.integer)) and place == number]
    if len(found) != 1:
        raise invalid(name, f"{len(found) or 'no'} items have index {number}: the response has items {numbers}")
    return found[0]


def ids(values: Any, field: str) -> np.ndarray | None:
    """Converts token ids to uint32. The list may be empty; None stays None."""
    if values is None:
        return None
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0:
        raise invalid(field, f"must be a list of token ids, got a {type(values).__name__}")
    return token_ids(values, field) if len(values) else np.empty(0, np.uint32)


def engine_name(name: str) -> str:
    """The package's name, followed by its version if this process has imported the package."""
    version = getattr(sys.modules.get(name), "__version__", None)
    return f"{name} {version}" if isinstance(version, str) else name


@dataclass(frozen=True)
class Tokens:
    """What a response says about the tokens of a sample.

    prompt, output: ids, or None
    prompt_tokens: as the response states it, else the number of prompt ids. Media can make it exceed that number
    output_tokens: number of sampled tokens
    all_output: True if `output` certainly has all sampled ids, and not only those of the last event of a stream
    """

    prompt: np.ndarray | None
    output: np.ndarray | None
    prompt_tokens: int
    output_tokens: int
    all_output: bool = True

    @property
    def ids(self) -> np.ndarray | None:
        """All token ids, one per position, or None if some are unknown."""
        if self.prompt is None or self.output is None or not self.prompt.size + self.output.size:
            return None
        return np.concatenate([self.prompt, self.output])

    def fitting(self, rows: int | None, start: int) -> Tokens:
        """Returns the same tokens with one prompt length, for `rows` rows from row `start` on (None: no rows).
        It is the number of prompt ids. Exception: the response states a larger number, and the rows fit it or there are
        none. Then that number is used, and the prompt's ids are dropped, because an id's index is not its position.
        """
        if self.prompt is None:
            return self
        expanded = self.prompt_tokens > self.prompt.size
        if expanded and (rows is None or rows == max(0, self.prompt_tokens + self.output_tokens - 1 - start)):
            return replace(self, prompt=None)
        return replace(self, prompt_tokens=self.prompt.size)


def count(value: Any, field: str) -> int:
    """Checks and returns a number of tokens that a response states."""
    return _values.integer(value, field, _values.NATURAL)


def number_of(said: Any, ids: np.ndarray | None, name: str, field: str) -> int:
    """Returns the number of tokens that the response states under this name, or else the number of ids."""
    if said is not None:
        return count(said, name)
    if ids is None:
        what = "the response counts no tokens and has no ids (ask for them with return_token_ids, or pass them here)"
        raise invalid(field, what)
    return ids.size


def output_weights(spans: Any, counted: Tokens, row_start: int) -> tuple[WeightSpan, ...]:
    """Converts spans {version, start, end} of output tokens to WeightSpans of rows."""
    if spans is None:
        return ()
    if isinstance(spans, (str, bytes, memoryview, Mapping)) or not isinstance(spans, Sequence):
        raise invalid("weight_versions", "must be a list")
    first_row = counted.prompt_tokens - 1  # Row P - 1 + j belongs to the forward pass that sampled output token j.
    weights: list[WeightSpan] = []
    end = 0
    for i, span in enumerate(spans):
        field = f"weight_versions[{i}]"
        before = end
        begin, end = (_values.integer(get(span, name), f"{field}.{name}") for name in ("start", "end"))
        version, label = _version(get(span, "version"), f"{field}.version")
        if not before <= begin <= end <= counted.output_tokens:
            allowed = f"[{before}, {counted.output_tokens})"
            raise invalid("weight_versions", f"span {i}, [{begin}, {end}), is not within output tokens {allowed}")
        # Empty spans are skipped. But an answer without output tokens has one empty span, for the rows of the prompt.
        if begin == end and (counted.output_tokens or weights):
            continue
        rows = row_start if begin == 0 else max(row_start, first_row + begin), first_row + end
        if rows[0] < rows[1]:
            weights.append(WeightSpan(*rows, version, label))
    return tuple(weights)


def _version(version: Any, field: str) -> tuple[int, str]:
    """Returns number and label of a version. A version that is text is the label; the number is then the text's decimal
    value, or -1 (unknown) for other text."""
    if not isinstance(version, str):
        return _values.integer(version, field, _values.NATURAL), ""
    _values.native_text(version, "weight_versions")
    number = int(version) if version.isascii() and version.isdigit() else -1
    return (number if number <= _values.NATURAL[1] else -1), version


def choice_count(response: Any) -> int:
    """Returns the number of choices; 1 if the response itself is the only choice."""
    choices = get(response, "choices")
    return len(choices) if isinstance(choices, Sequence) else 1


# Forms of ids.


def as_bytes(text: Any, field: str) -> memoryview:
    """A memoryview of text or bytes."""
    try:
        return memoryview(text.encode("ascii") if isinstance(text, str) else text).cast("B")
    except (TypeError, UnicodeEncodeError):
        raise invalid(field, "must be ASCII text", "ENCODING") from None


def base64_payload(text: Any, field: str, row: Row = None, dtype: str | None = None) -> Payload:
    """Converts ids that are text: base64 of a .npy file, "nrlre1:…", or base64 of flat ids.

    row: [layers, K], the shape of one row of flat ids; None if it is not known; "npy" if the text is never flat ids
    dtype: of flat ids, as SGLang names it; None: int32
    """
    data = as_bytes(text, field)
    head = bytes(data[:8])
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "flat")
    if kind == "npy" or (kind == "flat" and row == "npy"):
        return Payload(data, "BASE64_NPY")
    if kind == "nrlre1":
        return _nrlre1_payload(data)
    if kind == "reference":
        raise invalid(field, "is a reference, not rows: they are stored under the sample id in it", "ENCODING")
    if kind == "pickle" and dtype is None:
        raise invalid(field, "is a pickle, which is never opened here", "ENCODING")
    described = {"shape": list(row or ())} | ({} if dtype is None else {"dtype": dtype})
    kind_of_ids = described_payload("sglang", described, data).dtype if row else None
    return _flat(Payload(data, "BASE64", dtype=kind_of_ids), row, field)


def _nrlre1_payload(data: memoryview) -> Payload:
    """NeMo-RL's "nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>"."""
    parts = bytes(data[:128]).decode("latin-1").split(":", 3)
    if len(parts) != 4:
        raise invalid("payload", "must be nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>", "ENCODING")
    magic, dtype, axes, _ = parts
    if not re.fullmatch("[0-9]+x[0-9]+x[0-9]+", axes):
        raise invalid("payload", f"nrlre1: must be <rows>x<layers>x<K>, got {axes!r}", "SHAPE")
    described = {"dtype": dtype, "shape": [int(axis) for axis in axes.split("x")]}
    return described_payload("nrlre1", described, data[len(f"{magic}:{dtype}:{axes}:") :])


def flat_payload(array: np.ndarray, row: Row, field: str) -> Payload:
    """Converts an array of ids, flat or [rows, layers * K], to [rows, layers, K]. row: [layers, K]"""
    dtype = DTYPES.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    if dtype is None:
        raise bad_dtype("append.tensor.dtype", array)
    data = _values.little_endian(array).reshape(-1).view(np.uint8).data
    found = _flat(Payload(data, dtype=dtype), row, field)
    if array.ndim == 2 and found.shape is not None and found.shape[0] != array.shape[0]:
        raise invalid(field, f"must be [rows, layers * K] for {list(row or ())}, got {list(array.shape)}", "LENGTH")
    return found


def _flat(ids: Payload, row: Row, field: str) -> Payload:
    """Converts flat ids; their length gives the number of rows."""
    if not isinstance(row, tuple):
        raise invalid(field, "flat ids do not state layers and K: pass the run's geometry", "SHAPE")
    layers, top_k = row
    if layers < 1 or top_k < 1:
        raise invalid("append.tensor.shape", f"a row needs at least 1 layer and 1 id, got [{layers}, {top_k}]", "SHAPE")
    size = len(ids.data)
    if ids.encoding == "BASE64":
        if size % 4:
            raise invalid("payload", f"base64: length {size} is not a multiple of 4", "ENCODING")
        size = size // 4 * 3 - bytes(ids.data[-2:]).count(b"=")
    element = _element(ids).itemsize
    if size % element:
        raise invalid("payload", f"{size} bytes end inside an element", "ENCODING")
    rows, rest = divmod(size, layers * top_k * element)
    if rest:
        what = f"{size} bytes are not whole rows of {layers} layers and {top_k} ids of {element} bytes"
        raise invalid("payload", what, "LENGTH")
    return replace(ids, shape=[rows, layers, top_k])


def row_of(geometry: Any, layers: Any) -> tuple[int, int] | None:
    """The shape [layers, K] of one row of flat ids; None without a geometry."""
    if geometry is None:
        return None
    if not isinstance(geometry, Geometry):
        raise invalid("geometry", f"must be a Geometry, got a {type(geometry).__name__}")
    if layers is None or (isinstance(layers, str) and layers == "all"):
        return geometry.num_layers, geometry.max_top_k
    if isinstance(layers, str) and layers == "moe":
        return len(geometry.moe_layers), geometry.max_top_k
    return len(_values.integers(layers, "layers", _values.INT32)), geometry.max_top_k


def described_payload(dialect: Any, described: Mapping[str, Any], data: memoryview) -> Payload:
    """Converts an object that holds ids in base64. Its fields come from outside, so their types are checked, too. In
    the dialect "sglang", the field `shape` is that of one row."""
    dtypes, default = _values.choice(dialect, "dialect", _DIALECTS)
    if dialect == "ms_swift" and described.get("__ndarray__") is not True:
        raise invalid("append.tensor.__ndarray__", "must be true")
    axes = ("layers", "K") if dialect == "sglang" else ("rows", "layers", "K")
    shape = described.get("shape")
    is_list = isinstance(shape, (list, tuple)) and len(shape) == len(axes)
    if not is_list or not all(type(axis) is int and _ROWS[0] <= axis <= _ROWS[1] for axis in shape):
        what = f"must be [{', '.join(axes)}], got {reprlib.repr(shape)}"
        raise invalid("append.tensor.shape", what, "SHAPE")
    dtype = described.get("dtype")
    name = default if dtype is None else dtype
    if not isinstance(name, str) or name not in dtypes:
        raise invalid("append.tensor.dtype", f"must be one of {', '.join(dtypes)}, got {reprlib.repr(dtype)}", "DTYPE")
    kind = np.dtype(name)
    return Payload(data, "BASE64", dtype=DTYPES[f"{kind.kind}{kind.itemsize}"], shape=list(shape))


def object_payload(value: Any, dialect: str, field: str) -> tuple[Payload, int | None]:
    """Converts {data, shape, dtype, …}; also returns the row number in `start`, if there is one."""
    if not isinstance(value, Mapping):
        raise invalid(field, f"must be an object with data and shape, got a {type(value).__name__}")
    if "data" not in value:
        raise invalid(f"{field}.data", "is missing")
    payload = described_payload(dialect, value, as_bytes(value["data"], f"{field}.data"))
    start = value.get("start")
    return payload, None if start is None else _values.integer(start, "append.row_start", _ROWS)


def nested(value: Any, field: str) -> np.ndarray:
    """Converts an array, a tensor, or nested lists of integers (which cost about a hundred times what base64 costs)."""
    array = as_array(value, field, field)
    if array.size == 0 and isinstance(value, (list, tuple)):
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise bad_dtype(field, array)
    return array


def any_payload(value: Any, field: str, row: Row, dtype: str | None) -> tuple[Any, int | None]:
    """Converts any form to what `append` takes; also returns the first row's number if the form states it."""
    if dtype is not None:
        _values.text(dtype, "dtype")
    if isinstance(value, Payload):
        return value, None
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return base64_payload(value, field, row, dtype), None
    if isinstance(value, Mapping):
        return object_payload(value, "prime_rl", field)
    if isinstance(value, (list, tuple)):
        return nested(value, field), None
    if hasattr(value, "__array__") or hasattr(value, "detach"):
        array = nested(value, field)
        return flat_payload(array, row, field) if array.ndim in (1, 2) else array, None
    raise invalid(field, f"must be an array, nested lists, base64 or an object with data, got {type(value).__name__}")


def start_of(own: int | None, asked: Any, field: str) -> int:
    """Returns the first row's number: `own`, or else `asked`. If `own` is given, `asked` must be equal to it, or 0."""
    start = _values.integer(asked, "start")
    if own is not None and start not in (0, own):
        raise invalid(field, f"starts at row {own}, expected {start}", "ROW_COUNT")
    return start if own is None else own


def row_count(rows: Any) -> int:
    """The number of rows: the length of the first of three axes; 0 for empty lists."""
    shape = rows.shape
    if shape is None:  # A Payload whose bytes state the shape, as those of a .npy file do.
        tensor, _data = tensor_of(rows, None, "")
        shape = give(lib.rr_payload_shape, _native.Form, form, tensor)
    axes = tuple(shape)
    if len(axes) != 3 and axes != (0,):
        raise invalid("append.tensor.shape", f"must be [rows, layers, K], got {list(axes)}", "SHAPE")
    return axes[0]


def account(rows: Any, tokens: Tokens, start: Any, **others: Any) -> RecordedRows:
    """Makes RecordedRows, after a check that the number of rows fits the number of tokens. `rows` is None if all are
    missing; `tokens` must be the result of Tokens.fitting for these rows."""
    start = _values.integer(start, "start", (0, max(0, tokens.prompt_tokens)))
    prompt = _values.integer(tokens.prompt_tokens, "prompt_tokens", _ROWS)
    output = _values.integer(tokens.output_tokens, "output_tokens", _ROWS)
    count = 0 if rows is None else _values.integer(row_count(rows), "rows", (0, _ROWS[1] + 1))
    expected = max(0, prompt + output - 1 - start)
    # If rows from row 1 on were requested, T - 1 rows may be rows 1 … T - 1, or rows 0 … T - 2 of an engine that
    # ignored the start. They are rejected, because a wrong guess would shift all rows by one unnoticed.
    surplus = count > 0 and start + count == prompt + output and start != 1
    if rows is not None and count != expected and not surplus:
        tokens_said = f"{prompt} prompt and {output} output tokens"
        what = f"{count} rows for {tokens_said} from row {start} on, expected {expected}"
        too_many = count >= prompt + output - start
        raise invalid("append.rows", what if tokens.all_output or not too_many else f"{what}. {_NOT_ALL}", "ROW_COUNT")
    if surplus and not tokens.all_output:
        what = f"{count} rows for {prompt} prompt and {output} output tokens, one too many"
        raise invalid("append.rows", f"{what}. {_NOT_ALL}, and the last token's row is left out", "ROW_COUNT")
    return RecordedRows(
        rows,
        row_start=start,
        take=None if rows is None else (0, min(count, expected)),
        missing_rows=expected if rows is None else 0,
        surplus_rows=int(surplus),
        tokens=tokens.ids,
        **others,
    )


def absent(field: str, why: str, policy: str, tokens: Tokens, start: Any, **others: Any) -> RecordedRows:
    """Handles a response without rows: as `policy` says, returns rows that are all unrecorded, or raises an error."""
    start = _values.integer(start, "start")
    if _values.choice(policy, "absent", {"raise": False, "unrecorded": True}):
        return account(None, tokens.fitting(None, start), start, **others)
    raise invalid(field, f'{why} To mark the rows as unrecorded, pass absent="unrecorded"')


def _element(payload: Payload) -> np.dtype[Any]:
    return np.dtype({name: f"<{kind}" for kind, name in DTYPES.items()}[str(payload.dtype)])


def check_narrowest(payload: Payload) -> None:
    """Raises InvalidArgumentError if the dtype is not the smallest of uint8, int16 and int32 that holds the ids. SkyRL
    always writes that dtype."""
    try:
        ids = np.frombuffer(base64.b64decode(payload.data, validate=True), _element(payload))
    except ValueError as error:
        raise invalid("payload", f"base64: {error}", "ENCODING") from None
    if ids.size and ids.min() < 0:
        raise invalid("payload", f"expert id {ids.min()} is below 0", "ID_RANGE")
    largest = ids.max(initial=0)
    if payload.dtype != ("U8" if largest < 1 << 8 else "I16" if largest < 1 << 15 else "I32"):
        raise invalid("append.tensor.dtype", f"must be the smallest dtype for ids up to {largest}", "DTYPE")
