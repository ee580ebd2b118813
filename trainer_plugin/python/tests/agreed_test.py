"""Steps that ranks begin together: their decisions and their reports."""

from __future__ import annotations

import contextlib
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from local_group import LocalGroup
from routing_replay import errors
from step_test import SAMPLES, CountingSource, expected_of, geometry_of, plan_of, rows_of, some

import routing_replay_trainer as trainer
from routing_replay_trainer._micro_batch import Sequence, described, expected
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.metrics import Contract
from routing_replay_trainer.step import StepSource


class AgreedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.rows = CountingSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
        self.source = StepSource(self.rows, deadline=20.0)
        self.addCleanup(self.source.close)

    def steps(self, missing: Any, limit: float = 1.0) -> Steps:
        self.source.begin_step()
        return Steps(self.source, missing=missing, max_fallback_fraction=limit)

    def test_what_was_decided_holds_for_the_step(self) -> None:
        for missing, named in (("live", "live"), ("drop", "dropped")):
            steps = self.steps(missing)
            expected = [*expected_of(0, 2), trainer.FetchSequence("absent", 9)]
            begun = steps.begin(expected)
            self.assertEqual((begun.replayed, begun.fallen_back), (2, 1))
            self.assertEqual(begun.counts, {"OK": 2, "NOT_FOUND": 1})
            self.assertEqual(getattr(begun, named), ("absent",))
            plan = plan_of({**some(0, 2), "absent": 9})
            self.rows.add("absent", rows_of(9, 0))  # The sample arrives after the ranks have decided.
            batch = self.source.fetch(plan, sequences=steps.apply(expected), missing=missing)
            self.assertEqual(batch.fallback_sequences, 1)
            self.assertEqual([one["status"] for one in batch.sequences], ["OK", "OK", "UNSPECIFIED"])
            self.rows.remove("absent")
        self.assertEqual(self.rows.inspections, 2)

    def test_strict_names_the_sample(self) -> None:
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            self.steps("strict").begin([*expected_of(0), trainer.FetchSequence("absent", 9)])
        self.assertEqual(caught.exception.sample, "absent")

    def test_another_content_is_an_error(self) -> None:
        for seed, missing in enumerate(("strict", "live", "drop"), 70):
            steps = self.steps(missing)
            expected = expected_of(0, 1)
            steps.begin(expected)
            self.rows.add("s1", rows_of(SAMPLES["s1"], seed), tokens=np.arange(SAMPLES["s1"]))
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                self.source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual((caught.exception.field, caught.exception.sample), ("content_id", "s1"))
            self.rows.remove("s1")
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                self.source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual(caught.exception.field, "content_id")
            self.rows.add("s1", rows_of(SAMPLES["s1"], 77), tokens=np.arange(SAMPLES["s1"]))

    def test_pieces_need_their_rows(self) -> None:
        """begin_step checks for every piece that its sample has the piece's rows. A piece that ends with the last row
        is OK; one row more is OUT_OF_RANGE."""
        tokens = SAMPLES["s0"]
        for said, lengths in ((lambda *piece: [Sequence(*piece)], [9]), (lambda *piece: [[Sequence(*piece)]], None)):
            for start, rows, status in ((tokens - 9, 8, "OK"), (tokens - 9, 9, "OUT_OF_RANGE")):
                asked = expected([*said("s0", start, rows, 9), Sequence("s0", 0, 1, 2)], None, lengths and [9, 2], {})
                for order in (asked[::-1], asked):
                    begun = self.steps("drop").begin(order)
                    self.assertEqual(begun.counts, {status: 1})
        with self.assertRaisesRegex(errors.FailedPreconditionError, "is OUT_OF_RANGE"):
            self.steps("strict").begin(asked)

    def test_what_only_compares_binds_nothing(self) -> None:
        """In a replay that only compares, decisions do not bind: a sample that turns out to have another length or
        other tokens falls back in the fetch, and is counted."""
        self.source.begin_step()
        steps = Steps(self.source, missing="live", max_fallback_fraction=1.0, binds=False)
        self.assertEqual(steps.begin([trainer.FetchSequence(name) for name in ("s0", "s1")]).replayed, 2)
        said = steps.apply(
            [
                trainer.FetchSequence("s0", SAMPLES["s0"] + 1),
                trainer.FetchSequence("s1", SAMPLES["s1"], np.arange(SAMPLES["s1"]) + 1),
            ]
        )
        batch = self.source.fetch(plan_of(some(0, 1)), sequences=said, missing="live")
        self.assertEqual([one["status"] for one in batch.sequences], ["LENGTH_MISMATCH", "TOKENS_MISMATCH"])
        self.assertEqual(batch.fallback_sequences, 2)

    def test_a_shadow_that_compares_nothing_says_so(self) -> None:
        """Mode shadow warns once for each set of reasons why nothing is compared, when a step begins."""
        unknown = trainer.FetchSequence("mute", 9, np.arange(9))
        self.rows.add("mute", rows_of(9, 1))
        absent = trainer.FetchSequence("absent", 9)
        steps = Steps(self.source, missing="live", max_fallback_fraction=1.0, binds=False)
        with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
            steps.begin([unknown, absent])
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], r"shadow compares nothing.*: 1 NOT_FOUND, 1 TOKENS_NOT_KNOWN; first mute \(")
        with self.assertNoLogs("routing_replay_trainer"):
            steps.begin([unknown, absent])
            steps.begin([*expected_of(0), absent])
        with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
            steps.begin([unknown])
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], r": 1 TOKENS_NOT_KNOWN; first mute")

    def test_tokens_that_only_a_micro_batch_tells(self) -> None:
        """begin_step gets no tokens, but the micro-batch does. The sample that was recorded without tokens falls back,
        and is counted; a sample with other tokens is still rejected."""
        self.rows.add("mute", rows_of(9, 1))
        told = [trainer.FetchSequence("mute", 9, np.arange(9)), *expected_of(0)]
        untold = [trainer.FetchSequence(one.sample, one.num_tokens) for one in told]
        plan = plan_of({"mute": 9, **some(0)})
        for missing in ("live", "drop"):
            steps = self.steps(missing)
            steps.begin(untold)
            batch = self.source.fetch(plan, sequences=steps.apply(told), missing=missing)
            self.assertEqual([one["status"] for one in batch.sequences], ["TOKENS_NOT_KNOWN", "OK"])
            self.assertEqual(batch.fallback_sequences, 1)
            other = [told[0], trainer.FetchSequence("s0", SAMPLES["s0"], np.arange(SAMPLES["s0"]) + 1)]
            with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_MISMATCH"):
                self.source.fetch(plan, sequences=steps.apply(other), missing=missing)
            self.assertEqual(steps.begin(told).counts, {"TOKENS_NOT_KNOWN": 1, "OK": 1})
        with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_NOT_KNOWN"):
            self.steps("strict").begin(told)

    def test_other_tokens_and_lengths_fall_back(self) -> None:
        steps = self.steps("live")
        begun = steps.begin(
            [
                trainer.FetchSequence("s0", SAMPLES["s0"], np.arange(SAMPLES["s0"]) + 1),
                trainer.FetchSequence("s1", SAMPLES["s1"] + 1),
                trainer.FetchSequence("s2"),
            ]
        )
        self.assertEqual([one.status for one in begun.decisions], ["TOKENS_MISMATCH", "LENGTH_MISMATCH", "OK"])

    def test_a_step_that_falls_back_too_far_stops(self) -> None:
        absent = [trainer.FetchSequence(f"absent{i}", 9) for i in range(20)]
        wrong = trainer.FetchSequence("s0", 5)
        with self.assertRaises(errors.FallbackLimitError) as caught:
            self.steps("live", 0.05).begin([*expected_of(1, 2), *absent, wrong])
        error = caught.exception
        self.assertEqual((error.samples, error.fallen_back), (23, 21))
        self.assertEqual(error.by_status, {"NOT_FOUND": 20, "LENGTH_MISMATCH": 1})
        self.assertEqual(error.first[0], ("absent0", "NOT_FOUND"))
        self.assertIn("20 NOT_FOUND", str(error))
        self.steps("live", 0.5).begin([*expected_of(1, 2), *absent[:2]])

    def test_exactly_the_limit_is_within_it(self) -> None:
        """With a limit of 0.29, 29 of 100 samples may fall back, although 0.29 times 100 is a little less than 29 in
        floating point."""
        for i in range(71):
            self.rows.add(f"m{i}", rows_of(3, i))
        names = [f"m{i}" for i in range(71)] + [f"absent{i}" for i in range(29)]
        begun = self.steps("live", 0.29).begin([trainer.FetchSequence(name, 3) for name in names])
        self.assertEqual(begun.fallen_back, 29)

    def test_a_source_that_fails(self) -> None:
        self.rows.failure = TimeoutError("no answer")
        begun = self.steps("live").begin(expected_of(0))
        self.assertEqual(begun.counts, {"SOURCE_FAILED": 1})
        self.rows.failure = ValueError("broken")
        with self.assertRaises(ValueError):
            self.steps("live").begin(expected_of(0))

    def test_why_a_source_failed_is_told(self) -> None:
        lost = ConnectionError("nobody there")
        for missing, kind in (("strict", errors.FailedPreconditionError), ("live", errors.FallbackLimitError)):
            self.source = StepSource(self.rows, deadline=0.01)
            self.addCleanup(self.source.close)
            steps = self.steps(missing, 0.5)
            self.rows.failure = lost
            with self.assertLogs("routing_replay_trainer", "WARNING") as logged, self.assertRaises(kind) as caught:
                steps.begin(expected_of(0))
            self.assertIs(caught.exception.__cause__, lost)
            self.assertRegex(logged.output[0], "nobody there")
            with self.assertNoLogs("routing_replay_trainer"), self.assertRaises(kind):
                steps.begin(expected_of(0))
            self.rows.failure = None
            mistake = trainer.FetchSequence("s0", "20")  # type: ignore[arg-type]
            with self.assertRaisesRegex(errors.InvalidArgumentError, "num_tokens"):
                steps.begin([mistake])

    def test_one_sample_of_two_lengths(self) -> None:
        twice = [*expected_of(0, 1), trainer.FetchSequence("s0"), trainer.FetchSequence("s1", SAMPLES["s1"])]
        self.assertEqual(self.steps("live").begin(twice).replayed, 2)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "sample s1 is LENGTH_MISMATCH") as caught:
            self.steps("strict").begin([*twice, trainer.FetchSequence("s1", 51)])
        self.assertEqual(caught.exception.sample, "s1")

    def test_what_contradicts_the_batch_falls_back_alone(self) -> None:
        own = expected_of(1)[0]
        for copy, status in (
            (trainer.FetchSequence("s1", 51), "LENGTH_MISMATCH"),
            (trainer.FetchSequence("s1", 128, np.arange(128)), "LENGTH_MISMATCH"),
            (trainer.FetchSequence("s1", 50, np.arange(50) + 1), "TOKENS_MISMATCH"),
        ):
            length = copy.num_tokens or 0
            plan = plan_of({**some(0, 1), "copy": length, "copy again": length})
            for missing, named in (("live", "live"), ("drop", "dropped")):
                for order in ([*expected_of(0), own, copy, copy], [*expected_of(0), copy, own, copy]):
                    steps = self.steps(missing)
                    begun = steps.begin(order)
                    self.assertEqual((begun.counts, begun.replayed), ({"OK": 2, status: 1}, 2))
                    self.assertEqual(getattr(begun, named), ("s1",))
                    said = steps.apply([*expected_of(0), own, copy, copy])
                    batch = self.source.fetch(plan, sequences=said, missing=missing)
                    self.assertEqual(batch.fallback_sequences, 2)
                    self.assertEqual(batch.replayed_rows, SAMPLES["s0"] + SAMPLES["s1"] - 2)
        with self.assertRaises(errors.FailedPreconditionError):
            self.steps("strict").begin([own, copy])

    def test_what_begin_step_was_not_told_of_a_copy(self) -> None:
        """begin_step gets only the sample's id. The micro-batch has the sample twice, once with a wrong length: only
        that sequence routes live."""
        steps = self.steps("live")
        steps.begin([trainer.FetchSequence("s1")])
        said = steps.apply([trainer.FetchSequence("s1", 50), trainer.FetchSequence("s1", 51)])
        self.assertEqual([one.live for one in said], [False, True])

    def test_sequences_of_no_sample(self) -> None:
        """Rows of sequences without a sample have a state and a count of their own, and no source is asked for them."""
        layout = {"format": "THD", "cu_seqlens": [0, 9, 29, 36], "cu_seqlens_padded": [0, 9, 29, 36], "total_rows": 36}
        piece = [Sequence(None, tokens=4), Sequence("s0", 0, 2, 3)]
        for listed, live, unrecorded, fallen_back in (
            ([None, "s0", 0], 16, 1, 0),
            (np.array([0, 7, 0]), 16, 20, 1),
            ([Sequence(None), "s0", Sequence(0)], 16, 1, 0),
            ([None, "s0", piece], 13, 2, 0),
            (["s0", "s0", None], 7, 10, 1),
        ):
            said = described(listed, None, None, layout | {"partition": "contiguous"})
            plan = trainer.plan(geometry_of(), said.layout)
            steps = self.steps("live")
            begun = steps.begin(expected(listed, None, None, layout))
            self.assertEqual(begun.fallen_back, fallen_back)
            batch = self.source.fetch(plan, sequences=steps.apply(said.fetch), missing="live")
            self.assertEqual((batch.live_rows, batch.unrecorded_rows, batch.pad_rows), (live, unrecorded, 0))
            self.assertEqual(
                (plan.described["row_map"]["live"], int((batch.states == trainer.LIVE).sum())), (live, live)
            )

    def test_a_step_of_no_sample_says_so(self) -> None:
        steps = self.steps("live", 0.0)
        nobody = expected([None, 0], None, [5, 6], {})
        with self.assertLogs("routing_replay_trainer", "WARNING") as logs:
            for _ in range(2):
                self.assertEqual(steps.begin(nobody).decisions, ())
        self.assertEqual(len(logs.output), 1)
        self.assertIn("no sequence of this step has a sample", logs.output[0])
        with self.assertNoLogs("routing_replay_trainer", "WARNING"):
            self.assertEqual(self.steps("live", 0.0).begin([*nobody, *expected_of(0)]).replayed, 1)

    def test_last_rows_on_filler(self) -> None:
        """If last rows take filler experts and all other rows are recorded, no row routes live. A sample that falls
        back routes live with its last row, too."""
        lengths = {**some(0), "absent": 9, "one": 1}
        samples = [*expected_of(0), trainer.FetchSequence("absent", 9), trainer.FetchSequence("one", 1)]
        layout = {"format": "THD", "total_rows": 30, "cu_seqlens_padded": [0, 20, 29, 30], "partition": "contiguous"}
        said = [{"sample": name, "tokens": count} for name, count in lengths.items()]
        plan = trainer.plan(geometry_of(), layout | {"sequences": said, "last_row_filler": True})
        batch = self.source.fetch(plan, sequences=samples, missing="live")
        self.assertEqual(
            batch.states.tolist(), [trainer.REPLAYED] * 19 + [trainer.PAD] + [trainer.UNRECORDED] * 9 + [2]
        )
        self.assertEqual((batch.replayed_rows, batch.unrecorded_rows, batch.pad_rows), (19, 9, 2))
        for slot, ids in enumerate(batch.indices):
            filler = np.arange(4).reshape(2, 2) + 2 * plan.layers[slot].ordinal
            np.testing.assert_array_equal(ids[[19, 29]], filler)
        # In a sequence of pieces, only its last token takes filler, because later tokens may attend to all earlier
        # ones.
        for rows, last in ((3, 1), (2, 0)):
            pieces = [{"sample": "s0", "tokens": 3, "rows": 2}, {"sample": "s0", "tokens": 4, "start": 6, "rows": rows}]
            sequence = [{"tokens": 7, "pieces": pieces}]
            of_pieces = {"sequences": sequence, "cu_seqlens_padded": [0, 7], "total_rows": 7, "last_row_filler": True}
            plan = trainer.plan(geometry_of(), layout | of_pieces)
            batch = self.source.fetch(plan, sequences=[trainer.FetchSequence("s0")] * 2)
            self.assertEqual((batch.unrecorded_rows, batch.pad_rows), (1 + 2 * (1 - last), last))

    def test_samples_without_rows(self) -> None:
        """Samples of one token or none have no rows, so nobody appends them."""
        for missing in ("strict", "live", "drop"):
            steps = self.steps(missing, 0.0)
            expected = [trainer.FetchSequence("one", 1), *expected_of(0), trainer.FetchSequence("none", 0)]
            begun = steps.begin(expected)
            self.assertEqual((begun.counts, begun.dropped, begun.live), ({"OK": 1}, (), ()))
            said = {"sequences": steps.apply(expected[:2]), "missing": missing}
            batch = self.source.fetch(plan_of({"one": 1, "s0": SAMPLES["s0"]}), **said)
            self.assertEqual((batch.fallback_sequences, batch.replayed_rows), (0, SAMPLES["s0"] - 1))
            self.assertEqual(steps.begin([expected[0]]).decisions, ())

    def test_samples_of_another_step(self) -> None:
        steps = self.steps("live")
        self.assertEqual([one.content_id for one in steps.apply(expected_of(3))], [None])
        steps.begin(expected_of(0))
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            steps.apply(expected_of(3))
        self.assertEqual(caught.exception.sample, "s3")
        with self.assertRaisesRegex(errors.FailedPreconditionError, "not told of sample 77 under this name"):
            steps.apply([trainer.FetchSequence(77)])


