"""Reads what SGLang returns.

| source | where the rows are | format |
|---|---|---|
| /generate, Engine.generate | meta_info.routed_experts | base64 of flat int32, or a tensor (skip_tokenizer_init) |
| the same, with meta_info.routed_experts_dtype | the same | base64 of flat ids of this dtype: uint8, uint16 or int32 |
| /v1/completions, /v1/chat/completions | sglext or sgl_ext, of the response or the choice | as above |
| chat with return_meta_info | choices[i].meta_info | as above |

Layers: the ids cover all hidden layers, dense ones included. Flat ids have no shape, so pass the run's geometry. The
rows are start_len … T - 2. When an answer stops, some builds return one more row, for the last token. It is left out
and counted in surplus_rows if it is certain that there is one too many: completion_tokens equals the number of
output_ids, or output_token_ids (all of them) are given. Otherwise the row is an error. If a build ignores start_len,
the number of rows is wrong, which is an error, too: request all rows from such a build, and the server trims those that
it already has.

Token ids are read from prompt_token_ids or input_ids, and from output_ids, token_ids or response_token_ids, of the
choice or of sglext. Most responses have none: request them with return_token_ids, or pass them here. Without ids, only
the counts prompt_tokens and completion_tokens of meta_info or usage are used, and tokens are not checked. Tokens are
also not checked if prompt_tokens exceeds the number of prompt ids (because media in the prompt were expanded) and
matches the number of rows.

SGLang stores rows by position in the device's KV cache, but does not restore them when it loads cached tokens from a
hierarchical cache (host memory, disk): such positions hold rows of other requests. So if
meta_info.cached_tokens_details (in sglext with return_cached_tokens_details) counts tokens from host or storage, the
rows of all cached tokens become unrecorded: those on the device may once have been loaded from there. Pass
hierarchical_cache=True for a server with such a cache: then rows of cached tokens are unrecorded in every response, and
those of the whole prompt if the response does not count cached tokens. Hash layers (DeepSeek-V4) are not captured: make
the run's geometry with from_hf_config(…, hash_layers=False).

Rows arrive with the end of an answer: in a stream, with its last event. A retracted answer (num_retractions of
meta_info) is computed again, and its rows are those of the second computation. So if weights have changed since the
first (weight_versions has several spans), all rows before those of the last version become unrecorded. To keep such
rows, request an answer in parts: rows that a sample already has are not replaced.

weight_versions (in OpenAI responses a part of metadata) has spans of output tokens, which become spans of rows. A
version that is text becomes the span's label; the span's version is its decimal value, or -1 for other text.
meta_info.weight_version is not used, because it is only the version at the end of the answer: pass weight_version to
`append` if weights do not change during an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from routing_replay.engines import _forms
from routing_replay.geometry import Geometry
from routing_replay.types import RecordedRows

_FIELD = "routed_experts"
_EXTENSIONS = ("meta_info", "sglext", "sgl_ext", "metadata")
_TIERS = ("device", "host", "storage")
# Fields that a response with several choices may have in its own meta_info, as they apply to all.
_OF_ALL = ("prompt_tokens", "cached_tokens_details")


def rows(
    response: Any,
    geometry: Geometry | None = None,
    index: int | None = None,
    *,
    start_len: int = 0,
    prompt_token_ids: Any = None,
    output_token_ids: Any = None,
    absent: Literal["raise", "unrecorded"] = "raise",
    hierarchical_cache: bool = False,
) -> RecordedRows:
    """Reads the rows of one sample from a response (see the module).

    geometry: of the run; needed for flat ids
    index: which choice of the response, by the choice's own `index`. None: the only choice or, if the response has no
        choices (/generate), the response itself
    start_len: routed_experts_start_len of the request, at most the number of prompt tokens
    prompt_token_ids, output_token_ids: pass these if the response has no ids, or not all output ids
    absent: what to do with a response without rows: "raise" InvalidArgumentError, or return rows that are all
        "unrecorded". If the request was aborted or sampled no token, they are always unrecorded
    hierarchical_cache: pass True if the server has a hierarchical cache. Rows of cached tokens then become unrecorded,
        even if the response does not count tokens from host or storage (see the module)

    Rows are ids [T - 1 - start_len, layers, K]. InvalidArgumentError: ROW_COUNT for another number of rows; LENGTH or
    ENCODING for bytes that are not whole rows or ids; DTYPE for an unknown dtype; FIELD for a response without rows or
    tokens.
    """
    choice = _choice(response, index)
    holder, value = _find(response, choice, _FIELD)  # Before _tokens_of, so that an error about rows comes first.
    counted = _tokens_of(response, choice, prompt_token_ids, output_token_ids)
    others: dict[str, Any] = {"engine": _forms.engine_name("sglang")}
    if value is None:
        why = "missing: is return_routed_experts in the request, and --enable-return-routed-experts on the server?"
        reason = _forms.get(_forms.get(choice, "meta_info"), "finish_reason") or _forms.get(choice, "finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        policy = "unrecorded" if counted.output_tokens == 0 or kind == "abort" else absent
        return _forms.absent(_FIELD, why, policy, counted, start_len, **others)
    dtype = _forms.get(holder, f"{_FIELD}_dtype")
    found, own_start = _forms.any_payload(value, _FIELD, _forms.row_of(geometry, "all"), dtype)
    start = _forms.start_of(own_start, start_len, _FIELD)
    counted = counted.fitting(_forms.row_count(found), start)
    spans = _find(response, choice, "weight_versions")[1]
    others["weights"] = _forms.output_weights(spans, counted, start)
    recorded = _forms.account(found, counted, start, layers="all", **others)
    return recorded.without(_unreliable(response, choice, counted, hierarchical_cache))


def _unreliable(response: Any, choice: Any, counted: _forms.Tokens, hierarchical: bool) -> int:
    """Returns the number of rows at the beginning of the sample that cannot be trusted: they may belong to other
    requests (cached tokens), or to other weights than those that sampled their tokens (a retracted answer)."""
    retracted = _find(response, choice, "num_retractions")[1]
    spans = _find(response, choice, "weight_versions")[1]
    changed = 0
    if retracted and len(spans or ()) > 1:
        changed = counted.prompt_tokens + max(_forms.count(_forms.get(span, "start"), "start") for span in spans) - 1
    return max(changed, _of_others(response, choice, counted, hierarchical, bool(retracted)))


def _of_others(response: Any, choice: Any, counted: _forms.Tokens, hierarchical: bool, retracted: bool) -> int:
    details = _find(response, choice, "cached_tokens_details")[1]
    device, host, storage = (_forms.count(_forms.get(details, tier) or 0, tier) for tier in _TIERS)
    if not hierarchical and not host + storage:
        return 0
    if retracted:  # When SGLang continues a retracted answer, the answer's beginning may come from the cache, too.
        return counted.prompt_tokens + counted.output_tokens
    if details is not None:
        return device + host + storage
    cached = _find(response, choice, "cached_tokens")[1]
    return counted.prompt_tokens if cached is None else _forms.count(cached, "cached_tokens")


def _choice(response: Any, index: int | None) -> Any:
    if index is None:
        choices = _forms.get(response, "choices")
        if isinstance(choices, Sequence) and len(choices) == 1:
            return choices[0]
        if isinstance(choices, Sequence):
            raise _forms.invalid("index", f"must be given: the response has {len(choices)} choices")
        return response
    return _forms.item(response, "choices", index)


def _find(response: Any, choice: Any, name: str) -> tuple[Any, Any]:
    """Returns the first object of _EXTENSIONS that has the field `name`, and the value of the field."""
    for place in (choice, response):
        for extension in _EXTENSIONS:
            holder = _forms.get(place, extension)
            value = None if holder is None else _forms.get(holder, name)
            if value is not None:
                count = _forms.choice_count(response)
                if name not in _OF_ALL and place is not choice and count > 1:
                    what = f"is a field of the response, which has {count} choices: it must be in a choice"
                    raise _forms.invalid(f"{extension}.{name}", what)
                return holder, value
    return {}, None


def _of_choice(ids: Any, choice: Any) -> Any:
    """The item for this choice, from a list with one item per choice; None if there is no such item."""
    number = _forms.get(choice, "index")
    known = isinstance(ids, Sequence) and isinstance(number, int) and 0 <= number < len(ids)
    return ids[number] if known else None


def _tokens_of(response: Any, choice: Any, prompt_token_ids: Any, output_token_ids: Any) -> _forms.Tokens:
    """Returns what is known about the tokens. Sampled tokens are counted by their ids if these are known, because
    completion_tokens may include a stop token that was removed. But a stream's last event may have only the last ids,
    so all_output is False unless both counts are known and equal, or the caller passed the ids."""
    extension, of_prompt = _forms.get(response, "sglext", "sgl_ext"), ("prompt_token_ids", "input_ids")
    places = _forms.get(choice, *of_prompt), _forms.get(response, *of_prompt), _forms.get(extension, "input_ids")
    prompt = _forms.ids(_forms.first(prompt_token_ids, *places), "prompt_token_ids")
    own = _forms.get(choice, "output_ids", "token_ids", "response_token_ids")
    found = _forms.first(output_token_ids, own, _of_choice(_forms.get(extension, "output_ids"), choice))
    sampled = _forms.ids(found, "output_ids")
    usage = _forms.get(response, "usage")
    alone = _forms.choice_count(response) == 1

    def said(name: str, by_usage: bool) -> Any:
        found = _find(response, choice, name)[1]
        return _forms.get(usage, name) if found is None and by_usage else found

    of_prompt, of_output = said("prompt_tokens", alone or prompt is None), said("completion_tokens", alone)
    of_prompt = _forms.number_of(of_prompt, prompt, "prompt_tokens", "meta_info.prompt_tokens")
    number = _forms.number_of(of_output, sampled, "completion_tokens", "meta_info.completion_tokens")
    if sampled is None:
        return _forms.Tokens(prompt, None, of_prompt, number, all_output=False)
    whole = output_token_ids is not None or (of_output is not None and number == sampled.size)
    return _forms.Tokens(prompt, sampled, of_prompt, sampled.size, all_output=whole)
