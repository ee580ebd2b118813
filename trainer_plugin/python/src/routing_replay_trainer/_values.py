"""Values that users give, as the core takes them: what is of another kind or out of range is an InvalidArgumentError
that names the field. Nothing is rounded, wrapped or cut."""

from __future__ import annotations

import json
import math
import numbers
import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from routing_replay import errors

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
UINT64 = (0, 2**64 - 1)


def invalid(field: str, what: str, reason: str = "FIELD", sample: Any = None) -> errors.InvalidArgumentError:
    known = sample if isinstance(sample, str) else None
    detail = {"code_name": "INVALID_ARGUMENT", "reason": reason, "field": field, "sample": known}
    return errors.InvalidArgumentError(f"{field}: {what}", **detail)


def seconds(value: Any, field: str) -> float:
    """A deadline, above 0; for ever is a hundred years."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not value > 0:
        raise invalid(field, f"{value!r} is not a number of seconds above 0")
    return min(float(value), 3.2e9)


def integer(value: Any, field: str, bounds: tuple[int, int] = INT64, sample: Any = None) -> int:
    """Also integers of numpy and the like; neither True nor 1.0."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise invalid(field, f"{reprlib.repr(value)} is not an integer", sample=sample) from None
    low, high = bounds
    if not low <= number <= high:
        raise invalid(field, f"{number} is not in {low} … {high}", sample=sample)
    return number


def plain(value: Any, field: str, sample: Any = None) -> Any:
    """Numbers and arrays of numpy and the like as JSON has them; entries that are None are left out. What is of the
    wrong kind the core refuses, and names."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{field}.{key}", sample) for key, item in value.items() if item is not None}
    if hasattr(value, "tolist"):
        integers = getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")
        value = value.tolist()
        if integers:
            return value
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(field, f"{value} is not a number", sample=sample)
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise invalid(field, f"{reprlib.repr(value)} is not a value of JSON", sample=sample)
    return [plain(item, field, sample) for item in value]


def geometry_json(geometry: Any) -> Any:
    """A geometry as the core takes it; a mapping, or an object with to_json() (routing_replay.Geometry)."""
    return json.loads(geometry.to_json()) if hasattr(geometry, "to_json") else plain(geometry, "geometry")


def token_ids(tokens: ArrayLike, sample: Any) -> NDArray[np.uint32]:
    """Token ids [n]. InvalidArgumentError naming `tokens` for what are none, or nothing at all."""
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise invalid("tokens", str(error), "SHAPE", sample) from None
    said = {"dtype": array.dtype.name, "axes": array.ndim, "field": "tokens", "sample": str(sample)}
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return np.frombuffer(_core.give(LIBRARY.rrt_token_ids, *_core.text(said), array.ctypes.data, array.nbytes), "<u4")
