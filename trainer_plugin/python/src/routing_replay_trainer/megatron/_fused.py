"""Fused mode: our operator in the place of topk_routing_with_score_function, for the routers of the attached model.

What TopKRouter.routing does before and after (z-loss, capacity, auxiliary losses, statistics of the expert bias) stays
Megatron-Core's. The function is replaced where this router's `routing` looks for it, and nowhere else.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from routing_replay_trainer import ops
from routing_replay_trainer._hooks import Binding
from routing_replay_trainer._launch import has_code
from routing_replay_trainer._passes import Answer
from routing_replay_trainer.megatron import _native
from routing_replay_trainer.megatron._modules import refusal
from routing_replay_trainer.router import Router

_REPLACED = "topk_routing_with_score_function"
# By identity: a copy of a model has copies of these modules, which are not in here and therefore live.
_ROUTINGS: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def install(binding: Binding) -> None:
    module = binding.module
    own = type(module).routing
    code = getattr(own, "__code__", None)
    if code is None or _REPLACED not in code.co_names or _REPLACED not in own.__globals__:
        raise refusal(binding.name, f"the routing() of {type(module).__name__} does not call {_REPLACED}")
    names = own.__globals__ | {_REPLACED: _replacement(binding, own.__globals__[_REPLACED])}
    with_replacement = types.FunctionType(code, names, own.__name__, own.__defaults__, own.__closure__)
    with_replacement.__kwdefaults__ = own.__kwdefaults__
    _ROUTINGS[module] = with_replacement
    module.routing = types.MethodType(routing, module)


def remove(binding: Binding) -> None:
    if _ROUTINGS.pop(binding.module, None) is not None:
        vars(binding.module).pop("routing", None)


def is_bound(module: Any) -> bool:
    """Whether a replay is attached to this router."""
    return module in _ROUTINGS


def routing(self: Any, *arguments: Any, **options: Any) -> Any:
    """Router.routing"""
    return _ROUTINGS.get(self, type(self).routing)(self, *arguments, **options)


def _replacement(binding: Binding, original: Callable[..., Any]) -> Callable[..., Any]:
    asks = "router_replay" in inspect.signature(original).parameters

    def topk_routing(logits: torch.Tensor, topk: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        answer = binding.ask(tuple(logits.shape), topk)
        if answer is None:
            return original(logits, topk, **options)
        if asks and not has_code(logits.device):
            return _without_kernels(binding, answer, original, logits, topk, options)
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
        binding.seen(answer, out.chosen)
        binding.used(answer, out.chosen)
        return original(logits, topk, **options) if answer.of.use == "compare" else (out.probs, out.routing_map)

    return topk_routing


def _without_kernels(
    binding: Binding,
    answer: Answer,
    original: Callable[..., Any],
    logits: torch.Tensor,
    topk: int,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """By Megatron-Core's own function, unfused, which asks here for the experts as it asks a RouterReplay."""

    def choice(
        scores: torch.Tensor, topk: int, num_groups: Any, group_topk: Any, compute_topk: Callable[..., Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def live() -> tuple[torch.Tensor, torch.Tensor]:
            return compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)

        if answer.of.use == "replay":
            ids = _native.replayed(binding, answer, scores.device, live)
            return scores.gather(1, ids), ids
        return _native.live_choice(binding, answer, live)

    asking = options | {"fused": False, "router_replay": types.SimpleNamespace(get_replay_topk=choice)}
    if answer.of.use != "compare":
        return original(logits, topk, **asking)
    with torch.no_grad():
        original(logits, topk, **asking)
    return original(logits, topk, **options)


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
    )


@functools.lru_cache(maxsize=1024)  # Making one costs a call of each layer more than what it does with it.
def _router(
    experts: int,
    topk: int,
    score_function: Any,
    pre_softmax: bool,
    scaling_factor: float | None,
    num_groups: int | None,
    group_topk: int | None,
) -> Router:
    return Router(
        experts,
        topk,
        score_function,
        pre_softmax=pre_softmax,
        scaling_factor=scaling_factor,
        num_groups=num_groups,
        group_topk=group_topk,
        rounding=_rounding(),
    )


def _rounding() -> Any:
    """Where this Megatron-Core rounds; before 0.18 after each step."""
    core = sys.modules.get("megatron.core")
    major, minor = (getattr(core, "__version__", None) or "1.0").split(".")[:2]
    return "each_step" if (int(major), int(minor)) < (0, 18) else "once"
