"""Records rows directly in SGLang: `attach.sglang` and the SGLang plug-in."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from routing_replay.client import Client
from routing_replay.engines import _forms, sglang
from routing_replay.engines.attach import _attachment
from routing_replay.engines.attach._attachment import Attachment, SampleName
from routing_replay.geometry import Geometry
from routing_replay.run import Run
from routing_replay.types import RecordedRows

_log = logging.getLogger("routing_replay")

# The asynchronous generator that every request of SGLang's servers and of its Engine goes through.
HOOKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"

# The server_args that add a prefix cache outside the device's memory.
HIERARCHIES = ("enable_hierarchical_cache", "enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker")
# The server_args with which each event of a stream holds only the new token ids; the second is the older name.
DELTAS = ("incremental_streaming_output", "stream_output")


def default_sample(output: dict[str, Any], index: int) -> str:
    """The default sample id: SGLang's request id."""
    return str(output["meta_info"]["id"])


def attach_to(
    engine: Any,
    run: Run,
    *,
    sample: SampleName = default_sample,
    **options: Any,
) -> Attachment:
    """Sends the rows of every finished output of an sglang.Engine to `run`, and replaces them with a reference.

    engine: its methods `generate` and `async_generate` are wrapped, and so are the streams that they return. Apart from
        the rows, outputs, their order and exceptions do not change. Requests must set return_routed_experts
    sample: function that returns the sample's id, from an output and its number in the batch

    All else is as for `attach.vllm`. If the request has input_ids, tokens are sent with the rows; else rows are stored
    without a token check and count as unverified. An engine that does only prefill or only decode, or verifies several
    draft tokens per position at once, gives incomplete or wrong rows. It is not attached, and a warning says so.
    """
    around: dict[str, _attachment.Around] = {"generate": functools.partial(_sync, engine)}
    if hasattr(engine, "async_generate"):
        around["async_generate"] = functools.partial(_async, engine)
    return _attachment.attach(engine, run, sample, around, "sglang", _is_usable(engine), options)


def _has_one_of(owner: Any, settings: Sequence[str]) -> bool:
    """True if one of these server_args of an engine, or of a tokenizer manager, is set."""
    arguments = getattr(owner, "server_args", None)
    return any(getattr(arguments, name, None) is True for name in settings)


def _is_usable(owner: Any) -> bool:
    """Returns False, with a warning, in two cases. If prefill and decode are split over two engines, neither has all
    rows of an answer. If the engine verifies several draft tokens per position at once, SGLang moves the keys and
    values of an accepted draft to their final place in the cache, but not its row: the row of a rejected draft stays
    there."""
    arguments = getattr(owner, "server_args", None)
    mode = getattr(arguments, "disaggregation_mode", None)
    if mode in ("prefill", "decode"):
        _log.warning("not attached: this SGLang only does %s; pass the router's answers to engines.sglang.rows", mode)
        return False
    resolved = getattr(arguments, "resolved_dict", None)  # The settings after SGLang has filled in its own choices.
    settings = resolved() if callable(resolved) else getattr(arguments, "__dict__", {})
    guesses = settings.get("speculative_eagle_topk") or 0
    external = settings.get("speculative_ngram_external_sam_budget") or 0
    if settings.get("speculative_algorithm") is None or (guesses <= 1 and not external):
        return True
    _log.warning(
        "not attached: this SGLang gives wrong rows because it checks several drafts per token at once; set "
        "speculative_eagle_topk, or speculative_ngram_max_bfs_breadth, to 1 and speculative_ngram_external_sam_budget "
        "to 0"
    )
    return False


