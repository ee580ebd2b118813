"""Compares the experts that an engine has returned and the service has stored with those that the same model chooses in
the library transformers, in fp32.

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
    """The rows of an answer from the end of the previous piece up to `end`, which `model` has routed. The model has
    also computed all earlier tokens itself, unless it `goes_on` with the keys and values that the previous model has
    left in the cache."""

    end: int
    model: str
    goes_on: bool = False


class Kept:
    """Keeps the answers of one test, and writes them to the file FOLDER/NAME.npz."""

    def __init__(self, folder: str | Path, name: str) -> None:
        self._path = Path(folder, f"{name}.npz")
        self._answers: list[dict[str, Any]] = []
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, case: str, tokens: Sequence[int], stored: Any, pieces: str | list[Piece]) -> None:
        """stored: the rows [T - 1, MoE layers, K] of the service, which the test has found equal to the engine's
        pieces: the name of the model, or, if several models have routed the rows, the piece of each
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
            if name.endswith(".gate"):  # The output of a router is (logits, weights, indices).
                module.register_forward_hook(lambda _module, _inputs, output: self._told.append(output[2]))

    def rows(self, tokens: Sequence[int], cache: Any) -> np.ndarray:
        """Computes these tokens, which follow those in the cache. Returns the experts [tokens, MoE layers, K]."""
        import torch

        self._told.clear()
        with torch.no_grad():
            self.model(torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True)
        return torch.stack(self._told, 1).numpy()


class Choosers:
    """Loads each model once, when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, Chooser] = {}

    def rows(self, tokens: Sequence[int], pieces: list[Piece]) -> np.ndarray:
        """Returns the experts that these models choose for all tokens except the last: [T - 1, MoE layers, K]."""
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
    """Returns for each token and layer whether both have the same set of experts, in any order."""
    return (np.sort(ours, -1) == np.sort(theirs.astype(np.int64), -1)).all(-1)


def compare(kept: Path, models: Path) -> tuple[int, int, int]:
    """Returns three numbers of sets (the experts of one token in one layer): all; those that are equal; and those that
    are equal if the stored rows are moved by one row. The last must be few, only by chance, or the comparison would not
    notice moved rows. Prints the numbers of each case."""
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
