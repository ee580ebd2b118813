"""Checks and converts the values that users pass. A value of a wrong type or out of range raises InvalidArgumentError
naming the field; integers are never rounded, wrapped or truncated."""

from __future__ import annotations

import contextlib
import functools
import json
import numbers
import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from routing_replay import _native
from routing_replay.errors import InvalidArgumentError

T = TypeVar("T")

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
UINT32 = (0, 2**32 - 1)
UINT64 = (0, 2**64 - 1)
NATURAL = (0, 2**63 - 1)

_LONGEST_WAIT = 1e9  # Seconds. Also stands for infinity, which poll() and the library do not accept.


def invalid(field: str, what: str, sample: Any = None, reason: str = "FIELD") -> InvalidArgumentError:
    known = sample if isinstance(sample, str) else None
    return InvalidArgumentError(f"{field}: {what}", reason=reason, field=field, sample=known)


def integer(value: Any, field: str, bounds: tuple[int, int] = INT64, sample: Any = None) -> int:
    """Converts an integer of Python, numpy or a similar package to int. True and 1.0 are rejected."""
    if type(value) is int:
        number = value
    else:
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise invalid(field, f"must be an integer, got {reprlib.repr(value)}", sample) from None
    low, high = bounds
    if not low <= number <= high:
        raise invalid(field, f"must be {low} … {high}, got {number}", sample)
    return number


def integers(value: Any, field: str, bounds: tuple[int, int] = INT64, sample: Any = None) -> list[int]:
    return [integer(item, field, bounds, sample) for item in items(value, field, "integers", sample)]


def row_ranges(value: Any, field: str, sample: Any = None) -> list[list[int]]:
    """Converts row ranges, which are half-open pairs (begin, end), to a list."""
    ranges = [integers(item, field, INT64, sample) for item in items(value, field, "(begin, end)", sample)]
    if any(len(pair) != 2 for pair in ranges):
        raise invalid(field, f"must be a list of (begin, end), got {reprlib.repr(value)}", sample)
    return ranges


def seconds(value: Any, field: str = "timeout") -> float:
    """Checks a number of seconds, which must be at least 0. Values above _LONGEST_WAIT become _LONGEST_WAIT."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real) or not float(value) >= 0:
        raise invalid(field, f"must be at least 0 seconds, got {reprlib.repr(value)}")
    return min(float(value), _LONGEST_WAIT)


def milliseconds(value: Any, field: str = "timeout") -> int:
    return round(1000 * seconds(value, field))


def text(value: Any, field: str, sample: Any = None) -> str:
    utf8(value, field, sample)
    return str(value)


def native_text(value: Any, field: str, sample: Any = None) -> _native.Text:
    encoded = utf8(value, field, sample)
    return _native.Text(encoded, len(encoded))


def utf8(value: Any, field: str, sample: Any = None) -> bytes:
    if not isinstance(value, str):
        raise invalid(field, f"must be a string, got {reprlib.repr(value)}", sample)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise invalid(field, "must be valid Unicode", sample) from None


def optional(value: Any, field: str, bounds: tuple[int, int] = INT64, sample: Any = None) -> _native.Integer:
    """An rr_integer from an integer or None."""
    return _native.integer(None if value is None else integer(value, field, bounds, sample))


def native_ranges(value: Any, field: str, sample: Any = None) -> _native.Ranges:
    """Converts half-open pairs (begin, end) to an rr_ranges."""
    ranges = row_ranges(value, field, sample)
    made = [_native.Range(begin, end) for begin, end in ranges]
    return _native.Ranges((_native.Range * len(made))(*made), len(made)) if made else _native.Ranges()


def native_tokens(tokens: Any, field: str, sample: Any = None) -> tuple[_native.Tokens, np.ndarray]:
    """Returns token ids as an rr_tokens, which the library checks, and the array that must stay alive with it."""
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise invalid(field, str(error), sample, "SHAPE") from None
    axes = array.ndim
    array = little_endian(array)
    return _native.Tokens(array.ctypes.data, array.nbytes, _dtype_name(array.dtype), axes), array


def view(value: Any, field: str, reason: str = "FIELD", sample: Any = None) -> memoryview:
    """A memoryview of the bytes of a contiguous buffer."""
    try:
        return memoryview(value).cast("B")
    except (TypeError, ValueError) as error:
        raise invalid(field, f"must be contiguous bytes: {error}", sample, reason) from None


def little_endian(array: np.ndarray) -> np.ndarray:
    """A contiguous array with the same values in little-endian order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


@functools.lru_cache
def _dtype_name(dtype: np.dtype[Any]) -> _native.Text:
    return _native.text(dtype.name)


def json_value(text: str | bytes, field: str, reason: str = "FIELD") -> Any:
    """Parses JSON text; rejects a key that occurs twice in an object, and nesting that is too deep."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise invalid(field, f"must be JSON: {error}", reason=reason) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def choice(value: Any, field: str, choices: Mapping[Any, T], sample: Any = None) -> T:
    """Returns choices[value]. Raises InvalidArgumentError if `value` is not a key of `choices`."""
    if (value is None or isinstance(value, str)) and value in choices:
        return choices[value]
    known = ", ".join(repr(name) for name in choices if name)
    raise invalid(field, f"must be one of {known}, got {reprlib.repr(value)}", sample)


def items(value: Any, field: str, what: str, sample: Any = None) -> list[Any]:
    """Converts any iterable except str and bytes to a list."""
    if not isinstance(value, (str, bytes)) and isinstance(value, Iterable):
        # list() fails for a numpy array without an axis and for a memoryview with several.
        with contextlib.suppress(TypeError, NotImplementedError):
            return list(value)
    raise invalid(field, f"must be a list of {what}, got {reprlib.repr(value)}", sample)
