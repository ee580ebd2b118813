"""The golden codec files through the adapters, into a store and back: tests/golden/data/frameworks/README.md, 5.

ROUTING_REPLAY_GOLDEN names another folder of such files; each must have at least one case.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from golden_model_config import ZSTD, read
from support import ServerTest

import routing_replay as rr
from routing_replay import http
from routing_replay.engines import envelope, sglang, vllm

DATA = Path(os.environ.get("ROUTING_REPLAY_GOLDEN") or Path(__file__).resolve().parents[3] / "tests/golden/data")

# Our reason of a rejection, and the names that the golden files have for it. A row that is only partly -1 is a "partial
# sentinel" if the source marks missing rows with -1, and otherwise a row with ids out of range.
REASONS = {
    "ENCODING": {"encoding"},
    "DTYPE": {"dtype"},
    "SHAPE": {"shape"},
    "LENGTH": {"length"},
    "ROW_COUNT": {"length"},
    "ID_RANGE": {"range"},
    "DUPLICATE_ID": {"duplicate"},
    "PARTIAL_ROW": {"partial sentinel", "range"},
}

Case = dict[str, Any]
Adapter = Callable[[Case, rr.Geometry], list[Callable[[], rr.RecordedRows]]]


def cases(kind: str) -> Iterator[Case]:
    paths = sorted(path for path in DATA.rglob("codec_*") if path.name.split(".")[0] == kind)
    for path in paths:
        yield from json.loads(read(path))["cases"]


def bodies(response: Any) -> list[Any]:
    """Returns a response twice: parsed by Python's json, and by routing_replay.http."""
    text = json.dumps(response).encode()
    return [json.loads(text), http.routed_experts(text)]


