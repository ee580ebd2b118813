"""Index buffers that passes take and give back: as many as are in flight at one time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer.fetch import Batch, Source, slabs
from routing_replay_trainer.plan import Plan


class Slots:
    """Memory by number. All of it comes to be of the size that the largest pass needed, so that from the second step of
    a run on, it is the same, at the same addresses, whatever the order of ragged micro-batches. Not thread-safe.

    allocate: makes an array of so many bytes
    drop: what happens to one that has become too small
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
        """Held, in use or free."""
        return sum(len(memory) for memory in self._memory.values())


class Buffers:
    """Index buffers of a model on the CPU: what routers replay lies in them as it was fetched."""

    def __init__(self) -> None:
        self._slots = Slots(lambda size: np.empty(size, np.uint8))

    def take(self, plan: Plan) -> int:
        return self._slots.take(plan.buffer_bytes)

    def give(self, number: int) -> None:
        self._slots.give(number)

    def fetch(self, number: int, source: Source, plan: Plan, **options: Any) -> Batch:
        """The plan's rows in the buffer of this number. options: of source.fetch"""
        return source.fetch(plan, out=self._memory(number, plan), **options)

    def empty(self, number: int, plan: Plan) -> Sequence[NDArray[Any]]:
        """What `Batch.indices` is for routers to record into."""
        memory = self._memory(number, plan)
        memory[:] = 0
        return slabs(plan, memory)

    def reader(self, number: int, plan: Plan) -> Callable[[], NDArray[np.uint8]]:
        """Gives the index buffer of the pass, on the host, when it is called; also after it was given back."""
        memory = self._memory(number, plan)
        return lambda: memory

    def tensors(self, number: int, plan: Plan) -> dict[Any, Any]:
        """What is on the model's device already, as `Pass.kept` has it."""
        return {}

    def _memory(self, number: int, plan: Plan) -> NDArray[np.uint8]:
        return self._slots[number][: plan.buffer_bytes]

    @property
    def bytes(self) -> int:
        """Held, in use or free."""
        return self._slots.bytes
