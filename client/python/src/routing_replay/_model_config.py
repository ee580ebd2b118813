"""MoE layers and routers of a model, from its configuration: the config.json of Hugging Face Transformers, or the
fields of Megatron-Core's TransformerConfig.

Where the MoE layers are is said in a dozen ways: a dense prefix (DeepSeek), every N-th layer (Qwen), lists of names,
flags or ids, text patterns (Nemotron, Megatron). A `Family` says which of them a model type uses, with its defaults and
what its routers compute. A type of no family is read by its keys alone, if all of them tell the same layers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


class Layers(NamedTuple):
    """The geometry: decoder layers, MoE layers (ascending), and E and K of each of these."""

    num_layers: int
    moe_layers: list[int]
    num_experts: list[int]
    top_k: list[int]


def plain_fields(config: Any) -> dict[str, Any]:
    """A configuration, any mapping, as JSON has it; values that JSON has not become text."""
    try:
        fields = json.loads(json.dumps(config, default=_plain), parse_constant=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid("config", f"is not JSON: {error}") from None
    return _object(fields)


def parse_fields(text: str) -> dict[str, Any]:
    """The text of a config.json; Python writes NaN and Infinity, which stand for no number that is read here."""
    try:
        return _object(json.loads(text, parse_constant=str))
    except (ValueError, RecursionError) as error:
        raise invalid("config", f"is not JSON: {error}") from None


def _object(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise invalid("config", "is not a JSON object")
    return fields


def _plain(value: Any) -> Any:
    """What JSON has of a mapping, a value of numpy, a sequence, or of anything else that a configuration holds."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) else str(value)


