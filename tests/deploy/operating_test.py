"""deploy/OPERATING.md: its commands must run as printed, its figures must be the measured ones, and its tables must be
complete.

Usage: operating_test.py SERVER RRCTL

Blocks marked `sh` run as one session in an empty folder and a private network, in which the text's ports are free.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import expressions

RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))
ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy/OPERATING.md").read_text()
# Root creates a network directly, other users in a user namespace of their own.
ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)[1]


class SessionTest(unittest.TestCase):
    def test_every_command_runs_as_printed(self):
        if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
            self.skipTest("a network of its own needs root, or user namespaces")
        if subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True, check=False).returncode:
            self.skipTest("there is no numpy for /usr/bin/python3 (Debian: apt-get install python3-numpy)")
        found = blocks("sh")
        self.assertGreater(len(found), 9)
        with tempfile.TemporaryDirectory() as directory:
            programs = Path(directory, "bin")
            programs.mkdir()
            for program in (SERVER, RRCTL, Path("/usr/bin/python3")):  # The Python that has Debian's numpy.
                (programs / program.name).symlink_to(program)
            work = Path(directory, "work")
            work.mkdir()
            # Each block is named in the output, and the first failure ends the session.
            script = "set -euo pipefail\nip link set lo up\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
            for number, block in enumerate(found, 1):
                script += f"echo '== block {number}'\n{block}\n"
            environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(work)}
            done = subprocess.run(
                [*ALONE, "bash", "-c", script],
                cwd=work,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=200,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(f"== block {len(found)}", done.stdout)
        self.assertIn("\nrrctl: UNAUTHENTICATED", done.stdout)


class FiguresTest(unittest.TestCase):
    def test_they_are_those_that_were_measured(self):
        measured = {}
        for name, cell in re.findall(
            r"^\| `([\w./-]+)` \| ([^|]+) \|", (ROOT / "tests/bench/README.md").read_text(), re.MULTILINE
        ):
            measured[name] = re.sub(r" \[.*?\]", "", cell).strip()
        cited = re.findall(r"^\|[^|]+\| `([\w./-]+)` \| ([^|]+) \|$", section("Sizing"), re.MULTILINE)
        self.assertGreater(len(cited), 8)
        for name, value in cited:
            self.assertEqual(value, measured.get(name), name)

    def test_bytes_of_a_token_are_layers_times_k(self):
        rows = re.findall(
            r"^\| \S+ \| (\d+), (\d+), (\d+) \| (\d+).*?\| ([\d.]+) GB \|$", section("Sizing"), re.MULTILINE
        )
        self.assertEqual(len(rows), 4)
        for row in rows:
            layers, k, experts, said = map(int, row[:4])
            bits = 8 if experts <= 256 else (experts - 1).bit_length()
            self.assertEqual(said, layers * k * bits / 8)
            self.assertAlmostEqual(float(row[4]), said * 1024 * 16384 / 1e9, delta=0.06)


class TablesTest(unittest.TestCase):
    def test_every_alert_has_its_section(self):
        sections = re.findall(r"^### (\w+)\n+(\S.*)", section("Alerts"), re.MULTILINE)
        self.assertEqual({title for title, _ in sections}, {alert["alert"] for alert in expressions.alerts()})

    def test_every_status_of_a_read_is_explained(self):
        source = (ROOT / "proto/routing_replay/v1/read.proto").read_text()
        statuses = re.search(r"enum SampleStatus \{(.*?)\}", source, re.DOTALL).group(1)
        names = set(re.findall(r"^ +(\w+) = ", statuses, re.MULTILINE)) - {
            "SAMPLE_STATUS_UNSPECIFIED",
            "OK",
            "NOT_READY",
        }
        for name in names:
            self.assertIn(f"`{name}`", section("RoutingReplayMissedReads"))

    def test_exit_statuses_are_those_of_the_server(self):
        source = (ROOT / "server/main.cc").read_text()
        known = {int(status) for status in re.findall(r"^constexpr int kExit\w+ = (\d+);", source, re.MULTILINE)}
        said = {int(status) for status in re.findall(r"^\| (\d+) \|", section("Settings"), re.MULTILINE)}
        self.assertEqual(said, known | {0, 137})
        with tempfile.TemporaryDirectory() as directory:
            endings = {
                0: ["--version"],
                2: ["--no-such-flag"],
                3: ["--listen", f"unix:{directory}/none/socket"],
                4: ["--exit-with-pid", "4194304"],
            }
            for status, flags in endings.items():
                done = subprocess.run([SERVER, *flags], capture_output=True, timeout=60, check=False)
                self.assertEqual(done.returncode, status, done.stderr)

    def test_named_files_and_settings_exist(self):
        for name in re.findall(r"`((?:deploy|tests|server|client|proto)/[\w./-]+)`", TEXT):
            self.assertTrue((ROOT / name).exists(), name)
        flags = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True).stdout
        tool = subprocess.run([RRCTL, "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"--([a-z-]+)", flags + tool))
        own = set(re.findall(r"\(Env:RR_([A-Z_]+)\)", flags))
        self.assertLessEqual(len(own - {"CONFIG"}), 24)
        for name in own:
            self.assertIn(name.lower().replace("_", "-"), TEXT)
        prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
        for flag in re.findall(r"`--([a-z-]+)", prose):
            self.assertIn(flag, known)

    def test_metrics_of_the_advice_are_those_of_alerts_and_dashboard(self):
        used = set().union(*(expressions.metrics(alert["expr"]) for alert in expressions.alerts()))
        used |= set().union(*map(expressions.metrics, expressions.of_panels(expressions.panels())))
        self.assertLessEqual(expressions.metrics(section("Alerts") + section("Troubleshooting")), used)


if __name__ == "__main__":
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("openssl", "openssl")):
        if shutil.which(program) is None:
            print(f"skipped: there is no {program} (Debian: apt-get install {package})")
            sys.exit(77)
    unittest.main()
