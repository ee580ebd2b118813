"""Converts what engines and their wrappers emit to RecordedRows for `append`.

    from routing_replay.engines import vllm

    for j, completion in enumerate(output.outputs):
        run.append(f"{uid}/{j}", vllm.rows(output, j), seal=True)

There is one module per source: vllm, sglang, and envelope for rows that a training framework passes on in its format.
`attach` records the rows directly in an engine that runs in this process.

None of these modules imports an engine. They read objects by the names of their fields, and responses as dicts (from
json.loads, or from routing_replay.http.routed_experts, which does not copy the base64). Nothing is ever unpickled.

Errors are InvalidArgumentError, raised before anything is sent; `field` and `reason` say what is wrong.
"""

from routing_replay.engines import attach, envelope, sglang, vllm

__all__ = ["attach", "envelope", "sglang", "vllm"]
