"""verl's own training with two data-parallel ranks: its RayWorkerGroup splits the content of TransferQueue, each rank
reads the routes of its own samples, and the samples of a step are released once, when both ranks are done."""

from __future__ import annotations

import sys
import unittest
from collections import Counter
from typing import Any, ClassVar
from unittest import mock

import actors
import ray
import rollouts
import routing_replay
import torch
import trainings
import verl
from common.support import passed
from routing_replay_trainer import ServiceSource
from routing_replay_trainer.integrations import _shared
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
)
from verl.workers.engine_workers import ActorRolloutRefWorker

RANKS, STEPS = 2, 2


class Rank(ActorRolloutRefWorker):
    """verl's worker in a process of Ray. It keeps the inputs of each pass, and the samples that it requested from the
    service."""

    def __init__(self, config: Any, role: str) -> None:
        torch.distributed.init_process_group("gloo")
        actors.install()
        super().__init__(config, role=role)
        self.passes: list[Any] = []
        self.asked: set[int] = set()
        options = ServiceSource._options

        def kept(source: Any, sequences: Any, *missing: Any) -> Any:
            self.asked |= {one.sample for one in sequences if one.sample and not one.live}
            return options(source, sequences, *missing)

        ServiceSource._options = kept

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self.checkpoint_engine = mock.AsyncMock()  # Accepts weights that go to no engine.
        self.checkpoint_engine.send_weights.return_value = {}
        self.actor.engine.get_per_tensor_param = lambda: ((), None)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: Any) -> Any:
        return self._kept("log_prob", data, super().compute_log_prob(data))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: Any) -> Any:
        return self._kept("update", data, super().update_actor(data))

    def _kept(self, name: str, data: Any, result: Any) -> Any:
        [model] = self.actor.engine.module
        self.passes.append(trainings.taken(name, model, data))
        self.passes[-1].asked, self.asked = self.asked, set()
        return result

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self) -> list[Any]:
        return self.passes

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def metrics(self) -> dict[str, float]:
        [replay] = sys.modules["routing_replay_trainer.integrations.verl"].replays.values()
        return replay.metrics()


class ReplicasTest(trainings.Training):
    WORDS: ClassVar = (rollouts.UNROUTED, *range(14, 21))
    OPTIONS: ClassVar = ("actor_rollout_ref.actor.ppo_mini_batch_size=4",)
    RANKS = RANKS

    def update_actor(self, step: int) -> None:
        ray.get(self.group.update_weights(global_steps=step, mode="elsewhere"))

    def test_two_ranks(self) -> None:
        pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=1)
        made = RayClassWithInitArgs(ray.remote(Rank), config=self.config.actor_rollout_ref, role="actor")
        workers = RayWorkerGroup(pool, create_colocated_worker_cls({"actor": made}), device_name="cpu")
        self.group = group = workers.spawn({"actor"})["actor"]
        group.init_model()
        trainer = self.trainer(group)
        released: list[tuple[list[str], list[int]]] = []
        release = _shared.release

        def kept(run: str, samples: Any) -> None:
            samples = list(samples)
            released.append((samples, [len(passes) for passes in group.look()]))
            release(run, samples)

        with mock.patch.object(_shared, "release", kept):
            self.fit(trainer, STEPS)
        ranks = group.look()
        samples = {routing_replay.sample_handle(key): key for keys, _ in released for key in keys}
        for step in range(STEPS):
            for name, place in (("log_prob", 2 * step), ("update", 2 * step + 1)):
                self.check(name, [passes[place] for passes in ranks])
            keys = [samples[handle] for passes in ranks for handle in passes[2 * step].handles.tolist() if handle]
            for key in keys:  # Each sample is released once, after both ranks have finished the passes of its step.
                self.assertEqual([through for each, through in released if key in each], [[2 * step + 2] * RANKS])
        said = group.metrics()
        self.assertEqual({metrics["routing_replay/fallback_fraction"] for metrics in said}, {0})
        passed(
            "verl",
            verl.__version__,
            "its RayWorkerGroup of two data-parallel ranks",
            f"{actors.CHANGED}, random answers and rewards",
        )

    def check(self, name: str, passes: list[Any]) -> None:
        """Checks one pass on all ranks: each rank requested only its own samples from the service, no two ranks have
        the same sample, and the routers got the recorded experts."""
        counts: Counter[str] = Counter()
        shares = []
        for one in passes:
            self.assertEqual(one.name, name)
            counts += self.compared(one)
            shares.append(set(one.handles.tolist()) - {0})
            self.assertEqual(one.asked, shares[-1])
        self.assertEqual(len(set().union(*shares)), sum(map(len, shares)))
        self.assertEqual(counts["equal"], counts["sets"])
        self.assertLess(counts["moved"], counts["sets"] / 5)
        print(f"{name}: ranks with {' and '.join(str(len(share)) for share in shares)} samples, {dict(counts)}")


if __name__ == "__main__":
    unittest.main()
