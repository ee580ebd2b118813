"""Runs `rrctl report` on a run with realistic routes, compares its figures with `rrctl stat`, `ls` and `get`, and opens
it in a headless Chromium.

Usage: report_test.py SERVER RRCTL REPORT_SCENE [CLASS]

REPORT_PICTURES=DIR keeps the pictures of the page.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from browser import Browser, find_browser

SERVER, RRCTL, SCENE = sys.argv[1:4]
PATIENCE = 120  # Seconds that the test waits for anything; a passing test needs far less.


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = Path(directory.name)
        file = cls.directory / "endpoint"
        server = subprocess.Popen([SERVER, "--listen", "127.0.0.1:0", "--endpoint-file", file])
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.kill)
        deadline = time.monotonic() + PATIENCE
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.environ["ROUTING_REPLAY_ENDPOINT"] = file.read_text().strip()
        endpoint = os.environ["ROUTING_REPLAY_ENDPOINT"]
        subprocess.run([SCENE, endpoint, "grpo-42", "72", "90"], check=True, timeout=PATIENCE)
        cls.page = cls.directory / "report.html"
        cls.answer = cls.rrctl("report", "grpo-42", "-o", cls.page, "--samples", "40")
        cls.data = cls.data_of(cls.page)

    @staticmethod
    def rrctl(*words):
        done = subprocess.run([RRCTL, *words], check=True, capture_output=True, timeout=PATIENCE)
        return json.loads(done.stdout)

    @staticmethod
    def data_of(page):
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
        return json.loads(data)


class FiguresTest(ReportTest):
    def test_the_answer_says_what_was_read(self):
        self.assertEqual(
            (self.answer["samples"], self.answer["read_samples"], self.answer["damaged_samples"]), (72, 40, 0)
        )
        self.assertEqual(self.answer["file_bytes"], self.page.stat().st_size)

    def test_the_run_is_that_of_stat(self):
        stat = self.rrctl("stat", "grpo-42")
        self.assertEqual(self.data["run"], stat)

    def test_groups_are_those_of_ls(self):
        samples = self.rrctl("ls", "grpo-42")
        for group in self.data["groups"]:
            mine = [s for s in samples if group["begin"] <= s["group"] < group["end"]]
            self.assertEqual(group["samples"], len(mine))
            self.assertEqual(group["rows"], sum(s["rows"] for s in mine))
            self.assertEqual(group["unrecorded_rows"], sum(s["unrecorded_rows"] for s in mine))

    def test_load_is_that_of_get(self):
        """Compares the report on samples that are read as a whole with the rows that `rrctl get` prints."""
        page = self.directory / "whole.html"
        self.rrctl("report", "grpo-42", "-o", page, "--samples", "1000")
        rows = 0
        counts = collections.Counter()
        by_group = collections.defaultdict(collections.Counter)
        for sample in self.rrctl("ls", "grpo-42"):
            for row in self.rrctl("get", "grpo-42", sample["sample"], "--layer", "30"):
                experts = row["experts"] and set(row["experts"])
                rows += experts is not None
                counts.update(experts or ())
                by_group[sample["group"]].update(experts or ())
        load = self.data_of(page)["load"][30]
        self.assertEqual((load["rows"], load["counts"]), (rows, [counts[expert] for expert in range(128)]))
        for group in self.data_of(page)["groups"]:
            chosen = sum((by_group[i] for i in range(group["begin"], group["end"])), collections.Counter())
            self.assertAlmostEqual(group["layers"][30]["max_to_mean"], max(chosen.values()) * 128 / chosen.total())

    def test_the_mismatch_is_that_of_diff(self):
        everything = self.directory / "everything.html"
        self.rrctl("report", "grpo-42", "-o", everything, "--samples", "1000")
        data = self.data_of(everything)
        totals = dict.fromkeys(("order_only", "other_experts"), 0)
        recorded = [s["sample"] for s in self.rrctl("ls", "grpo-42", "--trainer")]
        for sample in recorded:
            words = [RRCTL, "-w", "json", "diff", f"grpo-42:{sample}"]
            found = json.loads(subprocess.run(words, check=False, capture_output=True, timeout=PATIENCE).stdout)
            for key in totals:
                totals[key] += found[key]
        self.assertEqual(data["mismatch"]["samples"], len(recorded))
        for key, total in totals.items():
            self.assertEqual(sum(layer[key] for layer in data["mismatch"]["layers"]), total, key)
        self.assertGreater(totals["other_experts"], 0)

    def test_failures(self):
        for words, code in ((["nonesuch"], 1), (["grpo-42", "-o", "/nonesuch/x.html"], 1), ([], 2)):
            failed = subprocess.run([RRCTL, "report", *words], check=False, capture_output=True, timeout=PATIENCE)
            self.assertEqual(failed.returncode, code, failed.stderr)


class BrowserTest(ReportTest):
    def setUp(self):
        pictures = os.environ.get("REPORT_PICTURES")
        self.pictures = Path(pictures) if pictures else self.directory
        self.browser = self.enterContext(Browser())

    def open(self, path, **options):
        page = self.browser.open(path.as_uri(), **options)
        self.assertEqual(page.errors, [])
        self.assertEqual([url for url in page.requests if not url.startswith("data:")], [path.as_uri()])
        return page

    def test_every_width_and_scheme(self):
        for width in (360, 820, 1600):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    page = self.open(self.page, width=width, dark=dark)
                    self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                    # Nothing overflows its card, and every picture has room.
                    plots = "[...document.querySelectorAll('.plot')].map(p => [p.clientWidth, p.clientHeight])"
                    for size in page.evaluate(plots):
                        self.assertGreaterEqual(size, [150, 80])
                    page.screenshot(self.pictures / f"report-{width}-{'dark' if dark else 'light'}.png")

    def test_labels_do_not_meet(self):
        overlaps = """(() => {
          const met = [];
          for (const axis of document.querySelectorAll('.x, .y')) {
            const boxes = [...axis.querySelectorAll('span')].map(s => [s.textContent, s.getBoundingClientRect()])
              .filter(([, box]) => box.width > 0);
            for (let i = 0; i < boxes.length; ++i) for (let j = 0; j < i; ++j) {
              const [a, b] = [boxes[i][1], boxes[j][1]];
              if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
                met.push(boxes[i][0] + ' and ' + boxes[j][0]);
            }
          }
          return met;
        })()"""
        for width in (360, 1600):
            self.assertEqual(self.open(self.page, width=width).evaluate(overlaps), [])

    def test_the_pointer_tells_what_a_cell_is(self):
        page = self.open(self.page, width=1200)
        told = """(() => {
          const plot = document.querySelector(`[data-tell=%s]`);
          plot.scrollIntoView({block: 'center'});
          const box = plot.getBoundingClientRect();
          const at = { clientX: box.left + box.width * %f, clientY: box.top + box.height * %f, bubbles: true };
          plot.dispatchEvent(new PointerEvent('pointermove', at));
          return document.getElementById('tip').textContent;
        })()"""
        counts = self.data["load"][3]["counts"]
        text = page.evaluate(told % ("load", 17.5 / 128, 3.5 / 48))
        self.assertEqual(text.split(" choices")[0], f"expert 17, layer 3\n{counts[17]:,}")
        for tell in page.evaluate("[...document.querySelectorAll('[data-tell]')].map(plot => plot.dataset.tell)"):
            self.assertTrue(page.evaluate(told % (tell, 0.5, 0.5)), tell)
        self.assertEqual(page.errors, [])

    def test_words_and_tables_tell_the_figures(self):
        page = self.open(self.page, width=1200)
        stat = self.rrctl("stat", "grpo-42")
        shown = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('td[data-key]')]"
            ".map(td => [td.dataset.key, td.textContent]))"
        )
        for key in ("run", "samples", "sealed_samples", "rows", "num_experts", "block_rows", "codec"):
            self.assertEqual(shown[key], str(stat.get(key, stat["geometry"].get(key))), key)
        rows = page.evaluate(
            "[...document.querySelectorAll('#layers tbody tr')].map(tr => [...tr.cells].map(td => td.textContent))"
        )
        self.assertEqual(len(rows), len(self.data["load"]))
        for row, layer in zip(rows, self.data["load"], strict=True):
            load = [f"{layer['busiest_count']:,}", f"{layer['max_to_mean']:.3f}", f"{layer['entropy']:.3f}"]
            self.assertEqual(row[4:7], load)
        self.assertIn("40 samples that were read, of 72", page.evaluate("document.getElementById('load').textContent"))
        everything = self.directory / "all.html"
        self.rrctl("report", "grpo-42", "-o", everything, "--samples", "1000")
        footer = self.open(everything).evaluate("document.querySelector('footer').textContent")
        self.assertEqual(footer, "The rows of all samples were read.")


if __name__ == "__main__":
    if "BrowserTest" in sys.argv and find_browser() is None:
        print("there is no chromium (Debian: chromium)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
