"""Golden files through the Python package: the rows of every framework, and Megatron's router forward and backward."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import routing_replay_trainer as trainer

DATA = Path(os.environ["ROUTING_REPLAY_GOLDEN_DATA"])
ZSTD = shutil.which("zstd")
SKIPPED = 77  # CTest's status for a skipped test.


def cases(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and the content of each case in all files that match."""
    files = sorted(DATA.glob(path + ".json.zst"))
    if not files:
        raise FileNotFoundError(path)
    for file in files:
        text = subprocess.run([ZSTD, "-dcq", file], check=True, capture_output=True).stdout
        for case in json.loads(text)["cases"]:
            yield f"{file.name.removesuffix('.json.zst')}: {case['name']}", case


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Returns the 16 bits of each value. The values must be exact in bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def to_float64(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


class RouterTest(unittest.TestCase):
    def assert_close(self, ours: np.ndarray, expected: list[Any], tolerance: float) -> None:
        """Compares values only where Megatron's own value is finite. Elsewhere any value is accepted."""
        theirs = np.array(expected, np.float64)
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(to_float64(ours)[finite], theirs[finite], rtol=0, atol=tolerance)

    def replay(self, case: dict[str, Any], rounding: Any, expect: dict[str, Any], name: str) -> None:
        given = case["input"]
        router = trainer.Router(
            given["num_experts"],
            given["topk"],
            given["score_function"],
            pre_softmax=given["use_pre_softmax"],
            scaling_factor=given["scaling_factor"],
            num_groups=given["num_groups"],
            group_topk=given["group_topk"],
            rounding=rounding,
        )
        logits = np.array(given["logits"], np.float64)
        logits = to_bfloat16(logits) if given["dtype"] == "bfloat16" else logits.astype(given["dtype"])
        bias = None if given["expert_bias"] is None else np.array(given["expert_bias"], np.float32)
        live = "recorded_indices" in expect
        states = np.full(len(logits), trainer.UNRECORDED if live else trainer.REPLAYED, np.uint8)
        ids = np.array(given["replay_indices"], router.id_dtype)
        out = trainer.router_replay_forward(router, logits, ids, states, expert_bias=bias)
        self.assertEqual(out.probs.dtype, logits.dtype)
        if live:
            self.assertEqual(out.chosen.tolist(), expect["recorded_indices"])
        if "routing_map" in expect:
            self.assertEqual([np.flatnonzero(row).tolist() for row in out.routing_map], expect["routing_map"])
        self.assert_close(out.probs, expect["probs"], case["tol"][f"{name}_probs"])

    def test_megatron(self) -> None:
        answered = 0
        for kind in ("softmax", "sigmoid", "sqrtsoftplus", "bf16", "fp64", "edge_values"):
            for name, case in cases(f"megatron/routing_{kind}"):
                with self.subTest(name):
                    for action in ("replay", "live"):
                        if action in case["expect"]:
                            self.replay(case, "once", case["expect"][action], action)
                    # Megatron-Core 0.17 has no sqrtsoftplus, and differs where a case says so.
                    if case["input"]["score_function"] != "sqrtsoftplus":
                        older = case.get("expect_v0_17")
                        expect = case["expect"] if older is None else older
                        self.replay(case, "each_step", expect["replay"], "replay" if older is None else "v0_17")
                    answered += 1
        self.assertGreater(answered, 80)


class RowsTest(unittest.TestCase):
    def micro_batch(self, case: dict[str, Any]) -> dict[str, Any]:
        neutral = case["input"]["neutral"]
        known = {
            "format": neutral["format"],
            "sequences": [
                {"tokens": tokens, "recorded_rows": rows}
                for tokens, rows in zip(neutral["lengths"], neutral["rows_available"], strict=True)
            ],
            "partition": neutral["partition"],
            "cp_size": neutral["cp_size"],
            "tp_size": neutral["tp_size"],
            "sequence_parallel": neutral.get("sequence_parallel"),
        }
        if neutral["format"] == "THD":
            return known | {
                "cu_seqlens_padded": neutral["cu_seqlens_padded"],
                "total_rows": neutral["total_padded_rows"],
            }
        wrong = case["input"].get("known_wrong", False)
        return known | {
            "batch_size": neutral["batch_size"],
            "padded_length": neutral["padded_length"],
            "row_order": case["input"]["megatron_row_order"] if wrong else neutral["row_order"],
            "sp_slice": neutral["sp_slice"],
        }

    def test_frameworks(self) -> None:
        geometry = {"num_layers": 1, "num_experts": 8, "top_k": 2}
        ranks = 0
        for name, case in cases("frameworks/rows_*"):
            if "neutral" not in case["input"] or case["expect"].get("error"):
                continue  # The golden runner checks rejections and the effect of a framework's options.
            for rank in case["expect"].get("ranks", ()):
                with self.subTest(name, cp=rank["cp_rank"], tp=rank["tp_rank"]):
                    place = {"cp": rank["cp_rank"], "tp": rank["tp_rank"]}
                    rows = trainer.plan(geometry, self.micro_batch(case), rank=place).local_rows()
                    shown = np.stack([rows.sequence, rows.row], axis=1).tolist()
                    self.assertEqual(shown, rank.get("megatron_rows", rank["rows"]))
                    if "megatron_rows" not in rank:
                        letters = {trainer.REPLAYED: "R", trainer.UNRECORDED: "U", trainer.PAD: "P"}
                        self.assertEqual("".join(letters[state] for state in rows.state), rank["state"])
                    ranks += 1
        self.assertGreater(ranks, 500)


if __name__ == "__main__":
    if ZSTD is None:
        print("SKIPPED: no zstd program to read the golden files with")
        sys.exit(SKIPPED)
    unittest.main()
