"""What the README says of lines that are missing, with verl's own configuration."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import actors
from common import models as small
from omegaconf import OmegaConf
from routing_replay import errors
from routing_replay_trainer.integrations import verl as integration

SETTINGS = {
    "rollout.enable_rollout_routing_replay": False,
    "model.external_lib": None,
    "model.use_remove_padding": False,
    "actor.strategy": "fsdp2",
    "actor.megatron.router_replay.mode": "R3",
    "actor.megatron.dynamic_context_parallel": True,
}


class ContractTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        small.make(actors.MODEL, self.folder)

    def test_three_lines(self) -> None:
        lines = actors.flags()
        self.assertEqual(len(lines), 3)
        integration.Manager(actors.configuration(self.folder, *lines), None)

    def test_a_line_that_is_missing(self) -> None:
        for setting, value in SETTINGS.items():
            config = actors.configuration(self.folder, *actors.flags())
            OmegaConf.update(config.actor_rollout_ref, setting, value)
            wanted = f"start with `actor_rollout_ref.{setting}="
            with self.subTest(setting), self.assertRaisesRegex(errors.FailedPreconditionError, wanted):
                integration.Manager(config, None)

    def test_a_batch_without_handles(self) -> None:
        wanted = r"start with `\+.*agent_loop_manager_class=.*Manager"
        with self.assertRaisesRegex(errors.FailedPreconditionError, wanted):
            integration._describe({"input_ids": None})


if __name__ == "__main__":
    unittest.main()
