"""Index buffers for a model on a GPU. Each pass needs one copy from pinned memory and one kernel launch for the rows of
all its layers. Without the kernels, the host realigns the rows and one copy transfers the result.

Copies and kernels run on a side stream, and the computing stream waits for them with an event. The host waits only if
all pinned blocks are still being copied, and then only for the oldest copy.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from routing_replay_trainer import _core
from routing_replay_trainer._buffers import Buffers, Slots
from routing_replay_trainer.fetch import Batch, Source
from routing_replay_trainer.ops import on
from routing_replay_trainer.plan import Plan

_BLOCKS = 4  # Maximum number of pinned blocks, and so of copies at the same time.


class Queue:
    """A side stream of one device with its pinned blocks. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = _core.kernels(device.index)
        self._stream = torch.cuda.Stream(device)
        # Pinned blocks, each with the event of its last copy; the block that `pinned` returned last is at the end.
        self._blocks: collections.deque[tuple[torch.Tensor, torch.cuda.Event]] = collections.deque()
        self._largest = 0
        self._landing = self.allocate(0)

    @property
    def realigns(self) -> bool:
        """True if kernels are available, so that `realign` may be called."""
        return self._kernels is not None

    def allocate(self, size: int) -> torch.Tensor:
        """Returns memory [size] of dtype uint8 on the device, allocated on this queue's stream."""
        with torch.cuda.stream(self._stream):
            return _bytes(size, device=self._device)

    def drop(self, memory: torch.Tensor) -> None:
        """Call this before `memory` is freed, so that it is reused only after the computing stream's work so far."""
        memory.record_stream(torch.cuda.current_stream(self._device))

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Returns a host block of at least this size for the next `send`. Earlier copies from this block have finished.
        The block's address is a multiple of 16."""
        self._largest = max(self._largest, size)
        if len(self._blocks) < _BLOCKS and not (self._blocks and self._blocks[0][1].query()):
            self._blocks.append((self._pinned(), torch.cuda.Event()))
        else:
            memory, copied = self._blocks.popleft()
            copied.synchronize()
            self._blocks.append((memory if len(memory) == self._largest else self._pinned(), copied))
        return self._blocks[-1][0].numpy()

    def send(self, size: int) -> torch.Tensor:
        """Copies the first `size` bytes of the block that `pinned` returned last to the device. The result may be used
        on the side stream only."""
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
        where = indices.data_ptr(), states.data_ptr(), self._stream.cuda_stream
        with on(self._device):
            self._kernels.rrt_cuda_realign(block.data_ptr(), staging_offset, units, *where)

    def copy(self, to: torch.Tensor, block: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            to.copy_(block, non_blocking=True)

    def begin(self, given_back: Any) -> None:
        """Makes the side stream wait for the event `given_back` of the computing stream, because later work on the side
        stream overwrites memory that was given back."""
        if given_back is not None:
            self._stream.wait_event(given_back)

    def hand_over(self) -> None:
        """Makes the computing stream wait for what was queued on the side stream."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def given_back(self) -> Any:
        """Records an event after the work that is queued on the computing stream so far."""
        return torch.cuda.current_stream(self._device).record_event()

    def _pinned(self) -> torch.Tensor:
        # device="cpu" is needed because torch.set_default_device may name another device.
        return _bytes(self._largest, device="cpu", pin_memory=True)


def _bytes(size: int, **where: Any) -> torch.Tensor:
    """Makes normal tensors even inside torch.inference_mode(), because later passes may write to the tensors outside of
    it.
    """
    with torch.inference_mode(False):
        return torch.empty(size, dtype=torch.uint8, **where)


def buffers_for(module: Any) -> Any:
    """Makes the buffers for the device of a model's parameters: `Buffers` or `DeviceBuffers`."""
    device = device_of(module)
    return DeviceBuffers(Queue(device)) if device is not None and device.type == "cuda" else Buffers()


def device_of(module: Any) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)


class DeviceBuffers:
    """As `Buffers`, but on a GPU. A buffer holds the ids of all layers, followed by the row states; batches have no ids
    on the host. Not thread-safe."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.slots = Slots(queue.allocate, queue.drop)
        self._given_back: dict[int, Any] = {}

    def take(self, plan: Plan) -> int:
        return self.slots.take(_states_offset(plan) + plan.rows)

    def give(self, number: int) -> None:
        self._given_back[number] = self._queue.given_back()
        self.slots.give(number)

    def fetch(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        if not self._queue.realigns:
            return self._copy(number, source, plan, **options)
        staged = source.stage(plan, **options)
        batch, shape = staged.write(self._queue.pinned(staged.shape.bytes)), staged.shape
        if plan.rows > 0:
            self._queue.begin(self._given_back.pop(number, None))
            block = self._queue.send(shape.bytes)
            self._queue.realign(block, shape.staging_offset, shape.units, *self._parts(number, plan))
            self._queue.hand_over()
        return batch

    def _copy(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        """Fetches without kernels: realigns the rows on the host and copies them to the device."""
        offset = _states_offset(plan)
        block = self._queue.pinned(offset + plan.rows)[: offset + plan.rows]
        batch = source.fetch(plan, out=block[: plan.buffer_bytes], **options)
        block[offset:] = batch.states
        self._queue.begin(self._given_back.pop(number, None))
        self._queue.copy(self.slots[number][: len(block)], self._queue.send(len(block)))
        self._queue.hand_over()
        return replace(batch, indices=())

    def empty(self, number: int, plan: Plan) -> Sequence[NDArray[Any]]:
        # Routers record on the computing stream, which has used the buffer before: no event is needed to wait for that.
        self._given_back.pop(number, None)
        self._queue.hand_over()
        self.slots[number].zero_()
        return ()

    def reader(self, number: int, plan: Plan) -> Callable[[], NDArray[np.uint8]]:
        """Returns a function that copies the ids of the pass to host memory and waits for the copy."""
        memory = self.slots[number][: plan.buffer_bytes]
        return lambda: memory.cpu().numpy()

    def tensors(self, number: int, plan: Plan) -> dict[Any, Any]:
        memory = self.slots[number]
        _, states = self._parts(number, plan)
        kept: dict[Any, Any] = {("states", memory.device): states}
        for slot, layer in enumerate(plan.layers):
            ids = memory[layer.offset : layer.offset + plan.rows * layer.top_k * layer.dtype.itemsize]
            dtype = torch.uint8 if layer.dtype.itemsize == 1 else torch.uint16
            kept["ids", slot, memory.device] = ids.view(dtype).view(plan.rows, layer.top_k)
        return kept

    def _parts(self, number: int, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the two parts of a buffer: the ids and the row states."""
        memory, offset = self.slots[number], _states_offset(plan)
        return memory[: plan.buffer_bytes], memory[offset : offset + plan.rows]


def _states_offset(plan: Plan) -> int:
    """Offset of the states after the ids: a multiple of 16, for wide copies."""
    return (plan.buffer_bytes + 15) // 16 * 16
