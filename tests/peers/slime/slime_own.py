"""The tests in this folder also test miles. Here is what is different for slime."""

from __future__ import annotations

import os
from typing import Any

NAME = "slime"
STAND_INS = ("sglang", "sglang_router", "torch_memory_saver", "wandb", "slime.backends.sglang_utils.sglang_engine")
TIMER = "slime.observability.timer"
TYPE_OF_HANDLES = "torch.int64"
OTHERS = ("ref", "teacher")  # Models, besides the actor, for which the actor computes log-probabilities first.
ARGS: dict[str, Any] = {}


def setup() -> None:
    """Makes slime use the CPU. Is called when the stand-ins exist."""
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
    """Completes the preparation of an actor. Is called when the process groups exist."""
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # slime's Megatron does not define this name without Transformer Engine.


def replays(own: bool) -> None:
    """Turns slime's own R3 on or off. Call it before routers register with it."""
    from slime.utils.routing_replay import RoutingReplay

    os.environ["ENABLE_ROUTING_REPLAY"] = "1" if own else "0"
    RoutingReplay.all_routing_replays.clear()


def replay_itself(routers: list[Any], given: Any = None) -> None:
    """Changes the ids that slime's own R3 replays. Its patch of Megatron has built R3 into these routers.

    given: function of (router, ids that R3 would replay) that returns the ids to use; None: they stay as they are
    """
    from slime.utils import routing_replay

    assert len(routing_replay.RoutingReplay.all_routing_replays) == len(routers)
    if given is None:
        return
    by_replay = {id(router.routing_replay): router for router in routers}
    get = routing_replay.get_routing_replay_compute_topk

    def get_routing_replay_compute_topk(default: Any) -> Any:
        own = get(default)

        def topk(scores: Any, *arguments: Any) -> Any:
            ids = given(by_replay[id(routing_replay.ROUTING_REPLAY)], own(scores, *arguments)[1])
            return scores.gather(1, ids), ids

        return topk

    routing_replay.get_routing_replay_compute_topk = get_routing_replay_compute_topk


def add_of_tool(args: Any, sample: Any, tokens: list[int]) -> None:
    sample.append_response_tokens(args, tokens=tokens, trainable=False)


async def generate(args: Any, sample: Any, params: dict[str, Any]) -> Any:
    """Makes one answer with slime's own generate function. Its rows are not published yet (see `ended`)."""
    from slime.rollout import sglang_rollout

    return await sglang_rollout.generate(args, sample, params)


async def ended(args: Any, sample: Any, evaluation: bool = False) -> Any:
    """Calls slime's hooks for finished samples, as slime does after each call of a generate function."""
    from slime.rollout.sample_hooks import apply_rollout_sample_hooks

    return await apply_rollout_sample_hooks(args, sample, evaluation=evaluation)


def split(manager: Any, data: Any) -> list[Any]:
    return manager._split_train_data_by_dp(data)


async def agent(args: Any, sample: Any, params: dict[str, Any]) -> list[Any]:
    """The generate function of an agent that calls the engine twice, for two branches of its trajectory. Returns a
    sample for each branch."""
    from slime.agent.trajectory import TrajectoryManager, TurnRecord
    from slime.rollout import sglang_rollout

    manager, answers = TrajectoryManager(), []
    prompt = [int(word) for word in sample.prompt.split()]
    payload = {"input_ids": prompt, "return_routed_experts": args.use_rollout_routing_replay}
    for branch in ("one", "other"):
        answers.append((await sglang_rollout.post("", payload))["meta_info"])
        log_probs, ids = zip(*[item[:2] for item in answers[-1]["output_token_logprobs"]], strict=True)
        manager.record_turn(
            "session",
            turn=TurnRecord(prompt, list(ids), "stop", list(log_probs)),
            prompt_messages=[{"role": "user", "content": branch}],
            response_message={"role": "assistant", "content": branch},
        )
    siblings = manager.get_trajectory("session", base_sample=sample, extra_metadata=sample.metadata)
    for sibling, answer in zip(siblings, answers, strict=True):
        sibling._apply_meta_info(args, answer)
    return siblings


def begin_again(sample: Any) -> None:
    """Resets the sample, as a generate function does that samples the prompt again."""
    sample.tokens, sample.response, sample.response_length = [], "", 0
    sample.rollout_log_probs = sample.loss_mask = sample.rollout_routed_experts = sample.reward = None
    sample.weight_versions, sample.status = [], sample.Status.PENDING