class StepsTest(unittest.TestCase):
    """The calls that both interfaces make for a step."""

    def setUp(self) -> None:
        self.rows = CountingSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))

    def test_begin_and_fetch_have_one_rule_of_versions(self) -> None:
        """ "strict" rejects a sample before the passes, and metrics report the share of such samples."""

        def begin(weights: Any, kind: Any = None) -> Any:
            record = {"status": "OK", "num_tokens": 9, "revision": 0, "content_id": 1, "weights": weights}
            self.rows.inspect = lambda samples, timeout=None: [record]  # type: ignore[method-assign]
            self.contract = Contract(kind)
            steps = Steps(StepSource(self.rows, deadline=20.0), "live", None, 0.5, self.contract)
            self.addCleanup(steps.source.close)
            return steps.begin([trainer.FetchSequence("s0")])

        labels, unknown = [[0, 4, -1, "x"], [4, 8, -1, "y"]], [[0, 4, -1, ""], [4, 8, 15, ""]]
        for weights in (labels, unknown, [[0, 4, 15, "x"], [4, 8, 15, "y"]]):
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                begin(weights, "strict")
            self.assertEqual((caught.exception.reason, caught.exception.sample), ("MIXED_WEIGHTS", "s0"))
        for weights, oldest, mixed in ((labels, None, 1), (unknown, 15, 1), ([[0, 8, 16, ""]], 16, 0)):
            begin(weights)
            said = self.contract.counters.report()
            self.assertEqual(said.get("routing_replay/weight_version/oldest"), oldest)
            self.assertEqual(said["routing_replay/weight_version/mixed_ratio"], mixed)


