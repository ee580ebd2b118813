"""Megatron-Core's own GPTModel under its own schedules, on four and on eight ranks."""

from __future__ import annotations

import unittest
from typing import Any

import steps
from common.ranks import on_ranks
from gpt import Layout


class RanksTest(unittest.TestCase):
    def check(self, world: int, layouts: dict[Layout, list[dict[str, Any]]]) -> None:
        def work() -> list[int]:
            return [steps.replays(layout, **options) for layout, cases in layouts.items() for options in cases]

        said = on_ranks(world, work)
        for rows in said:
            self.assertTrue(all(rows), rows)
        print(f"{world} ranks: {sum(map(sum, said))} rows and layers as recorded")

    def test_four(self) -> None:
        self.check(
            4,
            {
                Layout(tp=2, pp=2): [
                    {"inject": "native", "recompute": "none"},
                    {"inject": "fused", "recompute": "moe"},
                    {"inject": "native", "recompute": "full", "packed": True},
                ],
                Layout(tp=2, cp=2): [
                    {"inject": "native", "recompute": "moe"},
                    {"inject": "fused", "recompute": "full"},
                    {"inject": "native", "recompute": "none", "packed": True},
                ],
                Layout(pp=2, vpp=2, ep=2): [
                    {"inject": "native", "recompute": "full"},
                    {"inject": "native", "recompute": "moe", "staged": True},
                    {"inject": "fused", "recompute": "none", "packed": True},
                ],
                Layout(ep=4): [
                    {"inject": "native", "recompute": "moe", "moe_token_dispatcher_type": "allgather"},
                    {"inject": "fused", "recompute": "full", "packed": True},
                ],
                Layout(pp=4): [{"inject": "native", "recompute": "moe", "shared": True}],
                Layout(cp=4): [{"inject": "native", "recompute": "full", "packed": True}],
            },
        )

    def test_eight(self) -> None:
        self.check(
            8,
            {
                Layout(tp=2, pp=2, vpp=2, cp=2, ep=4): [
                    {"inject": "native", "recompute": "full"},
                    {"inject": "fused", "recompute": "moe", "packed": True},
                ],
                Layout(tp=2, pp=2, ep=2): [{"inject": "native", "recompute": "none", "packed": True}],
            },
        )


if __name__ == "__main__":
    unittest.main()
