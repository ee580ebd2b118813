"""The watch in Megatron-Core's real routers: it names shifts, shadow changes nothing, and recompute repeats forward."""

from __future__ import annotations

import copy
import sys
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import megatron
from routing_replay_trainer.step import StepSource

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import megatron_models as models
    import torch
    from host_queue import HostQueue

    from routing_replay_trainer._device_buffers import DeviceBuffers
    from routing_replay_trainer.megatron import _replay
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)

LENGTHS = ((70, 41, 90), (100, 66))  # Tokens, per micro-batch.
LAYERS = 4


class Rollout:
    """The choices of a model for random tokens, as rows of its samples."""

    def __init__(self, model: Any) -> None:
        self.geometry = {"num_layers": LAYERS, "num_experts": 8, "top_k": 2}
        self.rows: dict[str, np.ndarray] = {}
        for index, lengths in enumerate(LENGTHS):
            with torch.no_grad():
                model(hidden(index))
            seen = [moe.seen.pop()[1] for moe in models.moe_layers(model).values()]
            chosen = torch.stack([routed.nonzero()[:, 1].view(-1, 2) for routed in seen], dim=1)
            for place, rows in enumerate(chosen.split(lengths)):
                self.rows[f"{index}/{place}"] = rows[:-1].int().numpy()

    def source(self, *, rows: int = 0, layers: int = 0) -> trainer.LocalSource:
        """Returns a source whose samples have the routes of other tokens and layers: shifted by `rows` and `layers`."""
        source = trainer.LocalSource(self.geometry)
        for name, ids in self.rows.items():
            source.add(name, np.roll(ids, (rows, layers), (0, 1)))
        return source


