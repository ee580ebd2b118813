"""The settings of vLLM's engines."""

from __future__ import annotations

from typing import Any

from common.answers import MODELS


def settings(model: str = "qwen3", **others: Any) -> dict[str, Any]:
    """Returns the settings of an engine. It computes prompts longer than max_num_batched_tokens in chunks."""
    return {
        "model": str(MODELS / model),
        "dtype": "float32",
        "enable_return_routed_experts": True,
        "enforce_eager": True,
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 64 << 20,
        "block_size": 32,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "seed": 0,
    } | others
