"""Reads what vLLM returns.

| source | vLLM version | where the rows are | layers | dtype |
|---|---|---|---|---|
| RequestOutput | 0.14 to 0.20 | outputs[i].routed_experts, one array of T - 1 rows, or T (see below) | all | int32 |
| RequestOutput | 0.21 | prompt_routed_experts, then outputs[i].routed_experts; -1 rows are unrecorded | MoE | int16 |
| RequestOutput | 0.22 on | outputs[i].routed_experts, T - 1 rows; weight_versions from 0.32 | all | u8, u16 |
| /v1/completions, /v1/chat/completions | 0.21 | prompt_routed_experts, choices[i].routed_experts: lists | MoE | - |
| the same, and /inference/v1/generate | 0.22 on | choices[i].routed_experts, base64 of a .npy | all | in .npy |
| stream of /inference/v1/generate | 0.22 on | the same, in the last chunk; other streams have no rows | all | in .npy |
| prime-rl's /inference/v1/generate | - | choices[i].routed_experts, {data, shape, start, dtype} | all | u8 if absent |

Token ids are read from prompt_token_ids (of the response or the choice) and token_ids (of the choice; over HTTP request
them with return_token_ids). If a response with one choice has no ids, only the counts in usage are used, and tokens are
not checked. Tokens are also not checked if usage counts more prompt tokens than there are ids (because media in the
prompt were expanded) and this count matches the number of rows. If the request has routed_experts_prompt_start, pass
the same value as prompt_start here, because the response does not contain it.

T tokens need T - 1 rows. If there are T rows, the last one, that of the last token, is left out if output_token_ids
(all of them) are given, or if rows are in two parts (0.21). Otherwise T rows are an error (ROW_COUNT): a stream's last
event, or an output in DELTA mode, may hold only the last tokens, so T may be wrong. A finished RequestOutput of
LLM.generate has all of its tokens: if a release returns T rows, pass output_token_ids=output.outputs[i].token_ids.

weight_versions, in a RequestOutput and in /inference/v1/generate (which needs --enable-scale-out), has spans of output
tokens; each becomes a span of the rows that sampled these tokens. A version that is text becomes the span's label; the
span's version is its decimal value, or -1 for other text. vLLM returns rows only if prefix caching is on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from routing_replay.engines import _forms
from routing_replay.types import RecordedRows

_FIELD = "routed_experts"

_WHY = (
    "missing: is the engine started with --enable-return-routed-experts, was the request preempted (vLLM 0.21), or "
    "did a proxy drop the field?"
)


def rows(
    output: Any,
    index: int = 0,
    *,
    prompt_start: int = 0,
    prompt_token_ids: Any = None,
    output_token_ids: Any = None,
    absent: Literal["raise", "unrecorded"] = "raise",
) -> RecordedRows:
    """Reads the rows of one sample from a RequestOutput, a response or the last chunk of a stream (see the module).

    index: which output or choice, by its own `index` field, or by position if there is no such field
    prompt_start: routed_experts_prompt_start of the request, at most the number of prompt tokens
    prompt_token_ids, output_token_ids: pass these if the response has no ids, or not all output ids
    absent: what to do with a response without rows: "raise" InvalidArgumentError, or return rows that are all
        "unrecorded". If the request was aborted or sampled no token, they are always unrecorded

    Rows are ids [T - 1 - prompt_start, layers, K]. InvalidArgumentError: ROW_COUNT for another number of rows, also if
    the engine ignored prompt_start; FIELD for a response without rows or tokens; others for ids in a wrong format.
    """
    choice = _forms.item(output, "outputs" if _forms.get(output, "choices") is None else "choices", index)
    counted = _tokens_of(output, choice, prompt_token_ids, output_token_ids)
    others: dict[str, Any] = {"engine": _forms.engine_name("vllm")}
    value, split = _value(output, choice)
    if value is None:
        # `attach` may have put a reference here. Then any_payload's error says that the rows are in the store.
        value = _forms.get(choice, "routing_replay")
    if value is None:
        aborted = counted.output_tokens == 0 or _forms.get(choice, "finish_reason") == "abort"
        policy = "unrecorded" if aborted else absent
        return _forms.absent(_FIELD, _WHY, policy, counted, prompt_start, **others)
    found, own_start = _forms.any_payload(value, _FIELD, "npy", None)
    begin = _forms.start_of(own_start, prompt_start, _FIELD)
    counted = counted.fitting(_forms.row_count(found), begin)
    if split:  # vLLM 0.21 returns a row for each output token, even for the last.
        counted = dataclasses.replace(counted, all_output=True)
    recorded = _forms.account(found, counted, begin, layers=_basis(value, split), **others)
    spans = _forms.get(choice, "weight_versions")
    return dataclasses.replace(recorded, weights=_forms.output_weights(spans, counted, begin))


def _tokens_of(output: Any, choice: Any, prompt_token_ids: Any, output_token_ids: Any) -> _forms.Tokens:
    """Returns what is known about the tokens. For one choice, usage.prompt_tokens goes before the count of prompt ids,
    because media can become more tokens; usage.completion_tokens is used only for one choice without output ids."""
    places = _forms.get(choice, "prompt_token_ids"), _forms.get(output, "prompt_token_ids")
    prompt = _forms.ids(_forms.first(prompt_token_ids, *places), "prompt_token_ids")
    sampled = _forms.ids(_forms.first(output_token_ids, _forms.get(choice, "token_ids")), "token_ids")
    usage = _forms.get(output, "usage")
    alone = _forms.choice_count(output) == 1
    of_prompt = _forms.get(usage, "prompt_tokens") if alone or prompt is None else None
    of_output = _forms.get(usage, "completion_tokens") if alone and sampled is None else None
    of_prompt = _forms.number_of(of_prompt, prompt, "usage.prompt_tokens", "prompt_token_ids")
    of_output = _forms.number_of(of_output, sampled, "usage.completion_tokens", "token_ids")
    return _forms.Tokens(prompt, sampled, of_prompt, of_output, all_output=output_token_ids is not None)


def _value(output: Any, choice: Any) -> tuple[Any, bool]:
    """Returns the ids, and whether they are in two parts (prompt and output)."""
    sampled = _forms.get(choice, _FIELD)
    prompt = _forms.get(output, "prompt_routed_experts")
    if prompt is None or sampled is None:
        return sampled, prompt is not None
    parts = [_forms.nested(part, _FIELD) for part in (prompt, sampled)]
    filled = [part for part in parts if part.size]
    for part in filled:
        if part.dtype != filled[0].dtype:
            raise _forms.invalid(_FIELD, f"output dtype {part.dtype}, prompt {filled[0].dtype}", "DTYPE")
        if part.shape[1:] != filled[0].shape[1:]:
            raise _forms.invalid(_FIELD, f"output shape {list(part.shape)}, prompt {list(filled[0].shape)}", "SHAPE")
    return np.concatenate(filled) if filled else parts[0], True


def _basis(value: Any, split: bool) -> str:
    """Returns what the layer axis holds. Rows in two parts or nested lists are from vLLM 0.21: only MoE layers."""
    return "moe" if split or isinstance(value, list) else "all"
