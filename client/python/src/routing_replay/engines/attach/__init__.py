"""Takes rows out of an engine where its outputs are made: for rollout workers with the engine in their process.

    from routing_replay.engines import attach

    attachment = attach.vllm(llm, run)
    for step, prompts in enumerate(batches):
        attachment.group, attachment.weight_version = step, version
        outputs = llm.generate(prompts, params)   # routing_replay of each completion is a reference now
        attachment.flush()                        # before the trainer reads; raises what was rejected

vllm takes a vllm.LLM or an AsyncLLM, sglang an sglang.Engine. An SGLang server loads `sglang_plugin` by itself if this
package is installed and ROUTING_REPLAY_RUN names a run; it joins that run as soon as the run exists.

Importing this imports no engine.
"""

from routing_replay.engines.attach._attachment import Attachment
from routing_replay.engines.attach._sglang import attach_to as sglang
from routing_replay.engines.attach._sglang import register as sglang_plugin
from routing_replay.engines.attach._vllm import attach_to as vllm

__all__ = ["Attachment", "sglang", "sglang_plugin", "vllm"]
