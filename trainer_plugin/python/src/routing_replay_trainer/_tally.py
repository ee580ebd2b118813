"""What a replay counts for the metrics. Needs torch."""

from __future__ import annotations

import torch

from routing_replay_trainer.fetch import Batch


class Tally:
    """Counts since they were last taken. Overlaps stay on their device until then."""

    def __init__(self) -> None:
        self._rows = {"replayed_rows": 0, "unrecorded_rows": 0, "pad_rows": 0, "fallback_sequences": 0}
        self._overlap: dict[int, torch.Tensor] = {}

    def batch(self, batch: Batch) -> None:
        for name in self._rows:
            self._rows[name] += getattr(batch, name)

    def overlap(self, layer: int, counts: torch.Tensor) -> None:
        """counts: those of `ops.overlap`"""
        self._overlap[layer] = counts + self._overlap.get(layer, 0)

    def take(self) -> dict[str, float]:
        """As `Replay.metrics` has them; all are zero then."""
        said: dict[str, float] = {f"routing_replay/{key}": float(value) for key, value in self._rows.items()}
        real = self._rows["replayed_rows"] + self._rows["unrecorded_rows"]
        said["routing_replay/replayed_fraction"] = self._rows["replayed_rows"] / real if real else 0.0
        counts = {layer: tensor.tolist() for layer, tensor in sorted(self._overlap.items())}
        for layer, (_, slots, common, _) in counts.items():
            said[f"routing_replay/overlap/layer_{layer:02}"] = common / slots if slots else 0.0
        compared = sum(rows for rows, *_ in counts.values())
        if compared:
            said["routing_replay/no_overlap_fraction"] = sum(none for *_, none in counts.values()) / compared
        self._rows = dict.fromkeys(self._rows, 0)
        self._overlap.clear()
        return said
