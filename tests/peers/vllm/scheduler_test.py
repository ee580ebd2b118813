"""vllm.LLM with an attachment, whose scheduler preempts requests and speculates."""

from __future__ import annotations

import os
import unittest
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from common.answers import PeerTest
from peer import settings
from routing_replay.engines import attach
from vllm import LLM, SamplingParams


def metric(llm: Any, name: str) -> int:
    return sum(each.value for each in llm.get_metrics() if each.name == f"vllm:{name}")


class PreemptionTest(PeerTest):
    def test_preemption(self) -> None:
        llm = LLM(**settings(num_gpu_blocks_override=34, disable_log_stats=False))
        run = self.open_run("preemption")
        with attach.vllm(llm, run, replace=False) as attachment:
            prompts = [{"prompt_token_ids": self.ids(60)} for _ in range(8)]
            params = SamplingParams(max_tokens=150, min_tokens=150, temperature=1.0, seed=11)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            attachment.flush()
        self.assertGreater(metric(llm, "num_preemptions"), 0)
        for output in outputs:
            tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
            self.check("preemption", run, f"{output.request_id}/0", tokens, output.outputs[0].routed_experts)


class SpeculationTest(PeerTest):
    def test_guesses_of_n_grams(self) -> None:
        guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        llm = LLM(**settings(speculative_config=guesses, disable_log_stats=False))
        run = self.open_run("guesses")
        prompts = [{"prompt_token_ids": self.ids(8) * 5} for _ in range(4)]
        with attach.vllm(llm, run, replace=False) as attachment:
            params = SamplingParams(max_tokens=40, temperature=0)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            attachment.flush()
        accepted = metric(llm, "spec_decode_num_accepted_tokens")
        self.assertLess(0, accepted)
        self.assertLess(accepted, metric(llm, "spec_decode_num_draft_tokens"))
        for output in outputs:
            tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
            self.check("guesses", run, f"{output.request_id}/0", tokens, output.outputs[0].routed_experts)


if __name__ == "__main__":
    unittest.main()
