"""One router of the live model, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from routing_replay_trainer import errors, ops
from routing_replay_trainer._passes import Answer, ChunkPasses
from routing_replay_trainer._tally import Tally
from routing_replay_trainer._values import invalid
from routing_replay_trainer.fetch import LIVE, UNRECORDED
from routing_replay_trainer.plan import Layer


class Binding:
    """module: the router
    name, layer: where it stands
    passes: of its chunk
    tally: counts what passes compare
    is_recompute: whether a call of now is forward code that is run again
    """

    def __init__(
        self,
        module: Any,
        name: str,
        layer: int,
        passes: ChunkPasses,
        tally: Tally,
        is_recompute: Callable[[], bool],
    ) -> None:
        self.module = module
        self.name = name
        self.layer = layer
        self._passes = passes
        self._tally = tally
        self._is_recompute = is_recompute

    def ask(self, shape: tuple[int, ...], top_k: int) -> Answer | None:
        """What this call is. InvalidArgumentError naming router and layer unless the ids are for [N, E] and K:
        RouterReplay itself takes fewer rows and other columns without a word."""
        answer = self._passes.ask(self.layer, recompute=self._is_recompute())
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

    def chooses_live(self, answer: Answer, device: Any) -> torch.Tensor:
        """[N] bool on the device: rows of real tokens that are not replayed."""
        states = self.states(answer, device)
        return (states == UNRECORDED) | (states == LIVE)

    def seen(self, answer: Answer, chosen: torch.Tensor) -> None:
        """The live choice [N, K]. A pass that records keeps it; others count how much it has of what is, or would be,
        replayed. Recompute repeats it and says nothing new."""
        if answer.recompute:
            return
        if answer.of.use == "record":
            self.ids(answer, chosen.device).copy_(chosen)
            return
        ids, states = self.ids(answer, chosen.device), self.states(answer, chosen.device)
        counts = ops.compare(chosen, ids, states)
        self._tally.overlap(self.layer, counts, chosen.shape[1])
        if answer.of.watch is not None:
            answer.of.watch.saw(answer.of.key.chunk, answer.of.batch, answer.slot, chosen, ids, counts)

    def called(self, answer: Answer, counters: torch.Tensor) -> None:
        """counters: of a call of our operator; recompute repeats it"""
        if not answer.recompute:
            self._tally.called(counters)

    def wants_live(self, answer: Answer) -> bool:
        """Whether a pass that replays wants to know the live choice, too."""
        return answer.of.watch is not None and not answer.recompute

    def used(self, answer: Answer, chosen: torch.Tensor) -> None:
        """The choice [N, K] that the router goes on with: in a recompute that of the forward pass, or activations do
        not fit their gradients. As sets: torch.topk's order depends on whether gradients are wanted."""
        if answer.of.watch is None or answer.of.forward_only:
            return
        # Ids that are alike are so in two bytes, too, which torch.uint16 could not be asked about.
        narrow = torch.uint8 if self._slab(answer).num_experts <= 256 else torch.int16
        choice, key = chosen.to(narrow).sort(1).values, ("used", answer.slot)
        if not answer.recompute:
            answer.of.kept[key] = choice
        elif key in answer.of.kept:
            self._tally.repeat(self.layer, (choice != answer.of.kept[key]).any(1).sum())

    def _slab(self, answer: Answer) -> Layer:
        layer = answer.of.batch.plan.layers[answer.slot]
        if layer.layer != self.layer:
            raise errors.InternalError(f"slot {answer.slot} is layer {layer.layer}, not {self.layer}")
        return layer
