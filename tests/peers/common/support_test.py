"""Tests which rows tests/peers/passed.txt has after a run, also if the tests of a project were missing in that run."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support


class SupportTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.rows = folder / "passed.txt"
        self.rows.write_text("slime\tcommit\tits step\tnothing\nvLLM\t1\told\tnothing\nvLLM\t1\tsame\tnothing\n")
        self.enterContext(mock.patch.object(support, "PASSED", self.rows))
        self.enterContext(mock.patch.dict(os.environ, {"RR_PEERS_PASSED": str(folder / "passed")}))

    def write(self) -> list[str]:
        with mock.patch("sys.argv", ["support.py"]), contextlib.redirect_stdout(io.StringIO()):
            support.main()
        return [" ".join(row.split("\t")[:3]) for row in self.rows.read_text().splitlines()]

    def test_what_was_skipped_is_named_and_nothing_is_written(self) -> None:
        before = self.rows.read_text()
        support.passed("vLLM", "2", "same")
        support.passed("Megatron-Core", "3", "first")
        with self.assertRaisesRegex(SystemExit, "than passed this time: slime: its step; vLLM: old. "):
            self.write()
        self.assertEqual(self.rows.read_text(), before)

    def test_rows_are_those_of_what_passed(self) -> None:
        support.passed("slime", "commit", "its step")
        support.passed("vLLM", "2", "old")
        support.passed("vLLM", "2", "same")
        support.passed("Megatron-Core", "3", "first")
        expected = ["Megatron-Core 3 first", "slime commit its step", "vLLM 2 old", "vLLM 2 same"]
        self.assertEqual(self.write(), expected)


if __name__ == "__main__":
    unittest.main()
