"""Rows out of SGLang where the outputs are made. What `engines.sglang.attach` and the SGLang plug-in do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from routing_replay.client import Client
from routing_replay.engines import _attach, sglang
from routing_replay.errors import RoutingReplayError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.engines._attach import Attachment, AttachOptions, SampleName
    from routing_replay.run import Run

_log = logging.getLogger("routing_replay")

FIRST, LAST = (0, 5), (1, 0)  # Versions whose outputs engines.sglang reads.

# The asynchronous generator that every request of SGLang's servers and of its Engine goes through.
HOOKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"


def default_sample(output: dict[str, Any], index: int) -> str:
    """SGLang's request id."""
    return str(output["meta_info"]["id"])


def attach(
    engine: Any,
    run: Run,
    *,
    sample: SampleName = default_sample,
    version: str | None = None,
    **options: Unpack[AttachOptions],
) -> Attachment:
    """Sends the rows of every finished output of an sglang.Engine to `run`, and puts a reference in their place.

    engine: its attributes `generate` and `async_generate` are wrapped until `detach`; streams too. Outputs, their
        order and exceptions are the engine's own. Ask for return_routed_experts, as ever
    sample: from (output, its number in the batch) to the sample's id

    As `engines.vllm.attach` otherwise. Tokens are sent along where the request has input_ids; else the rows are stored
    without, and unverified.
    """
    attachment = _attach.Attachment(run, sample, **options)
    attachment.attached = _attach.known_version("sglang", version, FIRST, LAST)
    if not attachment.attached:
        return attachment
    own = {name: vars(engine)[name] for name in ("generate", "async_generate") if name in vars(engine)}
    wrapped = {"generate": _sync(engine.generate, attachment)}
    if hasattr(engine, "async_generate"):
        wrapped["async_generate"] = _async(engine.async_generate, attachment)
    for name, function in wrapped.items():
        setattr(engine, name, function)

    def undo() -> None:
        for name in wrapped:
            delattr(engine, name)
        for name, function in own.items():
            setattr(engine, name, function)

    attachment.on_detach(undo)
    return attachment


def _sync(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        ids = _input_ids(original, arguments, keywords)
        if isinstance(result, (dict, list)):
            _take(result, ids, attachment)
            return result
        return stream(result, ids)

    def stream(outputs: Iterator[Any], ids: Any) -> Iterator[Any]:
        for output in outputs:
            _take(output, ids, attachment)
            yield output

    return generate


def _take(outputs: Any, ids: Any, attachment: Attachment) -> None:
    for job in _jobs(outputs, ids, attachment):
        attachment.take(job)


def _async(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    async def async_generate(*arguments: Any, **keywords: Any) -> Any:
        result = await original(*arguments, **keywords)
        ids = _input_ids(original, arguments, keywords)
        if not isinstance(result, (dict, list)):
            return _stream(result, ids, attachment)
        for job in _jobs(result, ids, attachment):
            await attachment.take_async(job)
        return result

    return async_generate


async def _stream(outputs: AsyncIterator[Any], ids: Any, attachment: Attachment) -> AsyncIterator[Any]:
    async with contextlib.aclosing(outputs):  # type: ignore[type-var]
        async for output in outputs:
            for job in _jobs(output, ids, attachment):
                await attachment.take_async(job)
            yield output


def _input_ids(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The argument of that name; None where the engine tokenizes."""
    try:
        return inspect.signature(function).bind_partial(*arguments, **keywords).arguments.get("input_ids")
    except TypeError:
        return keywords.get("input_ids")


def _jobs(outputs: Any, ids: Any, attachment: Attachment) -> list[_attach.Job]:
    """Of the outputs that are finished; with references in their place if that is wanted."""
    jobs = []
    batch = outputs if isinstance(outputs, list) else [outputs]
    for index, output in enumerate(batch):
        meta = output.get("meta_info", {})
        if meta.get("finish_reason") is None:
            continue
        prompt = ids[output.get("index", index)] if _is_batch(ids) else ids
        recorded = sglang.rows(output, geometry=attachment.geometry, prompt=prompt)
        num_tokens = int(meta["prompt_tokens"]) + len(output["output_ids"])
        job, reference = attachment.job(output, index, recorded, num_tokens)
        if attachment.replaces and recorded.rows is not None:
            meta["routed_experts"] = reference
        jobs.append(job)
    return jobs


def _is_batch(ids: Any) -> bool:
    return ids is not None and len(ids) > 0 and hasattr(ids[0], "__len__")


def register() -> None:
    """The SGLang plug-in `routing_replay` (entry point group sglang.srt.plugins): loaded in every process of SGLang.

    Does nothing unless ROUTING_REPLAY_RUN names a run that exists at ROUTING_REPLAY_ENDPOINT. Then the rows of every
    finished request of the server go to that run, under the request's id, and the response carries the reference.
    Where the hook cannot be placed, one warning says so and responses are as without the plug-in.
    """
    name = os.environ.get("ROUTING_REPLAY_RUN")
    if not name or not _attach.known_version("sglang", None, FIRST, LAST):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError:
        _log.warning("not attached: this SGLang has no hooks; give its outputs to routing_replay.engines.sglang.rows")
        return
    HookRegistry.register(HOOKED, Hook(name), HookType.AROUND)


class Hook:
    """Stands around TokenizerManager.generate_request. Connects when the first request comes, beside the loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._attachment: Attachment | None = None
        self._lock = threading.Lock()

    async def __call__(self, original: Callable[..., Any], manager: Any, request: Any, *rest: Any, **more: Any) -> Any:
        outputs = original(manager, request, *rest, **more)
        attachment = self._attachment or await asyncio.get_running_loop().run_in_executor(None, self._connect)
        if attachment is not None:
            outputs = _stream(outputs, getattr(request, "input_ids", None), attachment)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    def _connect(self) -> Attachment | None:
        """None, with one warning, where the run cannot be joined: the engine serves without."""
        with self._lock:
            if self._name and self._attachment is None:
                try:
                    self._attachment = _attach.Attachment(Client().run(self._name), default_sample)
                except RoutingReplayError as error:
                    _log.warning("not attached: run %s cannot be joined: %s", self._name, error)
                    self._name = ""
            return self._attachment
