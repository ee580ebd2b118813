"""Takes rows out of an engine where its outputs are made: for rollout workers with the engine in their process.

    from routing_replay.engines import attach

    attachment = attach.vllm(llm, run)
    for step, prompts in enumerate(batches):
        attachment.group, attachment.weight_version = step, version
        outputs = llm.generate(prompts, params)   # routing_replay of each completion is a reference now
        attachment.flush()                        # before the trainer reads; raises what was rejected

vllm takes a vllm.LLM or an AsyncLLM, sglang an sglang.Engine. Servers of both load `vllm_plugin` or `sglang_plugin` by
themselves if this package is installed; where ROUTING_REPLAY_RUN names a run, they join it as soon as it exists.

Importing this imports no engine.
"""

from routing_replay.engines.attach._attachment import Attachment
from routing_replay.engines.attach._sglang import attach_to as sglang
from routing_replay.engines.attach._sglang import register as sglang_plugin
from routing_replay.engines.attach._vllm import attach_to as vllm
from routing_replay.engines.attach._vllm import register as vllm_plugin

__all__ = ["Attachment", "sglang", "sglang_plugin", "vllm", "vllm_plugin"]
