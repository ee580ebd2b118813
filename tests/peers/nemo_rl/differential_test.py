"""NeMo-RL's own R3 compared with ours: the same rollout through both must give the same experts at the routers and the
same gradients."""

from __future__ import annotations

import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import routing_replay as rr
import sides
import torch
from common.ranks import on_ranks
from gpt import Layout


def step(
    layout: Layout, packed: bool, recompute: str, service: bool, *, moved: int = 0, filler: Any = None
) -> tuple[sides.Passes, list[dict[str, torch.Tensor]], list[list[int]], Counter[str]]:
    """Makes one rollout and a training step on it. Returns the choices of this rank's routers, the gradients, the
    engine's answers, and the counts of `sides.fill`."""
    layout.start()
    sides.install(service)
    config = sides.config_of(layout, packed)
    made: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        made = [sides.rollout(config, moved)]
    torch.distributed.broadcast_object_list(made)
    data, answers = made[0]
    assert data["routed_experts"].shape[2:] == ((1, 1) if service else (sides.LAYERS, 2))
    policy = sides.policy_of(config, layout, recompute)
    worker = policy.worker_group.worker
    found = Counter() if filler is None else sides.fill(worker.model.module, filler)
    said = sides.passes(policy, data)
    if service:
        sides.of_trainer.replay.detach()
        sides.of_trainer.replay = None
    return said, worker.gradients, answers, found


def largest(ours: Any, theirs: Any) -> float:
    """Returns the largest difference between the two sides' gradients."""
    assert len(ours) == len(theirs) == 2
    return max((a[name] - b[name]).abs().max().item() for a, b in zip(ours, theirs, strict=True) for name in a)


def body(layout: Layout, packed: bool, recompute: str) -> Any:
    """Makes the same step with NeMo-RL's own R3, with ours, with ours and routes that are one row late, and with
    NeMo-RL's and the filler of ours. Returns:

    1. by pass, for all ranks together: the number of recorded rows; how many of them are missing in ours and in
    NeMo-RL's; how many rows differ between NeMo-RL's and ours; how many between NeMo-RL's and ours with late routes;
    the number of all rows of NeMo-RL's
    2. the largest difference of gradients between NeMo-RL's and ours
    3. the same if NeMo-RL's has the filler of ours
    4. the counts of `sides.fill` for this rank
    """
    theirs, theirs_gradients, answers, _ = step(layout, packed, recompute, False)
    ours, gradients, _, _ = step(layout, packed, recompute, True)
    moved, _, _, _ = step(layout, packed, recompute, True, moved=1)
    # NeMo-RL and we fill rows without a route (last rows, padding, the environment's tokens) with different experts,
    # which changes the rounding of sums. So this step gives NeMo-RL our filler.
    _, filled, _, with_route = step(layout, packed, recompute, False, filler=ours)

    def differing(one: sides.Passes, name: str) -> int:
        pairs = ((a, b) for layer, maps in theirs[name].items() for a, b in zip(one[name][layer], maps, strict=True))
        return sum(int((a != b).any(1).sum()) for a, b in pairs)

    found = {}
    for name in ours:
        mine = [sides.counted(ours[name]), sides.counted(theirs[name]), differing(ours, name), differing(moved, name)]
        every: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(every, mine)
        of_ours, of_theirs = (sum((one[i] for one in every), start=Counter()) for i in (0, 1))
        told = sides.recorded(answers, times=2 if name == "training" and recompute != "none" else 1)
        missing = (told - of_ours).total(), (told - of_theirs).total()
        found[name] = (told.total(), missing, *(sum(one[i] for one in every) for i in (2, 3)), of_theirs.total())
    return found, largest(gradients, theirs_gradients), largest(gradients, filled), with_route


class DifferentialTest(unittest.TestCase):
    def test_beside_nemo_rls_own(self) -> None:
        with tempfile.TemporaryDirectory() as folder, rr.local_server():
            sides.checkpoint(Path(folder))
            for layout, packed, recompute in (
                (Layout(), False, "none"),
                (Layout(), False, "full"),
                (Layout(tp=2), False, "moe"),
                (Layout(pp=2), False, "none"),
                (Layout(), True, "none"),
                (Layout(cp=2), True, "moe"),
                (Layout(pp=2), True, "full"),
                (Layout(tp=2), True, "moe"),
                (Layout(tp=2, cp=2), True, "none"),
            ):
                with self.subTest(layout=layout, packed=packed, recompute=recompute):
                    said = on_ranks(layout.cp * layout.pp * layout.tp, body, layout, packed, recompute)
                    for found, apart, alike, _ in said:
                        for name, (rows, missing, different, shifted, every) in found.items():
                            if name == "reference":
                                self.assertEqual((different, shifted), (0, 0))
                                self.assertGreater(min(missing), rows // 4)
                                continue
                            self.assertEqual(missing, (0, 0), name)
                            self.assertLessEqual(different, every - rows, name)
                            # The check must detect routes that are one row late.
                            self.assertGreater(shifted, rows // 2, name)
                        self.assertEqual(alike, 0.0)
                        self.assertLess(apart, 1e-6)
                    rows = sum(found[name][0] for name in ("log-probabilities", "training"))
                    with_route = sum((one[3] for one in said), start=Counter())
                    self.assertEqual((with_route["routed"], with_route["different"]), (rows, 0))
                    shape = "packed" if packed else "rectangles"
                    apart = max(one[1] for one in said)
                    print(f"{layout}, {shape}, recompute {recompute}: {rows} rows and layers in both")
                    print(f"    gradients {alike} apart, {apart:.1e} with another filler")


if __name__ == "__main__":
    unittest.main()
