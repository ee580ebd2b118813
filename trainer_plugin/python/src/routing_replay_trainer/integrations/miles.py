"""The integration of miles. Its hooks are those of slime, except that miles has no hook after a generate function;
`generate` takes its place."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._slime import Rollout, Trainer

with _shared.importing("miles"):
    import miles

rollout = Rollout(__name__)
trainer = Trainer(miles.__name__, __name__, ("--custom-generate-function-path", "generate"))
publish = rollout.publish
before_log_prob, before_train_step = trainer.before_log_prob, trainer.before_train_step


def replay(args: Namespace) -> None:
    """The function for miles' option `--custom-megatron-init-path`."""
    trainer.replay(args)
    _ask_router_replay()


def _ask_router_replay() -> None:
    """miles' Megatron calls miles' replay manager where Megatron-Core would call a RouterReplay. The manager is not
    used otherwise here, so it is changed to make a RouterReplay for each router and to call it."""
    from megatron.core.transformer.moe.router_replay import RouterReplay
    from miles.utils.replay_base import routing_replay_manager as manager

    def register_to_module(router: Any, _: str) -> None:
        router.router_replay = RouterReplay()
        router.register_forward_pre_hook(lambda called, _: manager.set_current(called.router_replay))

    def get_topk_fn(compute_topk: Callable[..., Any], return_probs: bool) -> Callable[..., Any]:
        return functools.partial(manager.get_current().get_replay_topk, default_compute_topk=compute_topk)

    manager.register_to_module, manager.get_topk_fn = register_to_module, get_topk_fn


async def generate(args: Namespace, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """The function for miles' option `--custom-generate-function-path`. If you name a function of your own there, it
    must await `publish(args, sample, evaluation)` for each sample before it returns."""
    from miles.rollout import sglang_rollout

    sample = await sglang_rollout.generate(args, sample, sampling_params)
    await publish(args, sample, evaluation)
    return sample
