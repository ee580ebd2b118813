"""A pool of index buffers for passes. It grows to the largest number of passes in progress at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer.fetch import Batch, Source, slabs
from routing_replay_trainer.plan import Plan


class Slots:
    """Numbered buffers, each made as large as the largest pass so far needs; smaller ones are dropped once they are
    free. So passes use the same addresses again, in whatever order their sizes come. Not thread-safe.

    allocate: makes an array of a given number of bytes
    drop: called with an array that is smaller than the largest pass needs, and is not used again
    """

    def __init__(self, allocate: Callable[[int], Any], drop: Callable[[Any], None] = lambda memory: None) -> None:
        self._allocate = allocate
        self._drop = drop
        self._memory: dict[int, Any] = {}
        self._free: list[int] = []
        self._next = 0
        self._largest = 0

    def take(self, size: int) -> int:
        if size > self._largest:
            self._largest = size
            for number in self._free:
                self._drop(self._memory.pop(number))
            self._free.clear()
        if self._free:
            return self._free.pop()
        number, self._next = self._next, self._next + 1
        self._memory[number] = self._allocate(self._largest)
        return number

    def give(self, number: int) -> None:
        if len(self._memory[number]) == self._largest:
            self._free.append(number)
        else:
            self._drop(self._memory.pop(number))

    def __getitem__(self, number: int) -> Any:
        return self._memory[number]

    @property
    def bytes(self) -> int:
        """Size of all buffers together, in use or free."""
        return sum(len(memory) for memory in self._memory.values())


class Buffers:
    """Index buffers for a model on the CPU, whose routers read the ids directly from them."""

    def __init__(self) -> None:
        self.slots = Slots(lambda size: np.empty(size, np.uint8))

    def take(self, plan: Plan) -> int:
        return self.slots.take(plan.buffer_bytes)

    def give(self, number: int) -> None:
        self.slots.give(number)

    def fetch(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        """Fetches the plan's rows into the buffer with this number. `options` are passed to source.fetch."""
        return source.fetch(plan, out=self._memory(number, plan), **options)

    def empty(self, number: int, plan: Plan) -> Sequence[NDArray[Any]]:
        """Returns zeroed arrays in the form of `Batch.indices`. Routers record their choice into these."""
        memory = self._memory(number, plan)
        memory[:] = 0
        return slabs(plan, memory)

    def reader(self, number: int, plan: Plan) -> Callable[[], NDArray[np.uint8]]:
        """Returns a function that returns the pass's index buffer in host memory. It may be called after the buffer was
        given back, but before the next pass takes it."""
        memory = self._memory(number, plan)
        return lambda: memory

    def tensors(self, number: int, plan: Plan) -> dict[Any, Any]:
        """Returns the tensors of the pass that are already on the model's device, as the first entries of `Pass.kept`.
        A buffer in host memory has none."""
        return {}

    def _memory(self, number: int, plan: Plan) -> NDArray[np.uint8]:
        return self.slots[number][: plan.buffer_bytes]
