"""The Megatron interface with a GPU, or with a configuration for one, as far as a host can test it."""

from __future__ import annotations

import copy
import sys
import types
import unittest
from typing import Any
from unittest import mock

from routing_replay import errors

from routing_replay_trainer import _core, megatron
from routing_replay_trainer.megatron import _modules

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import megatron_models as models
    import torch
    from host_cuda import NoKernels
    from megatron.core import __version__ as megatron_version
    from megatron.core.pipeline_parallel.schedules import set_current_microbatch
    from megatron_case import MegatronCase
    from megatron_peer_test import MegatronTest
    from megatron_rollouts import LENGTHS, MICRO_BATCHES, Rollout

    from routing_replay_trainer._device_buffers import DeviceBuffers
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)

# cuda_graph_modules exists from 0.18 on.
OLDER = tuple(map(int, megatron_version.split(".")[:2])) < (0, 18)


class NoKernelsTest(NoKernels, MegatronTest):
    """Runs the tests of MegatronTest again, with models that say that they are on a GPU without kernels."""

    def attach(self, chunks: Any, config: Any, source: Any, **options: Any) -> Any:
        replay = super().attach(chunks, config, source, **options)
        self.assertIsInstance(replay._buffers, DeviceBuffers)
        return replay

    def test_disabled_touches_nothing(self) -> None:
        with mock.patch.object(torch.cuda, "Stream", side_effect=AssertionError):
            config = self.config()
            chunks = self.chunks(config)
            live = copy.deepcopy(chunks)
            replay = megatron.attach(chunks, config, mode="disabled")
            with replay.micro_batch(["0/0"], lengths=[3], format="THD"):
                self.assertTrue(torch.equal(chunks[0](self.hidden(0)), live[0](self.hidden(0))))
        self.assertEqual(replay._buffers.slots.bytes, 0)

    def test_ids_of_two_bytes(self) -> None:
        config = models.make_config(num_moe_experts=300, moe_router_topk=3)
        model = models.Model(config, [1, 2, 3, 4])
        rollout = Rollout(config, 3)
        replay = self.attach(model, config, rollout.source)
        with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0):
            output = model(self.hidden(0).requires_grad_())
        output.sum().backward()
        replay.end_step()
        ids, recorded = rollout.ids(0, 0)
        used = models.moe_layers(model)[0].seen[0][1].nonzero()[:, 1].view(len(ids), -1)
        self.assertEqual(used[recorded].tolist(), ids[recorded].sort(1).values.tolist())

    def test_inference_first(self) -> None:
        """A first pass under inference_mode allocates buffers to which later passes write, outside of it."""
        config = self.config()
        chunks = self.chunks(config)
        peers = copy.deepcopy(chunks)
        rollout = Rollout(config, 4)
        replay = self.attach(chunks, config, rollout.source)
        for index in range(MICRO_BATCHES):
            for chunk in chunks:
                set_current_microbatch(chunk, index)
                with (
                    torch.inference_mode(),
                    replay.micro_batch(rollout.samples(index), packed_seq_params=rollout.packed(index)),
                ):
                    chunk(self.hidden(index))
        replay.end_step()
        self.assert_as_by_hand(chunks, peers, rollout, self.step(replay, rollout, chunks))

    def test_why_is_said_once(self) -> None:
        too_old = errors.FailedPreconditionError("cuda.driver: supports CUDA 12.2", code_name="FAILED_PRECONDITION")
        _KERNELS.cache_clear()
        self.addCleanup(_KERNELS.cache_clear)
        with (
            mock.patch.object(_core, "cuda_library", side_effect=too_old),
            self.assertLogs("routing_replay_trainer", "WARNING") as logged,
        ):
            self.assertIsNone(_KERNELS(0))
            self.assertIsNone(_KERNELS(0))
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], "without its kernels.*CUDA 12.2")


_KERNELS = _core.kernels


class ConfigurationTest(unittest.TestCase):
    def check(self, config: Any) -> list[int]:
        model = models.Model(config, [1, 2, 3, 4])
        return _modules.check(model, _modules.live_routers(model), "native")

    def test_cuda_graphs(self) -> None:
        fields = ["cuda_graph_scope"] if OLDER else ["cuda_graph_modules", "cuda_graph_scope"]
        for implementation in ("local", "transformer_engine"):
            for field in fields:
                with self.subTest(implementation, field=field):
                    said = {"cuda_graph_impl": implementation}
                    self.assertEqual(self.check(models.make_config(**said, **{field: ["attn"]})), [])
                    for captures in (["moe_router"], ["attn", "moe_router"], []):
                        config = models.make_config(**said, **{field: captures})
                        with self.assertRaisesRegex(errors.FailedPreconditionError, "captures routers"):
                            self.check(config)
        if not OLDER:
            with self.assertRaisesRegex(errors.FailedPreconditionError, "captures routers"):
                self.check(models.make_config(cuda_graph_impl="full_iteration", cuda_graph_modules=[]))

    def test_rows_that_are_dropped_behind_the_router(self) -> None:
        config = models.make_config(moe_expert_capacity_factor=0.5)
        ranks = types.SimpleNamespace(**vars(models.make_config()) | {"moe_expert_rank_capacity_factor": 1.5})
        for said, option in (
            (config, "moe_expert_capacity_factor=0.5"),
            (ranks, "moe_expert_rank_capacity_factor=1.5"),
        ):
            with self.subTest(option):
                model = models.Model(config, [1, 2, 3, 4])
                rollout = Rollout(config, 1)
                with self.assertRaisesRegex(errors.FailedPreconditionError, option):
                    megatron.attach(model, said, source=rollout.source)
                self.assertNotIn("get_replay_topk", vars(models.moe_layers(model)[0].mlp.router.router_replay))
                for options in ({"missing": "live"}, {"missing": "drop"}, {"mode": "shadow"}):
                    with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
                        megatron.attach(model, said, source=rollout.source, **options).detach()
                    self.assertEqual(len(logged.output), 1)
                    self.assertIn(option, logged.output[0])
                with self.assertNoLogs("routing_replay_trainer"):
                    megatron.attach(model, said, mode="disabled")


class MemoryTest(MegatronCase):
    def test_what_a_watched_pass_keeps_is_narrow(self) -> None:
        for experts, dtype in ((8, torch.uint8), (300, torch.int16)):
            config = models.make_config(num_moe_experts=experts)
            model = models.Model(config, [1, 2, 3, 4])
            rollout = Rollout(config, 3)
            replay = self.attach(model, config, rollout.source)
            with replay.micro_batch(rollout.samples(0), packed_seq_params=rollout.packed(0), index=0):
                output = model(self.hidden(0).requires_grad_())
            of = replay._chunks[0].passes._flying
            (kept,) = (one.kept for one in of.values())
            used = [choice for key, choice in kept.items() if key[0] == "used"]
            self.assertEqual({choice.dtype for choice in used}, {dtype})
            self.assertEqual(sum(choice.numel() for choice in used), 4 * 2 * sum(LENGTHS[0]))
            (seen,) = replay._watch._seen.values()
            for ids in (*seen.live.values(), *seen.replayed.values()):
                self.assertEqual(ids.element_size(), 1 if experts <= 256 else 2)
            output.sum().backward()
            replay.end_step()


del MegatronTest  # Needed only as a base class; its own file runs its tests.

if __name__ == "__main__":
    unittest.main()
