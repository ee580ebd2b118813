"""The two ways to pass replayed ids to Megatron's routers.

`Native` uses Megatron-Core's own RouterReplay. A router asks it once per call (`get_replay_topk`), in forward and in
recompute; target and action are set at that moment, for this call only. So there is no list of targets that could get
out of step with the passes, and no flag that a schedule must change.

`Fused` replaces topk_routing_with_score_function by our operator, only where `routing` of an attached router calls it.
What TopKRouter.routing does before and after (z-loss, capacity, auxiliary losses, statistics of the expert bias) stays
Megatron-Core's. On a GPU, `Fused` needs this package's kernels.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from routing_replay_trainer import ops
from routing_replay_trainer._core import unmet
from routing_replay_trainer._hooks import Binding
from routing_replay_trainer.router import Router

_REPLACED = "topk_routing_with_score_function"
# Keys are RouterReplay objects, or router modules. They are compared by identity, so those of a copy of an attached
# model are not found here, and route live.
_BINDINGS: weakref.WeakKeyDictionary[Any, Binding] = weakref.WeakKeyDictionary()
_ROUTINGS: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def is_bound(module: Any) -> bool:
    """Returns True if a replay is attached to this router."""
    return module in _ROUTINGS or getattr(module, "router_replay", None) in _BINDINGS


@dataclass(eq=False)
class Native:
    binding: Binding

    def install(self) -> None:
        replay = self.binding.module.router_replay
        _BINDINGS[replay] = self.binding
        replay.get_replay_topk = types.MethodType(get_replay_topk, replay)

    def remove(self) -> None:
        replay = self.binding.module.router_replay
        if _BINDINGS.get(replay) is self.binding:
            del _BINDINGS[replay]
            vars(replay).pop("get_replay_topk", None)


@dataclass(eq=False)
class Fused:
    binding: Binding

    def install(self) -> None:
        module, original = self.binding.module, type(self.binding.module).routing
        code = getattr(original, "__code__", None)
        if code is None or _REPLACED not in code.co_names or _REPLACED not in original.__globals__:
            raise unmet(self.binding.name, f"the routing() of {type(module).__name__} does not call {_REPLACED}")
        names = original.__globals__ | {_REPLACED: _replacement(self.binding, original.__globals__[_REPLACED])}
        with_replacement = types.FunctionType(
            code, names, original.__name__, original.__defaults__, original.__closure__
        )
        with_replacement.__kwdefaults__ = original.__kwdefaults__
        _ROUTINGS[module] = with_replacement
        module.routing = types.MethodType(routing, module)

    def remove(self) -> None:
        if _ROUTINGS.pop(self.binding.module, None) is not None:
            vars(self.binding.module).pop("routing", None)


INJECTIONS = {"native": Native, "fused": Fused}


@torch.compiler.disable
def get_replay_topk(
    self: Any, scores: Any, topk: int, num_groups: Any = None, group_topk: Any = None, default_compute_topk: Any = None
) -> tuple[Any, Any]:
    """Replaces RouterReplay.get_replay_topk of an attached router. In a pass that replays, calls the original with the
    ids of this call as its target. In one that records or compares, chooses live and tells the binding the choice."""
    original = type(self).get_replay_topk

    def live() -> tuple[Any, Any]:
        return default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)

    binding = _BINDINGS.get(self)
    answer = None if binding is None else binding.ask(tuple(scores.shape), topk)
    if answer is None:
        return original(self, scores, topk, num_groups, group_topk, default_compute_topk)
    if answer.of.use == "replay":
        ids = binding.replayed(answer, scores.device, lambda: live()[1])
        return _with_target(self, original, ids, (scores, topk, num_groups, group_topk, default_compute_topk))
    values, chosen = live()
    binding.chose(answer, chosen)
    return values, chosen


def _with_target(replay: Any, original: Any, ids: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    # RouterReplayAction is looked up in the modules of the classes: a framework may have wrapped the method `original`.
    kinds = (getattr(sys.modules[kind.__module__], "RouterReplayAction", None) for kind in type(replay).__mro__)
    action = next(kind for kind in kinds if kind is not None).REPLAY_FORWARD
    before = replay.target_topk_idx, replay.router_replay_action
    replay.target_topk_idx, replay.router_replay_action = ids, action
    try:
        return original(replay, *arguments)
    finally:
        replay.target_topk_idx, replay.router_replay_action = before


def routing(self: Any, *arguments: Any, **options: Any) -> Any:
    """Replaces the `routing` method of a router. Calls the router's own entry in _ROUTINGS, or else the original."""
    return _ROUTINGS.get(self, type(self).routing)(self, *arguments, **options)


def _replacement(binding: Binding, original: Callable[..., Any]) -> Callable[..., Any]:
    def topk_routing(logits: torch.Tensor, topk: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        answer = binding.ask(tuple(logits.shape), topk)
        if answer is None:
            return original(logits, topk, **options)
        router, bias = _router_of(logits.shape[1], topk, options), options.get("expert_bias")
        if answer.of.use == "replay":
            ids, states = binding.ids(answer, logits.device), binding.states(answer, logits.device)
            out = ops.router_replay(router, logits, ids, states, expert_bias=bias)
            if binding.wants_live(answer):
                binding.seen(answer, ops.router_live(router, logits.detach(), expert_bias=bias).chosen)
            binding.used(answer, out.chosen)
            binding.called(answer, out.counters)
            return out.probs, out.routing_map
        out = ops.router_live(router, logits, expert_bias=bias)
        binding.chose(answer, out.chosen)
        return original(logits, topk, **options) if answer.of.use == "compare" else (out.probs, out.routing_map)

    return topk_routing


# Cached, because making a Router takes more time than a call of the operator.
_router = functools.lru_cache(maxsize=1024)(Router)


def _router_of(experts: int, topk: int, options: dict[str, Any]) -> Router:
    get = options.get
    return _router(
        experts,
        topk,
        get("score_function", "softmax"),
        get("use_pre_softmax", False),
        get("scaling_factor"),
        get("num_groups") or None,
        get("group_topk") or None,
        _rounding(),
    )


def _rounding() -> Any:
    """Returns `Router.rounding` for this Megatron-Core version: "each_step" before 0.18, "once" from then on."""
    core = sys.modules.get("megatron.core")
    major, minor = (getattr(core, "__version__", None) or "1.0").split(".")[:2]
    return "each_step" if (int(major), int(minor)) < (0, 18) else "once"
