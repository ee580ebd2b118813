"""Tests models that the other tests do not have: other families, one with a dense layer, and one whose ids need 16
bits.

The dense layer is tested with GLM-4. Qwen3 cannot be used: SGLang builds experts in all its layers, even in those that
the configuration says are dense (mlp_only_layers).
"""

from __future__ import annotations

import os
import unittest

# Qwen2's shared expert has a kernel only in Triton, which interprets it on the CPU.
os.environ["TRITON_INTERPRET"] = "1"

from peer import EngineTest, given_rows
from routing_replay.engines import attach
from routing_replay.engines import sglang as adapter


class Family:
    def test_answers(self) -> None:
        """Stores the rows of each answer twice, through the adapter and through an attachment. Both must be right."""
        prompts, run = [self.ids(count) for count in (30, 100)], self.run_
        with attach.sglang(self.engine, run, replace=False) as attachment:
            replies = self.ask(prompts, n=2, max_new_tokens=20, temperature=1.0)
            attachment.flush()
        for number, reply in enumerate(replies):
            prompt, sample = prompts[number // 2], reply["meta_info"]["id"]
            self.check_reply("attached", run, sample, prompt, reply)
            rows = adapter.rows(reply, run.geometry, prompt_token_ids=prompt)
            run.append(f"adapter/{sample}", rows, seal=True)
            run.flush()
            self.check_reply("adapter", run, f"adapter/{sample}", prompt, reply)


class MixtralTest(Family, EngineTest):
    MODEL = "mixtral"


class OlmoeTest(Family, EngineTest):
    MODEL = "olmoe"


class Qwen2Test(Family, EngineTest):
    MODEL = "qwen2"


class Glm4Test(Family, EngineTest):
    MODEL = "glm4"

    def test_its_dense_layer(self) -> None:
        self.assertEqual(self.run_.geometry.moe_layers, (1, 2, 3))
        reply = self.ask(self.ids(9))
        self.assertFalse(given_rows(reply["meta_info"], self.run_.geometry)[:, 0].any())


class Experts320Test(Family, EngineTest):
    MODEL = "experts_320"

    def test_ids_of_16_bits(self) -> None:
        self.assertEqual(self.run_.geometry.dtype.name, "uint16")
        reply = self.ask(self.ids(90))
        self.assertGreater(given_rows(reply["meta_info"], self.run_.geometry).max(), 255)


if __name__ == "__main__":
    unittest.main()
