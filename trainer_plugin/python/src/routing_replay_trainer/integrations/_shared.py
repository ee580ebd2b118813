"""What the integrations have in common: which run it is, how samples are said to it, and how a model is attached."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from routing_replay import Client, Geometry, Run, aio, errors

from routing_replay_trainer._core import unmet

LIVE = 0  # The handle of what is no sample: padding, answers without rows.
log = logging.getLogger("routing_replay_trainer")


@contextlib.contextmanager
def importing(framework: str) -> Iterator[None]:
    """Around an integration's imports of its framework."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this integration needs {framework}, which cannot be imported here: {error}") from error


def need(holds: bool, setting: str, got: Any, line: str) -> None:
    """FailedPreconditionError naming the setting, and the line to start the framework with, unless that holds."""
    if not holds:
        raise unmet(setting, f"got {got}, with which no routes are replayed: start with `{line}`")


def run_name(*said: Any) -> str:
    """Of what the framework calls the experiment: its parts, of which some may be None; other bytes than those of a
    run's name become '-'. FailedPreconditionError where nothing is said."""
    name = os.environ.get("ROUTING_REPLAY_TRAINING_RUN") or "/".join(str(part) for part in said if part)
    if not name:
        raise unmet("run", "the experiment has no name: give it one, or set ROUTING_REPLAY_TRAINING_RUN")
    return re.sub(r"[^A-Za-z0-9._:/-]", "-", name)[:128]


def _settings() -> dict[str, Any]:
    ttl = os.environ.get("ROUTING_REPLAY_TTL")
    return {"ttl": float(ttl)} if ttl else {}


@functools.cache
def open_run(name: str, geometry: Geometry | None = None) -> Run:
    """This process's, made where nobody has; without a geometry it is only joined."""
    return Client().run(name, geometry, **(_settings() if geometry is not None else {}))


async def open_aio(name: str, geometry: Geometry) -> aio.Run:
    return await aio.Client().run(name, geometry, **_settings())


def whole(rows: Any, tokens: Sequence[int]) -> dict[str, Any]:
    """Arguments of `put` for all of a sample: what an engine was never fed (the last token, and what a tool said behind
    the last answer) has no route."""
    fed = len(tokens) - 1
    known = min(len(rows), fed)
    unrecorded = [(known, fed)] if known < fed else []
    return {"rows": rows[:known], "tokens": tokens[:fed], "unrecorded": unrecorded, "num_tokens": len(tokens)}


def lost(sample: str) -> None:
    """Within an except clause: says that the trainer lets the sample choose."""
    log.exception("%s: its routes are lost, the trainer lets it choose", sample)


def release(run: str, samples: Iterable[str | int]) -> None:
    """Those that were trained on. What the service cannot be told stays until the run's time to live is over."""
    try:
        open_run(run).release(samples)
    except errors.RoutingReplayError:
        log.exception("%s: routes of samples that were trained on stay until the run's TTL", run)


def attach(model_chunks: Any, run: Run) -> Any:
    """Megatron's model of this rank, to a run."""
    from megatron.core import parallel_state as mpu

    from routing_replay_trainer import ServiceSource, megatron
    from routing_replay_trainer.collective import TorchCollective

    mode: Any = os.environ.get("ROUTING_REPLAY_MODE", "R3")
    ranks = TorchCollective([mpu.get_tensor_and_context_parallel_group(), mpu.get_pipeline_model_parallel_group()])
    return megatron.attach(model_chunks, source=ServiceSource(run), mode=mode, missing="live", agree=ranks)
