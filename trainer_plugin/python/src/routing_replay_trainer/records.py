"""R2: what the ranks of a model replica recorded of a micro-batch, as whole rows of its samples."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer import _core, errors
from routing_replay_trainer._core import LIBRARY
from routing_replay_trainer.plan import Plan


def merge_records(records: Sequence[tuple[Plan, NDArray[np.uint8]]]) -> list[NDArray[Any]]:
    """Per sequence of the micro-batch its ids [T - 1, MoE layers, K], of dtype uint8 or uint16.

    records: of each rank, and of each of its chunks, the plan and the index buffer [plan.buffer_bytes] with what was
        recorded; in any order. The plans are of one micro-batch of whole samples and of the model's geometry, all
        layers of which they have between them

    Which rank has what follows from its plan. Where several have a row, they must have the same ids. Raises
    FailedPreconditionError naming sample, row and layer that no rank has or that two have differently, and where layers
    differ in K, as rows have no common shape then; InvalidArgumentError for records that are not of one micro-batch.
    """
    plans = (ctypes.c_void_p * len(records))(*(plan.pointer for plan, _ in records))
    kept = [np.ascontiguousarray(buffer, np.uint8) for _, buffer in records]
    buffers = (ctypes.c_void_p * len(records))(*(buffer.ctypes.data for buffer in kept))
    sizes = (ctypes.c_size_t * len(records))(*(buffer.size for buffer in kept))
    merged = _core.Handle(LIBRARY.rrt_merged_free, LIBRARY.rrt_merge_records, plans, buffers, sizes, len(records))
    layers = {layer.layer: (layer.top_k, layer.dtype) for plan, _ in records for layer in plan.layers}
    shapes = [layers[layer] for layer in sorted(layers)]
    if len({top_k for top_k, _ in shapes}) > 1:
        raise errors.FailedPreconditionError("merge: layers differ in K", code_name="FAILED_PRECONDITION")
    sequences = LIBRARY.rrt_merged_sequences(merged.pointer)
    return [_rows(merged.pointer, sequence, shapes) for sequence in range(sequences)]


def _rows(merged: int | None, sequence: int, shapes: list[tuple[int, np.dtype[Any]]]) -> NDArray[Any]:
    rows = ctypes.c_int64()
    planes = np.frombuffer(_core.give(LIBRARY.rrt_merged_sequence, merged, sequence, ctypes.byref(rows)), np.uint8)
    layers, offset = [], 0
    for top_k, dtype in shapes:
        size = rows.value * top_k * dtype.itemsize
        layers.append(planes[offset : offset + size].view(dtype).reshape(rows.value, top_k))
        offset += size
    return np.stack(layers, axis=1)
