"""librouting_replay_trainer_cuda.so through ctypes: its functions as routing_replay/trainer/cuda_capi.h declares them.

Loaded when something on a GPU asks for it: a host without CUDA never misses it. The kernels are speed and nothing else:
whoever can do without asks for `kernels`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import POINTER, c_int32, c_int64, c_void_p
from typing import Any

from routing_replay import _native, errors

from routing_replay_trainer import _core

LOG = logging.getLogger("routing_replay_trainer")
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
def kernels(device: int) -> ctypes.CDLL | None:
    """The same; None, and one warning that says why, where it is not fit for this device."""
    try:
        return library(device)
    except errors.FailedPreconditionError as error:
        LOG.warning("router replay: goes on without its kernels, by operators of torch and the host: %s", error.message)
        return None


@functools.cache
def _load() -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(_native.find_file(_NAME)))
        _core.declare(loaded, _FALLIBLE, {}, "rrt_cuda_", ("rrt_cuda_abi_version", _ABI_VERSION))
    except (ImportError, OSError) as error:
        raise errors.FailedPreconditionError(
            f"cuda.library: {error}; the kernels are built where nvcc is found",
            code_name="FAILED_PRECONDITION",
            field="cuda.library",
        ) from error
    return loaded
