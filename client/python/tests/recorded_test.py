"""RecordedRows are appended as the adapter describes them; weights, tokens and engine of the call have precedence."""

from __future__ import annotations

import base64
import unittest

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay.engines import _forms

GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4, moe_layers=[1, 2, 3])
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
TOKENS = np.arange(301, dtype=np.uint32)
WEIGHTS = (rr.WeightSpan(10, 60, 4, "four"), rr.WeightSpan(60, 61, 5), rr.WeightSpan(130, 300, 6))
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
        with self.run.appender() as appender:
            appender.append_many([rr.Append("b", recorded, seal=True)])
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
        first = rr.RecordedRows(ROWS[:150], weights=WEIGHTS[:2], engine="e", tokens=TOKENS)
        for recorded, row_start in ((first, 0), (rr.RecordedRows(ROWS[150:], 150), 150)):
            for option in ({"row_start": row_start}, {"take": (0, 10)}, {"layers": "moe"}, {"unrecorded": [(0, 1)]}):
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    self.run.append("a", recorded, **option)
                self.assertEqual(caught.exception.field, f"append.{next(iter(option))}")
            for option in ({"start": row_start}, {"take": (0, 10)}, {"layers": "moe"}):
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    self.run.trajectory("t").add(recorded, tokens=TOKENS, **option)
                self.assertEqual(caught.exception.field, next(iter(option)))
            weights = {"weight_version": 8, "tokens": TOKENS[:150], "engine": "f"} if row_start == 0 else {}
            self.run.append("a", recorded, **weights)
        self.run.flush()
        state = self.run.stat("a")
        self.assertEqual([(w.begin, w.end, w.version) for w in state.weights], [(0, 150, 8), (150, 300, -1)])
        self.assertEqual((state.engine, state.token_check), ("f", None))

    def test_nothing_is_stored_of_bad_weights(self) -> None:
        for weights in (
            [rr.WeightSpan(3, 3, 1)],
            [rr.WeightSpan(0, 5, 1), rr.WeightSpan(4, 6, 1)],
            [rr.WeightSpan(400, 405, 1)],
            [rr.WeightSpan(0, 5, 1), rr.WeightSpan(299, 301, 1)],
            [rr.WeightSpan(0, 5, "1")],
            [rr.WeightSpan(0, 5, 2**63)],
            [(0, 5, 1)],
            5,
            "text",
        ):
            for append in (self.run.append, self.run.put):
                for options in ({"rows": ROWS, "weights": weights}, {"rows": rr.RecordedRows(ROWS, weights=weights)}):
                    with self.assertRaises(rr.InvalidArgumentError) as caught:
                        append("a", **options)
                    self.assertEqual(caught.exception.field, "append.weights")
            for recorded in (ROWS, rr.RecordedRows(ROWS)):
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    self.run.trajectory("a").add(recorded, tokens=TOKENS, weights=weights)
                self.assertIn(caught.exception.field, ("weights", "append.weights"))
        for row_start in (1, 6):
            with self.assertRaises(rr.InvalidArgumentError) as caught:
                self.run.put("a", ROWS[:5], row_start=row_start, weights=[rr.WeightSpan(0, 5, 7)])
            self.assertIn(f"[0, 5) of version 7 must be inside [{row_start}, ", str(caught.exception))
        self.run.flush()
        self.assertEqual(self.run.list(), [])

    def test_odd_records(self) -> None:
        for recorded in (
            rr.RecordedRows(ROWS, missing_rows="1"),  # type: ignore[arg-type]
            rr.RecordedRows(ROWS, row_start="1"),  # type: ignore[arg-type]
            rr.RecordedRows(ROWS, take=3),  # type: ignore[arg-type]
        ):
            for add in (self.run.append, self.run.put, self.run.trajectory("t").add):
                with self.assertRaises(rr.InvalidArgumentError):
                    add(*(() if add.__name__ == "add" else ("a",)), recorded)


class AccountTest(unittest.TestCase):
    def test_counts(self) -> None:
        tokens = _forms.Tokens(None, None, 6, 4)
        found = _forms.account(np.zeros((7, 1, 1), np.uint8), tokens, 2)
        self.assertEqual((found.row_start, found.take, found.missing_rows, found.surplus_rows), (2, (0, 7), 0, 0))
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            _forms.account(np.zeros((9, 1, 1), np.uint8), tokens, 2)
        self.assertEqual(caught.exception.reason, "ROW_COUNT")


if __name__ == "__main__":
    unittest.main()
