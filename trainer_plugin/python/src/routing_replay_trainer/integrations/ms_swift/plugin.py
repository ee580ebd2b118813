"""The plug-in file for ms-swift's option `--external_plugins`.

When a rollout ends, and before samples are gathered over ranks, the rows go to the service under the `request_id` that
ms-swift gives each completion; samples then carry handles. ms-swift's own replay is turned off. ms-swift computes
log-probabilities one micro-batch at a time, and each such micro-batch is a step of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from routing_replay import Geometry

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

with _shared.importing("ms-swift 4.6 and Megatron-Core"):
    from swift.utils import set_device

    # ms-swift loads this file before it chooses the rank's GPU, and some of its modules read the chosen GPU at import.
    set_device()
    from swift.megatron.trainers import base
    from swift.megatron.trainers import grpo_trainer as grpo
    from swift.rlhf_trainers.utils import encode_sample


def _around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator of a function that replaces `owner.name`: `owner.name(…)` then calls `function(original, …)`."""

    def put(function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: function(original, *args, **kwargs))

    return put


def _run_name(args: Any) -> str:
    """The run's name: wandb's project and experiment; without an experiment, the last two parts of the output path."""
    if args.wandb_exp_name:
        return _shared.run_name(args.wandb_project, args.wandb_exp_name)
    return _shared.run_name(*Path(args.output_dir).resolve().parts[-2:])


@contextlib.contextmanager
def _saying(trainer: Any, described: Any) -> Iterator[None]:
    """A context whose passes replay `described`, the arguments of `micro_batch`; if it is None, they route live."""
    before, trainer.described = trainer.described, described
    try:
        yield
    finally:
        trainer.described = before


# The rollout's half.


@_around(grpo.MegatronGRPOTrainer, "_generate_completions")
def generate(original: Any, trainer: Any, samples: Any) -> Any:
    samples = original(trainer, samples)
    with trainer._template_context(trainer.template):
        for sample in samples:
            rows, sample.routed_experts = sample.routed_experts, None
            sample.routing_handle = LIVE if rows is None else _put(trainer, sample, np.asarray(rows))
    return samples


def _put(trainer: Any, sample: Any, rows: Any) -> int:
    tokens = encode_sample(sample, trainer.template)["input_ids"]
    fed, version = len(tokens) - 1, trainer.state.iteration
    said = {"tokens": tokens[:fed], "num_tokens": len(tokens), "weight_version": version}
    name = trainer.run.place + sample.request_id
    if not _shared.put(name, lambda: trainer.run.put(name, rows[:fed], **said)):
        return LIVE
    trainer.used.append(name)
    return trainer.run.handle(name)


@_around(grpo, "collate_to_grpo_micro_batch")
def collate(original: Any, samples: Any, template: Any, **options: Any) -> Any:
    handles = [sample.routing_handle for sample in samples]
    # A copy, because ms-swift pads its own list in place.
    tokens = [list(sample.encoded["input_ids"]) for sample in samples]
    inputs, batch = original(samples, template, **options)
    batch.routes = {"sequences": handles, "tokens": tokens}
    return inputs, batch


@_around(grpo.MegatronGRPOTrainer, "_build_rollout_buffer")
def release(original: Any, trainer: Any, data_iterator: Any) -> Any:
    """Releases the samples of the previous rollout, on which all ranks have trained. An evaluation may come between two
    steps on one rollout, and must not release anything."""
    if trainer.unwrapped_models[0].training:
        used, trainer.used = trainer.used, []
        _shared.release(trainer.run.name, used)
    return original(trainer, data_iterator)


# The trainer's half.


@_around(grpo.MegatronGRPOTrainer, "prepare_model")
def prepare_model(original: Any, trainer: Any) -> None:
    mode, partition = trainer.args.router_replay_mode, trainer.args.cp_partition_mode
    _shared.need(mode == "R3", "router_replay_mode", mode, "--router_replay_mode R3")
    _shared.need(partition == "zigzag", "cp_partition_mode", partition, "--cp_partition_mode zigzag")
    original(trainer)
    trainer.enable_routing_replay = False
    trainer.run = _shared.open_run(_run_name(trainer.args), Geometry.from_megatron_config(trainer.config))
    trainer.replay, trainer.described, trainer.used = _shared.attach(trainer.unwrapped_models, trainer.run), None, []


def _describe(trainer: Any, data: Any) -> dict[str, Any]:
    names = ("padding_free", "fp8_recipe", "fp8_format", "attention_backend")
    padding = {name: getattr(trainer.args, name) for name in names}
    return data["grpo_batch"].routes | {"padding": padding | {"policy": "ms_swift"}}


@_around(grpo.MegatronGRPOTrainer, "_maybe_compute_logps")
def log_probabilities(original: Any, trainer: Any, data: Any, **options: Any) -> Any:
    with _saying(trainer, _describe(trainer, data)):
        return original(trainer, data, **options)


@_around(grpo.MegatronGRPOTrainer, "null_ref_context")
@contextlib.contextmanager
def reference(original: Any, trainer: Any) -> Iterator[Any]:
    with original(trainer) as models, _saying(trainer, None):
        yield models


@_around(grpo.MegatronGRPOTrainer, "_compute_teacher_logps")
def teacher(original: Any, trainer: Any, *args: Any, **options: Any) -> Any:
    with _saying(trainer, None):
        return original(trainer, *args, **options)


@_around(grpo.MegatronGRPOTrainer, "compute_per_token_logps")
def forward(original: Any, trainer: Any, model: Any, data_iterator: Any, **options: Any) -> Any:
    said = trainer.described
    if said is None:
        return original(trainer, model, data_iterator, **options)
    trainer.replay.begin_step(said["sequences"], tokens=said["tokens"])
    try:
        with trainer.replay.micro_batch(**said, index=0, schedule=False, forward_only=True):
            answer = original(trainer, model, data_iterator, **options)
    except BaseException:
        trainer.replay.abandon_step()
        raise
    trainer.replay.end_step()
    return answer


@_around(base, "get_forward_backward_func")
def schedule(original: Any) -> Callable[..., Any]:
    def run(**arguments: Any) -> Any:
        trainer = arguments["forward_step_func"].__self__
        return _shared.replayed(trainer.replay, original(), functools.partial(_describe, trainer))(**arguments)

    return run
