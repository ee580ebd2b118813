"""`megatron.replayed` around a schedule that a framework calls itself, without a model."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from typing import Any

import routing_replay_trainer as trainer
from routing_replay_trainer.megatron import replayed


class Replay:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.opened: list[dict[str, Any]] = []
        self.ended = 0

    def begin_step(self, sequences: Any, **said: Any) -> None:
        self.begun.append({"sequences": sequences, **said})

    @contextlib.contextmanager
    def micro_batch(self, **said: Any) -> Iterator[None]:
        self.opened.append(said)
        yield

    def end_step(self) -> None:
        self.ended += 1


def schedule(
    *, forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, forward_only: bool = False
) -> list[Any]:
    models = model if isinstance(model, list) else [model]
    iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    return [
        forward_step_func(iterator, chunk)
        for _ in range(num_microbatches)
        for iterator, chunk in zip(iterators, models, strict=True)
    ]


def describe(batch: str) -> dict[str, Any]:
    return {"sequences": [batch], "lengths": [9]}


def taken(data_iterator: Any, model: Any) -> Any:
    return data_iterator if data_iterator is None else next(data_iterator)


class ReplayedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.replay = Replay()
        self.said = {"forward_step_func": taken, "model": "model", "num_microbatches": 2}

    def run_(self, describe: Any = describe, peek: Any = None, **said: Any) -> Any:
        return replayed(self.replay, schedule, describe, peek=peek)(**self.said | said)

    def test_forward_only_is_that_of_the_schedule(self) -> None:
        self.run_(data_iterator=iter("ab"), forward_only=True)
        self.run_(data_iterator=iter("ab"), forward_only=False)
        self.run_(lambda batch: describe(batch) | {"forward_only": False}, data_iterator=iter("ab"), forward_only=True)
        said = [one.get("forward_only") for one in self.replay.opened]
        self.assertEqual(said, [True, True, None, None, False, False])

    def test_iterators_that_give_too_little(self) -> None:
        for iterator, words in (
            (None, "data_iterator: NoneType gives no batches"),
            ([iter("ab"), None], "data_iterator: list_iterator|str_.*, NoneType gives no batches"),
            ([], "data_iterator: none gives no batches"),
            (iter("a"), "data_iterator: gives 1 batches, and num_microbatches is 2"),
        ):
            with self.subTest(words), self.assertRaisesRegex(trainer.InvalidArgumentError, words):
                self.run_(data_iterator=iterator)
        with self.assertRaisesRegex(trainer.InvalidArgumentError, "keyword arguments"):
            replayed(self.replay, schedule, describe)(taken, iter("ab"), "model", 2)
        self.assertEqual((self.replay.begun, self.replay.opened), ([], []))

    def test_ranks_without_an_iterator(self) -> None:
        chunks = [object(), object()]
        self.run_(peek=lambda iterator, place: "ab"[place], data_iterator=[None, None], model=chunks)
        self.assertEqual([one["sequences"] for one in self.replay.opened], [["a"], ["a"], ["b"], ["b"]])
        self.assertEqual(self.replay.begun[0]["sequences"], ["a", "b"])


if __name__ == "__main__":
    unittest.main()
