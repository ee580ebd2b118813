"""MoE layers and routers of a model, from its configuration: the config.json of Hugging Face Transformers, or the
fields of Megatron-Core's TransformerConfig.

Configurations say in a dozen ways where the MoE layers are: a dense prefix (DeepSeek), every N-th layer (Qwen), lists
of names, flags or ids, text patterns (Nemotron, Megatron). A `Family` says which of them a model type uses. An unknown
type is read by its keys alone, if all of them imply the same layers.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from routing_replay._model_families import (
    FAMILY_OF,
    FIRST_K,
    FREQUENCY,
    LAYER_TYPES,
    SCORES,
    TELLING,
    UNKNOWN,
    Bias,
    Family,
    GroupLimit,
    ModelRouting,
    Pattern,
    Router,
    Score,
)
from routing_replay._values import INT32, invalid

MAX_LAYERS = 4096
_MAX_EXPERTS = 65535


# Reading a configuration.


def plain_fields(config: Any) -> dict[str, Any]:
    """A configuration, any mapping, as JSON has it; values that JSON does not have become text."""
    try:
        return parse_fields(json.dumps(config, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid("config", f"must be JSON: {error}") from None


def parse_fields(text: str) -> dict[str, Any]:
    """The text of a config.json; NaN and Infinity, which Python writes, become text: no number here may be one."""
    try:
        fields = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise invalid("config", f"must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise invalid("config", "must be a JSON object")
    return fields


def _plain(value: Any) -> Any:
    """As JSON, of a mapping, a value of numpy, a sequence, or anything else in a configuration."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) else str(value)


