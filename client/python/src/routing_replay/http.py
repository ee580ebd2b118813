"""Parses the HTTP responses of engines, without copying the routed experts, which are by far their largest part."""

from __future__ import annotations

from typing import Any

from routing_replay import _native, _values
from routing_replay._native import lib


def routed_experts(body: bytes | bytearray | memoryview) -> Any:
    """Parses a response like json.loads, but returns the texts of routed experts as memoryviews of `body`.

    body: one JSON object or list. It must not change while such views exist

    simdjson finds these texts, which are neither copied nor decoded; json.loads parses the small rest. The adapters of
    routing_replay.engines take the result like any other response:

        response = routing_replay.http.routed_experts(await reply.read())
        run.append(sample, vllm.rows(response, 0), seal=True)

    The fields are routed_experts and prompt_routed_experts, at the top level (or in each item, if the response is a
    list), in choices, and in meta_info, sglext and sgl_ext at any of these places. If such a field is an object, the
    text is its field `data`. Lists of numbers and texts with escapes are returned as by json.loads.

    Raises InvalidArgumentError (ENCODING, field "body") for what is not JSON, and for an object in which a key
    occurs twice.
    """
    view = _values.view(body, "body", "ENCODING")
    found = _native.give(lib.rr_find_routes, _native.Routes, _routes, *_native.address_of(view))
    rest, at = [], 0
    for _, begin, end in found:
        rest.append(view[at:begin])
        at = end
    rest.append(view[at:])
    response = _values.json_value(b"".join(rest), "body", "ENCODING")
    for (*steps, last), begin, end in found:
        holder = response
        for step in steps:
            holder = holder[step]
        holder[last] = view[begin:end]
    return response


def _routes(found: Any) -> list[tuple[list[Any], int, int]]:
    """Where routed experts are in the body: for each field, the keys and indexes that lead to it, and its begin and
    end."""
    return [([step.value() for step in text.path[: text.path_count]], text.data.begin, text.data.end) for text in found]
