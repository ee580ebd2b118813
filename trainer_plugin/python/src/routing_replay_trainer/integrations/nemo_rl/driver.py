"""Imported by the script that starts NeMo-RL. Replaces the workers of vLLM and of the policy by ours, and after each
training step releases the samples that were generated before that step."""

from __future__ import annotations

from typing import Any

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

with _shared.importing("NeMo-RL"):
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.worker_groups import RayWorkerBuilder
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration
    from nemo_rl.models.policy.lm_policy import Policy

RUN = _shared.run_name()  # From the environment, which workers inherit; they do not know the experiment's name.
_VLLM, _POLICY = "nemo_rl.models.generation.vllm", "nemo_rl.models.policy.workers"
_ASYNCHRONOUS = f"{_VLLM}.vllm_worker_async.VllmAsyncGenerationWorker"
WORKERS = {
    f"{_VLLM}.vllm_worker.VllmGenerationWorker": f"{__package__}.generation.VllmGenerationWorker",
    f"{_POLICY}.megatron_policy_worker.MegatronPolicyWorker": f"{__package__}.policy.MegatronPolicyWorker",
}

generated: set[int] = set()  # Handles of samples that are not released yet.


def _builder(builder: Any, worker: str, *args: Any, original: Any = RayWorkerBuilder.__init__, **kwargs: Any) -> None:
    engine = "policy.generation.vllm_cfg.async_engine"
    _shared.need(worker != _ASYNCHRONOUS, engine, True, f"{engine}=false")
    original(builder, WORKERS.get(worker, worker), *args, **kwargs)


def _generate(engine: Any, *args: Any, original: Any = VllmGeneration.generate, **kwargs: Any) -> Any:
    result = original(engine, *args, **kwargs)
    if "routed_experts" in result:
        generated.update(set(result["routed_experts"].unique().tolist()) - {LIVE})
    return result


def _train(policy: Any, *args: Any, original: Any = Policy.train, **kwargs: Any) -> Any:
    """Trains one step, then releases all samples that were generated before. This is safe, because the synchronous
    engine generates nothing during a step, and later steps use no earlier answers. Samples on which the step did not
    train are released, too: earlier turns, filtered answers, and answers of a validation."""
    result = original(policy, *args, **kwargs)
    _shared.release(RUN, generated)
    generated.clear()
    return result


for theirs, ours in WORKERS.items():
    ACTOR_ENVIRONMENT_REGISTRY[ours] = ACTOR_ENVIRONMENT_REGISTRY[theirs]
RayWorkerBuilder.__init__ = _builder
VllmGeneration.generate = _generate
Policy.train = _train
