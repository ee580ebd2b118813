"""Metrics of a rank and of all of them, by the key table."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from local_group import LocalCollective, LocalGroup

import routing_replay_trainer as trainer
from routing_replay_trainer.metrics import KEYS, PREFIX, Counters, layer_key


def on_ranks(size: int, body: Callable[[Any], Any]) -> list[Any]:
    """Threads as the ranks of a collective."""
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
            counters.count("weight_lag_max", value)
            counters.ratio(layer_key("overlap", 7), value, 10)
        counters.ratio("no_overlap_fraction", 0, 0)
        self.assertEqual(
            counters.report(),
            {PREFIX + "replayed_rows": 12, PREFIX + "weight_lag_max": 5, PREFIX + "overlap/layer_07": 0.4},
        )

    def test_over_ranks(self) -> None:
        def body(rank: LocalCollective) -> dict[str, float]:
            counters = Counters()
            counters.count("pad_rows", rank.rank + 1)
            counters.count("fetch_wait_s", rank.rank * 0.5)
            counters.ratio("replayed_fraction", rank.rank, rank.rank + 1)
            counters.ratio(layer_key("overlap", rank.rank), 1, 2)  # Its pipeline stage's.
            return counters.report(rank)

        reports = on_ranks(4, body)
        self.assertEqual(reports, [reports[0]] * 4)
        expected = {"pad_rows": 10, "fetch_wait_s": 1.5, "replayed_fraction": 0.6}
        expected |= {layer_key("overlap", layer): 0.5 for layer in range(4)}
        self.assertEqual(reports[0], {PREFIX + name: value for name, value in expected.items()})

    def test_names_that_are_none(self) -> None:
        counters = Counters()
        for call in (
            lambda: counters.count("replayed_row", 1),
            lambda: counters.count("replayed_fraction", 1),
            lambda: counters.ratio("pad_rows", 1, 2),
        ):
            with self.assertRaises(trainer.InvalidArgumentError):
                call()


if __name__ == "__main__":
    unittest.main()
