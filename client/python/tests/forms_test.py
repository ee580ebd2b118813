"""The parts of routing_replay.engines that need no server: forms of ids, counts of rows, weights of output tokens."""

from __future__ import annotations

import base64
import itertools
import random
import unittest
from typing import Any

import numpy as np

import routing_replay as rr
from routing_replay.engines import _forms, envelope


def counted(prompt: int, output: int) -> _forms.Tokens:
    return _forms.Tokens(None, None, prompt, output)


class Case(unittest.TestCase):
    def rejected(self, reason: str, call: Any, text: str = "") -> None:
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            call()
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        self.assertIn(text, str(caught.exception))


class Nrlre1Test(Case):
    def test_head_and_data(self) -> None:
        payload = envelope.rows("nrlre1:int16:3x2x4:CAAX:AA0").rows
        self.assertEqual((payload.encoding, payload.dtype, payload.shape), ("BASE64", "I16", [3, 2, 4]))
        self.assertEqual(bytes(payload.data), b"CAAX:AA0")
        self.assertEqual(bytes(envelope.rows("nrlre1:int8:0x2x2:").rows.data), b"")

    def test_other_texts(self) -> None:
        for text in ("nrlre1:int8:1x1x1", f"nrlre1:int8:{'0' * 200}1x1x1:AA=="):
            self.rejected("ENCODING", lambda text=text: envelope.rows(text))
        for dtype in ("uint8", "int64", "float32", "", "int8 "):
            self.rejected("DTYPE", lambda dtype=dtype: envelope.rows(f"nrlre1:{dtype}:1x1x1:AA=="))
        for axes in ("1x1", "1x1x1x1", "", "-1x1x1", "+1x1x1", " 1x1x1", "1xx1", "1x1x1 ", "0x1x" + "9" * 20, "1X1x1"):
            self.rejected("SHAPE", lambda axes=axes: envelope.rows(f"nrlre1:int8:{axes}:AA=="))


class ObjectTest(Case):
    def test_dialects(self) -> None:
        described = {"data": "", "shape": [5, 4, 8]}
        payload, start = _forms.object_payload(described | {"start": 3}, "prime_rl", "x")
        self.assertEqual((payload.dtype, payload.shape, start), ("U8", [5, 4, 8], 3))
        for dialect, more, reason in (
            ("prime_rl", {"dtype": "int64", "more": 1}, ""),
            ("skyrl", {}, "DTYPE"),
            ("skyrl", {"dtype": "uint16"}, "DTYPE"),
            ("skyrl", {"dtype": "int16"}, ""),
            ("ms_swift", {"dtype": "uint8"}, "FIELD"),
            ("ms_swift", {"dtype": "uint16", "__ndarray__": True}, ""),
            ("another", {"dtype": "uint8"}, "FIELD"),
        ):
            with self.subTest(dialect=dialect, more=more):
                opened = lambda: _forms.object_payload(described | more, dialect, "x")  # noqa: B023, E731
                if reason:
                    self.rejected(reason, opened)
                else:
                    self.assertEqual(opened()[0].shape, [5, 4, 8])

    def test_shapes_and_starts(self) -> None:
        for shape in ([5, 4], [5, True, 4], [5.0, 2, 2], [-1, 2, 2], "5x4x8", None, [4194305, 1, 1], {1: 2}):
            value = {"data": "", "dtype": "uint8", "shape": shape}
            self.rejected("SHAPE", lambda value=value: _forms.object_payload(value, "prime_rl", "x"))
        for start in (-1, "3", 1.5, True, 4194305):
            value = {"data": "", "dtype": "uint8", "shape": [1, 1, 1], "start": start}
            self.rejected(
                "FIELD", lambda value=value: _forms.object_payload(value, "prime_rl", "x"), "append.row_start"
            )

    def test_the_narrowest_dtype_follows_the_largest_id(self) -> None:
        for name, ids, reason in (
            ("uint8", [0, 255], ""),
            ("uint8", [], ""),
            ("int16", [0, 256], ""),
            ("int32", [32768], ""),
            ("int16", [255], "DTYPE"),
            ("int32", [32767], "DTYPE"),
            ("int16", [300, -1], "ID_RANGE"),
        ):
            data = base64.b64encode(np.array(ids, name).tobytes())
            value = {"data": data, "shape": [len(ids), 1, 1], "dtype": name}
            if reason:
                self.rejected(reason, lambda value=value: envelope.rows(value, dialect="skyrl"))
            else:
                envelope.rows(value, dialect="skyrl")

    def test_flat_rows_are_counted_by_length(self) -> None:
        for dtype, rows, more in itertools.product(("u1", "i2", "i4", "i8"), range(9), (b"", b"\1")):
            element = np.dtype(dtype).itemsize
            raw = bytes(rows * 5 * element) + more
            kind = {"u1": "U8", "i2": "I16", "i4": "I32", "i8": "I64"}[dtype]
            for payload in (
                rr.Payload(raw, "RAW", dtype=kind),
                rr.Payload(base64.b64encode(raw), "BASE64", dtype=kind),
            ):
                if more:
                    reason = "LENGTH" if element == 1 else "ENCODING"
                    self.rejected(reason, lambda payload=payload: _forms._flat(payload, (5, 1), "ids"))
                else:
                    self.assertEqual(_forms._flat(payload, (5, 1), "ids").shape, [rows, 5, 1])
        self.rejected("LENGTH", lambda: _forms._flat(rr.Payload(bytes(24), "RAW", dtype="I32"), (5, 1), "ids"))
        self.rejected("ENCODING", lambda: _forms._flat(rr.Payload(b"abc", "BASE64", dtype="U8"), (1, 1), "ids"))