def vllm_rows(case: Case, _: rr.Geometry) -> list[Callable[[], rr.RecordedRows]]:
    prompt, sampled = np.split(np.arange(case["tokens"]), [max(1, case["tokens"] // 2)])
    choice = {"index": 0, "token_ids": sampled.tolist(), "finish_reason": "stop", "routed_experts": case["payload"]}
    answers = bodies({"prompt_token_ids": prompt.tolist(), "choices": [choice]})
    return [lambda answer=answer: vllm.rows(answer) for answer in answers]


def sglang_rows(case: Case, geometry: rr.Geometry) -> list[Callable[[], rr.RecordedRows]]:
    meta = {
        "prompt_tokens": case["prompt_tokens"] if "prompt_tokens" in case else case["tokens"] - 1,
        "completion_tokens": case.get("completion_tokens", 1),
        "routed_experts": case["payload"],
    }
    if "advertised_dtype" in case:
        meta["routed_experts_dtype"] = case["advertised_dtype"]
    known = {"start_len": case.get("start_len", 0), "output_token_ids": list(range(meta["completion_tokens"]))}
    return [lambda answer=answer: sglang.rows(answer, geometry, **known) for answer in bodies({"meta_info": meta})]


def envelope_rows(dialect: Any) -> Adapter:
    def adapter(case: Case, _: rr.Geometry) -> list[Callable[[], rr.RecordedRows]]:
        answers = bodies({"routed_experts": case["payload"]})
        return [
            lambda a=answer: envelope.rows(a["routed_experts"], dialect=dialect, layers="all") for answer in answers
        ]

    return adapter


def geometry_of(case: Case) -> rr.Geometry:
    """Returns the geometry of a case. If the case does not state the number of layers and K, they are taken from the
    shape of its payload. Payloads have columns for dense layers, too, but these columns mean nothing."""
    payload = case["payload"]
    shape = payload.get("shape") if isinstance(payload, dict) else None
    whole = isinstance(shape, list) and len(shape) == 3 and all(type(axis) is int and axis > 0 for axis in shape[1:])
    stated = shape[1:] if whole else [1, 1]
    layers, top_k = case.get("layers", stated[0]), case.get("topk", stated[1])
    moe_layers = [layer for layer in range(layers) if layer not in case.get("dense_layers", ())]
    return rr.Geometry(layers, case["num_experts"], top_k, moe_layers)


@unittest.skipIf(ZSTD is None, "there is no libzstd to read the golden files with")
class GoldenTest(ServerTest):
    def setUp(self) -> None:
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.samples = 0

    def each(self, kind: str, adapter: Adapter) -> None:
        """All cases with a payload; cases without one test an encoder, which the client does not have."""
        count = 0
        for case in cases(kind):
            if "payload" not in case["input"]:
                continue
            count += 1
            with self.subTest(case["name"]):
                geometry = geometry_of(case["input"])
                with self.client.run(f"{self.run_name}-{geometry.fingerprint}", geometry) as run:
                    for way in adapter(case["input"], geometry):
                        self.check(way, run, case["expect"])
        self.assertGreater(count, 0, f"no case of {kind} in {DATA}")

    def check(self, way: Callable[[], rr.RecordedRows], run: rr.Run, expect: Case) -> None:
        for append in (run.append, run.put):  # The client decodes what is appended; the server decodes what is put.
            self.samples += 1
            sample = f"s/{self.samples}"
            try:
                recorded = way()
                if recorded.row_start:
                    append(sample, None, unrecorded=[(0, recorded.row_start)])
                append(sample, recorded)
                run.flush()
            except rr.InvalidArgumentError as error:
                self.check_rejection(error, expect)
                state = run.stat_many([sample])
                self.assertLessEqual(sum(one.committed_rows for one in state), expect.get("row_start", 0))
                continue
            if expect.get("error"):
                self.assertTrue(expect.get("may_accept"), "accepted, expected a rejection")
                continue
            self.assertEqual(recorded.surplus_rows, expect.get("dropped_tail_rows", 0))
            self.assertEqual(recorded.row_start, expect.get("row_start", 0))
            self.check_rows(run.read_one(sample), recorded.row_start, run.geometry, expect)

    def check_rejection(self, error: rr.InvalidArgumentError, expect: Case) -> None:
        if not expect.get("error"):
            self.assertTrue(expect.get("may_refuse"), f"refused: {error}")
            return
        self.assertIsNotNone(error.reason)
        if "reason" in expect:  # If the file gives no reason, any typed reason is accepted.
            self.assertIn(expect["reason"], REASONS.get(error.reason or "", ()), str(error))
            for name in ("row", "layer"):
                if name in expect:
                    self.assertEqual(getattr(error, name), expect[name], name)

    def check_rows(self, got: rr.SampleRows, start: int, geometry: rr.Geometry, expect: Case) -> None:
        self.assertEqual(got.status, "OK", got.message)
        expected = np.frombuffer(base64.b64decode(expect["ids_int32_le"]), "<i4").reshape(expect["shape"])
        self.assertEqual(got.committed_rows - start, expected.shape[0])
        missing = [row - start for begin, end in got.unrecorded for row in range(begin, end) if row >= start]
        self.assertEqual(missing, expect.get("rows_without_route", []))
        recorded = np.setdiff1d(np.arange(expected.shape[0]), missing)
        np.testing.assert_array_equal(got.rows, expected[recorded][:, list(geometry.moe_layers)])

    def test_vllm(self) -> None:
        self.each("codec_vllm", vllm_rows)

    def test_sglang(self) -> None:
        self.each("codec_sglang", sglang_rows)

    def test_sglang_wire_dtype(self) -> None:
        self.each("codec_sglang_wire_dtype", sglang_rows)

    def test_nemo(self) -> None:
        self.each("codec_nemo", envelope_rows("prime_rl"))

    def test_skyrl(self) -> None:
        self.each("codec_skyrl", envelope_rows("skyrl"))

    def test_primerl(self) -> None:
        self.each("codec_primerl", envelope_rows("prime_rl"))

    def test_msswift(self) -> None:
        self.each("codec_msswift", envelope_rows("ms_swift"))

    def test_primerl_cuts(self) -> None:
        """Checks that `take` keeps the same rows as the framework does when it cuts a turn. Rows that the framework
        adds as padding are not compared. Ids in these files are arbitrary bytes, so an id may occur twice in a row;
        therefore each id is stored as a layer of its own with K = 1."""
        for case in cases("codec_primerl"):
            given, expect = case["input"], case["expect"]
            if "data" not in given:
                continue
            with self.subTest(case["name"]):
                rows, layers, top_k = given["shape"]
                described = {"data": given["data"], "shape": [rows, layers * top_k, 1], "dtype": given["dtype"]}
                wanted = given.get("keep_rows", given.get("tokens", rows + given.get("pad_rows", 0)))
                recorded = dataclasses.replace(envelope.rows(described), take=(0, min(wanted, rows)))
                run = self.client.run(f"cut-{case['name']}", rr.Geometry(layers * top_k, 256, 1))
                run.put("s", recorded)
                expected = np.frombuffer(base64.b64decode(expect["data"]), np.uint8).reshape(wanted, -1)
                np.testing.assert_array_equal(run.read_one("s").rows[..., 0], expected[: min(wanted, rows)])

    def test_what_primerls_encoder_rejects(self) -> None:
        arrays = {
            "negative": np.array([[[-2]]], np.int32),
            "above-uint16": np.array([[[65536]]], np.int32),
            "two-dims": np.zeros((1, 1), np.int32),
            "float": np.zeros((1, 1, 1), np.float32),
        }
        run = self.client.run("encoder", rr.Geometry(1, 65535, 1))
        for case in cases("codec_primerl"):
            if "encoder_input" in case["input"]:
                with self.subTest(case["name"]), self.assertRaises(rr.InvalidArgumentError):
                    run.append("s", envelope.rows(arrays[case["input"]["encoder_input"]]))


if __name__ == "__main__":
    unittest.main()
