"""ms-swift's own R3 compared with ours, with the README's two lines: the same rollout through both must give the same
experts at the routers and the same gradients."""

from __future__ import annotations

import types
import unittest
from collections import Counter
from typing import Any

import routing_replay as rr
import sides
from common.ranks import on_ranks
from gpt import Layout

LAYOUTS = {
    "packed": (Layout(), "none", {}),
    "packed, full recompute": (Layout(), "full", {}),
    # Only one row (sample) per micro-batch: with several, ms-swift's own R3 mixes up the routes of the samples.
    "rectangles of one row, MoE recompute": (Layout(), "moe", {"padding_free": False, "micro_batch_size": 1}),
    # Experts are not divided among ranks (ETP 1): for rows without a route, ms-swift's own R3 names one expert twice,
    # and gloo could not gather the parts.
    "packed, TP 2, EP 2": (Layout(tp=2, ep=2), "none", {}),
    "packed, PP 2": (Layout(pp=2), "none", {}),
    "rectangles of one row, CP 2": (Layout(cp=2), "none", {"padding_free": False, "micro_batch_size": 1}),
    "packed, CP 2": (Layout(cp=2), "none", {}),
}
# How much the gradients may differ. Rows without a route (last rows, padding) have other experts than with ms-swift's
# own R3, which changes the rounding of sums.
BOUND = 1e-6


def step(service: bool, layout: Layout, recompute: str, said: dict[str, Any], moved: int) -> Any:
    """Makes one rollout, and two training steps on it, on one rank. With `service` our lines replay, otherwise
    ms-swift's own R3."""
    if service:
        sides.with_lines()
    server = sides.Server(moved)
    more = {"num_microbatches": sides.SAMPLES // 2 // said.get("micro_batch_size", 2)}
    trainer = sides.trainer_of(layout, recompute, server, **said, **more)
    prompts = sides.prompts(trainer.args.micro_batch_size)
    for _ in range(2):
        trainer.train_step(prompts)
    seen = trainer.seen
    maps = {layer: [one.numpy() for one in calls] for layer, calls in seen.actor.maps.items()}
    return types.SimpleNamespace(answered=server.answered, maps=maps, gradients=seen.gradients)


def differing(some: list[Any], others: list[Any]) -> int:
    """Returns how many rows of all ranks' routers have different experts on the two sides."""
    count = 0
    for one, other in zip(some, others, strict=True):
        assert one.maps.keys() == other.maps.keys()
        for layer in one.maps:
            pairs = zip(one.maps[layer], other.maps[layer], strict=True)
            count += sum(int((a != b).any(1).sum()) for a, b in pairs)
    return count


def apart(some: list[Any], others: list[Any]) -> float:
    """Returns the largest difference between the gradients of the two sides."""
    pairs = [(one.gradients, other.gradients) for one, other in zip(some, others, strict=True)]
    steps = [step for both in pairs for step in zip(*both, strict=True)]
    assert len(steps) == 2 * len(some) and all(a.keys() == b.keys() for a, b in steps)
    return max(float(abs(a[name] - b[name]).max()) for a, b in steps for name in a)


class DifferentialTest(unittest.TestCase):
    def test_beside_ms_swifts_own(self) -> None:
        with rr.local_server():
            for name, (layout, recompute, said) in LAYOUTS.items():
                with self.subTest(name):
                    self.compare(name, layout, recompute, said)

    def compare(self, name: str, layout: Layout, recompute: str, said: dict[str, Any]) -> None:
        world = layout.cp * layout.pp * layout.tp
        theirs = on_ranks(world, step, False, layout, recompute, said, 0)
        ours = on_ranks(world, step, True, layout, recompute, said, 0)
        moved = on_ranks(world, step, True, layout, recompute, said, 1)
        [tokens] = [one.answered for one in ours if one.answered]
        self.assertEqual([tokens], [one.answered for one in theirs if one.answered])
        told = sides.recorded(tokens, times=2 if recompute == "none" else 3)
        for side in (theirs, ours):
            seen = sum((sides.counted(one.maps) for one in side), start=Counter())
            self.assertEqual((told - seen).total(), 0)
        without = seen.total() - told.total()
        difference = apart(ours, theirs)
        print(f"{name}: {told.total()} rows and layers in both, gradients {difference:.1e} apart", flush=True)
        self.assertLessEqual(differing(ours, theirs), without)
        self.assertLessEqual(difference, BOUND)
        # The check must detect routes that are one row late.
        self.assertGreater(differing(moved, theirs), told.total() // 2)
        self.assertGreater(apart(moved, theirs), 100 * BOUND)


if __name__ == "__main__":
    unittest.main()
