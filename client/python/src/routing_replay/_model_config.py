"""MoE layers of a model, from its configuration: the config.json of Hugging Face Transformers, or the fields of
Megatron-Core's TransformerConfig.

Configurations use a dozen notations for the MoE layers: a dense prefix (DeepSeek), every N-th layer (Qwen), lists of
names, flags or ids, text patterns (Nemotron). A `Family` says which notation a model type uses. For an unknown model
type, the layers follow from the keys that are present, if all of these imply the same layers.

To add a model type, add it to `_FAMILIES`. Sources: the configuration and model classes of Transformers 5.23, and
published config.json files.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from routing_replay._values import INT32, invalid

MAX_LAYERS = 4096
_MAX_EXPERTS = 65535
_FIRST_K = "first_k_dense_replace"
_LAYER_TYPES = "mlp_layer_types"
_FREQUENCY = "moe_layer_freq"


class Layers(NamedTuple):
    """The geometry of a model: the number of decoder layers, the ids of the MoE layers (ascending), the ids of those
    that look up their experts in a table by token id (hash_layers), and num_experts and top_k of each MoE layer."""

    num_layers: int
    moe_layers: list[int]
    hash_layers: list[int]
    num_experts: Sequence[int] = ()
    top_k: Sequence[int] = ()


# Model types.

Pattern = Literal[
    "all", "prefix", "step", "interval", "period", "ids or step", "ids or prefix", "blocks", "hash prefix"
]


@dataclass(frozen=True)
class Family:
    """How configurations of one model type say which layers are MoE layers, if they have no mlp_layer_types.

    pattern: which layers are MoE layers, or which keys say so. "all": every layer. "prefix": all but the first `prefix`
        layers, minus those that moe_layer_freq excludes. "step": decoder_sparse_step and mlp_only_layers (default: the
        first `prefix` layers). "interval": moe_layer_start_index (default `prefix`), moe_layer_end_index and
        moe_layer_interval. "period": expert_layer_period and expert_layer_offset. "ids or step": moe_layers, else
        interleave_moe_layer_step. "ids or prefix": moe_layers_enum, else all but the first `prefix` layers. "blocks":
        layers_block_type, layer_types or hybrid_override_pattern. "hash prefix": every layer; the first num_hash_layers
        (default `prefix`) are hash layers
    prefix: a number of first layers, see `pattern`. With prefix_key it is the default; None: the key is required
    prefix_key: key of `prefix`; None: the type has none, and first_k_dense_replace must equal `prefix` or be absent
    every_nth: moe_layer_freq may be a number N; then layers 0, N, 2N, … are MoE layers, except the first `prefix`
    experts_in: key of the nested object that describes the experts, if there is one
    enabled_by: a flag that must be set for the model to have experts
    decisive_experts_key: if this key is present, it gives E, and other keys for E are ignored
    min_experts: a model with fewer experts has no router
    zero_experts: number of experts that a router can choose but that have no weights: the last ids of each layer
    zero_experts_key: key of this number, if it differs between models of the type
    """

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


def _prefixed(prefix: int | None, key: str | None = _FIRST_K, **more: Any) -> Family:
    return Family("prefix", prefix, key, **more)


# Families by model type. A "_text" at the end of a configuration's model_type is ignored.
_FAMILIES = {
    # Every layer is a MoE layer.
    "mixtral gpt_oss openai_privacy_filter granitemoe minimax diffusion_gemma granitemoe_swa": Family(),
    "granitemoeshared granitemoehybrid aria qwen3_5_moe hunyuan_v1_moe hunyuan jetmoe olmoe flex_olmo": Family(),
    "qwen4_exp minimax_m2 solar_open inkling2 kolibri1 phimoe": Family(),
    "gemma4": Family(enabled_by="enable_moe_block"),
    "doge": Family(enabled_by="is_moe"),
    "dbrx": Family(depth_key="n_layers", experts_in="ffn_config"),
    "longcat_flash": Family(depth_key="num_layers", zero_experts_key="zero_expert_num"),
    "zaya": Family(zero_experts=1),
    # Steps, intervals, periods or lists say which layers are MoE layers.
    "qwen2_moe qwen3_moe qwen3_omni_moe qwen3_omni_moe_thinker qwen3_next qwen3_vl_moe": Family("step"),
    "flint": Family("step", 2),
    "ernie4_5_moe ernie4_5_vl_moe": Family("interval", 1),
    "jamba": Family("period", min_experts=2),
    "llama4": Family("ids or step"),
    "step3p5 step3p7": Family("ids or prefix", 3),
    "nemotron_h": Family("blocks"),
    "deepseek_v4": Family("hash prefix", 3),
    # The first layers are dense.
    "deepseek_v2 mistral4 dots1 bailing_moe bailing_moe_v2 bailing_moe_linear bailing_moe_linear_v2": _prefixed(0),
    "cohere2_moe": _prefixed(0),
    "kimi_k2 kimi_k25 kimi_linear glm4_moe glm4v_moe exaone_moe unlimited_ocr": _prefixed(1),
    "axk1 axk2 dots3_note": _prefixed(1, every_nth=True),
    "mistral_large4": _prefixed(1, decisive_experts_key="num_experts"),
    "bailing_hybrid": _prefixed(2),
    "deepseek_v3": _prefixed(3),
    "deepseek_v32 glm_moe_dsa": _prefixed(3, decisive_experts_key="num_experts"),
    "deepseek_ocr2": _prefixed(None),
    "afmoe": _prefixed(1, "num_dense_layers"),
    "lfm2_moe": _prefixed(2, "num_dense_layers"),
    "inkling inkling_mm_model": _prefixed(0, "dense_mlp_idx"),
    "minimax_m3_vl minimax_m3 muse_spark mellum": _prefixed(0, None),
    "glm4_moe_lite hy_v3 hy_v4 laguna mimo_v2_flash": _prefixed(1, None),
    "glm5_next beam": _prefixed(3, None),
}
_FAMILY_OF = {model_type: family for types, family in _FAMILIES.items() for model_type in types.split()}

# Keys that imply a pattern if the type is unknown.
_TELLING: dict[str, Pattern] = {
    _LAYER_TYPES: "all",
    _FIRST_K: "prefix",
    "num_dense_layers": "prefix",
    _FREQUENCY: "prefix",
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


# Reading a configuration.


class Reader:
    """Reads values of a configuration. A value may have several names: E, for example, is n_routed_experts in some
    models and num_local_experts in others. None counts as absent. If several names of one value are present, they must
    agree.

    path: path of the object, used in messages, for example "text_config"
    """

    def __init__(self, config: Mapping[str, Any], path: str = "") -> None:
        self.config = config
        self._path = path

    def has(self, key: str) -> bool:
        return self.config.get(key) is not None

    def path_of(self, *keys: str) -> str:
        """The path of the first key that is present, or else of the first key."""
        key = next(filter(self.has, keys), keys[0])
        return f"{self._path}.{key}" if self._path else key

    def error(self, key: str, what: str) -> Exception:
        return invalid(self.path_of(key), what)

    def inner(self, key: str) -> Reader | None:
        """Returns a reader for the object with this key; None if there is no such object."""
        config = self.config.get(key)
        return Reader(config, self.path_of(key)) if isinstance(config, Mapping) else None

    def find(self, *keys: str) -> Any:
        """The value that has one of these names, or None."""
        present = [key for key in keys if self.has(key)]
        for key, following in itertools.pairwise(present):
            value, other = self.config[key], self.config[following]
            if value != other or isinstance(value, bool) != isinstance(other, bool):
                raise self.error(following, f"contradicts {self.path_of(present[0])}")
        return self.config[present[0]] if present else None

    def integer(self, *keys: str) -> int | None:
        value = self.find(*keys)
        return None if value is None else self._integer(keys, value)

    def flag(self, *keys: str) -> bool | None:
        return cast("bool | None", self._typed(keys, bool, "true or false"))

    def text(self, *keys: str) -> str | None:
        return cast("str | None", self._typed(keys, str, "a string"))

    def integers(self, *keys: str) -> list[int] | None:
        values = self._list(keys)
        # Flags per layer (moe_layer_freq) are written as 0 and 1, or as false and true.
        return values and [int(item) if isinstance(item, bool) else self._integer(keys, item) for item in values]

    def texts(self, *keys: str) -> list[str] | None:
        values = self._list(keys)
        if not all(isinstance(item, str) for item in values or ()):
            raise invalid(self.path_of(*keys), "must be a list of strings")
        return values

    def integer_or_integers(self, *keys: str) -> list[int] | None:
        value = self.find(*keys)
        return self.integers(*keys) if value is None or _is_list(value) else [self._integer(keys, value)]

    def one_integer(self, key: str, default: int | None = None) -> int | None:
        """Returns a number that is the same for the whole model, whether it is written once or once per layer."""
        numbers = self.integer_or_integers(key)
        if numbers is None:
            return default
        if len(set(numbers)) != 1:
            raise self.error(key, "must be one number for all layers")
        return numbers[0]

    def _list(self, keys: Sequence[str]) -> list[Any] | None:
        value = self.find(*keys)
        if value is not None and not (_is_list(value) and len(value) <= MAX_LAYERS):
            raise invalid(self.path_of(*keys), f"must be a list of at most {MAX_LAYERS} items")
        return None if value is None else value.tolist() if hasattr(value, "tolist") else list(value)

    def _typed(self, keys: Sequence[str], kind: type, what: str) -> Any:
        value = self.find(*keys)
        if value is not None and type(value) is not kind:
            raise invalid(self.path_of(*keys), f"must be {what}")
        return value

    def _integer(self, keys: Sequence[str], value: Any) -> int:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)  # True for numpy's integers, too.
        if not whole or not INT32[0] <= value <= INT32[1]:
            raise invalid(self.path_of(*keys), "must be a 32-bit integer")
        return int(value)


def _is_list(value: Any) -> bool:
    """True for lists and tuples, for arrays, and for the lists of OmegaConf, which some frameworks use for settings."""
    return getattr(value, "ndim", 0) > 0 or (isinstance(value, Sequence) and not isinstance(value, (str, bytes)))


# Which layers are MoE layers.

_MOE_NAMES = {"sparse", "moe", "hash_moe"}
_OTHER_NAMES = {"dense", "mlp", "linear_attention", "full_attention", "attention", "mamba", "sliding_attention"}


def _depth(reader: Reader, key: str, implied: int | None = None) -> int:
    """The number of decoder layers: the value of `key` or, if it is absent, `implied`."""
    written = reader.integer(key)
    num_layers = implied if written is None else written
    if num_layers is None or not 1 <= num_layers <= MAX_LAYERS:
        what = "is missing" if num_layers is None else f"must be 1 … {MAX_LAYERS} layers, got {num_layers}"
        raise reader.error(key, what)
    return num_layers


def _every(reader: Reader, key: str, num_layers: int, offset: int | None = None, default: int = 1) -> list[int]:
    """The layers i with i % step == offset. The value of `key`, or else `default`, is the step. The default of `offset`
    is step - 1."""
    step = reader.one_integer(key, default) or 0
    if step < 1:
        raise reader.error(key, f"a step must be at least 1, got {step}")
    offset = step - 1 if offset is None else offset
    return [layer for layer in range(num_layers) if layer % step == offset]


def _flagged(flags: Sequence[Any], key: str, num_layers: int) -> list[int]:
    if len(flags) != num_layers:
        raise invalid(key, f"has {len(flags)} layers, but the model has {num_layers}")
    return [layer for layer, flag in enumerate(flags) if flag]


def _check_names(names: Sequence[str], key: str, reader: Reader) -> Sequence[str]:
    for name in names:
        if name not in _MOE_NAMES | _OTHER_NAMES:
            raise reader.error(key, f'unknown kind of layer "{name}"')
    return names


def _hybrid_flags(pattern: str, key: str) -> list[bool]:
    """Returns for each decoder layer of a hybrid pattern whether it is a MoE layer. The pattern has one symbol per
    layer: E has experts; M, G, D, *, + and - have no routes. The bounds of pipeline stages ("|") and everything after
    a "/", which are MTP layers, are skipped."""
    symbols = pattern.partition("/")[0].replace("|", "")
    for symbol in symbols:
        if symbol not in "EMGD*+-":
            raise invalid(key, f"a symbol must be one of E M G D * + -, got '{symbol}'")
    return [symbol == "E" for symbol in symbols]


def _plan(family: Family, mtp_layers: int, reader: Reader) -> Layers:
    """Finds the MoE layers in the notation of the family.

    mtp_layers: mlp_layer_types may have this many further entries, for the MTP layers, which are ignored
    """
    if family.pattern == "blocks":
        return _blocks(reader)
    num_layers = _depth(reader, family.depth_key)
    names = _check_names(reader.texts(_LAYER_TYPES) or (), _LAYER_TYPES, reader)
    if reader.has(_LAYER_TYPES):
        names = names[:num_layers] if len(names) == num_layers + mtp_layers else names
        moe_layers = _flagged([name in _MOE_NAMES for name in names], reader.path_of(_LAYER_TYPES), num_layers)
        return Layers(num_layers, moe_layers, [layer for layer, name in enumerate(names) if name == "hash_moe"])
    read = _PATTERNS.get(family.pattern)
    moe_layers = list(range(num_layers)) if read is None else read(family, reader, num_layers)
    hashed = 0
    if family.pattern == "hash prefix":
        hashed = min(reader.one_integer("num_hash_layers", family.prefix) or 0, num_layers)
    return Layers(num_layers, moe_layers, list(range(hashed)))


def _blocks(reader: Reader) -> Layers:
    lists, pattern_key = ("layers_block_type", "layer_types"), "hybrid_override_pattern"
    names = reader.texts(*lists)
    pattern = reader.text(pattern_key) if names is None else None
    if names is not None:
        flags = [name in _MOE_NAMES for name in _check_names(names, lists[0], reader)]
    elif pattern is not None:
        flags = _hybrid_flags(pattern, reader.path_of(pattern_key))
    else:
        raise reader.error(lists[0], f"is missing, and so are {lists[1]} and {pattern_key}")
    if not 1 <= len(flags) <= MAX_LAYERS:
        what = f"must be 1 … {MAX_LAYERS} layers, got {len(flags)}"
        raise reader.error(pattern_key if names is None else lists[0], what)
    return Layers(len(flags), _flagged(flags, "", len(flags)), [])


def _prefix(family: Family, reader: Reader, num_layers: int) -> list[int]:
    first = family.prefix
    if family.prefix_key is not None:
        written = reader.integer(family.prefix_key)
        first = first if written is None else written
        if first is None:
            raise reader.error(family.prefix_key, f"is missing, and so is {_LAYER_TYPES}")
    elif reader.one_integer(_FIRST_K) not in (None, first):
        what = (
            f"must be {first} or absent, because models of this type do not read it. If other layers are dense, give "
            f"{_LAYER_TYPES}"
        )
        raise reader.error(_FIRST_K, what)
    return _by_frequency(reader, num_layers, first or 0, family.every_nth)


def _by_frequency(reader: Reader, num_layers: int, first: int, may_step: bool) -> list[int]:
    """The layers from `first` on that moe_layer_freq selects, by a flag per layer or by a step N (layers 0, N, 2N, …).
    A step above 1 needs may_step, because some software counts the steps from layer `first` instead of layer 0."""
    moe_layers = list(range(num_layers))
    frequency = reader.find(_FREQUENCY)
    if isinstance(frequency, (list, tuple)):
        flags = reader.integers(_FREQUENCY) or ()
        if any(flag not in (0, 1) for flag in flags):
            raise reader.error(_FREQUENCY, "a flag must be 0 or 1")
        moe_layers = _flagged(flags, reader.path_of(_FREQUENCY), num_layers)
    elif frequency is not None:
        step = reader.integer(_FREQUENCY)
        if step != 1 and not may_step:
            raise reader.error(_FREQUENCY, f"a step of {step} is ambiguous for this model: give a flag per layer")
        moe_layers = _every(reader, _FREQUENCY, num_layers, 0)
    return [layer for layer in moe_layers if layer >= first]


def _step(family: Family, reader: Reader, num_layers: int) -> list[int]:
    sparse = _every(reader, "decoder_sparse_step", num_layers)
    dense = reader.integers("mlp_only_layers")
    return [layer for layer in sparse if (layer >= (family.prefix or 0) if dense is None else layer not in dense)]


def _interval(family: Family, reader: Reader, num_layers: int) -> list[int]:
    first = reader.one_integer("moe_layer_start_index", family.prefix) or 0
    last = reader.one_integer("moe_layer_end_index", -1) or 0
    layers = _every(reader, "moe_layer_interval", num_layers)
    return [layer for layer in layers if layer >= first and (last == -1 or layer <= last)]


def _period(family: Family, reader: Reader, num_layers: int) -> list[int]:
    offset = reader.one_integer("expert_layer_offset", 1)
    return _every(reader, "expert_layer_period", num_layers, offset, 2)


def _ids_or_step(family: Family, reader: Reader, num_layers: int) -> list[int]:
    ids = reader.integers("moe_layers")
    if ids is not None:
        return [layer for layer in range(num_layers) if layer in ids]  # Larger ids are of MTP layers.
    return _every(reader, "interleave_moe_layer_step", num_layers)


def _ids_or_prefix(family: Family, reader: Reader, num_layers: int) -> list[int]:
    key = "moe_layers_enum"
    written = reader.find(key)
    if written is None:
        return list(range(family.prefix or 0, num_layers))
    if isinstance(written, str):
        try:
            ids = [int(item) for item in written.split(",") if item.strip()]
        except ValueError:
            raise reader.error(key, "must be a list of layer ids") from None
    else:
        ids = reader.integers(key) or []
    return [layer for layer in range(num_layers) if layer in ids]


_PATTERNS: dict[Pattern, Callable[[Family, Reader, int], list[int]]] = {
    "prefix": _prefix,
    "step": _step,
    "interval": _interval,
    "period": _period,
    "ids or step": _ids_or_step,
    "ids or prefix": _ids_or_prefix,
}


def _plan_by_keys(mtp_layers: int, reader: Reader) -> Layers:
    """Finds the MoE layers of a model of unknown type: all keys that imply a pattern must give the same layers."""
    found: dict[str, Layers] = {}
    depth_keys = ("num_hidden_layers", "num_layers", "n_layers")
    depth_key = next((key for key in depth_keys if reader.has(key)), depth_keys[0])
    prefix_key = "num_dense_layers" if reader.has("num_dense_layers") else _FIRST_K
    for key, pattern in filter(lambda item: reader.has(item[0]), _TELLING.items()):
        prefix = prefix_key if pattern == "prefix" else None
        plan = _plan(Family(pattern, 0, prefix, depth_key=depth_key), mtp_layers, reader)
        for first, other in found.items():
            if plan[:2] != other[:2]:
                what = f"gives other MoE layers than {first}, and the model type is unknown"
                raise reader.error(key, what)
        found[key] = plan
    if not found:
        what = "is unknown, and no key says which layers are MoE layers; looked for "
        raise reader.error("model_type", what + ", ".join(_TELLING))
    return next(iter(found.values()))


# The two kinds of configurations.

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"),
    "experts_per_token",
)
_MTP = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers")
_NESTED = ("thinker_config", "text_config", "language_config", "llm_config")
_UNKNOWN = Family(min_experts=2)


def _listed(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"


def _no_experts(why: str) -> Exception:
    return invalid("config", f"no routed experts: {why}")


def of_hugging_face(config: Mapping[str, Any]) -> Layers:
    """The MoE layers of a config.json."""
    levels = [Reader(config)]  # The outermost object first. The text model may be nested in other objects.
    while inner := next(filter(None, map(levels[-1].inner, _NESTED)), None):
        levels.append(inner)
    reader, family = levels[-1], _family_of(levels)
    of_experts = (reader.inner(family.experts_in) if family.experts_in else None) or reader
    decisive = family.decisive_experts_key
    keys = (decisive,) if decisive is not None and of_experts.has(decisive) else _EXPERTS
    experts, top_k = _read_experts(family, levels, of_experts, keys)
    zero_experts = _read_zero_experts(family, reader)
    mtp_layers = _read_mtp(levels)
    plan = _plan_by_keys(mtp_layers, reader) if family is _UNKNOWN else _plan(family, mtp_layers, reader)
    if not plan.moe_layers:
        raise _no_experts("no layer is a MoE layer")

    def per_layer(values: list[int], names: Sequence[str], fact: Sequence[str]) -> list[int]:
        """Returns one value per MoE layer. `values` is one number for all layers or one per decoder layer;
        per_layer_config may state another value for a single layer."""
        shared = len(set(values)) == 1
        if not shared and len(values) != plan.num_layers:
            what = f"has {len(values)} values, but the model has {plan.num_layers} layers"
            raise invalid(of_experts.path_of(*names), what)
        overrides = reader.inner("per_layer_config") or Reader({})
        made = []
        for layer in plan.moe_layers:
            override = overrides.inner(str(layer))
            value = None if override is None else override.integer(*fact)
            made.append(values[0 if shared else layer] if value is None else value)
        return made

    counts = [count + zero_experts for count in per_layer(experts, keys, _EXPERTS)]
    return plan._replace(num_experts=counts, top_k=per_layer(top_k, _TOP_K, _TOP_K))


def _family_of(levels: Sequence[Reader]) -> Family:
    """The family of the innermost object whose model_type is known; _UNKNOWN if there is none."""
    for level in reversed(levels):
        model_type = level.config.get("model_type")
        if isinstance(model_type, str) and model_type.removesuffix("_text") in _FAMILY_OF:
            return _FAMILY_OF[model_type.removesuffix("_text")]
    return _UNKNOWN


def _read_experts(
    family: Family, levels: Sequence[Reader], of_experts: Reader, keys: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Returns E and K as the configuration states them: two lists, each with one number or one per decoder layer."""
    if family.enabled_by and not levels[-1].flag(family.enabled_by):
        raise _no_experts(f"{family.enabled_by} is not set")
    experts = of_experts.integer_or_integers(*keys)
    if not experts:
        raise _no_experts(f"looked for {_listed(_EXPERTS)}")
    if all(count < family.min_experts for count in experts):
        raise _no_experts(f"{of_experts.path_of(*keys)} is {experts[0]}")
    if levels[0].config.get("is_encoder_decoder") is True and levels[-1].has("is_encoder_decoder"):
        raise invalid("is_encoder_decoder", "routes of encoder-decoder models are not supported")
    top_k = of_experts.integer_or_integers(*_TOP_K)
    if not top_k:
        raise of_experts.error(_TOP_K[0], f"is missing; looked for {_listed(_TOP_K)}")
    return experts, top_k


