"""Which known mistake explains what a rank's routers replayed, or what they chose beside it.

Shapes are the same for most mistakes of alignment, so nothing fails: routers replay the experts of other tokens or
layers. Each mistake known from Megatron-based trainers is made on purpose, and those that give what was seen are named
(routing_replay/trainer/diagnose.h). `rrctl diagnose` answers the same from a running service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY
from routing_replay_trainer._values import invalid, plain
from routing_replay_trainer.plan import Plan, description_of


@dataclass(frozen=True)
class Explanation:
    """of: "rows" or "layers"
    mistakes: names of those that cannot be told apart here; ("none",) is the right way, () where nothing fits
    what: the first of them in a sentence
    matched, compared: rows, layers, pairs of both, or experts, as the function says
    """

    of: str
    mistakes: tuple[str, ...]
    what: str
    matched: int
    compared: int

    @property
    def exact(self) -> bool:
        return self.matched == self.compared


@dataclass(frozen=True)
class Alignment:
    """Whether a record fits what routers choose by themselves.

    misaligned: beyond what drift of the weights is likely to do (routing_replay/trainer/diagnose.h)
    kept: share of the recorded experts that is chosen live, beyond chance: 1 for equal weights, 0 for unrelated rows
    chance: share of experts that a row has in common with the record of another
    explained_kept: `kept` under the best explanation
    sequence, layer: whose record fits worst: the index in the micro-batch, and the decoder layer; None where nothing is
        compared
    rows, layers: the best explanation; matched and compared count experts
    """

    misaligned: bool
    kept: float
    chance: float
    explained_kept: float
    sequence: int | None
    layer: int | None
    rows: Explanation
    layers: Explanation


def diagnose(
    geometry: Any, micro_batch: Mapping[str, Any], observed: Mapping[str, Any], **options: Any
) -> list[Explanation]:
    """All exact explanations of rows and layers that were replayed, or else the nearest ones.

    geometry, micro_batch, options: as `Plan` takes them, what is really the case
    observed: {"rows": per local row [sequence, row] of the route that was replayed there, or None, "layers": per MoE
        layer of the rank the decoder layer whose routes it was given}; one of them may be absent
    """
    said = description_of(geometry, micro_batch, **options)
    rows, layers = observed.get("rows"), observed.get("layers")
    said["observed"] = {} if layers is None else {"layers": plain(layers, "observed.layers")}
    if rows is not None:
        said["observed"]["rows"] = [None if row is None else plain(row, "observed.rows") for row in rows]
    return _explanations(json.loads(_core.give(LIBRARY.rrt_diagnose, *_core.text(said))))


def diagnose_ids(plan: Plan, recorded: Sequence[ArrayLike | None], replayed: ArrayLike) -> tuple[Explanation, ...]:
    """The best explanation of ids that a rank's routers replayed, one of its rows and one of its layers, which count
    pairs of a row and a layer.

    recorded: per sequence of the plan (per piece where there are some) ids [rows, all MoE layers, K] from row 0 on, -1
        where nothing is known; None of one that is left out
    replayed: ids [local rows, layers of the plan, K], K the largest of all layers; unused slots -1
    """
    return tuple(_explanations(_ask(LIBRARY.rrt_diagnose_ids, plan, recorded, replayed)))


def judge_alignment(plan: Plan, recorded: Sequence[ArrayLike | None], live: ArrayLike) -> Alignment:
    """Whether the rows that a plan replays are those of its tokens and layers. Arguments as in `diagnose_ids`, `live`
    being what the routers choose by themselves. Explanations are in terms of what is replayed."""
    said = _ask(LIBRARY.rrt_judge_alignment, plan, recorded, live)
    rows, layers = _explanations(said.pop("explanations"))
    return Alignment(rows=rows, layers=layers, **said)


def geometry_of(plan: Plan) -> dict[str, Any]:
    """The geometry that a plan was made for: {"num_layers", "moe_layers", "num_experts", "top_k"}."""
    return json.loads(_core.give(LIBRARY.rrt_plan_geometry, plan.pointer))


def _explanations(said: list[dict[str, Any]]) -> list[Explanation]:
    fields = ("of", "mistakes", "what", "matched", "compared")
    return [Explanation(**{f: tuple(one[f]) if f == "mistakes" else one[f] for f in fields}) for one in said]


def _ask(function: Any, plan: Plan, recorded: Sequence[ArrayLike | None], seen: ArrayLike) -> Any:
    record = [_ids(ids, "recorded") for ids in recorded if ids is not None]
    joined = np.concatenate([ids.reshape(-1) for ids in record]) if record else np.empty(0, np.int32)
    rows = np.array([0 if ids is None else len(ids) for ids in recorded], np.int64)
    observed = _ids(seen, "seen")
    given = _core.RouteIds(
        rows.size, rows.ctypes.data, joined.ctypes.data, joined.size, observed.ctypes.data, observed.size
    )
    return json.loads(_core.give(function, plan.pointer, byref(given)))


def _ids(values: ArrayLike, field: str) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise invalid(field, f"{array.dtype} of {array.ndim} axes, not integers [rows, layers, K]", "SHAPE")
    return np.ascontiguousarray(array, np.int32)
