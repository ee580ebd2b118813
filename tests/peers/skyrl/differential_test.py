"""SkyRL's own R3, with routes in the batch, compared with the README's recipe, with routes in the service: the experts
at every recorded row of its log-probability and training passes must be equal, and so must the gradients."""

from __future__ import annotations

import math
import tempfile
import types
import unittest
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sides

sides.setup()
import numpy as np  # noqa: E402
import routing_replay as rr  # noqa: E402
import torch  # noqa: E402
from common.ranks import on_ranks  # noqa: E402
from common.support import passed  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from skyrl.backends.skyrl_train.workers.megatron.megatron_worker import MegatronPolicyWorkerBase  # noqa: E402
from skyrl.train.trainer import RayPPOTrainer  # noqa: E402
from transformers import AutoConfig  # noqa: E402

SAMPLES, FIRST = 13, 100  # Token ids below FIRST are not used by samples, so they can only be padding.
FULL = ["trainer.gradient_checkpointing=true"]
MOE = [*FULL, *(f"trainer.policy.megatron_config.transformer_config_kwargs.{said}" for said in (
    "recompute_granularity=selective", "recompute_modules=[moe]", "recompute_method=null", "recompute_num_layers=null")
)]  # fmt: skip
BY_TOKENS = ["trainer.max_tokens_per_microbatch=40"]
RECTANGLE = ["trainer.remove_microbatch_padding=false"]


def size(name: str) -> list[str]:
    return [f"trainer.policy.megatron_config.{name}=2"]


def micro(samples: int) -> list[str]:
    return [f"trainer.micro_{name}_batch_size_per_gpu={samples}" for name in ("train", "forward")]


# For each layout: the number of ranks, SkyRL's options, and whether SkyRL's own R3 is right.
LAYOUTS: dict[str, tuple[int, list[str], bool]] = {
    "packed": (1, micro(3), True),
    "packed, full recompute": (1, micro(4) + FULL, True),
    "packed by tokens, MoE recompute": (1, BY_TOKENS + MOE, True),
    "packed, CP 2": (2, micro(3) + size("context_parallel_size"), True),
    "packed by tokens, CP 2, full recompute": (2, BY_TOKENS + FULL + size("context_parallel_size"), True),
    "packed, PP 2, full recompute": (2, micro(3) + FULL + size("pipeline_model_parallel_size"), True),
    "packed, TP 2, MoE recompute": (2, micro(3) + MOE + size("tensor_model_parallel_size"), True),
    "packed by tokens, DP 2": (2, BY_TOKENS, True),
    "rectangles of one row": (1, micro(1) + RECTANGLE, True),
    "rectangles of one row, TP 2": (2, micro(1) + RECTANGLE + size("tensor_model_parallel_size"), True),
    "rectangles of one row, PP 2": (2, micro(1) + RECTANGLE + size("pipeline_model_parallel_size"), True),
    "rectangles of 3 rows, full recompute": (1, micro(3) + RECTANGLE + FULL, False),
}


class Rollout:
    """Samples whose tokens are all different, so that a token identifies its row."""

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        lengths = random.integers(6, 30, SAMPLES)
        tokens = np.split(FIRST + random.permutation(500)[: lengths.sum()], np.cumsum(lengths)[:-1])
        table = random.random((FIRST + 500, sides.LAYERS, sides.EXPERTS)).argsort(axis=2)[..., : sides.TOP_K]
        self.tokens = [one.tolist() for one in tokens]
        # False: the last token is not from the engine, so the token before it has no row.
        self.own = [place % 3 != 1 for place in range(SAMPLES)]
        self.fed = [one[: -2 + own] for one, own in zip(self.tokens, self.own, strict=True)]
        self.routes = [table[one].astype(np.uint8) for one in self.fed]
        self.experts = {token: [*map(tuple, np.sort(table[token]).tolist())] for one in self.fed for token in one}

    def output(self, moved: int) -> dict[str, Any]:
        """Returns the samples in the form in which SkyRL's generators return them. moved: by how many rows the routes
        are late"""
        cuts = [2 + place % 3 for place in range(SAMPLES)]
        responses = [one[cut:] for cut, one in zip(cuts, self.tokens, strict=True)]
        return {
            "prompt_token_ids": [one[:cut] for cut, one in zip(cuts, self.tokens, strict=True)],
            "response_ids": responses,
            "rewards": [[0.0] * len(one) for one in responses],
            "loss_masks": [[1] * (len(one) - 1) + [int(own)] for one, own in zip(responses, self.own, strict=True)],
            "rollout_expert_indices": [np.roll(one, moved, axis=0) for one in self.routes],
        }


def batch(config: Any, rollout: Rollout, kind: Any, service: bool, moved: int) -> Any:
    """Returns the training batch that SkyRL's trainer makes of the rollout."""
    trainer = object.__new__(kind)
    trainer.cfg, trainer.all_metrics, trainer.global_step = config, {}, 1
    trainer.tokenizer = types.SimpleNamespace(pad_token_id=0)
    trainer.dispatch = types.SimpleNamespace(get_lcm_dp_size=mpu.get_data_parallel_world_size)
    if service:
        trainer.routes = rr.Client().run(sides.RUN)
    made = trainer.convert_to_training_input(rollout.output(moved), [f"prompt{i}" for i in range(SAMPLES)])
    carried = made["rollout_expert_indices"].values
    assert carried.numel() == len(made) if service else carried.shape[1:] == (sides.LAYERS, sides.TOP_K)
    if service:  # With the service, the batch has only one handle per sample.
        assert carried.dtype == torch.int64 and made.get("router_padding_mask") is None
    made["action_log_probs"] = torch.full_like(made["loss_mask"], -math.log(sides.gpt.VOCABULARY))
    made["base_action_log_probs"] = made["action_log_probs"].clone()
    made["advantages"] = torch.linspace(-1, 1, made["loss_mask"].numel()).view_as(made["loss_mask"])
    return made


