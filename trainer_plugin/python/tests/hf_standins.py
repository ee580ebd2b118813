"""Small decoders without attention, with MoE blocks of the shapes that versions of transformers have had, under its
class names. Each model chooses experts in the way of one version."""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HIDDEN, EXPERTS, TOP_K, VOCABULARY = 16, 8, 2, 64


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN, HIDDEN) * 0.3)

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dense = torch.zeros(len(hidden), EXPERTS, dtype=weights.dtype).scatter(1, ids, weights)
        return torch.einsum("ne,nh,ehd->nd", dense.to(hidden.dtype), hidden, self.weight).tanh()


class Qwen3MoeSparseMoeBlock(nn.Module):
    """In transformers 4.x, the block chooses the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, TOP_K
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = hidden_states.view(-1, HIDDEN)
        logits = self.gate(rows)
        weights, ids = torch.topk(F.softmax(logits, dim=1, dtype=torch.float), self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        return self.experts(rows, ids, weights).view(hidden_states.shape), logits


class MixtralTopKRouter(nn.Module):
    """In transformers 5.x, the router chooses the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, TOP_K
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.3)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = F.linear(hidden_states, self.weight)
        weights, ids = torch.topk(logits.float().softmax(-1), self.top_k, dim=-1)
        return logits, weights / weights.sum(dim=-1, keepdim=True), ids


class MixtralSparseMoeBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = MixtralTopKRouter()
        self.experts = Experts()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.view(-1, HIDDEN)
        _, weights, ids = self.gate(rows)
        return self.experts(rows, ids, weights).view(hidden_states.shape)


class Glm4MoeTopkRouter(nn.Module):
    """In transformers 4.x, a method of the router chooses, without gradients and by biased scores within groups."""

    def __init__(self) -> None:
        super().__init__()
        self.n_routed_experts, self.top_k, self.topk_group = EXPERTS, TOP_K, 1
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.3)
        self.register_buffer("e_score_correction_bias", torch.randn(EXPERTS))

    @torch.no_grad()
    def get_topk_indices(self, scores: torch.Tensor) -> torch.Tensor:
        biased = scores + self.e_score_correction_bias
        groups = torch.topk(biased.view(-1, 2, EXPERTS // 2).sum(-1), k=self.topk_group, dim=-1, sorted=False)[1]
        kept = torch.zeros(len(scores), 2).scatter(1, groups, 1).repeat_interleave(EXPERTS // 2, 1)
        return torch.topk(biased.masked_fill(kept == 0, 0.0), k=self.top_k, dim=-1, sorted=False)[1]

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = F.linear(hidden_states.float(), self.weight.float()).sigmoid()
        ids = self.get_topk_indices(scores)
        weights = scores.gather(1, ids)
        return ids, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * 2.5


class Glm4MoeMoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Glm4MoeTopkRouter()
        self.experts = Experts()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.view(-1, HIDDEN)
        ids, weights = self.gate(rows)
        return self.experts(rows, ids, weights).view(hidden_states.shape)


class DeepseekV3TopkRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.3)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden_states, self.weight)


class DeepseekV3MoE(nn.Module):
    """In transformers 5.0, a method of the block chooses the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.n_routed_experts, self.top_k = EXPERTS, TOP_K
        self.gate = DeepseekV3TopkRouter()
        self.experts = Experts()

    def route_tokens_to_experts(self, router_logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = router_logits.sigmoid()
        ids = torch.topk(scores, k=self.top_k, dim=-1, sorted=False)[1]
        return ids, scores.gather(1, ids)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.view(-1, HIDDEN)
        ids, weights = self.route_tokens_to_experts(self.gate(rows))
        return self.experts(rows, ids, weights).view(hidden_states.shape)


class GptOssTopKRouter(nn.Module):
    """Its softmax is over the logits of the chosen experts only."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, TOP_K
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.3)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, ids = torch.topk(F.linear(hidden_states, self.weight), self.top_k, dim=-1)
        return values.softmax(-1), ids


class GptOssMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = GptOssTopKRouter()
        self.experts = Experts()

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = hidden_states.reshape(-1, HIDDEN)
        weights, ids = self.router(rows)
        return self.experts(rows, ids, weights).view(hidden_states.shape), weights


class DecoderLayer(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self.mlp(hidden)
        return hidden + (out[0] if isinstance(out, tuple) else out)


class Decoder(nn.Module):
    def __init__(self, block: type[nn.Module], layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        dense = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.layers = nn.ModuleList(DecoderLayer(block() if i else dense) for i in range(layers))
        self.checkpointing: dict[str, Any] | None = None

    def forward(self, input_ids: torch.Tensor) -> Any:
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            if self.checkpointing is not None and self.training:
                hidden = checkpoint(layer, hidden, **self.checkpointing)
            else:
                hidden = layer(hidden)
        return {"last_hidden_state": hidden}


class Output(NamedTuple):
    logits: torch.Tensor


class Model(nn.Module):
    """A decoder whose layer 0 is dense; each other layer has a block of the given class."""

    def __init__(self, block: type[nn.Module], layers: int = 3) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(
            num_hidden_layers=layers, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K
        )
        self.model = Decoder(block, layers)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        self.model.checkpointing = gradient_checkpointing_kwargs

    def forward(self, input_ids: torch.Tensor, **given: Any) -> Output:
        return Output(self.lm_head(self.model(input_ids)["last_hidden_state"]))


BLOCKS = (Qwen3MoeSparseMoeBlock, MixtralSparseMoeBlock, Glm4MoeMoE, DeepseekV3MoE, GptOssMLP)
MODELS = {block.__name__: functools.partial(Model, block) for block in BLOCKS}
