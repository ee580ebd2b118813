"""`megatron.replayed` around a schedule that a framework calls itself, without a model."""

from __future__ import annotations

import contextlib
import types
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np
from routing_replay import errors
from step_test import SAMPLES, CountingSource, drain, geometry_of, plan_of, rows_of

import routing_replay_trainer as trainer
from routing_replay_trainer import hf, megatron
from routing_replay_trainer._micro_batch import MicroBatch, expected
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.collective import NO_STEP
from routing_replay_trainer.megatron import replayed
from routing_replay_trainer.step import StepSource


def expecting(sequences: list[Any], lengths: Any = None) -> list[trainer.FetchSequence]:
    return expected(sequences, None, lengths, {})


class Replay:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.opened: list[dict[str, Any]] = []
        self.ended = 0
        self.abandoned = 0

    def begin_step(self, sequences: Any, **said: Any) -> None:
        self.begun.append({"sequences": sequences, **said})

    def prefetch(self, micro_batches: Any) -> None:
        self.announced = list(micro_batches)

    @contextlib.contextmanager
    def micro_batch(self, **said: Any) -> Iterator[None]:
        self.opened.append(said)
        yield

    def stay_away(self, wrong: Exception) -> None:
        self.stayed = wrong

    def end_step(self) -> None:
        self.ended += 1

    def abandon_step(self) -> None:
        self.abandoned += 1


class Reading(Replay):
    """Reads micro-batches like an attached model, from samples s0 … s5."""

    def __init__(self, missing: trainer.fetch.Missing = "strict") -> None:
        super().__init__()
        self.rows = Far(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i))
        self.steps = Steps(StepSource(self.rows, deadline=20.0), missing, None, 0.5)

    def begin_step(self, sequences: Any, **said: Any) -> None:
        super().begin_step(sequences, **said)
        self.steps.begin(expecting(sequences, said["lengths"]), 0, said["step"])

    def prefetch(self, micro_batches: Any) -> None:
        described = [MicroBatch({}, [trainer.FetchSequence(*one["sequences"])]) for one in micro_batches]
        plans = [plan_of({one["sequences"][0]: one["lengths"][0]}) for one in micro_batches]
        self.steps.source.prefetch([(plan, one.fetch) for one, plan in zip(described, plans, strict=True)])
        drain(self.steps.source)
        self.reads = self.rows.reads

    @contextlib.contextmanager
    def micro_batch(self, **said: Any) -> Iterator[None]:
        name = said["sequences"][0]
        sequences = self.steps.apply([trainer.FetchSequence(name)])
        self.steps.source.fetch(plan_of({name: SAMPLES[name]}), sequences=sequences)
        yield


