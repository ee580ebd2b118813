"""Router replay as operators of torch, over the same core as `routing_replay_trainer.router`. Needs torch 2.6 or later.

    probs, routing_map, chosen, counters = ops.router_replay(router, logits, ids, states)

The operators have fake and autograd registrations: torch.compile keeps them in the graph, and activation checkpointing
runs them again with the same result. Nothing is linked against torch: the core gets addresses.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, NamedTuple

import torch

from routing_replay_trainer import errors
from routing_replay_trainer._core import LIBRARY, Counters
from routing_replay_trainer._values import invalid
from routing_replay_trainer.fetch import REPLAYED, UNRECORDED
from routing_replay_trainer.router import Router

COUNTERS = tuple(name for name, _ in Counters._fields_)  # What the numbers of `Replayed.counters` count.

# What those of `compare` count: rows compared, rows whose sets of experts differ, rows that have no expert in common,
# and experts in common.
COMPARED = ("rows", "different_rows", "disjoint_rows", "common_ids")

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
_CONFIG = "str score_function, bool pre_softmax, float? scaling_factor, int? num_groups, int? group_topk, str rounding"


class Replayed(NamedTuple):
    """What `router_replay` gives, N rows.

    probs: [N, E] in the dtype of the logits, zero outside the map; differentiable
    routing_map: [N, E] bool
    chosen: [N, K] ids in use, in slot order, in the dtype of the given ones
    counters: [5] int64 on the device of the logits, the numbers of this call in the order of `COUNTERS`: reading them
        on the host waits for the device, so add them up and read them once a step
    """

    probs: torch.Tensor
    routing_map: torch.Tensor
    chosen: torch.Tensor
    counters: torch.Tensor


def id_dtype(num_experts: int) -> torch.dtype:
    """Of index tensors: uint8 if E is at most 256, else uint16."""
    return torch.uint8 if num_experts <= 256 else torch.uint16


def router_replay(
    router: Router,
    logits: torch.Tensor,
    indices: torch.Tensor,
    states: torch.Tensor | None = None,
    *,
    expert_bias: torch.Tensor | None = None,
) -> Replayed:
    """Probabilities of given experts from live logits, as `routing_replay_trainer.router_replay_forward`, with the
    gradient of the logits.

    logits: [N, E] float32, float64 or bfloat16
    indices: [N, K] compact ids of `id_dtype`
    states: [N] uint8: rows that are UNRECORDED take the live choice; all rows are replayed if absent
    expert_bias: [E], taken as float32

    Raises InvalidArgumentError naming the field.
    """
    if logits.ndim != 2 or logits.shape[1] != router.num_experts:
        raise _wrong("logits", f"shape {tuple(logits.shape)} is not (N, {router.num_experts})")
    if indices.ndim != 2 or indices.shape[1] != router.top_k:
        raise _wrong("indices", f"shape {tuple(indices.shape)} is not (N, {router.top_k})")
    if states is None:
        states = torch.full((logits.shape[0],), REPLAYED, dtype=torch.uint8, device=logits.device)
    if expert_bias is not None:
        expert_bias = expert_bias.detach().float()
    return Replayed(*torch.ops.routing_replay.router_forward(logits, indices, states, expert_bias, *_config(router)))


def router_live(router: Router, logits: torch.Tensor, *, expert_bias: torch.Tensor | None = None) -> Replayed:
    """The same for rows that all take the live choice: what is recorded is `chosen`, best first."""
    rows = logits.shape[0]
    ids = torch.zeros((rows, router.top_k), dtype=id_dtype(router.num_experts), device=logits.device)
    states = torch.full((rows,), UNRECORDED, dtype=torch.uint8, device=logits.device)
    return router_replay(router, logits, ids, states, expert_bias=expert_bias)


def compare(live: torch.Tensor, replayed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """How alike two choices are, as sets, over the rows that are REPLAYED: [4] int64 on their device, the numbers of
    this call in the order of `COMPARED`. As `Replayed.counters`, to be added up and read once a step.

    live: [N, K] ids of any integer dtype
    replayed: [N, K] compact ids of `id_dtype`
    states: [N] uint8
    """
    counted = states == REPLAYED
    common = (replayed.long().unsqueeze(2) == live.long().unsqueeze(1)).any(2).sum(1)
    different, disjoint = ((common != live.shape[1]) & counted).sum(), ((common == 0) & counted).sum()
    return torch.stack((counted.sum(), different, disjoint, (common * counted).sum()))


def _config(router: Router) -> tuple[Any, ...]:
    return (
        router.score_function,
        router.pre_softmax,
        router.scaling_factor,
        router.num_groups,
        router.group_topk,
        router.rounding,
    )


def _router(logits: torch.Tensor, ids: torch.Tensor, config: tuple[Any, ...]) -> Any:
    """rrt_router"""
    if logits.dtype not in _DTYPES:
        raise _wrong("logits", f"{logits.dtype} is none of float32, float64, bfloat16", "DTYPE")
    score_function, pre_softmax, scaling_factor, num_groups, group_topk, rounding = config
    return Router(
        logits.shape[1],
        ids.shape[1],
        score_function,
        pre_softmax=pre_softmax,
        scaling_factor=scaling_factor,
        num_groups=num_groups,
        group_topk=group_topk,
        rounding=rounding,
    )._core(_DTYPES[logits.dtype])


def _exactly(field: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise _wrong(field, f"shape {tuple(tensor.shape)} is not {shape}")
    if tensor.dtype != dtype:
        raise _wrong(field, f"{tensor.dtype} is not {dtype}", "DTYPE")
    return tensor.contiguous()


def _wrong(field: str, what: str, reason: str = "SHAPE") -> errors.InvalidArgumentError:
    return invalid(f"router.{field}", what, reason)


@torch.library.custom_op(
    "routing_replay::router_forward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor logits, Tensor indices, Tensor states, Tensor? expert_bias, "
    + _CONFIG
    + ") -> (Tensor, Tensor, Tensor, Tensor)",
)
def _forward(
    logits: torch.Tensor,
    indices: torch.Tensor,
    states: torch.Tensor,
    expert_bias: torch.Tensor | None,
    *config: Any,
) -> tuple[torch.Tensor, ...]:
    router = _router(logits, indices, config)
    rows, experts = logits.shape
    logits = logits.contiguous()
    indices = _exactly("indices", indices, (rows, router.top_k), id_dtype(experts))
    states = _exactly("states", states, (rows,), torch.uint8)
    if expert_bias is not None:
        expert_bias = _exactly("expert_bias", expert_bias, (experts,), torch.float32)
    probs = torch.empty_like(logits)
    routing_map = torch.empty(logits.shape, dtype=torch.bool)
    chosen = torch.empty_like(indices)
    counters = Counters()
    LIBRARY.rrt_router_forward(
        byref(router),
        rows,
        logits.data_ptr(),
        indices.data_ptr(),
        states.data_ptr(),
        None if expert_bias is None else expert_bias.data_ptr(),
        probs.data_ptr(),
        routing_map.data_ptr(),
        None,
        chosen.data_ptr(),
        byref(counters),
    )
    return probs, routing_map, chosen, torch.tensor([getattr(counters, name) for name in COUNTERS])


@_forward.register_fake
def _(logits: Any, indices: Any, states: Any, expert_bias: Any, *config: Any) -> tuple[torch.Tensor, ...]:
    return (
        logits.new_empty(logits.shape),
        logits.new_empty(logits.shape, dtype=torch.bool),
        indices.new_empty(indices.shape),
        logits.new_empty((len(COUNTERS),), dtype=torch.int64),
    )


@torch.library.custom_op(
    "routing_replay::router_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor logits, Tensor chosen, Tensor grad_probs, " + _CONFIG + ") -> Tensor",
)
def _backward(logits: torch.Tensor, chosen: torch.Tensor, grad_probs: torch.Tensor, *config: Any) -> torch.Tensor:
    router = _router(logits, chosen, config)
    rows, experts = logits.shape
    logits = logits.contiguous()
    chosen = _exactly("chosen", chosen, (rows, router.top_k), id_dtype(experts))
    grad_probs = _exactly("grad_probs", grad_probs, (rows, experts), logits.dtype)
    grad_logits = torch.empty_like(logits)
    LIBRARY.rrt_router_backward(
        byref(router),
        rows,
        logits.data_ptr(),
        chosen.data_ptr(),
        grad_probs.data_ptr(),
        grad_logits.data_ptr(),
        byref(Counters()),
    )
    return grad_logits


@_backward.register_fake
def _(logits: Any, chosen: Any, grad_probs: Any, *config: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, _, _, _, *ctx.config = inputs
    ctx.save_for_backward(logits, output[2])


def _gradient(ctx: Any, grad_probs: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    logits, chosen = ctx.saved_tensors
    grad = None
    if grad_probs is not None:
        grad = torch.ops.routing_replay.router_backward(logits, chosen, grad_probs.to(logits.dtype), *ctx.config)
    return (grad, *(None,) * (3 + len(ctx.config)))


_forward.register_autograd(_gradient, setup_context=_save)
