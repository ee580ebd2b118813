"""Native mode: Megatron-Core's own RouterReplay, told at each of its calls which ids to take.

A router asks its RouterReplay once per call (`get_replay_topk`), forward and recompute alike. There its target and
action are set, for this call alone: no list that passes could shift, no flag that a schedule must turn.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from routing_replay_trainer._hooks import Binding
from routing_replay_trainer._passes import Answer

# By identity: a copy of a model has copies of these objects, which are in no list and therefore live.
_BINDINGS: weakref.WeakKeyDictionary[Any, Binding] = weakref.WeakKeyDictionary()


def install(binding: Binding) -> None:
    replay = binding.module.router_replay
    _BINDINGS[replay] = binding
    replay.get_replay_topk = types.MethodType(get_replay_topk, replay)


def remove(binding: Binding) -> None:
    replay = binding.module.router_replay
    if _BINDINGS.get(replay) is binding:
        del _BINDINGS[replay]
        vars(replay).pop("get_replay_topk", None)


def is_bound(module: Any) -> bool:
    """Whether a replay is attached to this router."""
    return getattr(module, "router_replay", None) in _BINDINGS


@torch.compiler.disable
def get_replay_topk(
    self: Any, scores: Any, topk: int, num_groups: Any = None, group_topk: Any = None, default_compute_topk: Any = None
) -> tuple[Any, Any]:
    """RouterReplay.get_replay_topk with this call's target. Ids are int64 here and not before."""
    original = type(self).get_replay_topk

    def live() -> tuple[Any, Any]:
        return default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)

    binding = _BINDINGS.get(self)
    answer = None if binding is None else binding.ask(tuple(scores.shape), topk)
    if answer is None:
        return original(self, scores, topk, num_groups, group_topk, default_compute_topk)
    if answer.of.use == "replay":
        ids = replayed(binding, answer, scores.device, live)
        return _with_target(self, original, ids, (scores, topk, num_groups, group_topk, default_compute_topk))
    return live_choice(binding, answer, live)


def live_choice(binding: Binding, answer: Answer, live: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Scores and ids of a pass that records or compares."""
    values, chosen = live()
    binding.seen(answer, chosen)
    binding.used(answer, chosen)
    return values, chosen


def replayed(binding: Binding, answer: Answer, device: Any, live: Callable[[], tuple[Any, Any]]) -> torch.Tensor:
    """[N, K] int64: those of the record, and the live choice where a row has none."""
    ids = binding.ids(answer, device).long()
    batch, wants_live = answer.of.batch, binding.wants_live(answer)
    has_live = batch.unrecorded_rows + batch.live_rows > 0
    if has_live or wants_live:
        with torch.no_grad():
            chosen = live()[1]
    if has_live:
        ids = torch.where(binding.chooses_live(answer, device).unsqueeze(1), chosen, ids)
    if wants_live:
        binding.seen(answer, chosen)
    binding.used(answer, ids)
    return ids


def _with_target(replay: Any, original: Any, ids: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    # Beside the class: its method may be a framework's, which wraps Megatron's.
    kinds = (getattr(sys.modules[kind.__module__], "RouterReplayAction", None) for kind in type(replay).__mro__)
    action = next(kind for kind in kinds if kind is not None).REPLAY_FORWARD
    before = replay.target_topk_idx, replay.router_replay_action
    replay.target_topk_idx, replay.router_replay_action = ids, action
    try:
        return original(replay, *arguments)
    finally:
        replay.target_topk_idx, replay.router_replay_action = before
