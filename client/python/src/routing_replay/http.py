"""Responses of engines over HTTP, without copies of what is large in them."""

from __future__ import annotations

import json
from typing import Any

from routing_replay import _core, _values


def routed_experts(body: bytes | bytearray | memoryview) -> Any:
    """The response as json.loads gives it, but the texts of routed experts are memoryviews of `body`.

    body: one JSON object or list, or one event of a stream with its "data:". Must not change while views of it live

    These texts are found by simdjson and neither copied nor decoded; what is left is small and goes through json.loads.
    The adapters of routing_replay.engines take the result as any other response:

        response = routing_replay.http.routed_experts(await reply.read())
        run.append(sample, vllm.rows(response, 0), seal=True)

    Meant are routed_experts and prompt_routed_experts of the response, of its items if it is a list, of choices, and of
    meta_info, sglext, sgl_ext and nvext at any of these; of an object its data. Lists of numbers and texts with
    escapes stay as json.loads gives them.

    Raises InvalidArgumentError (ENCODING, field "body") for what is no JSON.
    """
    try:
        view = memoryview(body).cast("B")
    except TypeError as error:
        raise _values.invalid("body", f"is no contiguous bytes: {error}") from None
    if bytes(view[:5]) == b"data:":
        view = view[5:]
    found = _core.find_routes(view)
    rest, at = [], 0
    for text in found:
        begin, end = text["span"]
        rest.append(view[at:begin])
        at = end
    rest.append(view[at:])
    try:
        response = json.loads(b"".join(rest))
    except ValueError as error:
        raise _values.invalid("body", f"is no JSON: {error}", reason="ENCODING") from None
    for text in found:
        *steps, last = text["path"]
        holder = response
        for step in steps:
            holder = holder[step]
        holder[last] = view[slice(*text["span"])]
    return response
