"""The functions of routing_replay/trainer/capi.h, in the library that routing_replay has loaded, those of
librouting_replay_trainer_cuda.so, and values that users give, as these functions take them.

Every call gives up the GIL while it runs. The kernels are loaded when something on a GPU asks for them, and are speed
and nothing else: whoever can do without asks for `kernels`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import math
import numbers
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from routing_replay import _native, errors

_ABI_VERSION = 2


class Router(Structure):
    """rrt_router"""

    _fields_ = (
        *((name, c_int32) for name in ("dtype", "score_function", "pre_softmax", "rounding")),
        *((name, c_int32) for name in ("num_experts", "top_k", "num_groups", "group_topk")),
        ("scaling_factor", c_double),
    )


class StagedShape(Structure):
    """rrt_staged_shape"""

    _fields_ = tuple(
        (name, c_int64)
        for name in (
            "bytes",
            "staging_offset",
            "states_offset",
            "units",
            "replayed_rows",
            "unrecorded_rows",
            "pad_rows",
        )
    )


class CompareCounters(Structure):
    """rrt_compare_counters"""

    _fields_ = tuple((name, c_int64) for name in ("rows", "different_rows", "disjoint_rows", "common_ids"))


class StepCacheCounts(Structure):
    """rrt_step_cache_counts"""

    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("hits", "misses", "ahead", "stale", "evictions", "not_kept"),
            *("bytes", "most_bytes", "slices", "bytes_read"),
        )
    )


class Counters(Structure):
    """rrt_router_counters"""

    _fields_ = tuple(
        (name, c_int64) for name in ("replayed_rows", "live_rows", "pad_rows", "clamped_ids", "zero_probabilities")
    )


class RouteIds(Structure):
    """rrt_route_ids"""

    _fields_ = (
        ("sequences", c_size_t),
        ("rows", c_void_p),
        ("recorded", c_void_p),
        ("recorded_count", c_size_t),
        ("seen", c_void_p),
        ("seen_count", c_size_t),
    )


_text = (c_char_p, c_size_t)  # Also bytes: Python passes their address.
_out = POINTER(c_void_p)
_memory = (c_void_p, c_size_t)

_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "rrt_token_ids": (*_text, *_memory, _out),
    "rrt_plan_new": (*_text, c_int32, _out),
    "rrt_plan_json": (c_void_p, _out),
    "rrt_plan_buffer": (c_void_p, _out),
    "rrt_plan_row_map": (c_void_p, *(c_void_p,) * 3, c_size_t),
    "rrt_plan_filler": (c_void_p, c_int32, c_int64, c_int64, *_memory),
    "rrt_plan_geometry": (c_void_p, _out),
    "rrt_judge_alignment": (c_void_p, POINTER(RouteIds), _out),
    "rrt_fetch_new": (c_void_p, *_text, _out),
    "rrt_fetch_give_up": (c_void_p, *_text),
    "rrt_fetch_result": (c_void_p, _out),
    "rrt_inspect_new": (*_text, _out),
    "rrt_inspect_result": (c_void_p, _out),
    "rrt_local_source_inspect": (c_void_p, c_void_p),
    "rrt_directory_source_open": (*_text, _out),
    "rrt_directory_source_json": (c_void_p, _out),
    "rrt_directory_source_fetch": (c_void_p, c_void_p),
    "rrt_directory_source_inspect": (c_void_p, c_void_p),
    "rrt_step_cache_new": (c_int64, _out),
    "rrt_step_cache_attach": (c_void_p, c_void_p, c_int32),
    "rrt_step_cache_detach": (c_void_p,),
    "rrt_step_cache_next": (c_void_p, c_int64, POINTER(c_int32)),
    "rrt_step_cache_end_step": (c_void_p,),
    "rrt_step_cache_stop": (c_void_p,),
    "rrt_step_cache_counters": (c_void_p, POINTER(StepCacheCounts)),
    "rrt_local_source_new": (*_text, _out),
    "rrt_local_source_add": (c_void_p, *_text, *_text, *_memory, *_memory),
    "rrt_local_source_fetch": (c_void_p, c_void_p),
    "rrt_local_source_record": (c_void_p, c_void_p, c_int32, *_memory, *_memory),
    "rrt_realign": (c_void_p, c_void_p, *_memory, *_memory, POINTER(c_int64)),
    "rrt_staged_new": (c_void_p, c_void_p, _out),
    "rrt_staged_write": (c_void_p, *_memory),
    "rrt_router_forward": (POINTER(Router), c_int64, *(c_void_p,) * 9),
    "rrt_router_backward": (POINTER(Router), c_int64, *(c_void_p,) * 5),
    "rrt_compare": (POINTER(Router), c_int64, *(c_void_p,) * 6),
    "rrt_local_collectives_new": (c_int32, _out),
    "rrt_collective_all_reduce_max": (c_void_p, *_memory, c_int64),
    "rrt_collective_all_gather": (c_void_p, *_text, c_int64, _out),
    "rrt_agreement_new": (c_int32, *_text, _out),
    "rrt_agreement_words": (c_void_p, _out),
    "rrt_agreement_push": (c_void_p, *_memory),
    "rrt_agreement_decision": (c_void_p, _out),
    "rrt_merge_records": (_out, _out, POINTER(c_size_t), c_size_t, _out),
    "rrt_merged_sequence": (c_void_p, c_int32, POINTER(c_int64), _out),
}
_OTHERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rrt_bytes_data": (c_void_p, (c_void_p,)),
    "rrt_bytes_size": (c_size_t, (c_void_p,)),
    "rrt_bytes_free": (None, (c_void_p,)),
    "rrt_token_check": (c_uint32, (c_uint32, *_memory)),
    "rrt_plan_free": (None, (c_void_p,)),
    "rrt_fetch_free": (None, (c_void_p,)),
    "rrt_directory_source_free": (None, (c_void_p,)),
    "rrt_inspect_free": (None, (c_void_p,)),
    "rrt_local_source_free": (None, (c_void_p,)),
    "rrt_step_cache_free": (None, (c_void_p,)),
    "rrt_staged_free": (None, (c_void_p,)),
    "rrt_staged_get_shape": (None, (c_void_p, POINTER(StagedShape))),
    "rrt_staged_realign": (None, (c_void_p, c_int64, c_void_p, c_void_p)),
    "rrt_local_source_remove": (c_int32, (c_void_p, *_text)),
    "rrt_collective_free": (None, (c_void_p,)),
    "rrt_agreement_free": (None, (c_void_p,)),
    "rrt_merged_free": (None, (c_void_p,)),
    "rrt_merged_sequences": (c_int32, (c_void_p,)),
    "rrt_plan_geometry_fingerprint": (c_uint64, (c_void_p,)),
}


def declare(
    library: ctypes.CDLL,
    fallible: Mapping[str, tuple[Any, ...]],
    others: Mapping[str, tuple[Any, tuple[Any, ...]]],
    prefix: str,
    abi: tuple[str, int],
) -> None:
    """Gives functions their types; those that can fail raise the error that they give. ImportError if the library is of
    another ABI.

    prefix: of its functions, which those about errors begin with
    abi: the function that says it, and what it must say
    """

    def check(pointer: int | None, function: Any, arguments: Any) -> None:
        if pointer is None:
            return
        detail = json.loads(getattr(library, f"{prefix}error_json")(pointer))
        getattr(library, f"{prefix}error_free")(pointer)
        raise errors.from_detail(detail)

    for name, arguments in fallible.items():
        function = getattr(library, name)
        function.restype, function.argtypes, function.errcheck = c_void_p, arguments, check
    abi_function, abi_version = abi
    own = {
        abi_function: (c_int32, ()),
        f"{prefix}error_json": (c_char_p, (c_void_p,)),
        f"{prefix}error_free": (None, (c_void_p,)),
    }
    for name, (result, arguments) in (*others.items(), *own.items()):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    found = getattr(library, abi_function)()
    if found != abi_version:
        raise ImportError(f"{library._name} must be of ABI {abi_version}, got {found}")


LIBRARY = _native.lib
declare(LIBRARY, _FALLIBLE, _OTHERS, "rrt_", ("rr_abi_version", _ABI_VERSION))
VERSION: str = _native.VERSION


class Handle:
    """An object of the core, freed with this one."""

    __slots__ = ("_free", "pointer")

    def __init__(self, free: Callable[[int], None], make: Any, *arguments: Any) -> None:
        self.pointer: int | None = None
        self._free = free
        out = c_void_p()
        make(*arguments, byref(out))
        self.pointer = out.value

    @classmethod
    def of(cls, free: Callable[[int], None], pointer: int) -> Handle:
        """Of an object that is there."""
        handle = cls.__new__(cls)
        handle._free, handle.pointer = free, pointer
        return handle

    def __del__(self) -> None:
        if self.pointer is not None:
            self._free(self.pointer)


def give(function: Any, *arguments: Any) -> bytes:
    """The bytes that a function gives, copied."""
    handle = Handle(LIBRARY.rrt_bytes_free, function, *arguments)
    return ctypes.string_at(LIBRARY.rrt_bytes_data(handle.pointer), LIBRARY.rrt_bytes_size(handle.pointer))


def text(value: Any) -> tuple[bytes, int]:
    """A value as JSON, as functions take it."""
    encoded = json.dumps(value).encode()
    return encoded, len(encoded)


LOG = logging.getLogger("routing_replay_trainer")
_CUDA_ABI_VERSION = 1
_CUDA_NAME = "librouting_replay_trainer_cuda.so"
_CUDA_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "rrt_cuda_check_device": (c_int32,),
    "rrt_cuda_realign": (c_void_p, c_int64, c_int64, *(c_void_p,) * 3),
    "rrt_cuda_router_forward": (POINTER(Router), c_int64, *(c_void_p,) * 10),
    "rrt_cuda_router_backward": (POINTER(Router), c_int64, *(c_void_p,) * 6),
    "rrt_cuda_compare": (POINTER(Router), c_int64, *(c_void_p,) * 7),
}


@functools.cache
def cuda_library(device: int) -> ctypes.CDLL:
    """The library, fit for this device. Its functions are called with the device as the current one.

    Raises FailedPreconditionError whose field is what is missing: "cuda.library" (this package was built without it),
    "cuda.driver", "cuda.device", "cuda.architecture".
    """
    loaded = _load_cuda()
    loaded.rrt_cuda_check_device(device)
    return loaded


@functools.cache
def kernels(device: int) -> ctypes.CDLL | None:
    """The same; None, and one warning that says why, where it is not fit for this device."""
    try:
        return cuda_library(device)
    except errors.FailedPreconditionError as error:
        LOG.warning("router replay: goes on without its kernels, by operators of torch and the host: %s", error.message)
        return None


@functools.cache
def _load_cuda() -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(_native.find_file(_CUDA_NAME)))
        declare(loaded, _CUDA_FALLIBLE, {}, "rrt_cuda_", ("rrt_cuda_abi_version", _CUDA_ABI_VERSION))
    except (ImportError, OSError) as error:
        raise unmet("cuda.library", f"{error}; the kernels are built where nvcc is found") from error
    return loaded


INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
UINT64 = (0, 2**64 - 1)


def invalid(field: str, what: str, reason: str = "FIELD", sample: Any = None) -> errors.InvalidArgumentError:
    sample = sample if isinstance(sample, str) else None
    detail = {"code_name": "INVALID_ARGUMENT", "reason": reason, "field": field, "sample": sample}
    return errors.InvalidArgumentError(f"{field}: {what}", **detail)


def unmet(where: str, why: str, *, sample: Any = None, **detail: Any) -> errors.FailedPreconditionError:
    """where: the error's field"""
    detail |= {"code_name": "FAILED_PRECONDITION", "sample": sample if isinstance(sample, str) else None}
    return errors.FailedPreconditionError(f"{where}: {why}", field=where, **detail)


