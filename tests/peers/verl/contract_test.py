"""What the README says of lines that are missing, with verl's own configuration, and of prompts that are dispatched
again."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import actors
import numpy as np
import rollouts
import routing_replay
from common import models as small
from omegaconf import OmegaConf
from routing_replay import errors
from routing_replay_trainer.integrations import verl as integration
from support import random_routes
from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

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

    def test_the_last_dispatch_wins_whatever_the_clock_says(self) -> None:
        named = ["trainer.project_name=here", "trainer.experiment_name=again"]
        worker = object.__new__(integration.Worker)
        worker.config = actors.configuration(self.folder, *actors.flags(), *named)
        worker.model_config = SimpleNamespace(hf_config=AutoConfig.from_pretrained(self.folder))
        sizes = rollouts.LAYERS, rollouts.EXPERTS, rollouts.TOP_K
        dispatches = [random_routes(np.random.default_rng(seed), 5, *sizes).astype(np.uint8) for seed in range(3)]

        async def put(rows: np.ndarray, last: int) -> int:
            answer = AgentLoopOutput(
                prompt_ids=[1, 2], response_ids=[3, 4, 5, last], response_mask=[1] * 4, metrics=AgentLoopMetrics()
            )
            return await worker._put("uid_0_0", rows, answer, 1)

        async def all_three() -> None:
            for rows, last, now in zip(dispatches, (6, 6, 7), (1000, 1000, 900), strict=True):
                with mock.patch("time.time", lambda now=now: now):
                    handle = await put(rows, last)
                stored = await worker._run.read_one("uid_0_0")
                self.assertEqual((stored.status, stored.num_tokens, worker._run.handle("uid_0_0")), ("OK", 6, handle))
                np.testing.assert_array_equal(stored.rows, rows)

        with routing_replay.local_server(), self.assertNoLogs("routing_replay_trainer", "ERROR"):
            asyncio.run(all_three())


if __name__ == "__main__":
    unittest.main()
