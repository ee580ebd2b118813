"""The side stream of a GPU, simulated on the CPU: everything is done at once, on host tensors."""

from __future__ import annotations

import collections
import ctypes
from typing import Any

import numpy as np
import torch
from routing_replay import _native

_REALIGN = ctypes.CDLL(str(_native.find_file("librouting_replay_test_host.so"))).host_realign
_REALIGN.argtypes, _REALIGN.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p), None


class HostQueue:
    """Like routing_replay_trainer._device_buffers.Queue.

    did: how often each of its functions was called
    """

    def __init__(self, realigns: bool = True) -> None:
        self.realigns = realigns
        self.did: collections.Counter[str] = collections.Counter()
        self._block = np.empty(0, np.uint8)

    def allocate(self, size: int) -> torch.Tensor:
        self.did["allocate"] += 1
        return torch.full((size,), 0xCD, dtype=torch.uint8)

    def drop(self, memory: torch.Tensor) -> None:
        memory.fill_(0xEE)

    def pinned(self, size: int) -> np.ndarray:
        room = np.full(size + 16, 0xAB, np.uint8)
        at = -room.ctypes.data % 16
        self._block = room[at : at + size]
        return self._block

    def send(self, size: int) -> torch.Tensor:
        self.did["send"] += 1
        # A GPU's queue returns device memory; here the block itself will do.
        return torch.from_numpy(self._block[:size])

    def realign(self, block: torch.Tensor, staging_offset: int, units: int, indices: Any, states: Any) -> None:
        self.did["realign"] += 1
        assert units > 0
        _REALIGN(block.data_ptr(), staging_offset, indices.data_ptr(), states.data_ptr())

    def copy(self, to: torch.Tensor, block: torch.Tensor) -> None:
        self.did["copy"] += 1
        to.copy_(block)

    def begin(self, given_back: Any) -> None:
        assert given_back in (None, "given back")

    def hand_over(self) -> None:
        self.did["hand over"] += 1

    def given_back(self) -> Any:
        return "given back"