def _read_zero_experts(family: Family, reader: Reader) -> int:
    if family.zero_experts_key is None:
        return family.zero_experts
    count = reader.integer(family.zero_experts_key)
    if count is None or not 0 <= count <= _MAX_EXPERTS:
        raise reader.error(family.zero_experts_key, f"must be 0 … {_MAX_EXPERTS}, got {count}")
    return count


def _read_mtp(levels: Sequence[Reader]) -> int:
    """The number of MTP layers, from the innermost object that states it, itself or in its mtp_config; 0 if none
    does."""
    places = [place for level in reversed(levels) for place in (level, level.inner("mtp_config")) if place is not None]
    count = next((count for place in places if (count := place.integer(*_MTP)) is not None), 0)
    if not 0 <= count <= MAX_LAYERS:
        raise levels[-1].error("mtp_layers", f"must be 0 … {MAX_LAYERS}, got {count}")
    return count


_HYBRID = ("hybrid_override_pattern", "hybrid_layer_pattern")


def of_megatron(reader: Reader) -> Layers:
    """The MoE layers of a TransformerConfig."""
    experts = reader.integer("num_moe_experts", "num_experts")
    if experts is None or experts < 1:
        raise reader.error("num_moe_experts", f"no routed experts: must be at least 1, got {experts}")
    top_k = reader.integer("moe_router_topk")
    if top_k is None:
        raise reader.error("moe_router_topk", "is missing")
    pattern = reader.text(*_HYBRID)
    if pattern is None:
        depth = _depth(reader, "num_layers")
        first = reader.integer(_FIRST_K) or 0
        moe_layers = _by_frequency(reader, depth, first, first <= 0)
    else:
        key = reader.path_of(*_HYBRID)
        flags = _hybrid_flags(pattern, key)
        # If num_layers is present, too, it must be the length of the pattern.
        depth = _depth(reader, "num_layers", len(flags))
        moe_layers = _flagged(flags, key, depth)
    if not moe_layers:
        raise reader.error(_FREQUENCY, "no routed experts: no layer is a MoE layer")
    hashed = max(reader.integer("moe_n_hash_layers") or 0, 0)
    count = len(moe_layers)
    return Layers(depth, moe_layers, moe_layers[:hashed], [experts] * count, [top_k] * count)
