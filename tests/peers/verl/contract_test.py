"""The README's statements about missing lines, with verl's own configuration, and about prompts that are dispatched
again."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
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

    def worker(self, experiment: str) -> Any:
        """Returns our worker of agent loops, which is derived from verl's, without an engine."""
        named = ["trainer.project_name=here", f"trainer.experiment_name={experiment}"]
        worker = type("Worker", (integration.Worker,), {"_opening": integration._shared.Opening()})
        worker = object.__new__(worker)
        worker.config = actors.configuration(self.folder, *actors.flags(), *named)
        worker.model_config = SimpleNamespace(hf_config=AutoConfig.from_pretrained(self.folder))
        return worker

    async def put(self, worker: Any, seed: int, last: int, key: str = "uid_0_0") -> tuple[int, np.ndarray]:
        sizes = rollouts.LAYERS, rollouts.EXPERTS, rollouts.TOP_K
        rows = random_routes(np.random.default_rng(seed), 5, *sizes).astype(np.uint8)
        answer = AgentLoopOutput(
            prompt_ids=[1, 2], response_ids=[3, 4, 5, last], response_mask=[1] * 4, metrics=AgentLoopMetrics()
        )
        return await worker._put(key, rows, answer, 1), rows

    def test_the_last_dispatch_wins_whatever_the_clock_says(self) -> None:
        worker = self.worker("again")

        async def all_three() -> None:
            for seed, (last, now) in enumerate(((6, 1000), (6, 1000), (7, 900))):
                with mock.patch("time.time", lambda now=now: now):
                    handle, rows = await self.put(worker, seed, last)
                stored = await worker._run.read_one("uid_0_0")
                self.assertEqual((stored.status, stored.num_tokens, worker._run.handle("uid_0_0")), ("OK", 6, handle))
                np.testing.assert_array_equal(stored.rows, rows)

        with routing_replay.local_server(), self.assertNoLogs("routing_replay_trainer", "ERROR"):
            asyncio.run(all_three())

    def test_dispatches_that_end_at_once(self) -> None:
        """The same prompt was dispatched several times, and the answers end at the same time. The rows of one of them
        must be stored as a whole. The other answers get the same handle."""
        worker = self.worker("at-once")

        async def both() -> None:
            ended = await asyncio.gather(*(self.put(worker, seed, 6) for seed in range(8)))
            stored = await worker._run.read_one("uid_0_0")
            self.assertEqual({handle for handle, _ in ended}, {worker._run.handle("uid_0_0")})
            self.assertEqual(sum(np.array_equal(stored.rows, rows) for _, rows in ended), 1)

        with routing_replay.local_server():
            asyncio.run(both())

    def test_a_service_that_is_away(self) -> None:
        """Without the service, answers still return, with handle 0. They wait for the service at the same time, so that
        the wait is 30 s in all, and not for each answer."""
        worker, puts = self.worker("away"), 3

        async def together() -> list[tuple[int, np.ndarray]]:
            return await asyncio.gather(*(self.put(worker, seed, 6, f"uid_{seed}_0") for seed in range(puts)))

        with (
            mock.patch.dict(os.environ, ROUTING_REPLAY_ENDPOINT="127.0.0.1:1"),
            self.assertLogs("routing_replay_trainer", "ERROR") as logs,
        ):
            begun = time.monotonic()
            self.assertEqual([handle for handle, _ in asyncio.run(together())], [0] * puts)
            self.assertLess(time.monotonic() - begun, 2 * 30)
        self.assertEqual(sum("its routes are lost" in line for line in logs.output), puts)

    def test_a_run_of_another_model(self) -> None:
        worker = self.worker("other")
        with routing_replay.local_server(), routing_replay.Client() as client:
            client.run("here/other", routing_replay.Geometry(num_layers=1, num_experts=8, top_k=2))
            with self.assertRaisesRegex(errors.FailedPreconditionError, "GEOMETRY_MISMATCH"):
                asyncio.run(self.put(worker, 0, 6))


if __name__ == "__main__":
    unittest.main()
