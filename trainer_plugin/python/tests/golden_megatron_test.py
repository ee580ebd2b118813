"""Tests that golden_megatron.py checks every value of a golden file: if one is changed, the case fails."""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import golden_megatron as golden
    import torch
except (ImportError, SystemExit):  # golden_megatron exits if something is not installed.
    print("SKIPPED: tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)
if shutil.which("zstd") is None:
    print("SKIPPED: no zstd program to read the golden files with")
    sys.exit(SKIPPED)

DATA = Path(os.environ["ROUTING_REPLAY_GOLDEN_DATA"]) / "megatron"
CASES_PER_FILE = 12
VALUES_PER_FIELD = 2  # Number of values to change per array, which may be long.

Place = tuple[Any, ...]


def leaves(value: Any, at: Place = ()) -> Iterator[Place]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*at, key))
    else:
        yield at


def field(place: Place) -> str:
    return ".".join(re.sub(r"^\d+$", "*", str(key)) for key in place)


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return "ValueError" if value is None else f"{value}t"


def is_checked(value: Any) -> bool:
    """Returns False for "nan" and "inf": if Megatron's value is one of these, any value is accepted."""
    return not (isinstance(value, str) and value.lstrip("-") in ("nan", "inf"))


class MutationTest(unittest.TestCase):
    def test_any_changed_value_fails(self) -> None:
        choose = random.Random(1)
        for stem, kind in golden.KINDS.items():
            with self.subTest(stem):
                cases = golden.load(DATA / f"{stem}.json.zst")
                count = 0
                for case in cases[:: max(1, len(cases) // CASES_PER_FILE)]:
                    if golden.run(kind, case)["verdict"] != "passed":
                        continue  # A case that this megatron-core cannot run.
                    fields: dict[str, list[Place]] = {}
                    for place in leaves(case["expect"]):
                        fields.setdefault(field(place), []).append(place)
                    for places in fields.values():
                        for place in choose.sample(places, min(VALUES_PER_FIELD, len(places))):
                            count += self.change(kind, case, place)
                self.assertGreater(count, 50)

    def change(self, kind: Any, case: dict[str, Any], place: Place) -> bool:
        holder = case["expect"]
        for key in place[:-1]:
            holder = holder[key]
        right = holder[place[-1]]
        if not is_checked(right):
            return False
        holder[place[-1]] = changed(right)
        verdict = golden.run(kind, case)["verdict"]
        holder[place[-1]] = right
        self.assertEqual(verdict, "failed", f"{case['name']}: {place}, {right!r}")
        return True


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    unittest.main()
