"""Records rows directly in vLLM: `attach.vllm` and the vLLM plug-in."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from routing_replay.engines import vllm
from routing_replay.engines.attach import _attachment
from routing_replay.engines.attach._attachment import Attachment, SampleName
from routing_replay.geometry import Geometry
from routing_replay.run import Run
from routing_replay.types import RecordedRows

_log = logging.getLogger("routing_replay")


def default_sample(output: Any, index: int) -> str:
    """The default sample id: vLLM's request id and the number of the completion, for example "cmpl-1/0"."""
    return f"{output.request_id}/{index}"


def attach_to(
    engine: Any,
    run: Run,
    *,
    sample: SampleName = default_sample,
    **options: Any,
) -> Attachment:
    """Sends the rows of every finished completion of `engine` to `run`. Unless replace=False is given, the completion's
    attribute routed_experts is None afterwards, and its attribute routing_replay holds the reference.

    engine: a vllm.LLM, or an AsyncLLM (also known as AsyncLLMEngine) of this process. Its method generate is wrapped;
        of an LLM, chat and wait_for_completion, too. Apart from rows, outputs, their order and errors do not change.
        Outputs of beam_search and of other methods of an LLM are not recorded. They are counted, with one warning for
        beam_search and one for the others. Do not use routed_experts_prompt_start with LLM.enqueue: it is not seen here
    sample: function that returns the sample's id, from a RequestOutput and the index of a completion. Make ids that are
        unique in the run: if the engine uses a request id again, for other tokens, the server rejects the rows of the
        second request
    options: see Attachment

    A finished completion without rows (feature off, aborted, preempted) is marked as unrecorded, and so are rejected
    rows. FailedPreconditionError if the engine has an attachment already.
    """
    around = {"generate": _async} if inspect.isasyncgenfunction(engine.generate) else _Offline().around(engine)
    return _attachment.attach(engine, run, sample, around, "vllm", True, options)


