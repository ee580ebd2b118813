"""Router replay on torch tensors, with the same native code as `routing_replay_trainer.router`. Needs torch 2.6 or
later.

    probs, routing_map, chosen, counters = ops.router_replay(router, logits, ids, states)

The operator runs where its tensors are, on the CPU or on a GPU. On a GPU its work is one kernel on the current stream;
the host neither waits nor copies, so a CUDA graph may capture it. Activation checkpointing runs it again with the same
result; torch.compile breaks its graphs at the operator. The native code is not linked against torch and gets only
addresses. `compare` consists of torch's own operators.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from ctypes import byref
from typing import Any, NamedTuple

import torch

from routing_replay_trainer import _core
from routing_replay_trainer.fetch import REPLAYED, UNRECORDED
from routing_replay_trainer.router import Router, check_array, check_logits, wrong

COUNTERS = tuple(name for name, _ in _core.Counters._fields_)  # The meanings of the numbers in `Replayed.counters`.

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def launch(name: str, router: Any, rows: int, device: torch.device, *tensors: torch.Tensor | None) -> None:
    """Calls rrt_NAME on the CPU, or rrt_cuda_NAME, which also takes the stream, on a GPU. router: rrt_router"""
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    if device.type == "cpu":
        getattr(_core.LIBRARY, f"rrt_{name}")(byref(router), rows, *addresses)
        return
    function = getattr(_core.cuda_library(device.index), f"rrt_cuda_{name}")
    with on(device):
        function(byref(router), rows, *addresses, torch.cuda.current_stream(device).cuda_stream)


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which the device is the current one."""
    return contextlib.nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def zeros(count: int, device: torch.device) -> torch.Tensor:
    """Returns zeros [count] int64 on the device, for the counters of a call."""
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.int64, device=device)
    return _CLEARED.take(count, device)


class _Cleared:
    """Zeros prepared in advance, so that the counters of a call need no launch of their own. Thread-safe."""

    _CALLS = 512

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: dict[Any, list[torch.Tensor]] = {}

    def take(self, count: int, device: torch.device) -> torch.Tensor:
        # One pool per stream: memory that was cleared on one stream may not be zero yet for another.
        key = (count, device.index, torch.cuda.current_stream(device).cuda_stream)
        with self._lock:
            left = self._store.get(key)
            if not left:
                # Normal tensors even inside torch.inference_mode(), because they are used after it, too.
                with torch.inference_mode(False), torch.no_grad():
                    block = torch.zeros((self._CALLS, count), dtype=torch.int64, device=device)
                    left = self._store[key] = list(block.unbind(0))
            return left.pop()


_CLEARED = _Cleared()


class Replayed(NamedTuple):
    """The result of `router_replay` for N rows.

    probs: [N, E] in the dtype of the logits, zero where routing_map is False; differentiable
    routing_map: [N, E] bool, True for the chosen experts
    chosen: [N, K] ids that were used, in slot order, in the dtype of `indices`
    counters: [4] int64 on the device of the logits: the counts of this call in the order of `COUNTERS`. Reading them on
        the host waits for the device, so add them up on the device and read them once per step
    """

    probs: torch.Tensor
    routing_map: torch.Tensor
    chosen: torch.Tensor
    counters: torch.Tensor


def id_dtype(num_experts: int) -> torch.dtype:
    """Returns the dtype of index tensors: uint8 if E is at most 256, else uint16."""
    return torch.uint8 if num_experts <= 256 else torch.uint16


@torch.compiler.disable
def router_replay(
    router: Router,
    logits: torch.Tensor,
    indices: torch.Tensor,
    states: torch.Tensor | None = None,
    *,
    expert_bias: torch.Tensor | None = None,
) -> Replayed:
    """Computes the probabilities of given experts from live logits, as `routing_replay_trainer.router_replay_forward`,
    and is differentiable with respect to the logits.

    logits: [N, E] float32, float64, bfloat16 or float16
    indices: [N, K] compact ids of `id_dtype`
    states: [N] uint8: UNRECORDED and LIVE rows take the live choice; if absent, all rows are replayed
    expert_bias: [E], taken as float32

    On a GPU the values of `states` are not checked: an unknown value counts as REPLAYED.

    Raises InvalidArgumentError naming the field, and FailedPreconditionError for GPU tensors if the kernels are not
    available.
    """
    check_logits("logits", logits, router)
    if states is None:
        states = torch.full((logits.shape[0],), REPLAYED, dtype=torch.uint8, device=logits.device)
    if expert_bias is not None:
        expert_bias = expert_bias.detach().float()
    handle = _handle(router, logits.dtype)
    if not (logits.requires_grad and torch.is_grad_enabled()):
        return Replayed(*_forward(handle, logits, indices, states, expert_bias))
    rest: list[Any] = []
    probs = _Differentiable.apply(logits, indices, states, expert_bias, handle, rest)
    return Replayed(probs, *rest)


