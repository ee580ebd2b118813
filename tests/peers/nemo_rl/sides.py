"""Runs NeMo-RL's own rollout and policy on the CPU. The rollout uses NeMo-RL's vLLM worker, with a stand-in for the
engine. The `Policy` uses NeMo-RL's Megatron worker, with a small GPTModel."""

from __future__ import annotations

import importlib
import json
import os
import types
from collections import Counter
from pathlib import Path
from typing import Any

import gpt
import numpy as np
import ray
import torch
from common import stand_ins
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.fsdp import mcore_fsdp_adapter
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.moe.router_replay import RouterReplayAction

LAYERS, MAXIMUM, PAD = 4, 96, 0
MOE = range(1, LAYERS)
NO_ROUTE = list(range(gpt.TOP_K))  # The ids with which NeMo-RL fills last rows and padding: 0, 1, …, K - 1.

# Imported before the stand-ins, because it would ask the stand-in for Transformer Engine for its version.
importlib.import_module("megatron.training.utils")
stand_ins.install(
    *("absl", "datasets", "fastapi", "matplotlib", "megatron.bridge", "mlflow", "prometheus_client", "pynvml"),
    *("soundfile", "swanlab", "tensordict", "torch.utils.tensorboard", "torchdata", "transformer_engine", "uvicorn"),
    *("aiohttp", "pandas", "scipy", "wandb", "zmq"),
)
for version in (1, 2):  # NeMo-RL uses these two classes in isinstance; they exist only in a newer Megatron-Core.
    setattr(mcore_fsdp_adapter, f"FullyShardedDataParallelV{version}", type("Sharded", (), {}))

from nemo_rl.algorithms import grpo  # noqa: E402
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn  # noqa: E402
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.environments.interfaces import EnvironmentReturn  # noqa: E402
from nemo_rl.experience import rollouts  # noqa: E402
from nemo_rl.models.generation.vllm import vllm_generation, vllm_worker  # noqa: E402
from nemo_rl.models.megatron import train as nemo_train  # noqa: E402
from nemo_rl.models.policy.lm_policy import Policy  # noqa: E402
from nemo_rl.models.policy.workers import megatron_policy_worker as policy_worker  # noqa: E402

for name in ("logical_and_across_model_parallel_group", "reduce_max_stat_across_model_parallel_group"):
    # The groups of these reductions have one rank, so its value is the result.
    setattr(policy_worker, name, lambda value, mp_group: value)

SCHEDULE = nemo_train.get_forward_backward_func


OWN = {
    "pad_and_align_routed_expert_indices": vllm_worker.pad_and_align_routed_expert_indices,
    "megatron_forward_backward": policy_worker.megatron_forward_backward,
}
RUN = "grpo-42"
os.environ["ROUTING_REPLAY_TRAINING_RUN"] = RUN  # As the README says.
from routing_replay_trainer.integrations.nemo_rl import generation as of_rollout  # noqa: E402
from routing_replay_trainer.integrations.nemo_rl import policy as of_trainer  # noqa: E402


def checkpoint(folder: Path) -> None:
    """Writes the part of a checkpoint that the workers read: its configuration."""
    sizes = {"num_hidden_layers": LAYERS, "num_experts": gpt.EXPERTS, "num_experts_per_tok": gpt.TOP_K}
    config = {"model_type": "qwen3_moe", "mlp_only_layers": [0], "decoder_sparse_step": 1} | sizes
    (folder / "config.json").write_text(json.dumps(config))
    of_rollout.model = str(folder)


def install(service: bool) -> None:
    """Sets the functions of NeMo-RL that our modules replace: to ours if `service`, otherwise back to NeMo-RL's own."""
    nemo_train.get_forward_backward_func = SCHEDULE
    for module, name, ours in (
        (vllm_worker, "pad_and_align_routed_expert_indices", of_rollout),
        (policy_worker, "megatron_forward_backward", of_trainer),
    ):
        setattr(module, name, getattr(ours, name) if service else OWN[name])


def routes(tokens: list[int]) -> np.ndarray:
    """Returns the experts [tokens - 1, all layers, K] that the engine chooses: a fixed choice for each token id and
    layer, which is never NO_ROUTE."""
    table = np.random.default_rng(1).random((gpt.VOCABULARY, LAYERS, gpt.EXPERTS)).argsort(axis=2)
    chosen = table[np.array(tokens[:-1]), :, : gpt.TOP_K]
    return np.where((chosen == NO_ROUTE).all(2, keepdims=True), chosen[:, :, ::-1], chosen)


