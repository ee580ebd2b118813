"""Index buffers of a model on a GPU: one copy and one launch per pass bring everything of all its layers; without the
kernels, one copy of what the host has realigned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from routing_replay_trainer._buffers import Buffers, Slots
from routing_replay_trainer._staging import Queue
from routing_replay_trainer.fetch import Batch, Source, slabs
from routing_replay_trainer.plan import Plan


def buffers_for(module: Any) -> Any:
    """Those for the device of a model's parameters: `Buffers` or `DeviceBuffers`."""
    device = device_of(module)
    return DeviceBuffers(Queue(device)) if device is not None and device.type == "cuda" else Buffers()


def device_of(module: Any) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)


class DeviceBuffers:
    """As `Buffers`. A buffer holds the ids of all layers and, behind them, the row states. Not thread-safe."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._slots = Slots(queue.allocate, queue.drop)
        self._given_back: dict[int, Any] = {}

    def take(self, plan: Plan) -> int:
        return self._slots.take(_states_offset(plan) + plan.rows)

    def give(self, number: int) -> None:
        self._given_back[number] = self._queue.given_back()
        self._slots.give(number)

    def fetch(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        stage = getattr(source, "stage", None) if self._queue.realigns else None
        if stage is None:
            return self._copy(number, source, plan, **options)
        staged = stage(plan, **options)
        batch = staged.write(self._queue.pinned(staged.bytes), _OnDevice(plan, self.reader(number, plan)))
        if plan.rows > 0:
            self._queue.begin(self._given_back.pop(number, None))
            block = self._queue.send(staged.bytes)
            self._queue.realign(block, staged.staging_offset, staged.units, *self._parts(number, plan))
            self._queue.hand_over()
        return batch

    def _copy(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        """Of what is realigned on the host."""
        offset = _states_offset(plan)
        block = self._queue.pinned(offset + plan.rows)[: offset + plan.rows]
        batch = source.fetch(plan, out=block[: plan.buffer_bytes], **options)
        block[offset:] = batch.states
        self._queue.begin(self._given_back.pop(number, None))
        self._queue.copy(self._slots[number][: len(block)], self._queue.send(len(block)))
        self._queue.hand_over()
        return replace(batch, indices=_OnDevice(plan, self.reader(number, plan)))

    def empty(self, number: int, plan: Plan) -> Sequence[NDArray[Any]]:
        self._given_back.pop(number, None)  # By the stream that computes, which records into it.
        self._queue.hand_over()
        self._slots[number].zero_()
        return _OnDevice(plan, self.reader(number, plan))

    def reader(self, number: int, plan: Plan) -> Callable[[], NDArray[np.uint8]]:
        """What it gives is a copy, for which the host waits."""
        memory = self._slots[number][: plan.buffer_bytes]
        return lambda: memory.cpu().numpy()

    def tensors(self, number: int, plan: Plan) -> dict[Any, Any]:
        memory = self._slots[number]
        _, states = self._parts(number, plan)
        kept: dict[Any, Any] = {("states", memory.device): states}
        for slot, layer in enumerate(plan.layers):
            ids = memory[layer.offset : layer.offset + plan.rows * layer.top_k * layer.dtype.itemsize]
            dtype = torch.uint8 if layer.dtype.itemsize == 1 else torch.uint16
            kept["ids", slot, memory.device] = ids.view(dtype).view(plan.rows, layer.top_k)
        return kept

    @property
    def bytes(self) -> int:
        """Held, in use or free."""
        return self._slots.bytes

    def _parts(self, number: int, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and states."""
        memory, offset = self._slots[number], _states_offset(plan)
        return memory[: plan.buffer_bytes], memory[offset : offset + plan.rows]


class _OnDevice(Sequence[NDArray[Any]]):
    """The ids of each layer for whoever wants them on the host: copied when asked for, as long as the pass lasts."""

    def __init__(self, plan: Plan, read: Callable[[], NDArray[np.uint8]]) -> None:
        self._plan = plan
        self._read = read

    def __len__(self) -> int:
        return len(self._plan.layers)

    def __getitem__(self, slot: Any) -> Any:
        return slabs(self._plan, self._read())[slot]


def _states_offset(plan: Plan) -> int:
    """Of the states behind the ids: a multiple of 16, for copies in wide units."""
    return (plan.buffer_bytes + 15) // 16 * 16
