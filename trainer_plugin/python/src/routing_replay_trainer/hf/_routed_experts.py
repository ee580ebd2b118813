"""Recorded ids as a tensor, for models that take them as an argument of forward."""

from __future__ import annotations

from typing import Any

import torch

from routing_replay_trainer._values import invalid
from routing_replay_trainer.fetch import Batch


def routed_experts(
    batch: Batch,
    *,
    batch_size: int = 1,
    num_layers: int | None = None,
    dtype: torch.dtype = torch.int32,
    device: Any = None,
) -> torch.Tensor:
    """[B, S, L, K] for `forward(…, routed_experts=…)`, where layer l takes [:, :, l, :] (prime-rl).

    batch: of a plan that has all MoE layers of the model, in batch-major row order; B·S are its local rows
    num_layers: L, dense layers counted, whose ids are 0; the last MoE layer's index + 1 if absent
    dtype: of the ids; torch.gather takes int64

    The ids of one layer are contiguous in memory, as torch.compile wants them: the tensor is a view of [L, B, S, K].
    Such a model replays every row: rows without a recorded route, and pads, have filler, K different experts each. A
    sequence whose sample is missing would have filler throughout and is refused, as are layers of different K.
    """
    layers = batch.plan.layers
    top_k = {layer.top_k for layer in layers}
    if len(top_k) != 1:
        raise invalid("batch", f"has layers of K in {sorted(top_k)}, and the tensor has one")
    if batch.fallback_sequences > 0:
        raise invalid("batch", f"{batch.fallback_sequences} sequences have no sample, and all rows would be replayed")
    count = layers[-1].layer + 1 if num_layers is None else num_layers
    if count <= layers[-1].layer:
        raise invalid("num_layers", f"{count}, and layer {layers[-1].layer} is replayed")
    rows = batch.plan.rows
    if batch_size < 1 or rows % batch_size != 0:
        raise invalid("batch_size", f"{rows} local rows are no {batch_size} sequences of one length")
    ids = torch.zeros((count, rows, top_k.pop()), dtype=dtype)
    for layer, own in zip(layers, batch.indices, strict=True):
        ids[layer.layer] = torch.from_numpy(own).to(dtype)
    return ids.view(count, batch_size, rows // batch_size, -1).to(device).permute(1, 2, 0, 3)
