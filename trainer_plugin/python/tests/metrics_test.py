"""Metrics of one rank, their reduction over all ranks as `KEYS` says, and the mismatch of log-probabilities."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from local_group import LocalCollective, LocalGroup
from routing_replay import errors

from routing_replay_trainer.metrics import KEYS, PREFIX, Counters, layer_key, mismatch


def on_ranks(size: int, body: Callable[[Any], Any]) -> list[Any]:
    """Runs `body` for each rank of a collective, each in a thread of its own, and returns the results."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, LocalGroup(size)))


class CountersTest(unittest.TestCase):
    def test_the_table(self) -> None:
        self.assertEqual(len({key.name for key in KEYS}), len(KEYS))
        for key in KEYS:
            self.assertIn(key.reduction, ("sum", "max", "min", "ratio"))
            self.assertTrue(key.meaning)

    def test_one_rank(self) -> None:
        counters = Counters()
        for value in (3, 5, 4):
            counters.count("replayed_rows", value)
            counters.count("step_samples", value)
            counters.ratio(layer_key("overlap", 7), value, 10)
        counters.ratio("no_overlap_fraction", 0, 0)
        self.assertEqual(
            counters.report(),
            {PREFIX + "replayed_rows": 12, PREFIX + "step_samples": 5, PREFIX + "overlap/layer_07": 0.4},
        )

    def test_over_ranks(self) -> None:
        def body(rank: LocalCollective) -> dict[str, float]:
            counters = Counters()
            counters.count("pad_rows", rank.rank + 1)
            counters.count("fetch_wait_s", rank.rank * 0.5)
            counters.ratio("replayed_fraction", rank.rank, rank.rank + 1)
            counters.ratio(layer_key("overlap", rank.rank), 1, 2)  # Each rank has another layer, as pipeline stages do.
            return counters.report(rank)

        reports = on_ranks(4, body)
        self.assertEqual(reports, [reports[0]] * 4)
        expected = {"pad_rows": 10, "fetch_wait_s": 1.5, "replayed_fraction": 0.6}
        expected |= {layer_key("overlap", layer): 0.5 for layer in range(4)}
        self.assertEqual(reports[0], {PREFIX + name: value for name, value in expected.items()})


class MismatchTest(unittest.TestCase):
    def test_against_the_formulas(self) -> None:
        random = np.random.default_rng(1)
        rollout, train = -random.random((3, 50)), -random.random((3, 50))
        train[0, :5] -= 1.0
        train[1, :5] += 1.0
        mask = random.random((3, 50)) < 0.7
        k3, difference, far = 0.0, 0.0, 0
        for q, p in zip(rollout[mask], train[mask], strict=True):
            ratio = np.exp(p) / np.exp(q)
            k3 += ratio - 1 - np.log(ratio)
            difference += abs(p - q)
            far += ratio > 2 or ratio < 0.5
        said = mismatch(rollout, train, mask)
        self.assertAlmostEqual(said[PREFIX + "mismatch/k3_kl"], k3 / mask.sum())
        self.assertAlmostEqual(said[PREFIX + "mismatch/mean_abs_diff"], difference / mask.sum())
        self.assertAlmostEqual(said[PREFIX + "mismatch/fraction_above_2x"], far / mask.sum())
        self.assertGreater(far, 0)
        self.assertEqual(mismatch(rollout, train, np.zeros_like(mask)), {})
        equal = mismatch(rollout, rollout)
        self.assertEqual(set(equal.values()), {0.0})

    def test_the_mean_of_k3_is_the_divergence(self) -> None:
        random = np.random.default_rng(2)
        q, p = random.dirichlet(np.ones(6)), random.dirichlet(np.ones(6))
        tokens = random.choice(6, 200_000, p=q)
        said = mismatch(np.log(q)[tokens], np.log(p)[tokens])[PREFIX + "mismatch/k3_kl"]
        self.assertAlmostEqual(said, float((q * np.log(q / p)).sum()), delta=0.02)

    def test_over_ranks(self) -> None:
        random = np.random.default_rng(3)
        rollout, train = -random.random((2, 40)), -random.random((2, 40))
        cut = [slice(0, 10), slice(10, 40)]
        reports = on_ranks(2, lambda rank: mismatch(rollout[:, cut[rank.rank]], train[:, cut[rank.rank]], reduce=rank))
        whole = mismatch(rollout, train)
        for name, value in reports[0].items():
            self.assertAlmostEqual(value, whole[name])

    def test_torch(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        rollout = torch.randn(4, 9, dtype=torch.bfloat16)
        train = torch.randn(4, 9, requires_grad=True)
        said = mismatch(rollout, train, torch.ones(4, 9, dtype=torch.bool))
        self.assertEqual(said, mismatch(rollout.double().numpy(), train.detach().double().numpy()))

    def test_rejections(self) -> None:
        for name, call in (
            ("train_logprobs", lambda: mismatch([1.0], [1.0, 2.0])),
            ("mask", lambda: mismatch([1.0], [1.0], [1, 1])),
            ("rollout_logprobs", lambda: mismatch(["a"], [1.0])),
        ):
            with self.assertRaises(errors.InvalidArgumentError) as caught:
                call()
            self.assertEqual(caught.exception.field, name)


if __name__ == "__main__":
    unittest.main()
