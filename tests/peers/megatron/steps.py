"""A step of a GPTModel whose routers replay, compared with the same step of a model whose own RouterReplay is set by
hand."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import gpt
import routing_replay_trainer as trainer
import torch
from host_queue import HostQueue
from megatron.core import parallel_state as mpu
from routing_replay_trainer import megatron
from routing_replay_trainer._device_buffers import DeviceBuffers
from routing_replay_trainer.collective import TorchCollective
from routing_replay_trainer.megatron import _replay

CHECK = unittest.TestCase()


class Step:
    """A training step with replay.

    rows: the number of (row, layer) pairs that `as_recorded` has found to have the recorded experts, over all calls
    """

    def __init__(
        self,
        layout: gpt.Layout,
        *,
        inject: str = "native",
        recompute: str = "none",
        packed: bool = False,
        cut: bool = False,
        **options: Any,
    ) -> None:
        layout.start()
        self.layout, self.inject, self.packed = layout, inject, packed
        self.options = {"variable_seq_lengths": packed} | options
        self.config = layout.config(**self.options, **gpt.RECOMPUTE[recompute])
        self.chunks = layout.model(self.config, packed=packed)
        multiple = 2 * layout.cp * layout.tp if packed else 1
        self.rollout = gpt.Rollout(trainer, self.config, cut=cut, packed=packed, multiple=multiple)
        self.calls = gpt.Calls(self.chunks)
        self.times = 1 if recompute == "none" else 2
        self.rows = 0
        self.losses: list[float] = []

    def ranks(self) -> TorchCollective:
        return TorchCollective([mpu.get_tensor_and_context_parallel_group(), mpu.get_pipeline_model_parallel_group()])

    def attach(self, source: Any = None, **given: Any) -> Any:
        """Attaches our replay to the model. The alarm about overlap is off, because random routes have little in common
        with the model's own choice."""
        options = {"source": source or self.rollout.source, "missing": "live", "agree": self.ranks()}
        options |= {"alarm_no_overlap": None} | given
        return megatron.attach(self.chunks, inject=self.inject, **options)

    def run(self, replay: Any, *, forward_only: bool = False, shared: bool = False) -> None:
        """Runs the step. shared: only the first and the last pipeline stage have a data iterator, and share what they
        read"""
        has_data = not shared or mpu.is_pipeline_first_stage() or mpu.is_pipeline_last_stage()

        def wrapped(schedule: Any) -> Any:
            ranks = self.ranks() if shared else None
            return megatron.replayed(replay, schedule, lambda batch: batch.said(trainer), ranks=ranks)

        options = {"forward_only": forward_only, "has_data": has_data}
        self.losses = gpt.step(self.chunks, self.rollout, wrapped=wrapped, **options)

    def tokens(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields for each micro-batch its number and the token id of each row that this rank's routers get."""
        for index, batch in enumerate(self.rollout.micro_batches):
            yield index, batch.at_routers(self.config.sequence_parallel)

    def as_recorded(self) -> dict[tuple[int, int], torch.Tensor]:
        """Checks that every call of every router has chosen the recorded experts for each row with a route, and that
        each router was called once for each micro-batch, and once more if the pass is recomputed. Returns the complete
        routing map by (layer, micro-batch)."""
        maps = {}
        for layer, calls in self.calls.maps.items():
            left = list(calls)
            for index, tokens in self.tokens():
                told, recorded = gpt.dense(self.rollout, tokens, layer)
                found = [m for m in left if len(m) == len(told) and torch.equal(m[recorded], told[recorded])]
                CHECK.assertEqual(len(found), self.times, f"layer {layer}, micro-batch {index}: calls as recorded")
                for other in found[1:]:
                    CHECK.assertTrue(torch.equal(found[0], other), "recompute chooses what forward has chosen")
                left = [m for m in left if not any(m is one for one in found)]
                maps[layer, index] = found[0]
                self.rows += int(recorded.sum()) * len(found)
            CHECK.assertEqual(len(left), 0, f"layer {layer}: calls that are of no micro-batch")
        return maps

    def counted(self, replay: Any, *, watched: bool = True) -> dict[str, float]:
        """Checks that the metrics say that all rows were replayed and, if `watched`, that recompute chose the same
        experts. Returns the metrics."""
        said = {name.partition("/")[2]: value for name, value in replay.metrics().items()}
        mismatch = {name: value for name, value in said.items() if name.startswith("recompute_mismatch")}
        CHECK.assertEqual(len(mismatch), len(self.calls.maps) if watched and self.times == 2 else 0)
        CHECK.assertEqual(sum(mismatch.values()), 0)
        rows = sum(int(self.rollout.recorded[tokens.numpy()].sum()) for _, tokens in self.tokens())
        CHECK.assertEqual(said["replayed_rows"], rows * len(self.chunks))
        CHECK.assertEqual((said["fallback_fraction"], said["live_rows"]), (0, 0))
        CHECK.assertEqual(replay.kept, 0)
        for router in gpt.routers(self.chunks):
            if router.router_replay is not None:
                CHECK.assertFalse(router.router_replay.replay_backward_list)
                CHECK.assertIsNone(router.router_replay.target_topk_idx)
        return said

    def ids(self, maps: dict[tuple[int, int], torch.Tensor]) -> dict[tuple[int, int], torch.Tensor]:
        """Returns the experts [rows, K] by (layer, micro-batch): the recorded ones or, for rows without a record, those
        of `maps`."""
        ids = {}
        for layer in self.calls.maps:
            for index, tokens in self.tokens():
                told = torch.tensor(self.rollout.routes[tokens.numpy(), self.rollout.moe.index(layer)])
                recorded = torch.tensor(self.rollout.recorded[tokens.numpy()])
                if not recorded.all():
                    chosen = maps[layer, index].nonzero()[:, 1].view(len(tokens), -1)
                    told = torch.where(recorded[:, None], told, chosen)
                ids[layer, index] = told
        return ids

    def peer(self, **options: Any) -> list[Any]:
        """Returns the same model with the same weights, but without recompute."""
        return self.layout.model(self.layout.config(**(self.options | options)), packed=self.packed)

    def by_hand(self, maps: Any, **options: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
        """Returns the losses and gradients of `peer` when its own RouterReplay is set to the experts of `ids`."""
        peer = self.peer(**options)
        losses = gpt.step(peer, self.rollout, gpt.told_by_hand(peer, self.ids(maps)))
        return losses, gpt.gradients(peer)

    def compare(self, maps: dict[tuple[int, int], torch.Tensor]) -> None:
        """Compares gradients and losses of the last run with those of `by_hand`."""
        losses, theirs = self.by_hand(maps)
        self.compare_gradients(theirs)
        if self.inject == "native":
            CHECK.assertEqual(self.losses, losses)

    def compare_gradients(self, theirs: dict[str, torch.Tensor]) -> None:
        """With inject "native" the gradients must be equal bit for bit; our own operator may round differently."""
        ours = gpt.gradients(self.chunks)
        CHECK.assertEqual(ours.keys(), theirs.keys())
        for name, gradient in ours.items():
            difference = (gradient - theirs[name]).abs().max().item()
            allowed = 0.0 if self.inject == "native" else 2e-5 * theirs[name].abs().max().item()
            CHECK.assertLessEqual(difference, allowed, name)


def replays(layout: gpt.Layout, *, staged: bool = False, shared: bool = False, **options: Any) -> int:
    """Makes one training step with replay. Returns how many (row, layer) pairs have the recorded experts.

    shared: see `Step.run`
    staged: uses index buffers as on a GPU, with a queue of the GPU that is simulated on the CPU
    """
    step = Step(layout, **options)
    with contextlib.ExitStack() as stack:
        if staged:
            buffers = mock.patch.object(_replay, "buffers_for", lambda module: DeviceBuffers(HostQueue()))
            stack.enter_context(buffers)
        replay = step.attach()
    step.run(replay, shared=shared)
    maps = step.as_recorded()
    step.counted(replay)
    replay.detach()
    step.compare(maps)
    return step.rows