class Reader:
    """Reads facts of a configuration, each under all the names that it goes by: E is n_routed_experts here and
    num_local_experts there. None counts as absent. Names of one fact that are there must agree.

    path: of the object, for messages and sources: "text_config"
    sources: where to note under which name a fact was found
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
        there = [key for key in keys if self.has(key)]
        if not there:
            return None
        value = self.config[there[0]]
        for key in there[1:]:
            other = self.config[key]
            if value != other or isinstance(value, bool) != isinstance(other, bool):
                raise self.error(key, f"contradicts {self.path_of(there[0])}")
            value = other
        self.sources[fact] = self.path_of(there[0])
        return value

    def integer(self, fact: str, *keys: str) -> int | None:
        value = self.find(fact, *keys)
        return None if value is None else self._integer(fact, value)

    def number(self, fact: str, *keys: str) -> float | None:
        value = self._one(fact, keys, (int, float), "a number")
        return None if value is None else float(value)

    def flag(self, fact: str, *keys: str) -> bool | None:
        value: bool | None = self._one(fact, keys, (bool,), "true or false")
        return value

    def text(self, fact: str, *keys: str) -> str | None:
        value: str | None = self._one(fact, keys, (str,), "a text")
        return value

    def integers(self, fact: str, *keys: str) -> list[int] | None:
        value = self.find(fact, *keys)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise invalid(self.sources[fact], f"is not a list of at most {MAX_LAYERS}")
        # Flags may be written as booleans.
        return [int(item) if isinstance(item, bool) else self._integer(fact, item) for item in value]

    def texts(self, fact: str, *keys: str) -> list[str] | None:
        value = self.find(fact, *keys)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(isinstance(one, str) for one in value):
            raise invalid(self.sources[fact], f"is not a list of at most {MAX_LAYERS} texts")
        return value

    def integer_or_integers(self, fact: str, *keys: str) -> list[int] | None:
        value = self.find(fact, *keys)
        if value is None or isinstance(value, list):
            return self.integers(fact, *keys)
        return [self._integer(fact, value)]

    def _one(self, fact: str, keys: Sequence[str], kinds: tuple[type, ...], what: str) -> Any:
        value = self.find(fact, *keys)
        if value is not None and type(value) not in kinds:  # True is an int to isinstance.
            raise invalid(self.sources[fact], f"is not {what}")
        return value

    def _integer(self, fact: str, value: Any) -> int:
        if type(value) is not int or not INT32[0] <= value <= INT32[1]:
            raise invalid(self.sources[fact], "is not a 32-bit integer")
        return value


# Which layers are MoE layers.


@dataclass
class _Rule:
    """Layer i is a MoE layer if all that is set says so: first <= i <= last, i % step == offset, i is not in `dense`,
    and flags[i]."""

    key: str  # The one that decided, for messages.
    first: int = 0
    last: int = INT32[1]
    step: int = 1
    offset: int = 0
    dense: Sequence[int] = ()
    flags: Sequence[bool] | None = None

    def every(self, step: int) -> None:
        """The last one of every `step` layers."""
        self.step, self.offset = step, step - 1

    def layers(self, num_layers: int) -> list[int]:
        """Ascending; perhaps none."""
        if not 1 <= num_layers <= MAX_LAYERS:
            raise invalid(self.key, f"must be 1 … {MAX_LAYERS} layers, got {num_layers}")
        if self.step < 1:
            raise invalid(self.key, f"a step must be at least 1, got {self.step}")
        if self.flags is not None and len(self.flags) != num_layers:
            raise invalid(self.key, f"tells of {len(self.flags)} layers, the model has {num_layers}")
        return [
            layer
            for layer in range(num_layers)
            if self.first <= layer <= self.last
            and layer % self.step == self.offset
            and (self.flags is None or self.flags[layer])
            and layer not in self.dense
        ]


def _flags_of_ids(ids: Iterable[int], num_layers: int) -> list[bool]:
    chosen = set(ids)  # MTP layers may follow.
    return [layer in chosen for layer in range(min(max(num_layers, 0), MAX_LAYERS))]


_MOE_NAMES = {"sparse", "moe", "hash_moe"}
_OTHER_NAMES = {"dense", "mlp", "linear_attention", "full_attention", "attention", "mamba", "sliding_attention"}


def _flags_of_names(names: Sequence[str], key: str, reader: Reader) -> list[bool]:
    for name in names:
        if name not in _MOE_NAMES | _OTHER_NAMES:
            raise reader.error(key, f'unknown kind of layer "{name}"')
    return [name in _MOE_NAMES for name in names]


def _hybrid_flags(pattern: str, key: str) -> list[bool]:
    """Of a hybrid pattern, one symbol per layer: E experts; M, G, D, *, + and - carry no routes. Pipeline marks ("|")
    are skipped, and what follows "/" are the MTP layers."""
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
        result: int | list[int] = value(ast.parse(text.strip(), mode="eval").body)
        return result
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        what = f'must be a number, or lists of 0 and 1 with + and *, for at most {MAX_LAYERS} layers, got "{text}"'
        raise invalid(key, what) from None


class _Plan(NamedTuple):
    num_layers: int
    moe_layers: list[int]
    hash_layers: list[int]


class _Planner:
    """Puts what a configuration says of its layers in the terms of one rule.

    mtp_layers: lists may go on behind the decoder layers by so many
    """

    def __init__(self, family: Family, mtp_layers: int, reader: Reader) -> None:
        self._family = family
        self._mtp_layers = mtp_layers
        self._reader = reader
        self._num_layers = 0
        self._hash_layers: list[int] = []
        self._rule = _Rule(family.depth_key)

    def plan(self) -> _Plan:
        reader, rule, depth_key = self._reader, self._rule, self._family.depth_key
        if self._family.pattern == "blocks":
            self._blocks()
            self._num_layers = len(rule.flags or ())
        else:
            self._num_layers = reader.integer("num_layers", depth_key) or 0
            if self._num_layers < 1:
                raise reader.error(depth_key, "is missing or below 1")
            self._by_keys()
        rule.key = reader.path_of(rule.key)
        return _Plan(self._num_layers, rule.layers(self._num_layers), self._hash_layers)

    def _by_keys(self) -> None:
        patterns: dict[Pattern, Callable[[], None]] = {
            "prefix": self._prefix,
            "step": self._step,
            "interval": self._interval,
            "period": self._period,
            "ids or step": self._ids_or_step,
            "ids or prefix": self._ids_or_prefix,
            "hash prefix": self._hash_prefix,
        }
        if self._reader.has(LAYER_TYPES):
            self._names()
        elif self._family.pattern in patterns:
            patterns[self._family.pattern]()

    def _one(self, key: str) -> int | None:
        """A number for the whole model, written once or several times."""
        numbers = self._reader.integer_or_integers("moe_layers", key)
        if numbers is None:
            return None
        if len(set(numbers)) != 1:
            raise self._reader.error(key, "is not one number for all")
        return numbers[0]

    def _or(self, key: str, otherwise: int | None) -> int:
        self._rule.key = key
        number = self._one(key)
        return (otherwise or 0) if number is None else number

    def _names(self) -> None:
        self._rule.key = LAYER_TYPES
        names = self._reader.texts("moe_layers", LAYER_TYPES) or []
        if len(names) == self._num_layers + self._mtp_layers:
            names = names[: self._num_layers]
        self._rule.flags = _flags_of_names(names, LAYER_TYPES, self._reader)
        self._hash_layers = [layer for layer, name in enumerate(names) if name == "hash_moe"]

    def _prefix(self) -> None:
        family, reader = self._family, self._reader
        first = family.prefix
        if family.prefix_key is not None:
            written = reader.integer("moe_layers", family.prefix_key)
            first = first if written is None else written
            self._rule.key = family.prefix_key
            if first is None:
                raise reader.error(family.prefix_key, f"is missing, and {LAYER_TYPES}, too")
        elif self._one(FIRST_K) not in (None, first):
            what = f"models of this type have {first} dense layers first, whatever this key says: tell {LAYER_TYPES}"
            raise reader.error(FIRST_K, what)
        self._rule.first = first or 0
        self._every_nth()

    def _every_nth(self) -> None:
        frequency = self._reader.find("moe_layer_frequency", FREQUENCY)
        if isinstance(frequency, list):
            self._rule.flags = [flag != 0 for flag in self._reader.integers("moe_layer_frequency", FREQUENCY) or ()]
            self._rule.key = FREQUENCY
        elif frequency is not None:
            step = self._reader.integer("moe_layer_frequency", FREQUENCY)
            if step != 1 and not self._family.every_nth:
                what = "readers of this type's configurations disagree on a frequency other than 1: tell "
                raise self._reader.error(FREQUENCY, what + LAYER_TYPES)
            self._rule.step = step or 0
            self._rule.key = self._rule.key if step == 1 else FREQUENCY

    def _step(self) -> None:
        self._rule.every(self._or("decoder_sparse_step", 1))
        dense = self._reader.integers("dense_layers", "mlp_only_layers")
        if dense is None:
            self._rule.first = self._family.prefix or 0
        else:
            self._rule.dense = dense

    def _interval(self) -> None:
        self._rule.first = self._or("moe_layer_start_index", self._family.prefix)
        last = self._or("moe_layer_end_index", -1)
        self._rule.last = self._num_layers - 1 if last == -1 else last
        self._rule.every(self._or("moe_layer_interval", 1))

    def _period(self) -> None:
        self._rule.step = self._or("expert_layer_period", 2)
        self._rule.offset = self._or("expert_layer_offset", 1)

    def _ids_or_step(self) -> None:
        ids = self._reader.integers("moe_layers", "moe_layers")
        if ids is None:
            self._rule.every(self._or("interleave_moe_layer_step", 1))
        else:
            self._rule.flags = _flags_of_ids(ids, self._num_layers)

    def _ids_or_prefix(self) -> None:
        key = self._rule.key = "moe_layers_enum"
        written = self._reader.find("moe_layers", key)
        if written is None:
            self._rule.first = self._family.prefix or 0
            return
        if isinstance(written, str):
            try:
                ids = [int(item) for item in written.split(",") if item.strip()]
            except ValueError:
                raise self._reader.error(key, "is not a list of layers") from None
        else:
            ids = self._reader.integers("moe_layers", key) or []
        self._rule.flags = _flags_of_ids(ids, self._num_layers)

    def _hash_prefix(self) -> None:
        hashed = min(self._or("num_hash_layers", self._family.prefix), self._num_layers, MAX_LAYERS)
        self._hash_layers = list(range(hashed))

    def _blocks(self) -> None:
        lists, pattern_key = ("layers_block_type", "layer_types"), "hybrid_override_pattern"
        self._rule.key = lists[0]
        names = self._reader.texts("moe_layers", *lists)
        if names is not None:
            self._rule.flags = _flags_of_names(names, lists[0], self._reader)
            return
        pattern = self._reader.text("moe_layers", pattern_key)
        if pattern is None:
            raise self._reader.error(lists[0], f"is missing, and {lists[1]} and {pattern_key}, too")
        self._rule.flags = _hybrid_flags(pattern, self._reader.path_of(pattern_key))


def _plan_by_keys(mtp_layers: int, reader: Reader) -> _Plan:
    """The layers of a type that is not known: what all keys that tell of a pattern say alike."""
    told: dict[str, _Plan] = {}
    depth_keys = ("num_hidden_layers", "num_layers", "n_layers")
    depth_key = next((key for key in depth_keys if reader.has(key)), depth_keys[0])
    prefix_key = "num_dense_layers" if reader.has("num_dense_layers") else FIRST_K
    for key, pattern in TELLING.items():
        if not reader.has(key):
            continue
        prefix = prefix_key if pattern == "prefix" else None
        plan = _Planner(Family(UNKNOWN, pattern, 0, prefix, depth_key=depth_key), mtp_layers, reader).plan()
        for first, other in told.items():
            if (plan.num_layers, plan.moe_layers) != (other.num_layers, other.moe_layers):
                what = f"tells other MoE layers than {first}, and the model's type, which would decide, is not known"
                raise reader.error(key, what)
        told[key] = plan
    if not told:
        what = "is not known, and no key tells which layers are MoE layers; looked for "
        raise reader.error("model_type", what + ", ".join(TELLING))
    return next(iter(told.values()))


# The two kinds of configurations.

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_MOST_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k")
_TOP_K = (*_MOST_TOP_K, "experts_per_token")
_MTP = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers")


def _listed(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"


def _no_experts(why: str) -> Exception:
    return invalid("config", f"no routed experts: {why}")


class HuggingFace:
    """What a config.json says: `layers`, then `routing`."""

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
        self._zero_experts = self._read_zero_experts()
        self._mtp_layers = self._read_mtp()
        if family is None:
            plan = _plan_by_keys(self._mtp_layers, reader)
        else:
            plan = _Planner(family, self._mtp_layers, reader).plan()
        if not plan.moe_layers:
            raise _no_experts("no layer is a MoE layer")
        self._hash_layers = plan.hash_layers
        of_layers = [count + self._zero_experts for count in self._per_layer(experts, "num_experts", _EXPERTS, plan)]
        self._layers = Layers(
            plan.num_layers, plan.moe_layers, of_layers, self._per_layer(top_k, "top_k", _TOP_K, plan)
        )
        return self._layers

    def routing(self) -> ModelRouting:
        family, reader = self._family, self._of_experts
        router = UNKNOWN if family is None else family.router
        score = _score(router, reader)
        renormalized = _renormalized(router, score, reader)
        if score == "softmax" and self._layers.top_k == self._layers.num_experts:
            renormalized = None  # Softmax over as many experts as are chosen sums to 1 already.
        shared = _shared(router, reader)
        return ModelRouting(
            model_type=self._model_type,
            score_function=score,
            renormalized=renormalized,
            scaling_factor=_scaling(router, shared, reader),
            group_limit=_group_limit(router, self._layers, reader),
            expert_bias=_bias(router, reader),
            shared_experts=shared,
            mtp_layers=self._mtp_layers,
            zero_experts=self._zero_experts,
            hash_layers=tuple(self._hash_layers),
            routers_per_layer=1 if family is None else family.routers_per_layer,
            sources=reader.sources,
        )

    def _read_experts(self) -> tuple[list[int], list[int]]:
        """E and K as written: one number, or one per decoder layer."""
        family = self._family
        if family is not None and family.enabled_by and not self._reader.flag("enabled", family.enabled_by):
            raise _no_experts(f"{family.enabled_by} is not set")
        if family is not None and family.experts_in:
            self._of_experts = self._reader.inner(family.experts_in) or self._reader
        reader = self._of_experts
        decisive = family.decisive_experts_key if family is not None else None
        keys = (decisive,) if decisive is not None and reader.has(decisive) else _EXPERTS
        experts = reader.integer_or_integers("num_experts", *keys)
        if not experts:
            raise _no_experts(f"looked for {_listed(_EXPERTS)}")
        least = 2 if family is None else family.min_experts
        if all(count < least for count in experts):
            raise _no_experts(f"{reader.sources['num_experts']} is {experts[0]}")
        if self._reader.has("is_encoder_decoder") and self._levels[0].config.get("is_encoder_decoder") is True:
            raise invalid("is_encoder_decoder", "routes of encoder-decoder models are not supported")
        top_k = reader.integer_or_integers("top_k", *_TOP_K)
        if not top_k:
            raise reader.error(_TOP_K[0], f"is missing; looked for {_listed(_TOP_K)}")
        return experts, top_k

    def _read_zero_experts(self) -> int:
        family = self._family
        if family is None or family.zero_experts_key is None:
            return 0 if family is None else family.zero_experts
        count = self._reader.integer("zero_experts", family.zero_experts_key)
        if count is None or not 0 <= count <= _MAX_EXPERTS:
            raise self._reader.error(family.zero_experts_key, f"is missing, negative or above {_MAX_EXPERTS}")
        return count

    def _read_mtp(self) -> int:
        """The count stands with the text model, in one of the objects around it, or in their mtp_config."""
        for level in reversed(self._levels):
            count = level.integer("mtp_layers", *_MTP)
            inner = level.inner("mtp_config")
            if count is None and inner is not None:
                count = inner.integer("mtp_layers", *_MTP)
            if count is not None:
                if not 0 <= count <= MAX_LAYERS:
                    raise self._reader.error("mtp_layers", f"must be 0 … {MAX_LAYERS}, got {count}")
                return count
        return 0

    def _per_layer(self, values: list[int], fact: str, keys: Sequence[str], plan: _Plan) -> list[int]:
        """Of each MoE layer, from one number or one per decoder layer, and from per_layer_config."""
        one = len(set(values)) == 1
        if not one and len(values) != plan.num_layers:
            what = f"has {len(values)} values, the model {plan.num_layers} layers"
            raise invalid(self._reader.sources[fact], what)
        overrides = self._reader.config.get("per_layer_config")
        of_layers = []
        for layer in plan.moe_layers:
            of_layer = overrides.get(str(layer)) if isinstance(overrides, dict) else None
            value = values[0] if one else values[layer]
            if isinstance(of_layer, dict):
                override = Reader(of_layer, self._reader.path_of(f"per_layer_config.{layer}")).integer(fact, *keys)
                value = value if override is None else override
            of_layers.append(value)
        return of_layers


def _score(router: Router, reader: Reader) -> Score | None:
    keys = ("scoring_func", "score_function", "expert_selection_fn", "moe_router_activation_func")
    written = reader.text("score_function", *keys)
    if written is None:
        return router.score
    known = written in SCORES and (router.score_by_key or written == router.score)
    return cast(Score, written) if known else None


def _renormalized(router: Router, score: Score | None, reader: Reader) -> bool | None:
    if router.renormalized is None or isinstance(router.renormalized, bool):
        return router.renormalized
    if router.renormalized == "exponent":
        return reader.number("renormalized", "moe_normalize_expert_weights") is not None
    if router.renormalized == "unless softmax" and score == "softmax":
        return True
    return reader.flag("renormalized", "norm_topk_prob", "moe_renormalize")


def _shared(router: Router, reader: Reader) -> int | None:
    if router.shared != "key":
        return router.shared
    counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    sizes = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim", "share_expert_dims")
    count = reader.integer("shared_experts", *counts)
    if count is not None:
        return count
    size = reader.integer("shared_experts", *sizes)
    return None if size is None else int(size > 0)


def _scaling(router: Router, shared: int | None, reader: Reader) -> float | None:
    if router.scaling == "average":
        strategy = reader.text("scaling_factor", "shared_expert_combination_strategy")
        if shared is None or strategy is None:
            return None
        return 0.5 if shared > 0 and strategy == "average" else 1.0
    if router.scaling != "key":
        return router.scaling
    prefixed = ("moe_routed_scaling_factor", "moe_router_scaling_factor")
    return reader.number("scaling_factor", "routed_scaling_factor", "route_scale", "router_scaling_factor", *prefixed)


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
            raise reader.error("n_group", f"{count} experts are not {groups} equal groups")
    if kept < 1:
        raise reader.error("topk_group", "is below 1")
    # The K best experts are in K groups at most, whose maxima are the K best.
    if router.group_best == 1 and max(layers.top_k) <= kept:
        return None
    return GroupLimit(groups, kept, router.group_best)


class Megatron:
    """What the fields of a TransformerConfig say: `layers`, then `routing`."""

    _HYBRID = ("hybrid_override_pattern", "hybrid_layer_pattern")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def layers(self) -> Layers:
        reader = self._reader
        experts = reader.integer("num_experts", "num_moe_experts", "num_experts")
        if experts is None or experts < 1:
            raise reader.error("num_moe_experts", "no routed experts: it is missing or below 1")
        top_k = reader.integer("top_k", "moe_router_topk")
        if top_k is None:
            raise reader.error("moe_router_topk", "is missing")
        num_layers = reader.integer("num_layers", "num_layers")
        rule = _Rule(reader.path_of(FREQUENCY))
        pattern = reader.text("moe_layers", *self._HYBRID)
        if pattern is not None:
            rule.key = reader.path_of(self._HYBRID[0])
            rule.flags = _hybrid_flags(pattern, rule.key)
            # A hybrid's depth is its pattern's; where both are told they must agree.
            depth = len(rule.flags) if num_layers is None else num_layers
        else:
            self._frequency(rule)
            depth = num_layers or 0
        if num_layers is None:
            rule.key = reader.path_of("num_layers")
        self._moe_layers = rule.layers(depth)
        if not self._moe_layers:
            raise reader.error(FREQUENCY, "no routed experts: no layer is a MoE layer")
        self._top_k, count = top_k, len(self._moe_layers)
        return Layers(depth, self._moe_layers, [experts] * count, [top_k] * count)

    def _frequency(self, rule: _Rule) -> None:
        reader = self._reader
        rule.first = reader.integer("dense_prefix", FIRST_K) or 0
        written = reader.find("moe_layers", FREQUENCY)
        if written is None:
            return
        frequency: int | list[int] | None
        if isinstance(written, str):
            frequency = _frequency(written, reader.path_of(FREQUENCY))
        elif isinstance(written, list):
            frequency = reader.integers("moe_layers", FREQUENCY)
        else:
            frequency = reader.integer("moe_layers", FREQUENCY)
        if isinstance(frequency, list):
            if any(flag not in (0, 1) for flag in frequency):
                raise reader.error(FREQUENCY, "a flag must be 0 or 1")
            rule.flags = [flag == 1 for flag in frequency]
            return
        rule.step = frequency or 0
        if rule.first > 0 and rule.step != 1:
            # From 0 on, as Megatron counts, or from the prefix on? Readers differ.
            what = f"a step of {rule.step} beside {FIRST_K} leaves open which layers are meant: give a flag per layer"
            raise reader.error(FREQUENCY, what)

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
            raise reader.error("mtp_num_layers", "is negative")
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
            raise self._reader.error("moe_router_group_topk", "is below 1")
        return GroupLimit(groups, kept, max(1, self._top_k // kept))
