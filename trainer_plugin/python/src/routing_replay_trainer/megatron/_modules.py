"""Finds the routers of a live model, their positions, and options that make them ignore a replay. Needs no torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from routing_replay_trainer._core import LOG, unmet

# Load-balancing types that choose experts without asking a RouterReplay (TopKRouter.routing).
_OTHER_CHOICES = ("sinkhorn", "quantile_balancing")
_GRAPHED = {"moe", "moe_router", "full_iteration"}
_DROPPING = ("moe_expert_capacity_factor", "moe_expert_rank_capacity_factor")


@dataclass(frozen=True)
class LiveRouter:
    """module: the router; has `routing` and `gating`, like Megatron-Core's Router
    name: its path in the chunk
    layer: global decoder layer id (layer_number - 1); for an MTP layer, its number in the MTP block - 1
    is_mtp: True if the router is in the MTP block; such routers are never replayed
    layer_module: the element of `decoder.layers` that contains the router; schedules pass it the number of the
        micro-batch
    """

    module: Any
    name: str
    layer: int
    is_mtp: bool
    layer_module: Any


def unwrap(chunk: Any) -> Any:
    """The model inside DistributedDataParallel, Float16Module and the like."""
    while getattr(chunk, "module", None) is not None:
        chunk = chunk.module
    return chunk


def live_routers(chunk: Any) -> list[LiveRouter]:
    """Returns all routers of a model chunk in the order of its modules. Does not use RouterReplay's global registry,
    because that also holds routers of other models, and does not say to which layers they belong."""
    modules = dict(unwrap(chunk).named_modules())
    found = []
    for name, module in modules.items():
        if not all(callable(getattr(type(module), method, None)) for method in ("routing", "gating")):
            continue
        parts = name.split(".")
        above = [modules.get(".".join(parts[:count])) for count in range(len(parts) - 1, 0, -1)]
        number = next((n for m in (module, *above) if (n := getattr(m, "layer_number", None)) is not None), None)
        if number is None:
            raise unmet(name, "neither the router nor a module above it has a layer_number")
        is_mtp = bool(getattr(module, "is_mtp_layer", False)) or "mtp" in parts
        # For "decoder.layers.3.mlp.router" this is "decoder.layers.3".
        layer = ".".join(parts[: parts.index("layers") + 2]) if "layers" in parts[:-1] else name
        found.append(LiveRouter(module, name, int(number) - 1, is_mtp, modules.get(layer, module)))
    return found


def check(chunk: Any, routers: Iterable[LiveRouter], inject: str) -> list[int]:
    """Returns the layers that the model always routes live (hash routing). Raises FailedPreconditionError naming the
    option and the router if an option would make a router choose without asking the replay."""
    _check_config(getattr(unwrap(chunk), "config", None))
    hashed = []
    for router in routers:
        if router.is_mtp:
            continue
        if getattr(router.module, "tid2eid", None) is not None:
            hashed.append(router.layer)
            continue
        choice = getattr(router.module, "routing_type", None)
        for other in _OTHER_CHOICES:
            if other == choice or (isinstance(choice, (list, tuple)) and other in choice):
                raise unmet(router.name, f"moe_router_load_balancing_type={other} ignores the replay: use another type")
        if inject == "native":
            _check_native(router)
    return hashed


def _check_config(config: Any) -> None:
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        raise unmet("config", "overlap_moe_expert_parallel_comm runs layers after forward_step has returned")
    if (getattr(config, "mlp_chunks_for_training", None) or 1) > 1:
        raise unmet("config", "mlp_chunks_for_training > 1 asks a router several times for one micro-batch")
    graphs = getattr(config, "cuda_graph_impl", None)
    if graphs not in (None, "none"):
        # Since version 0.18, Megatron copies the second option to the first.
        modules = getattr(config, "cuda_graph_modules", None) or getattr(config, "cuda_graph_scope", None) or ()
        names = {getattr(part, "name", part) for part in ((modules,) if isinstance(modules, str) else modules)}
        if not names or names & _GRAPHED:
            raise unmet("config", f"cuda_graph_impl={graphs} captures routers: a launch would reuse the capture's ids")


def check_dropping(config: Any, strict: bool) -> None:
    """Checks for options with which Megatron drops tokens after the router, replayed ones too. Raises
    FailedPreconditionError, or logs a warning if not strict."""
    for option in _DROPPING:
        factor = getattr(config, option, None)
        if factor is None:
            continue
        why = f"{option}={factor} drops experts of replayed rows after the router, and no metric counts them"
        if strict:
            raise unmet("config", f'{why}. Unset it, or attach with missing="live"')
        LOG.warning("router replay: config: %s", why)


def _check_native(router: LiveRouter) -> None:
    if getattr(router.module.config, "moe_router_fusion", False):
        raise unmet(
            router.name,
            'moe_router_fusion chooses experts without asking RouterReplay: turn it off, or attach with inject="fused"',
        )
    if getattr(router.module, "router_replay", None) is None:
        raise unmet(
            router.name,
            "it has no router_replay: build the model with moe_enable_routing_replay=True (enable_routing_replay in "
            'older patches), or attach with inject="fused"',
        )


def config_json(config: Any, model: Any = None) -> dict[str, Any]:
    """Returns the fields of a TransformerConfig that JSON can express. The native library reads from them which layers
    are MoE layers and how they are split. A HybridModel's pattern of layers, which is in the model, is added."""
    pattern = getattr(model, "hybrid_layer_pattern", None)
    fields = {} if pattern is None else {"hybrid_layer_pattern": pattern}
    for key, value in vars(config).items():
        value = getattr(value, "input_data", value)  # What a PipelineParallelLayerLayout was made from.
        if _is_plain(value):
            fields[key] = value
    return fields


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def parallel_ranks() -> dict[str, int]:
    """Returns the ranks pp, cp and tp of this process from Megatron's parallel_state; {}, which means 0 for each, if
    parallel_state is missing or not set up."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {
        "pp": state.get_pipeline_model_parallel_rank(),
        "cp": state.get_context_parallel_rank(),
        "tp": state.get_tensor_model_parallel_rank(),
    }


def replica(config: Any) -> tuple[int, str]:
    """Returns the number of ranks that share the samples of a step, and the names of the sizes whose product it is."""
    names = ("tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size")
    return math.prod(getattr(config, name, 1) or 1 for name in names), " x ".join(names)


def is_recompute() -> bool:
    """Returns True if Megatron says that it is recomputing a checkpoint."""
    random = sys.modules.get("megatron.core.tensor_parallel.random")
    torch = sys.modules.get("torch")
    return random is not None and torch is not None and random.is_checkpointing() and torch.is_grad_enabled()
