"""Small random models with a tokenizer, in the form that engines load: `python3 -m common.models FOLDER [NAME...]`
(from tests/peers) creates FOLDER/NAME for each name, by default for all.

Routers and embeddings are wide enough that experts and answers differ from token to token.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

TOKENS = 1000  # Prompts may consist of the words "w3" to "w999".

# On the CPU, the engines' attention needs heads of size 32 or more.
_COMMON = {
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
}
_QWEN3 = {"moe_intermediate_size": 64, "num_experts": 64, "num_experts_per_tok": 8, "head_dim": 32}
_QWEN2 = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 16}
_GLM4 = {"moe_intermediate_size": 32, "n_routed_experts": 16, "n_shared_experts": 1, "first_k_dense_replace": 1}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Moe", _QWEN3 | {"norm_topk_prob": True}),
    # Like qwen3, with other weights of its norms, as after further training.
    "qwen3_later": ("Qwen3Moe", _QWEN3 | {"norm_topk_prob": True}),
    "dense_layers": ("Qwen3Moe", _QWEN3 | {"norm_topk_prob": True, "mlp_only_layers": [0, 2]}),
    "experts_320": ("Qwen3Moe", _QWEN3 | {"num_experts": 320, "num_experts_per_tok": 10, "moe_intermediate_size": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32}),
    "olmoe": ("Olmoe", {"num_experts": 16, "num_experts_per_tok": 4}),
    "qwen2": ("Qwen2Moe", _QWEN2 | {"num_experts_per_tok": 4, "decoder_sparse_step": 1}),
    "glm4": ("Glm4Moe", _GLM4 | {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "head_dim": 32}),
}


def make(model_name: str, folder: str | Path) -> None:
    family, options = MODELS[model_name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**_COMMON | options)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, values in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith((".gate.weight", ".gate.e_score_correction_bias")):
                values.normal_(0, 0.3)
            elif name.endswith(("lm_head.weight", "embed_tokens.weight")):
                values.normal_(0, 0.5)
        for name, values in model.named_parameters():
            if model_name.endswith("_later") and name.endswith("norm.weight"):
                values.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return fast


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[2:] or MODELS:
        make(name, Path(sys.argv[1], name))


if __name__ == "__main__":
    main()
