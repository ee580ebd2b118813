"""Shared by the tests with Megatron-Core's real routers: a rank's chunks, and steps over them."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import megatron_models as models
import numpy as np
import torch
from host_queue import HostQueue
from megatron.core.pipeline_parallel.schedules import set_current_microbatch
from megatron_rollouts import CHUNKS, LENGTHS, MICRO_BATCHES, PIPELINE, Rollout, by_hand, interleaved

from routing_replay_trainer import megatron
from routing_replay_trainer._device_buffers import DeviceBuffers
from routing_replay_trainer.megatron import _replay


class MegatronCase(unittest.TestCase):
    def setUp(self) -> None:
        models.set_up(self)

    def config(self, **options: Any) -> Any:
        return models.make_config(
            num_layers=8,
            moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1],
            pipeline_model_parallel_size=PIPELINE,
            virtual_pipeline_model_parallel_size=CHUNKS,
            **options,
        )

    def chunks(self, config: Any) -> list[Any]:
        """The layers of pipeline rank 0."""
        return [models.Model(config, [1, 2]), models.Model(config, [5, 6])]

    def hidden(self, index: int) -> torch.Tensor:
        """The input of a chunk: [rows, 1, H]."""
        generator = torch.Generator().manual_seed(index)
        return torch.randn(sum(LENGTHS[index]), 1, models.HIDDEN, generator=generator)

    def attach(self, chunks: Any, config: Any, source: Any, **options: Any) -> Any:
        """Attaches a replay in which the last row of a sample routes live, as in `by_hand`."""
        options.setdefault("last_row", "live")
        replay = megatron.attach(chunks, config, source=source, ranks={"pp": 0}, **options)
        self.addCleanup(replay.detach)
        return replay

    def step(self, replay: Any, rollout: Rollout, chunks: list[Any]) -> dict[tuple[int, int], torch.Tensor]:
        """Runs the schedule; returns outputs by (micro-batch, chunk)."""
        outputs = {}
        for kind, index, chunk in interleaved():
            if kind == "forward":
                set_current_microbatch(chunks[chunk], index)
                with replay.micro_batch(
                    rollout.samples(index),
                    tokens=torch.tensor(np.concatenate(rollout.tokens[index])),
                    packed_seq_params=rollout.packed(index),
                ):
                    outputs[index, chunk] = chunks[chunk](self.hidden(index).requires_grad_())
            else:
                outputs[index, chunk].square().sum().backward()
        return outputs

    def assert_as_by_hand(self, chunks: list[Any], peers: list[Any], rollout: Rollout, outputs: Any) -> None:
        for chunk, peer in enumerate(peers):
            for index in range(MICRO_BATCHES):
                expected = by_hand(peer, rollout, index, self.hidden(index).requires_grad_())
                expected.square().sum().backward()
                self.assertTrue(torch.equal(outputs[index, chunk], expected), (index, chunk))
        for chunk, peer in zip(chunks, peers, strict=True):
            for (name, ours), theirs in zip(chunk.named_parameters(), peer.parameters(), strict=True):
                self.assertIsNotNone(ours.grad, name)
                difference = (ours.grad - theirs.grad).abs().max().item()  # Micro-batches are summed in another order.
                self.assertLessEqual(difference, 2e-6 * theirs.grad.abs().max().item(), name)


class Staged(unittest.TestCase):
    """Runs the tests of another class with index buffers as on a GPU, on a queue that the CPU simulates."""

    def setUp(self) -> None:
        super().setUp()
        staged = mock.patch.object(_replay, "buffers_for", lambda module: DeviceBuffers(HostQueue()))
        staged.start()
        self.addCleanup(staged.stop)
