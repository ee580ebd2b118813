"""The replay plan: which layers and rows one rank replays in one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routing_replay._model_config import Reader, of_megatron
from routing_replay._values import INT32, integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, geometry_json, invalid, plain


@dataclass(frozen=True)
class Layer:
    """A MoE layer that the rank owns, and its slab in the rank's index buffer.

    layer: global decoder layer id
    ordinal: index of the layer among all MoE layers
    chunk: virtual stage of the rank
    num_experts, top_k: E and K
    offset: where its ids [rows][K] begin in the index buffer, in bytes
    dtype: of its ids: uint8 if E is at most 256, else uint16
    """

    layer: int
    ordinal: int
    chunk: int
    num_experts: int
    top_k: int
    offset: int
    dtype: np.dtype[Any]


def geometry_of(num_layers: int, layers: Sequence[Any]) -> dict[str, Any]:
    """Returns a model's geometry. layers: its MoE layers, with the fields layer, num_experts and top_k of `Layer`"""
    return {
        "num_layers": num_layers,
        "moe_layers": [layer.layer for layer in layers],
        "num_experts": [layer.num_experts for layer in layers],
        "top_k": [layer.top_k for layer in layers],
    }


class LocalRows(NamedTuple):
    """The row map: which token each local row shows. All arrays have one entry per local row.

    sequence: int32, index of the sequence in the micro-batch; -1 for a pad
    row: int32, token position in the sequence; -1 for a pad
    state: uint8: REPLAYED, UNRECORDED (a real token without a route), PAD or LIVE (a token that belongs to no sample).
        If a sample turns out to be incomplete, more rows become UNRECORDED: see `Batch.states`
    """

    sequence: NDArray[np.int32]
    row: NDArray[np.int32]
    state: NDArray[np.uint8]


class Plan:
    """Everything that one rank needs to replay one micro-batch. Immutable; may be shared between threads.

    geometry: {"num_layers", "num_experts", "top_k", "moe_layers"} or a routing_replay.Geometry
    micro_batch, rank, split, native_layers, ep_size: as rrt_plan_new (routing_replay/trainer/capi.h) and `rrctl plan`
        take them
    megatron: the fields of Megatron-Core's TransformerConfig, from which split and geometry follow. Then leave split
        out, and pass as geometry None or the run's geometry. The run may lack hash layers and native_layers

    Raises InvalidArgumentError naming the field.

    described: the plan as rrt_plan_new describes it: "row_map", "layout", "warnings", …
    layers, rows, buffer_bytes: the planned layers, the number of local rows (pads included), the size of the index
        buffer
    layers_alike: True if all layers have the same K and dtype
    pointer: address of the native object, which lives as long as the plan
    """

    def __init__(
        self,
        geometry: Any,
        micro_batch: Mapping[str, Any],
        *,
        rank: Mapping[str, Any] | None = None,
        split: Mapping[str, Any] | None = None,
        megatron: Mapping[str, Any] | MegatronLayers | None = None,
        native_layers: Sequence[int] | None = None,
        ep_size: int = 1,
    ) -> None:
        given = {"micro_batch": micro_batch, "split": split, "rank": rank, "native_layers": native_layers}
        description: dict[str, Any] = {} if geometry is None else {"geometry": geometry_json(geometry)}
        if megatron is not None:
            if split is not None:
                raise invalid("megatron", "determines the split: leave the argument split out")
            layers = megatron if isinstance(megatron, MegatronLayers) else MegatronLayers.of(megatron)
            if geometry is not None:
                description["run_geometry"] = description["geometry"]
            description["geometry"] = layers.geometry
            given |= {"split": layers.split, "hash_layers": layers.hash_layers}
        description |= {field: plain(value, field) for field, value in given.items() if value is not None}
        size = integer(ep_size, "ep_size", INT32)
        self._handle, self.described = _core.make_described(LIBRARY.rrt_plan_new, _core.text(description), size)
        self.pointer = self._handle.pointer
        self.buffer_bytes: int = self.described["buffer_bytes"]
        self.rows: int = self.described["row_map"]["rows"]
        self.layers = tuple(_layer(**layer) for layer in self.described["layers"])
        # Such layers follow each other in the index buffer without gaps, so they form one array.
        self.layers_alike = len({(layer.top_k, layer.dtype) for layer in self.layers}) == 1

    def local_rows(self) -> LocalRows:
        """The row map, one entry per local row."""
        out = LocalRows(np.empty(self.rows, np.int32), np.empty(self.rows, np.int32), np.empty(self.rows, np.uint8))
        LIBRARY.rrt_plan_row_map(self.pointer, *(column.ctypes.data for column in out), self.rows)
        return out


def _layer(id_bytes: int, **fields: Any) -> Layer:
    return Layer(dtype=np.dtype("u1" if id_bytes == 1 else "<u2"), **fields)


plan = Plan


class MegatronLayers(NamedTuple):
    """Reads a model's routing and the split of its layers from the fields of a TransformerConfig."""

    geometry: dict[str, Any]
    split: dict[str, Any]
    hash_layers: list[int]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> MegatronLayers:
        """Reads the fields that determine the layers. Others are ignored, and None counts as absent."""
        reader = Reader(plain(config, "megatron"), "megatron")
        geometry = of_megatron(reader)._asdict()
        return cls(geometry, _split_of(reader), geometry.pop("hash_layers"))


_LAYOUT = "pipeline_model_parallel_layout"
_VIRTUAL = "virtual_pipeline_model_parallel_size"
# Fields of a split, and their names in Megatron-Core's configuration and arguments.
_SIZES = {
    "pipeline_size": ("pipeline_model_parallel_size",),
    "virtual_stages": (_VIRTUAL, "num_virtual_stages_per_pipeline_rank"),
    "first_stage_layers": ("num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"),
    "last_stage_layers": ("num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"),
    "mtp_num_layers": ("mtp_num_layers",),
}
_FLAGS = {
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
}
_HYBRID = ("hybrid_layer_pattern", "hybrid_override_pattern")


def _split_of(reader: Reader) -> dict[str, Any]:
    split: dict[str, Any] = {field: reader.integer(*keys) for field, keys in _SIZES.items()}
    split |= {field: reader.flag(key) for field, key in _FLAGS.items()}
    split |= {"layout": reader.find(_LAYOUT), "hybrid_pattern": reader.text(*_HYBRID)}
    per_stage = "num_layers_per_virtual_pipeline_stage"
    if split["virtual_stages"] is None and split["layout"] is None and reader.has(per_stage):
        # Megatron itself derives the number of virtual stages from this option and from others.
        raise reader.error(per_stage, f"does not give the number of virtual stages: set {_VIRTUAL}")
    return {field: value for field, value in split.items() if value is not None}