class AccountTest(Case):
    def test_slots_are_the_last_rows_that_were_asked_for(self) -> None:
        """Tries every small combination of prompt length, output length, start row and number of delivered rows, and
        compares the result with a list of the rows that the engine must deliver from the start row on."""
        for prompt, output in itertools.product(range(6), range(5)):
            fed = list(range(max(0, prompt + output - 1)))  # Positions whose token was fed to the model.
            for start, rows in itertools.product(range(prompt + 1), range(13)):
                asked = fed[start:]
                claim = np.zeros((rows, 1, 1)), counted(prompt, output), start
                surplus = rows > 0 and start + rows == prompt + output and start != 1
                if rows != len(asked) and not surplus:
                    self.rejected("ROW_COUNT", lambda claim=claim: _forms.account(*claim))
                    continue
                found = _forms.account(*claim)
                self.assertEqual((found.surplus_rows, found.missing_rows), (int(surplus), 0))
                self.assertEqual((found.row_start, found.take), (start, (0, rows - found.surplus_rows)))
                self.assertEqual(list(range(start, start + rows - found.surplus_rows)), asked)
            for start in range(prompt + 1):
                found = _forms.account(None, counted(prompt, output), start)
                self.assertEqual((found.row_start, found.missing_rows, found.take), (start, len(fed[start:]), None))

    def test_an_ignored_start(self) -> None:
        for rows in (9, 10):
            claim = np.zeros((rows, 1, 1)), counted(6, 4), 3
            self.rejected("ROW_COUNT", lambda claim=claim: _forms.account(*claim), ", expected")
        # One row too many was delivered for start row 1. Either the tensor ends with a row of the last token, or it
        # begins with row 0. Nothing tells which, so it is rejected.
        claim = np.zeros((9, 1, 1)), counted(6, 4), 1
        self.rejected("ROW_COUNT", lambda: _forms.account(*claim), "from row 1 on, expected")

    def test_counts_out_of_range(self) -> None:
        for prompt, output, start in ((-1, 4, 0), (4, -1, 0), (4, 4, -1), (4, 4, 5), (2**63 - 1, 2**63 - 1, 0)):
            claim = np.zeros((2, 1, 1)), counted(prompt, output), start
            self.rejected("FIELD", lambda claim=claim: _forms.account(*claim))


class OutputWeightsTest(Case):
    def weights(self, spans: list[tuple[Any, int, int]], prompt: int, output: int, start: int = 0) -> Any:
        given = [{"version": version, "start": begin, "end": end} for version, begin, end in spans]
        return _forms.output_weights(given, counted(prompt, output), start)

    def test_numbers_of_versions(self) -> None:
        for text, number in (("0", 0), ("17", 17), (str(2**63 - 1), 2**63 - 1)):
            self.assertEqual(self.weights([(text, 0, 1)], 1, 1 + 1)[0].version, number)
        for text in ("", str(2**63), "-1", "+1", " 1", "1.7", "0x3", "step-3", "\u0661"):
            span = self.weights([(text, 0, 1)], 1, 1 + 1)[0]
            self.assertEqual((span.version, span.label), (-1, text))

    def test_rows_have_the_version_of_the_token_they_sampled(self) -> None:
        chance = random.Random(7)
        for _ in range(1000):
            prompt, output = chance.randint(1, 6), chance.randint(1, 7)
            start = chance.randint(0, prompt)
            version_of, spans = [-1] * output, []
            token = chance.randint(0, 1)
            while token < output:
                end = min(output, token + chance.randint(0, 2))
                spans.append((len(spans), token, end))
                version_of[token:end] = [len(spans) - 1] * (end - token)
                token = end + chance.randint(0, 1)
            found = [-1] * (prompt + output)
            last = start
            for span in self.weights(spans, prompt, output, start):
                self.assertGreaterEqual(span.begin, last)
                self.assertGreater(span.end, span.begin)
                found[span.begin : span.end] = [span.version] * (span.end - span.begin)
                last = span.end
            expected = [-1] * (prompt + output)
            for row in range(start, prompt - 1 + output):
                expected[row] = version_of[max(0, row - (prompt - 1))]
            self.assertEqual(found, expected)

    def test_an_answer_without_output_has_the_rows_of_its_prompt(self) -> None:
        self.assertEqual(self.weights([("five", 0, 0)], 4, 0, 1), (rr.WeightSpan(1, 3, -1, "five"),))

    def test_spans_out_of_order_are_named(self) -> None:
        for spans in ([(0, 0, 5)], [(0, 0, 2), (1, 1, 3)], [(0, 2, 1)], [(0, -1, 2)], [(0, 0, 1), (1, 3, 9)]):
            self.rejected("FIELD", lambda spans=spans: self.weights(spans, 3, 4), "weight_versions")


if __name__ == "__main__":
    unittest.main()
