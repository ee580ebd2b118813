"""Finds the known alignment mistake that best explains the difference between what a rank's routers replayed and what
they chose live.

Most alignment mistakes do not change shapes, so nothing fails: routers silently replay the experts of other tokens or
layers. This module computes what each mistake known from Megatron-based trainers would produce, and names the mistakes
that match the observation (routing_replay/trainer/diagnose.h). `rrctl diagnose` does the same for the ids of any other
replay.

A `Watch` keeps the live choices of a micro-batch until its step ends. If the share of rows that have no expert in
common with their record exceeds `alarm_no_overlap`, `judge_alignment` decides whether drift of the weights is a likely
cause. If it is not, one warning per cause gives the figures, and names sample, layer and the nearest known mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, LOG, check_choice
from routing_replay_trainer._micro_batch import MicroBatch, host
from routing_replay_trainer.fetch import REPLAYED, Batch
from routing_replay_trainer.metrics import Counters
from routing_replay_trainer.plan import Plan

Watched = Literal["first", "all", "off"]
_MOST_IDS = 1 << 22  # Limit for the number of recorded ids in one judgement.


def judge_alignment(plan: Plan, recorded: Sequence[ArrayLike | None], live: ArrayLike) -> dict[str, Any]:
    """Judges whether the rows that a plan replays belong to its tokens and layers. Returns the JSON of
    rrt_judge_alignment (routing_replay/trainer/capi.h). Its explanations name known mistakes, if any.

    recorded: for each sequence of the plan (or each piece, if the plan has pieces) ids [rows, all MoE layers, K] from
        row 0 on, -1 where unknown; None for a sequence that is left out
    live: the live choice of the routers, [local rows, layers of the plan, K], where K is the largest of all layers;
        unused slots are -1
    """
    record = [np.asarray(ids, np.int32).reshape(-1) for ids in recorded if ids is not None]
    joined = np.concatenate(record) if record else np.empty(0, np.int32)
    rows = np.array([0 if ids is None else len(ids) for ids in recorded], np.int64)
    seen = np.ascontiguousarray(live, np.int32)
    given = _core.RouteIds(rows.size, rows.ctypes.data, joined.ctypes.data, joined.size, seen.ctypes.data, seen.size)
    return _core.give(LIBRARY.rrt_judge_alignment, plan.pointer, byref(given))


@dataclass
class _Seen:
    """What was observed in a watched pass.

    replayed: the ids that were replayed (in mode shadow: that replay would have used), by index in plan.layers: [rows,
        K] compact ids on the model's device. Only the first rows are kept: a judgement uses at most _MOST_IDS ids
    live: the choices of the model's own routers for the same rows, in the same form
    counts: the results of `ops.compare`
    """

    described: MicroBatch
    batch: Batch
    replayed: dict[int, Any] = field(default_factory=dict)
    live: dict[int, Any] = field(default_factory=dict)
    counts: list[Any] = field(default_factory=list)


class Watch:
    """watched: which micro-batches are compared with the live choice: the "first" of each step and model chunk, "all",
    or "off"
    alarm_no_overlap: the alignment of the first micro-batch of each step is judged if the share of rows whose live and
        recorded choices have no expert in common exceeds this; None: never
    """

    def __init__(self, watched: Watched = "first", alarm_no_overlap: float | None = 0.01) -> None:
        check_choice("watch", watched, ("first", "all", "off"))
        self._watched = watched
        self._alarm = alarm_no_overlap
        self._seen: dict[int, _Seen] = {}
        self._causes: set[tuple[str, ...]] = set()
        self.alarms = 0  # Number of judgements "misaligned" since the last `count_into`.

    def begin(self, chunk: int, described: MicroBatch, batch: Batch) -> bool:
        """Returns True if the live choices of this new pass are to be compared."""
        first = chunk not in self._seen
        if self._watched == "off" or (self._watched == "first" and not first):
            return False
        if first:
            self._seen[chunk] = _Seen(described, batch)
        return True

    def saw(self, chunk: int, batch: Batch, slot: int, live: Any, replayed: Any, counts: Any) -> None:
        """Called after a router call of a watched pass; keeps what is needed to judge the pass. live, replayed: the [N,
        K] ids of both choices; counts: the result of `ops.compare` for them"""
        seen = self._seen.get(chunk)
        if seen is not None and seen.batch is batch and self._alarm is not None:
            rows = max(1, _MOST_IDS // sum(layer.top_k for layer in batch.plan.layers))
            # Copies are needed, because the buffer may belong to another pass when the step ends.
            kept = replayed[:rows]
            seen.replayed[slot] = kept.clone() if hasattr(kept, "clone") else kept.copy()
            live = live[:rows]
            seen.live[slot] = live.to(kept.dtype) if hasattr(live, "to") else live.astype(kept.dtype)
            seen.counts.append(counts)

    def forget(self) -> None:
        """Discards the observations."""
        self._seen.clear()

    def end_step(self) -> None:
        """Judges the passes in which too many rows have no expert in common; discards all observations."""
        passes, self._seen = self._seen, {}
        for seen in passes.values():
            if not seen.counts:
                continue
            rows, _, disjoint, _ = (int(number) for number in host(sum(seen.counts)))
            if disjoint > (self._alarm or 0.0) * rows:
                self._judge(seen, disjoint / rows)

    def count_into(self, counters: Counters) -> None:
        if self._watched != "off" and self._alarm is not None:
            counters.count("no_overlap_alarms", self.alarms)
        self.alarms = 0

    def _judge(self, seen: _Seen, no_overlap: float) -> None:
        try:
            alignment = judge_alignment(seen.batch.plan, _records(seen), _live(seen))
        except Exception as error:  # Catch every exception, because an alarm must never stop training.
            self._warn(("unjudged",), f"router replay: the alignment could not be judged: {error}")
            return
        if alignment["misaligned"]:
            self.alarms += 1
            cause = tuple(name for each in alignment["explanations"] for name in each["mistakes"])
            self._warn(cause, self._words(seen, alignment, no_overlap))

    def _warn(self, cause: tuple[str, ...], words: str) -> None:
        """Logs a warning, once per cause."""
        if cause not in self._causes:
            self._causes.add(cause)
            LOG.warning("%s", words)

    def _words(self, seen: _Seen, alignment: dict[str, Any], no_overlap: float) -> str:
        mistakes = [each for each in alignment["explanations"] if each["mistakes"] != ["none"]]
        measured = (
            f"router replay: what is replayed and what the model's routers choose differ, most of all for sample "
            f"{_sample(seen.described, alignment['sequence'])} and in layer {alignment['layer']}. Measured in one "
            f"micro-batch: {no_overlap:.1%} of the rows have no expert in common (alarm_no_overlap is "
            f"{self._alarm:.1%}), and beyond chance {alignment['kept']:.0%} of the record is chosen live (100% with "
            "equal weights, 0% with the routes of unrelated tokens). "
        )
        if not mistakes:
            return measured + (
                "No known mistake of rows or layers explains it. Likely causes: model, samples or tokens are not the "
                "recorded ones, or the weights are far from those of the rollout."
            )
        named = " and ".join(f"{mistake['mistakes'][0]} ({mistake['what']})" for mistake in mistakes)
        return measured + (
            f"Nearest known mistake: {named}; if that is corrected, {alignment['explained_kept']:.0%} would be chosen "
            "live, so it is the likely cause, rather than drift of the weights."
        )


def _top_k(plan: Plan) -> int:
    """Returns the largest K of all layers."""
    top_k = plan.described["geometry"]["top_k"]
    return max(top_k) if isinstance(top_k, list) else top_k


def _live(seen: _Seen) -> NDArray[np.int32]:
    """Returns live ids [local rows, layers, K], -1 where none were observed."""
    plan = seen.batch.plan
    live = np.full((plan.rows, len(plan.layers), _top_k(plan)), -1, np.int32)
    for slot, ids in seen.live.items():
        live[: len(ids), slot, : plan.layers[slot].top_k] = host(ids)
    return live


def _records(seen: _Seen) -> list[NDArray[np.int32] | None]:
    """Returns the recorded ids of each sequence, as far as this rank replays them: only its own rows and layers."""
    plan, local = seen.batch.plan, seen.batch.plan.local_rows()
    moe_layers = len(plan.described["geometry"]["moe_layers"])
    replayed = {slot: host(ids) for slot, ids in seen.replayed.items()}
    kept = max(map(len, replayed.values()), default=0)
    records: list[NDArray[np.int32] | None] = []
    room = _MOST_IDS
    for sequence in range(len(seen.described.fetch)):
        at = np.flatnonzero((local.sequence == sequence) & (seen.batch.states == REPLAYED))
        at = at[at < kept]
        rows = local.row[at]
        shape = (int(rows.max()) + 1 if len(rows) else 0, moe_layers, _top_k(plan))
        room -= int(np.prod(shape))
        if not len(rows) or (room < 0 and records):
            records.append(None)
            continue
        record = np.full(shape, -1, np.int32)
        for slot, ids in replayed.items():
            layer = plan.layers[slot]
            record[rows, layer.ordinal, : layer.top_k] = ids[at]
        records.append(record)
    return records


def _sample(described: MicroBatch, sequence: int | None) -> str:
    if sequence is None:
        return "?"
    pieces = [len(s["pieces"]) if "pieces" in s else 1 for s in described.layout["sequences"]]
    return str(described.fetch[sum(pieces[:sequence])].sample)
