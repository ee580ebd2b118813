"""What router calls count, left on the device until somebody asks."""

from __future__ import annotations

import torch

from routing_replay_trainer import ops

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