class ReplicaTest(unittest.TestCase):
    """Sixteen ranks, each with its own source, begin steps together."""

    def step(self, missing: Any, change: Any, copies: Any = (), **options: Any) -> list[Any]:
        def one(collective: Any) -> Any:
            rows = CountingSource(geometry_of())
            for i, (name, tokens) in enumerate(SAMPLES.items()):
                rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
            change(collective.rank, rows)
            with contextlib.closing(StepSource(rows, deadline=20.0)) as source:
                source.begin_step()
                steps = Steps(source, missing=missing, collective=collective, **options)
                expected = [*expected_of(*range(6)), *copies]
                try:
                    begun = steps.begin(expected)
                except errors.RoutingReplayError as error:
                    return type(error), error.sample
                lengths = SAMPLES | {f"copy {i}": one.num_tokens for i, one in enumerate(copies)}
                batch = source.fetch(plan_of(lengths), sequences=steps.apply(expected), missing=missing)
                return begun, batch.states.tobytes()

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, LocalGroup(16)))

    def test_a_rank_with_wrong_arguments(self) -> None:
        """A rank whose arguments are wrong reports this, so that the others do not wait until the deadline."""

        def begin(collective: Any) -> Any:
            rows = CountingSource(geometry_of())
            for i, (name, tokens) in enumerate(SAMPLES.items()):
                rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
            steps = Steps(StepSource(rows, deadline=600.0), "live", collective, 0.5)

            try:
                if collective.rank == 3:
                    steps.stay_away(wrong := errors.InvalidArgumentError("lengths: 5 for 6 sequences"))
                    raise wrong
                steps.begin(expected_of(*range(6)))
            except errors.RoutingReplayError as error:
                return error.message
            finally:
                steps.source.close()

        with ThreadPoolExecutor(16) as pool:
            said = list(pool.map(begin, LocalGroup(16)))
        self.assertEqual(said.pop(3), "lengths: 5 for 6 sequences")
        self.assertRegex(said[0], "rank 3 cannot take part: it has no valid report")
        self.assertEqual(len(set(said)), 1)

    def test_labels_are_versions_on_all_ranks(self) -> None:
        def begin(collective: Any) -> Any:
            rows = CountingSource(geometry_of())
            for i, (name, tokens) in enumerate(SAMPLES.items()):
                rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
            inspect, spans = rows.inspect, [[0, 9, -1, "x"], [9, 20, -1, "y"]]
            rows.inspect = lambda samples, timeout=None: [  # type: ignore[method-assign]
                one | {"weights": spans if place == 2 else []} for place, one in enumerate(inspect(samples))
            ]
            steps = Steps(StepSource(rows, deadline=20.0), "strict", collective, 0.5, Contract("strict"))
            try:
                steps.begin(expected_of(*range(6)))
            except errors.FailedPreconditionError as error:
                return error.reason, error.sample
            finally:
                steps.source.close()

        with ThreadPoolExecutor(16) as pool:
            self.assertEqual(set(pool.map(begin, LocalGroup(16))), {("MIXED_WEIGHTS", "s2")})

    def test_one_sample_missing_on_one_rank(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 11:
                rows.remove("s3")

        for missing, named in (("live", "live"), ("drop", "dropped")):
            said = self.step(missing, change, max_fallback_fraction=0.5)
            self.assertEqual(len(set(map(repr, said))), 1)
            begun, _ = said[0]
            self.assertEqual(getattr(begun, named), ("s3",))
            self.assertEqual((begun.replayed, begun.fallen_back), (5, 1))
        self.assertEqual(self.step("strict", change), [(errors.FailedPreconditionError, "s3")] * 16)
        self.assertEqual(self.step("live", change), [(errors.FallbackLimitError, None)] * 16)

    def test_ranks_decide_alike_of_copies(self) -> None:
        copies = [trainer.FetchSequence("s1", 128), trainer.FetchSequence("s2", SAMPLES["s2"], np.arange(80) + 1)]
        for missing, named in (("live", "live"), ("drop", "dropped")):
            said = self.step(missing, lambda rank, rows: None, copies, max_fallback_fraction=0.25)
            self.assertEqual(len(set(map(repr, said))), 1)
            begun, _ = said[0]
            self.assertEqual(getattr(begun, named), ("s1", "s2"))
            self.assertEqual((begun.replayed, begun.fallen_back), (6, 2))
        said = self.step("strict", lambda rank, rows: None, copies)
        self.assertEqual(set(said), {(errors.FailedPreconditionError, "s1")})

    def test_a_rank_whose_source_fails(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 2:
                rows.failure = TimeoutError("no answer")

        self.assertEqual(self.step("live", change), [(errors.FallbackLimitError, None)] * 16)

    def test_another_content_on_one_rank(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 7:
                rows.add("s2", rows_of(SAMPLES["s2"], 99), tokens=np.arange(SAMPLES["s2"]))

        for missing in ("strict", "live", "drop"):
            self.assertEqual(self.step(missing, change), [(errors.FailedPreconditionError, "s2")] * 16)


if __name__ == "__main__":
    unittest.main()
