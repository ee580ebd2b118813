"""verl 0.9 with its Megatron engine (`trainer.use_v1=True` and TransferQueue).

Agent loops send the routes of each trajectory to the service, under verl's key of the trajectory, and the batch carries
a handle. The actor replays the routes in its log-probability and training passes. Samples are released when verl clears
them in TransferQueue.

verl imports this module, as `external_lib`, in each process that reads the model's configuration. The module replaces a
few functions of verl there; in processes that do not call these functions it has no effect.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from routing_replay import Geometry, aio, errors

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

with _shared.importing("verl 0.9 and Megatron-Core"):
    import ray
    import torch
    import transfer_queue
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import AgentLoopOutput
    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
    from verl.workers.engine.megatron import transformer_impl as engines
    from verl.workers.engine_workers import ActorRolloutRefWorker

COLUMN = "routing_handle"
replays: dict[int, Any] = {}  # The replays of actors, by the id() of their list of model chunks.
_MANAGER = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
_LIBRARY = "actor_rollout_ref.model.external_lib"
_SETTINGS = {
    "rollout.enable_rollout_routing_replay": True,
    "actor.strategy": "megatron",
    "model.use_remove_padding": True,
    "actor.megatron.router_replay.mode": "disabled",
    "actor.megatron.dynamic_context_parallel": False,
}


def _run_name(actor_rollout_ref: Any) -> str:
    """Returns the run's name, made from trainer.project_name and experiment_name. Workers find these in the rollout's
    part of the configuration."""
    trace = actor_rollout_ref.rollout.trace
    return _shared.run_name(trace.project_name, trace.experiment_name)


def _check(actor_rollout_ref: Any) -> None:
    """Raises FailedPreconditionError naming a setting that is missing, or does not have the value that we need."""
    library = actor_rollout_ref.model.external_lib
    _shared.need(bool(library), _LIBRARY, library, f"{_LIBRARY}={__name__}")
    for setting, value in _SETTINGS.items():
        got = OmegaConf.select(actor_rollout_ref, setting)
        name = f"actor_rollout_ref.{setting}"
        _shared.need(got == value, name, got, f"{name}={value}")


# The half of the rollout.


class _Named(AgentLoopOutput):
    routing_handle: int

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {COLUMN: torch.tensor(self.routing_handle)}


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker, except that when an agent loop ends, the routes go to the service and not into the output."""

    _run: aio.Run | None = None  # Set once the run is open.
    _opening = _shared.Opening()

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **prompt: Any) -> None:
        outputs = output if isinstance(output, list) else [output]
        for i, one in enumerate(outputs):
            rows, one.routed_experts = one.routed_experts, None
            key, handle = f"{prompt['uid']}_{prompt['session_id']}_{i}", LIVE
            if rows is not None and not validate:
                handle = await self._put(key, rows, one, prompt["global_steps"])
            outputs[i] = _Named.model_construct(one.model_fields_set | {COLUMN}, **dict(one), routing_handle=handle)
        await super()._agent_loop_postprocess(outputs, validate, **prompt)

    async def _put(self, key: str, rows: Any, output: Any, step: int) -> int:
        versions = {output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
        try:
            run = self._run = await self._opening.run(self._open)
            key = run.place + key
            before = await run.stat_many([key])  # A prompt that is dispatched again has the same uid.
            await run.put(
                key,
                **_shared.whole(rows, [*output.prompt_ids, *output.response_ids]),
                group=step,
                weight_version=versions.pop() if len(versions) == 1 else None,
                revision=before[0].revision if before else 0,
                restart=1 + secrets.randbelow(2**32 - 1),
            )
        except errors.RoutingReplayError as error:
            if self._run is None and isinstance(error, errors.FailedPreconditionError):  # The run has another geometry.
                raise
            _shared.lost(key)
        return LIVE if self._run is None else self._run.handle(key)

    async def _open(self) -> aio.Run:
        geometry = Geometry.from_hf_config(self.model_config.hf_config)
        return await _shared.open_aio(_run_name(self.config.actor_rollout_ref), geometry)


class Manager(AgentLoopManagerTQ):
    """verl's manager, with our workers. It lives in the trainer's process, which also pads batches and clears samples.

    run: name of the run of the trainer in this process; None before it is known
    """

    run: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        said = self.config.actor_rollout_ref
        _check(said)
        self.agent_loop_workers_class = ray.remote(Worker)
        Manager.run = _run_name(said)


def _kv_clear(keys: Any, partition_id: str, original: Callable[..., None] = transfer_queue.kv_clear) -> None:
    """Clears keys, and releases their samples. verl calls this after each step, and for samples that are too old."""
    original(keys=keys, partition_id=partition_id)
    if Manager.run is not None and partition_id == "train":
        _shared.release(Manager.run, _shared.anywhere(Manager.run, [keys] if isinstance(keys, str) else keys))


def _padding_template(*arguments: Any, original: Any = padding_utils.construct_minimal_padding_template) -> Any:
    sample, tag = original(*arguments)
    return sample | {COLUMN: torch.tensor(LIVE)}, tag


# The half of the trainer.


def _initialize(engine: Any, original: Any = engines.MegatronEngine.initialize) -> None:
    said = engine.engine_config
    if not said.forward_only and engine.model_config.model_type != "value_model":  # `original` builds the model.
        said.override_transformer_config["moe_enable_routing_replay"] = True
    original(engine)


_dispatch = ActorRolloutRefWorker.set_dispatch_collect


def _set_dispatch_collect(worker: Any, mesh_name: str, **said: Any) -> None:
    """Attaches the replay to the actor. verl calls this function when the engine `mesh_name` has been made."""
    _dispatch(worker, mesh_name, **said)
    if mesh_name == "actor":
        _check(worker.config)
        engine = worker.actor.engine
        geometry = Geometry.from_hf_config(engine.model_config.hf_config)
        replays[id(engine.module)] = _shared.attach(engine.module, _shared.open_run(_run_name(worker.config), geometry))


def _describe(batch: Any) -> dict[str, Any]:
    columns = set(batch.keys())
    _shared.need(COLUMN in columns, _MANAGER, "a batch without handles", f"+{_MANAGER}={__name__}.Manager")
    tokens = list(batch["input_ids"].unbind())  # A nested tensor: one row per sample, without padding.
    return {"sequences": batch[COLUMN].tolist(), "tokens": tokens, "padding": {"policy": "verl"}}


def _get_forward_backward_func(original: Any = engines.get_forward_backward_func) -> Callable[..., Any]:
    def run(**arguments: Any) -> Any:
        replay = replays.get(id(arguments["model"]))
        if replay is None:
            return original()(**arguments)
        return _shared.replayed(replay, original(), _describe)(**arguments)

    return run


engines.MegatronEngine.initialize = _initialize
engines.get_forward_backward_func = _get_forward_backward_func
ActorRolloutRefWorker.set_dispatch_collect = _set_dispatch_collect
padding_utils.construct_minimal_padding_template = _padding_template
transfer_queue.kv_clear = _kv_clear
