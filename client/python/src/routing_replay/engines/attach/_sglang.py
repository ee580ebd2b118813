"""Rows out of SGLang where the outputs are made. What `attach.sglang` and the SGLang plug-in do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from routing_replay.client import Client
from routing_replay.engines import _fields, sglang
from routing_replay.engines.attach import _attachment
from routing_replay.errors import RoutingReplayError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.engines.attach._attachment import Attachment, AttachOptions, SampleName
    from routing_replay.geometry import Geometry
    from routing_replay.run import Run

_log = logging.getLogger("routing_replay")

KNOWN = _attachment.KnownVersions("sglang", (0, 5), (1, 0))  # Whose outputs engines.sglang reads.

# The asynchronous generator that every request of SGLang's servers and of its Engine goes through.
HOOKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"


def default_sample(output: dict[str, Any], index: int) -> str:
    """SGLang's request id."""
    return str(output["meta_info"]["id"])


def attach_to(
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

    As `attach.vllm` otherwise. Tokens are sent along where the request has input_ids; else the rows are stored
    without, and unverified.
    """
    around = {"generate": _sync}
    if hasattr(engine, "async_generate"):
        around["async_generate"] = _async
    return _attachment.attach(engine, run, sample, around, KNOWN, version, options)


def _sync(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        collector, call = _Collector(_arguments(original, arguments, keywords), attachment.geometry), attachment.call()
        if not isinstance(result, (dict, list)):
            return stream(result, collector, call)
        call.take(collector.finished, result)
        return result

    def stream(outputs: Iterator[Any], collector: _Collector, call: _attachment.Call) -> Iterator[Any]:
        for output in outputs:
            call.take(collector.finished, output)
            yield output

    return generate


def _async(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    async def async_generate(*arguments: Any, **keywords: Any) -> Any:
        result = await original(*arguments, **keywords)
        collector, call = _Collector(_arguments(original, arguments, keywords), attachment.geometry), attachment.call()
        if not isinstance(result, (dict, list)):
            return _stream(result, collector, call)
        await call.take_async(collector.finished, result)
        return result

    return async_generate


async def _stream(outputs: AsyncIterator[Any], collector: _Collector, call: _attachment.Call) -> AsyncIterator[Any]:
    async with contextlib.aclosing(outputs):  # type: ignore[type-var]
        async for output in outputs:
            await call.take_async(collector.finished, output)
            yield output


def _arguments(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """By name."""
    try:
        return inspect.signature(function).bind_partial(*arguments, **keywords).arguments
    except TypeError:
        return keywords


class _Collector:
    """The outputs of one call, which asks for one sample or a batch of them."""

    def __init__(self, asked: Mapping[str, Any], geometry: Geometry) -> None:
        """asked: input_ids (None where the engine tokenizes), routed_experts_start_len and sampling_params, each of one
        sample or a list."""
        self._ids = asked.get("input_ids")
        params = asked.get("sampling_params") or {}
        self._answers = int((params[0] if isinstance(params, list) else params).get("n") or 1)  # Of each prompt.
        self._start = asked.get("routed_experts_start_len") or 0
        self._geometry = geometry
        self._sampled: dict[int, list[int]] = {}
        self._incremental: dict[int, bool] = {}  # Known from the second event of a stream on.

    def finished(self, outputs: Any) -> list[_attachment.Finished]:
        """The outputs of these that are the last of their completion."""
        ended = []
        for position, output in enumerate(outputs if isinstance(outputs, list) else [outputs]):
            index = output.get("index", position)
            sampled = self._all_sampled(index, output)
            if sampled is not None:
                ended.append(self._ended(index, output, sampled))
        return ended

    def _all_sampled(self, index: int, output: dict[str, Any]) -> list[int] | None:
        """Token ids of a finished output. A stream tells all ids so far each time, or only those that are new."""
        meta, ids = output.get("meta_info", {}), output.get("output_ids", [])
        finished = meta.get("finish_reason") is not None
        so_far = self._sampled.setdefault(index, [])
        if so_far and not finished:
            self._incremental[index] = len(ids) < meta.get("completion_tokens", len(ids))
        # At the end the count may differ from the ids, where a stop was cut off.
        is_new = self._incremental.get(index, ids[: len(so_far)] != so_far)
        so_far[:] = [*so_far, *ids] if is_new else ids
        return so_far if finished else None

    def _ended(self, index: int, output: dict[str, Any], sampled: list[int]) -> _attachment.Finished:
        number = index // self._answers
        prompt = self._ids[number] if _is_list(self._ids) and _is_list(self._ids[0]) else self._ids
        start = self._start[number] if _is_list(self._start) else self._start
        meta = output["meta_info"]
        describe = functools.partial(
            sglang.rows,
            {"meta_info": {name: _attachment.snapshot(meta[name]) for name in sglang.OF_META if name in meta}},
            self._geometry,
            start_len=start,
            prompt_token_ids=_attachment.snapshot(prompt),
            output_token_ids=list(sampled),
            absent="unrecorded",
        )
        return _attachment.Finished(
            output=output,
            index=index,
            rows=meta.get("routed_experts"),
            row_start=start,
            num_tokens=int(meta["prompt_tokens"]) + len(sampled),
            describe=describe,
            refer=functools.partial(meta.__setitem__, "routed_experts"),
        )


def _is_list(value: Any) -> bool:
    """Of one item or more."""
    return hasattr(value, "__len__") and len(value) > 0


def register() -> None:
    """The SGLang plug-in `routing_replay` (entry point group sglang.srt.plugins): loaded in every process of SGLang.

    Does nothing unless ROUTING_REPLAY_RUN names a run that exists at ROUTING_REPLAY_ENDPOINT. Then the rows of every
    finished request of the server go to that run, under the request's id, and the response carries the reference.
    Where the hook cannot be placed, one warning says so and responses are as without the plug-in.
    """
    name = os.environ.get("ROUTING_REPLAY_RUN")
    if not name or not KNOWN.has(None):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError:
        _log.warning("not attached: this SGLang has no hooks; give its outputs to routing_replay.engines.sglang.rows")
        return
    HookRegistry.register(HOOKED, Hook(name), HookType.AROUND)


class Hook:
    """Stands around TokenizerManager.generate_request. Connects when the first request comes, beside the loop."""

    def __init__(self, name: str, connect: Callable[[], Client] = Client) -> None:
        self._name = name
        self._new_client = connect
        self.attachment: Attachment | None = None
        self._lock = threading.Lock()

    async def __call__(self, original: Callable[..., Any], manager: Any, request: Any, *rest: Any, **more: Any) -> Any:
        outputs = original(manager, request, *rest, **more)
        attachment = self.attachment or await asyncio.get_running_loop().run_in_executor(None, self._connect)
        if attachment is not None:
            outputs = _stream(outputs, _Collector(vars(request), attachment.geometry), attachment.call())
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    def _connect(self) -> Attachment | None:
        """None, with one warning, where the run cannot be joined: the engine serves without."""
        with self._lock:
            if self._name and self.attachment is None:
                try:
                    self.attachment = _attachment.Attachment(
                        self._new_client().run(self._name), _fields.engine_name(KNOWN.package), default_sample
                    )
                except RoutingReplayError as error:
                    _log.warning("not attached: run %s cannot be joined: %s", self._name, error)
                    self._name = ""
            return self.attachment
