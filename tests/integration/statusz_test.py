"""Opens /statusz of a server with some runs in a headless Chromium, narrow and wide, light and dark, and compares the
page with /metrics.

Usage: statusz_test.py SERVER RRCTL REPORT_SCENE

STATUSZ_PICTURES=DIR keeps the pictures of the page.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from browser import Browser, find_browser

SERVER, RRCTL, SCENE = sys.argv[1:4]
PATIENCE = 120  # Seconds that the test waits for anything; a passing test needs far less.
# Metrics that change even if no client is active. All others must be equal on the page and in /metrics.
MOVING = {"process_resident_memory_bytes"}


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metrics_of(base):
    """Returns the value of each time series in /metrics, by its name with labels."""
    lines = fetch(base + "/metrics")[1].splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


class StatuszTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        file, log = Path(directory.name, "endpoint"), Path(directory.name, "log")
        words = [SERVER, "--listen", "127.0.0.1:0", "--endpoint-file", file, "--operations-listen", "127.0.0.1:0"]
        spill = Path(directory.name, "spill")
        words += ["--memory-budget", "64MiB", "--spill-directory", spill, "--spill-budget", "1GiB"]
        spill.mkdir()
        with log.open("w") as out:
            server = subprocess.Popen(words, stderr=out)
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.kill)
        wait_for(file.exists)
        wait_for(lambda: '"started"' in log.read_text())
        started = json.loads(log.read_text().splitlines()[0])
        cls.base = re.search(r"http://[0-9.:]+", started["message"])[0]
        endpoint = os.environ["ROUTING_REPLAY_ENDPOINT"] = file.read_text().strip()
        for run, groups in (("grpo-42/long-name-of-an-experiment_with-hyper-parameters.v3", 12), ("dpo-7", 6)):
            subprocess.run([SCENE, endpoint, run, str(groups), "60"], check=True, timeout=PATIENCE)
        for _ in range(3):  # Rejected.
            subprocess.run([RRCTL, "stat", "nobody", "nothing"], capture_output=True, timeout=PATIENCE)

    def test_the_page_and_metrics_say_the_same(self):
        with Browser() as browser:
            page = browser.open(self.base + "/statusz")
            shown = page.evaluate(
                "JSON.stringify([...document.querySelectorAll('[data-metric]')]"
                ".map(e => [e.dataset.metric, e.dataset.value]))"
            )
        metrics = metrics_of(self.base)
        compared = 0
        for name, value in json.loads(shown):
            if name not in MOVING:
                self.assertEqual(float(value), float(metrics[name]), name)
            self.assertNotEqual(value, "", name)
            compared += name not in MOVING
        self.assertGreaterEqual(compared, 6)
        self.assertGreater(float(metrics["routing_replay_samples"]), 0)

    def test_runs_are_those_of_the_status(self):
        runs = json.loads(fetch(self.base + "/api/v1/status")[1])["runs"]
        with Browser() as browser:
            page = browser.open(self.base + "/statusz")
            rows = page.evaluate(
                "JSON.stringify([...document.querySelectorAll('#runs tbody tr')].map("
                "r => [r.dataset.run, ...[...r.cells].slice(1, 4).map(c => c.innerText)]))"
            )
        shown = {run: [int(count.replace(",", "")) for count in counts] for run, *counts in json.loads(rows)}
        expected = {run["run"]: [run["samples"], run["sealed_samples"], run["committed_rows"]] for run in runs}
        self.assertEqual(shown, expected)
        self.assertEqual(len(expected), 2)
        samples = sum(run["samples"] for run in runs)
        self.assertEqual(samples, float(metrics_of(self.base)["routing_replay_samples"]))

    def test_it_is_one_calm_page_at_every_width(self):
        pictures = os.environ.get("STATUSZ_PICTURES")
        with Browser() as browser:
            for width in (360, 1600):
                for dark in (False, True):
                    page = browser.open(self.base + "/statusz", width=width, dark=dark)
                    self.assertEqual(page.errors, [])
                    asked = [url for url in page.requests if not url.startswith("data:")]
                    self.assertEqual(asked, [self.base + "/statusz"])
                    self.assertEqual(page.evaluate("document.scripts.length"), 0)
                    self.assertEqual(page.evaluate("document.getElementById('state').innerText"), "ready")
                    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                    self.assertLessEqual(overflow, 0, f"at {width} pixels the page is too wide")
                    if pictures:
                        page.screenshot(f"{pictures}/statusz-{width}-{'dark' if dark else 'light'}.png")


if __name__ == "__main__":
    if find_browser() is None:
        print("skipped: there is no Chromium (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
