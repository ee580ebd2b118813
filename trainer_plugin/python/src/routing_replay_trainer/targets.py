"""Where the ids of every router are while a pipeline schedule runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from typing import NamedTuple

import numpy as np

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY
from routing_replay_trainer._values import INT32, INT64, integer


class PassKey(NamedTuple):
    """A micro-batch in a model chunk of the rank.

    step: which call of the schedule
    micro_batch: Megatron's current_microbatch
    chunk: its vp_stage, 0 without virtual stages
    """

    step: int
    micro_batch: int
    chunk: int

    def _core(self) -> _core.Pass:
        bounds = (INT64, INT32, INT32)
        return _core.Pass(*(integer(value, name, b) for name, value, b in zip(self._fields, self, bounds, strict=True)))


class Target(NamedTuple):
    """An index buffer, by the number it was added with, and the layer's slot in it."""

    buffer: int
    slot: int


class ReplayTargets:
    """Index buffers by (step, micro-batch, chunk, layer), in no order: forward and recompute of a layer read the same
    entry, whatever passes come between. What is not there is an error that names the key. Thread-safe."""

    def __init__(self) -> None:
        self._handle = _core.Handle(LIBRARY.rrt_replay_targets_free, LIBRARY.rrt_replay_targets_new)

    def add(self, key: PassKey, layers: Sequence[int], buffer: int, *, forward_only: bool = False) -> None:
        """The layers (global decoder layer ids) of a pass, at slots 0, 1, … of a buffer."""
        ids = np.array([integer(layer, "layers", INT32) for layer in layers], np.int32)
        LIBRARY.rrt_replay_targets_add(
            self._handle.pointer, byref(key._core()), int(forward_only), ids.ctypes.data, ids.size, buffer
        )

    def forward(self, key: PassKey, layer: int) -> Target:
        """For the one router call of a layer in the forward pass."""
        return self._ask(LIBRARY.rrt_replay_targets_forward, key, layer)

    def recompute(self, key: PassKey, layer: int) -> Target:
        """The same, as often as the backward pass asks."""
        return self._ask(LIBRARY.rrt_replay_targets_recompute, key, layer)

    def end_forward(self, key: PassKey) -> None:
        """Raises FailedPreconditionError, the pass being gone, if a router did not ask for its ids."""
        LIBRARY.rrt_replay_targets_end_forward(self._handle.pointer, byref(key._core()))

    def finish(self, key: PassKey) -> None:
        """After the backward pass: its buffer is free."""
        LIBRARY.rrt_replay_targets_finish(self._handle.pointer, byref(key._core()))

    def end_step(self, step: int) -> None:
        """Raises FailedPreconditionError naming the first pass that was not finished; the whole step is gone then."""
        LIBRARY.rrt_replay_targets_end_step(self._handle.pointer, step)

    def __len__(self) -> int:
        """Entries: passes times layers."""
        return LIBRARY.rrt_replay_targets_size(self._handle.pointer)

    def _ask(self, function: object, key: PassKey, layer: int) -> Target:
        buffer, slot = ctypes.c_int64(), ctypes.c_int32()
        function(self._handle.pointer, byref(key._core()), layer, byref(buffer), byref(slot))
        return Target(buffer.value, slot.value)
