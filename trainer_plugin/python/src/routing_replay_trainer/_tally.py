"""What a replay counts for the metrics. Needs torch."""

from __future__ import annotations

import torch

from routing_replay_trainer.fetch import Batch


class Tally:
    """Counts since they were last taken. Overlaps stay on their device until then."""

    def __init__(self) -> None:
        self._rows = {"replayed_rows": 0, "unrecorded_rows": 0, "pad_rows": 0, "fallback_sequences": 0}
        self._overlap: dict[int, tuple[int, torch.Tensor]] = {}
        self._repeated: dict[int, torch.Tensor] = {}

    def batch(self, batch: Batch) -> None:
        for name in self._rows:
            self._rows[name] += getattr(batch, name)

    def overlap(self, layer: int, counts: torch.Tensor, top_k: int) -> None:
        """counts: those of `ops.compare`"""
        before = self._overlap.get(layer)
        self._overlap[layer] = top_k, counts if before is None else counts + before[1]

    def repeat(self, layer: int, rows: torch.Tensor) -> None:
        """rows: [] whose choice was another one when the forward code was run again"""
        self._repeated[layer] = rows + self._repeated.get(layer, 0)

    def take(self) -> dict[str, float]:
        """As `Replay.metrics` has them; all are zero then."""
        said: dict[str, float] = {f"routing_replay/{key}": float(value) for key, value in self._rows.items()}
        real = self._rows["replayed_rows"] + self._rows["unrecorded_rows"]
        said["routing_replay/replayed_fraction"] = self._rows["replayed_rows"] / real if real else 0.0
        compared = disjoint = 0
        for layer, (top_k, tensor) in sorted(self._overlap.items()):
            rows, different, none, common = tensor.tolist()
            said[f"routing_replay/overlap/layer_{layer:02}"] = common / (rows * top_k) if rows else 0.0
            said[f"routing_replay/live_mismatch/layer_{layer:02}"] = float(different)
            compared, disjoint = compared + rows, disjoint + none
        if compared:
            said["routing_replay/no_overlap_fraction"] = disjoint / compared
        for layer, rows in sorted(self._repeated.items()):
            said[f"routing_replay/recompute_mismatch/layer_{layer:02}"] = float(rows)
        self._rows = dict.fromkeys(self._rows, 0)
        self._overlap.clear()
        self._repeated.clear()
        return said
