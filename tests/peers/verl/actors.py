"""Runs verl's own actor and critic on the CPU: its workers, its engines and Megatron-Core's routers, in a small model.

Three things are replaced: what requires a checkpoint and Transformer Engine (the model and its configuration), the
optimizer, and "cuda", which means the CPU here (common/on_cpu.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import megatron_models as models
import numpy as np
import recipes
import torch
import verl
from common import on_cpu
from hydra import compose, initialize_config_dir
from megatron.core.enums import ModelType
from omegaconf import DictConfig
from rollouts import LAYERS, VOCABULARY
from torch import nn
from verl.utils.config import omega_conf_to_dataclass
from verl.workers import engine_workers
from verl.workers.engine.megatron import transformer_impl as engines
from verl.workers.utils.losses import value_loss

MODEL = "mixtral"  # From common/models.py; only its configuration and its tokenizer are used.
CONFIG = Path(verl.__file__).parent / "trainer/config"
CHANGED = "a small model instead of a checkpoint's, no optimizer, CPU instead of CUDA"


def flags() -> list[str]:
    """Returns the options in the README's lines."""
    return recipes.lines("verl")


def configuration(model: Path, *overrides: str) -> DictConfig:
    """Returns verl's configuration, composed as by its own command line."""
    said = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.actor.megatron.use_distributed_optimizer=False",
    ]
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("ppo_megatron_trainer", [*said, *overrides])


class Adapter:
    """Takes the place of Megatron-Bridge's LoRA class. It has only the part that verl uses."""

    @staticmethod
    @contextlib.contextmanager
    def disable_adapter(models: list[Actor]) -> Iterator[None]:
        for model in models:
            model.adapted = False
        yield
        for model in models:
            model.adapted = True


class Actor(nn.Module):
    """A small model: an embedding, layers with Megatron-Core's routers, and a head. It keeps the token ids that it
    gets.

    outputs: the size of the head's output
    adapted: whether the model has an adapter, with which its routers choose differently
    """

    def __init__(self, config: Any, outputs: int, adapted: bool) -> None:
        super().__init__()
        self.config = config
        self.share_embeddings_and_output_weights = False
        self.pre_process = self.post_process = True
        self.vp_stage, self.model_type = 0, ModelType.encoder_or_decoder
        self.body = models.Model(config, list(range(1, LAYERS + 1)))
        self.decoder = self.body.decoder
        self.embedding = nn.Embedding(VOCABULARY, models.HIDDEN)
        self.adapter = nn.Embedding(VOCABULARY, models.HIDDEN) if adapted else None
        self.adapted = adapted
        self.head = nn.Linear(models.HIDDEN, outputs, bias=False)
        self.fed: list[torch.Tensor] = []

    def set_input_tensor(self, tensor: Any) -> None:
        pass

    def zero_grad_buffer(self) -> None:
        pass

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        self.fed.append(input_ids.reshape(-1))
        hidden = self.embedding(self.fed[-1])
        if self.adapted:
            hidden = hidden + self.adapter(self.fed[-1])
        return self.head(self.body(hidden.unsqueeze(1))).transpose(0, 1).contiguous()  # [1, T, V], as GPTModel's.


class Optimizer:
    """An optimizer that keeps the gradients of each step, and changes no weights."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.gradients: dict[str, np.ndarray] = {}

    def zero_grad(self) -> None:
        self._model.zero_grad()

    def step(self) -> tuple[bool, float, int]:
        named = self._model.named_parameters()
        self.gradients = {name: value.grad.numpy().copy() for name, value in named if value.grad is not None}
        return True, 1.0, 0


def worker(config: DictConfig, role: str = "actor") -> engine_workers.ActorRolloutRefWorker:
    """Returns verl's worker with initialized engines in this process, which is a rank of torch.distributed."""
    install()
    made = engine_workers.ActorRolloutRefWorker(config.actor_rollout_ref, role=role)
    made.init_model()
    return made


def critic(config: DictConfig) -> engine_workers.TrainingWorker:
    """Returns verl's worker of a critic in this process, made as verl's trainer makes it."""
    install()
    said = omega_conf_to_dataclass(config.critic)
    said.engine.infer_max_token_len_per_gpu = said.engine.max_token_len_per_gpu = said.ppo_infer_max_token_len_per_gpu
    made = engine_workers.TrainingWorker(
        engine_workers.TrainingWorkerConfig(
            model_type="value_model",
            model_config=said.model,
            engine_config=said.engine,
            optimizer_config=said.optim,
            checkpoint_config=said.checkpoint,
        )
    )
    made.reset()
    made.set_loss_fn(partial(value_loss, config=said))
    return made


def install() -> None:
    """Prepares a process of torch.distributed for verl's workers: engines with a small model instead of a checkpoint's,
    on the CPU."""
    # Any address will do: the process group exists already.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    on_cpu.install()
    models.set_up(mock.Mock())

    def tf_config(engine: Any) -> None:
        said = engine.engine_config.override_transformer_config
        engine.is_value_model = engine.model_config.model_type == "value_model"
        engine.bridge = engine.provider = None
        engine.peft_cls = Adapter if engine.model_config.lora.get("rank", 0) > 0 else None
        engine.param_dtype = torch.float32
        engine.share_embeddings_and_output_weights = False
        options = {name: said[name] for name in ("recompute_granularity", "recompute_method", "recompute_num_layers")}
        engine.tf_config = models.make_config(
            num_layers=LAYERS,
            context_parallel_size=engine.engine_config.context_parallel_size,
            moe_enable_routing_replay=said.get("moe_enable_routing_replay", engine.enable_routing_replay),
            **options,
        )

    def module(engine: Any) -> list[nn.Module]:
        torch.manual_seed(3)
        return [Actor(engine.tf_config, 1 if engine.is_value_model else VOCABULARY, engine.peft_cls is not None)]

    for name, value in (
        ("_build_tf_config", tf_config),
        ("_build_megatron_module", module),
        ("_build_optimizer", lambda engine: Optimizer(*engine.module)),
        ("_build_lr_scheduler", lambda engine: None),
        ("lr_scheduler_step", lambda engine: 0.0),
    ):
        setattr(engines.MegatronEngine, name, value)
    engines.MegatronCheckpointManager = lambda **_: None
