"""Which layers of a model carry routes, and how wide they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from routing_replay import _core, _values


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
        self._set(_core.Geometry(description))

    def _set(self, core: _core.Geometry) -> None:
        self._core = core
        self._json = core.json()
        self._description: dict[str, Any] = json.loads(self._json)
        self._facts = core.facts()

    @classmethod
    def uniform(cls, num_layers: int, num_experts: int, top_k: int) -> Geometry:
        """Every layer is a MoE layer with the same E and K."""
        return cls(num_layers, num_experts, top_k)

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> Geometry:
        """From what `to_json` gives."""
        geometry = cls.__new__(cls)
        geometry._set(_core.Geometry(json.loads(text) if isinstance(text, str) else text))
        return geometry

    def to_json(self) -> str:
        """One line of JSON; equal geometries give equal text."""
        return self._json

    @property
    def num_layers(self) -> int:
        return self._description["num_layers"]

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Global decoder layer ids."""
        return tuple(self._description["moe_layers"])

    @property
    def num_experts(self) -> tuple[int, ...]:
        """One per MoE layer."""
        return self._per_layer("num_experts")

    @property
    def top_k(self) -> tuple[int, ...]:
        """One per MoE layer."""
        return self._per_layer("top_k")

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
        return self._core.block_bytes(_values.integer(rows, "rows"), _values.text(codec, "codec"))

    def _per_layer(self, key: str) -> tuple[int, ...]:
        value = self._description[key]
        return tuple(value) if isinstance(value, list) else (value,) * len(self._description["moe_layers"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return f"<Geometry {self._facts['text']}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Geometry.from_json, (self._json,)


def _one_or_many(value: Any, field: str) -> int | list[int]:
    if isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) > 0:
        return _values.integers(value, field, _values.INT32)
    return _values.integer(value, field, _values.INT32)
