"""Records rows directly in an engine, for rollout workers that run the engine in their own process.

    from routing_replay.engines import attach

    attachment = attach.vllm(llm, run)
    for step, prompts in enumerate(batches):
        attachment.group, attachment.weight_version = step, version
        outputs = llm.generate(prompts, params)   # each completion gets a reference, as its attribute routing_replay
        attachment.flush()                        # before the trainer reads; raises the first error of a failed append

attach.vllm accepts a vllm.LLM or an AsyncLLM, attach.sglang an sglang.Engine. If this package is installed, the servers
of both engines load `vllm_plugin` or `sglang_plugin` by themselves. If the environment variable ROUTING_REPLAY_RUN
names a run, the plug-in joins that run, at ROUTING_REPLAY_ENDPOINT, as soon as the run exists. Until then the plug-in
retries every few seconds, after one warning, and answers keep their rows.

Importing this module does not import an engine.
"""

from routing_replay.engines.attach._attachment import Attachment
from routing_replay.engines.attach._sglang import attach_to as sglang
from routing_replay.engines.attach._sglang import register as sglang_plugin
from routing_replay.engines.attach._vllm import attach_to as vllm
from routing_replay.engines.attach._vllm import register as vllm_plugin

__all__ = ["Attachment", "sglang", "sglang_plugin", "vllm", "vllm_plugin"]
