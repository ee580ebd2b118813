"""Which layers of a model carry routes, and how wide they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from routing_replay import _native, _values


@dataclass(frozen=True)
class GroupLimit:
    """Only experts of the `kept` best of `groups` equal groups may be chosen; a group's rank is the sum of its
    `best_summed` best scores."""

    groups: int
    kept: int
    best_summed: int


@dataclass(frozen=True)
class ModelRouting:
    """What a model's configuration tells of its routers. None: it leaves that open.

    model_type: the type that was recognised; "" where keys alone decided
    renormalized: the weights of the chosen are divided by their sum; with softmax the same as softmax over the chosen
    scaling_factor: of the routed part, wherever the model applies it
    group_limit: None, too, where one that is configured has no effect
    expert_bias: "none", or what a bias that only takes part in the choice is added to
    shared_experts: at least so many
    mtp_layers: declared; they are no decoder layers and no part of the geometry
    zero_experts: router outputs without weights, the last ids of each layer; counted in the geometry's num_experts
    hash_layers: MoE layers whose ids come from a table of token ids
    sources: where in the configuration each fact was found
    """

    model_type: str
    score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] | None = None
    renormalized: bool | None = None
    scaling_factor: float | None = None
    group_limit: GroupLimit | None = None
    expert_bias: Literal["none", "to_score", "to_logit"] | None = None
    shared_experts: int | None = None
    mtp_layers: int = 0
    zero_experts: int = 0
    hash_layers: tuple[int, ...] = ()
    routers_per_layer: int = 1
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)


class Geometry:
    """The routing geometry of a run. Immutable, hashable, picklable.

    num_layers: decoder layers, dense ones included
    num_experts: E, one number or one per MoE layer; ids are in [0, E)
    top_k: K, one number or one per MoE layer
    moe_layers: global 0-based decoder layer ids that carry routes, ascending; all layers if absent

    Raises InvalidArgumentError naming the field and the layer.
    """

    def __init__(
        self,
        num_layers: int,
        num_experts: int | Sequence[int],
        top_k: int | Sequence[int],
        moe_layers: Sequence[int] | None = None,
    ) -> None:
        description: dict[str, Any] = {
            "num_layers": _values.integer(num_layers, "geometry.num_layers", _values.INT32),
            "num_experts": _one_or_many(num_experts, "geometry.num_experts"),
            "top_k": _one_or_many(top_k, "geometry.top_k"),
        }
        if moe_layers is not None:
            description["moe_layers"] = _values.integers(moe_layers, "geometry.moe_layers", _values.INT32)
        self._read(json.dumps(description), "geometry")

    def _read(self, text: str, source: str) -> dict[str, Any]:
        """Of a configuration; what it tells of the routers."""

        def read(said: _native.Model) -> str:
            self._set(said.geometry)
            self._json = str(said.json)
            return str(said.routing)

        arguments = _native.text(text), _native.text(source)
        routing = _native.give(_native.lib.rr_geometry_from_config, _native.Model, read, *arguments)
        return json.loads(routing) if routing else {}

    def _set(self, said: _native.Geometry) -> None:
        values = [field[: said.count] for field in (said.moe_layers, said.num_experts, said.top_k)]
        self._moe_layers, self._num_experts, self._top_k = map(tuple, values)
        self.native = _native.Geometry(said.num_layers, *map(_int32s, values), said.count)
        facts = _native.lib.rr_geometry_check, _native.GeometryFacts
        self._facts: dict[str, Any] = _native.give(*facts, _facts_of, _native.byref(self.native))
        self._routing: ModelRouting | None = None

    @classmethod
    def of_native(cls, said: _native.Geometry) -> Geometry:
        """Of one that the library gave."""
        layers = {name: getattr(said, name)[: said.count] for name in ("num_experts", "top_k", "moe_layers")}
        return cls(said.num_layers, **layers)

    @classmethod
    def uniform(cls, num_layers: int, num_experts: int, top_k: int) -> Geometry:
        """Every layer is a MoE layer with the same E and K."""
        return cls(num_layers, num_experts, top_k)

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> Geometry:
        """From what `to_json` gives."""
        geometry = cls.__new__(cls)
        fields = _values.json_value(text, "geometry") if isinstance(text, str) else text
        geometry._read(json.dumps(fields), "geometry")
        return geometry

    @classmethod
    def from_hf_config(
        cls, config: Mapping[str, Any] | str | os.PathLike[str] | Any, *, hash_layers: bool = True
    ) -> Geometry:
        """From the configuration of a Hugging Face model; `routing` is then set.

        config: what a config.json holds, as a dict or any mapping, its path or that of the folder that holds it, or an
            object with to_dict(), as Transformers' own
        hash_layers: False leaves out the MoE layers whose ids come from a table of token ids, for an engine that does
            not capture them, as SGLang; `routing` still names them. A trainer then plans with the run's geometry
            (`Plan(run.geometry, …)`); megatron.attach plans with its model's, and refuses such a run

        Every MoE family of Transformers 5.23 is known, under all names that its keys go by. Another type is read by its
        keys alone if these leave no doubt. Raises InvalidArgumentError: "no routed experts" for a dense model, and for
        keys that are missing (naming those that were looked for), wrong, or contradict each other.
        """
        if isinstance(config, (str, os.PathLike)):
            return cls._from_config(_text_of(config), "huggingface", hash_layers)
        if not isinstance(config, Mapping) and not callable(getattr(config, "to_dict", None)):
            raise _values.invalid("config", f"a {type(config).__name__} is no dict, no path, and has no to_dict")
        fields = config if isinstance(config, Mapping) else config.to_dict()
        return cls._from_config(_json_of(fields), "huggingface", hash_layers)

    @classmethod
    def from_megatron_config(cls, config: Mapping[str, Any] | Any, *, hash_layers: bool = True) -> Geometry:
        """From Megatron-Core's TransformerConfig or its arguments (an object, or a dict of fields); `routing` is then
        set.

        Read are num_layers, num_moe_experts (or num_experts), moe_router_topk, moe_layer_freq (number, list, or the
        command line's text), hybrid_override_pattern (or hybrid_layer_pattern), first_k_dense_replace, the moe_router_*
        fields, moe_shared_expert_intermediate_size, mtp_num_layers and moe_n_hash_layers. hash_layers as of
        `from_hf_config`. Raises InvalidArgumentError.
        """
        if not isinstance(config, Mapping) and not hasattr(config, "__dict__"):
            raise _values.invalid("config", f"a {type(config).__name__} is no dict and has no fields")
        fields = config if isinstance(config, Mapping) else vars(config)
        return cls._from_config(_json_of(dict(fields)), "megatron", hash_layers)

    @classmethod
    def _from_config(cls, text: str, source: str, hash_layers: bool) -> Geometry:
        geometry = cls.__new__(cls)
        facts = geometry._read(text, source)
        limit = facts.pop("group_limit")
        facts["group_limit"] = None if limit is None else GroupLimit(**limit)
        facts["hash_layers"] = tuple(facts["hash_layers"])
        geometry._routing = ModelRouting(**facts)
        if hash_layers or not facts["hash_layers"]:
            return geometry
        kept = [i for i, layer in enumerate(geometry.moe_layers) if layer not in facts["hash_layers"]]
        values = ([value[i] for i in kept] for value in (geometry.num_experts, geometry.top_k, geometry.moe_layers))
        captured = cls(geometry.num_layers, *values)
        captured._routing = geometry.routing
        return captured

    @property
    def routing(self) -> ModelRouting | None:
        """What the model's configuration told of its routers; None for a geometry that is not from one. Equality and
        to_json know nothing of it."""
        return self._routing

    def to_json(self) -> str:
        """One line of JSON; equal geometries give equal text."""
        return self._json

    @property
    def num_layers(self) -> int:
        return self.native.num_layers

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Global decoder layer ids."""
        return self._moe_layers

    @property
    def num_experts(self) -> tuple[int, ...]:
        """One per MoE layer."""
        return self._num_experts

    @property
    def top_k(self) -> tuple[int, ...]:
        """One per MoE layer."""
        return self._top_k

    @property
    def max_top_k(self) -> int:
        """Length of the K axis of arrays."""
        return self._facts["max_top_k"]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of ids that are read: uint8 if every E is at most 256, else uint16."""
        return np.dtype(np.uint8 if self._facts["id_bytes"] == 1 else np.uint16)

    @property
    def raw_row_bytes(self) -> int:
        """Bytes of one row over all MoE layers, unpacked."""
        return self._facts["raw_row_bytes"]

    @property
    def default_codec(self) -> str:
        """ "RAW" or "PACKED": how the store keeps rows unless told otherwise."""
        return self._facts["default_codec"]

    @property
    def fingerprint(self) -> int:
        """64 bits; equal geometries have equal ones on every machine."""
        return self._facts["fingerprint"]

    def block_bytes(self, rows: int, codec: str = "RAW") -> int:
        """Bytes of `rows` rows of all MoE layers, encoded."""
        size = _native.c_int64()
        arguments = _values.integer(rows, "rows"), _values.native_text(codec, "codec")
        _native.check(_native.lib.rr_geometry_block_bytes(_native.byref(self.native), *arguments, _native.byref(size)))
        return size.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return f"<Geometry {self._facts['text']}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._json, self._routing)


def _text_of(path: str | os.PathLike[str]) -> str:
    """Of a config.json, or of the one in a folder."""
    try:
        file = Path(path)
        return (file / "config.json" if file.is_dir() else file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        what = f"there is no {error.filename}: pass the path of the model's config.json; a name is not looked up"
        raise _values.invalid("config", what) from None
    except (OSError, TypeError, ValueError) as error:
        raise _values.invalid("config", f"{path!s} cannot be read: {error}") from None


def _json_of(fields: Any) -> str:
    try:
        return json.dumps(fields, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise _values.invalid("config", f"cannot be said in JSON: {error}") from None


def _plain(value: Any) -> Any:
    """What JSON has of a mapping, a value of numpy, a sequence, or of anything else that a configuration holds."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) else str(value)


def _restore(text: str, routing: ModelRouting | None) -> Geometry:
    geometry = Geometry.from_json(text)
    geometry._routing = routing
    return geometry


def _facts_of(said: _native.GeometryFacts) -> dict[str, Any]:
    facts = {name: getattr(said, name) for name in ("max_top_k", "id_bytes", "raw_row_bytes", "fingerprint")}
    return facts | {"default_codec": str(said.default_codec), "text": str(said.text)}


def _int32s(values: list[int]) -> Any:
    return (_native.c_int32 * len(values))(*values)


def _one_or_many(value: Any, field: str) -> int | list[int]:
    if isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) > 0:
        return _values.integers(value, field, _values.INT32)
    return _values.integer(value, field, _values.INT32)
