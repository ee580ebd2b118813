"""The errors that rrctl prints for mistakes of its user; a command that fails must change nothing.

Usage: rrctl_mistakes_test.py SERVER RRCTL
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rrctl_test import PATIENCE, RRCTL, RrctlTest, npy


class MistakesTest(RrctlTest):
    def test_messages_say_what_to_do(self):
        self.drop_at_end("say")
        self.put("say", "s", 3)
        for words, code, said in (
            (["get", "say", "s", "--rows", "0:999"], 1, "0:999 is out of range: sample s has 3 rows"),
            (["ls", "a b"], 1, "got ' ' at byte 2"),
            (["status", "--timeout", "0"], 2, "(see rrctl --help)"),
            (["--endpoint", "https://a:1", "ls"], 2, "has no port of 1 to 65535"),
            (
                ["--endpoint", "127.0.0.1:1", "--timeout", "1", "ls"],
                3,
                "; run `rrctl doctor` for the cause and the fix\n",
            ),
            (["plan"], 1, "is not valid JSON: error at byte 2 of 1"),
        ):
            self.assertIn(said, self.run_rrctl(*words, code=code, stdin=b"{"), words)

    def test_a_date_that_is_none(self):
        with tempfile.TemporaryDirectory() as directory:
            words = ("--run", "a-", "--scope", "put", "--append", f"{directory}/tokens", "--out", f"{directory}/token")
            error = self.run_rrctl("token", "x", *words, "--expires", "tomorrow", code=2)
            self.assertRegex(error, r"^rrctl: INVALID_ARGUMENT \(FIELD\): --expires: 'tomorrow' must be a date")
            self.assertEqual(os.listdir(directory), [])

    def test_tokens_that_are_added_at_once_are_all_there(self):
        with tempfile.TemporaryDirectory() as directory:
            words = ("--run", "a-", "--scope", "put", "--append", f"{directory}/tokens")
            adding = [subprocess.Popen([RRCTL, "token", str(i), *words], stdout=subprocess.DEVNULL) for i in range(20)]
            self.assertEqual([each.wait(PATIENCE) for each in adding], [0] * 20)
            self.assertEqual(len(Path(directory, "tokens").read_text().splitlines()), 20)

    def test_a_file_that_is_rejected_makes_no_run(self):
        rows = npy(1, 1, 2, [3, 64])
        error = self.run_rrctl("put", "wrong", "s", "-", "--experts", "64", stdin=rows, code=1)
        self.assertIn("INVALID_ARGUMENT (ID_RANGE)", error)
        self.assertNotIn("wrong", [run["run"] for run in self.json("ls")])
        self.drop_at_end("wrong")
        self.json("put", "wrong", "s", "-", "--experts", "128", stdin=rows)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
