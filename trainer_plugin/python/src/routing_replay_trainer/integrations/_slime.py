"""The two halves of the integrations of slime and of miles, which is derived from slime."""

from __future__ import annotations

import functools
import importlib
import os
import uuid
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
from routing_replay import Geometry, aio, errors, token_check

from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations._shared import LIVE

# Key in the metadata of an interrupted answer. Its value: the sample's name, number of tokens so far, their CRC.
CUT_SHORT = "routing_sample"
OWN = "--use-rollout-routing-replay"
INIT = "--custom-megatron-init-path"


def _run_name(args: Namespace) -> str:
    """Returns the run's name, made from wandb's project and group, or else TensorBoard's project and experiment."""
    wandb = args.wandb_project, args.wandb_group
    return _shared.run_name(*(wandb if any(wandb) else (args.tb_project_name, args.tb_experiment_name)))


def _name(sample: Any) -> str:
    """Returns a name for the sample: a random one, because slime gives several samples the same index. An answer that
    was interrupted and continues keeps its name; one that starts again (with other tokens) gets a new name."""
    name, count, check = sample.metadata.pop(CUT_SHORT, ("", 0, None))
    return name if name and token_check(sample.tokens[:count]) == check else uuid.uuid4().hex


class Rollout:
    """The rollout's half; runs in the rollout manager's process.

    integration: name of the integration's module
    begin: called before each attempt to open the run, which is made at the first sample, and again after a failure
    """

    def __init__(self, integration: str, begin: Callable[[], None] = lambda: None) -> None:
        self._integration, self._begin = integration, begin
        self._opening = _shared.Opening()

    async def publish(self, args: Namespace, sample: Any, evaluation: bool = False) -> None:
        """Called after each answer: moves the rows to the service, and replaces them by a handle. If an answer was
        interrupted and continues, its earlier rows are not changed; if it does not continue, it routes live."""
        rows, sample.rollout_routed_experts = sample.rollout_routed_experts, None
        if evaluation:
            return
        ended = sample.status != type(sample).Status.ABORTED
        given = rows is not None and np.ndim(rows) > 1  # A handle, left by an interruption, has 1 dimension.
        handle = await self._put(args, sample, rows, ended) if given else LIVE
        # The framework may train on an interrupted answer, too, and needs a handle of every sample of a batch.
        sample.rollout_routed_experts = np.array([handle])

    async def _put(self, args: Namespace, sample: Any, rows: Any, ended: bool) -> int:
        """Returns the sample's handle; LIVE if its answer was interrupted, or if the run could not be opened. The
        trainer counts a sample that has a handle and no rows as a fallback."""
        name, handle = _name(sample), LIVE
        if not ended:
            sample.metadata[CUT_SHORT] = name, len(sample.tokens), token_check(sample.tokens)
        label = sample.weight_versions[-1] if sample.weight_versions else ""  # From SGLang's meta_info.
        version = {"weight_version": int(label) if label.isdecimal() else None, "weight_label": label}
        try:
            run = await self.opened(args)
            name = run.place + name
            handle = run.handle(name) if ended else LIVE
            await run.append(name, np.asarray(rows), tokens=sample.tokens[:-1], **version)
            if ended:
                await run.commit(name, tokens=sample.tokens)
        except errors.FailedPreconditionError:  # An option is missing, or the run has another geometry.
            raise
        except errors.RoutingReplayError:
            _shared.lost(name)
        return handle

    async def opened(self, args: Namespace) -> aio.Run:
        return await self._opening.run(functools.partial(self._open, args))

    async def _open(self, args: Namespace) -> aio.Run:
        init = args.custom_megatron_init_path
        _shared.need(bool(init), INIT, init, f"{INIT} {self._integration}.replay")
        self._begin()
        return await _shared.open_aio(_run_name(args), Geometry.from_megatron_config(args))