class Reader:
    """Reads facts of a configuration, each under all its names: E is n_routed_experts here and num_local_experts there.
    None counts as absent. If several names of one fact are present, they must agree.

    path: of the object, for messages and sources: "text_config"
    sources: receives the name under which each fact was found
    """

    def __init__(self, config: Mapping[str, Any], path: str = "", sources: dict[str, str] | None = None) -> None:
        self.config = config
        self._path = path
        self.sources = {} if sources is None else sources

    def has(self, key: str) -> bool:
        return self.config.get(key) is not None

    def path_of(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def error(self, key: str, what: str) -> Exception:
        return invalid(self.path_of(key), what)

    def inner(self, key: str) -> Reader | None:
        """Of an object in this one."""
        config = self.config.get(key)
        return Reader(config, self.path_of(key), self.sources) if isinstance(config, dict) else None

    def find(self, fact: str, *keys: str) -> Any:
        """The value, or None."""
        present = [key for key in keys if self.has(key)]
        for key, following in itertools.pairwise(present):
            value, other = self.config[key], self.config[following]
            if value != other or isinstance(value, bool) != isinstance(other, bool):
                raise self.error(following, f"contradicts {self.path_of(present[0])}")
        if not present:
            return None
        self.sources[fact] = self.path_of(present[0])
        return self.config[present[0]]

    def integer(self, fact: str, *keys: str) -> int | None:
        value = self.find(fact, *keys)
        return None if value is None else self._integer(fact, value)

    def number(self, fact: str, *keys: str) -> float | None:
        value = self._typed(fact, keys, (int, float), "a number")
        return None if value is None else float(value)

    def flag(self, fact: str, *keys: str) -> bool | None:
        return cast("bool | None", self._typed(fact, keys, (bool,), "true or false"))

    def text(self, fact: str, *keys: str) -> str | None:
        return cast("str | None", self._typed(fact, keys, (str,), "a string"))

    def integers(self, fact: str, *keys: str) -> list[int] | None:
        values = self._list(fact, keys)
        # Flags may be written as booleans.
        return values and [int(item) if isinstance(item, bool) else self._integer(fact, item) for item in values]

    def texts(self, fact: str, *keys: str) -> list[str] | None:
        values = self._list(fact, keys)
        if not all(isinstance(item, str) for item in values or ()):
            raise invalid(self.sources[fact], "must be a list of strings")
        return values

    def integer_or_integers(self, fact: str, *keys: str) -> list[int] | None:
        value = self.find(fact, *keys)
        if value is None or isinstance(value, list):
            return self.integers(fact, *keys)
        return [self._integer(fact, value)]

    def one_integer(self, fact: str, key: str, default: int | None = None) -> int | None:
        """A number for the whole model, written once or several times."""
        numbers = self.integer_or_integers(fact, key)
        if numbers is None:
            return default
        if len(set(numbers)) != 1:
            raise self.error(key, "must be one number for all layers")
        return numbers[0]

    def _list(self, fact: str, keys: Sequence[str]) -> list[Any] | None:
        value = self.find(fact, *keys)
        if value is not None and (not isinstance(value, list) or len(value) > MAX_LAYERS):
            raise invalid(self.sources[fact], f"must be a list of at most {MAX_LAYERS}")
        return value

    def _typed(self, fact: str, keys: Sequence[str], kinds: tuple[type, ...], what: str) -> Any:
        value = self.find(fact, *keys)
        if value is not None and type(value) not in kinds:  # True is an int to isinstance.
            raise invalid(self.sources[fact], f"must be {what}")
        return value

    def _integer(self, fact: str, value: Any) -> int:
        if type(value) is not int or not INT32[0] <= value <= INT32[1]:
            raise invalid(self.sources[fact], "must be a 32-bit integer")
        return value


# Which layers are MoE layers.

_MOE_NAMES = {"sparse", "moe", "hash_moe"}
_OTHER_NAMES = {"dense", "mlp", "linear_attention", "full_attention", "attention", "mamba", "sliding_attention"}


def _depth(key: str, num_layers: int | None) -> int:
    if num_layers is None or not 1 <= num_layers <= MAX_LAYERS:
        raise invalid(key, "is missing" if num_layers is None else f"must be 1 … {MAX_LAYERS} layers, got {num_layers}")
    return num_layers


def _every(step: int | None, key: str, num_layers: int, offset: int | None = None) -> list[int]:
    """The layers i with i % step == offset; by default the last one of every `step` layers."""
    step = step or 0
    if step < 1:
        raise invalid(key, f"a step must be at least 1, got {step}")
    offset = step - 1 if offset is None else offset
    return [layer for layer in range(num_layers) if layer % step == offset]


def _flagged(flags: Sequence[Any], key: str, num_layers: int) -> list[int]:
    """The layers whose flag is set."""
    if len(flags) != num_layers:
        raise invalid(key, f"tells of {len(flags)} layers, the model has {num_layers}")
    return [layer for layer, flag in enumerate(flags) if flag]


def _check_names(names: Sequence[str], key: str, reader: Reader) -> Sequence[str]:
    for name in names:
        if name not in _MOE_NAMES | _OTHER_NAMES:
            raise reader.error(key, f'unknown kind of layer "{name}"')
    return names


def _hybrid_flags(pattern: str, key: str) -> list[bool]:
    """Of a hybrid pattern, one symbol per layer: E experts; M, G, D, *, + and - carry no routes. Pipeline marks ("|")
    are skipped, and the MTP layers follow "/"."""
    symbols = pattern.partition("/")[0].replace("|", "")
    for symbol in symbols:
        if symbol not in "EMGD*+-":
            raise invalid(key, f"a symbol must be one of E M G D * + -, got '{symbol}'")
    return [symbol == "E" for symbol in symbols]


def _frequency(text: str, key: str) -> int | list[int]:
    """moe_layer_freq as Megatron's command line takes it: a number N, every N-th layer from layer 0 on, or lists,
    numbers, +, * and parentheses, such as "([0]*3+[1]*58)", which make a flag per layer."""

    def size(value: Any) -> int:
        return len(value) if isinstance(value, list) else value

    def value(node: ast.expr) -> Any:
        result: Any = None
        if isinstance(node, ast.Constant) and type(node.value) is int:
            result = node.value
        elif isinstance(node, ast.List):
            result = [value(item) for item in node.elts]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add):
                result = left + right
            elif size(left) * size(right) <= MAX_LAYERS:
                result = left * right
        if result is None or size(result) > MAX_LAYERS:
            raise ValueError
        return result

    try:
        return cast("int | list[int]", value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        what = f'must be a number, or lists of 0 and 1 with + and *, for at most {MAX_LAYERS} layers, got "{text}"'
        raise invalid(key, what) from None


class _Plan(NamedTuple):
    num_layers: int
    moe_layers: list[int]
    hash_layers: list[int]


def _plan(family: Family, mtp_layers: int, reader: Reader) -> _Plan:
    """mtp_layers: lists may continue behind the decoder layers for this many"""
    if family.pattern == "blocks":
        return _blocks(reader)
    num_layers = reader.integer("num_layers", family.depth_key)
    num_layers = _depth(reader.path_of(family.depth_key), num_layers)
    names = _check_names(reader.texts("moe_layers", LAYER_TYPES) or (), LAYER_TYPES, reader)
    if reader.has(LAYER_TYPES):
        names = names[:num_layers] if len(names) == num_layers + mtp_layers else names
        moe_layers = _flagged([name in _MOE_NAMES for name in names], reader.path_of(LAYER_TYPES), num_layers)
        return _Plan(num_layers, moe_layers, [layer for layer, name in enumerate(names) if name == "hash_moe"])
    read = _PATTERNS.get(family.pattern)
    moe_layers = list(range(num_layers)) if read is None else read(family, reader, num_layers)
    hashed = 0
    if family.pattern == "hash prefix":
        hashed = min(reader.one_integer("moe_layers", "num_hash_layers", family.prefix) or 0, num_layers)
    return _Plan(num_layers, moe_layers, list(range(hashed)))


def _blocks(reader: Reader) -> _Plan:
    lists, pattern_key = ("layers_block_type", "layer_types"), "hybrid_override_pattern"
    names = reader.texts("moe_layers", *lists)
    pattern = reader.text("moe_layers", pattern_key) if names is None else None
    if names is not None:
        flags = [name in _MOE_NAMES for name in _check_names(names, lists[0], reader)]
    elif pattern is not None:
        flags = _hybrid_flags(pattern, reader.path_of(pattern_key))
    else:
        raise reader.error(lists[0], f"is missing, and so are {lists[1]} and {pattern_key}")
    return _Plan(_depth(reader.path_of(lists[0]), len(flags)), _flagged(flags, "", len(flags)), [])


def _prefix(family: Family, reader: Reader, num_layers: int) -> list[int]:
    first = family.prefix
    if family.prefix_key is not None:
        written = reader.integer("moe_layers", family.prefix_key)
        first = first if written is None else written
        if first is None:
            raise reader.error(family.prefix_key, f"is missing, and so is {LAYER_TYPES}")
    elif reader.one_integer("moe_layers", FIRST_K) not in (None, first):
        what = f"models of this type have {first} dense layers first, whatever this key says: give {LAYER_TYPES}"
        raise reader.error(FIRST_K, what)
    moe_layers = list(range(num_layers))
    frequency = reader.find("moe_layer_frequency", FREQUENCY)
    if isinstance(frequency, list):
        moe_layers = _flagged(
            reader.integers("moe_layer_frequency", FREQUENCY) or (), reader.path_of(FREQUENCY), num_layers
        )
    elif frequency is not None:
        step = reader.integer("moe_layer_frequency", FREQUENCY)
        if step != 1 and not family.every_nth:
            what = f"readers of this type's configurations disagree on a frequency other than 1: give {LAYER_TYPES}"
            raise reader.error(FREQUENCY, what)
        moe_layers = _every(step, reader.path_of(FREQUENCY), num_layers, 0)
    return [layer for layer in moe_layers if layer >= (first or 0)]


def _step(family: Family, reader: Reader, num_layers: int) -> list[int]:
    key = "decoder_sparse_step"
    sparse = _every(reader.one_integer("moe_layers", key, 1), reader.path_of(key), num_layers)
    dense = reader.integers("dense_layers", "mlp_only_layers")
    return [layer for layer in sparse if (layer >= (family.prefix or 0) if dense is None else layer not in dense)]


def _interval(family: Family, reader: Reader, num_layers: int) -> list[int]:
    first = reader.one_integer("moe_layers", "moe_layer_start_index", family.prefix) or 0
    last = reader.one_integer("moe_layers", "moe_layer_end_index", -1) or 0
    key = "moe_layer_interval"
    layers = _every(reader.one_integer("moe_layers", key, 1), reader.path_of(key), num_layers)
    return [layer for layer in layers if layer >= first and (last == -1 or layer <= last)]


def _period(family: Family, reader: Reader, num_layers: int) -> list[int]:
    key = "expert_layer_period"
    period = reader.one_integer("moe_layers", key, 2)
    offset = reader.one_integer("moe_layers", "expert_layer_offset", 1) or 0
    return _every(period, reader.path_of("expert_layer_offset"), num_layers, offset)


def _ids_or_step(family: Family, reader: Reader, num_layers: int) -> list[int]:
    ids = reader.integers("moe_layers", "moe_layers")
    if ids is not None:
        return [layer for layer in range(num_layers) if layer in ids]  # MTP layers may follow.
    key = "interleave_moe_layer_step"
    return _every(reader.one_integer("moe_layers", key, 1), reader.path_of(key), num_layers)


def _ids_or_prefix(family: Family, reader: Reader, num_layers: int) -> list[int]:
    key = "moe_layers_enum"
    written = reader.find("moe_layers", key)
    if written is None:
        return list(range(family.prefix or 0, num_layers))
    if isinstance(written, str):
        try:
            ids = [int(item) for item in written.split(",") if item.strip()]
        except ValueError:
            raise reader.error(key, "must be a list of layers") from None
    else:
        ids = reader.integers("moe_layers", key) or []
    return [layer for layer in range(num_layers) if layer in ids]


_PATTERNS: dict[Pattern, Callable[[Family, Reader, int], list[int]]] = {
    "prefix": _prefix,
    "step": _step,
    "interval": _interval,
    "period": _period,
    "ids or step": _ids_or_step,
    "ids or prefix": _ids_or_prefix,
}


def _plan_by_keys(mtp_layers: int, reader: Reader) -> _Plan:
    """The layers of an unknown type: all keys that imply a pattern must agree."""
    found: dict[str, _Plan] = {}
    depth_keys = ("num_hidden_layers", "num_layers", "n_layers")
    depth_key = next((key for key in depth_keys if reader.has(key)), depth_keys[0])
    prefix_key = "num_dense_layers" if reader.has("num_dense_layers") else FIRST_K
    for key, pattern in filter(lambda item: reader.has(item[0]), TELLING.items()):
        prefix = prefix_key if pattern == "prefix" else None
        plan = _plan(Family(UNKNOWN, pattern, 0, prefix, depth_key=depth_key), mtp_layers, reader)
        for first, other in found.items():
            if plan[:2] != other[:2]:
                what = f"gives other MoE layers than {first}, and the model's type, which would decide, is unknown"
                raise reader.error(key, what)
        found[key] = plan
    if not found:
        what = "is unknown, and no key says which layers are MoE layers; looked for "
        raise reader.error("model_type", what + ", ".join(TELLING))
    return next(iter(found.values()))


# The two kinds of configurations.


class Layers(NamedTuple):
    """The geometry: decoder layers, MoE layers (ascending), and E and K of each of these."""

    num_layers: int
    moe_layers: list[int]
    num_experts: list[int]
    top_k: list[int]


_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"),
    "experts_per_token",
)
_MTP = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers")
_SCALING = ("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_SIZE = (
    *("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"),
    "share_expert_dims",
)


