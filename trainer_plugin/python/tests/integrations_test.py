"""The common part of the integrations, without frameworks; tests/peers tests them with the frameworks."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import recipes
from routing_replay import Client, Geometry, errors, local_server

from routing_replay_trainer import megatron
from routing_replay_trainer.integrations import _shared

FOLDER = Path(_shared.__file__).parent
MODULES = {
    "NeMo-RL": "nemo_rl.driver",
    "SkyRL": "skyrl",
    "miles": "miles",
    "ms-swift": "ms_swift.plugin",
    "slime": "slime",
    "verl": "verl",
}
GEOMETRY = Geometry(num_layers=2, num_experts=8, top_k=2)


class IntegrationsTest(unittest.TestCase):
    def test_the_packages_import_no_framework(self) -> None:
        frameworks = ["torch", "megatron", "ray", "miles", "nemo_rl", "skyrl", "slime", "swift", "verl"]
        program = (
            "import sys, routing_replay_trainer, routing_replay_trainer.integrations\n"
            f"print([name for name in sys.modules if name.split('.')[0] in {frameworks}])"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), "[]")

    def test_one_without_its_framework_names_it(self) -> None:
        there = {path.stem for path in FOLDER.glob("[a-z]*")}
        self.assertEqual({module.split(".")[0] for module in MODULES.values()}, there)
        for name, module in MODULES.items():
            with self.subTest(name), self.assertRaisesRegex(ImportError, f"integration needs {name}"):
                importlib.import_module(f"routing_replay_trainer.integrations.{module}")

    def test_the_readme_has_their_lines(self) -> None:
        for name, module in MODULES.items():
            lines = recipes.lines(name)
            self.assertLessEqual(len(lines), 3)
            self.assertIn(f"routing_replay_trainer.integrations.{module.split('.')[0]}", "\n".join(lines))

    def test_a_run_is_called_as_the_experiment(self) -> None:
        self.assertEqual(_shared.run_name("project", None, "first try"), "project/first-try")
        self.assertEqual(len(_shared.run_name("x" * 300)), 128)
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRAINING_RUN": "another"}):
            self.assertEqual(_shared.run_name("project"), "another")
        with self.assertRaisesRegex(errors.FailedPreconditionError, "ROUTING_REPLAY_TRAINING_RUN"):
            _shared.run_name(None, "")

    def test_a_service_out_of_reach_is_waited_for_once(self) -> None:
        calls = mock.Mock(side_effect=errors.UnavailableError("no server"))
        with mock.patch.object(_shared, "_not_before", 0.0), self.assertLogs("routing_replay_trainer") as logs:
            self.assertEqual([_shared.put(f"s{i}", calls) for i in range(3)], [False] * 3)
            calls.assert_called_once()
            self.assertEqual(len(logs.output), 3)
            with mock.patch.object(_shared, "_not_before", 0.0):
                self.assertTrue(_shared.put("s3", mock.Mock()))

    def test_a_rejected_sample_does_not_stop_the_others(self) -> None:
        calls = mock.Mock(side_effect=[errors.InvalidArgumentError("rows"), None])
        with self.assertLogs("routing_replay_trainer"):
            self.assertEqual([_shared.put(f"s{i}", calls) for i in range(2)], [False, True])

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

    def test_metrics_are_told_where_they_are_asked_for(self) -> None:
        replay = mock.Mock()
        replay.metrics.return_value = {"routing_replay/replayed_rows": 3}
        for asked, told in (("", ""), ("1", '{"rank": null, "routing_replay/replayed_rows": 3}\n')):
            written = io.StringIO()
            with (
                mock.patch.dict(os.environ, {"ROUTING_REPLAY_METRICS": asked}),
                mock.patch.object(megatron, "replayed", lambda replay, schedule, describe: schedule),
                contextlib.redirect_stdout(written),
            ):
                run = _shared.replayed(replay, lambda **_: 7, lambda batch: None)
                self.assertEqual((run(forward_only=True), run(forward_only=False)), (7, 7))
            self.assertEqual(written.getvalue(), told)

    def test_a_release_that_fails_is_logged(self) -> None:
        away = mock.patch.object(_shared, "open_run", side_effect=errors.UnavailableError("away"))
        with away, self.assertLogs("routing_replay_trainer", "ERROR") as logged:
            _shared.release("run", [])
        self.assertIn("stay until the run's TTL", logged.output[0])


if __name__ == "__main__":
    unittest.main()
