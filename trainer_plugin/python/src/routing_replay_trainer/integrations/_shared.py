"""The common part of the integrations: names the run, puts and releases samples, and attaches a model."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from routing_replay import Client, Geometry, Run, aio, errors

from routing_replay_trainer import megatron
from routing_replay_trainer._core import LOG, unmet
from routing_replay_trainer.collective import TorchCollective
from routing_replay_trainer.fetch import ServiceSource

LIVE = 0  # The handle of sequences that route live: padding, and answers without rows.
_PAUSE = 60.0  # Seconds without further attempts after the service could not be reached.
_not_before = 0.0  # Before this time.monotonic(), `put` does not try to reach the service.


@contextlib.contextmanager
def importing(framework: str) -> Iterator[None]:
    """A context for an integration's imports of its framework, which makes the message of an ImportError clearer."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this integration needs {framework}, which cannot be imported here: {error}") from error


def need(holds: bool, setting: str, got: Any, line: str) -> None:
    """Unless `holds`, raises FailedPreconditionError that names the setting and says with which option to start the
    framework."""
    if not holds:
        raise unmet(setting, f"got {got}: no routes would be replayed; start with `{line}`")


def run_name(*said: Any) -> str:
    """Returns the run's name: ROUTING_REPLAY_TRAINING_RUN, or else the parts of the experiment's name that are not
    empty, joined by '/'. Illegal characters become '-'. Raises FailedPreconditionError if there is no name."""
    name = os.environ.get("ROUTING_REPLAY_TRAINING_RUN") or "/".join(str(part) for part in said if part)
    if not name:
        raise unmet("run", "the experiment has no name: give it one, or set ROUTING_REPLAY_TRAINING_RUN")
    return re.sub(r"[^A-Za-z0-9._:/-]", "-", name)[:128]


def _settings() -> dict[str, Any]:
    ttl = os.environ.get("ROUTING_REPLAY_TTL")
    return {"ttl": float(ttl)} if ttl else {}


@functools.cache
def open_run(name: str, geometry: Geometry | None = None) -> Run:
    """Returns the run, opened once per process. It is created if it does not exist, unless the geometry is None."""
    return Client().run(name, geometry, **(_settings() if geometry is not None else {}))


async def open_aio(name: str, geometry: Geometry) -> aio.Run:
    return await aio.Client().run(name, geometry, **_settings())


class Opening:
    """The run for the rollouts of a process. The first coroutine that needs it opens it, and others wait until it is
    open. If opening fails, the next coroutine tries again."""

    def __init__(self) -> None:
        self._opened: asyncio.Future[aio.Run] | None = None

    async def run(self, begin: Callable[[], Coroutine[Any, Any, aio.Run]]) -> aio.Run:
        opened = self._opened
        if opened is None or (opened.done() and (opened.cancelled() or opened.exception() is not None)):
            opened = self._opened = asyncio.ensure_future(begin())
        return await asyncio.shield(opened)


def whole(rows: Any, tokens: Sequence[int]) -> dict[str, Any]:
    """Returns the arguments of `put` for a whole sample. Tokens that were never fed to the engine (the last token, and
    a tool's text after the last answer) have no route."""
    fed = len(tokens) - 1
    known = min(len(rows), fed)
    unrecorded = [(known, fed)] if known < fed else []
    return {"rows": rows[:known], "tokens": tokens[:fed], "unrecorded": unrecorded, "num_tokens": len(tokens)}


def lost(sample: str) -> None:
    """Logs that the sample will route live in the trainer. Call this in an except clause."""
    LOG.exception("%s: its routes are lost, so the trainer routes it live", sample)


def put(sample: str, call: Callable[[], object]) -> bool:
    """Calls `call`, which puts the rows of a sample. Returns True if it succeeded; else logs that the rows are lost and
    returns False. After a call that could not reach the service, `put` calls nothing for a minute, because otherwise
    each sample of a rollout would wait for a whole timeout. FailedPreconditionError is passed on."""
    global _not_before
    if time.monotonic() < _not_before:
        LOG.error("%s: its routes are lost, because the service could not be reached a moment ago", sample)
        return False
    try:
        call()
        return True
    except errors.FailedPreconditionError:  # A setting is missing, or the run has another geometry.
        raise
    except errors.RoutingReplayError as error:
        if isinstance(error, errors.UnavailableError | errors.DeadlineExceededError):
            _not_before = time.monotonic() + _PAUSE
        lost(sample)
    return False


def release(run: str, samples: Iterable[str | int]) -> None:
    """Releases samples that were trained on. If that fails, they stay until the run's TTL."""
    try:
        open_run(run).release(samples)
    except errors.RoutingReplayError:
        LOG.exception("%s: the trained samples were not released; their routes stay until the run's TTL expires", run)


def anywhere(run: str, names: Sequence[str]) -> Iterator[str]:
    """Returns all ids that samples with these names may have: with several servers, each worker puts its `Run.place`
    before the name."""
    for place in ("", *open_run(run).places):
        yield from (place + name for name in names)


def replayed(replay: Any, schedule: Callable[..., Any], describe: Callable[[Any], Any], **options: Any) -> Any:
    """As `megatron.replayed`, but if ROUTING_REPLAY_METRICS is set, also prints this rank's metrics after each training
    pass."""
    run = megatron.replayed(replay, schedule, describe, **options)
    if not os.environ.get("ROUTING_REPLAY_METRICS"):
        return run

    def telling(**arguments: Any) -> Any:
        result = run(**arguments)
        if not arguments.get("forward_only"):
            print(json.dumps({"rank": os.environ.get("RANK")} | replay.metrics()), flush=True)
        return result

    return telling


def attach(model_chunks: Any, run: Run) -> Any:
    """Attaches this rank's Megatron model to a run."""
    from megatron.core import parallel_state as mpu

    mode: Any = os.environ.get("ROUTING_REPLAY_MODE", "R3")
    limit = float(os.environ.get("ROUTING_REPLAY_MAX_FALLBACK", "0.05"))
    ranks = TorchCollective([mpu.get_tensor_and_context_parallel_group(), mpu.get_pipeline_model_parallel_group()])
    options: dict[str, Any] = {"mode": mode, "missing": "live", "agree": ranks, "max_fallback_fraction": limit}
    return megatron.attach(model_chunks, source=ServiceSource(run), **options)
