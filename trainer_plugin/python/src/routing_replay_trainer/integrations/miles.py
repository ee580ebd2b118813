"""miles. Its hooks are those of slime, except that it has none after a generate function; `generate` replaces that."""

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
    """For `--custom-generate-function-path`. Your own function must call `publish` at its end, with each sample."""
    from miles.rollout import sglang_rollout

    sample = await sglang_rollout.generate(args, sample, sampling_params)
    await publish(args, sample, evaluation)
    return sample