class _Offline:
    """Makes the wrappers of the methods of one LLM."""

    def __init__(self) -> None:
        # Some of these methods call others; only the outermost call records its outputs.
        self._within = threading.local()

    def around(self, engine: Any) -> dict[str, _attachment.Around]:
        """Returns the function that wraps each method, by name. If this vLLM has _run_engine, all methods that run the
        engine call it, so its wrapper also sees the outputs of methods that are not known here."""
        makers = dict.fromkeys(("generate", "chat", "wait_for_completion"), self._records)
        makers |= dict.fromkeys(("beam_search", "_run_engine"), self._passes)
        return {name: make for name, make in makers.items() if hasattr(engine, name)}

    def _outermost(self, original: Callable[..., Any], take: Callable[..., None]) -> Callable[..., Any]:
        """Wraps `original`: `take` gets the outputs and arguments of each call, unless another wrapped method made the
        call."""

        @functools.wraps(original)
        def method(*arguments: Any, **keywords: Any) -> Any:
            outermost = not getattr(self._within, "yes", False)
            self._within.yes = True
            try:
                outputs = original(*arguments, **keywords)
            finally:
                self._within.yes = not outermost
            if outermost:
                take(outputs, arguments, keywords)
            return outputs

        return method

    def _records(self, original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
        def take(outputs: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            params = _params(arguments, keywords)
            found = enumerate(filter(_is_of_tokens, outputs))
            attachment.take((_Collector(_item(params, i), _refer_beside), output) for i, output in found)

        return self._outermost(original, take)

    def _passes(self, original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
        name = "methods that are not known here" if original.__name__ == "_run_engine" else original.__name__
        return self._outermost(original, lambda outputs, *_: attachment.pass_by(name, sum(map(_is_of_tokens, outputs))))


def _is_of_tokens(output: Any) -> bool:
    """False for the output of a pooling request, which has no completions."""
    return isinstance(getattr(output, "outputs", []), (list, tuple))


def _item(params: Any, number: int) -> Any:
    """Returns the sampling parameters of the request with this number; `params` itself, if it is not a list of them."""
    if not isinstance(params, (list, tuple)):
        return params
    return params[number] if number < len(params) else None


def _async(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    return _generating(original, attachment.take_async, _refer_beside, 0)


def _generating(
    original: Callable[..., Any], take: Callable[[list[tuple[_Collector, Any]]], Awaitable[None]], refer: Refer, at: int
) -> Callable[..., Any]:
    """Wraps an asynchronous generator: `take` gets each output before it is yielded.

    at: position of the prompt among the positional arguments
    """

    @functools.wraps(original)
    async def generate(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        collector = _Collector(_params(arguments[at:], keywords), refer)
        async with contextlib.aclosing(original(*arguments, **keywords)) as outputs:
            async for output in outputs:
                await take([(collector, output)])
                yield output

    return generate


def _params(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Returns the sampling_params. All vLLM methods take them after the prompt, or by name."""
    return keywords.get("sampling_params", arguments[1] if len(arguments) > 1 else None)


class _Collector:
    """The outputs of one request. In DELTA mode an output has only new tokens; `ended` joins those of all outputs."""

    def __init__(self, params: Any, refer: Refer) -> None:
        self._refer = refer
        self._deltas = getattr(getattr(params, "output_kind", None), "name", "") == "DELTA"
        self._prompt_start = getattr(params, "routed_experts_prompt_start", None) or 0
        self._tokens: dict[int, list[int]] = {}
        self._taken: set[int] = set()

    def parts(self, output: Any) -> Iterable[tuple[Any, int, Any]]:
        """The completions of a RequestOutput, each with its position."""
        return ((output, place, completion) for place, completion in enumerate(output.outputs))

    def ended(self, part: tuple[Any, int, Any]) -> _attachment.Finished | None:
        """Returns the completion if it finishes with this output; else None."""
        output, place, completion = part
        index = getattr(completion, "index", place)
        if self._deltas:
            self._tokens.setdefault(index, []).extend(completion.token_ids)
        if completion.finish_reason is None or index in self._taken:
            return None
        self._taken.add(index)
        sampled = self._tokens.pop(index) if self._deltas else completion.token_ids
        start = self._prompt_start

        def describe(_: Geometry) -> RecordedRows:
            return vllm.rows(output, index, prompt_start=start, output_token_ids=sampled, absent="unrecorded")

        return _attachment.Finished(
            output=output,
            index=index,
            has_rows=getattr(completion, "routed_experts", None) is not None,
            row_start=start,
            num_tokens=len(output.prompt_token_ids) + len(sampled),
            describe=describe,
            refer=functools.partial(self._refer, completion),
        )


Refer = Callable[[Any, str], None]


def _refer_beside(completion: Any, reference: str) -> None:
    """Puts the reference into an attribute of its own, because vLLM's servers send routed_experts as an array."""
    completion.routed_experts, completion.routing_replay = None, reference


def _refer_in_place(completion: Any, reference: str) -> None:
    completion.routed_experts = reference


def register() -> None:
    """The vLLM plug-in `routing_replay` (entry point group vllm.general_plugins): loaded in every process of vLLM.

    Does nothing unless ROUTING_REPLAY_RUN names a run. Then the rows of every finished answer of a server, or of an
    AsyncLLM, go to that run, under the id that `default_sample` makes, and the answer's routed_experts is a reference.
    If this vLLM encodes routed_experts in an unknown way, a warning is logged, and answers keep their rows.

    Rows are recorded in vLLM's front-end process, not in the scheduler, because only the front end knows where an
    answer ends: it finds stop strings and handles aborts. Rows are not taken from the blocks of vLLM's own store, which
    are named by hashes of their tokens: if running requests start again with new weights (reset_prefix_cache), those
    blocks are computed again, while the rows here are those with which the tokens were sampled.
    """
    name = os.environ.get(_attachment.VARIABLE)
    if not name:
        return
    try:
        engine = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
        encode = importlib.import_module("vllm.utils.serial_utils").numpy2base64
    except (ImportError, AttributeError):
        _log.warning("not attached: this vLLM version is unknown; pass its answers to routing_replay.engines.vllm.rows")
        return
    if hasattr(engine, _attachment.MARK):  # vLLM may load a plug-in twice.
        return
    joining = _attachment.Joining(name, "vllm", default_sample)
    # Every HTTP endpoint that generates text calls AsyncLLM.generate.
    engine.generate = _generating(engine.generate, joining.take, _refer_in_place, 1)
    setattr(engine, _attachment.MARK, joining)

    @functools.wraps(encode)
    def text_or_array(value: Any) -> str:
        return value if isinstance(value, str) else encode(value)

    for module in tuple(sys.modules.values()):  # Modules that imported the function have a variable of its name.
        if getattr(module, "__dict__", {}).get(encode.__name__) is encode:
            setattr(module, encode.__name__, text_or_array)
