"""The worker of vLLM. Instead of the experts of all layers, its column `routed_experts`, [S, 1, 1], holds the sample's
handle at each token."""

from __future__ import annotations

import uuid
from typing import Any

from routing_replay import Geometry, Run, errors
from routing_replay.engines import vllm

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

with _shared.importing("NeMo-RL"):
    import ray
    import torch
    from nemo_rl.distributed.worker_group_utils import get_nsight_config_if_pattern_matches
    from nemo_rl.models.generation.vllm import vllm_worker
    from transformers import AutoConfig

_aligned = vllm_worker.pad_and_align_routed_expert_indices
model = ""  # The model that the worker's configuration names.
_opened: list[Run] = []  # The run, once it is opened.


def _open() -> None:
    # This may download the model's configuration from a hub.
    geometry = Geometry.from_hf_config(AutoConfig.from_pretrained(model, trust_remote_code=True))
    _opened.append(_shared.open_run(_shared.run_name(), geometry))


def pad_and_align_routed_expert_indices(
    request: Any, answer: Any, *, valid_length: int, padded_length: int, **options: Any
) -> Any:
    routes, stats = _aligned(request, answer, valid_length=valid_length, padded_length=padded_length, **options)
    if routes is None:
        return routes, stats
    column = torch.zeros(padded_length, 1, 1, dtype=torch.int64)
    column[:valid_length] = _put(request, request.outputs.index(answer))
    return column, stats


def _put(request: Any, index: int) -> int:
    """Returns the sample's handle; LIVE if vLLM gave no rows that fit, or if the run could not be opened. The trainer
    counts a sample that has a handle and no rows as a fallback."""
    name = uuid.uuid4().hex  # The same prompt may be generated again, so the name must be unique.
    if not _opened and not _shared.put(name, _open):
        return LIVE
    [run] = _opened
    sample = run.place + name
    try:
        rows = vllm.rows(request, index)
    except errors.RoutingReplayError:
        _shared.lost(sample)
        return LIVE
    _shared.put(sample, lambda: run.put(sample, rows, seal=True))
    return run.handle(sample)


class Worker(vllm_worker.VllmGenerationWorkerImpl):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        global model
        model = config["model_name"]
        super().__init__(config, *args, **kwargs)


@ray.remote(runtime_env={**get_nsight_config_if_pattern_matches("vllm_generation_worker")})
class VllmGenerationWorker(Worker):
    pass


vllm_worker.pad_and_align_routed_expert_indices = pad_and_align_routed_expert_indices
