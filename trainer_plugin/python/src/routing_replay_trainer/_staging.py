"""How a GPU gets what it realigns: one copy from pinned memory and one kernel on a stream of their own, handed over to
the stream that computes by an event. The host waits for the copy of an earlier pass alone, and only where all pinned
blocks are still being copied.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from routing_replay_trainer import _cuda
from routing_replay_trainer._launch import on

_BLOCKS = 4  # Pinned blocks at most: copies under way at one time.


class Queue:
    """A side stream of one device with its pinned blocks. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = _cuda.kernels(device.index)
        self._stream = torch.cuda.Stream(device)
        # Of equal size, each with the event that its copy has ended; the one that was last taken is the last.
        self._blocks: collections.deque[tuple[torch.Tensor, torch.cuda.Event]] = collections.deque()
        self._largest = 0
        self._landing = self.allocate(0)

    @property
    def realigns(self) -> bool:
        """Whether `realign` may be called."""
        return self._kernels is not None

    def allocate(self, size: int) -> torch.Tensor:
        """[size] uint8 on the device, for this queue's work first."""
        with torch.cuda.stream(self._stream):
            return _bytes(size, device=self._device)

    def drop(self, memory: torch.Tensor) -> None:
        """Its memory may serve others when the stream that computes is through with it."""
        memory.record_stream(torch.cuda.current_stream(self._device))

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """A block of at least this size on the host, whose earlier copy has ended, for the next `send`. Its address is
        a multiple of 16."""
        self._largest = max(self._largest, size)
        if len(self._blocks) < _BLOCKS and not (self._blocks and self._blocks[0][1].query()):
            self._blocks.append((self._pinned(), torch.cuda.Event()))
        else:
            memory, copied = self._blocks.popleft()
            copied.synchronize()
            self._blocks.append((memory if len(memory) == self._largest else self._pinned(), copied))
        return self._blocks[-1][0].numpy()

    def send(self, size: int) -> torch.Tensor:
        """The first bytes of the block that was last taken, on the device, for this queue's work alone."""
        memory, copied = self._blocks[-1]
        if len(self._landing) < size:
            self._landing = self.allocate(len(memory))
        landing = self._landing[:size]
        with torch.cuda.stream(self._stream):
            landing.copy_(memory[:size], non_blocking=True)
            copied.record(self._stream)
        return landing

    def realign(self, block: torch.Tensor, staging_offset: int, units: int, indices: Any, states: Any) -> None:
        assert self._kernels is not None
        with on(self._device):
            self._kernels.rrt_cuda_realign(
                block.data_ptr(),
                staging_offset,
                units,
                indices.data_ptr(),
                states.data_ptr(),
                self._stream.cuda_stream,
            )

    def copy(self, to: torch.Tensor, block: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            to.copy_(block, non_blocking=True)

    def begin(self, given_back: Any) -> None:
        """What is queued from here on writes to memory that was given back."""
        if given_back is not None:
            self._stream.wait_event(given_back)

    def hand_over(self) -> None:
        """What the stream that computes does from here on sees what was queued."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def given_back(self) -> Any:
        """When the stream that computes is through with what it has been given so far."""
        return torch.cuda.current_stream(self._device).record_event()

    def _pinned(self) -> torch.Tensor:
        # Not where torch.set_default_device says.
        return _bytes(self._largest, device="cpu", pin_memory=True)

    @property
    def pinned_bytes(self) -> int:
        return sum(len(memory) for memory, _ in self._blocks)


def _bytes(size: int, **where: Any) -> torch.Tensor:
    """They outlive a torch.inference_mode() around the first pass, and the next one writes to them outside of it."""
    with torch.inference_mode(False):
        return torch.empty(size, dtype=torch.uint8, **where)
