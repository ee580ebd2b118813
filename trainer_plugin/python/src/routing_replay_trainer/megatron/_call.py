"""Reads from the forward call of a model chunk how many rows its micro-batch has, and where the sequences are.

A GPTModel or HybridModel gets `packed_seq_params`, `attention_mask` and `padding_mask` on every pipeline stage. The
shape is that of the tokens, or, on later stages, of the hidden states that were passed to the chunk. Boundaries on a
device are read only if the arguments of `micro_batch` give no layout that fits, because reading makes the host wait for
all work queued on the device. Does not need torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing_replay._values import integer

from routing_replay_trainer._micro_batch import host, is_packed, packed_layout


@dataclass(frozen=True)
class Call:
    """What the call of a model chunk says; reading these fields does not wait for a device.

    rows: number of rows that the rank's routers will see; None if the call does not say
    layout: fields of a plan's `micro_batch`, from shapes and sizes
    packed, mask: the packed_seq_params and the mask of the call, if any
    """

    rows: int | None
    layout: dict[str, Any]
    packed: Any
    mask: Any = None

    @property
    def on_host(self) -> bool:
        """True if `packed` and `mask` are in host memory, so that `read` does not wait for a device."""
        tensor = self.mask if self.packed is None else self.packed.cu_seqlens_q
        return getattr(getattr(tensor, "device", None), "type", "cpu") == "cpu"

    def read(self) -> dict[str, Any]:
        """Returns the arguments `called` and `mask` of `of_megatron`. Waits for the device unless `on_host`."""
        if self.packed is None:
            return {"called": self.layout, "mask": None if self.mask is None else host(self.mask)}
        said = packed_layout(self.packed)
        total = max(said["total_rows"], self.layout.get("total_rows", 0))  # There may be rows after the last boundary.
        return {"called": {**said, **self.layout, "total_rows": total}}


def read_call(module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], parallel: Any) -> Call:
    """parallel: cp_size, tp_size and sequence_parallel of the model"""
    given = dict(zip(_parameters(type(module)), arguments, strict=False)) | dict(keywords)
    packed = given.get("packed_seq_params")
    packed = packed if is_packed(packed) else None
    layout: dict[str, Any] = {}
    size = getattr(packed, "local_cp_size", None)
    if size is not None:  # A micro-batch with its own process groups.
        group = getattr(packed, "cp_group", None)
        layout |= {"local_cp_size": integer(size, "packed_seq_params.local_cp_size")}
        layout |= {} if group is None else {"cp_rank": group.rank()}
    size = layout.get("local_cp_size", parallel["cp_size"])
    slices = parallel["tp_size"] if parallel["sequence_parallel"] else 1
    batch, tokens = _shape(module, given, slices)
    if batch is None:
        return Call(None, layout, packed)
    rows = batch * tokens // slices
    if packed is not None:
        return Call(rows, layout | {"total_rows": batch * tokens * size}, packed)
    layout |= {"format": "BSHD", "batch_size": batch, "padded_length": tokens * size}
    return Call(rows, layout, None, _mask(given, (batch, tokens * size)))


@functools.cache
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _shape(module: Any, given: Mapping[str, Any], slices: int) -> tuple[Any, Any]:
    """Returns the batch size b, and how many tokens of each of the b rows this rank has before sequence parallelism
    slices them; (None, None) if the call does not say. A packed stream is one row."""
    hidden = given.get("decoder_input")
    if hidden is None and not getattr(module, "pre_process", True):
        hidden = getattr(getattr(module, "decoder", None), "input_tensor", None)
    if hidden is not None:  # [s, b, h]
        return hidden.shape[1], hidden.shape[0] * slices
    ids = given.get("input_ids")
    return tuple(ids.shape) if getattr(ids, "ndim", 0) == 2 else (None, None)


def _mask(given: Mapping[str, Any], shape: tuple[int, int]) -> Any:
    """Returns a mask [b, s] that is true at tokens; None if the call has none. Megatron's own attention masks
    [b, 1, s, s] do not count, because they do not say where sequences end."""
    mask, padding = given.get("attention_mask"), given.get("padding_mask")
    if getattr(mask, "ndim", 0) == 2 and tuple(mask.shape) == shape:
        return mask
    return ~padding if getattr(padding, "ndim", 0) == 2 and tuple(padding.shape) == shape else None
