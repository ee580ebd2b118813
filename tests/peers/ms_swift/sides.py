"""ms-swift's own MegatronGRPOTrainer on the CPU: its arguments, its template with a tokenizer of words, a vLLM server
that answers with routes, and a GPTModel instead of a checkpoint's model."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import types
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import recipes
from common import stand_ins

LAYERS, EXPERTS, TOP_K, VOCABULARY, SAMPLES = 4, 8, 2, 640, 8
RUN = "here/grpo-42"


import gpt  # noqa: E402  # Imported first: Megatron-Core must not see the stand-in for Transformer Engine.
from megatron.core.extensions import transformer_engine  # noqa: E402

for name, value in [*vars(transformer_engine).items()]:
    if name.startswith("TE") and value is None:
        setattr(transformer_engine, name, type(name, (), {}))
stand_ins.install("transformer_engine", "transformer_engine_torch", classes=True, version="2.9.0")
sys.modules["vllm"] = None  # The folder tests/peers/vllm is on Python's path, and would be imported in place of vLLM.
import torch  # noqa: E402
from accelerate import PartialState  # noqa: E402
from swift.infer_engine.protocol import (  # noqa: E402
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    RolloutOutput,
    UsageInfo,
)
from swift.megatron.arguments import MegatronRLHFArguments  # noqa: E402
from swift.megatron.trainers import base, grpo_trainer, rlhf_mixin, rollout_mixin  # noqa: E402
from swift.template import Template, TemplateMeta  # noqa: E402
from swift.utils import import_external_file  # noqa: E402


def args_of(layout: gpt.Layout, **others: Any) -> Namespace:
    """Returns ms-swift's arguments, without the steps in which it inspects the machine and the model."""
    fields = dataclasses.fields(MegatronRLHFArguments)
    said = {one.name: one.default for one in fields if one.default is not dataclasses.MISSING}
    said |= {one.name: one.default_factory() for one in fields if one.default_factory is not dataclasses.MISSING}
    said |= {
        "router_replay_mode": "R3",
        "rlhf_type": "grpo",
        "tuner_type": "full",
        "task_type": "causal_lm",
        "model_info": types.SimpleNamespace(model_dir="model"),
        "model_dir": "model",
        "is_multimodal": False,
        "check_model": False,
        "use_cpu_initialization": True,
        "finetune": True,
        "callbacks": [],
        "report_to": [],
        "reward_funcs": [reward],
        "num_generations": 2,
        "generation_batch_size": SAMPLES,
        "per_device_generation_batch_size": SAMPLES // (layout.tp * layout.cp * layout.pp),
        "steps_per_generation": 2,
        "global_batch_size": SAMPLES // 2,
        "micro_batch_size": 2,
        "num_microbatches": 2,
        "train_iters": 4,
        "seq_length": 64,
        "loss_type": "grpo",
        "beta": 0.04,
        "epsilon": 0.2,
        "tau_pos": 1.0,
        "tau_neg": 1.0,
        "real_tau": 1.0,
        "fipo_decay_rate": 1.0,
        "top_entropy_quantile": 1.0,
        "importance_sampling_level": "token",
        "advantage_estimator": "grpo",
        "scale_rewards": "group",
        "truncation_strategy": "left",
        "temperature": 0.7,
        "max_completion_length": 16,
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_tensor_parallel_size": 1,
        "sleep_level": 0,
        "output_dir": "/tmp",
        "wandb_project": RUN.split("/")[0],
        "wandb_exp_name": RUN.split("/")[1],
        "log_completions": False,
        "optimizer": "sgd",
        "use_distributed_optimizer": False,
        "lr": 1e-3,
        "min_lr": 0.0,
        "lr_warmup_init": 0.0,
        "lr_warmup_iters": 0,
        "lr_decay_style": "constant",
        "start_weight_decay": 0.0,
        "end_weight_decay": 0.0,
        "weight_decay_incr_style": "constant",
        "clip_grad": 0.0,
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.tp > 1,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "padding_free": True,
        "cp_partition_mode": "zigzag",
        "fp8_recipe": "delayed",
        "attention_backend": "flash",
    }
    said |= {f"{name}_dtype": torch.float32 for name in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")}
    return Namespace(**(said | others))


def reward(completions: list[str], **_: Any) -> list[float]:
    return [float(index % 2) for index, _ in enumerate(completions)]


def template_of(args: Namespace) -> Template:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {"<pad>": 0, "<eos>": 1} | {f"t{i}": i for i in range(2, VOCABULARY)}
    words = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    processor = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    processor.model_info = types.SimpleNamespace(
        config=None, task_type="causal_lm", max_model_len=512, model_dir="model"
    )
    processor.model_meta = types.SimpleNamespace(is_multimodal=False, template="words", is_reward=False)
    meta = TemplateMeta("words", prefix=[], prompt=["{{QUERY}}"], chat_sep=None, suffix=[])
    template = Template(processor, meta, padding_free=args.padding_free)
    template.set_mode("train")
    template.use_megatron, template.sequence_parallel_size = True, args.context_parallel_size
    return template


def routes(tokens: list[int]) -> np.ndarray:
    """Returns the experts [tokens - 1, all layers, K] that the engine chooses: a fixed choice for each token id and
    layer."""
    table = np.random.default_rng(1).random((VOCABULARY, LAYERS, EXPERTS)).argsort(axis=2)[..., :TOP_K]
    return table[np.array(tokens[:-1])]


class Server:
    """A stand-in for the VLLMClient of ms-swift's trainer.

    moved: by how many rows the routes are late
    lost, short: numbers of the answers without routes, and of those without their last row
    """

    enable_lora = enable_multi_turn = use_gym_env = False

    def __init__(self, moved: int = 0, lost: tuple[int, ...] = (), short: tuple[int, ...] = ()) -> None:
        self.moved, self.lost, self.short = moved, lost, short
        self.answered: list[list[int]] = []
        self.synced = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def process_weights_after_loading(self) -> None:
        self.synced += 1

    def infer(self, infer_requests: list[Any], request_config: Any) -> list[RolloutOutput]:
        return [self.answer(request) for request in infer_requests]

    def answer(self, request: Any) -> RolloutOutput:
        assert request.messages[-1]["role"] == "user"
        prompt = [int(word[1:]) for word in request.messages[-1]["content"].split()]
        random = np.random.default_rng([len(self.answered), *prompt])
        new = random.integers(100, VOCABULARY, random.integers(4, 14)).tolist()
        number, tokens = len(self.answered), [*prompt, *new]
        self.answered.append(tokens)
        rows = np.roll(routes(tokens), self.moved, axis=0).astype(np.uint8)[: -1 if number in self.short else None]
        choice = ChatCompletionResponseChoice(
            index=0,
            message=ChatMessage("assistant", " ".join(f"t{token}" for token in new)),
            finish_reason="stop",
            token_ids=new,
            routed_experts=None if number in self.lost else rows,
        )
        usage = UsageInfo(len(prompt), len(new), len(prompt) + len(new))
        return RolloutOutput(response=ChatCompletionResponse("model", [choice], usage))


class Bridge:
    """Takes the place of the bridge to a checkpoint: there is none to load weights from."""

    def load_weights(self, *_: Any, **__: Any) -> None: ...

    def export_weights(self, models: list[Any], **_: Any) -> Any:
        return ((name, values.detach()) for model in models for name, values in model.named_parameters())


def trainer_of(layout: gpt.Layout, recompute: str, server: Server, **others: Any) -> Any:
    """Returns ms-swift's trainer. Its attribute `seen` has the choices of the routers of actor and reference, and the
    gradients of each step."""
    layout.start()
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    PartialState._reset_state()  # Forked processes inherit the state of their parent, which does not fit.
    PartialState(cpu=True)
    args = args_of(layout, **others)

    def get_mcore_model(args: Namespace, _: Any) -> list[Any]:
        config = layout.config(
            num_layers=LAYERS,
            moe_layer_freq=[0] + [1] * (LAYERS - 1),
            variable_seq_lengths=True,
            **gpt.RECOMPUTE[recompute],
        )
        config.bridge, config.swiglu = Bridge(), False
        return layout.model(config, packed=args.padding_free, position_embedding_type="none")

    with (
        mock.patch.object(base, "get_mcore_model", get_mcore_model),
        mock.patch.object(rlhf_mixin, "get_mcore_model", get_mcore_model),
        mock.patch.object(rlhf_mixin, "safe_snapshot_download", lambda *_, **__: "model"),
        mock.patch.object(rollout_mixin, "is_vllm_available", lambda: True),
    ):
        trainer = grpo_trainer.MegatronGRPOTrainer(args, template_of(args), vllm_client=server)
    trainer.setup_model_training()
    seen = types.SimpleNamespace(actor=gpt.Calls(trainer.unwrapped_models), reference=gpt.Calls(trainer.ref_models))
    seen.gradients, step = [], trainer.optimizer.step

    def stepped() -> Any:
        named = ((name, one) for model in trainer.unwrapped_models for name, one in model.named_parameters())
        seen.gradients.append({name: one.main_grad.numpy().copy() for name, one in named})
        return step()

    trainer.optimizer.step, trainer.seen = stepped, seen
    return trainer


def with_lines() -> None:
    """Loads the plug-in as ms-swift does when the shell has run the README's command."""
    said = dict(line.split(maxsplit=1) for line in recipes.lines("ms-swift"))
    assert said.pop("--router_replay_mode") == "R3"
    [(option, command)] = said.items()
    assert option == "--external_plugins"
    around = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    echo = ["bash", "-c", f"echo {command}"]
    path = subprocess.run(echo, env=around, capture_output=True, text=True, check=True).stdout.strip()
    import_external_file(path)


def prompts(micro_batch_size: int) -> Any:
    """Yields rows of a data set, one micro-batch at a time, like ms-swift's data loader."""
    number = 0
    while True:
        batch = []
        for _ in range(micro_batch_size):
            words = " ".join(f"t{3 + number % 40 + place}" for place in range(2 + number % 3))
            batch.append({"messages": [{"role": "user", "content": words}]})
            number += 1
        yield batch


def counted(maps: dict[int, list[Any]]) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows of all calls of routers."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for layer, calls in maps.items():
        for chosen in calls:
            rows.update((layer, tuple(row.nonzero()[0].tolist())) for row in chosen)
    return rows


def recorded(tokens: list[list[int]], times: int) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows that the engine reported for MoE layers, each row `times` times."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for one in tokens:
        for row in routes(one):
            for layer in range(1, LAYERS):
                rows[layer, tuple(sorted(row[layer].tolist()))] += times
    return rows