class Trainer:
    """The trainer's half; runs in each process of the trainer. Its methods are the hooks with the same names in the
    integration's module.

    framework: name of the framework's package and of its padding policy
    publish: the framework's option that installs the rollout's half, and our function to pass to it. If the option is
        not set, the error names both
    """

    def __init__(self, framework: str, integration: str, publish: tuple[str, str]) -> None:
        self._framework, self._integration, self._publish = framework, integration, publish
        self._replay: Any = None
        self._original: Any = None
        self._trained: Any = ()  # Handles of the rollout that was trained on last.
        self._theirs: dict[str, str | None] = {}  # The user's hooks, which ours replace and call.

    def replay(self, args: Namespace) -> None:
        """Called before a model is built: turns the framework's own replay off, and installs our hooks."""
        _shared.need(args.use_rollout_routing_replay, OWN, args.use_rollout_routing_replay, OWN)
        option, function = self._publish
        got = getattr(args, option[2:].replace("-", "_"))
        _shared.need(bool(got), option, got, f"{option} {self._integration}.{function}")
        args.use_rollout_routing_replay = args.use_routing_replay = False
        os.environ["ENABLE_ROUTING_REPLAY"] = "0"  # slime's patch of Megatron reads this variable.
        args.moe_enable_routing_replay = True
        for hook in ("before_log_prob", "before_train_step"):
            option = f"custom_megatron_{hook}_hook_path"
            self._theirs[hook] = getattr(args, option)
            setattr(args, option, f"{self._integration}.{hook}")

    def before_log_prob(self, args: Namespace, model: Any, store_prefix: str) -> None:
        # Passes of "ref_" and "teacher_" models run in the same modules, but must not replay.
        self._switch(args, model, store_prefix == "", training=False)
        self._then("before_log_prob", args, model, store_prefix)

    def before_train_step(self, args: Namespace, rollout_id: int, step_id: int, model: Any, *optimizer: Any) -> None:
        if step_id == 0:
            self._release(args)
        self._switch(args, model, True, training=True)
        self._then("before_train_step", args, rollout_id, step_id, model, *optimizer)

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self._framework}.{name}")

    def _then(self, hook: str, *arguments: Any) -> None:
        theirs = self._theirs[hook]
        if theirs:
            self._module("utils.misc").load_function(theirs)(*arguments)

    def _switch(self, args: Namespace, model: Any, replays: bool, *, training: bool) -> None:
        """Sets the schedule that the framework runs until the next hook: Megatron's own, with replay around it if
        `replays`. Does nothing in a critic."""
        if getattr(model[0], "role", "actor") != "actor":
            return
        module = self._module("backends.megatron_utils.model")
        if self._replay is None:
            self._original = module.get_forward_backward_func
            run = _shared.open_run(_run_name(args), Geometry.from_megatron_config(args))
            self._replay = _shared.attach(model, run)
        padding = {"data_pad_size_multiplier": args.data_pad_size_multiplier, "allgather_cp": args.allgather_cp}
        padding |= {"policy": self._framework}

        def describe(batch: Any) -> dict[str, Any]:
            return {"sequences": batch[0], "tokens": batch[1], "padding": padding}

        original = self._original
        replayed = _shared.replayed(self._replay, original(), describe, peek=functools.partial(self._peek, training))
        module.get_forward_backward_func = lambda: replayed if replays else original()

    def _peek(self, training: bool, iterator: Any, ahead: int) -> Any:
        data, rows = iterator.rollout_data, iterator.micro_batch_indices[iterator.offset + ahead]
        handles, tokens = data["rollout_routed_experts"], data["tokens"]
        if training:
            self._trained = handles
        return [int(handles[i]) for i in rows], [tokens[i] for i in rows]

    def _release(self, args: Namespace) -> None:
        """Releases the samples of the previous rollout; called when training on the next one begins."""
        from megatron.core import parallel_state as mpu

        if mpu.get_tensor_and_context_parallel_rank() == mpu.get_pipeline_model_parallel_rank() == 0:
            _shared.release(_run_name(args), [int(handle) for handle in self._trained])
        self._trained = ()
