"""Model types: how their configurations say which layers are MoE layers, and what their routers compute.

To add a model type, add it to `_FAMILIES`. Sources: the configuration and model classes of Transformers 5.23, and
published config.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]
SCORES = get_args(Score)
Bias = Literal["none", "to_score", "to_logit"]


@dataclass(frozen=True)
class GroupLimit:
    """Only experts of the `kept` best of `groups` equal groups may be chosen; a group's rank is the sum of its
    `best_summed` best scores."""

    groups: int
    kept: int
    best_summed: int


@dataclass(frozen=True)
class ModelRouting:
    """What a model's configuration says of its routers. None: it leaves that open.

    model_type: the type that was recognised; "" where keys alone decided
    renormalized: the weights of the chosen are divided by their sum; with softmax the same as softmax over the chosen
    scaling_factor: of the routed part, wherever the model applies it
    group_limit: also None if the configured one has no effect
    expert_bias: "none", or what a bias that only takes part in the choice is added to
    shared_experts: at least this many
    mtp_layers: declared; they are not decoder layers, and not in the geometry
    zero_experts: router outputs without weights, the last ids of each layer; counted in the geometry's num_experts
    hash_layers: MoE layers whose ids come from a table of token ids
    sources: where in the configuration each fact was found
    """

    model_type: str
    score_function: Score | None = None
    renormalized: bool | None = None
    scaling_factor: float | None = None
    group_limit: GroupLimit | None = None
    expert_bias: Bias | None = None
    shared_experts: int | None = None
    mtp_layers: int = 0
    zero_experts: int = 0
    hash_layers: tuple[int, ...] = ()
    routers_per_layer: int = 1
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)


Pattern = Literal[
    "all", "prefix", "step", "interval", "period", "ids or step", "ids or prefix", "blocks", "hash prefix"
]


@dataclass(frozen=True)
class Router:
    """What the routers of a family compute. None: unknown; "key": the configuration says.

    score_by_key: `score` stands where the key is absent; else a key that says otherwise makes the score unknown
    renormalized: "unless softmax": softmax over the chosen alone, else by key; "exponent": if
        moe_normalize_expert_weights is there
    scaling: "average": with the shared experts
    group_best: GroupLimit.best_summed; 0: no limit
    """

    score: Score | None = None
    score_by_key: bool = False
    renormalized: bool | Literal["key", "unless softmax", "exponent"] | None = None
    scaling: float | Literal["key", "average"] | None = None
    bias: Bias | Literal["key"] | None = None
    group_best: int = 0
    shared: int | Literal["key"] = "key"


# Routers that several families share, by the model that had them first.
_MIXTRAL = Router("softmax", renormalized=True, scaling=1.0, bias="none", shared=0)
_MIXTRAL_SHARED = replace(_MIXTRAL, shared="key")
_QWEN = replace(_MIXTRAL, renormalized="key")
_QWEN_SHARED = replace(_QWEN, shared="key")
_ERNIE = replace(_MIXTRAL_SHARED, bias="to_score")
_DEEPSEEK_V2 = Router("softmax", renormalized=False, scaling="key", bias="none", group_best=1)
_DEEPSEEK_V3 = Router("sigmoid", renormalized="key", scaling="key", bias="to_score", group_best=2)
_AFMOE = replace(_DEEPSEEK_V3, renormalized=True, group_best=0)
_MISTRAL = replace(_DEEPSEEK_V3, score="softmax", bias="none")
_OWN_WEIGHTS = Router(bias="none", shared=0)  # Of another kind than softmax, sigmoid and their like.
UNKNOWN = Router(score_by_key=True, renormalized="key", scaling="key")

FIRST_K = "first_k_dense_replace"
LAYER_TYPES = "mlp_layer_types"
FREQUENCY = "moe_layer_freq"


@dataclass(frozen=True)
class Family:
    """How models of a type say which layers are MoE layers if there is no mlp_layer_types, and what their routers are.

    pattern: "prefix": the first `prefix` are dense, and moe_layer_freq; "step": decoder_sparse_step, mlp_only_layers;
        "interval": moe_layer_start_index, …_end_index, …_interval; "period": expert_layer_period, …_offset;
        "ids or step": moe_layers, else interleave_moe_layer_step; "ids or prefix": moe_layers_enum, else the first
        `prefix` are dense; "blocks": layers_block_type, layer_types or hybrid_override_pattern, which also give the
        depth; "hash prefix": all, and the first num_hash_layers (`prefix`) take their ids from a table
    prefix: if the key is absent; None: the key is required
    prefix_key: None: the type has none, and a first_k_dense_replace must agree with `prefix`
    every_nth: moe_layer_freq N is every N-th layer from layer 0 on, after the prefix
    experts_in: the object that describes the experts, if it is a separate one
    enabled_by: a flag without which there are no experts
    decisive_experts_key: wins over other names of E
    min_experts: with fewer the model has no router
    zero_experts: of every model of the type; zero_experts_key: of each model
    """

    router: Router
    pattern: Pattern = "all"
    prefix: int | None = 0
    prefix_key: str | None = None
    every_nth: bool = False
    depth_key: str = "num_hidden_layers"
    experts_in: str | None = None
    enabled_by: str | None = None
    decisive_experts_key: str | None = None
    min_experts: int = 1
    zero_experts_key: str | None = None
    zero_experts: int = 0
    routers_per_layer: int = 1


def _prefixed(router: Router, prefix: int | None = 0, key: str | None = FIRST_K, **more: Any) -> Family:
    return Family(router, "prefix", prefix, key, **more)


# By model types; a "_text" at the end of a type is ignored.
_FAMILIES = {
    # Every layer a MoE layer.
    "mixtral gpt_oss openai_privacy_filter granitemoe minimax diffusion_gemma": Family(_MIXTRAL),
    "granitemoe_swa granitemoeshared granitemoehybrid aria qwen3_5_moe": Family(_MIXTRAL_SHARED),
    "hunyuan_v1_moe hunyuan": Family(replace(_MIXTRAL, shared=1)),
    "jetmoe": Family(_MIXTRAL, routers_per_layer=2),
    "gemma4": Family(_MIXTRAL, enabled_by="enable_moe_block"),
    "olmoe flex_olmo": Family(_QWEN),
    "qwen4_exp": Family(_QWEN_SHARED),
    "dbrx": Family(replace(_MIXTRAL, renormalized="exponent"), depth_key="n_layers", experts_in="ffn_config"),
    "minimax_m2": Family(replace(_AFMOE, scaling=1.0, shared=0)),
    "solar_open": Family(_DEEPSEEK_V3),
    "inkling2": Family(replace(_AFMOE, score_by_key=True, shared=0)),
    "kolibri1": Family(replace(_QWEN_SHARED, score="sigmoid", bias="to_logit")),
    "longcat_flash": Family(
        replace(_DEEPSEEK_V2, group_best=0, bias="to_score", shared=0),
        depth_key="num_layers",
        zero_experts_key="zero_expert_num",
    ),
    "zaya": Family(replace(_MIXTRAL, renormalized=False, bias="to_score"), zero_experts=1),
    "phimoe": Family(_OWN_WEIGHTS),
    "doge": Family(_OWN_WEIGHTS, enabled_by="is_moe"),
    # Steps, intervals, periods, lists.
    "qwen3_moe qwen3_omni_moe qwen3_omni_moe_thinker": Family(_QWEN, "step"),
    "qwen2_moe qwen3_next": Family(_QWEN_SHARED, "step"),
    "qwen3_vl_moe": Family(_MIXTRAL, "step"),
    "flint": Family(replace(_QWEN_SHARED, score="sigmoid"), "step", 2),
    "ernie4_5_moe": Family(_ERNIE, "interval", 1),
    "ernie4_5_vl_moe": Family(_ERNIE, "interval", 1, routers_per_layer=2),
    "jamba": Family(replace(_MIXTRAL, renormalized=False), "period", min_experts=2),
    "llama4": Family(replace(_MIXTRAL, score="sigmoid", renormalized=False, shared=1), "ids or step"),
    "step3p5 step3p7": Family(_AFMOE, "ids or prefix", 3),
    "nemotron_h": Family(_DEEPSEEK_V3, "blocks"),
    "deepseek_v4": Family(
        replace(_DEEPSEEK_V3, group_best=0, score="sqrtsoftplus", score_by_key=True), "hash prefix", 3
    ),
    # A dense prefix.
    "deepseek_v3": _prefixed(_DEEPSEEK_V3, 3),
    "deepseek_v32 glm_moe_dsa": _prefixed(_DEEPSEEK_V3, 3, decisive_experts_key="num_experts"),
    "kimi_k2 kimi_k25 glm4_moe glm4v_moe exaone_moe kimi_linear": _prefixed(_DEEPSEEK_V3, 1),
    "axk1 axk2 dots3_note": _prefixed(_DEEPSEEK_V3, 1, every_nth=True),
    "glm4_moe_lite hy_v4": _prefixed(_DEEPSEEK_V3, 1, None),
    "mimo_v2_flash": _prefixed(replace(_DEEPSEEK_V3, shared=0), 1, None),
    "glm5_next": _prefixed(_DEEPSEEK_V3, 3, None),
    "beam": _prefixed(replace(_DEEPSEEK_V3, shared=0), 3, None),
    "dots1 bailing_moe_v2 bailing_moe_linear bailing_moe_linear_v2": _prefixed(_DEEPSEEK_V3),
    "bailing_hybrid": _prefixed(_DEEPSEEK_V3, 2),
    "bailing_moe": _prefixed(_QWEN_SHARED),
    "afmoe": _prefixed(_AFMOE, 1, "num_dense_layers"),
    "hy_v3 laguna": _prefixed(_AFMOE, 1, None),
    "minimax_m3_vl minimax_m3": _prefixed(_AFMOE, 0, None),
    "muse_spark": _prefixed(replace(_AFMOE, shared=0), 0, None),
    "lfm2_moe": _prefixed(replace(_AFMOE, renormalized="key", bias="key", shared=0), 2, "num_dense_layers"),
    "mistral4": _prefixed(_MISTRAL),
    "mistral_large4": _prefixed(replace(_MISTRAL, renormalized=True), 1, decisive_experts_key="num_experts"),
    "deepseek_v2": _prefixed(_DEEPSEEK_V2),
    "deepseek_ocr2": _prefixed(_DEEPSEEK_V2, None),
    "unlimited_ocr": _prefixed(_DEEPSEEK_V2, 1),
    "mellum": _prefixed(_QWEN, 0, None),
    "cohere2_moe": _prefixed(
        replace(_MIXTRAL_SHARED, score_by_key=True, renormalized="unless softmax", scaling="average")
    ),
    # Its weights are normalised together with those of the shared experts.
    "inkling inkling_mm_model": _prefixed(Router(bias="to_score"), 0, "dense_mlp_idx"),
}
FAMILY_OF = {model_type: family for types, family in _FAMILIES.items() for model_type in types.split()}

# Keys that imply a pattern where the type is not known.
TELLING: dict[str, Pattern] = {
    LAYER_TYPES: "all",
    FIRST_K: "prefix",
    "num_dense_layers": "prefix",
    FREQUENCY: "prefix",
    "decoder_sparse_step": "step",
    "mlp_only_layers": "step",
    "moe_layer_start_index": "interval",
    "moe_layer_interval": "interval",
    "expert_layer_period": "period",
    "moe_layers": "ids or step",
    "interleave_moe_layer_step": "ids or step",
    "moe_layers_enum": "ids or prefix",
    "layers_block_type": "blocks",
    "hybrid_override_pattern": "blocks",
}
