"""Layers and their split from the fields of Megatron-Core's TransformerConfig."""

from __future__ import annotations

import unittest
from typing import Any

import routing_replay as rr

from routing_replay_trainer.plan import MegatronLayers

DEEPSEEK: dict[str, Any] = {
    "num_layers": 61,
    "num_moe_experts": 256,
    "moe_router_topk": 8,
    "moe_layer_freq": [0] * 3 + [1] * 58,
    "pipeline_model_parallel_size": 16,
    "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L",
    "mtp_num_layers": 1,
    "num_layers_in_first_pipeline_stage": None,
    "layernorm_epsilon": 1e-6,
}


class MegatronLayersTest(unittest.TestCase):
    def test_layout(self) -> None:
        layers = MegatronLayers.of(DEEPSEEK)
        self.assertEqual((layers.geometry["num_layers"], layers.geometry["moe_layers"]), (61, list(range(3, 61))))
        self.assertEqual(layers.split, {"pipeline_size": 16, "mtp_num_layers": 1, "layout": "Et*3|(tt|)*29m|L"})
        stages = [["embedding", "decoder"], ["decoder", "loss"]]
        config = {"num_layers": 2, "num_moe_experts": 8, "moe_router_topk": 2, "pipeline_model_parallel_layout": stages}
        self.assertEqual(MegatronLayers.of(config).split, {"layout": stages})

    def test_sizes_under_both_names(self) -> None:
        config = DEEPSEEK | {
            "pipeline_model_parallel_layout": None,
            "decoder_first_pipeline_num_layers": 7,
            "num_layers_in_last_pipeline_stage": 6,
            "account_for_loss_in_pipeline_split": True,
            "num_virtual_stages_per_pipeline_rank": 2,
        }
        expected = {"first_stage_layers": 7, "last_stage_layers": 6, "account_for_loss": True, "virtual_stages": 2}
        self.assertEqual(MegatronLayers.of(config).split, expected | {"pipeline_size": 16, "mtp_num_layers": 1})

    def test_hybrid_pattern_says_layers_and_stages(self) -> None:
        pattern = "M*ME|MEME/*E"
        config = {"num_moe_experts": 8, "moe_router_topk": 2, "pipeline_model_parallel_size": 2}
        layers = MegatronLayers.of(config | {"hybrid_layer_pattern": pattern})
        self.assertEqual((layers.geometry["num_layers"], layers.geometry["moe_layers"]), (8, [3, 5, 7]))
        self.assertEqual(layers.split, {"pipeline_size": 2, "hybrid_pattern": pattern})

    def test_hash_layers(self) -> None:
        config = {"num_layers": 6, "num_moe_experts": 64, "moe_router_topk": 4, "moe_n_hash_layers": 2}
        self.assertEqual(MegatronLayers.of(config).hash_layers, [0, 1])

    def test_the_key_is_named(self) -> None:
        without = {"pipeline_model_parallel_layout": None}
        cases: list[tuple[str, Any, dict[str, Any]]] = [
            ("moe_router_topk", None, {}),
            ("num_layers", "27", {}),
            ("pipeline_model_parallel_size", "2", {}),
            ("pipeline_model_parallel_size", 1 << 40, {}),
            ("account_for_loss_in_pipeline_split", 1, {}),
            ("num_layers_per_virtual_pipeline_stage", 2, without),
        ]
        for key, value, others in cases:
            with self.subTest(key), self.assertRaises(rr.InvalidArgumentError) as caught:
                MegatronLayers.of(DEEPSEEK | {key: value} | others)
            self.assertEqual(caught.exception.field, f"megatron.{key}")


if __name__ == "__main__":
    unittest.main()
