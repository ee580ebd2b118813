"""The alerts: promtool must accept them, and rules_test.yaml tests that each one fires when it should and not
otherwise."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml
from expressions import RULES, alerts
from manifests import ROOT, TOOLS
from prometheus_rule import HOMEPAGE

TRIALS = Path(__file__).with_name("rules_test.yaml")


class RulesTest(unittest.TestCase):
    def promtool(self, *command: object) -> None:
        done = subprocess.run([TOOLS / "promtool", *map(str, command)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_reads_them(self):
        self.promtool("check", "rules", RULES)
        self.promtool("check", "config", RULES.with_name("prometheus.yaml"))

    def test_they_fire_when_they_should(self):
        # The test file refers to the rules by a path relative to itself, so both are copied to one folder.
        with tempfile.TemporaryDirectory() as directory:
            for file in (RULES, TRIALS):
                shutil.copy(file, directory)
            self.promtool("test", "rules", Path(directory, TRIALS.name))

    def test_each_is_tried_both_ways(self):
        fired, quiet = set(), set()
        for trial in yaml.safe_load(TRIALS.read_text())["tests"]:
            for case in trial["alert_rule_test"]:
                (fired if case["exp_alerts"] else quiet).add(case["alertname"])
        names = {alert["alert"] for alert in alerts()}
        self.assertEqual(fired, names)
        self.assertEqual(quiet, names)

    def test_each_waits_and_says_how_bad_it_is_and_where_to_read_on(self):
        for alert in alerts():
            with self.subTest(alert["alert"]):
                self.assertIn("for", alert)
                self.assertIn(alert["labels"]["severity"], {"critical", "warning", "info"})
                file, _, section = alert["annotations"]["runbook_url"].removeprefix(f"{HOMEPAGE}/").partition("#")
                self.assertEqual(section, alert["alert"].lower())
                self.assertTrue((ROOT / file).is_file(), file)


if __name__ == "__main__":
    unittest.main()
