"""deploy/systemd: systemd must accept the unit, which is not started, and the server must accept its settings.

Usage: systemd_test.py SERVER
"""

import configparser
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SERVER = Path(sys.argv.pop()).resolve()
SYSTEMD = Path(__file__).resolve().parents[2] / "deploy/systemd"
UNIT = SYSTEMD / "routing-replay-server.service"
SKIPPED = 77


class SystemdTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.unit = self.directory / UNIT.name
        self.unit.write_text(UNIT.read_text().replace("/usr/bin/routing-replay-server", str(SERVER)))

    def test_systemd_reads_it(self):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", self.unit], capture_output=True, text=True, check=False
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_it_may_do_little(self):
        done = subprocess.run(
            ["systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=20", self.unit],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_it_has_time_to_drain_and_leaves_wrong_settings_alone(self):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(UNIT)
        printed = subprocess.run([SERVER, "--print-config"], capture_output=True, text=True, check=True).stdout
        drain = sum(int(value) for value in re.findall(r"^drain-\w+: (\d+)s$", printed, re.MULTILINE))
        self.assertGreaterEqual(int(unit["Service"]["TimeoutStopSec"]), drain + 15)
        wrong = subprocess.run([SERVER, "--no-such-flag"], capture_output=True, check=False).returncode
        self.assertEqual(int(unit["Service"]["RestartPreventExitStatus"]), wrong)

    def test_its_user_is_one_that_files_can_be_given_to(self):
        (user,) = re.findall(r"^User=(.*)$", UNIT.read_text(), re.MULTILINE)
        self.assertNotIn("DynamicUser", UNIT.read_text())
        if shutil.which("systemd-sysusers") is None:
            self.skipTest("there is no systemd-sysusers (Debian: apt-get install systemd)")
        (self.directory / "etc").mkdir()
        command = ["systemd-sysusers", f"--root={self.directory}", SYSTEMD / "routing-replay-server.conf"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for file in ("passwd", "group"):
            self.assertIn(f"\n{user}:", "\n" + (self.directory / "etc" / file).read_text())

    def test_the_server_takes_its_settings(self):
        command = [SERVER, "--config", SYSTEMD / "server.yaml", "--check-config"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    if shutil.which("systemd-analyze") is None:
        print("skipped: there is no systemd-analyze (Debian: apt-get install systemd)")
        sys.exit(SKIPPED)
    unittest.main()
