"""Compares the experts that an engine returned and the service stored with those that transformers choose in fp32 with
the same weights.

An engine's tests keep their answers (`Kept`). Afterwards, in a process without the engine, `python3 -m common.chosen
KEPT MODELS` (from tests/peers) compares them as sets per token and MoE layer.
"""

from __future__ import annotations

import collections
import json
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Piece(NamedTuple):
    """Rows up to `end` were routed by `model`. It also computed all earlier tokens, unless it `goes_on` with the cache
    that the previous model left."""

    end: int
    model: str
    goes_on: bool = False


class Kept:
    """The answers of one test, in a file FOLDER/NAME.npz."""

    def __init__(self, folder: str | Path, name: str) -> None:
        self._path = Path(folder, f"{name}.npz")
        self._answers: list[dict[str, Any]] = []
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, case: str, tokens: Sequence[int], stored: Any, pieces: str | list[Piece]) -> None:
        """stored: rows [T - 1, MoE layers, K] from the service, which were equal to the engine's
        pieces: the model's name, or the rows that each model routed
        """
        rows = np.asarray(stored)
        assert rows.shape[0] == len(tokens) - 1, f"{case}: {len(tokens)} tokens, {rows.shape[0]} rows"
        self._arrays[f"rows{len(self._answers)}"] = rows
        pieces = [Piece(len(tokens) - 1, pieces)] if isinstance(pieces, str) else pieces
        self._answers.append({"case": case, "tokens": [int(token) for token in tokens], "pieces": pieces})

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(self._path, answers=json.dumps(self._answers), **self._arrays)


class Chooser:
    """A transformers model in fp32 whose routers record their choice."""

    def __init__(self, folder: str | Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
        self._told: list[Any] = []
        for name, module in self.model.named_modules():
            if name.endswith(".gate"):  # Returns logits, weights and indices.
                module.register_forward_hook(lambda _module, _inputs, output: self._told.append(output[2]))

    def rows(self, tokens: Sequence[int], cache: Any) -> np.ndarray:
        """The experts of these tokens, which continue the tokens in the cache: [T, MoE layers, K]."""
        import torch

        self._told.clear()
        with torch.no_grad():
            self.model(torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True)
        return torch.stack(self._told, 1).numpy()


class Choosers:
    """The models by name, each loaded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, Chooser] = {}

    def rows(self, tokens: Sequence[int], pieces: list[Piece]) -> np.ndarray:
        """The experts of all tokens except the last."""
        from transformers import DynamicCache

        cache, begin, found = None, 0, []
        for piece in pieces:
            if piece.model not in self._loaded:
                self._loaded[piece.model] = Chooser(self._folder / piece.model)
            done = begin if piece.goes_on else 0
            cache = cache if piece.goes_on else DynamicCache()
            found.append(self._loaded[piece.model].rows(tokens[done : piece.end], cache)[begin - done :])
            begin = piece.end
        return np.concatenate(found)


def equal_sets(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Per token and layer: whether the experts are the same sets."""
    return (np.sort(ours, -1) == np.sort(theirs.astype(np.int64), -1)).all(-1)


def compare(kept: Path, models: Path) -> tuple[int, int, int]:
    """The number of compared sets, of equal ones, and of those that are equal if rows are shifted by one (a few are, by
    chance). Writes details by case."""
    by_case: dict[str, collections.Counter[str]] = {}
    choosers = Choosers(models)
    for path in sorted(kept.glob("*.npz")):
        with np.load(path) as arrays:
            for number, answer in enumerate(json.loads(str(arrays["answers"]))):
                pieces, stored = [Piece(*piece) for piece in answer["pieces"]], arrays[f"rows{number}"]
                chosen = choosers.rows(answer["tokens"], pieces)
                said = by_case.setdefault(f"{path.stem}: {answer['case']} ({pieces[-1].model})", collections.Counter())
                said["sets"] += stored.shape[0] * stored.shape[1]
                said["equal"] += int(equal_sets(chosen, stored).sum())
                said["moved"] += int(equal_sets(chosen, np.roll(stored, 1, axis=0)).sum())
    for case, said in by_case.items():
        print(f"{case:64s} {said['equal']:6d} of {said['sets']:6d} sets, {said['moved']:5d} with rows moved by one")
    total = sum(by_case.values(), collections.Counter())
    print(f"{'all':64s} {total['equal']:6d} of {total['sets']:6d} sets, {total['moved']:5d} with rows moved by one")
    return total["sets"], total["equal"], total["moved"]


class ChosenTest(unittest.TestCase):
    LEAST = 10_000

    def test_all_sets_are_equal(self) -> None:
        sets, equal, moved = compare(Path(sys.argv[1]), Path(sys.argv[2]))
        self.assertEqual(equal, sets)
        self.assertGreaterEqual(sets, self.LEAST)
        self.assertLess(moved, sets / 10, "rows shifted by one are not distinguished")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
