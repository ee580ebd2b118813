"""What TensorRT-LLM returns.

| source | read | layers | dtype |
|---|---|---|---|
| RequestOutput of LLM.generate | outputs[i].routed_experts, a torch tensor [T - 1, layers, K] | MoE | int16 |

Rows of -1 throughout are unrecorded (the engine itself rejects a gap inside). Token ids come from
prompt_token_ids and outputs[i].token_ids; if a stop word of several tokens was removed from those, rows are more than
tokens (ROW_COUNT): pass all that were sampled as output_token_ids, or set include_stop_str_in_output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from routing_replay.engines import _forms
from routing_replay.types import RecordedRows

_FIELD = "routed_experts"


def tokens(output: Any, index: int = 0, *, output_token_ids: Any = None) -> np.ndarray | None:
    """Token ids, uint32 [T], of one sample: the prompt's, then those sampled. InvalidArgumentError for bad ones."""
    return _forms.join(*_ids(output, _forms.item(output, "outputs", index), output_token_ids))


def _ids(output: Any, completion: Any, sampled: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    sampled = _forms.get(completion, "token_ids") if sampled is None else sampled
    prompt = _forms.get(output, "prompt_token_ids")
    return _forms.ids(prompt, "prompt_token_ids"), _forms.ids(sampled, "token_ids")


def rows(
    output: Any,
    index: int = 0,
    *,
    output_token_ids: Any = None,
    layers: Literal["all", "moe"] | Sequence[int] | None = "moe",
    short_rows: Literal["missing_at_front", "refuse"] = "refuse",
    absent: Literal["raise", "unrecorded"] = "raise",
    engine: str | None = None,
    resolver: _forms.Resolver | None = None,
) -> RecordedRows:
    """Rows of one sample of a RequestOutput: ids int16 [T - 1, MoE layers, K]; parameters as of vllm.rows.

    InvalidArgumentError: ROW_COUNT for another number of rows, FIELD for an output without rows or tokens, DTYPE and
    SHAPE for anything but a tensor of ids.
    """
    completion = _forms.item(output, "outputs", index)
    prompt, sampled = _ids(output, completion, output_token_ids)
    if prompt is None or sampled is None:
        raise _forms.invalid("prompt_token_ids" if prompt is None else "token_ids", "is missing in the output")
    others = {"engine": _forms.engine_name("tensorrt_llm") if engine is None else engine}
    counted = _forms.Tokens(prompt, sampled, prompt.size, sampled.size)
    value = _forms.get(completion, _FIELD)
    if value is None:
        aborted = sampled.size == 0 or _forms.get(completion, "finish_reason") in ("abort", "cancelled")
        why = "missing: are enable_return_routed_experts and SamplingParams.return_routed_experts set?"
        return _forms.absent(_FIELD, why, "unrecorded" if aborted else absent, counted, 0, **others)
    found, _ = _forms.any_payload(value, _FIELD, None, None, resolver)
    return _forms.account(found, counted, 0, short_rows, layers=layers, **others)
