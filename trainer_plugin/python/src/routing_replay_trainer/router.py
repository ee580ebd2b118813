"""Router replay on the CPU: probabilities and routing map of a MoE layer whose experts were chosen elsewhere."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from routing_replay import errors
from routing_replay._values import INT32, choice, integer

from routing_replay_trainer._core import LIBRARY, Counters, invalid
from routing_replay_trainer._core import Router as _Router

_SCORE_FUNCTIONS = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2}
_ROUNDINGS = {"once": 0, "each_step": 1}
# Codes of the native library, by the name of the dtype.
_FLOATS = {"float32": 0, "float64": 1, "bfloat16": 2, "uint16": 2, "float16": 3}


@dataclass(frozen=True)
class Router:
    """The configuration of one MoE layer's router. Names that begin with moe_router_ are Megatron-Core's options.

    num_experts, top_k: E and K
    score_function: moe_router_score_function
    pre_softmax: softmax over all experts before the choice (moe_router_pre_softmax)
    scaling_factor: moe_router_topk_scaling_factor; None or 0 is 1
    num_groups, group_topk: a live choice takes experts from only group_topk of num_groups groups; replayed rows have no
        such limit
    rounding: when values are rounded to dtypes other than float32: "once" at the end, as in Megatron-Core 0.18 and
        later, or after "each_step", as in 0.16 and 0.17
    """

    num_experts: int
    top_k: int
    score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    pre_softmax: bool = False
    scaling_factor: float | None = None
    num_groups: int | None = None
    group_topk: int | None = None
    rounding: Literal["once", "each_step"] = "once"

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Dtype of index buffers."""
        return np.dtype(np.uint8) if self.num_experts <= 256 else np.dtype("<u2")

    def _core(self, dtype: int) -> _Router:
        return _Router(
            dtype=dtype,
            score_function=choice(self.score_function, "router.score_function", _SCORE_FUNCTIONS),
            pre_softmax=int(self.pre_softmax),
            rounding=choice(self.rounding, "router.rounding", _ROUNDINGS),
            num_experts=integer(self.num_experts, "router.num_experts", INT32),
            top_k=integer(self.top_k, "router.top_k", INT32),
            num_groups=1 if self.num_groups is None else integer(self.num_groups, "router.num_groups", INT32),
            group_topk=1 if self.group_topk is None else integer(self.group_topk, "router.group_topk", INT32),
            scaling_factor=1.0 if self.scaling_factor is None else self.scaling_factor,
        )


@dataclass(frozen=True)
class Forward:
    """The result of `router_replay_forward` for N rows.

    probs: [N, E] in the dtype of the logits, zero where routing_map is False
    routing_map: [N, E] bool, True for the chosen experts
    chosen: [N, K] ids that were used, in slot order
    counters: {"replayed_rows", "live_rows", "pad_rows", "clamped_ids"} of this call
    """

    probs: NDArray[Any]
    routing_map: NDArray[np.bool_]
    chosen: NDArray[Any]
    counters: dict[str, int]


def router_replay_forward(
    router: Router,
    logits: NDArray[Any],
    indices: NDArray[Any],
    states: NDArray[np.uint8] | None = None,
    *,
    expert_bias: NDArray[np.float32] | None = None,
) -> Forward:
    """Computes the probabilities of given experts from live logits, like Megatron-Core's
    topk_routing_with_score_function with its top-k replaced by the given ids.

    logits: [N, E] float32, float64, float16, or bfloat16 (of ml_dtypes, or its bits as uint16)
    indices: [N, K] compact ids (`Batch.indices`): uint8 for E <= 256, else uint16
    states: [N] (`Batch.states`): UNRECORDED and LIVE rows take the live choice; if absent, all rows are replayed
    expert_bias: [E] float32, whatever the dtype of the logits (as in Megatron-Core); used only in a live choice with
        sigmoid or sqrtsoftplus

    Raises InvalidArgumentError naming the field. Pure and thread-safe.
    """
    values = np.require(logits, requirements="CA")
    check_logits("logits", values, router)
    if values.dtype.name not in _FLOATS:
        raise wrong("logits", f"dtype must be float32, float64, float16 or bfloat16, got {values.dtype}", "DTYPE")
    dtype, rows = _FLOATS[values.dtype.name], values.shape[0]
    ids = _exactly("indices", indices, (rows, router.top_k), router.id_dtype)
    state = np.zeros(rows, np.uint8) if states is None else _exactly("states", states, (rows,), np.dtype(np.uint8))
    bias = None
    if expert_bias is not None:
        bias = _exactly("expert_bias", expert_bias, (router.num_experts,), np.dtype(np.float32))
    probs = np.empty_like(values)
    routing_map = np.empty(values.shape, np.bool_)
    chosen = np.empty_like(ids)
    counters = Counters()
    arrays = (values, ids, state, bias, probs, routing_map, chosen)
    addresses = [None if array is None else array.ctypes.data for array in arrays]
    LIBRARY.rrt_router_forward(byref(router._core(dtype)), rows, *addresses, byref(counters))
    return Forward(probs, routing_map, chosen, {name: getattr(counters, name) for name, _ in Counters._fields_})


def _exactly(field: str, array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.require(array, requirements="CA")
    check_array(field, values, shape, dtype)
    return values


def check_logits(field: str, values: Any, router: Router) -> None:
    """values: a numpy array or a torch tensor, here and in `check_array`"""
    if values.ndim != 2 or values.shape[1] != router.num_experts:
        raise wrong(field, f"must have shape (N, {router.num_experts}), got {tuple(values.shape)}")


def check_array(field: str, values: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if values.shape != shape:
        raise wrong(field, f"shape {tuple(values.shape)} is not {shape}")
    if values.dtype != dtype:
        raise wrong(field, f"{values.dtype} is not {dtype}", "DTYPE")


def wrong(field: str, what: str, reason: str = "SHAPE") -> errors.InvalidArgumentError:
    return invalid(f"router.{field}", what, reason)