class Engine:
    """Takes the place of vLLM's LLM. The answer to a prompt that begins with token 9 has two rows too few.

    moved: by how many rows the routes are late
    """

    def __init__(self, moved: int = 0) -> None:
        self.moved = moved
        self.llm_engine = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=MAXIMUM))
        self.answered: list[list[int]] = []

    def generate(self, prompts: list[dict[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        return [self.answer(prompt["prompt_token_ids"]) for prompt in prompts]

    def answer(self, prompt: list[int]) -> Any:
        random = np.random.default_rng(sum(prompt) + len(prompt))
        new = random.integers(10, gpt.VOCABULARY, random.integers(4, 9)).tolist()
        self.answered.append(prompt + new)
        rows = np.roll(routes(prompt + new), self.moved, axis=0).astype(np.uint8)
        choice = types.SimpleNamespace(
            index=0,
            token_ids=new,
            logprobs=[{token: types.SimpleNamespace(logprob=-1.0)} for token in new],
            finish_reason="stop",
            routed_experts=rows[:-2] if prompt[0] == 9 else rows,
        )
        return types.SimpleNamespace(prompt_token_ids=prompt, outputs=[choice], num_cached_tokens=0)


class Words:
    """A tokenizer whose words are numbers."""

    pad_token_id = PAD

    def batch_decode(self, sequences: Any, **_: Any) -> list[str]:
        return [" ".join(map(str, one.tolist())) for one in sequences]

    def __call__(self, text: str, **_: Any) -> Any:
        return types.SimpleNamespace(input_ids=torch.tensor([[int(word) for word in text.split()]]))


class Environment:
    """An environment that appends three words to each answer. A sample whose info has `again` gets another turn."""

    def __init__(self) -> None:
        self.step = types.SimpleNamespace(remote=self._step)

    def _step(self, logs: list[Any], infos: list[Any]) -> Any:
        ends = torch.tensor([not info.pop("again", False) for info in infos])
        said = [{"role": "environment", "content": "5 6 7"} for _ in logs]
        rewards = torch.tensor([float(index % 2) for index in range(len(logs))])
        return _Done(EnvironmentReturn(said, infos, [None] * len(logs), rewards, ends, [None] * len(logs)))


class _Done:
    """A Ray future whose value exists already."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _get(futures: Any) -> Any:
    return [one.value for one in futures]


def generation(moved: int = 0) -> Any:
    """Returns NeMo-RL's vLLM worker. It is made without its __init__, which would start vLLM on a GPU."""
    worker = object.__new__(vllm_worker.VllmGenerationWorkerImpl)
    worker.llm, worker.SamplingParams = Engine(moved), types.SimpleNamespace
    worker.routed_experts_dtype = torch.int8
    worker.cfg = {
        "_pad_token_id": PAD,
        "vllm_cfg": {},
        "vllm_kwargs": {"enable_return_routed_experts": True},
        "top_k": None,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": 9,
        "stop_token_ids": None,
    }
    return worker


def engines(worker: Any) -> Any:
    """Returns the object through which NeMo-RL's driver calls this worker."""
    made = object.__new__(vllm_generation.VllmGeneration)
    made.cfg, made.worker_group = worker.cfg, Workers(worker)
    made.sharding_annotations = types.SimpleNamespace(get_axis_size=lambda name: 1)
    return made


def config_of(layout: gpt.Layout, packed: bool) -> dict[str, Any]:
    """Returns the part of NeMo-RL's policy configuration that its code reads in these tests."""
    multiple = 4 * layout.cp * layout.tp
    packing = {"enabled": packed, "algorithm": "first_fit_decreasing", "logprob_mb_tokens": 64, "train_mb_tokens": 48}
    return {
        "model_name": "none",
        "precision": "float32",
        "router_replay": {"enabled": True},
        "train_global_batch_size": 4,  # Two steps for each rollout.
        "train_micro_batch_size": 2,
        "logprob_batch_size": 2,
        "make_sequence_length_divisible_by": multiple,
        "max_total_sequence_length": MAXIMUM,
        "sequence_packing": packing,
        "dynamic_batching": {"enabled": False},
        "megatron_cfg": {
            "tensor_model_parallel_size": layout.tp,
            "sequence_parallel": layout.tp > 1,
            "pipeline_model_parallel_size": layout.pp,
            "context_parallel_size": layout.cp,
            "empty_unused_memory_level": 0,
            "moe_per_layer_logging": False,
        },
    }


def rollout(config: dict[str, Any], moved: int = 0, bad: bool = False) -> tuple[Any, list[list[int]]]:
    """Returns NeMo-RL's batch for one step, and the tokens of the engine's last answer for each of the 8 samples.
    Sample 1 has two turns.

    bad: sample 2 lacks rows, and sample 3 has no answer
    """
    worker = generation(moved)
    logs = []
    for index in range(8):
        prompt = [9 if bad and index == 2 else 20 + index, *range(10, 13 + index)]
        logs.append([{"role": "user", "content": "", "token_ids": torch.tensor(prompt)}])
    batch = BatchedDataDict(
        message_log=logs,
        extra_env_info=[{"again": index == 1} for index in range(8)],
        task_name=["words"] * 8,
        loss_multiplier=torch.ones(8),
    )
    ray.get, kept = _get, ray.get
    try:
        engine, words = engines(worker), {"words": Environment()}
        batch, _ = rollouts.run_multi_turn_rollout(engine, batch, Words(), words, MAXIMUM, 3)
    finally:
        ray.get = kept
    if bad:
        del batch["message_log"][3][1:]
        batch["message_log"][3][0].pop("routed_experts")
    logs = batch["message_log"]
    grpo.add_grpo_token_loss_masks_and_generation_logprobs(logs)
    flat, lengths = batched_message_log_to_flat_message(
        logs, {"token_ids": PAD}, make_sequence_length_divisible_by=config["make_sequence_length_divisible_by"]
    )
    data = grpo._build_async_grpo_train_data(flat, lengths, batch, config)
    said = [[token for one in log for token in one["token_ids"].tolist()] for log in logs]
    last = [max((one for one in worker.llm.answered if one == own[: len(one)]), key=len, default=[0]) for own in said]
    return data, last


class Workers:
    """Takes the place of NeMo-RL's worker group: it has only the worker on this rank."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def run_all_workers_sharded_data(self, name: str, *, data: Any, common_kwargs: Any = None, **_: Any) -> Any:
        [own] = data
        return [getattr(self.worker, name)(data=own, **(common_kwargs or {}))]

    def get_all_worker_results(self, futures: Any) -> Any:
        return futures

    def shutdown(self, **_: Any) -> bool:
        return True


def policy_of(config: dict[str, Any], layout: gpt.Layout, recompute: str = "none") -> Any:
    """Returns NeMo-RL's Policy with its Megatron worker. Both are made without their __init__, which require GPUs and a
    checkpoint. The worker's attribute `gradients` has the gradients of each step."""
    packed = config["sequence_packing"]["enabled"]
    settings = layout.config(
        num_layers=LAYERS,
        moe_layer_freq=[int(layer in MOE) for layer in range(LAYERS)],
        variable_seq_lengths=True,
        **gpt.RECOMPUTE[recompute],
    )
    [module] = layout.model(settings, packed=packed, position_embedding_type="none")
    worker = object.__new__(policy_worker.MegatronPolicyWorkerImpl)
    worker.cfg, worker._router_replay_enabled, worker.dp_size = config, True, 1
    worker.model = DistributedDataParallel(settings, DistributedDataParallelConfig(), module)
    worker.optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=1e-3, clip_grad=0.0), [worker.model])
    worker.optimizer.grad_norms_by_group = {}
    worker.scheduler = types.SimpleNamespace(step=lambda increment: None, get_lr=lambda group: 0.0, get_wd=lambda: 0.0)
    worker.mcore_state = types.SimpleNamespace(straggler_timer=None)
    worker.timer = types.SimpleNamespace(start=lambda name: None, stop=lambda name: None)
    worker.sampling_params = worker.draft_model = worker.media_placeholder_token_id = None
    worker.delegate_pack_to_model = worker.delegate_mtp_loss_mask_to_model = False
    worker.model_slices_context_parallel_inputs = worker.defer_fp32_logits = False
    worker.should_disable_forward_pre_hook = worker._first_train_step_forward_pre_hook_disabled = False
    worker.dtype, worker.megatron_cfg = torch.float32, types.SimpleNamespace(optimizer=None)
    state = worker.model.state_dict()
    worker.reference_state_dict = {name: one.clone() for name, one in state.items() if one is not None}
    worker.gradients = []
    step = worker.optimizer.step

    def stepped() -> Any:
        worker.gradients.append({name: one.main_grad.clone() for name, one in module.named_parameters()})
        return step()

    worker.optimizer.step = stepped
    policy = object.__new__(Policy)
    policy.cfg, policy.worker_group, policy.flops_tracker = config, Workers(worker), None
    policy.sharding_annotations = types.SimpleNamespace(get_axis_size=lambda name: 1)
    policy.use_dynamic_batches, policy.use_sequence_packing = False, packed
    policy.debug_payload_metrics = False
    policy.sequence_packing_args = {
        "algorithm": config["sequence_packing"]["algorithm"],
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "sequence_length_pad_multiple": config["make_sequence_length_divisible_by"],
    }
    return policy


Passes = dict[str, dict[int, list[torch.Tensor]]]  # By name of the pass and by layer: the routing maps of all calls.


def fill(module: Any, passes: Passes) -> Counter[str]:
    """Makes NeMo-RL's own R3 use the choices of `passes` for rows without a route; for rows with a route R3 still uses
    the record. Returns the number of rows with a route ("routed"), and how many of them have other experts in `passes`
    than in the record ("different")."""
    found: Counter[str] = Counter()
    for router in gpt.routers([module]):
        other = iter([one for maps in passes.values() for one in maps[router.layer_number - 1]])
        replay, kept = router.router_replay, list[torch.Tensor]()

        def has_route(rows: int, replay: Any = replay, kept: Any = kept) -> torch.Tensor:
            # The same rows have a route as in the forward pass.
            if replay.router_replay_action == RouterReplayAction.REPLAY_BACKWARD:
                return kept[-len(replay.replay_backward_list)]
            if replay.router_replay_action != RouterReplayAction.REPLAY_FORWARD:
                return torch.zeros(rows, dtype=torch.bool)
            ids = replay.target_topk_idx.cpu()
            kept.append(ids.ne(-1).all(1) & ids.ne(torch.tensor(NO_ROUTE)).any(1))
            return kept[-1]

        def get_replay_topk(
            scores: Any,
            topk: int,
            *rest: Any,
            own: Any = replay.get_replay_topk,
            other: Any = other,
            has: Any = has_route,
        ) -> Any:
            routed = has(len(scores))
            _, ids = own(scores, topk, *rest)
            chosen = next(other).nonzero()[:, 1].view(len(ids), -1)
            found["routed"] += int(routed.sum())
            found["different"] += int((ids.sort(1).values != chosen).any(1)[routed].sum())
            ids = torch.where(routed[:, None], ids, chosen)
            return scores.gather(1, ids), ids

        replay.get_replay_topk = get_replay_topk
    return found


def passes(policy: Any, data: Any) -> Passes:
    """Makes the passes of a step, as NeMo-RL's `grpo_train` does. Returns what the routers chose in each."""
    worker = policy.worker_group.worker
    calls = gpt.Calls([worker.model.module])
    said: Passes = {}

    def keep(name: str) -> None:
        said[name], calls.maps = calls.maps, {}

    asked = BatchedDataDict({key: data[key] for key in ("input_ids", "input_lengths", "token_mask", "sample_mask")})
    if "routed_experts" in data:
        asked["routed_experts"] = data["routed_experts"]
    data["prev_logprobs"] = policy.get_logprobs(asked)["logprobs"]
    keep("log-probabilities")
    data["reference_policy_logprobs"] = policy.get_reference_policy_logprobs(asked)["reference_logprobs"]
    keep("reference")
    random = torch.Generator().manual_seed(3)
    data["advantages"] = torch.randn(len(data["input_ids"]), 1, generator=random).expand_as(data["input_ids"]).clone()
    policy.train(data, ClippedPGLossFn(ClippedPGLossConfig()))
    keep("training")
    return said


def recorded(answers: list[list[int]], times: int = 1) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows that the engine reported for MoE layers, each row `times` times."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for one in answers:
        for row in routes(one):
            for layer in MOE:
                rows[layer, tuple(sorted(row[layer].tolist()))] += times
    return rows


def counted(maps: dict[int, list[torch.Tensor]]) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows of all calls of routers."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for layer, calls in maps.items():
        for chosen in calls:
            rows.update((layer, tuple(row.nonzero().flatten().tolist())) for row in chosen)
    return rows
