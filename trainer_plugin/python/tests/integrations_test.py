"""What integrations have in common, where no framework is installed; with the frameworks themselves: tests/peers."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import recipes
from routing_replay import Client, Geometry, errors, local_server

from routing_replay_trainer.integrations import _shared

FOLDER = Path(_shared.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
GEOMETRY = Geometry(num_layers=2, num_experts=8, top_k=2)


class IntegrationsTest(unittest.TestCase):
    def test_the_packages_import_no_framework(self) -> None:
        program = (
            "import sys, routing_replay_trainer, routing_replay_trainer.integrations\n"
            f"print([name for name in sys.modules if name.split('.')[0] in {['torch', 'megatron', 'ray', *NAMES]}])"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), "[]")

    def test_one_without_its_framework_names_it(self) -> None:
        self.assertGreater(len(NAMES), 1)
        for name in NAMES:
            with self.subTest(name), self.assertRaisesRegex(ImportError, f"integration needs (?i:{name})"):
                importlib.import_module(f"routing_replay_trainer.integrations.{name}")

    def test_the_readme_has_their_lines(self) -> None:
        for name in NAMES:
            lines = recipes.lines(name)
            self.assertLessEqual(len(lines), 3)
            self.assertIn(f"routing_replay_trainer.integrations.{name}", "\n".join(lines))

    def test_a_run_is_called_as_the_experiment(self) -> None:
        self.assertEqual(_shared.run_name("project", None, "first try"), "project/first-try")
        self.assertEqual(len(_shared.run_name("x" * 300)), 128)
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRAINING_RUN": "another"}):
            self.assertEqual(_shared.run_name("project"), "another")
        with self.assertRaisesRegex(errors.FailedPreconditionError, "ROUTING_REPLAY_TRAINING_RUN"):
            _shared.run_name(None, "")

    def test_what_was_never_fed_has_no_route(self) -> None:
        tokens, rows = list(range(6)), np.tile(np.array([0, 1], np.uint8), (3, 2, 1))
        with local_server(), mock.patch.dict(os.environ, {"ROUTING_REPLAY_TTL": "90"}):
            run = _shared.open_run("put", GEOMETRY)
            self.assertEqual(run.settings.ttl, 90)
            run.put("sample", **_shared.whole(rows, tokens))
            stored = Client().run("put").read_one("sample")
            self.assertEqual((stored.num_tokens, len(stored.rows)), (6, 3))
            self.assertEqual([tuple(one) for one in stored.unrecorded], [(3, 5)])
            _shared.release("put", ["sample"])
            self.assertEqual(run.list(), [])

    def test_a_release_that_fails_is_logged(self) -> None:
        away = mock.patch.object(_shared, "open_run", side_effect=errors.UnavailableError("away"))
        with away, self.assertLogs("routing_replay_trainer", "ERROR") as logged:
            _shared.release("run", [])
        self.assertIn("stay until the run's TTL", logged.output[0])


if __name__ == "__main__":
    unittest.main()
