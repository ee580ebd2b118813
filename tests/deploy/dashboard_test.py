"""Grafana must load the dashboard, Prometheus must parse its expressions, and the trainer keys in it must exist."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
import unittest

import yaml
from expressions import dashboard, metrics, of_panels, panels, trainer_metrics
from manifests import TOOLS

ROWS = ["Overview", "Ingest", "Serve", "Store", "Trainer"]


class DashboardTest(unittest.TestCase):
    def test_it_can_be_provisioned(self):
        board = dashboard()
        self.assertEqual(board["uid"], "routing-replay")
        self.assertNotIn("id", board)
        self.assertEqual([panel["title"] for panel in board["panels"] if panel["type"] == "row"], ROWS)
        numbers = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))

    def test_the_data_source_is_chosen_in_one_place(self):
        (variable,) = [each for each in dashboard()["templating"]["list"] if each["type"] == "datasource"]
        self.assertEqual((variable["name"], variable["query"]), ("datasource", "prometheus"))
        for panel in panels():
            for holder in [panel, *panel["targets"]]:
                self.assertEqual(holder["datasource"]["uid"], "${datasource}", panel["title"])

    def test_panels_lie_side_by_side(self):
        cells = set()
        for panel in dashboard()["panels"]:
            grid = panel["gridPos"]
            self.assertLessEqual(grid["x"] + grid["w"], 24)
            xs, ys = range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])
            own = set(itertools.product(xs, ys))
            self.assertFalse(own & cells, panel["title"])
            cells |= own

    def test_every_panel_has_a_unit_and_says_what_it_shows(self):
        for panel in panels():
            self.assertTrue(panel["description"], panel["title"])
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
            self.assertTrue(panel["targets"], panel["title"])

    def test_bytes_have_an_axis_of_their_own_and_shared_stores_are_not_summed(self):
        for panel in panels():
            kinds = {"bytes" in expression for expression in of_panels([panel])}
            if len(kinds) == 2:
                units = [each["properties"][0]["value"] for each in panel["fieldConfig"]["overrides"]]
                self.assertTrue({"bytes", "Bps"} & set(units), panel["title"])
            for expression in of_panels([panel]):
                if re.search(r"routing_replay_(runs|samples|stored_bytes)\b", expression):
                    self.assertNotIn("sum(", expression, panel["title"])

    def test_prometheus_reads_the_expressions(self):
        known = {each["name"] for each in dashboard()["templating"]["list"]} | {"__rate_interval"}
        rules = []
        for number, expression in enumerate(of_panels(panels())):
            self.assertLessEqual(set(re.findall(r"\$(\w+)", expression)), known, expression)
            plain = expression.replace("$__rate_interval", "5m")
            rules.append({"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", plain)})
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            done = subprocess.run([TOOLS / "promtool", "check", "rules", file.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_trainer_panels_show_what_trainers_report(self):
        known = trainer_metrics()
        self.assertIn("routing_replay_replayed_fraction", known)
        self.assertGreater(len(known), 25)
        shown = set().union(*map(metrics, of_panels(panels("Trainer"))))
        shown = {re.sub(r"(?<=_layer)$", "_NN", name) for name in shown}
        self.assertGreater(len(shown), 10)
        self.assertLessEqual(shown, known)


if __name__ == "__main__":
    unittest.main()