def check_choice(field: str, value: Any, choices: Iterable[Any]) -> None:
    if value not in choices:
        raise invalid(field, f"must be one of {', '.join(map(str, choices))}, got {value!r}")


def seconds(value: Any, field: str) -> float:
    """A deadline, above 0; for ever is a hundred years."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not value > 0:
        raise invalid(field, f"must be seconds above 0, got {value!r}")
    return min(float(value), 3.2e9)


def integer(value: Any, field: str, bounds: tuple[int, int] = INT64, sample: Any = None) -> int:
    """Also integers of numpy and the like; neither True nor 1.0."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise invalid(field, f"must be an integer, got {reprlib.repr(value)}", sample=sample) from None
    low, high = bounds
    if not low <= number <= high:
        raise invalid(field, f"must be in {low} … {high}, got {number}", sample=sample)
    return number


def plain(value: Any, field: str, sample: Any = None) -> Any:
    """Numbers and arrays of numpy and the like as JSON has them; entries that are None are left out. What is of the
    wrong kind the core rejects, and names."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{field}.{key}", sample) for key, item in value.items() if item is not None}
    if hasattr(value, "tolist"):
        integers = getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")
        value = value.tolist()
        if integers:
            return value
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(field, f"must be a finite number, got {value}", sample=sample)
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise invalid(field, f"must be a value of JSON, got {reprlib.repr(value)}", sample=sample)
    return [plain(item, field, sample) for item in value]


def geometry_json(geometry: Any) -> Any:
    """A geometry as the core takes it; a mapping, or an object with to_json() (routing_replay.Geometry)."""
    return json.loads(geometry.to_json()) if hasattr(geometry, "to_json") else plain(geometry, "geometry")


def token_ids(tokens: ArrayLike, sample: Any) -> NDArray[np.uint32]:
    """Token ids [n]. InvalidArgumentError naming `tokens` for anything else, or nothing at all."""
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise invalid("tokens", str(error), "SHAPE", sample) from None
    said = {"dtype": array.dtype.name, "axes": array.ndim, "field": "tokens", "sample": str(sample)}
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return np.frombuffer(give(LIBRARY.rrt_token_ids, *text(said), array.ctypes.data, array.nbytes), "<u4")