def router_live(router: Router, logits: torch.Tensor, *, expert_bias: torch.Tensor | None = None) -> Replayed:
    """As `router_replay`, but all rows take the live choice. `chosen` is what to record, best expert first."""
    rows = logits.shape[0]
    ids = torch.zeros((rows, router.top_k), dtype=id_dtype(router.num_experts), device=logits.device)
    states = torch.full((rows,), UNRECORDED, dtype=torch.uint8, device=logits.device)
    return router_replay(router, logits, ids, states, expert_bias=expert_bias)


def compare(live: torch.Tensor, replayed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Compares the two choices of each REPLAYED row as sets of experts. Returns [4] int64 on the tensors' device: rows
    compared, rows whose sets differ, rows without a common expert, and the number of common experts of all rows. Add
    the results of several calls up on the device and read the sum once a step.

    live: [N, K] ids of any integer dtype
    replayed: [N, K] compact ids of `id_dtype`
    states: [N] uint8
    """
    takes_part, replayed = states == REPLAYED, replayed.int()
    same = live.int().unsqueeze(2) == replayed.unsqueeze(1)  # [N, K live, K replayed]
    again = (replayed.unsqueeze(2) == replayed.unsqueeze(1)).tril(-1).any(2)
    common = (same.any(1) & ~again).sum(1)
    different = ~(same.any(1) & same.any(2)).all(1)
    counts = (torch.ones_like(common), different, common == 0, common)
    return torch.stack([(count * takes_part).sum() for count in counts])


@functools.lru_cache(maxsize=1024)
def _handle(router: Router, dtype: torch.dtype) -> Any:
    """Returns the rrt_router of a router for logits of a dtype."""
    if dtype not in _DTYPES:
        raise wrong("logits", f"dtype must be float32, float64, bfloat16 or float16, got {dtype}", "DTYPE")
    return router._core(_DTYPES[dtype])


def _exactly(
    field: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    check_array(field, tensor, shape, dtype)
    if tensor.device != device:
        raise wrong(field, f"is on {tensor.device}, not on {device}", "FIELD")
    return tensor.contiguous()


def _forward(
    router: Any, logits: torch.Tensor, indices: torch.Tensor, states: torch.Tensor, expert_bias: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """router: rrt_router"""
    (rows, experts), device = logits.shape, logits.device
    logits = logits.contiguous()
    indices = _exactly("indices", indices, (rows, router.top_k), id_dtype(experts), device)
    states = _exactly("states", states, (rows,), torch.uint8, device)
    if expert_bias is not None:
        expert_bias = _exactly("expert_bias", expert_bias, (experts,), torch.float32, device)
    probs = torch.empty_like(logits)
    routing_map = torch.empty(logits.shape, dtype=torch.bool, device=device)
    chosen = torch.empty_like(indices)
    counters = zeros(len(COUNTERS), device)
    given, made = (logits, indices, states, expert_bias), (probs, routing_map, chosen, counters)
    launch("router_forward", router, rows, device, *given, *made)
    return probs, routing_map, chosen, counters


class _Differentiable(torch.autograd.Function):
    """Returns only probs. The other outputs have no gradient and go to `rest`, because each output of an autograd
    function costs host time."""

    @staticmethod
    def forward(
        ctx: Any, logits: Any, indices: Any, states: Any, expert_bias: Any, router: Any, rest: list[Any]
    ) -> Any:
        probs, *rest[:] = _forward(router, logits, indices, states, expert_bias)
        ctx.router = router
        ctx.save_for_backward(logits, rest[1])
        return probs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_probs: Any) -> Any:
        logits, chosen = ctx.saved_tensors
        logits, grad_probs = logits.contiguous(), grad_probs.to(logits.dtype).contiguous()
        grad_logits = torch.empty_like(logits)
        counters = None if logits.is_cuda else zeros(len(COUNTERS), logits.device)
        tensors = (logits, chosen, grad_probs, grad_logits, counters)
        launch("router_backward", ctx.router, len(logits), logits.device, *tensors)
        return grad_logits, None, None, None, None, None
