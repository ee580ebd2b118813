"""Models that the other tests do not have: families, dense layers, ids that need 16 bits."""

from __future__ import annotations

import gc
import os
import unittest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import numpy as np
from common.answers import PeerTest
from peer import settings
from routing_replay.engines import attach
from routing_replay.engines import vllm as adapter
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

FAMILIES = ("qwen3", "mixtral", "olmoe", "qwen2", "glm4")


class FamiliesTest(PeerTest):
    def play(self, model: str, dtype: type) -> None:
        """Records the answers of a model in both ways, by `attach.vllm` and by the adapter's `rows`, and compares the
        stored rows with vLLM's own routed_experts."""
        llm = LLM(**settings(model))
        run = self.open_run(model, model)
        params = SamplingParams(n=2, max_tokens=20, temperature=1.0, seed=1)
        prompts = [{"prompt_token_ids": self.ids(count)} for count in (30, 100)]
        with attach.vllm(llm, run, replace=False) as attachment:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            attachment.flush()
        for output in outputs:
            for place, answer in enumerate(output.outputs):
                tokens, sample = [*output.prompt_token_ids, *answer.token_ids], f"{output.request_id}/{place}"
                self.assertEqual(answer.routed_experts.dtype, dtype)
                self.check("attached", run, sample, tokens, answer.routed_experts, pieces=model)
                run.append(f"adapter/{sample}", adapter.rows(output, place), seal=True)
                run.flush()
                self.check("adapter", run, f"adapter/{sample}", tokens, answer.routed_experts, pieces=model)
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()

    def test_families(self) -> None:
        for family in FAMILIES:
            with self.subTest(family):
                self.play(family, np.uint8)

    def test_dense_layers(self) -> None:
        self.play("dense_layers", np.uint8)

    def test_more_than_256_experts(self) -> None:
        self.play("experts_320", np.uint16)


if __name__ == "__main__":
    unittest.main()
