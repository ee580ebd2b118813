"""The watch over replayed routes: do they fit what the routers choose by themselves? No torch.

Live choices of a micro-batch are kept until the step ends. Where more rows than `alarm_no_overlap` have no expert in
common with their record, the core judges whether drift of the weights is likely to have caused that
(`judge_alignment`); if not, one warning per cause says what was measured, and names sample, layer and the nearest known
mistake.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer._micro_batch import MicroBatch, host
from routing_replay_trainer._values import invalid
from routing_replay_trainer.diagnose import Alignment, geometry_of, judge_alignment
from routing_replay_trainer.fetch import REPLAYED, Batch, FetchSequence, RowSource, Source
from routing_replay_trainer.metrics import Counters
from routing_replay_trainer.plan import Plan

LOG = logging.getLogger("routing_replay_trainer")
Watched = Literal["first", "all", "off"]
_READING = 10.0  # Seconds for the whole samples of an alarm's words: a step waits for them.
_MOST_IDS = 1 << 22  # Of the records that one judgement is made from.


@dataclass
class _Seen:
    """A watched pass: what was replayed, or would be, and what its routers chose, [rows, K] compact ids per slot, where
    the model is; of its first local rows, as many as a judgement is made from."""

    described: MicroBatch
    batch: Batch
    replayed: dict[int, Any] = field(default_factory=dict)
    live: dict[int, Any] = field(default_factory=dict)
    counts: list[Any] = field(default_factory=list)


class Watch:
    """source: where rows come from; what no rank has of a sample is read again for the words of an alarm
    watched: of which micro-batches live choices are compared: the "first" of each step and model chunk, "all", or none
    alarm_no_overlap: share of rows without an expert in common from which on alignment is judged, in the first
        micro-batch of each step; None: never
    """

    def __init__(
        self, source: Source | None, watched: Watched = "first", alarm_no_overlap: float | None = 0.01
    ) -> None:
        if watched not in ("first", "all", "off"):
            raise invalid("watch", f"{watched!r} is none of first, all, off")
        if alarm_no_overlap is not None and not 0 <= alarm_no_overlap <= 1:
            raise invalid("alarm_no_overlap", f"{alarm_no_overlap!r} is not a share")
        self._source = source
        self._watched = watched
        self._alarm = alarm_no_overlap
        self._seen: dict[int, _Seen] = {}
        self._causes: set[tuple[str, ...]] = set()
        self.alarms = 0  # Judged misaligned since it was last counted.

    def begin(self, chunk: int, described: MicroBatch, batch: Batch) -> bool:
        """Whether the live choices of this pass, which begins, are wanted."""
        first = chunk not in self._seen
        if self._watched == "off" or (self._watched == "first" and not first):
            return False
        if first:
            self._seen[chunk] = _Seen(described, batch)
        return True

    def saw(self, chunk: int, batch: Batch, slot: int, live: Any, replayed: Any, counts: Any) -> None:
        """live, replayed: [N, K] ids; counts: those of `ops.compare`"""
        seen = self._seen.get(chunk)
        if seen is not None and seen.batch is batch and self._alarm is not None:
            rows = max(1, _MOST_IDS // sum(layer.top_k for layer in batch.plan.layers))
            # Its buffer is another pass's when the step ends.
            kept = replayed[:rows]
            seen.replayed[slot] = kept.clone() if hasattr(kept, "clone") else kept.copy()
            live = live[:rows]
            seen.live[slot] = live.to(kept.dtype) if hasattr(live, "to") else live.astype(kept.dtype)
            seen.counts.append(counts)

    def forget(self) -> None:
        """What was seen, unjudged."""
        self._seen.clear()

    def end_step(self) -> None:
        """Judges what was seen, and forgets it."""
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
            live = _by_layer(seen)
            alignment = judge_alignment(seen.batch.plan, _records_of_rank(seen), live)
        except Exception as error:  # Whatever it is: an alarm stops no training.
            self._warn(("unjudged",), f"router replay: what is replayed could not be judged: {error}")
            return
        if not alignment.misaligned:
            return
        self.alarms += 1
        of_rank = ("of the rank", *_cause(alignment))
        if of_rank in self._causes:
            return
        self._causes.add(of_rank)
        why = ""
        try:
            whole = judge_alignment(seen.batch.plan, self._whole_records(seen), live)
            if whole.misaligned:
                alignment = whole
        except Exception as error:
            why = f" (Whole samples could not be read: {error})"
        self._warn(_cause(alignment), self._words(seen, alignment, no_overlap) + why)

    def _warn(self, cause: tuple[str, ...], words: str) -> None:
        """Once per run and cause."""
        if cause not in self._causes:
            self._causes.add(cause)
            LOG.warning("%s", words)

    def _words(self, seen: _Seen, alignment: Alignment, no_overlap: float) -> str:
        mistakes = [e for e in (alignment.rows, alignment.layers) if e.mistakes != ("none",)]
        said = (
            f"router replay: what is replayed and what the model's routers choose differ, most of all for sample "
            f"{_sample(seen.described, alignment.sequence)} and in layer {alignment.layer}. Measured in one "
            f"micro-batch: {no_overlap:.1%} of the rows have no expert in common (alarm_no_overlap is "
            f"{self._alarm:.1%}), and beyond chance {alignment.kept:.0%} of the record is chosen live (100% with equal "
            "weights, 0% with the routes of unrelated tokens). "
        )
        if not mistakes:
            return said + (
                "No known mistake of rows or layers explains it. Likely causes: model, samples or tokens are not the "
                "recorded ones, or the weights are far from those of the rollout."
            )
        named = " and ".join(f"{mistake.mistakes[0]} ({mistake.what})" for mistake in mistakes)
        return said + (
            f"Nearest known mistake: {named}; with it taken back {alignment.explained_kept:.0%} would be chosen live, "
            "so it is the likely cause, rather than drift of the weights."
        )

    def _whole_records(self, seen: _Seen) -> list[NDArray[np.int32] | None]:
        """Of the samples, all rows that the micro-batch could show, and all layers, as far as there is room."""
        geometry = geometry_of(seen.batch.plan)
        records: list[NDArray[np.int32] | None] = []
        room, end = _MOST_IDS, time.monotonic() + _READING
        for rows, fetch in zip(_rows_needed(seen), seen.described.fetch, strict=True):
            shape = _record_shape(geometry, rows)
            room -= int(np.prod(shape))
            # The first in any case.
            wanted = rows > 0 and (room >= 0 or not records)
            records.append(self._whole(geometry, fetch, shape, end) if wanted else None)
        return records

    def _whole(self, geometry: Any, fetch: FetchSequence, shape: tuple[int, ...], end: float) -> NDArray[np.int32]:
        rows = shape[0]
        sample = {"tokens": rows + 1, "recorded_rows": rows}
        if isinstance(fetch.sample, str):
            sample["sample"] = fetch.sample
        stream = {"format": "THD", "sequences": [sample], "cu_seqlens_padded": [0, rows + 1], "total_rows": rows + 1}
        plan = Plan(geometry, stream | {"partition": "contiguous"})
        batch = _read(self._source, plan, [FetchSequence(fetch.sample)], end)
        record = np.full(shape, -1, np.int32)
        known = np.flatnonzero(batch.states[:rows] == REPLAYED)
        for layer, ids in zip(plan.layers, batch.indices, strict=True):
            record[known, layer.ordinal, : layer.top_k] = ids[known]
        return record


def _cause(alignment: Alignment) -> tuple[str, ...]:
    return *alignment.rows.mistakes, *alignment.layers.mistakes


def _read(source: Any, plan: Plan, sequences: list[FetchSequence], end: float) -> Batch:
    """Until `end`; a source that is none of this package has a time of its own."""
    if not isinstance(source, RowSource):
        return source.fetch(plan, sequences=sequences, missing="live")
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"not within {_READING:g} s")
    fetch = source._start(plan, sequences, "live")
    source._bring(fetch, left)
    return fetch.realign(None)


def _record_shape(geometry: dict[str, Any], rows: int) -> tuple[int, int, int]:
    top_k = geometry["top_k"]
    return rows, len(geometry["moe_layers"]), max(top_k) if isinstance(top_k, list) else top_k


def _by_layer(seen: _Seen) -> NDArray[np.int32]:
    """Live ids [local rows, layers, K], -1 where none were seen."""
    plan = seen.batch.plan
    shape = _record_shape(geometry_of(plan), plan.rows)
    live = np.full((plan.rows, len(plan.layers), shape[2]), -1, np.int32)
    for slot, ids in seen.live.items():
        live[: len(ids), slot, : plan.layers[slot].top_k] = host(ids)
    return live


def _records_of_rank(seen: _Seen) -> list[NDArray[np.int32] | None]:
    """What the rank itself has of the samples: its rows and layers."""
    plan, local = seen.batch.plan, seen.batch.plan.local_rows()
    geometry = geometry_of(plan)
    replayed = {slot: host(ids) for slot, ids in seen.replayed.items()}
    kept = max(map(len, replayed.values()), default=0)
    records: list[NDArray[np.int32] | None] = []
    room = _MOST_IDS
    for sequence in range(len(seen.described.fetch)):
        at = np.flatnonzero((local.sequence == sequence) & (seen.batch.states == REPLAYED))
        at = at[at < kept]
        rows = local.row[at]
        shape = _record_shape(geometry, int(rows.max()) + 1 if len(rows) else 0)
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


def _rows_needed(seen: _Seen) -> list[int]:
    """Of each sequence, or piece of one, how many rows of its sample the micro-batch can show."""
    needed = []
    for sequence in seen.described.layout["sequences"]:
        if "pieces" in sequence:
            needed += [piece.get("start", 0) + piece.get("rows", 0) for piece in sequence["pieces"]]
        else:
            needed.append(0 if sequence.get("live") else max(0, sequence["tokens"] - 1))
    return needed[: len(seen.described.fetch)]


def _sample(described: MicroBatch, sequence: int | None) -> str:
    if sequence is None:
        return "?"
    pieces = [len(s["pieces"]) if "pieces" in s else 1 for s in described.layout["sequences"]]
    return str(described.fetch[sum(pieces[:sequence])].sample)
