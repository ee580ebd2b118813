"""verl's own R3, with routes in the batch, beside the README's three lines, with routes in the service: the same
experts at every recorded row, and the same gradients to the last bit."""

from __future__ import annotations

import math
import os
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

SAMPLES = 18
RUN = "grpo-42"
FULL = [f"++actor_rollout_ref.actor.megatron.override_transformer_config.{x}" for x in (
    "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")]  # fmt: skip
LAYOUTS = {  # Ranks of context parallelism, tokens of a micro-batch on each, and more.
    "one rank": (1, 200, []),
    "one rank, full recompute": (1, 64, FULL),
    "two ranks of context parallelism": (2, 32, []),
    "two ranks of context parallelism, full recompute": (2, 100, FULL),
}


class Rollout:
    """Samples of which every token is another one, so that a row tells where it is from."""

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        lengths = random.integers(6, 30, SAMPLES)
        ids = 3 + random.permutation(rollouts.VOCABULARY - 3)[: lengths.sum()]
        self.tokens = np.split(ids, np.cumsum(lengths)[:-1])
        self.routes = [random_routes(random, n - 1, rollouts.LAYERS, rollouts.EXPERTS, rollouts.TOP_K) for n in lengths]
        self.keys = [f"uid{i}_0_0" for i in range(SAMPLES)]
        self.rows = {
            int(token): row
            for tokens, rows in zip(self.tokens, self.routes, strict=True)
            for token, row in zip(tokens, rows, strict=False)
        }

    def batch(self, carried: str) -> Any:
        """As TransferQueue gives it. carried: the column with the routes, or with what stands for them."""
        fields = []
        for i, (key, ids, rows) in enumerate(zip(self.keys, self.tokens, self.routes, strict=True)):
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
                }
            )
            aligned = np.concatenate([rows, np.zeros_like(rows[:1])])
            carry = {
                "routed_experts": torch.tensor(aligned, dtype=torch.int16),
                "routing_handle": torch.tensor(routing_replay.sample_handle(key)),
            }
            fields[-1][carried] = carry[carried]
        batch = list_of_dict_to_tensordict(fields)
        options = {"global_batch_size": SAMPLES, "mini_batch_size": SAMPLES, "epochs": 1, "seed": 1}
        tu.assign_non_tensor(batch, temperature=0.7, dataloader_kwargs={"shuffle": False}, **options)
        return batch


def step(config: Any, rollout: Rollout, carried: str) -> dict[str, Any]:
    """verl's log-probability pass and its training pass on one rank: what its routers were given, and what came out."""
    worker = actors.worker(config)
    [model] = worker.actor.engine.module
    log_probs = rollout.batch(carried)
    tu.assign_non_tensor(log_probs, calculate_entropy=True, compute_loss=False)
    said = worker.compute_log_prob(log_probs)
    if said is not None:  # The last row of a sample predicts nothing.
        said = response_from_nested(said["log_probs"], log_probs["response_mask"]).values().numpy()
    passes = [seen(model)]
    worker.update_actor(rollout.batch(carried))
    passes.append(seen(model))
    return {"passes": passes, "log_probs": said, "gradients": worker.actor.engine.optimizer.gradients}


def seen(model: Any) -> list[tuple[int, int, np.ndarray]]:
    """(layer, token, its experts) of each row that the routers were given, since the last time."""
    rows = []
    for number, layer in enumerate(model.decoder.layers):
        again = len(layer.seen) // len(model.fed)  # Twice where it is computed again.
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

    def run_(self, world: int, tokens: int, said: list[str], rollout: Rollout, carried: str) -> list[Any]:
        config = actors.configuration(
            self.model,
            f"actor_rollout_ref.actor.megatron.context_parallel_size={world}",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}",
            f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={tokens}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={SAMPLES}",
            *said,
        )
        return on_ranks(world, step, config, rollout, carried)

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

    def others(self, rollout: Rollout, ranks: list[Any]) -> tuple[int, int]:
        """Of all recorded rows and layers of both passes how many the routers were given, and how many with others."""
        rows = others = 0
        for place in range(2):
            for layer, token, experts in (row for rank in ranks for row in rank["passes"][place]):
                if token in rollout.rows:
                    rows += 1
                    others += set(experts.tolist()) != set(rollout.rows[token][layer].tolist())
        return rows, others

    def test_routes_of_the_service_beside_those_of_the_batch(self) -> None:
        rollout, compared = Rollout(), 0
        sets = len(rollout.rows) * rollouts.LAYERS
        for layout, (world, tokens, said) in LAYOUTS.items():
            with self.subTest(layout):
                own = ["actor_rollout_ref.actor.megatron.router_replay.mode=R3"]
                theirs = self.run_(world, tokens, said + own, rollout, "routed_experts")
                self.append(rollout)
                ours = self.run_(world, tokens, said + actors.flags(), rollout, "routing_handle")
                expected = sets * (3 if said else 2)  # Computed again in the backward pass.
                self.assertEqual(self.others(rollout, theirs), (expected, 0))
                self.assertEqual(self.others(rollout, ours), (expected, 0))
                np.testing.assert_array_equal(ours[0]["log_probs"], theirs[0]["log_probs"])
                difference = self.difference(ours, theirs)
                print(f"{layout}: {expected} sets of {sets}, the same; gradients differ by {difference}")
                self.assertEqual(difference, 0.0)
                compared += 1
        self.assertEqual(compared, len(LAYOUTS))

        self.append(rollout, moved=1)
        moved = self.run_(world, tokens, said + actors.flags(), rollout, "routing_handle")
        rows, others = self.others(rollout, moved)
        print(f"rows moved by one: {others} of {rows} differ; gradients by {self.difference(moved, theirs)}")
        self.assertGreater(others, rows / 2)
        self.assertGreater(self.difference(moved, theirs), 0)
        passed("verl", verl.__version__, f"own R3 beside ours, {len(LAYOUTS)} layouts", actors.CHANGED)

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