def _sync(engine: Any, original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        collector = _Collector(_arguments(original, arguments, keywords), engine)
        if not isinstance(result, (dict, list)):
            return stream(result, collector)
        attachment.take([(collector, result)])
        return result

    def stream(outputs: Iterator[Any], collector: _Collector) -> Iterator[Any]:
        for output in outputs:
            attachment.take([(collector, output)])
            yield output

    return generate


def _async(engine: Any, original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    async def async_generate(*arguments: Any, **keywords: Any) -> Any:
        result = await original(*arguments, **keywords)
        collector = _Collector(_arguments(original, arguments, keywords), engine)
        if not isinstance(result, (dict, list)):
            return _stream(result, lambda output: attachment.take_async([(collector, output)]))
        await attachment.take_async([(collector, result)])
        return result

    return async_generate


async def _stream(outputs: AsyncGenerator[Any, None], take: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            await take(output)
            yield output


def _arguments(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `function`, by parameter name."""
    return inspect.signature(function).bind_partial(*arguments, **keywords).arguments


class _Collector:
    """Reads the outputs of one call, which asks for one sample or a batch of them."""

    def __init__(self, asked: Mapping[str, Any], engine: Any = None) -> None:
        """asked: input_ids (None if the engine tokenizes), routed_experts_start_len and sampling_params, each for one
            sample or as a list
        engine: an engine or a tokenizer manager, whose server_args tell about caches and streams
        """
        self._hierarchical = _has_one_of(engine, HIERARCHIES)
        self._deltas = _has_one_of(engine, DELTAS)
        self._prompts: Any = asked.get("input_ids")
        self._params: Any = asked.get("sampling_params") or {}
        self._start: Any = asked.get("routed_experts_start_len") or 0
        self._sampled: dict[int, list[int]] = {}

    def parts(self, outputs: Any) -> Iterable[tuple[int, Any]]:
        """Pairs of position and output, from one output or a list of them."""
        return enumerate(outputs if isinstance(outputs, list) else [outputs])

    def ended(self, part: tuple[int, Any]) -> _attachment.Finished | None:
        """Returns the completion if the output is its last one; else None."""
        place, output = part
        index, meta = output.get("index", place), output["meta_info"]
        if (ids := output.get("output_ids")) is not None:
            self._sampled[index] = [*self._sampled.get(index, ()), *ids] if self._deltas else list(ids)
        if meta.get("finish_reason") is None:
            return None
        rows, count = meta.get("routed_experts"), meta.get("completion_tokens")
        ids = self._sampled.pop(index, [] if count is None else None)
        if count is None and rows is not None:
            raise _forms.invalid("meta_info.completion_tokens", "is missing, but the output has routed_experts")
        count = len(ids or ()) if count is None else int(count)
        prompt, start = self._asked_of(index)
        describe = functools.partial(
            sglang.rows,
            {"meta_info": meta},
            start_len=start,
            prompt_token_ids=prompt,
            output_token_ids=ids,
            absent="unrecorded",
            hierarchical_cache=self._hierarchical,
        )
        # The numbers differ if a stop token was removed, or if the ids of a stream were joined in the wrong way.
        differ = ids is not None and len(ids) != count
        return _attachment.Finished(
            output=output,
            index=index,
            has_rows=rows is not None,
            row_start=start,
            num_tokens=_prompt_tokens(meta, prompt) + count,
            describe=_reject if differ and rows is not None else describe,
            refer=functools.partial(meta.__setitem__, "routed_experts"),
        )

    def _asked_of(self, index: int) -> tuple[Any, Any]:
        """Returns, for the output with this index, the prompt's ids and the first row that the request asked for."""
        params = self._params[0] if isinstance(self._params, list) else self._params
        number = index // int(params.get("n") or 1)  # Each prompt has n answers.
        prompts = self._prompts
        prompt = prompts[number] if _is_list(prompts) and _is_list(prompts[0]) else prompts
        return prompt, self._start[number] if _is_list(self._start) else self._start


def _prompt_tokens(meta: dict[str, Any], prompt: Any) -> int:
    """Returns the number of prompt tokens. For an aborted request the output may state 0 or no number. Then the number
    of input_ids in the request is returned. Without input_ids, a stated 0 is returned, and no number is an error."""
    count = meta.get("prompt_tokens")
    if count is None and prompt is None:
        raise _forms.invalid("meta_info.prompt_tokens", "is missing, and the request has no input_ids to count")
    return int(count or 0) if count or prompt is None else len(prompt)


def _reject(_: Geometry) -> RecordedRows:
    raise _forms.invalid("output_ids", "must have as many ids as completion_tokens states")


def _is_list(value: Any) -> bool:
    """True for a sequence that is not empty."""
    return hasattr(value, "__len__") and len(value) > 0


def register() -> None:
    """The SGLang plug-in `routing_replay` (entry point group sglang.srt.plugins): loaded in every process of SGLang.

    Does nothing unless ROUTING_REPLAY_RUN names a run. Then the rows of every finished request of the server that asks
    for routed experts go to that run, under the request's id, and the response has a reference in place of the rows. If
    the hook cannot be installed, a warning is logged, and responses keep their rows.
    """
    name = os.environ.get(_attachment.VARIABLE)
    if not name:
        return
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    except ImportError:
        _log.warning("not attached: this SGLang has no hooks; pass its outputs to routing_replay.engines.sglang.rows")
        return
    hooks.HookRegistry.register(HOOKED, Hook(name), hooks.HookType.AROUND)


class Hook(_attachment.Joining):
    """Replaces TokenizerManager.generate_request and calls it. Records requests that ask for routed experts. The first
    request of any kind begins to join the run."""

    def __init__(self, name: str, connect: Callable[[], Client] = Client) -> None:
        super().__init__(name, "sglang", default_sample, connect)
        self._usable: bool | None = None  # None: unknown yet.

    def __call__(self, original: Callable[..., Any], manager: Any, request: Any, *rest: Any, **more: Any) -> Any:
        if self._usable is None:
            self._usable = _is_usable(manager)
        if self._usable:
            self.begin()
        outputs = original(manager, request, *rest, **more)
        # Some kinds of requests have no field return_routed_experts.
        if not self._usable or not getattr(request, "return_routed_experts", False):
            return outputs
        fields = ("input_ids", "sampling_params", "routed_experts_start_len")
        asked = {name: getattr(request, name, None) for name in fields}
        collector = _Collector(asked, manager)
        return _stream(outputs, lambda output: self.take([(collector, output)]))
