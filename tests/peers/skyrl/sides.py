"""Runs SkyRL's own workers on the CPU, with a small GPTModel, and makes the batches that its trainer would make."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gpt
import megatron.core.dist_checkpointing  # noqa: F401  Before our stand-in for nvidia_resiliency_ext.
import torch
from common import models as small
from common import stand_ins
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from transformers import Qwen3MoeConfig

LAYERS, EXPERTS, TOP_K = 4, 8, 2
RUN = "here/grpo-42"
CHANGED = (
    "stand-ins for megatron.bridge and nvidia_resiliency_ext, a small model instead of a checkpoint's, "
    "attention and norms as for Megatron-Core, an optimizer that is not distributed, CPU instead of CUDA"
)
STAND_INS = ("megatron.bridge", "nvidia_resiliency_ext")


class Kept:
    """The tokens that the model got, and the results of its routers, since the last call of `rows`."""

    def __init__(self, model: Any) -> None:
        self.fed: list[torch.Tensor] = []  # Token ids [samples, tokens] of each pass; empty on later stages.
        self._calls: list[tuple[int, bool, torch.Tensor]] = []
        if model.pre_process:
            model.embedding.register_forward_pre_hook(self._feed, with_kwargs=True)
        for router in gpt.routers([model]):
            router.register_forward_hook(self._keep)

    def _feed(self, _: Any, __: Any, said: dict[str, Any]) -> None:
        self.fed.append(said["input_ids"].clone())

    def _keep(self, router: Any, _: Any, output: Any) -> None:
        self._calls.append((router.layer_number - 1, torch.is_grad_enabled(), output[1].detach().clone()))

    def rows(self, fed: list[torch.Tensor]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yields (layer, token id, its experts) for each row that the routers of this rank have seen.

        fed: `self.fed` of a rank of the first pipeline stage, because later stages do not get the token ids
        """
        begun: Counter[tuple[int, bool]] = Counter()
        # With recompute, a router is called twice for the same tokens: first without gradients, then with gradients.
        for layer, gradients, chosen in self._calls:
            tokens = fed[begun[layer, gradients]].transpose(0, 1).reshape(-1)
            tokens = tokens.chunk(mpu.get_tensor_model_parallel_world_size())[mpu.get_tensor_model_parallel_rank()]
            begun[layer, gradients] += 1
            experts = chosen.nonzero()[:, 1].view(len(tokens), -1).tolist()
            yield from ((layer, token, tuple(own)) for token, own in zip(tokens.tolist(), experts, strict=True))
        self._calls.clear()
        self.fed.clear()


class Provider:
    """Takes the place of the model configuration that megatron.bridge makes from a checkpoint. SkyRL sets options on
    it. The model is built with these options, except for those of Transformer Engine."""

    built: Provider | None = None

    def __init__(self) -> None:
        self.num_layers, self.moe_layer_freq = LAYERS, [0] + [1] * (LAYERS - 1)
        self.virtual_pipeline_model_parallel_size = None

    def register_pre_wrap_hook(self, hook: Any) -> None:
        raise AssertionError("nothing is frozen here")

    def finalize(self) -> None:
        pass

    def provide_distributed_model(self, ddp_config: Any, wrap_with_ddp: bool, bf16: bool) -> list[Any]:
        known = {field.name for field in dataclasses.fields(gpt.TransformerConfig)}
        left_out = {"attention_backend", "masked_softmax_fusion", "expert_tensor_parallel_size"}
        said = {name: value for name, value in vars(self).items() if name in known - left_out}
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        layout = gpt.Layout(
            *(said[name] for name in sizes[:2]), cp=said[sizes[2]], ep=said["expert_model_parallel_size"]
        )
        tensor_parallel.model_parallel_cuda_manual_seed(5, force_reset_rng=True)
        config = layout.config(**said)
        [self.model] = layout.model(config, packed=True, position_embedding_type="none")
        self.kept = Kept(self.model)
        Provider.built = self
        return [DistributedDataParallel(config, ddp_config, self.model)] if wrap_with_ddp else [self.model]


@functools.cache
def setup() -> None:
    """Prepares a process for SkyRL. Must be called before SkyRL is imported."""
    stand_ins.install(*STAND_INS, keep="qwen_vl")
    stand_ins.hide("vllm")  # The folder tests/peers/vllm is on Python's path, but is not vLLM.
    import megatron.bridge
    from megatron.bridge.peft import utils

    megatron.bridge.AutoBridge = mock.MagicMock()
    megatron.bridge.AutoBridge.from_hf_pretrained().to_megatron_provider = Provider
    utils.finalize_model_grads_with_expert_adapter_sync = finalize_model_grads
    group = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **said: group("gloo", **said)  # SkyRL requests NCCL, too.


def checkpoint(folder: Path) -> None:
    """Writes the part of a checkpoint that SkyRL and our integration read: the model's configuration and its
    tokenizer."""
    said = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "mlp_only_layers": [0], "num_hidden_layers": LAYERS}
    Qwen3MoeConfig(**said).save_pretrained(folder)
    small._tokenizer().save_pretrained(folder)


def configuration(model: Path, *said: str) -> Any:
    """Returns SkyRL's configuration, which is made as in our integration's `main`."""
    from routing_replay_trainer.integrations import skyrl
    from skyrl.train.config import SkyRLTrainConfig

    return SkyRLTrainConfig.from_cli_overrides([*options(model), *said, *skyrl.SETTINGS])


def options(model: Path) -> list[str]:
    policy, ref = "trainer.policy.megatron_config", "trainer.ref.megatron_config"
    return [
        "trainer.strategy=megatron",
        f"trainer.policy.model.path={model}",
        f"trainer.ref.model.path={model}",
        "trainer.bf16=false",
        "trainer.gradient_checkpointing=false",
        "trainer.placement.colocate_all=false",
        f"{policy}.moe_grouped_gemm=false",
        f"{ref}.moe_grouped_gemm=false",
        f"{policy}.optimizer_config_kwargs={{bf16: false, params_dtype: float32, use_distributed_optimizer: false}}",
        "trainer.policy.optimizer_config.max_grad_norm=0",  # Megatron clips gradients only on GPUs.
        "generator.sampling_params.temperature=0.7",
        "generator.sampling_params.logprobs=null",
        f"trainer.project_name={RUN.split('/')[0]}",
        f"trainer.run_name={RUN.split('/')[1]}",
    ]


def reduced(config: Any) -> Any:
    """Changes SkyRL's configuration of a trainer so that gradients are reduced in a way that gloo supports. Returns
    it."""
    megatron = config.policy.megatron_config
    as_gloo = {"use_distributed_optimizer": False, "average_in_collective": False}
    megatron.ddp_config = vars(megatron.ddp_config) | as_gloo
    return config


def worker(kind: Any, config: Any, rank: int, world: int) -> Any:
    """Returns a worker of SkyRL in this process, which is a rank of torch.distributed. SkyRL itself makes it as an
    actor of Ray."""
    where = {"rank": rank, "local_rank": rank, "world_size": world, "master_addr": "127.0.0.1", "master_port": 1}
    made = kind(cfg=reduced(config.trainer), sequence_parallel_size=1, **where)
    made.init_worker_process_group()
    return made
