"""Tiny models of transformers' own classes, with three layers: those families that the installed version has."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import transformers

logging.getLogger("transformers").setLevel(logging.ERROR)

_COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "use_cache": False,
}
_SHARED = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 8}
_GROUPED = {"moe_intermediate_size": 16, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}
_LINEAR = {f"linear_{name}": size for name, size in (("num_value_heads", 2), ("num_key_heads", 2))}
_LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}

_OPTIONS: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"moe_intermediate_size": 16, "num_experts": 8, "mlp_only_layers": [1], "head_dim": 8},
    "Qwen2Moe": _SHARED | {"decoder_sparse_step": 1},
    "Qwen3Next": _SHARED | _LINEAR | {"head_dim": 8},
    "Qwen3_5Moe": _SHARED | _LINEAR | {"head_dim": 8},
    "Mixtral": {"num_local_experts": 8},
    "Olmoe": {"num_experts": 8},
    "DeepseekV3": _GROUPED | _LATENT | {"num_key_value_heads": 4, "n_group": 2, "topk_group": 1},
    "GptOss": {"num_local_experts": 8, "head_dim": 8, "sliding_window": 16},
    "Glm4Moe": _GROUPED | {"n_group": 1, "topk_group": 1, "head_dim": 8},
    "Glm4MoeLite": _GROUPED | _LATENT | {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
}
_CONFIGS = {"Qwen3_5Moe": "Qwen3_5MoeTextConfig"}


def _make(family: str) -> Any:
    config = getattr(transformers, _CONFIGS.get(family, f"{family}Config"))(**_COMMON | _OPTIONS[family])
    return getattr(transformers, f"{family}ForCausalLM")(config)


MODELS: dict[str, Callable[[], Any]] = {
    family: functools.partial(_make, family) for family in _OPTIONS if hasattr(transformers, f"{family}ForCausalLM")
}
