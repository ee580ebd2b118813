"""What is slime's own in the tests that it shares with miles."""

from __future__ import annotations

import os
from typing import Any

NAME = "slime"
STAND_INS = ("sglang", "sglang_router", "torch_memory_saver", "wandb", "slime.backends.sglang_utils.sglang_engine")
TIMER = "slime.observability.timer"
TYPE_OF_HANDLES = "torch.int64"
ARGS: dict[str, Any] = {}


def setup() -> None:
    """Behind the stand-ins."""
    import torch
    from slime.utils import accelerator
    from slime.utils.accelerator.cuda import CUDAAccelerator

    class Cpu(CUDAAccelerator):
        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device(self, index: int | None = None) -> Any:
            return torch.device("cpu")

    accelerator.register_accelerator("cpu", Cpu, priority=100)


def start(args: Any) -> None:
    """Once the groups are there."""


def replays(own: bool) -> None:
    """Whether its own R3 is on, before routers register with it."""
    from slime.utils.routing_replay import RoutingReplay

    os.environ["ENABLE_ROUTING_REPLAY"] = "1" if own else "0"
    RoutingReplay.all_routing_replays.clear()


def replaying(default: Any) -> Any:
    """The top-k that its patch of Megatron puts in the place of `default`; the router is registered for it before."""
    from slime.utils.routing_replay import get_routing_replay_compute_topk

    return get_routing_replay_compute_topk(default)


def register(router: Any) -> None:
    from slime.utils.routing_replay import register_routing_replay

    register_routing_replay(router)


def add_of_tool(args: Any, sample: Any, tokens: list[int]) -> None:
    sample.append_response_tokens(args, tokens=tokens, trainable=False)


async def generate(args: Any, sample: Any, params: dict[str, Any]) -> Any:
    """One answer."""
    from slime.rollout import sglang_rollout

    return await sglang_rollout.generate(args, sample, params)


async def ended(args: Any, sample: Any, evaluation: bool = False) -> Any:
    """As behind each call of a generate function, of one answer or more."""
    from slime.rollout.sample_hooks import apply_rollout_sample_hooks

    return await apply_rollout_sample_hooks(args, sample, evaluation=evaluation)


def split(manager: Any, data: Any) -> list[Any]:
    return manager._split_train_data_by_dp(data)
