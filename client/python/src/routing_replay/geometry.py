"""The routing geometry: which layers of a model have experts, how many each has, and how many a token chooses there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_int32
from pathlib import Path
from typing import Any

import numpy as np

from routing_replay import _native, _values
from routing_replay._model_config import MAX_LAYERS, Layers, Reader, of_hugging_face, of_megatron


class Geometry:
    """The routing geometry of a run. Immutable, hashable and picklable.

    num_layers: decoder layers, dense ones included
    num_experts: E, one number or one per MoE layer; ids are in [0, E)
    top_k: K, one number or one per MoE layer
    moe_layers: global 0-based decoder layer ids that carry routes, ascending; all layers if absent

    These are also attributes, the last three as tuples with one value per MoE layer. Further attributes:

    max_top_k: the largest K, which is the length of the K axis of arrays
    dtype: numpy dtype of the ids that a read of all layers returns: uint8 if every E is at most 256, else uint16
    fingerprint: 64-bit hash; equal geometries have the same fingerprint on every machine

    Raises InvalidArgumentError for a wrong value, naming the field and, if only one layer is wrong, the layer.
    """

    def __init__(
        self,
        num_layers: int,
        num_experts: int | Sequence[int],
        top_k: int | Sequence[int],
        moe_layers: Sequence[int] | None = None,
    ) -> None:
        layers = _values.integer(num_layers, "geometry.num_layers", _values.INT32)
        every_layer = range(layers if 0 < layers <= MAX_LAYERS else 0)
        moe = _values.integers(every_layer if moe_layers is None else moe_layers, "geometry.moe_layers", _values.INT32)
        experts, chosen = _of_each("num_experts", num_experts, len(moe)), _of_each("top_k", top_k, len(moe))
        self.num_layers = layers
        self.moe_layers, self.num_experts, self.top_k = map(tuple, (moe, experts, chosen))
        arrays = [(c_int32 * len(moe))(*values) for values in (moe, experts, chosen)]
        self.native = _native.Geometry(layers, *arrays, len(moe))
        _native.give(_native.lib.rr_geometry_check, _native.GeometryFacts, self._set, byref(self.native))
        self._json = json.dumps(self._description(), sort_keys=True, separators=(",", ":"))

    def _set(self, facts: Any) -> None:
        self.max_top_k = int(facts.max_top_k)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if facts.id_bytes == 1 else np.uint16)
        self.fingerprint, self._text = int(facts.fingerprint), str(facts.text)

    def _description(self) -> dict[str, Any]:
        """The canonical form: E and K are written once if all layers share both, else as one list per field."""
        uniform = len(set(zip(self.num_experts, self.top_k, strict=True))) == 1
        experts, top_k = (values[0] if uniform else values for values in (self.num_experts, self.top_k))
        layers = {"num_layers": self.num_layers, "moe_layers": self.moe_layers}
        return layers | {"num_experts": experts, "top_k": top_k}

    @classmethod
    def of_native(cls, found: _native.Geometry) -> Geometry:
        """Makes a Geometry from one that the library returned."""
        layers = {name: getattr(found, name)[: found.count] for name in ("num_experts", "top_k", "moe_layers")}
        return cls(found.num_layers, **layers)

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> Geometry:
        """Makes a Geometry from the result of `to_json`, as text or parsed."""
        fields = _values.json_value(text, "geometry") if isinstance(text, str) else text
        try:
            return cls(**fields)
        except TypeError as error:
            raise _values.invalid("geometry", str(error)) from None

    @classmethod
    def from_hf_config(
        cls, config: Mapping[str, Any] | str | os.PathLike[str] | Any, *, hash_layers: bool = True
    ) -> Geometry:
        """Makes a Geometry from the configuration of a Hugging Face model.

        config: the contents of a config.json as a mapping, the path of the file or of its folder, or an object with
            to_dict(), such as a configuration of Transformers
        hash_layers: False leaves out the MoE layers that look up their experts in a table by token id, for an engine
            that does not capture them, such as SGLang. The trainer must use the same geometry, which is `run.geometry`

        All MoE families of Transformers 5.23 are known, with all names of their keys. Another model type is read from
        its keys alone, if these are unambiguous. Raises InvalidArgumentError for a dense model ("no routed experts"),
        and for keys that are missing (the error names those that were searched), wrong, or contradictory; OSError for
        a file that cannot be read.
        """
        if isinstance(config, (str, os.PathLike)):
            path = Path(config)
            file = path / "config.json" if path.is_dir() else path
            fields = _values.json_value(file.read_bytes(), "config")
        else:
            fields = config.to_dict() if hasattr(config, "to_dict") else config
        if not isinstance(fields, Mapping):
            what = f"must be a dict, a path or an object with to_dict, got a {type(fields).__name__}"
            raise _values.invalid("config", what)
        return cls._of_model(of_hugging_face(fields), hash_layers)

    @classmethod
    def from_megatron_config(cls, config: Mapping[str, Any] | Any, *, hash_layers: bool = True) -> Geometry:
        """Makes a Geometry from Megatron-Core's TransformerConfig or Megatron's arguments (an object or its dict).

        Reads num_layers, num_moe_experts (or num_experts), moe_router_topk, moe_layer_freq (number or list, as Megatron
        parses it), hybrid_override_pattern (or hybrid_layer_pattern), first_k_dense_replace and moe_n_hash_layers.
        hash_layers: see `from_hf_config`. Raises InvalidArgumentError.
        """
        fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", None)
        if fields is None:
            raise _values.invalid("config", f"must be a dict or an object with fields, got a {type(config).__name__}")
        return cls._of_model(of_megatron(Reader(fields)), hash_layers)

    @classmethod
    def _of_model(cls, model: Layers, hash_layers: bool) -> Geometry:
        kept = [i for i, layer in enumerate(model.moe_layers) if hash_layers or layer not in model.hash_layers]
        values = ([value[i] for i in kept] for value in (model.num_experts, model.top_k, model.moe_layers))
        return cls(model.num_layers, *values)

    def to_json(self) -> str:
        """One line of JSON; equal geometries give equal text."""
        return self._json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return f"<Geometry {self._text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Geometry.from_json, (self._json,)


def _of_each(name: str, value: Any, layers: int) -> list[int]:
    """Returns a list of one number per MoE layer. `value` is one number for all layers, or one number per MoE layer."""
    field = f"geometry.{name}"
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return [_values.integer(value, field, _values.INT32)] * layers
    values = _values.integers(value, field, _values.INT32)
    if len(values) not in (1, layers):
        raise _values.invalid(field, f"must have 1 value or one per MoE layer ({layers}), got {len(values)}")
    return values * layers if len(values) == 1 else values
