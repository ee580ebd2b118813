"""The rows of tests/peers/passed.txt, of runs in which a project may be missing."""

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

    def test_a_machine_that_can_run_none(self) -> None:
        self.assertEqual(self.write(), ["slime commit its step", "vLLM 1 old", "vLLM 1 same"])

    def test_a_machine_that_can_run_some(self) -> None:
        support.passed("vLLM", "1", "same")
        support.passed("vLLM", "2", "new")
        support.passed("Megatron-Core", "3", "first")
        expected = ["Megatron-Core 3 first", "slime commit its step", "vLLM 1 same", "vLLM 2 new"]
        self.assertEqual(self.write(), expected)


if __name__ == "__main__":
    unittest.main()
