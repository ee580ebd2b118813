"""The choice of one layer: the experts of the pass that runs, or the live ones."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from routing_replay_trainer._hooks import Binding
from routing_replay_trainer._passes import Answer
from routing_replay_trainer.fetch import REPLAYED
from routing_replay_trainer.hf._modules import LiveRouter
from routing_replay_trainer.hf._rewrite import ATTRIBUTE

_NOBODY = 0
_NUMBERS = itertools.count(_NOBODY + 1)
_CHOOSERS: weakref.WeakValueDictionary[int, Chooser] = weakref.WeakValueDictionary()


class Choice:
    """Stands in the place of torch.topk in a method that chooses experts: the scores of the experts that are chosen,
    and their ids [N, K]. A copy of a model gets one that is nobody's, which is torch.topk.

    The layer is told apart by a tensor, not by a number: torch.compile compiles the layers of a model once.
    """

    def __init__(self, number: int = _NOBODY) -> None:
        self.is_attached = number != _NOBODY
        self.handle = torch.tensor(number, device="cpu")

    def __call__(
        self, scores: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.ops.routing_replay.choose_experts(scores.detach(), self.handle, k, sorted)
        return scores.gather(-1, ids), ids

    def __deepcopy__(self, memo: Any) -> Choice:
        return Choice()

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice, ()


class Chooser:
    """The choice of a router that is attached.

    binding: of the layer
    live_pads: whether pads choose live; else they take filler
    """

    def __init__(self, router: LiveRouter, binding: Binding, *, live_pads: bool) -> None:
        self._router = router
        self._binding = binding
        self._live_pads = live_pads
        self._number = next(_NUMBERS)

    def install(self) -> None:
        _CHOOSERS[self._number] = self
        module = self._router.module
        setattr(module, ATTRIBUTE, Choice(self._number))
        setattr(module, self._router.method, types.MethodType(self._router.replacement, module))

    def remove(self) -> None:
        _CHOOSERS.pop(self._number, None)
        for name in (ATTRIBUTE, self._router.method):
            vars(self._router.module).pop(name, None)

    def choose(self, scores: torch.Tensor, top_k: int, live: Callable[[], torch.Tensor]) -> torch.Tensor:
        answer = self._binding.ask(tuple(scores.shape), top_k)
        if answer is None:
            return live()
        if answer.of.use == "replay":
            return self._replayed(answer, scores.device, live)
        chosen = live()
        self._binding.seen(answer, chosen)
        self._binding.used(answer, chosen)
        return chosen.clone()  # What the model gets is its own: compiled code writes into it.

    def _replayed(self, answer: Answer, device: Any, live: Callable[[], torch.Tensor]) -> torch.Tensor:
        """[N, K]: the ids of the record, and the live choice where a row has none."""
        binding, batch = self._binding, answer.of.batch
        ids = binding.ids(answer, device).long()
        # The plan's own pads: last tokens on filler count as pads, and nothing else may want a choice.
        live_pads = self._live_pads and batch.plan.row_map["pads"] > 0
        has_live = live_pads or batch.unrecorded_rows + batch.live_rows > 0
        wants_live = binding.wants_live(answer)
        if has_live or wants_live:
            chosen = live()
        if has_live:
            not_replayed = binding.states(answer, device) != REPLAYED
            alive = not_replayed if live_pads else binding.chooses_live(answer, device)
            ids = torch.where(alive.unsqueeze(1), chosen, ids)
        if wants_live:
            binding.seen(answer, chosen)
        binding.used(answer, ids)
        return ids


@torch.library.custom_op("routing_replay::choose_experts", mutates_args=())
def _choose(scores: torch.Tensor, handle: torch.Tensor, top_k: int, sorted: bool) -> torch.Tensor:
    """An operator, so that torch.compile keeps it in the graph and asks at every call."""

    def live() -> torch.Tensor:
        return torch.topk(scores, top_k, dim=-1, sorted=sorted).indices

    chooser = _CHOOSERS.get(int(handle))
    return live() if chooser is None else chooser.choose(scores, top_k, live)


@_choose.register_fake
def _(scores: torch.Tensor, handle: torch.Tensor, top_k: int, sorted: bool) -> torch.Tensor:
    return scores.new_empty((*scores.shape[:-1], top_k), dtype=torch.int64)
