"""miles is tested with the tests of slime (tests/peers/slime). Here is what is different for miles."""

from __future__ import annotations

import copy
from typing import Any

NAME = "miles"
STAND_INS = ("sglang", "sglang_router", "torch_memory_saver", "wandb", "mooncake")
TIMER = "miles.utils.timer"
TYPE_OF_HANDLES = "int64"
OTHERS = ("ref",)  # Models, besides the actor, for which the actor computes log-probabilities before it trains.
ARGS: dict[str, Any] = {
    "use_dynamic_global_batch_size": False,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "lora_rank": 0,
}


def setup() -> None:
    """Completes the stand-ins. Is called when they exist, before miles is imported."""
    import sglang_router

    sglang_router.__version__ = "0.3.2"


def start(args: Any) -> None:
    """Does what the actor's own `init` does in `initialize.init`. Is called when the process groups exist."""
    from megatron.core.transformer.moe import moe_utils
    from miles.backends.megatron_utils import parallel
    from miles.backends.training_utils.parallel import set_parallel_state

    moe_utils.te_general_gemm = None  # The Megatron of miles does not define this name without Transformer Engine.

    parallel.get_args = lambda: args
    set_parallel_state(parallel.create_megatron_parallel_state())


def replays(own: bool) -> None:
    """Turns miles' own R3 on or off. Call it before routers register with miles."""
    from miles.utils.replay_base import routing_replay_manager

    for name in ("register_to_module", "get_topk_fn"):  # An earlier test may have replaced these functions.
        vars(routing_replay_manager).pop(name, None)
    routing_replay_manager.enabled = own
    routing_replay_manager.stage = "fallthrough"
    routing_replay_manager.replays.clear()


def replay_itself(routers: list[Any], given: Any = None) -> None:
    """Changes the ids that miles' own R3 replays. Its Megatron has built R3 into these routers.

    given: function of (router, ids that R3 would replay) that returns the ids to use; None: they stay as they are
    """
    from miles.utils.replay_base import RoutingReplayManager, routing_replay_manager

    if given is None:
        return
    by_replay = {id(router.routing_replay): router for router in routers}

    def get_topk_fn(default: Any, return_probs: bool) -> Any:
        own = RoutingReplayManager.get_topk_fn(routing_replay_manager, default, return_probs)

        def topk(scores: Any, *arguments: Any) -> Any:
            ids = given(by_replay[id(routing_replay_manager.current)], own(scores, *arguments)[1])
            return scores.gather(1, ids), ids

        return topk

    routing_replay_manager.get_topk_fn = get_topk_fn


def add_of_tool(args: Any, sample: Any, tokens: list[int]) -> None:
    sample.tokens = sample.tokens + tokens
    sample.response_length += len(tokens)
    sample.rollout_log_probs += [0.0] * len(tokens)


async def generate(args: Any, sample: Any, params: dict[str, Any]) -> Any:
    """Makes one answer with miles' own generate function. Its rows are not published yet (see `ended`)."""
    from miles.rollout import sglang_rollout

    return await sglang_rollout.generate(args, sample, params)


async def ended(args: Any, sample: Any, evaluation: bool = False) -> Any:
    """Does what follows each answer in a user's generate function: publishes the sample, if such a function is
    configured."""
    if args.custom_generate_function_path:
        from routing_replay_trainer.integrations import miles

        await miles.publish(args, sample, evaluation)
    return sample


def split(manager: Any, data: Any) -> list[Any]:
    return manager._split_train_data_by_dp(data, manager.train_parallel_config["dp_size"])


async def agent(args: Any, sample: Any, params: dict[str, Any], evaluation: bool = False) -> list[Any]:
    """A user's generate function that makes two samples of one, as copies, like miles' own multi_turn."""
    from miles.rollout import sglang_rollout
    from routing_replay_trainer.integrations import miles

    siblings = [await sglang_rollout.generate(args, copy.deepcopy(sample), dict(params)) for _ in range(2)]
    for sibling in siblings:
        await miles.publish(args, sibling, evaluation)
    return siblings


def begin_again(sample: Any) -> None:
    sample.reset_for_retry()
