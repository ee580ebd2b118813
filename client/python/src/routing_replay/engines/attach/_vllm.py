"""Rows out of vLLM where the outputs are made. What `attach.vllm` does."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from routing_replay.engines import vllm
from routing_replay.engines.attach import _attachment

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.engines.attach._attachment import Attachment, SampleName
    from routing_replay.engines.attach._options import AttachOptions
    from routing_replay.geometry import Geometry
    from routing_replay.recorded import RecordedRows
    from routing_replay.run import Run

KNOWN = _attachment.KnownVersions("vllm", (0, 14), (1, 0))  # Whose outputs engines.vllm reads.


def default_sample(output: Any, index: int) -> str:
    """vLLM's request id, and which of its completions: "cmpl-1/0"."""
    return f"{output.request_id}/{index}"


def attach_to(
    engine: Any,
    run: Run,
    *,
    sample: SampleName = default_sample,
    version: str | None = None,
    **options: Unpack[AttachOptions],
) -> Attachment:
    """Sends the rows of every finished output of `engine.generate` to `run`, and puts a reference in their place.

    engine: a vllm.LLM, or an AsyncLLM (also known as AsyncLLMEngine) of this process; its attribute `generate` is
        wrapped until `detach`. Outputs, their order and exceptions are the engine's own
    sample: from (RequestOutput, completion's index) to the sample's id. A request id that the engine gives twice is
        refused by the server when the tokens differ: name samples by what is unique in the run
    version: of vLLM; what is installed if absent

    Where the version is unknown nothing is wrapped, one warning says so, and `attached` is False. The engine's loop
    waits for nothing: rows are read, decoded and sent in threads. See `AttachOptions` for the bound and what happens
    there. A finished completion without rows (feature off, aborted, preempted) is marked as unrecorded, and so are rows
    that are refused. FailedPreconditionError for an engine that has an attachment.
    """
    make = _async if inspect.isasyncgenfunction(engine.generate) else _offline
    return _attachment.attach(engine, run, sample, {"generate": make}, KNOWN, version, options)


def _offline(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(*arguments: Any, **keywords: Any) -> Any:
        outputs = original(*arguments, **keywords)
        params, call = _params(arguments, keywords), attachment.call()
        for number, output in enumerate(outputs):
            collector = _Collector(params[number] if isinstance(params, (list, tuple)) else params)
            call.take(collector, output)
        return outputs

    return generate


def _async(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    async def generate(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        collector, call = _Collector(_params(arguments, keywords)), attachment.call()
        async with contextlib.aclosing(original(*arguments, **keywords)) as outputs:
            async for output in outputs:
                await call.take_async(collector, output)
                yield output

    return generate


def _params(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Both of vLLM's generate take (prompt, sampling_params, …)."""
    return keywords.get("sampling_params", arguments[1] if len(arguments) > 1 else None)


class _Collector:
    """The outputs of one request. In DELTA mode an output has only its new tokens: they are put together here."""

    def __init__(self, params: Any) -> None:
        self._deltas = getattr(getattr(params, "output_kind", None), "name", "") == "DELTA"
        self._prompt_start = getattr(params, "routed_experts_prompt_start", None) or 0
        self._tokens: dict[int, list[int]] = {}
        self._taken: set[int] = set()

    def parts(self, output: Any) -> Iterable[tuple[Any, int, Any]]:
        """A RequestOutput's completions, each with its place."""
        return ((output, place, completion) for place, completion in enumerate(output.outputs))

    def ended(self, part: tuple[Any, int, Any]) -> _attachment.Finished | None:
        """Of a completion that ends with this output."""
        output, place, completion = part
        index = getattr(completion, "index", place)
        if self._deltas:
            self._tokens.setdefault(index, []).extend(completion.token_ids)
        if completion.finish_reason is None or index in self._taken:
            return None
        self._taken.add(index)
        sampled = self._tokens.pop(index) if self._deltas else completion.token_ids
        return self._ended(output, completion, index, sampled)

    def _ended(self, output: Any, completion: Any, index: int, sampled: Any) -> _attachment.Finished:
        choice = {name: _attachment.snapshot(getattr(completion, name, None)) for name in vllm.OF_CHOICE}
        of_all = {name: _attachment.snapshot(getattr(output, name, None)) for name in vllm.OF_ALL}
        answer, start, ids = {**of_all, "outputs": [choice]}, self._prompt_start, _attachment.snapshot(sampled)

        def describe(_: Geometry) -> RecordedRows:
            return vllm.rows(answer, prompt_start=start, output_token_ids=ids, absent="unrecorded")

        rows = choice["routed_experts"]
        return _attachment.Finished(
            output=output,
            index=index,
            rows=None if rows is None else (rows, of_all["prompt_routed_experts"]),
            row_start=start,
            num_tokens=len(output.prompt_token_ids) + len(sampled),
            describe=describe,
            refer=functools.partial(setattr, completion, "routed_experts"),
        )
