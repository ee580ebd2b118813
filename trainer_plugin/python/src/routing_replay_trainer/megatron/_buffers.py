"""Index buffers that passes take and give back: as many as are in flight at one time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Buffers:
    """Not thread-safe. A buffer that turns out too small makes way for a larger one, so that no more bytes are held
    than the largest passes need that were in flight together."""

    def __init__(self) -> None:
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._free: list[int] = []
        self._next = 0

    def take(self, size: int) -> tuple[int, NDArray[np.uint8]]:
        """A number, and memory of just this size."""
        fitting = [number for number in self._free if self._memory[number].size >= size]
        if fitting:
            number = min(fitting, key=lambda candidate: self._memory[candidate].size)
            self._free.remove(number)
        else:
            if self._free:
                del self._memory[self._free.pop()]
            number, self._next = self._next, self._next + 1
            self._memory[number] = np.empty(size, np.uint8)
        return number, self._memory[number][:size]

    def give(self, number: int) -> None:
        self._free.append(number)

    @property
    def bytes(self) -> int:
        return sum(memory.size for memory in self._memory.values())
