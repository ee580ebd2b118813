"""What a replay counts for the metrics, left on the device until somebody asks. Needs torch."""

from __future__ import annotations

from collections import Counter

import torch

from routing_replay_trainer import ops
from routing_replay_trainer._passes import PassKey
from routing_replay_trainer.fetch import Batch
from routing_replay_trainer.metrics import Counters, layer_key

_MOST = 512  # Kept apart at one time.


class Counted:
    """The counters of a router's calls. Adding none of them waits for the device or launches anything, but for one in
    many."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        """Whether there was a call since the last time."""
        return bool(self._kept)

    def add(self, counters: torch.Tensor) -> None:
        self._kept.append(counters)
        if len(self._kept) == _MOST:
            self._kept = [torch.stack(self._kept).sum(0)]

    def read(self) -> dict[str, int]:
        """All calls since the last time, by `ops.COUNTERS`; waits for the device."""
        kept, self._kept = self._kept, []
        total = torch.stack(kept).sum(0).tolist() if kept else [0] * len(ops.COUNTERS)
        return dict(zip(ops.COUNTERS, total, strict=True))


_COUNTED = ("replayed_rows", "unrecorded_rows", "live_rows", "pad_rows", "fallback_sequences")  # Of a batch.


class Tally:
    """Counts since they were last taken. Overlaps stay on their device until then. What a pass has fetched counts once
    it is settled or taken, and not where the pass was given up before."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()  # And "sequences".
        self._open: dict[PassKey, Counter[str]] = {}
        self._overlap: dict[int, tuple[int, torch.Tensor]] = {}
        self._repeated: dict[int, torch.Tensor] = {}
        self._calls = Counted()

    def batch(self, key: PassKey, batch: Batch) -> None:
        counts = {name: getattr(batch, name) for name in _COUNTED}
        self._open[key] = Counter(counts | {"sequences": len(batch.sequences)})

    def forget(self, key: PassKey | None) -> None:
        """A pass, or all of the step, was given up."""
        if key is None:
            self._open.clear()
        else:
            self._open.pop(key, None)

    def settle(self) -> None:
        """Nobody gives up the passes that were so far."""
        for counts in self._open.values():
            self._rows.update(counts)
        self._open.clear()

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
        self.settle()
        for name in _COUNTED:
            counters.count(name, self._rows[name])
        rows = {name: self._rows[f"{name}_rows"] for name in ("replayed", "unrecorded", "live")}
        for name, count in rows.items():
            counters.ratio(f"{name}_fraction", count, sum(rows.values()))
        counters.ratio("fallback_fraction", self._rows["fallback_sequences"], self._rows["sequences"])
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
        self._rows.clear()
        self._overlap.clear()
        self._repeated.clear()
