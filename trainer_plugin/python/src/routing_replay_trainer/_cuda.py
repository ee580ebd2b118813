"""librouting_replay_trainer_cuda.so through ctypes: its functions as routing_replay/trainer/cuda_capi.h declares them.

Loaded when something on a GPU asks for it: a host without CUDA never misses it.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_int32, c_int64, c_void_p
from typing import Any

from routing_replay_trainer import _core, errors

_ABI_VERSION = 1
_NAME = "librouting_replay_trainer_cuda.so"

_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "rrt_cuda_check_device": (c_int32,),
    "rrt_cuda_realign": (c_void_p, c_int64, c_int64, *(c_void_p,) * 3),
    "rrt_cuda_router_forward": (POINTER(_core.Router), c_int64, *(c_void_p,) * 10),
    "rrt_cuda_router_backward": (POINTER(_core.Router), c_int64, *(c_void_p,) * 6),
    "rrt_cuda_compare": (POINTER(_core.Router), c_int64, *(c_void_p,) * 7),
}


@functools.cache
def library(device: int) -> ctypes.CDLL:
    """The library, fit for this device. Its functions are called with the device as the current one.

    Raises FailedPreconditionError whose field is what is missing: "cuda.library" (this package was built without it),
    "cuda.driver", "cuda.device", "cuda.architecture".
    """
    loaded = _load()
    loaded.rrt_cuda_check_device(device)
    return loaded


@functools.cache
def _load() -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(_core.find(_NAME)))
        _core.declare(loaded, _FALLIBLE, {}, "rrt_cuda_", _ABI_VERSION)
    except (ImportError, OSError) as error:
        raise errors.FailedPreconditionError(
            f"cuda.library: {error}; tensors on a GPU need the kernels, which are built where nvcc is found",
            code_name="FAILED_PRECONDITION",
            field="cuda.library",
        ) from error
    return loaded