def _listed(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"


def _no_experts(why: str) -> Exception:
    return invalid("config", f"no routed experts: {why}")


class HuggingFace:
    """A config.json: `layers`, then `routing`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._levels = [Reader(config)]  # Outermost first: the text model may stand in objects of others.
        nested = ("thinker_config", "text_config", "language_config", "llm_config")
        while inner := next(filter(None, map(self._levels[-1].inner, nested)), None):
            self._levels.append(inner)
        self._reader = self._of_experts = self._levels[-1]
        self._family: Family | None = None
        self._model_type = ""
        for level in reversed(self._levels):
            model_type = level.config.get("model_type")
            if isinstance(model_type, str) and model_type.removesuffix("_text") in FAMILY_OF:
                self._family, self._model_type = FAMILY_OF[model_type.removesuffix("_text")], model_type
                break

    def layers(self) -> Layers:
        family, reader = self._family, self._reader
        experts, top_k = self._read_experts()
        self._zero_experts = 0 if family is None else family.zero_experts
        if family is not None and family.zero_experts_key is not None:
            count = reader.integer("zero_experts", family.zero_experts_key)
            if count is None or not 0 <= count <= _MAX_EXPERTS:
                raise reader.error(family.zero_experts_key, f"must be 0 … {_MAX_EXPERTS}, got {count}")
            self._zero_experts = count
        self._mtp_layers = self._read_mtp()
        self._plan = (
            _plan_by_keys(self._mtp_layers, reader) if family is None else _plan(family, self._mtp_layers, reader)
        )
        if not self._plan.moe_layers:
            raise _no_experts("no layer is a MoE layer")
        of_layers = [count + self._zero_experts for count in self._per_layer(experts, "num_experts", _EXPERTS)]
        num_layers, moe_layers, _ = self._plan
        self._layers = Layers(num_layers, moe_layers, of_layers, self._per_layer(top_k, "top_k", _TOP_K))
        return self._layers

    def _read_experts(self) -> tuple[list[int], list[int]]:
        """E and K as written: one number, or one per decoder layer."""
        family = self._family or Family(UNKNOWN, min_experts=2)
        if family.enabled_by and not self._reader.flag("enabled", family.enabled_by):
            raise _no_experts(f"{family.enabled_by} is not set")
        if family.experts_in:
            self._of_experts = self._reader.inner(family.experts_in) or self._reader
        reader, decisive = self._of_experts, family.decisive_experts_key
        keys = (decisive,) if decisive is not None and reader.has(decisive) else _EXPERTS
        experts = reader.integer_or_integers("num_experts", *keys)
        if not experts:
            raise _no_experts(f"looked for {_listed(_EXPERTS)}")
        if all(count < family.min_experts for count in experts):
            raise _no_experts(f"{reader.sources['num_experts']} is {experts[0]}")
        if self._levels[0].config.get("is_encoder_decoder") is True and self._reader.has("is_encoder_decoder"):
            raise invalid("is_encoder_decoder", "routes of encoder-decoder models are not supported")
        top_k = reader.integer_or_integers("top_k", *_TOP_K)
        if not top_k:
            raise reader.error(_TOP_K[0], f"is missing; looked for {_listed(_TOP_K)}")
        return experts, top_k

    def _read_mtp(self) -> int:
        """From the text model, one of the objects around it, or their mtp_config."""
        for level in reversed(self._levels):
            inner = level.inner("mtp_config")
            count = level.integer("mtp_layers", *_MTP)
            if count is None and inner is not None:
                count = inner.integer("mtp_layers", *_MTP)
            if count is not None:
                if not 0 <= count <= MAX_LAYERS:
                    raise self._reader.error("mtp_layers", f"must be 0 … {MAX_LAYERS}, got {count}")
                return count
        return 0

    def _per_layer(self, values: list[int], fact: str, keys: Sequence[str]) -> list[int]:
        """Of each MoE layer, from one number or one per decoder layer, and from per_layer_config."""
        shared = len(set(values)) == 1
        if not shared and len(values) != self._plan.num_layers:
            what = f"has {len(values)} values, the model {self._plan.num_layers} layers"
            raise invalid(self._reader.sources[fact], what)
        made = []
        overrides = self._reader.config.get("per_layer_config")
        for layer in self._plan.moe_layers:
            override = overrides.get(str(layer)) if isinstance(overrides, dict) else None
            value = None
            if isinstance(override, dict):
                value = Reader(override, self._reader.path_of(f"per_layer_config.{layer}")).integer(fact, *keys)
            made.append(values[0 if shared else layer] if value is None else value)
        return made

    def routing(self) -> ModelRouting:
        family, reader, layers = self._family or Family(UNKNOWN), self._of_experts, self._layers
        router = family.router
        keys = ("scoring_func", "score_function", "expert_selection_fn", "moe_router_activation_func")
        score = router.score
        if (written := reader.text("score_function", *keys)) is not None:
            known = written in SCORES and (router.score_by_key or written == score)
            score = cast(Score, written) if known else None
        renormalized = _renormalized(router, score, reader)
        if score == "softmax" and layers.top_k == layers.num_experts:
            renormalized = None  # Softmax over as many experts as are chosen sums to 1 already.
        shared = cast("int | None", router.shared)
        if router.shared == "key" and (shared := reader.integer("shared_experts", *_SHARED)) is None:
            size = reader.integer("shared_experts", *_SHARED_SIZE)
            shared = None if size is None else int(size > 0)
        return ModelRouting(
            model_type=self._model_type,
            score_function=score,
            renormalized=renormalized,
            scaling_factor=_scaling(router, shared, reader),
            group_limit=_group_limit(router, layers, reader),
            expert_bias=_bias(router, reader),
            shared_experts=shared,
            mtp_layers=self._mtp_layers,
            zero_experts=self._zero_experts,
            hash_layers=tuple(self._plan.hash_layers),
            routers_per_layer=family.routers_per_layer,
            sources=reader.sources,
        )


def _renormalized(router: Router, score: Score | None, reader: Reader) -> bool | None:
    if router.renormalized is None or isinstance(router.renormalized, bool):
        return router.renormalized
    if router.renormalized == "exponent":
        return reader.number("renormalized", "moe_normalize_expert_weights") is not None
    if router.renormalized == "unless softmax" and score == "softmax":
        return True
    return reader.flag("renormalized", "norm_topk_prob", "moe_renormalize")


def _scaling(router: Router, shared: int | None, reader: Reader) -> float | None:
    if router.scaling == "average":
        strategy = reader.text("scaling_factor", "shared_expert_combination_strategy")
        if shared is None or strategy is None:
            return None
        return 0.5 if shared > 0 and strategy == "average" else 1.0
    if router.scaling != "key":
        return router.scaling
    return reader.number("scaling_factor", *_SCALING, "moe_router_scaling_factor")


def _bias(router: Router, reader: Reader) -> Bias | None:
    if router.bias is None:
        return "to_score" if reader.text("expert_bias", "topk_method") == "noaux_tc" else None
    if router.bias != "key":
        return router.bias
    used = reader.flag("expert_bias", "use_expert_bias")
    return None if used is None else "to_score" if used else "none"


def _group_limit(router: Router, layers: Layers, reader: Reader) -> GroupLimit | None:
    if router.group_best == 0:
        return None
    groups = reader.integer("group_limit", "n_group", "num_expert_group")
    kept = reader.integer("group_limit", "topk_group")
    if groups is None or kept is None or groups <= 1 or kept >= groups:
        return None
    if reader.text("group_method", "topk_method") == "greedy":
        return None
    for count in layers.num_experts:
        if count % groups != 0:
            raise reader.error("n_group", f"{count} experts cannot be split into {groups} equal groups")
    if kept < 1:
        raise reader.error("topk_group", f"must be at least 1, got {kept}")
    # The K best experts are in K groups at most, whose maxima are the K best.
    if router.group_best == 1 and max(layers.top_k) <= kept:
        return None
    return GroupLimit(groups, kept, router.group_best)


class Megatron:
    """The fields of a TransformerConfig: `layers`, then `routing`."""

    _HYBRID = ("hybrid_override_pattern", "hybrid_layer_pattern")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def layers(self) -> Layers:
        reader = self._reader
        experts = reader.integer("num_experts", "num_moe_experts", "num_experts")
        if experts is None or experts < 1:
            raise reader.error("num_moe_experts", f"no routed experts: must be at least 1, got {experts}")
        top_k = reader.integer("top_k", "moe_router_topk")
        if top_k is None:
            raise reader.error("moe_router_topk", "is missing")
        depth = reader.integer("num_layers", "num_layers")
        pattern = reader.text("moe_layers", *self._HYBRID)
        if pattern is None:
            depth = _depth(reader.path_of("num_layers"), depth)
            moe_layers = self._by_frequency(depth)
        else:
            key = reader.path_of(self._HYBRID[0])
            flags = _hybrid_flags(pattern, key)
            depth = _depth(reader.path_of("num_layers"), len(flags) if depth is None else depth)
            moe_layers = _flagged(flags, key, depth)  # A depth that is given must agree with the pattern.
        if not moe_layers:
            raise reader.error(FREQUENCY, "no routed experts: no layer is a MoE layer")
        self._moe_layers, self._top_k, count = moe_layers, top_k, len(moe_layers)
        return Layers(depth, moe_layers, [experts] * count, [top_k] * count)

    def _by_frequency(self, depth: int) -> list[int]:
        reader, key = self._reader, self._reader.path_of(FREQUENCY)
        first = reader.integer("dense_prefix", FIRST_K) or 0
        frequency = reader.find("moe_layers", FREQUENCY)
        if isinstance(frequency, str):
            frequency = _frequency(frequency, key)
        elif isinstance(frequency, list):
            frequency = reader.integers("moe_layers", FREQUENCY)
        elif frequency is not None:
            frequency = reader.integer("moe_layers", FREQUENCY)
        if isinstance(frequency, list):
            if any(flag not in (0, 1) for flag in frequency):
                raise reader.error(FREQUENCY, "a flag must be 0 or 1")
            return [layer for layer in _flagged(frequency, key, depth) if layer >= first]
        if first > 0 and frequency not in (None, 1):
            # From 0 on, as Megatron counts, or from the prefix on? Readers differ.
            what = f"a step of {frequency} beside {FIRST_K} is ambiguous: give a flag per layer"
            raise reader.error(FREQUENCY, what)
        layers = range(depth) if frequency is None else _every(frequency, key, depth, 0)
        return [layer for layer in layers if layer >= first]

    def routing(self) -> ModelRouting:
        """As Megatron's topk_routing_with_score_function: softmax before or after the choice; other scores are divided
        by their sum where K > 1; the bias is added to the score, and only of scores other than softmax."""
        reader = self._reader
        key = "moe_router_score_function"
        score = reader.text("score_function", key) or "softmax"
        pre_softmax = reader.flag("renormalized", "moe_router_pre_softmax") or False
        if score not in SCORES:
            raise reader.error(key, f'must be {_listed(SCORES)}, got "{score}"')
        biased = reader.flag("expert_bias", "moe_router_enable_expert_bias")
        mtp_layers = reader.integer("mtp_layers", "mtp_num_layers") or 0
        if mtp_layers < 0:
            raise reader.error("mtp_num_layers", f"must be at least 0, got {mtp_layers}")
        hashed = max(reader.integer("hash_layers", "moe_n_hash_layers") or 0, 0)
        shared = reader.integer("shared_experts", "moe_shared_expert_intermediate_size") or 0
        return ModelRouting(
            model_type="megatron",
            score_function=cast(Score, score),
            renormalized=not pre_softmax if score == "softmax" else self._top_k > 1,
            scaling_factor=float(reader.number("scaling_factor", "moe_router_topk_scaling_factor") or 1),
            group_limit=self._group_limit(),
            expert_bias="to_score" if biased else "none",
            shared_experts=int(shared > 0),
            mtp_layers=mtp_layers,
            hash_layers=tuple(self._moe_layers[:hashed]),
            sources=reader.sources,
        )

    def _group_limit(self) -> GroupLimit | None:
        """Megatron sums the best K / group_topk scores of a group (group_limited_topk)."""
        groups = self._reader.integer("group_limit", "moe_router_num_groups")
        kept = self._reader.integer("group_limit", "moe_router_group_topk")
        if groups is None or groups <= 1 or kept is None or kept >= groups:
            return None
        if kept < 1:
            raise self._reader.error("moe_router_group_topk", f"must be at least 1, got {kept}")
        return GroupLimit(groups, kept, max(1, self._top_k // kept))
