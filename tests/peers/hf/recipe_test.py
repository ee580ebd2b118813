"""Runs the README's recipe for Hugging Face models as printed, with transformers' own models and a server."""

from __future__ import annotations

import copy
import unittest
from typing import Any

import hf_models
import recipes
import routing_replay as rr
import torch
import torch.distributed as dist
import torch.nn.functional as F
from common.ranks import on_ranks
from hf_cases import Choices, Rollout, moe_layers, new_model
from routing_replay_trainer import ServiceSource, hf
from routing_replay_trainer.collective import TorchCollective
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

RATE = 0.1
CHECK = unittest.TestCase()


class Chosen(TorchDispatchMode):
    """Records the choices of attached routers, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.routing_replay.choose_experts.default:
            self.ids.append(out.clone())
        return out

    def check(self, rollout: Rollout, passed: int) -> None:
        """Checks that the routers chose the recorded experts, in the recorded order, in pass number `passed` over the
        batch `rollout`."""
        begin = passed * len(rollout.layers)
        for ids, forced in zip(self.ids[begin:], rollout.forced, strict=False):
            for place in rollout.places:
                rows = place[:-1]
                CHECK.assertTrue(torch.equal(ids[rows], forced[rows]))


def record(run: rr.Run, rollout: Rollout) -> None:
    for sample, tokens, place in zip(rollout.samples, rollout.tokens, rollout.places, strict=True):
        rows = torch.stack([ids[place[:-1]] for ids in rollout.forced], 1).numpy()
        run.append(sample, rows, tokens=tokens, layers="moe", weight_version=0, seal=True)
    run.flush()


def batch_of(rollout: Rollout) -> dict[str, Any]:
    return rollout.call | {"sample_ids": rollout.samples}


def loss_of(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    """Returns the loss of predicting each next token."""
    mask = batch["attention_mask"].bool()
    counted = mask[:, 1:] & mask[:, :-1]
    return F.cross_entropy(logits[:, :-1][counted], batch["input_ids"][:, 1:][counted])


def train_by_hand(model: Any, steps: list[list[Rollout]], share: float = 1.0) -> list[torch.Tensor]:
    """Trains without our replay: replaces the results of torch's `topk` by the recorded choices. Returns the losses."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for rollouts in steps:
        for rollout in rollouts:
            with Choices(rollout.forced):
                losses.append(loss_of(model(**rollout.call).logits, batch_of(rollout)))
            (losses[-1] * share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check_train(model: Any, layers: list[int]) -> None:
    """Routers must use the recorded experts. After two steps, the weights must be equal to the last bit to those of
    `train_by_hand`, which makes the same choices."""
    peer, live = copy.deepcopy(model), copy.deepcopy(model)
    rollouts = [Rollout(layers, layout, seed) for seed, layout in enumerate(("right", "left"))]
    with rr.Client() as client:
        run = client.run("grpo-42", rr.Geometry.from_hf_config(model.config))
        for rollout in rollouts:
            record(run, rollout)
    losses, logged = [], []

    def loss(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        losses.append(loss_of(logits, batch))
        return losses[-1]

    steps = [[batch_of(rollout) for rollout in rollouts]] * 2
    with Chosen() as chosen:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        recipes.run("Hugging Face and FSDP")["train"](model, optimizer, steps, loss, logged.append)
    CHECK.assertEqual(len(chosen.ids), 4 * len(layers))
    for passed in range(4):
        chosen.check(rollouts[passed % 2], passed)
    CHECK.assertEqual(losses, train_by_hand(peer, [rollouts] * 2))
    for (name, ours), theirs in zip(model.named_parameters(), peer.parameters(), strict=True):
        CHECK.assertTrue(torch.equal(ours, theirs), name)
    CHECK.assertNotEqual(loss_of(live(**rollouts[0].call).logits, batch_of(rollouts[0])), losses[0])
    for metrics in logged:
        CHECK.assertEqual(metrics["routing_replay/replayed_fraction"], 1)
        CHECK.assertEqual(metrics["routing_replay/fallback_fraction"], 0)


class TrainTest(unittest.TestCase):
    def test_train(self) -> None:
        with rr.local_server():
            for family, make in hf_models.MODELS.items():
                with self.subTest(family):
                    model = new_model(make)
                    check_train(model, moe_layers(model))
                    rr.Client().run("grpo-42").drop()


def recorded(layout: str, seeds: int) -> tuple[Any, list[Rollout]]:
    """Returns a model and rollouts. Rank 0 records the rollouts in the service; the other ranks wait for it."""
    model = new_model(hf_models.MODELS["Qwen3Moe"])
    rollouts = [Rollout(moe_layers(model), layout, seed) for seed in range(seeds)]
    if dist.get_rank() == 0:
        with rr.Client() as client:
            run = client.run("grpo-42", rr.Geometry.from_hf_config(model.config))
            for rollout in rollouts:
                record(run, rollout)
    dist.barrier()
    return model, rollouts


def train_on_rank() -> None:
    model, rollouts = recorded("right", 2)
    peer, logged = copy.deepcopy(model), []
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer, everybody = torch.optim.SGD(model.parameters(), lr=RATE), TorchCollective([None])
    steps = [[batch_of(rollouts[dist.get_rank()])]]
    with Chosen() as chosen:
        recipe = recipes.run("Hugging Face and FSDP")
        recipe["train"](wrapped, optimizer, steps, loss_of, logged.append, everybody)
    chosen.check(rollouts[dist.get_rank()], 0)
    train_by_hand(peer, [rollouts], share=0.5)
    for (name, ours), theirs in zip(model.named_parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)
    [metrics] = logged
    rows = sum(len(tokens) - 1 for rollout in rollouts for tokens in rollout.tokens)
    CHECK.assertEqual(metrics["routing_replay/replayed_rows"], rows)


def pack_on_rank() -> None:
    model, [rollout] = recorded("packed", 1)
    rank, peer = dist.get_rank(), copy.deepcopy(model)
    # The stream is padded to a multiple of two, so that two processes can share it.
    pad = torch.zeros(1, 1, dtype=torch.int64)
    ids, positions = (torch.cat([rollout.call[name], pad], 1) for name in ("input_ids", "position_ids"))

    def cut(stream: torch.Tensor) -> torch.Tensor:
        return stream.chunk(2, 1)[rank]

    forced = [torch.cat([own, own.new_full((1, own.shape[1]), -1)]).chunk(2)[rank] for own in rollout.forced]
    with Choices(forced):
        expected = peer(input_ids=cut(ids), position_ids=cut(positions)).logits
    options = {"ranks": {"cp": rank}, "cp_size": 2, "agree": TorchCollective([dist.new_group([0, 1])])}
    source = ServiceSource(rr.Client().run("grpo-42"))
    replay = hf.attach(model, source=source, missing="live", last_row="live", **options)
    replay.begin_step(rollout.samples, tokens=rollout.tokens)
    logits = recipes.run("Hugging Face and FSDP")["packed_forward"](replay, model, rollout.samples, ids, positions, cut)
    CHECK.assertTrue(torch.equal(logits, expected))
    for out in (logits, expected):
        out.square().mean().backward()
    replay.end_step()
    for (name, ours), theirs in zip(model.named_parameters(), peer.parameters(), strict=True):
        CHECK.assertEqual(ours.grad is None, theirs.grad is None, name)
        CHECK.assertTrue(ours.grad is None or torch.equal(ours.grad, theirs.grad), name)


class ProcessesTest(unittest.TestCase):
    def test_train_with_several_processes(self) -> None:
        """Each of two ranks trains on samples of its own. The metrics must cover all ranks."""
        with rr.local_server():
            on_ranks(2, train_on_rank)

    def test_packed_forward(self) -> None:
        """Each of two processes computes one half of each sequence."""
        with rr.local_server():
            on_ranks(2, pack_on_rank)


if __name__ == "__main__":
    unittest.main()
