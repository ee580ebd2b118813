"""Index buffers that passes take and give back: as many as are in flight at one time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Buffers:
    """Not thread-safe. All buffers come to be of the size that the largest pass needed, so that from the second step of
    a run on, their memory is the same whatever the order of ragged micro-batches."""

    def __init__(self) -> None:
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._free: list[int] = []
        self._next = 0
        self._largest = 0

    def take(self, size: int) -> tuple[int, NDArray[np.uint8]]:
        """A number, and memory of just this size."""
        if size > self._largest:
            self._largest = size
            for number in self._free:
                del self._memory[number]
            self._free.clear()
        if self._free:
            number = self._free.pop()
        else:
            number, self._next = self._next, self._next + 1
            self._memory[number] = np.empty(self._largest, np.uint8)
        return number, self._memory[number][:size]

    def give(self, number: int) -> None:
        if self._memory[number].size == self._largest:
            self._free.append(number)
        else:
            del self._memory[number]

    @property
    def bytes(self) -> int:
        """Held, in use or free."""
        return sum(memory.size for memory in self._memory.values())
