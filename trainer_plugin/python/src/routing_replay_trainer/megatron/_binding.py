"""One router of the live model, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from routing_replay_trainer import errors
from routing_replay_trainer._values import invalid
from routing_replay_trainer.megatron._counted import Counted
from routing_replay_trainer.megatron._modules import is_recompute
from routing_replay_trainer.megatron._passes import Answer, ChunkPasses
from routing_replay_trainer.plan import Layer


class Binding:
    """module: the router
    name, layer: where it stands
    passes: of its chunk
    on_seen: called with (answer, layer, live choice [N, K]) where the pass does not replay
    """

    def __init__(
        self, module: Any, name: str, layer: int, passes: ChunkPasses, on_seen: Callable[[Answer, int, Any], None]
    ) -> None:
        self.module = module
        self.name = name
        self.layer = layer
        self.counted = Counted()  # Of our operator's replaying calls.
        self._passes = passes
        self._on_seen = on_seen

    def ask(self, shape: tuple[int, ...], top_k: int) -> Answer | None:
        """What this call is. InvalidArgumentError naming router and layer unless the ids are for [N, E] and K:
        RouterReplay itself takes fewer rows and other columns without a word."""
        answer = self._passes.ask(self.layer, recompute=is_recompute())
        if answer is None:
            return None
        layer = self._slab(answer)
        wanted = (answer.of.batch.plan.rows, layer.num_experts, layer.top_k)
        if (*shape, top_k) != wanted:
            raise invalid(
                "micro_batch",
                f"{self.name} routes {shape[0]} rows over {shape[1]} experts, {top_k} each, and the plan of "
                f"micro-batch {answer.of.key.micro_batch} {wanted[0]} rows over {wanted[1]} experts, {wanted[2]} each",
                "SHAPE",
            )
        return answer

    def ids(self, answer: Answer, device: Any) -> torch.Tensor:
        """[N, K] compact ids on the device."""
        kept = answer.of.kept
        key = ("ids", answer.slot, device)
        if key not in kept:
            kept[key] = torch.from_numpy(answer.of.batch.indices[answer.slot]).to(device, non_blocking=True)
        return kept[key]

    def states(self, answer: Answer, device: Any) -> torch.Tensor:
        """[N] uint8 on the device."""
        kept = answer.of.kept
        if ("states", device) not in kept:
            kept["states", device] = torch.from_numpy(answer.of.batch.states).to(device, non_blocking=True)
        return kept["states", device]

    def seen(self, answer: Answer, chosen: Any) -> None:
        """A live choice of a pass that records or compares; recompute repeats it and says nothing new."""
        if not answer.recompute:
            self._on_seen(answer, self.layer, chosen)

    def _slab(self, answer: Answer) -> Layer:
        layer = answer.of.batch.plan.layers[answer.slot]
        if layer.layer != self.layer:
            raise errors.InternalError(f"slot {answer.slot} is layer {layer.layer}, not {self.layer}")
        return layer
