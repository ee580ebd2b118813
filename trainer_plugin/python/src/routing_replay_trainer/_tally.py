"""What a replay counts for the metrics. Needs torch."""

from __future__ import annotations

import torch

from routing_replay_trainer._counted import Counted
from routing_replay_trainer.fetch import Batch
from routing_replay_trainer.metrics import Counters, layer_key


class Tally:
    """Counts since they were last taken. Overlaps stay on their device until then."""

    def __init__(self) -> None:
        self._rows = {"replayed_rows": 0, "unrecorded_rows": 0, "pad_rows": 0, "fallback_sequences": 0}
        self._sequences = 0
        self._overlap: dict[int, tuple[int, torch.Tensor]] = {}
        self._repeated: dict[int, torch.Tensor] = {}
        self._calls = Counted()

    def batch(self, batch: Batch) -> None:
        for name in self._rows:
            self._rows[name] += getattr(batch, name)
        self._sequences += len(batch.sequences)

    def overlap(self, layer: int, counts: torch.Tensor, top_k: int) -> None:
        """counts: those of `ops.compare`"""
        before = self._overlap.get(layer)
        self._overlap[layer] = top_k, counts if before is None else counts + before[1]

    def called(self, counters: torch.Tensor) -> None:
        """counters: `ops.Replayed.counters` of a replaying call"""
        self._calls.add(counters)

    def repeat(self, layer: int, rows: torch.Tensor) -> None:
        """rows: [] whose choice was another one when the forward code was run again"""
        self._repeated[layer] = rows + self._repeated.get(layer, 0)

    def count_into(self, counters: Counters) -> None:
        """For keys of the table; all are zero then."""
        for name, value in self._rows.items():
            counters.count(name, value)
        real = self._rows["replayed_rows"] + self._rows["unrecorded_rows"]
        counters.ratio("replayed_fraction", self._rows["replayed_rows"], real)
        counters.ratio("unrecorded_fraction", self._rows["unrecorded_rows"], real)
        counters.ratio("fallback_fraction", self._rows["fallback_sequences"], self._sequences)
        for layer, (top_k, tensor) in self._overlap.items():
            rows, different, disjoint, common = tensor.tolist()
            counters.ratio(layer_key("overlap", layer), common, rows * top_k)
            counters.count(layer_key("live_mismatch", layer), different)
            counters.ratio("no_overlap_fraction", disjoint, rows)
        for layer, differing in self._repeated.items():
            counters.count(layer_key("recompute_mismatch", layer), differing.item())
        if self._calls:
            calls = self._calls.read()
            for name in ("clamped_ids", "zero_probabilities"):
                counters.count(name, calls[name])
        self._rows, self._sequences = dict.fromkeys(self._rows, 0), 0
        self._overlap.clear()
        self._repeated.clear()
