"""Asks the completion of the built rrctl as shells do.

Usage: rrctl_shells_test.py SERVER RRCTL
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rrctl_test import PATIENCE, RRCTL, RrctlTest


class CompletionTest(RrctlTest):
    BASH = """
        source <("$1" completion bash)
        PATH="${1%/*}:$PATH"
        COMP_LINE="rrctl $2"; COMP_POINT=${#COMP_LINE}
        _rrctl rrctl
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def bash(self, line, **options):
        done = subprocess.run(
            ["bash", "--norc", "-c", self.BASH, "bash", RRCTL, line],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            **options,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def help_words(self, pattern, *words):
        return re.findall(pattern, self.run_rrctl(*words, "--help"), re.MULTILINE)

    def test_bash_knows_every_command_and_flag_of_the_help(self):
        commands = self.help_words(r"^  ([a-z]+)  ")
        self.assertIn("bench", commands)
        self.assertCountEqual(self.bash(""), commands)
        program = set(self.help_words(r"(--[a-z-]+)[ ,]")) & set(self.bash("--"))
        self.assertTrue({"--endpoint", "--timeout", "--write-out", "--help", "--version"} <= program)
        for command in commands:
            self.assertEqual(self.bash(command), [c for c in commands if c.startswith(command)])
            flags = set(self.help_words(r"^  (?:-\w,|--row,)?(--[a-z-]+)", command))
            self.assertLessEqual(flags | {"--endpoint", "--write-out"}, set(self.bash(f"{command} --")), command)

    def test_bash_knows_values_names_and_files(self):
        self.drop_at_end("team:a")
        self.put("team:a", "x:1/0", 3)
        self.put("team:a", "x:2/0", 3)
        self.assertEqual(self.bash("-w "), ["table", "json"])
        self.assertEqual(self.bash("ls --write-out=j"), ["json"])
        self.assertEqual(self.bash("completion f"), ["fish"])
        self.assertEqual(self.bash("ls te"), ["team:a"])
        # Bash replaces only what is behind the last colon.
        self.assertEqual(self.bash("get team:a x:"), ["1/0", "2/0"])
        self.assertEqual(self.bash("diff --run team:a x:"), ["1/0", "2/0"])
        self.assertEqual(self.bash("diff --run te"), ["team:a"])
        self.assertEqual(self.bash("diff team:a:x:"), ["1/0", "2/0"])
        self.assertEqual(self.bash("--endpoint 127.0.0.1:1 ls te"), [])
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "rows 1.npy").touch()
            self.assertEqual(" ".join(self.bash("put r s row", cwd=directory)), "rows 1.npy")

    def test_fish_and_zsh(self):
        if shutil.which("fish"):
            script = f"set -x PATH (dirname {RRCTL}) $PATH; rrctl completion fish | source; complete -C 'rrctl stat'"
            done = subprocess.run(
                ["fish", "--no-config", "-c", script], check=False, capture_output=True, text=True, timeout=PATIENCE
            )
            self.assertEqual([line.split("\t")[0] for line in done.stdout.splitlines()], ["stat", "status"])
        if shutil.which("zsh"):
            script = self.run_rrctl("completion", "zsh")
            done = subprocess.run(
                ["zsh", "-f", "-n", "/dev/stdin"],
                check=False,
                input=script,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        if not shutil.which("fish") or not shutil.which("zsh"):
            self.skipTest("there is no fish or no zsh")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
