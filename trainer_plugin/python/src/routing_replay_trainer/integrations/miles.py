"""miles, whose hooks are those of slime, but for that behind each call of a generate function: `generate` is one."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._slime import Rollout, Trainer

with _shared.importing("miles"):
    import miles

rollout = Rollout(__name__)
trainer = Trainer(miles.__name__, __name__, ("--custom-generate-function-path", "generate"))
publish = rollout.publish
replay, before_log_prob, before_train_step = trainer.replay, trainer.before_log_prob, trainer.before_train_step


async def generate(args: Namespace, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """`--custom-generate-function-path`. One of yours calls `publish` where it ends, with each sample."""
    from miles.rollout import sglang_rollout

    sample = await sglang_rollout.generate(args, sample, sampling_params)
    await publish(args, sample, evaluation)
    return sample