def step(config: Any, rollout: Rollout, service: bool, moved: int = 0) -> dict[str, Any]:
    """Runs SkyRL's log-probability pass and its training pass on one rank.

    Returns "passes" (the counts of `seen` after each pass), "log_probs" and "gradients".
    """
    from routing_replay_trainer.integrations import skyrl

    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if service and rank == 0:
        model = AutoConfig.from_pretrained(config.trainer.policy.model.path)
        rr.Client().run(sides.RUN, rr.Geometry.from_hf_config(model))
    torch.distributed.barrier()
    kind = skyrl.Policy if service else MegatronPolicyWorkerBase
    worker = sides.worker(kind, config, rank, world)
    worker.init_model(config.trainer.policy.model.path, num_training_steps=10)
    built = sides.Provider.built
    trainer = skyrl.Trainer if service else RayPPOTrainer
    made = [batch(config, rollout, trainer, service, moved) if rank == 0 else None]
    torch.distributed.broadcast_object_list(made)
    replicas = mpu.get_data_parallel_world_size()
    data = made[0].chunk(len(made[0]) // replicas)[mpu.get_data_parallel_rank()]

    def seen() -> tuple[int, int]:
        """Counts the rows that have a route: first those that used the experts of the route, then those that did
        not."""
        of_ranks: list[Any] = [None] * world
        torch.distributed.all_gather_object(of_ranks, built.kept.fed)
        first = of_ranks[rank % (world // mpu.get_pipeline_model_parallel_world_size())]
        told = [
            own == rollout.experts[token][layer]
            for layer, token, own in built.kept.rows(first)
            if token in rollout.experts
        ]
        return sum(told), len(told) - sum(told)

    log_probs = worker.forward(data).loss_fn_outputs
    passes = [seen()]
    worker.forward_backward(data)
    passes.append(seen())
    gradients = {name: one.main_grad.numpy().copy() for name, one in built.model.named_parameters()}
    return {"passes": passes, "log_probs": log_probs, "gradients": gradients}


def summed(ranks: list[Any]) -> list[list[int]]:
    """Returns for each of the two passes the number of right and of wrong rows, over all ranks."""
    return [[sum(one["passes"][place][kind] for one in ranks) for kind in (0, 1)] for place in (0, 1)]


def apart(ours: list[Any], theirs: list[Any]) -> float:
    """Returns the largest difference between the gradients of the two sides, divided by the largest gradient."""
    both = [(one["gradients"], other["gradients"]) for one, other in zip(ours, theirs, strict=True)]
    largest = max(abs(value).max() for one, _ in both for value in one.values())
    return max(float(abs(one[name] - other[name]).max()) for one, other in both for name in one) / largest


class DifferentialTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        sides.checkpoint(Path(self.folder, "model"))
        self.enterContext(rr.local_server())
        import routing_replay_trainer.integrations.skyrl  # noqa: F401  Imported once, before ranks fork.

    def test_beside_skyrls_own(self) -> None:
        rollout, compared = Rollout(), 0
        sets = len(rollout.experts) * (sides.LAYERS - 1)
        for name, (world, said, own_is_right) in LAYOUTS.items():
            with self.subTest(name):
                config = self.configuration(*said)
                times = 1, 1 + config.trainer.gradient_checkpointing
                whole = [[sets * each, 0] for each in times]
                # SkyRL adds a sample so that two ranks get equally many: it has the tokens of the first sample, and no
                # route.
                padded = "DP" in name
                theirs = on_ranks(world, step, config, rollout, False)
                ours = on_ranks(world, step, config, rollout, True)
                found, difference = summed(ours), apart(ours, theirs)
                print(f"{name}: of {sets} sets {found} right and not, SkyRL's {summed(theirs)}, {difference} apart")
                if padded:
                    others = len(rollout.fed[0]) * (sides.LAYERS - 1)
                    self.assertTrue(all(right >= sets and right + wrong == sets + others for right, wrong in found))
                else:
                    self.assertEqual(found, whole)
                if own_is_right:
                    self.assertEqual(summed(theirs)[0][0] >= sets, True)
                    self.assertEqual(padded or summed(theirs) == whole, True)
                    # The gradients are not equal: rows without a route have other experts on the two sides, which
                    # changes the rounding of sums.
                    self.assertLess(difference, 1e-6)
                else:
                    # SkyRL's own R3 is wrong here: it passes rows sample by sample, but the model's rows are position
                    # by position.
                    self.assertGreater(summed(theirs)[0][1], sets // 2)
                compared += 1
        self.assertEqual(compared, len(LAYOUTS))

        config = self.configuration(*LAYOUTS["packed"][1])
        theirs, moved = (on_ranks(1, step, config, rollout, service, 1) for service in (False, True))
        self.assertGreater(summed(moved)[0][1], sets // 2)
        self.assertEqual(summed(moved), summed(theirs))
        right = on_ranks(1, step, config, rollout, False)
        print(f"rows moved by one: {summed(moved)} right and not, {apart(moved, right)} apart")
        self.assertGreater(apart(moved, right), 1e-3)
        passed("SkyRL", version("skyrl"), f"own R3 compared with ours, {len(LAYOUTS)} layouts", sides.CHANGED)

    def configuration(self, *said: str) -> Any:
        samples = [f"trainer.{size}_batch_size={SAMPLES}" for size in ("train", "policy_mini")]
        samples.append("generator.n_samples_per_prompt=1")
        return sides.configuration(Path(self.folder, "model"), *samples, *said)


if __name__ == "__main__":
    unittest.main()
