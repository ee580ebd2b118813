"""The functions of routing_replay/trainer/capi.h (in the library that routing_replay has loaded), those of
librouting_replay_trainer_cuda.so, and conversions of users' values for these functions.

Every call releases the GIL while it runs. The CUDA kernels are loaded at their first use on a GPU. Code that also works
without them, only slower, uses `kernels`, which returns None if they are missing; `cuda_library` raises an error then.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import math
import reprlib
from collections.abc import Iterable, Mapping
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_size_t, c_void_p, string_at
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from routing_replay import _native, _values, errors
from routing_replay._native import Handle, Text

LIBRARY = _native.lib
VERSION: str = _native.VERSION


# Structures are named as in the header, in camel case without "rrt_": rrt_staged_shape is StagedShape.


class Sequence(Structure):
    """The fields of nested structures are listed here directly, because ctypes takes a microsecond to make a nested
    structure."""

    _fields_ = _native.fields(
        "c:sample z:sample_size i:handle,num_tokens w:has_num_tokens i:check_rows u:check_crc q:content_id "
        "w:has_token_check,has_content_id,live"
    )


class FetchOptions(Structure):
    _fields_ = (*_native.fields("w:producer,missing,wait"), ("sequences", POINTER(Sequence)), ("count", c_size_t))


Record = _native.structure("Record", "w:sequence t:sample SampleRows:said")


class Records(_native.List):
    _fields_ = (
        ("data", POINTER(Record)),
        ("count", c_size_t),
        *_native.fields("i:fallback_sequences,replayed_rows,unrecorded_rows,pad_rows"),
    )


Target = _native.structure("Target", "p:indices z:indices_size p:states z:states_size")


class RowFetch(Structure):
    _fields_ = (
        ("plan", c_void_p),
        ("options", FetchOptions),
        ("target", Target),
        ("records", c_void_p),  # NULL until all rows have arrived.
    )


class Router(Structure):
    _fields_ = (
        *_native.fields("w:dtype,score_function,pre_softmax,rounding,num_experts,top_k,num_groups,group_topk"),
        ("scaling_factor", c_double),
    )


StagedShape = _native.structure(
    "StagedShape", "i:bytes,staging_offset,states_offset,units,replayed_rows,unrecorded_rows,pad_rows"
)
StepCacheCounts = _native.structure("StepCacheCounts", "i:hits,misses,bytes,bytes_read")
# Exception: Counters is rrt_router_counters.
Counters = _native.structure("Counters", "i:replayed_rows,live_rows,pad_rows,clamped_ids")
RouteIds = _native.structure("RouteIds", "z:sequences p:rows,recorded z:recorded_count p:seen z:seen_count")
MergedSequence = _native.structure("MergedSequence", "i:rows p:planes z:size")


class Merged(_native.List):
    _fields_ = (("data", POINTER(MergedSequence)), ("count", c_size_t))


def declare(library: ctypes.CDLL, functions: dict[str, str]) -> None:
    """Declares native functions that return an error or NULL, and makes a call in Python raise this error. functions:
    for each name one letter per argument, a key of _native._KINDS"""

    def check(error: int | None, function: Any, arguments: Any) -> None:
        if error is not None:
            raise _native.take_error(error)

    for name, arguments in functions.items():
        function = getattr(library, name)
        function.restype, function.errcheck = c_void_p, check
        function.argtypes = tuple(_native._KINDS[kind] for kind in arguments)


declare(
    LIBRARY,
    {
        "rrt_plan_new": "twpp",
        "rrt_plan_row_map": "ppppz",
        "rrt_judge_alignment": "ppp",
        "rrt_fetch_new": "ppp",
        "rrt_fetch_read": "ppp",
        "rrt_fetch_rows": "ppzp",
        "rrt_fetch_give_up": "pt",
        "rrt_fetch_result": "ppp",
        "rrt_inspect": "pppp",
        "rrt_directory_source_open": "tpp",
        "rrt_local_source_new": "tp",
        "rrt_local_source_add": "ptorppz",
        "rrt_local_source_record": "ppwpzpz",
        "rrt_source_fetch": "pp",
        "rrt_source_inspect": "ppp",
        "rrt_step_cache_new": "ip",
        "rrt_step_cache_attach": "ppw",
        "rrt_step_cache_detach": "p",
        "rrt_step_cache_next": "pip",
        "rrt_step_cache_end_step": "p",
        "rrt_step_cache_stop": "p",
        "rrt_step_cache_counters": "pp",
        "rrt_staged_new": "ppp",
        "rrt_staged_write": "ppz",
        "rrt_router_forward": "pipppppppp",
        "rrt_router_backward": "pippppp",
        "rrt_agreement_new": "wtp",
        "rrt_agreement_push": "ppz",
        "rrt_agreement_decision": "pp",
        "rrt_merge_records": "pppzp",
    },
)
LIBRARY.rrt_local_source_remove.argtypes, LIBRARY.rrt_local_source_remove.restype = (c_void_p, Text), c_int32
LIBRARY.rrt_agreement_words.argtypes, LIBRARY.rrt_agreement_words.restype = (c_void_p, c_void_p), c_size_t


def make(function: Any, *arguments: Any) -> Handle:
    """Returns a handle of the object that a function returns through its last argument; the handle frees it."""
    return Handle(LIBRARY.rr_object_free, _native.made(function, *arguments))


def give(function: Any, *arguments: Any) -> Any:
    """Calls a function that returns JSON through its last argument, and returns the parsed JSON."""
    return _native.give(function, _native.Bytes, lambda said: json.loads(_native.take_bytes(said)), *arguments)


def make_described(function: Any, *arguments: Any) -> tuple[Handle, Any]:
    """As `make`, for a function with one more argument at the end, through which it returns a description of the object
    in JSON. Returns the handle and the parsed description."""
    out = c_void_p()
    described = give(function, *arguments, byref(out))
    return Handle(LIBRARY.rr_object_free, out.value), described


def text(value: Any) -> Text:
    """Returns a value as JSON text, for an argument of a function."""
    return _native.text(json.dumps(value))


LOG = logging.getLogger("routing_replay_trainer")
_CUDA_ABI_VERSION = 2
_CUDA_NAME = "librouting_replay_trainer_cuda.so"
_CUDA_FUNCTIONS = {
    "rrt_cuda_check_device": "w",
    "rrt_cuda_realign": "piippp",
    "rrt_cuda_router_forward": "pippppppppp",
    "rrt_cuda_router_backward": "pipppppp",
}


@functools.cache
def cuda_library(device: int) -> ctypes.CDLL:
    """Returns the kernels' library, if it works for this device. Its functions must be called with this device as the
    current one.

    Raises FailedPreconditionError; its field says what is missing: "cuda.library" (this package was built without it),
    "cuda.driver", "cuda.device", "cuda.architecture".
    """
    loaded = _load_cuda()
    loaded.rrt_cuda_check_device(device)
    return loaded


@functools.cache
def kernels(device: int) -> ctypes.CDLL | None:
    """As `cuda_library`, but returns None, and logs one warning with the reason, if the library does not work for this
    device."""
    try:
        return cuda_library(device)
    except errors.FailedPreconditionError as error:
        LOG.warning("router replay runs without its kernels, with slower code of torch and the host: %s", error.message)
        return None


@functools.cache
def _load_cuda() -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(_native.find_file(_CUDA_NAME)))
        found = loaded.rrt_cuda_abi_version()
        if found != _CUDA_ABI_VERSION:
            raise ImportError(f"{loaded._name} must be of ABI {_CUDA_ABI_VERSION}, got {found}")
        declare(loaded, _CUDA_FUNCTIONS)
    except (ImportError, OSError) as error:
        raise unmet("cuda.library", f"{error}; the kernels are built only where nvcc is found") from error
    return loaded


def invalid(field: str, what: str, reason: str = "FIELD", sample: Any = None) -> errors.InvalidArgumentError:
    return _values.invalid(field, what, sample, reason)


def unmet(where: str, why: str, *, sample: Any = None, **detail: Any) -> errors.FailedPreconditionError:
    """Makes a FailedPreconditionError. where: its field"""
    known = sample if isinstance(sample, str) else None
    return errors.FailedPreconditionError(f"{where}: {why}", field=where, sample=known, **detail)


def check_choice(field: str, value: Any, choices: Iterable[Any]) -> None:
    if value not in choices:
        raise invalid(field, f"must be one of {', '.join(map(str, choices))}, got {value!r}")


def plain(value: Any, field: str, sample: Any = None) -> Any:
    """Converts mappings, lists, arrays and numbers to JSON values; entries of mappings that are None are left out.
    Raises InvalidArgumentError naming `field` for what JSON cannot hold. The native library checks the types."""
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
    """Returns a geometry as a JSON value. geometry: a mapping, or an object with to_json() (routing_replay.Geometry)"""
    return json.loads(geometry.to_json()) if hasattr(geometry, "to_json") else plain(geometry, "geometry")


def token_ids(tokens: ArrayLike, sample: Any) -> NDArray[np.uint32]:
    """Converts token ids [n] to uint32. Raises InvalidArgumentError naming `tokens` if they are of another shape or
    type, or if there are none."""
    said, _array = _values.native_tokens(tokens, "tokens", sample)
    name = _native.text(str(sample).encode(errors="replace").decode())

    def copy(ids: Any) -> NDArray[np.uint32]:
        return np.frombuffer(string_at(ids.data, 4 * ids.count), "<u4")

    return _native.give(LIBRARY.rr_token_ids, _native.Ids, copy, byref(said), _native.text("tokens"), name)
