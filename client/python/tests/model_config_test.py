"""Geometries from model configurations that are not in the golden files."""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import Any

import routing_replay as rr

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
}


class HuggingFaceTest(unittest.TestCase):
    def test_published_models(self) -> None:
        cases: list[tuple[dict[str, Any], tuple[int, int, int, Sequence[int]]]] = [
            (
                {
                    **{"model_type": "bailing_moe_v2", "num_hidden_layers": 80, "first_k_dense_replace": 4},
                    **{"num_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4},
                    **{"score_function": "sigmoid"},
                },
                (80, 256, 8, range(4, 80)),
            ),
            (
                {
                    **{"model_type": "mimo_v2_flash", "num_hidden_layers": 4, "moe_layer_freq": [0, 1, 1, 1]},
                    **{"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": None},
                },
                (4, 256, 8, range(1, 4)),
            ),
            (
                {
                    **{"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "first_k_dense_replace": 1},
                    **{"n_routed_experts": 64, "num_experts_per_tok": 4},
                },
                (47, 64, 4, range(1, 47)),
            ),
            (
                {
                    "model_type": "ernie4_5_vl_moe",
                    "text_config": {
                        **{"num_hidden_layers": 54, "moe_num_experts": [64, 64], "moe_k": 8},
                        **{"moe_layer_start_index": [3, 3], "moe_layer_end_index": [53, 53], "moe_layer_interval": 1},
                    },
                },
                (54, 64, 8, range(3, 54)),
            ),
            (
                {
                    "model_type": "kimi_vl",
                    "text_config": {
                        **{"model_type": "deepseek_v3", "num_hidden_layers": 27, "first_k_dense_replace": 1},
                        **{"n_routed_experts": 64, "num_experts_per_tok": 6},
                    },
                },
                (27, 64, 6, range(1, 27)),
            ),
        ]
        for config, expected in cases:
            self.assertEqual(rr.Geometry.from_hf_config(config), rr.Geometry(*expected), config)

    def test_unknown_types_by_their_keys(self) -> None:
        config = DEEPSEEK_V3 | {"model_type": "brand_new"}
        model = rr.Geometry.from_hf_config(config)
        self.assertEqual(model.moe_layers, tuple(range(3, 61)))
        listed = rr.Geometry.from_hf_config(config | {"mlp_layer_types": ["sparse"] * 61})  # This field has precedence.
        self.assertEqual(listed.moe_layers, tuple(range(61)))
        for change in ({"decoder_sparse_step": 2}, {"moe_layer_freq": 2}):
            with self.assertRaises(rr.InvalidArgumentError):
                rr.Geometry.from_hf_config(config | change)
        with self.assertRaisesRegex(rr.InvalidArgumentError, "decoder_sparse_step") as caught:
            rr.Geometry.from_hf_config(config | {"moe_layer_freq": None, "first_k_dense_replace": None})
        self.assertEqual((caught.exception.field, caught.exception.reason), ("model_type", "FIELD"))

    def test_rejections(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"num_experts_per_tok": None}, "num_experts_per_tok"),
            ({"n_routed_experts": None}, "no routed experts"),
            ({"n_routed_experts": 0}, "no routed experts"),
            ({"first_k_dense_replace": 61}, "no routed experts"),
            ({"num_hidden_layers": None}, "num_hidden_layers"),
            ({"num_experts": 64}, "contradicts"),
            ({"num_experts_per_tok": 8.5}, "32-bit integer"),
            ({"moe_layer_freq": 2}, "moe_layer_freq"),
            ({"mlp_layer_types": ["dense", "sparse"]}, "has 2 layers"),
            ({"mlp_layer_types": ["odd"] * 61}, "odd"),
            ({"is_encoder_decoder": True}, "encoder-decoder"),
            ({"num_nextn_predict_layers": -1}, "mtp_layers"),
            ({"num_experts_per_tok": 257}, "top_k"),
        ]
        for change, words in cases:
            with self.assertRaisesRegex(rr.InvalidArgumentError, words, msg=str(change)) as caught:
                rr.Geometry.from_hf_config(DEEPSEEK_V3 | change)
            self.assertEqual(caught.exception.reason, "FIELD")
        deep = {"model_type": "deepseek_v4", "num_hidden_layers": 2000000000, "num_hash_layers": 2000000000}
        with self.assertRaisesRegex(rr.InvalidArgumentError, "2000000000"):
            rr.Geometry.from_hf_config(deep | {"n_routed_experts": 8, "num_experts_per_tok": 2})

    def test_odd_values_of_every_key_do_no_more_than_fail(self) -> None:
        odd = (None, True, -1, 0, 3.5, 2**64 - 1, "", "x", [1, 2, 3], ["E"], [], {}, {"num_experts": "x"})
        configs: list[dict[str, Any]] = [
            DEEPSEEK_V3,
            {
                **{"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2},
                **{"decoder_sparse_step": 2, "mlp_only_layers": [1], "per_layer_config": {"3": {"num_experts": 4}}},
            },
            {
                **{"model_type": "nemotron_h", "hybrid_override_pattern": "ME*E", "n_routed_experts": 8},
                **{"num_experts_per_tok": 2, "mtp_config": {"num_mtp_layers": 1}},
            },
            {"model_type": "dbrx", "n_layers": 4, "ffn_config": {"moe_num_experts": 8, "moe_top_k": 2}},
            {
                "model_type": "step3p7",
                "text_config": {
                    **{"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_layers_enum": "1,3"}
                },
            },
            {
                **{"model_type": "longcat_flash", "num_layers": 4, "n_routed_experts": 8, "zero_expert_num": 4},
                **{"moe_topk": [2, 2, 2, 2]},
            },
        ]
        for config in configs:
            rr.Geometry.from_hf_config(config)
            for key in config:
                for value in odd:
                    try:
                        rr.Geometry.from_hf_config(config | {key: value})
                    except rr.InvalidArgumentError as error:
                        self.assertIsNotNone(error.field)


class MegatronTest(unittest.TestCase):
    def model(self, **change: Any) -> rr.Geometry:
        fields = {"num_layers": 8, "num_moe_experts": 16, "moe_router_topk": 4}
        return rr.Geometry.from_megatron_config(fields | change)

    def test_moe_layers(self) -> None:
        cases: list[tuple[dict[str, Any], Sequence[int]]] = [
            ({}, range(8)),
            ({"moe_layer_freq": 1}, range(8)),
            ({"moe_layer_freq": 3}, (0, 3, 6)),
            ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 0]}, range(1, 7)),
            ({"first_k_dense_replace": 2, "moe_layer_freq": 1}, range(2, 8)),
            ({"hybrid_override_pattern": "ME|M*|EM-E"}, (1, 4, 7)),
            ({"hybrid_layer_pattern": "MEM*/ME/ME", "num_layers": None}, (1,)),
        ]
        for change, expected in cases:
            self.assertEqual(self.model(**change).moe_layers, tuple(expected), change)

    def test_rejections(self) -> None:
        changes: list[dict[str, Any]] = [
            {"num_layers": None},
            {"num_moe_experts": None},
            {"moe_router_topk": None},
            {"moe_layer_freq": 0},
            {"moe_layer_freq": "[0]*3+[1]*5"},
            {"moe_layer_freq": [1, 1]},
            {"moe_layer_freq": [2, 1, 1, 1, 1, 1, 1, 1]},
            {"moe_layer_freq": [0] * 8},
            {"moe_layer_freq": 2, "first_k_dense_replace": 1},
            {"hybrid_override_pattern": "MEXX"},
            {"hybrid_override_pattern": "ME"},
        ]
        for change in changes:
            with self.assertRaises(rr.InvalidArgumentError, msg=str(change)) as caught:
                self.model(**change)
            self.assertEqual(caught.exception.reason, "FIELD")


if __name__ == "__main__":
    unittest.main()
