"""Small models of Megatron-Core's real routers that run on a CPU: a layer is a router and one matrix per expert."""

from __future__ import annotations

import types
import unittest
import warnings
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
    from megatron.core.transformer.transformer_config import TransformerConfig

HIDDEN = 16


def make_config(**options: Any) -> TransformerConfig:
    options = {
        "num_layers": 4,
        "hidden_size": HIDDEN,
        "num_attention_heads": 2,
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_enable_routing_replay": True,
        "moe_router_load_balancing_type": "none",
        "add_bias_linear": False,
        "pipeline_dtype": torch.float32,
    } | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransformerConfig(**options)


class OneRank:
    """A process group of this process alone."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


GROUPS = types.SimpleNamespace(tp=OneRank(), cp=OneRank(), tp_cp=OneRank(), tp_dp_cp=OneRank())


class CpuRouter(TopKRouter):
    """TopKRouter whose gate does not move its weights to a device."""

    def gating(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, self.weight.to(input.dtype))


class MoeLayer(nn.Module):
    def __init__(self, config: TransformerConfig, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.checkpointed = "moe" in (config.recompute_modules or ())
        self.mlp = nn.Module()
        self.mlp.router = CpuRouter(config, GROUPS)
        self.mlp.router.set_layer_number(number)
        self.experts = nn.Parameter(torch.randn(config.num_moe_experts, HIDDEN, HIDDEN) * 0.2)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # (probs, map) of every router call.

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.checkpointed and self.training:
            return hidden + megatron_random.checkpoint(self._moe, False, hidden)
        return hidden + self._moe(hidden)

    def _moe(self, hidden: torch.Tensor) -> torch.Tensor:
        probs, routing_map = self.mlp.router(hidden)
        self.seen.append((probs.detach(), routing_map))
        rows = hidden.reshape(-1, HIDDEN)
        return torch.einsum("ne,nh,ehd->nd", probs, rows, self.experts).tanh().view(hidden.shape)


class DenseLayer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.linear(hidden)


class Model(nn.Module):
    """A chunk with the layers of these numbers, dense or MoE as the configuration says."""

    def __init__(self, config: TransformerConfig, numbers: list[int]) -> None:
        super().__init__()
        self.config = config
        pattern = config.moe_layer_freq
        pattern = pattern if isinstance(pattern, list) else [i % pattern == 0 for i in range(config.num_layers)]
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(
            MoeLayer(config, number) if pattern[number - 1] else DenseLayer(number) for number in numbers
        )

    def set_input_tensor(self, tensor: Any) -> None:
        pass

    def forward(self, hidden: torch.Tensor, packed_seq_params: Any = None) -> torch.Tensor:
        if self.config.recompute_granularity == "full" and self.training:
            return megatron_random.checkpoint(self._layers, False, hidden)
        return self._layers(hidden)

    def _layers(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.decoder.layers:
            hidden = layer(hidden)
        return hidden


def set_up(case: unittest.TestCase) -> None:
    """Seeds torch, and leaves out what Megatron's checkpoint keeps of the random state of a CUDA device."""
    torch.manual_seed(3)
    for name, stand_in in (
        ("_get_all_rng_states", lambda: ()),
        ("_set_all_rng_states", lambda *states: None),
        ("_fork_rng", torch.random.fork_rng),
    ):
        patch = mock.patch.object(megatron_random, name, stand_in)
        patch.start()
        case.addCleanup(patch.stop)


def moe_layers(model: Model) -> dict[int, MoeLayer]:
    """Returns the MoE layers of a model, by global decoder layer id."""
    return {layer.layer_number - 1: layer for layer in model.decoder.layers if isinstance(layer, MoeLayer)}


__all__ = (
    "GROUPS",
    "HIDDEN",
    "CpuRouter",
    "Model",
    "MoeLayer",
    "RouterReplay",
    "RouterReplayAction",
    "TopKRouter",
    "make_config",
    "megatron_random",
    "moe_layers",
    "moe_utils",
    "set_up",
)
