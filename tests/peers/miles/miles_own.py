"""What is miles' own in the tests that it shares with slime (tests/peers/slime)."""

from __future__ import annotations

from typing import Any

NAME = "miles"
STAND_INS = ("sglang", "sglang_router", "torch_memory_saver", "wandb", "mooncake")
TIMER = "miles.utils.timer"
TYPE_OF_HANDLES = "int64"
ARGS: dict[str, Any] = {
    "use_dynamic_global_batch_size": False,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "lora_rank": 0,
}


def setup() -> None:
    """Behind the stand-ins."""
    import sglang_router

    sglang_router.__version__ = "0.3.2"


def start(args: Any) -> None:
    """Once the groups are there: its actor's `init` does this by `initialize.init`."""
    from miles.backends.megatron_utils import parallel
    from miles.backends.training_utils.parallel import set_parallel_state

    parallel.get_args = lambda: args
    set_parallel_state(parallel.create_megatron_parallel_state())


def replays(own: bool) -> None:
    """Whether its own R3 is on, before routers register with it."""
    from miles.utils.replay_base import routing_replay_manager

    routing_replay_manager.enabled = own
    routing_replay_manager.stage = "fallthrough"
    routing_replay_manager.replays.clear()


def register(router: Any) -> None:
    from miles.utils.replay_base import routing_replay_manager

    routing_replay_manager.register_to_module(router, "routing_replay")


def replaying(default: Any) -> Any:
    """The top-k that its patch of Megatron puts in the place of `default`; the router is registered for it before."""
    from miles.utils.replay_base import routing_replay_manager

    return routing_replay_manager.get_topk_fn(default, return_probs=True)


def add_of_tool(args: Any, sample: Any, tokens: list[int]) -> None:
    sample.tokens = sample.tokens + tokens
    sample.response_length += len(tokens)
    sample.rollout_log_probs += [0.0] * len(tokens)


async def generate(args: Any, sample: Any, params: dict[str, Any]) -> Any:
    """One answer."""
    from miles.rollout import sglang_rollout

    return await sglang_rollout.generate(args, sample, params)


async def ended(args: Any, sample: Any, evaluation: bool = False) -> Any:
    """As a generate function of the user's ends, of one answer or more."""
    if args.custom_generate_function_path:
        from routing_replay_trainer.integrations import miles

        await miles.publish(args, sample, evaluation)
    return sample


def split(manager: Any, data: Any) -> list[Any]:
    return manager._split_train_data_by_dp(data, manager.train_parallel_config["dp_size"])
