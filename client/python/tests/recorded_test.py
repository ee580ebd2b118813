"""RecordedRows: what an adapter gives is appended as it says, and options win over it."""

from __future__ import annotations

import base64
import unittest

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import _core

GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4, moe_layers=[1, 2, 3])
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
TOKENS = np.arange(301, dtype=np.uint32)
WEIGHTS = (rr.WeightSpan(10, 60, 4, "four"), rr.WeightSpan(60, 61, 5), rr.WeightSpan(130, 900, 6))
SPANS = ((0, 10, -1, ""), (10, 60, 4, "four"), (60, 61, 5, ""), (61, 130, -1, ""), (130, 300, 6, ""))


class RecordedRowsTest(ServerTest):
    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run = client.run(self.run_name, GEOMETRY)  # type: ignore[method-assign,assignment]

    def check(self, sample: str, unrecorded: tuple = (), weights: tuple = SPANS) -> None:
        got = self.run.read_one(sample)
        self.assertEqual((got.status, got.num_tokens, got.unrecorded), ("OK", 301, unrecorded))
        np.testing.assert_array_equal(got.rows, np.concatenate([ROWS[b:e] for b, e in got.row_ranges]))
        self.assertEqual([(w.begin, w.end, w.version, w.label) for w in got.weights], list(weights))

    def test_every_way_in(self) -> None:
        text = base64.b64encode(np.concatenate([ROWS[:2], ROWS, ROWS[:1]]).tobytes())
        payload = rr.Payload(memoryview(text), "BASE64", dtype="I32", shape=(303, 3, 4))
        recorded = rr.RecordedRows(payload, take=(2, 302), weights=WEIGHTS, engine="e 1", tokens=TOKENS, layers="moe")
        self.run.append("a", recorded, seal=True)
        with self.run.appender(encode_blocks=False) as appender:
            appender.append("b", recorded, seal=True)
            appender.flush()
        outcome = self.run.put("c", recorded, seal=True)
        self.assertEqual((outcome.committed_rows, outcome.sealed, outcome.sample), (300, True, "c"))
        self.run.flush()
        for sample in "abc":
            self.check(sample)
            state = self.run.stat(sample)
            self.assertEqual((state.engine, state.token_check), ("e 1", rr.token_check(TOKENS[:300])))

    def test_missing_rows(self) -> None:
        self.run.append("a", rr.RecordedRows(ROWS[:100], weights=WEIGHTS[:2], tokens=TOKENS))
        self.run.append("a", rr.RecordedRows(ROWS[120:], 100, missing_rows=20, tokens=TOKENS), seal=True)
        self.run.append("b", rr.RecordedRows(None, missing_rows=300, tokens=TOKENS), seal=True)
        self.run.flush()
        self.check("a", ((100, 120),), (*SPANS[:3], (61, 300, -1, "")))
        state = self.run.stat("b")
        self.assertEqual((state.num_tokens, state.unrecorded), (301, ((0, 300),)))

    def test_options_win(self) -> None:
        recorded = rr.RecordedRows(ROWS[:150], 7, (0, 10), weights=WEIGHTS, engine="e", tokens=TOKENS)
        self.run.append("a", recorded, row_start=0, take=(0, 150), weight_version=8, tokens=None, engine="f")
        self.run.append("a", ROWS[150:], row_start=150)
        self.run.flush()
        state = self.run.stat("a")
        self.assertEqual([(w.begin, w.end, w.version) for w in state.weights], [(0, 150, 8), (150, 300, -1)])
        self.assertEqual((state.engine, state.token_check), ("f", None))

    def test_ids_and_weights(self) -> None:
        both = np.concatenate([ROWS, np.full((300, 3, 4), 0.25, np.float32).view(np.int32)], axis=2)
        payload = rr.Payload(both.tobytes(), dtype="I32", shape=both.shape, ids_and_weights=True)
        self.run.append("a", rr.RecordedRows(payload, weights=WEIGHTS), seal=True)
        self.run.put("b", payload, seal=True)
        self.run.flush()
        self.check("a")
        self.check("b", weights=((0, 300, -1, ""),))

    def test_nothing_is_stored_of_bad_weights(self) -> None:
        for weights in ([rr.WeightSpan(3, 3, 1)], [rr.WeightSpan(0, 5, 1), rr.WeightSpan(4, 6, 1)]):
            for append in (self.run.append, self.run.put):
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    append("a", ROWS, weights=weights)
                self.assertEqual(caught.exception.field, "append.weights")
        self.run.flush()
        self.assertEqual(self.run.list(), [])


class AccountTest(unittest.TestCase):
    def test_counts(self) -> None:
        claim = {"prompt_tokens": 6, "output_tokens": 4, "start": 2, "rows": 7}
        expected = {"row_start": 2, "take": [0, 7], "missing_rows": 0, "surplus_rows": 0}
        self.assertEqual(_core.account_rows(claim), expected)
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            _core.account_rows(claim | {"rows": 9})
        self.assertEqual(caught.exception.reason, "ROW_COUNT")
        with self.assertRaises(rr.InvalidArgumentError):
            _core.account_rows(claim | {"short": 1})


if __name__ == "__main__":
    unittest.main()
