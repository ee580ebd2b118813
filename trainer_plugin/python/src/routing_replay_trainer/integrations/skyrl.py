"""Integration of SkyRL 0.4 with its Megatron backend. Run `python -m routing_replay_trainer.integrations.skyrl` instead
of `skyrl.train.entrypoints.main_base`: it runs the same experiment with our trainer and our policy worker.

When our trainer turns a rollout into a batch, it sends the routes to the service. SkyRL's column
`rollout_expert_indices` then contains one handle per sample instead of routes. Our worker removes this column from each
micro-batch before SkyRL looks at it.
"""

from __future__ import annotations

import functools
import operator
import sys
import uuid
from typing import Any

from routing_replay import Geometry, errors

from routing_replay_trainer._core import LOG
from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

with _shared.importing("SkyRL 0.4 and Megatron-Core"):
    import ray
    import torch
    from skyrl.backends.skyrl_train.utils.packed_tensor import PackedTensor
    from skyrl.backends.skyrl_train.workers.megatron import megatron_model_wrapper, megatron_worker
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils import validate_cfg
    from skyrl.train.utils.utils import initialize_ray
    from transformers import AutoConfig

COLUMN = "rollout_expert_indices"
# SkyRL's options that make its engines report routes and its model support replay.
SETTINGS = (
    "trainer.policy.megatron_config.moe_enable_routing_replay=true",
    "generator.inference_engine.enable_return_routed_experts=true",
    "generator.inference_engine.distributed_executor_backend=mp",
)
_original = megatron_model_wrapper.get_forward_backward_func


def _run(trainer: Any) -> Any:
    """Opens the run. trainer: SkyRL's configuration of the trainer"""
    model = AutoConfig.from_pretrained(trainer.policy.model.path, trust_remote_code=True)
    name = _shared.run_name(trainer.project_name, trainer.run_name)
    return _shared.open_run(name, Geometry.from_hf_config(model))


class Policy(megatron_worker.MegatronPolicyWorkerBase):
    def init_model(self, *args: Any, **kwargs: Any) -> None:
        super().init_model(*args, **kwargs)
        replay = _shared.attach(self.actor_module, _run(self.cfg))
        padding = {"policy": "skyrl", "remove_microbatch_padding": self.model.remove_microbatch_padding}
        describe = functools.partial(_describe, padding)
        megatron_model_wrapper.get_forward_backward_func = lambda: _shared.replayed(replay, _original(), describe)


def _describe(padding: dict[str, Any], micro: dict[str, Any]) -> dict[str, Any] | None:
    handles = micro.pop(COLUMN)
    if handles is None:
        return None
    tokens = [row[mask.bool()] for row, mask in zip(micro["sequences"], micro["attention_mask"], strict=True)]
    return {"sequences": handles.values.flatten().tolist(), "tokens": tokens, "padding": padding}


class Trainer(RayPPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.routes = _run(self.cfg.trainer)

    def convert_to_training_input(self, generator_output: Any, uids: Any) -> Any:
        routes = generator_output[COLUMN] or []  # None if all answers failed.
        batch = super().convert_to_training_input(generator_output | {COLUMN: None}, uids)
        tokens = map(operator.add, generator_output["prompt_token_ids"], generator_output["response_ids"])
        handles = [self._put(*of) for of in zip(routes, tokens, strict=False)]
        handles = torch.tensor(handles + [LIVE] * (batch.batch_size - len(handles)))
        ends = torch.arange(len(handles) + 1, dtype=torch.int32)
        batch[COLUMN] = PackedTensor(handles.reshape(-1, 1, 1), ends)  # SkyRL pads this column with 0.
        return batch

    def _put(self, rows: Any, tokens: list[int]) -> int:
        name = self.routes.place + uuid.uuid4().hex
        version = self.global_step - 1  # The engines' weights are those after this many training steps.
        options = {"group": self.global_step, "weight_version": version}
        _shared.put(name, lambda: self.routes.put(name, **_shared.whole(rows, tokens), **options))
        return self.routes.handle(name)

    def train_critic_and_policy(self, data: Any) -> Any:
        status = super().train_critic_and_policy(data)
        try:
            self.routes.release_groups(self.global_step, self.global_step + 1)
        except errors.RoutingReplayError:
            LOG.exception("the samples of step %d were not released; they stay until the run's TTL", self.global_step)
        return status


class Experiment(BasePPOExp):
    def get_trainer(self, **parts: Any) -> Any:
        return Trainer(**parts)


@ray.remote(num_cpus=1)
def run(cfg: Any) -> None:
    megatron_worker.PolicyWorker = ray.remote(num_gpus=1)(Policy)
    Experiment(cfg).run()


def main() -> None:
    cfg = SkyRLTrainConfig.from_cli_overrides([*sys.argv[1:], *SETTINGS])
    strategy = cfg.trainer.strategy
    _shared.need(strategy == "megatron", "trainer.strategy", strategy, "trainer.strategy=megatron")
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(run.remote(cfg))


# Ray pickles classes by module name, so `__main__` must import this module under its real name.
if __name__ == "__main__":
    from routing_replay_trainer.integrations.skyrl import main

    main()
