"""Functions of the core on tensors: on the CPU at once, on a GPU as a kernel on torch's current stream.

Nothing here waits for a GPU, copies from it or to it, or makes a stream.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from routing_replay_trainer import _cuda
from routing_replay_trainer._core import LIBRARY


def has_code(device: torch.device) -> bool:
    """Whether `launch` can be called for tensors there."""
    return device.type == "cpu" or (device.type == "cuda" and _cuda.kernels(device.index) is not None)


def launch(name: str, device: torch.device, *arguments: Any) -> None:
    """rrt_NAME on the CPU; rrt_cuda_NAME, which takes the stream besides, on a GPU."""
    if device.type == "cpu":
        getattr(LIBRARY, f"rrt_{name}")(*arguments)
        return
    function = getattr(_cuda.library(device.index), f"rrt_cuda_{name}")
    with on(device):
        function(*arguments, torch.cuda.current_stream(device).cuda_stream)


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """With the device as the current one."""
    return contextlib.nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def zeros(count: int, device: torch.device) -> torch.Tensor:
    """[count] int64, for a call's counters."""
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.int64, device=device)
    return _CLEARED.take(count, device)


class _Cleared:
    """Zeros in store, so that a call's counters cost it no launch of their own. Thread-safe."""

    _CALLS = 512

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: dict[Any, list[torch.Tensor]] = {}

    def take(self, count: int, device: torch.device) -> torch.Tensor:
        # What one stream has cleared is not yet zero on another.
        key = (count, device.index, torch.cuda.current_stream(device).cuda_stream)
        with self._lock:
            left = self._store.get(key)
            if not left:
                # They outlive a torch.inference_mode() around this call.
                with torch.inference_mode(False), torch.no_grad():
                    block = torch.zeros((self._CALLS, count), dtype=torch.int64, device=device)
                    left = self._store[key] = list(block.unbind(0))
            return left.pop()


_CLEARED = _Cleared()
