"""Runs the README's recipe for Hugging Face models with a model that PEFT has wrapped, whose adapters are trained."""

from __future__ import annotations

import unittest

import hf_models
import peft
import routing_replay as rr
from hf_cases import moe_layers, new_model
from recipe_test import check_train


class PeftTest(unittest.TestCase):
    def test_train(self) -> None:
        model = new_model(hf_models.MODELS["Qwen3Moe"])
        layers = moe_layers(model)
        lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        with rr.local_server():
            check_train(peft.get_peft_model(model, lora), layers)


if __name__ == "__main__":
    unittest.main()
