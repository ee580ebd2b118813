"""Plain appends through the extension, compared with the same ones through ctypes."""

from __future__ import annotations

import logging
import signal
import sys
import unittest
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import _native
from routing_replay.types import Append

GEOMETRY = rr.Geometry(num_layers=3, num_experts=100, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 30, 3, 100, 4)

PLAIN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *((("a", ROWS.astype(dtype)), {}) for dtype in ("u1", "i1", "u2", "i2", "i4", "i8", np.longlong)),
    ((), {"sample": "a", "rows": ROWS}),
    (("a",), {"rows": ROWS, "group": -7, "num_tokens": 31}),
    (("p:1/2", ROWS), {"seal": True, "weight_version": 3, "row_start": 0}),
    (("a", ROWS), {"seal": False, "group": None, "num_tokens": None, "weight_version": None, "row_start": None}),
    (("a", ROWS), {"attempt": 2**32 - 1, "revision": 0}),
    (("a", memoryview(ROWS)), {}),
    (("a", ROWS[:0]), {}),
]
OTHERS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    ((), {"rows": ROWS}),
    (("a", None), {"seal": True}),
    (("a", ROWS.tolist()), {}),
    (("a", ROWS.tobytes()), {}),
    (("a", ROWS[0]), {}),
    (("a", ROWS[::2]), {}),
    (("a", ROWS.astype(">i4")), {}),
    (("a", ROWS.astype("u4")), {}),
    (("a", ROWS.astype("f4")), {}),
    (("a", ROWS.astype("?")), {}),
    (("a", ROWS.astype(object)), {}),
    (("\ud800", ROWS), {}),
    ((7, ROWS), {}),
    (("a", ROWS), {"group": True}),
    (("a", ROWS), {"group": np.int64(1)}),
    (("a", ROWS), {"group": 2**63}),
    (("a", ROWS), {"attempt": -1}),
    (("a", ROWS), {"attempt": 2**32}),
    (("a", ROWS), {"seal": 1}),
    (("a", ROWS), {"revision": None}),
    (("a", ROWS), {"layers": "all"}),
    (("a", ROWS), {"unknown": 1}),
    (("a", ROWS), {"sample": "b"}),
    (("a", ROWS), {"rows": ROWS}),
    (("a", ROWS, 1), {}),
]
REJECTED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a", ROWS + 100), {}),
    (("a", np.zeros_like(ROWS)), {}),
    (("a", ROWS[:, :2].copy()), {}),
    (("", ROWS), {}),
    (("a", ROWS), {"row_start": -1}),
    (("a", ROWS), {"weight_version": -2}),
]


@unittest.skipUnless(sys.implementation.name == "cpython", "has no extension")
class AppendExtensionTest(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, GEOMETRY)
        self.fast, self.slow = self.run_.appender(), self.run_.appender()

    def queue(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
        return _native.queue(self.fast.line.pointer, arguments, options)

    def test_a_plain_append_is_stored_as_through_ctypes(self) -> None:
        for number, (arguments, options) in enumerate(PLAIN, 1):
            with self.subTest(arguments=arguments[:1], **options):
                self.assertEqual(self.queue(arguments, options), number)
                fast = self.taken(self.fast)
                self.assertEqual(self.slow_append(*arguments, **options), number)
                slow = self.taken(self.slow)
                self.assertEqual(fast[0], slow[0])
                np.testing.assert_array_equal(fast[1], slow[1])

    def taken(self, appender: rr.Appender) -> tuple[rr.SampleState, np.ndarray]:
        """Returns the state and the rows of the run's only sample, and releases it."""
        appender.flush()
        state = replace(self.run_.list()[0], idle_ms=0, content_id=0)  # Samples with equal rows differ in these.
        rows = self.run_.read_one(state.sample).rows
        self.run_.release([state.sample])
        return state, rows

    def test_others_are_left_to_ctypes_and_nothing_happens(self) -> None:
        for arguments, options in OTHERS:
            with self.subTest(arguments=arguments[:1], **options):
                self.assertEqual(self.queue(arguments, options), 0)
        self.assertEqual(_native.queue(None, ("a", ROWS), {}), 0)
        self.assertEqual(self.fast.metrics()["appends"], 0)

    def test_a_rejected_append_raises_what_ctypes_raises(self) -> None:
        for arguments, options in REJECTED:
            with self.subTest(arguments=arguments[:1], **options):
                errors = []
                for append in (self.fast.append, self.slow_append):
                    with self.assertRaises(rr.InvalidArgumentError) as caught:
                        append(*arguments, **options)
                    errors.append(caught.exception)
                self.assertEqual(vars(errors[0]), vars(errors[1]))

    def slow_append(self, *arguments: Any, **options: Any) -> int:
        return self.slow.queue_one(Append(*arguments, **options))

    def test_what_is_dropped_is_logged(self) -> None:
        appender = self.run_.appender(max_queued_bytes=1, on_full="drop")
        self.server.pause()
        try:
            self.assertEqual(appender.append("a", ROWS), 1)
            with self.assertLogs("routing_replay", logging.WARNING) as logs:
                self.assertEqual(appender.append("b", ROWS), 2)
            self.assertIn("rows of sample b are dropped", logs.output[0])
        finally:
            self.server.process.send_signal(signal.SIGCONT)
        self.assertEqual(self.run_.commit("b").status, "marked")

    def test_a_free_threaded_python_does_not_load_it(self) -> None:
        with mock.patch.object(sys, "abiflags", "t"):
            queue = _native._load_queue()
        self.assertEqual(queue(self.fast.line.pointer, ("a", ROWS), {}), 0)

    def test_a_closed_appender(self) -> None:
        self.fast.close()
        with self.assertRaises(rr.RoutingReplayError):
            self.fast.append("a", ROWS)


if __name__ == "__main__":
    unittest.main()
