"""Compares verl's own R3 (routes in the batch) with the README's three lines (routes in the service). The experts of
every recorded row must be equal, and the gradients equal to the last bit. Also tests two cases in which the routers
must choose by themselves: a critic, and trajectories whose rows are lost."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import actors
import numpy as np
import rollouts
import routing_replay
import torch
import verl
from common import models as small
from common.ranks import on_ranks
from common.support import passed
from support import Server, random_routes
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

SAMPLES = 22  # So many that one lost sample is less than 5 % of a step, which is the share that may fall back.
# The places of two lost trajectories: for UNRECORDED the engine gave no rows, for LOST the service lost the sample.
UNRECORDED, LOST = 3, 7
RUN = "grpo-42"
ADAPTED = ["actor_rollout_ref.model.lora.rank=4"]
FULL = [f"++actor_rollout_ref.actor.megatron.override_transformer_config.{x}" for x in (
    "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")]  # fmt: skip
# For each layout: the number of ranks of context parallelism, the limit of tokens that a micro-batch may have on each
# rank, and further options.
LAYOUTS = {
    "one rank": (1, 200, []),
    "one rank, full recompute": (1, 64, FULL),
    "two ranks of context parallelism": (2, 32, []),
    "two ranks of context parallelism, full recompute": (2, 100, FULL),
    "the reference is the actor without its adapter": (1, 150, ADAPTED),
}


class Rollout:
    """Samples whose tokens are all different, so that a token identifies its row."""

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        lengths = random.integers(6, 30, SAMPLES)
        ids = 3 + random.permutation(rollouts.VOCABULARY - 3)[: lengths.sum()]
        self.tokens = np.split(ids, np.cumsum(lengths)[:-1])
        self.routes = [random_routes(random, n - 1, rollouts.LAYERS, rollouts.EXPERTS, rollouts.TOP_K) for n in lengths]
        self.keys = [f"uid{i}_0_0" for i in range(SAMPLES)]
        self.handles = [routing_replay.sample_handle(key) for key in self.keys]
        self.rows = {
            int(token): row
            for tokens, rows in zip(self.tokens, self.routes, strict=True)
            for token, row in zip(tokens, rows, strict=False)
        }

    def batch(self, carried: str) -> Any:
        """Returns a batch in the form of TransferQueue. carried: the column that it gets: "routed_experts" (routes) or
        "routing_handle" (handles)"""
        fields = []
        for i, (handle, ids, rows) in enumerate(zip(self.handles, self.tokens, self.routes, strict=True)):
            tokens = torch.tensor(ids)
            prompts, responses = tokens[: 2 + i % 3], tokens[2 + i % 3 :]
            fields.append(
                {
                    "input_ids": tokens,
                    "position_ids": torch.arange(len(tokens)),
                    "prompts": prompts,
                    "responses": responses,
                    "response_mask": torch.ones_like(responses),
                    "loss_mask": torch.ones_like(responses),
                    "old_log_probs": torch.full((len(responses),), -math.log(rollouts.VOCABULARY)),
                    "advantages": torch.linspace(-1, 1, len(responses)),
                    "values": torch.zeros(len(responses)),
                    "returns": torch.linspace(-1, 1, len(responses)),
                }
            )
            aligned = np.concatenate([rows, np.zeros_like(rows[:1])])
            carry = {
                "routed_experts": torch.tensor(aligned, dtype=torch.int16),
                "routing_handle": torch.tensor(handle),
            }
            fields[-1][carried] = carry[carried]
        batch = list_of_dict_to_tensordict(fields)
        options = {"global_batch_size": SAMPLES, "mini_batch_size": SAMPLES, "epochs": 1, "seed": 1}
        tu.assign_non_tensor(batch, temperature=0.7, dataloader_kwargs={"shuffle": False}, **options)
        return batch


def step(config: Any, rollout: Rollout, carried: str) -> dict[str, Any]:
    """Runs verl's passes on one rank: log-probabilities; the reference, if it is the actor without its adapter;
    training. Returns the choices of its routers in each pass, and the results."""
    worker = actors.worker(config)
    [model] = worker.actor.engine.module
    passes, log_probs = [], []
    for options in [{}, {"no_lora_adapter": True}][: 1 + (model.adapter is not None)]:
        batch = rollout.batch(carried)
        tu.assign_non_tensor(batch, calculate_entropy=True, compute_loss=False, **options)
        said = worker.compute_log_prob(batch)
        # Keeps only the log-probabilities of the response: the last row of a sample predicts nothing.
        if said is not None:
            said = response_from_nested(said["log_probs"], batch["response_mask"]).values().numpy()
        log_probs.append(said)
        passes.append(seen(model))
    worker.update_actor(rollout.batch(carried))
    passes.append(seen(model))
    gradients = worker.actor.engine.optimizer.gradients
    metrics = [replay.metrics() for replay in integration().replays.values()] if carried == "routing_handle" else []
    return {"passes": passes, "log_probs": log_probs, "gradients": gradients, "metrics": metrics}


def integration() -> Any:
    """Returns the module that verl imports for its option `external_lib`."""
    return sys.modules["routing_replay_trainer.integrations.verl"]


def beside_a_critic(config: Any, rollout: Rollout) -> dict[str, Any]:
    """Runs a critic's passes for values and for training, then the actor's pass for log-probabilities, all in one
    process."""
    actor, critic = actors.worker(config), actors.critic(config)
    [model] = critic.engine.module
    values = rollout.batch("routing_handle")
    tu.assign_non_tensor(values, compute_loss=False)
    critic.infer_batch(values)
    passes = [seen(model)]
    critic.train_mini_batch(rollout.batch("routing_handle"))
    passes.append(seen(model))
    assert critic.engine.optimizer.gradients
    log_probs = rollout.batch("routing_handle")
    tu.assign_non_tensor(log_probs, calculate_entropy=True, compute_loss=False)
    actor.compute_log_prob(log_probs)
    [of_actor] = actor.actor.engine.module
    flags = [each.config.moe_enable_routing_replay for each in (model, of_actor)]
    return {"passes": [*passes, seen(of_actor)], "flags": flags, "attached": list(integration().replays)}


def seen(model: Any) -> list[tuple[int, int, np.ndarray]]:
    """Returns (layer, token, its experts) of each row that the routers have seen since the last call."""
    rows = []
    for number, layer in enumerate(model.decoder.layers):
        again = len(layer.seen) // len(model.fed)  # 2 if the pass is recomputed.
        for place, (_, chosen) in enumerate(layer.seen):
            experts = torch.nonzero(chosen)[:, 1].reshape(-1, rollouts.TOP_K).numpy()
            tokens = model.fed[place // again].tolist()
            rows += [(number, token, own) for token, own in zip(tokens, experts, strict=True)]
        layer.seen.clear()
    model.fed.clear()
    return rows


class DifferentialTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = Path(folder.name, "model")
        small.make(actors.MODEL, cls.model)
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        os.environ |= {"ROUTING_REPLAY_ENDPOINT": cls.server.endpoint, "ROUTING_REPLAY_TRAINING_RUN": RUN}

    def configuration(self, world: int, tokens: int, said: list[str]) -> Any:
        return actors.configuration(
            self.model,
            f"actor_rollout_ref.actor.megatron.context_parallel_size={world}",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}",
            f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={tokens}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={SAMPLES}",
            f"critic.model.path={self.model}",
            "critic.strategy=megatron",
            "critic.use_dynamic_bsz=True",
            "critic.megatron.use_distributed_optimizer=False",
            *said,
        )

    def run_(self, world: int, tokens: int, said: list[str], rollout: Rollout, carried: str) -> list[Any]:
        return on_ranks(world, step, self.configuration(world, tokens, said), rollout, carried)

    def append(self, rollout: Rollout, moved: int = 0) -> None:
        with routing_replay.Client() as client:
            geometry = routing_replay.Geometry(
                num_layers=rollouts.LAYERS, num_experts=rollouts.EXPERTS, top_k=rollouts.TOP_K
            )
            run = client.run(RUN, geometry)
            for key, tokens, rows in zip(rollout.keys, rollout.tokens, rollout.routes, strict=True):
                rolled = np.roll(rows, moved, axis=0)
                run.append(key, rolled, tokens=tokens[:-1], num_tokens=len(tokens), restart=moved + 1)
            run.flush()

    def others(self, rows: dict[int, Any], ranks: list[Any]) -> tuple[int, int]:
        """Returns how many of these recorded rows reached the routers, over all layers and passes, and how many of them
        with other experts."""
        found = others = 0
        for layer, token, experts in (row for rank in ranks for one in rank["passes"] for row in one):
            if token in rows:
                found += 1
                others += set(experts.tolist()) != set(rows[token][layer].tolist())
        return found, others

    def test_routes_of_the_service_beside_those_of_the_batch(self) -> None:
        rollout, compared = Rollout(), 0
        sets = len(rollout.rows) * rollouts.LAYERS
        for layout, (world, tokens, said) in LAYOUTS.items():
            with self.subTest(layout):
                own = ["actor_rollout_ref.actor.megatron.router_replay.mode=R3"]
                theirs = self.run_(world, tokens, said + own, rollout, "routed_experts")
                self.append(rollout)
                ours = self.run_(world, tokens, said + actors.flags(), rollout, "routing_handle")
                # Layouts with options have one more pass: recompute, or the reference.
                expected = sets * (3 if said else 2)
                self.assertEqual(self.others(rollout.rows, theirs), (expected, 0))
                self.assertEqual(self.others(rollout.rows, ours), (expected, 0))
                np.testing.assert_array_equal(ours[0]["log_probs"], theirs[0]["log_probs"])
                if said == ADAPTED:
                    actor, reference = ours[0]["log_probs"]
                    self.assertGreater(abs(actor - reference).max(), 0.01)
                difference = self.difference(ours, theirs)
                print(f"{layout}: {expected} sets of {sets}, the same; gradients differ by {difference}")
                self.assertEqual(difference, 0.0)
                compared += 1
        self.assertEqual(compared, len(LAYOUTS))

        self.append(rollout, moved=1)
        moved = self.run_(world, tokens, said + actors.flags(), rollout, "routing_handle")
        rows, others = self.others(rollout.rows, moved)
        print(f"rows moved by one: {others} of {rows} differ; gradients by {self.difference(moved, theirs)}")
        self.assertGreater(others, rows / 2)
        self.assertGreater(self.difference(moved, theirs), 0)
        what = f"own R3 compared with ours, {len(LAYOUTS)} layouts"
        passed("verl", verl.__version__, what, f"{actors.CHANGED}, an adapter instead of Megatron-Bridge's")

    def test_lost_trajectories_route_live(self) -> None:
        rollout = Rollout()
        rollout.handles[UNRECORDED] = 0  # An agent loop for which the engine returned no rows ends with handle 0.
        self.append(rollout)
        with routing_replay.Client() as client:
            client.run(RUN).release([rollout.handles[LOST]])
        [rank] = self.run_(1, 200, actors.flags(), rollout, "routing_handle")
        lost = {int(token) for place in (UNRECORDED, LOST) for token in rollout.tokens[place]}
        for is_lost in (True, False):
            rows = {token: row for token, row in rollout.rows.items() if (token in lost) == is_lost}
            found, others = self.others(rows, [rank])
            print(f"{'lost' if is_lost else 'recorded'}: {others} of {found} differ from the engine's")
            self.assertEqual(found, 2 * len(rows) * rollouts.LAYERS)
            if is_lost:
                self.assertGreater(others, found / 2)
            else:
                self.assertEqual(others, 0)
        [metrics] = rank["metrics"]
        # The trajectory that was not recorded has no sample in the service, so it falls back.
        self.assertEqual(metrics["routing_replay/step_fallback_samples"], 1)

    def test_a_critic_routes_live(self) -> None:
        rollout = Rollout()
        self.append(rollout)
        config = self.configuration(1, 200, actors.flags())
        [rank] = on_ranks(1, beside_a_critic, config, rollout)
        *critic, actor = rank["passes"]
        sets = len(rollout.rows) * rollouts.LAYERS
        for name, one in zip(("values", "training", "the actor's log-probabilities"), (*critic, actor), strict=True):
            found, others = self.others(rollout.rows, [{"passes": [one]}])
            print(f"{name}: {others} of {found} differ from the engine's")
            self.assertEqual(found, sets)
            self.assertTrue(others == 0 if one is actor else others > found / 2)
        self.assertEqual(rank["flags"], [False, True])
        self.assertEqual(len(rank["attached"]), 1)

    def difference(self, ours: list[Any], theirs: list[Any]) -> float:
        for mine, other in zip(ours, theirs, strict=True):
            self.assertEqual(mine["gradients"].keys(), other["gradients"].keys())
            self.assertGreater(max(abs(value).max() for value in mine["gradients"].values()), 0)
        return max(
            float(abs(mine["gradients"][name] - other["gradients"][name]).max())
            for mine, other in zip(ours, theirs, strict=True)
            for name in mine["gradients"]
        )


if __name__ == "__main__":
    unittest.main()
