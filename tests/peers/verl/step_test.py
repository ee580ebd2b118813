"""verl's own training, from its data set to the release of the routes, with the README's three lines: `PPOTrainer.fit`
with the replay buffer, agent loops of Ray over TransferQueue, the actor's and the reference's workers and Megatron
engines.

Some answers are cut short and continued with other weights, one fails, some have no rows, some end with a tool's
answer, prompts are dispatched again, batches are filled up, and answers are validated.
"""

from __future__ import annotations

import asyncio
import os
import unittest
from collections import Counter
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from unittest import mock

import actors
import numpy as np
import ray
import rollouts
import routing_replay
import torch
import trainings
import transfer_queue
import verl
from common.support import passed
from routing_replay import errors
from routing_replay_trainer.integrations import _shared
from trainings import RUN


class Workers:
    """The actor's and the reference's workers, in this process, because verl's RayWorkerGroup requires GPUs. It keeps
    the inputs of each pass."""

    def __init__(self, config: Any) -> None:
        self._dispatch_info = {"actor": [0]}
        self.actor = actors.worker(config)
        self.reference = actors.worker(config, "ref")
        self.passes: list[SimpleNamespace] = []
        self.actor.checkpoint_engine = mock.AsyncMock()  # Accepts weights that go to no engine.
        self.actor.actor.engine.get_per_tensor_param = lambda: ((), None)

    def update_weights(self, step: int) -> None:
        asyncio.run(self.actor.update_weights(global_steps=step, mode="elsewhere"))

    def compute_log_prob(self, batch: Any) -> Any:
        return self._kept("log_prob", self.actor.actor, self.actor.compute_log_prob, batch)

    def compute_ref_log_prob(self, batch: Any) -> Any:
        return self._kept("reference", self.reference.ref, self.reference.compute_ref_log_prob, batch)

    def update_actor(self, batch: Any) -> Any:
        return self._kept("update", self.actor.actor, self.actor.update_actor, batch)

    def _kept(self, name: str, worker: Any, call: Any, batch: Any) -> Any:
        [model] = worker.engine.module
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        result = call(batch)
        self.passes.append(trainings.taken(name, model, data))
        self.passes[-1].keys = list(batch.keys)
        return result


class StepTest(trainings.Training):
    WORDS = (rollouts.INTERRUPTED, rollouts.BROKEN, 14, rollouts.UNROUTED, 16, 17, 18, 19)
    OPTIONS = (
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=3",  # With fewer than 8 trajectories, batches are filled up.
    )

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}

    def update_actor(self, step: int) -> None:
        self.workers.update_weights(step)

    def report(self, metrics: dict[str, float]) -> None:
        """Prints how many bytes of handles the batches of all passes carried, how many bytes of routes they would have
        carried instead, how many bytes were read from the service, and how many it still holds."""
        carried = sum(one.handles.nbytes for one in self.workers.passes)
        rows = sum(len(tokens) for one in self.workers.passes for tokens in one.tokens)
        routes = rows * rollouts.LAYERS * rollouts.TOP_K
        read = int(metrics["routing_replay/fetched_bytes"])
        with routing_replay.Client() as client:
            held = client.server_info().stored_bytes
        print(f"batches carried {carried} bytes of handles instead of {routes} bytes of routes and more")
        print(f"read {read} bytes; the service holds {held} bytes of samples that are not trained on yet")
        self.assertLess(carried, routes / 10)
        self.assertGreater(read, 0)

    def test_a_training(self) -> None:
        self.workers = Workers(self.config)
        trainer = self.trainer(self.workers)
        prompts, before = self.fit(trainer, 2)
        left_out = {rollouts.INTERRUPTED, rollouts.UNROUTED}
        short = {key.split("_")[0] for key, tokens in before.items() if left_out & set(tokens)}
        # The prompts in `short` are not dispatched again: the next step trains on the answers that they have.
        again = [uid for uid in prompts if uid not in short]
        before = {key: tokens for key, tokens in before.items() if key.split("_")[0] in again}

        # Simulates a resume, twice: prompts that already have answers are dispatched again, and the service cannot be
        # reached when verl clears the old answers.
        self.assertGreater(len(before), 0)
        tags = [{"is_prompt": True, "status": "running", "global_steps": 2} for _ in again]
        reissue, issued = trainer._reissue_inflight_prompts, []

        def reissued() -> None:
            away = errors.UnavailableError("away")
            for _ in range(2):
                revisions = {key: state.revision for key, state in self.samples().items()}
                transfer_queue.kv_batch_put(keys=again, partition_id="train", tags=tags)
                with (
                    mock.patch.object(_shared, "open_run", side_effect=away),
                    self.assertLogs("routing_replay_trainer", "ERROR"),
                ):
                    issued.append(reissue())
                _, now = self.held()
                for key in before:  # The sample now has the rows of the new answer, and a higher revision.
                    with routing_replay.Client() as client:
                        stored = client.run(RUN).read_one(key)
                    known = [row for row in self.rows_of(now[key])[0] if row is not None]
                    np.testing.assert_array_equal(stored.rows, known)
                    self.assertGreater(self.samples()[key].revision, revisions[key])

        trainer.global_steps = 2
        trainer.config.trainer.val_before_train = False
        with mock.patch.object(trainer, "_reissue_inflight_prompts", reissued):
            self.fit(trainer, 5)
        self.assertEqual(issued, [len(again)] * 2)

        totals: dict[str, Counter[str]] = {"log_prob": Counter(), "reference": Counter(), "update": Counter()}
        for one in self.workers.passes:
            totals[one.name] += self.compared(one)
            self.assertNotIn("routed_experts", one.columns)
            self.assertEqual(one.handles.dtype, torch.int64)
            handles = [
                0 if key.startswith("pad") or rollouts.UNROUTED in tokens else routing_replay.sample_handle(key)
                for key, tokens in zip(one.keys, one.tokens, strict=True)
            ]
            self.assertEqual(one.handles.tolist(), handles)
        for name, counts in totals.items():
            print(f"{name}: {dict(counts)}")
            for case in ("sets", "pads", "unrouted", "short", "unrecorded"):
                self.assertGreater(counts[case], 0, (name, case))
        for name in ("log_prob", "update"):
            self.assertEqual(totals[name]["equal"], totals[name]["sets"])
            self.assertLess(totals[name]["moved"], totals[name]["sets"] / 5)
        self.assertLess(totals["reference"]["equal"], totals["reference"]["sets"] / 5)

        trained = {key: tokens for one in self.workers.passes for key, tokens in zip(one.keys, one.tokens, strict=True)}
        anew = before.keys() & trained.keys()
        self.assertGreater(len(anew), 0)
        self.assertEqual([key for key in anew if trained[key] == before[key]], [])
        self.assertEqual(ray.get(self.engine.failed.remote()), 1)

        [replay] = self.integration.replays.values()
        metrics = replay.metrics()
        self.assertEqual(metrics["routing_replay/fallback_fraction"], 0)
        self.assertGreater(metrics["routing_replay/live_rows"], 0)
        self.report(metrics)
        what = f"PPOTrainer.fit over Ray and TransferQueue {version('TransferQueue')}, from data set to release"
        changed = f"{actors.CHANGED}, random answers and rewards, one process for the workers"
        passed("verl", verl.__version__, what, changed)


if __name__ == "__main__":
    unittest.main()