class Far(CountingSource):
    """A source whose rows are not in this process's memory, like those of a service."""

    keeps_rows = False


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

    def test_an_exception_of_the_schedule_comes_out_as_it_is(self) -> None:
        lost = RuntimeError("no memory")

        def failing(**said: Any) -> Any:
            schedule(**said)
            raise lost

        for describe_, abandoned in ((describe, 1), (lambda batch: None, 1)):
            with self.assertRaises(RuntimeError) as caught:
                replayed(self.replay, failing, describe_)(**self.said | {"data_iterator": iter("ab")})
            self.assertIs(caught.exception, lost)
            self.assertIsNone(lost.__context__)
            self.assertEqual((self.replay.abandoned, self.replay.ended), (abandoned, 0))
        self.run_(data_iterator=iter("ab"))
        self.assertEqual((self.replay.abandoned, self.replay.ended), (1, 1))

    def test_iterators_that_give_too_little(self) -> None:
        for iterator, words in (
            (None, "data_iterator: NoneType gives no batches"),
            ([iter("ab"), None], "data_iterator: list_iterator|str_.*, NoneType gives no batches"),
            ([], "data_iterator: none gives no batches"),
            (iter("a"), "data_iterator: gives 1 batches, and num_microbatches is 2"),
        ):
            with self.subTest(words), self.assertRaisesRegex(errors.InvalidArgumentError, words):
                self.run_(data_iterator=iterator)
            self.assertRegex(str(self.replay.stayed), words)  # The other ranks get the error.
        with self.assertRaises(KeyError) as caught:
            self.run_(lambda batch: {}[batch], data_iterator=iter("ab"))
        self.assertIs(self.replay.stayed, caught.exception)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "keyword arguments"):
            replayed(self.replay, schedule, describe)(taken, iter("ab"), "model", 2)
        self.assertEqual((self.replay.begun, self.replay.opened), ([], []))

    def test_an_iterator_that_has_next_alone(self) -> None:
        """Like Megatron-Core's RerunDataIterator."""

        class Batches:
            def __init__(self) -> None:
                self.rest = iter("abc")

            def __next__(self) -> str:
                return next(self.rest)

        batches = Batches()
        self.run_(data_iterator=batches)
        self.assertEqual([one["sequences"] for one in self.replay.opened], [["a"], ["b"]])
        with self.assertRaisesRegex(errors.InvalidArgumentError, "gives 1 batches"):
            self.run_(data_iterator=batches)

    def test_a_step_is_told_what_its_micro_batches_tell(self) -> None:
        """The micro-batches of one step are rectangles, packed streams and lists. begin_step gets the tokens and
        lengths of each sequence, if they are given."""
        packed = types.SimpleNamespace(qkv_format="thd", cu_seqlens_q=np.array([0, 2, 5]), cu_seqlens_q_padded=None)
        told = {
            "a": {"sequences": ["a", "b"], "tokens": np.arange(8).reshape(2, 4), "lengths": [4, 3]},
            "b": {"sequences": ["c", "d"], "tokens": np.arange(10, 15), "packed_seq_params": packed},
            "c": {"sequences": ["e"], "tokens": [np.arange(20, 22)], "padding": {"policy": "verl"}},
            "d": {"sequences": ["f"], "lengths": [9]},
        }
        self.run_(told.get, data_iterator=iter("abc"), num_microbatches=3)
        begun = self.replay.begun[-1]
        self.assertEqual(begun["sequences"], list("abcde"))
        self.assertEqual(begun["lengths"], [4, 3, 2, 3, 2])
        ids = [[0, 1, 2, 3], [4, 5, 6], [10, 11], [12, 13, 14], [20, 21]]
        self.assertEqual([own.tolist() for own in begun["tokens"]], ids)
        self.run_(told.get, data_iterator=iter("ad"))
        self.assertEqual(self.replay.begun[-1]["lengths"], [4, 3, 9])
        known = [own if own is None else own.tolist() for own in self.replay.begun[-1]["tokens"]]
        self.assertEqual(known, [*ids[:2], None])
        said = expected(self.replay.begun[-1]["sequences"], self.replay.begun[-1]["tokens"], [4, 3, 9], {})
        self.assertEqual([(one.num_tokens, one.tokens is None) for one in said], [(4, False), (3, False), (9, True)])
        self.run_(told.get, data_iterator=iter("d"), num_microbatches=1)
        self.assertNotIn("tokens", self.replay.begun[-1])
        with self.assertRaisesRegex(
            errors.InvalidArgumentError, "lengths: must be given: tokens and boundaries do not determine them"
        ):
            expected(["a"], [None], None, {"format": "THD"})

    def test_where_sequences_are_imported_from(self) -> None:
        self.assertIs(trainer.Sequence, megatron.Sequence)
        self.assertIs(trainer.Sequence, hf.Sequence)
        self.assertIn("Sequence", trainer.__all__)

    def test_ranks_without_an_iterator(self) -> None:
        chunks = [object(), object()]
        self.run_(peek=lambda iterator, place: "ab"[place], data_iterator=[None, None], model=chunks)
        self.assertEqual([one["sequences"] for one in self.replay.opened], [["a"], ["a"], ["b"], ["b"]])
        self.assertEqual(self.replay.begun[0]["sequences"], ["a", "b"])

    def test_the_passes_of_a_step_read_once(self) -> None:
        replay = self.replay = Reading()
        self.addCleanup(replay.steps.source.close)

        def read(names: list[str]) -> float:
            run = replayed(replay, schedule, lambda name: {"sequences": [name], "lengths": [SAMPLES[name]]})
            run(**self.said | {"data_iterator": iter(names), "num_microbatches": len(names)})
            self.assertEqual(replay.rows.reads, replay.reads, "all was read ahead")
            return replay.steps.source.counts()["bytes_read"]

        first = read(["s0", "s1", "s2", "s3"])
        self.assertGreater(first, 0)
        self.assertEqual([read(["s0", "s1"]), read(["s2", "s3"]), read(["s3", "s0"])], [0, 0, 0])
        self.assertGreater(read(["s4", "s0"]), 0)  # A sample of the next step, which this step does not have.
        self.assertEqual(read(["s0"]), 0)

    def test_a_loss_learns_what_is_dropped(self) -> None:
        replay = self.replay = Reading("drop")
        self.addCleanup(replay.steps.source.close)
        self.assertEqual(replay.steps.last, NO_STEP)
        replay.rows.remove("s1")
        seen = []

        def step(data_iterator: Any, model: Any) -> None:
            seen.append((next(data_iterator), replay.steps.last.dropped))

        run = replayed(replay, schedule, lambda name: {"sequences": [name], "lengths": [SAMPLES[name]]})
        said = self.said | {"forward_step_func": step}
        run(**said | {"data_iterator": iter(["s0", "s1"])})
        self.assertEqual(seen, [("s0", ("s1",)), ("s1", ("s1",))])
        replay.steps.begin(expecting(["s0"]))
        self.assertEqual(replay.steps.last.dropped, ())


if __name__ == "__main__":
    unittest.main()
