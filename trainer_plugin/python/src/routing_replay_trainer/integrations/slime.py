"""The integration of slime: `publish` runs in its rollout manager, and `replay` in its trainer.

With slime's own flag `--use-rollout-routing-replay`, engines report their choice of experts and requests ask for it.
`publish` appends the rows of each answer to the service, and puts a handle into `rollout_routed_experts`, where slime
itself would pass the rows to the ranks. `replay` turns slime's own replay off in the trainer, before the model is
built, and attaches ours instead.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._slime import Rollout, Trainer

with _shared.importing("slime"):
    import slime


def _carry_handles() -> None:
    """Turns off slime's check that `rollout_routed_experts` has the shape of routes."""
    from slime.ray import rollout

    rollout.validate_rollout_routed_experts_for_replay = lambda routed_experts, args: None


rollout = Rollout(__name__, _carry_handles)
trainer = Trainer(slime.__name__, __name__, ("--rollout-sample-hook-path", "publish"))
replay, before_log_prob, before_train_step = trainer.replay, trainer.before_log_prob, trainer.before_train_step


async def publish(args: Namespace, sample: Any, *, evaluation: bool = False, **_: Any) -> None:
    """The hook for `--rollout-sample-hook-path`, which slime calls after each call of a generate function."""
    await rollout.publish(args, sample, evaluation)
