"""What engines and the wrappers around them emit, as RecordedRows for `append`.

    from routing_replay.engines import vllm

    for j, completion in enumerate(output.outputs):
        run.append(f"{uid}/{j}", vllm.rows(output, j), seal=True)

One module per source: vllm, sglang, and envelope for what training frameworks put around ids.
`attach` takes rows where an engine of this process makes its outputs.

None imports an engine: objects are read by the names of their fields, responses as dicts (as json.loads gives them, or
routing_replay.http.routed_experts, which leaves the base64 where it is). Nothing is ever unpickled.

Errors are InvalidArgumentError, raised before anything is sent; `field` and `reason` say what is wrong.
"""

from routing_replay.engines import attach, envelope, sglang, vllm

__all__ = ["attach", "envelope", "sglang", "vllm"]
