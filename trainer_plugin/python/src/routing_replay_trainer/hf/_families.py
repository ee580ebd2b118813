"""The MoE blocks of transformers that are known, 4.51 to 5.x. No torch.

Where a block chooses its experts differs by version: in the forward of the block (softmax families, 4.x), in a method
of the router (DeepSeek-V3 and GLM, 4.x) or of the block (5.0), or in the forward of the router (gpt-oss; all in later
5.x). What is the same is that one function calls torch.topk for self.top_k experts, once: `_rewrite` finds it or says
why not. A block of no family here is taken by the same rule, where only one function does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """blocks: names of classes of its MoE blocks
    router: attribute of the block that holds its router, a linear layer or a module of its own
    """

    name: str
    blocks: tuple[str, ...]
    router: str


FAMILIES = (
    Family(
        "Qwen3-MoE",
        ("Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock", "Qwen3NextSparseMoeBlock", "Qwen3_5MoeSparseMoeBlock"),
        "gate",
    ),
    Family("Mixtral", ("MixtralSparseMoeBlock",), "gate"),
    Family("DeepSeek-V3", ("DeepseekV3MoE",), "gate"),
    Family("gpt-oss", ("GptOssMLP",), "router"),
    Family("GLM-MoE", ("Glm4MoeMoE", "Glm4MoeLiteMoE"), "gate"),
    Family("OLMoE", ("OlmoeSparseMoeBlock",), "gate"),
)
ROUTERS = ("gate", "router")  # What a block of another family may call its router.

# Methods that may choose the experts, of the router and of the block; in a family the first one that does is it.
CHOICES = (
    ("router", "get_topk_indices"),
    ("block", "route_tokens_to_experts"),
    ("router", "forward"),
    ("block", "forward"),
)

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")  # Attributes of whoever chooses: E.


def family_of(block: type) -> Family | None:
    """Of a class or of one that it is derived from: FSDP2 and others derive."""
    names = {base.__name__ for base in block.__mro__}
    return next((family for family in FAMILIES if names.intersection(family.blocks)), None)


def unlisted(block: object) -> Family | None:
    """What a block of no family is taken for, if it has a router."""
    router = next((name for name in ROUTERS if getattr(block, name, None) is not None), None)
    return None if router is None else Family("no known family", (), router)