def hidden(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(sum(LENGTHS[index]), 1, models.HIDDEN, generator=generator)


def packed(index: int) -> Any:
    ends = np.cumsum([0, *LENGTHS[index]])
    return types.SimpleNamespace(
        qkv_format="thd", cu_seqlens_q=torch.tensor(ends), cu_seqlens_q_padded=None, total_tokens=None
    )


def run_step(replay: Any, model: Any) -> list[torch.Tensor]:
    outputs = []
    for index, lengths in enumerate(LENGTHS):
        samples = [f"{index}/{place}" for place in range(len(lengths))]
        with replay.micro_batch(samples, packed_seq_params=packed(index), index=index):
            outputs.append(model(hidden(index).requires_grad_()))
        outputs[-1].square().sum().backward()
    replay.end_step()
    return outputs


class Versioned(StepSource):
    """A source that reports these weight versions for its samples."""

    def __init__(self, source: Any, weights: dict[str, Any]) -> None:
        super().__init__(source, cache_bytes=0)
        self._weights = weights

    def inspect(self, sequences: Any, **options: Any) -> Any:
        records = super().inspect(sequences, **options)
        for sequence, record in zip(sequences, records, strict=True):
            record["weights"] = self._weights.get(sequence.sample, [[0, 10, 7, ""]])
        return records


class WatchTest(unittest.TestCase):
    def setUp(self) -> None:
        models.set_up(self)
        self.config = models.make_config(recompute_granularity="selective", recompute_modules=["moe"])
        self.model = models.Model(self.config, [1, 2, 3, 4])
        self.rollout = Rollout(self.model)

    def attach(self, source: Any, **options: Any) -> Any:
        replay = megatron.attach(self.model, self.config, source=source, ranks={}, **options)
        self.addCleanup(replay.detach)
        return replay

    def test_shifts_are_named_within_a_step(self) -> None:
        for options in ({"inject": "native"}, {"inject": "fused"}, {"mode": "shadow"}):
            for shift, name in (({"rows": 1}, "one_row_late"), ({"rows": -1}, "one_row_early")):
                with self.subTest(name, **options):
                    replay = self.attach(self.rollout.source(**shift), **options)
                    with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
                        run_step(replay, self.model)
                        run_step(replay, self.model)
                    self.assertEqual(len(logged.output), 1)
                    self.assertIn(name, logged.output[0])
                    self.assertRegex(logged.output[0], r"sample 0/\d .* layer \d")
                    self.assertEqual(replay.metrics()["routing_replay/no_overlap_alarms"], 2.0)
                    replay.detach()
        replay = self.attach(self.rollout.source(layers=1), mode="shadow")
        with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
            run_step(replay, self.model)
        self.assertIn("one_layer_before", logged.output[0])

    def test_drift_is_no_alarm(self) -> None:
        with torch.no_grad():
            for moe in models.moe_layers(self.model).values():
                moe.mlp.router.weight.add_(torch.randn_like(moe.mlp.router.weight), alpha=0.005)
        for options in ({"inject": "native"}, {"inject": "fused"}, {"mode": "shadow"}):
            replay = self.attach(self.rollout.source(), **options)
            with self.assertNoLogs("routing_replay_trainer"):
                run_step(replay, self.model)
            said = replay.metrics()
            self.assertEqual(said["routing_replay/no_overlap_alarms"], 0.0)
            self.assertGreater(said["routing_replay/no_overlap_fraction"], 0.01)
            self.assertGreater(said["routing_replay/live_mismatch/layer_00"], 0.0)
            replay.detach()

    def test_shadow_is_bit_equal(self) -> None:
        """Shadow changes nothing, whatever is watched, and however wrong the record is."""
        for options in ({"inject": "native"}, {"inject": "fused"}):
            live = copy.deepcopy(self.model)
            shadowed = copy.deepcopy(self.model)
            replay = megatron.attach(
                shadowed, self.config, source=self.rollout.source(rows=1), mode="shadow", ranks={}, **options
            )
            with self.assertLogs("routing_replay_trainer", "WARNING"):
                ours = run_step(replay, shadowed)
            for index, output in enumerate(ours):
                expected = live(hidden(index).requires_grad_())
                expected.square().sum().backward()
                self.assertTrue(torch.equal(output, expected))
            for a, b in zip(shadowed.parameters(), live.parameters(), strict=True):
                self.assertTrue(torch.equal(a.grad, b.grad))
            replay.detach()

    def test_watching_changes_no_replay(self) -> None:
        for inject in ("native", "fused"):
            outputs = []
            for watch in ("off", "first", "all"):
                model = copy.deepcopy(self.model)
                replay = megatron.attach(
                    model, self.config, source=self.rollout.source(), inject=inject, ranks={}, watch=watch
                )
                outputs.append([*run_step(replay, model), *(p.grad for p in model.parameters())])
                said = replay.metrics()
                watched = sum(
                    sum(lengths) - len(lengths) for lengths in LENGTHS[: {"off": 0, "first": 1}.get(watch, 2)]
                )
                self.assertEqual("routing_replay/overlap/layer_00" in said, watched > 0)
                if watched:
                    self.assertEqual(said["routing_replay/overlap/layer_00"], 1.0)
                    self.assertEqual(said["routing_replay/live_mismatch/layer_03"], 0.0)
                    self.assertEqual(said["routing_replay/recompute_mismatch/layer_03"], 0.0)
                replay.detach()
            for other in outputs[1:]:
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(outputs[0], other, strict=True)))

    def test_a_recompute_that_differs_is_counted(self) -> None:
        """The weights of a router change between forward and backward, in a mode in which rows take the live choice."""
        for inject in ("native", "fused"):
            replay = self.attach(self.rollout.source(), inject=inject, mode="shadow")
            samples = [f"0/{place}" for place in range(len(LENGTHS[0]))]
            with replay.micro_batch(samples, packed_seq_params=packed(0), index=0):
                output = self.model(hidden(0).requires_grad_())
            with torch.no_grad():
                weight = models.moe_layers(self.model)[2].mlp.router.weight
                weight.copy_(weight.flip(0))
            output.sum().backward()
            with torch.no_grad():
                weight.copy_(weight.flip(0))
            replay.end_step()
            said = replay.metrics()
            self.assertGreater(said["routing_replay/recompute_mismatch/layer_02"], sum(LENGTHS[0]) / 2)
            self.assertEqual(said["routing_replay/recompute_mismatch/layer_01"], 0.0)
            replay.detach()

    def test_on_policy(self) -> None:
        mixed = {"1/0": [[0, 5, 6, ""], [5, 99, 7, ""]]}
        lengths = [n for one in LENGTHS for n in one]
        names = [f"{index}/{place}" for index, one in enumerate(LENGTHS) for place in range(len(one))]
        replay = self.attach(self.rollout.source(), on_policy="strict")
        replay._steps.source = Versioned(self.rollout.source(), mixed)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "begin_step comes first"):
            run_step(replay, self.model)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "sample 1/0.*rows 0 … 4 of version 6.*version 7"):
            replay.begin_step(names, lengths=lengths)
        replay.detach()
        replay = self.attach(self.rollout.source())
        replay._steps.source = Versioned(self.rollout.source(), mixed)
        replay.begin_step(names, lengths=lengths)
        run_step(replay, self.model)
        said = replay.metrics()
        self.assertEqual(said["routing_replay/weight_version/mixed_ratio"], 1 / 5)
        self.assertEqual(said["routing_replay/weight_version/oldest"], 6.0)


class StagedWatchTest(WatchTest):
    """Runs the tests of WatchTest with index buffers as on a GPU, on a queue that the CPU simulates."""

    def setUp(self) -> None:
        super().setUp()
        staged = mock.patch.object(_replay, "buffers_for", lambda module: DeviceBuffers(HostQueue()))
        staged.start()
        self.addCleanup(staged.stop)


if __name__ == "__main__":
    unittest.main()
