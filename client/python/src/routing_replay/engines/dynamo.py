"""What Dynamo returns, whichever engine is behind it.

| behind it | read | form |
|---|---|---|
| vLLM | nvext.routed_experts, of the response or the choice | {data: base64, shape, start, dtype} |
| vLLM, early builds | the same, without dtype and start | {data: base85, shape}, uint8 unless given |
| SGLang | the same | base64 of flat int32: pass the run's geometry |
| SGLang | nvext.metadata_upload.url: given to the resolver, which returns SGLang's meta_info or ids | any |

Token ids as in vllm. Layers: all hidden ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from routing_replay.engines import _forms, vllm
from routing_replay.types import RecordedRows

if TYPE_CHECKING:
    from routing_replay.geometry import Geometry

_FIELD = "nvext.routed_experts"


def tokens(
    response: Any, index: int = 0, *, prompt_token_ids: Any = None, output_token_ids: Any = None
) -> np.ndarray | None:
    """Token ids, uint32 [T], of one sample; see vllm.tokens."""
    return vllm.tokens(response, index, prompt_token_ids=prompt_token_ids, output_token_ids=output_token_ids)


def rows(
    response: Any,
    geometry: Geometry | None = None,
    index: int = 0,
    *,
    start: int = 0,
    prompt_token_ids: Any = None,
    output_token_ids: Any = None,
    dtype: str = "uint8",
    layers: Literal["all", "moe"] | Sequence[int] | None = "all",
    short_rows: Literal["missing_at_front", "refuse"] = "refuse",
    absent: Literal["raise", "unrecorded"] = "raise",
    engine: str = "dynamo",
    resolver: _forms.Resolver | None = None,
) -> RecordedRows:
    """Rows of one sample of a response (see the module).

    geometry: of the run; needed for flat ids
    start: the first row that was asked for; that of an object must agree
    dtype: of an object that has none
    Other parameters, results and errors as of vllm.rows.
    """
    choice = _forms.item(response, "choices", index)
    counted = vllm.tokens_of(response, choice, prompt_token_ids, output_token_ids)
    others: dict[str, Any] = {"engine": engine}
    value, url = _find(response, choice)
    _forms.check_resolver(resolver)
    if value is None and url is not None and resolver is not None:
        value = resolver(url)
        if isinstance(value, Mapping) and "data" not in value:
            value = _forms.get(value, "routed_experts")
    if value is None:
        policy = "unrecorded" if vllm.aborted(choice, counted) else absent
        why = "missing" if url is None else "the response holds a reference (metadata_upload): pass a resolver"
        return _forms.absent(_FIELD, why, policy, counted, start, **others)
    if isinstance(value, Mapping) and "dtype" not in value:
        found, own_start = _forms.base85_payload(value, dtype, _FIELD)
    else:
        found, own_start = _forms.any_payload(value, _FIELD, _forms.row_of(geometry, layers), None, resolver)
    first = _forms.start_of(own_start, start, _FIELD)
    counted = counted.fitting(_forms.row_count(found), first)
    return _forms.account(found, counted, first, short_rows, layers=layers, **others)


def _find(response: Any, choice: Any) -> tuple[Any, Any]:
    """The ids, or the address of what holds them."""
    url = None
    for place in (choice, response):
        extension = _forms.get(place, "nvext")
        value = _forms.get(extension, "routed_experts")
        if value is not None:
            _forms.reject_shared(response, choice, place, _FIELD)
            return value, None
        url = url or _forms.get(_forms.get(extension, "metadata_upload"), "url")
    return None, url
