"""The functions of routing_replay/trainer/capi.h, in the library that routing_replay has loaded.

Every call gives up the GIL while it runs. No rules here, only who owns what.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
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
    "rrt_diagnose": (*_text, _out),
    "rrt_diagnose_ids": (c_void_p, POINTER(RouteIds), _out),
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
    said = getattr(library, abi_function)()
    if said != abi_version:
        raise ImportError(f"{library._name} is of ABI {said}, this package needs {abi_version}")


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
