"""Steps: every slice is read once, ahead or not, within the bytes and the time given; what was agreed holds."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
import unittest
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from sources_test import random_scenario

import routing_replay_trainer as trainer
from routing_replay_trainer._steps import Steps
from routing_replay_trainer.agreed import AgreedSteps, _with_numbers
from routing_replay_trainer.collective import LocalGroup
from routing_replay_trainer.on_policy import Contract
from routing_replay_trainer.step import StepSource

HAS_GRPC = importlib.util.find_spec("grpc") is not None and importlib.util.find_spec("google.protobuf") is not None
PLENTY = 1 << 30


class CountingSource(trainer.LocalSource):
    """Counts fetches that read something, as a service would; can be slow, stand still, or refuse."""

    def __init__(self, geometry: Any) -> None:
        super().__init__(geometry)
        self.reads = 0
        self.inspections = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def inspect(
        self, sequences: Sequence[trainer.FetchSequence], *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        self.inspections += 1
        if self.failure is not None:
            raise self.failure
        return super().inspect(sequences, timeout=timeout)

    def _bring(self, fetch: Any, timeout: float | None) -> None:
        self.reads += 1
        if not self.gate.wait(timeout):
            raise TimeoutError("the gate is shut")
        if self.failure is not None:
            raise self.failure
        super()._bring(fetch, timeout)


def geometry_of(layers: int = 2) -> dict[str, Any]:
    return {"num_layers": layers, "num_experts": 64, "top_k": 2}


def rows_of(tokens: int, seed: int) -> np.ndarray:
    scores = np.random.default_rng(seed).random((tokens - 1, 2, 64))
    return scores.argpartition(1, axis=2)[:, :, :2].astype(np.uint8)


def plan_of(samples: dict[str, int]) -> trainer.Plan:
    ends = np.cumsum(list(samples.values()))
    return trainer.plan(
        geometry_of(),
        {
            "format": "THD",
            "sequences": [{"sample": name, "tokens": tokens} for name, tokens in samples.items()],
            "cu_seqlens_padded": [0, *ends],
            "total_rows": ends[-1],
            "partition": "contiguous",
        },
    )


SAMPLES = {f"s{i}": 20 + 30 * i for i in range(6)}


def some(*numbers: int) -> dict[str, int]:
    return {f"s{i}": SAMPLES[f"s{i}"] for i in numbers}


def same(test: unittest.TestCase, batch: trainer.Batch, other: trainer.Batch) -> None:
    np.testing.assert_array_equal(batch.states, other.states)
    for ours, theirs in zip(batch.indices, other.indices, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    test.assertEqual(batch.fallback_sequences, other.fallback_sequences)
    test.assertEqual(batch.sequences, other.sequences)


def in_another_process(code: str) -> None:
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=paths)


class StepSourceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.rows = CountingSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
        self.plain = trainer.LocalSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.plain.add(name, rows_of(tokens, i), tokens=np.arange(tokens))

    def source(self, cache_bytes: int = PLENTY, deadline: float = 30.0, **options: Any) -> StepSource:
        source = StepSource(self.rows, cache_bytes=cache_bytes, deadline=deadline, **options)
        self.addCleanup(source.close)
        return source

    def fetch(self, source: StepSource, *numbers: int, missing: Any = "strict") -> trainer.Batch:
        plan = plan_of(some(*numbers))
        batch = source.fetch(plan, missing=missing)
        same(self, batch, self.plain.fetch(plan, missing=missing))
        return batch

    def test_one_read_for_the_log_prob_pass_and_three_epochs(self) -> None:
        source = self.source()
        source.begin_step()
        for numbers in ((0, 1), (2, 3), (4, 5)):
            self.fetch(source, *numbers)
        for _ in range(3):
            for numbers in ((5, 0, 3), (1,), (2, 4)):
                self.fetch(source, *numbers)
        self.assertEqual(self.rows.reads, 3)
        counts = source.counts()
        self.assertEqual((counts["misses"], counts["hits"], counts["fetches"]), (6, 18, 12))
        source.begin_step()
        self.assertEqual(source.counts()["bytes"], 0)
        self.fetch(source, 0)
        self.assertEqual(self.rows.reads, 4)

    def test_without_a_step_nothing_is_kept(self) -> None:
        source = self.source()
        self.fetch(source, 0)
        self.fetch(source, 0)
        self.assertEqual(self.rows.reads, 2)
        with self.assertRaises(trainer.FailedPreconditionError):
            source.prefetch([(plan_of(some(0)), None)])

    def test_read_ahead(self) -> None:
        source = self.source()
        source.prefetch([(plan_of(some(4, 5)), None)], next_step=True)
        self.assertTrue(source.drain(30))
        source.begin_step()
        source.prefetch([(plan_of(some(0, 1)), None), (plan_of(some(2, 3)), None)])
        self.assertTrue(source.drain(30))
        for numbers in ((0, 1), (2, 3), (4, 5)):
            self.fetch(source, *numbers)
        self.assertEqual(self.rows.reads, 3)
        counts = source.counts()
        self.assertEqual((counts["misses"], counts["hits"]), (0, 6))

    def test_a_fetch_waits_for_what_is_being_read_ahead(self) -> None:
        source = self.source()
        source.begin_step()
        self.rows.gate.clear()
        source.prefetch([(plan_of(some(0, 1)), None)])
        while not self.rows.reads:
            time.sleep(0.001)
        threading.Timer(0.1, self.rows.gate.set).start()
        self.fetch(source, 0, 1)
        self.assertEqual(self.rows.reads, 1)
        self.assertGreater(source.counts()["wait_s"], 0)

    def test_bytes_are_bounded_and_nothing_hangs(self) -> None:
        source = self.source(cache_bytes=5000)
        for _ in range(3):
            source.begin_step()
            order = [(i, (i + 1) % 6) for i in range(6)]
            source.prefetch([(plan_of(some(*numbers)), None) for numbers in order])
            for numbers in order:
                self.fetch(source, *numbers)
        counts = source.counts()
        self.assertLessEqual(counts["most_bytes"], 5000)
        self.assertGreater(counts["hits"], 0)

    def test_the_deadline_is_one_for_the_step(self) -> None:
        for missing in ("live", "drop"):
            source = self.source(deadline=0.3)
            source.begin_step()
            self.fetch(source, 0)
            self.rows.gate.clear()
            started = time.monotonic()
            for _ in range(3):
                batch = source.fetch(plan_of(some(0, 1)), missing=missing)
                self.assertEqual(batch.fallback_sequences, 1)
                self.assertEqual([one["status"] for one in batch.sequences], ["OK", "NOT_READY"])
                self.assertEqual(batch.dropped, ("s1",) if missing == "drop" else ())
            with self.assertRaises(trainer.DeadlineExceededError):
                source.fetch(plan_of(some(2)))
            self.assertLess(time.monotonic() - started, 20)
            self.assertEqual(source.counts()["timeouts"], 4)
            self.rows.gate.set()
            source.begin_step()
            self.fetch(source, 2)

    def test_an_unreachable_service_is_tried_again(self) -> None:
        source = self.source()
        source.begin_step()
        self.rows.failure = ConnectionError("nobody there")
        threading.Timer(0.2, lambda: setattr(self.rows, "failure", None)).start()
        self.fetch(source, 0)
        self.assertGreater(self.rows.reads, 1)

    def test_errors_leave_nothing_behind(self) -> None:
        source = self.source()
        source.begin_step()
        self.rows.failure = ValueError("broken")
        source.prefetch([(plan_of(some(0)), None)])
        self.assertTrue(source.drain(30))
        with self.assertRaises(ValueError):
            source.fetch(plan_of(some(0)))
        self.rows.failure = None
        self.fetch(source, 0)
        self.assertEqual(source.counts()["ahead_failures"], 1)

    def test_close_wakes_who_waits(self) -> None:
        source = self.source(cache_bytes=3000)
        source.begin_step()
        source.prefetch([(plan_of(some(i)), None) for i in range(6)])  # More than there is room for.
        while not self.rows.reads:
            time.sleep(0.001)
        before = threading.active_count()
        source.close()
        self.assertLess(threading.active_count(), before)
        with self.assertRaises(trainer.CancelledError):
            source.fetch(plan_of(some(0)))

    def test_dropped_samples_are_named(self) -> None:
        source = self.source()
        source.begin_step()
        for one in (self.rows, self.plain):
            one.remove("s1")
        self.assertEqual(self.fetch(source, 0, 1, missing="drop").dropped, ("s1",))
        batch = source.fetch(plan_of({"s0": 20}), sequences=[trainer.FetchSequence(7)], missing="drop")
        self.assertEqual(batch.dropped, (7,))

    def test_after_fork(self) -> None:
        in_another_process("import step_test; step_test.fork()")

    def test_the_program_ends_with_threads_at_work(self) -> None:
        code = (
            "import step_test as t; case = t.StepSourceTest('test_read_ahead'); case.setUp();"
            "source = t.StepSource(case.rows, deadline=100.0); source.begin_step(); case.rows.gate.clear();"
            "source.prefetch([(t.plan_of(t.some(0)), None)])"
        )
        in_another_process(code)

    def test_random_runs(self) -> None:
        for seed in range(12):
            scenario = random_scenario(np.random.default_rng(seed))
            local = scenario.local_source()
            source = StepSource(local, cache_bytes=20_000 if seed % 2 else PLENTY)
            with source:
                source.begin_step()
                for _ in range(3):
                    for pp, cp in np.ndindex(scenario.pp, scenario.cp):
                        plan = scenario.plan(pp, cp)
                        said = {"sequences": scenario.sequences(), "missing": "live"}
                        same(self, source.fetch(plan, **said), local.fetch(plan, **said))


def fork() -> None:
    """A child of a process whose thread is reading ahead."""
    case = StepSourceTest("test_after_fork")
    case.setUp()
    source = case.source()
    source.begin_step()
    case.fetch(source, 0)
    case.rows.gate.clear()
    source.prefetch([(plan_of(some(1)), None)])
    while case.rows.reads < 2:
        time.sleep(0.001)
    child = os.fork()
    if not child:
        case.rows.gate = threading.Event()  # The parent's may be locked.
    case.rows.gate.set()
    source.begin_step()
    source.prefetch([(plan_of(some(0, 1)), None)])
    case.fetch(source, 0, 1)
    source.close()
    if child:
        assert os.waitpid(child, 0)[1] == 0


class AgreedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.rows = CountingSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
        self.source = StepSource(self.rows, deadline=20.0)
        self.addCleanup(self.source.close)

    def steps(self, missing: Any, limit: float = 1.0) -> AgreedSteps:
        self.source.begin_step()
        return AgreedSteps(self.source, missing=missing, max_fallback_fraction=limit)

    @staticmethod
    def expected(*numbers: int) -> list[trainer.FetchSequence]:
        return [trainer.FetchSequence(name, tokens, np.arange(tokens)) for name, tokens in some(*numbers).items()]

    def test_what_was_decided_holds_for_the_step(self) -> None:
        for missing, named in (("live", "live"), ("drop", "dropped")):
            steps = self.steps(missing)
            expected = [*self.expected(0, 2), trainer.FetchSequence("absent", 9)]
            begun = steps.begin(expected)
            self.assertEqual((begun.replayed, begun.fallen_back), (2, 1))
            self.assertEqual(begun.counts, {"OK": 2, "NOT_FOUND": 1})
            self.assertEqual(getattr(begun, named), ("absent",))
            plan = plan_of({**some(0, 2), "absent": 9})
            self.rows.add("absent", rows_of(9, 0))  # It is there after all: the ranks have decided otherwise.
            batch = self.source.fetch(plan, sequences=steps.apply(expected), missing=missing)
            self.assertEqual(batch.fallback_sequences, 1)
            self.assertEqual([one["status"] for one in batch.sequences], ["OK", "OK", "UNSPECIFIED"])
            self.assertEqual(batch.dropped, ("absent",) if missing == "drop" else ())
            self.rows.remove("absent")
        self.assertEqual(self.rows.inspections, 2)

    def test_strict_names_the_sample(self) -> None:
        with self.assertRaises(trainer.FailedPreconditionError) as caught:
            self.steps("strict").begin([*self.expected(0), trainer.FetchSequence("absent", 9)])
        self.assertEqual(caught.exception.sample, "absent")

    def test_another_content_is_an_error(self) -> None:
        for seed, missing in enumerate(("strict", "live", "drop"), 70):
            steps = self.steps(missing)
            expected = self.expected(0, 1)
            steps.begin(expected)
            self.rows.add("s1", rows_of(SAMPLES["s1"], seed), tokens=np.arange(SAMPLES["s1"]))
            with self.assertRaises(trainer.FailedPreconditionError) as caught:
                self.source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual((caught.exception.field, caught.exception.sample), ("content_id", "s1"))
            self.rows.remove("s1")
            with self.assertRaises(trainer.FailedPreconditionError) as caught:
                self.source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual(caught.exception.field, "content_id")
            self.rows.add("s1", rows_of(SAMPLES["s1"], 77), tokens=np.arange(SAMPLES["s1"]))

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
        with self.assertRaises(trainer.FallbackLimitError) as caught:
            self.steps("live", 0.05).begin([*self.expected(1, 2), *absent, wrong])
        error = caught.exception
        self.assertEqual((error.samples, error.fallen_back), (23, 21))
        self.assertEqual(error.by_status, {"NOT_FOUND": 20, "LENGTH_MISMATCH": 1})
        self.assertEqual(error.first[0], ("absent0", "NOT_FOUND"))
        self.assertIn("20 NOT_FOUND", str(error))
        self.steps("live", 0.5).begin([*self.expected(1, 2), *absent[:2]])

    def test_fetches_that_fall_back_without_a_step(self) -> None:
        steps = AgreedSteps(self.source, missing="live")
        plan = plan_of({**some(0, 1), "absent": 9})
        steps.saw(self.source.fetch(plan_of(some(0, 1, 2))))
        steps.end_pass()
        for _ in range(2):
            steps.saw(self.source.fetch(plan, missing="live"))
        with self.assertRaises(trainer.FallbackLimitError) as caught:
            steps.end_pass()
        self.assertEqual((caught.exception.samples, caught.exception.fallen_back), (6, 2))
        self.assertEqual(caught.exception.first, [("absent", "NOT_FOUND")])
        steps.end_pass()

    def test_a_source_that_fails(self) -> None:
        self.rows.failure = TimeoutError("no answer")
        begun = self.steps("live").begin(self.expected(0))
        self.assertEqual(begun.counts, {"SOURCE_FAILED": 1})
        self.rows.failure = ValueError("broken")
        with self.assertRaises(ValueError):
            self.steps("live").begin(self.expected(0))

    def test_why_a_source_failed_is_told(self) -> None:
        lost = ConnectionError("nobody there")
        for missing, kind in (("strict", trainer.FailedPreconditionError), ("live", trainer.FallbackLimitError)):
            self.source = StepSource(self.rows, deadline=0.01)
            self.addCleanup(self.source.close)
            steps = self.steps(missing, 0.5)
            self.rows.failure = lost
            with self.assertLogs("routing_replay_trainer", "WARNING") as logged, self.assertRaises(kind) as caught:
                steps.begin(self.expected(0))
            self.assertIs(caught.exception.__cause__, lost)
            self.assertRegex(logged.output[0], "nobody there")
            with self.assertNoLogs("routing_replay_trainer"), self.assertRaises(kind):
                steps.begin(self.expected(0))
            self.rows.failure = None
            mistake = trainer.FetchSequence("s0", "20")  # type: ignore[arg-type]
            with self.assertRaisesRegex(trainer.InvalidArgumentError, "num_tokens"):
                steps.begin([mistake])

    def test_refusals_say_the_numbers(self) -> None:
        shorter, absent = trainer.FetchSequence("s1", 49), trainer.FetchSequence(77, 9)
        for missing, kind in (("strict", trainer.FailedPreconditionError), ("live", trainer.FallbackLimitError)):
            with self.assertRaisesRegex(kind, "On this rank: s1: has 50 tokens, expected 49") as caught:
                self.steps(missing, 0.1).begin([*self.expected(0), shorter])
            self.assertIsNone(caught.exception.__cause__)
            self.assertEqual(caught.exception.code, "FAILED_PRECONDITION")
            with self.assertRaisesRegex(kind, "On this rank: 77: "):
                self.steps(missing, 0.1).begin([absent])
        self.assertEqual(caught.exception.fallen_back, 1)
        elsewhere = trainer.FailedPreconditionError("of another rank", sample="s9")
        self.assertIs(_with_numbers(elsewhere, {"s1": "has 50 tokens"}), elsewhere)

    def test_one_sample_of_two_lengths(self) -> None:
        twice = [*self.expected(0, 1), trainer.FetchSequence("s0"), trainer.FetchSequence("s1", SAMPLES["s1"])]
        self.assertEqual(self.steps("live").begin(twice).replayed, 2)
        for missing in ("strict", "live"):
            before = self.rows.inspections
            with self.assertRaisesRegex(trainer.InvalidArgumentError, "s1 has 50 tokens .* 51 in another") as caught:
                self.steps(missing).begin([*twice, trainer.FetchSequence("s1", 51)])
            self.assertEqual((caught.exception.field, caught.exception.sample), ("lengths", "s1"))
            self.assertEqual(self.rows.inspections, before)

    def test_samples_without_rows(self) -> None:
        """Of one token, or none: nobody has appended them."""
        for missing in ("strict", "live", "drop"):
            steps = self.steps(missing, 0.0)
            expected = [trainer.FetchSequence("one", 1), *self.expected(0), trainer.FetchSequence("none", 0)]
            begun = steps.begin(expected)
            self.assertEqual((begun.counts, begun.dropped, begun.live), ({"OK": 1}, (), ()))
            said = {"sequences": steps.apply(expected[:2]), "missing": missing}
            batch = self.source.fetch(plan_of({"one": 1, "s0": SAMPLES["s0"]}), **said)
            self.assertEqual((batch.fallback_sequences, batch.replayed_rows), (0, SAMPLES["s0"] - 1))
            self.assertEqual(steps.begin([expected[0]]).decisions, ())

    def test_samples_of_another_step(self) -> None:
        steps = self.steps("live")
        self.assertEqual([one.content_id for one in steps.apply(self.expected(3))], [None])
        steps.begin(self.expected(0))
        with self.assertRaises(trainer.FailedPreconditionError) as caught:
            steps.apply(self.expected(3))
        self.assertEqual(caught.exception.sample, "s3")


class StepsTest(unittest.TestCase):
    """What both faces of a model do with their steps."""

    def setUp(self) -> None:
        self.rows = CountingSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
        self.steps = Steps(self.rows, "live", None, 0.5, 20.0, PLENTY, Contract())
        self.addCleanup(self.steps.close)

    def test_weight_versions(self) -> None:
        for wrong in ("17", 17.0, True, -2, 2**63):
            with self.assertRaisesRegex(trainer.InvalidArgumentError, "weight_version"):
                self.steps.begin(["s0"], None, None, wrong)  # type: ignore[arg-type]
        self.assertEqual(self.rows.inspections, 0)
        self.rows.inspect = lambda samples, timeout=None: [  # type: ignore[method-assign]
            {"status": "OK", "num_tokens": 9, "revision": 0, "content_id": 1, "weights": [[0, 8, 15, ""]]}
        ]
        lags = [self.steps.begin(["s0"], None, None, version).weight_lag for version in (-1, None, 17, np.int64(18))]
        self.assertEqual(lags, [None, None, 2, 3])
        self.assertEqual(self.steps.take_counters().report()["routing_replay/step_samples"], 1)


class ReplicaTest(unittest.TestCase):
    """Sixteen ranks, each with a source of its own."""

    def step(self, missing: Any, change: Any, **options: Any) -> list[Any]:
        def one(collective: Any) -> Any:
            rows = CountingSource(geometry_of())
            for i, (name, tokens) in enumerate(SAMPLES.items()):
                rows.add(name, rows_of(tokens, i), tokens=np.arange(tokens))
            change(collective.rank, rows)
            with StepSource(rows, deadline=20.0) as source:
                source.begin_step()
                steps = AgreedSteps(source, missing=missing, collective=collective, **options)
                expected = AgreedTest.expected(*range(6))
                try:
                    begun = steps.begin(expected)
                except trainer.ReplayError as error:
                    return type(error), error.sample
                batch = source.fetch(plan_of(SAMPLES), sequences=steps.apply(expected), missing=missing)
                return begun, batch.states.tobytes(), batch.dropped

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, LocalGroup(16)))

    def test_one_sample_missing_on_one_rank(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 11:
                rows.remove("s3")

        for missing, named in (("live", "live"), ("drop", "dropped")):
            said = self.step(missing, change, max_fallback_fraction=0.5)
            self.assertEqual(len(set(map(repr, said))), 1)
            begun, _, dropped = said[0]
            self.assertEqual(getattr(begun, named), ("s3",))
            self.assertEqual((begun.replayed, begun.fallen_back), (5, 1))
            self.assertEqual(dropped, ("s3",) if missing == "drop" else ())
        self.assertEqual(self.step("strict", change), [(trainer.FailedPreconditionError, "s3")] * 16)
        self.assertEqual(self.step("live", change), [(trainer.FallbackLimitError, None)] * 16)

    def test_a_rank_whose_source_fails(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 2:
                rows.failure = TimeoutError("no answer")

        self.assertEqual(self.step("live", change), [(trainer.FallbackLimitError, None)] * 16)

    def test_another_content_on_one_rank(self) -> None:
        def change(rank: int, rows: CountingSource) -> None:
            if rank == 7:
                rows.add("s2", rows_of(SAMPLES["s2"], 99), tokens=np.arange(SAMPLES["s2"]))

        for missing in ("strict", "live", "drop"):
            self.assertEqual(self.step(missing, change), [(trainer.FailedPreconditionError, "s2")] * 16)


class CountingRun:
    """A run whose reads are counted, by sample."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def read_messages(self, request: bytes, timeout: float) -> Iterator[bytes]:
        for name in SAMPLES:
            self.reads[name] += request.count(name.encode())
        return self._run.read_messages(request, timeout)


@unittest.skipUnless(HAS_GRPC, "no grpcio")
class ServiceTest(unittest.TestCase):
    def setUp(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Gate, Server

        self.server = Server()
        self.addCleanup(self.server.stop)
        self.gate = Gate(self.server)
        self.addCleanup(self.gate.shut)
        self.client = routing_replay.Client(self.gate.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run("r", routing_replay.Geometry(**geometry_of()))
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            self.append(name, tokens, i)
        self.run_.flush()
        self.counted = CountingRun(self.run_)

    def append(self, name: str, tokens: int, seed: int, **options: Any) -> None:
        self.run_.append(
            name, rows_of(tokens, seed), tokens=np.arange(tokens - 1), num_tokens=tokens, seal=True, **options
        )

    def source(self, deadline: float = 30.0) -> StepSource:
        source = StepSource(trainer.ServiceSource(self.counted, wait=False), deadline=deadline)
        self.addCleanup(source.close)
        return source

    def test_each_slice_is_read_once(self) -> None:
        source = self.source()
        steps = AgreedSteps(source, missing="strict")
        source.begin_step()
        expected = AgreedTest.expected(*range(6))
        begun = steps.begin(expected)
        self.assertEqual(begun.replayed, 6)
        self.assertEqual(set(self.counted.reads.values()), {1})  # The inspection.
        batches = [(0, 1), (2, 3), (4, 5)]
        source.prefetch([(plan_of(some(*numbers)), AgreedTest.expected(*numbers)) for numbers in batches])
        for numbers in [*batches, *[(5, 0, 3), (1,), (2, 4)] * 3]:
            batch = source.fetch(plan_of(some(*numbers)), sequences=steps.apply(AgreedTest.expected(*numbers)))
            self.assertEqual(batch.fallback_sequences, 0)
        self.assertEqual(set(self.counted.reads.values()), {2})
        counts = source.counts()
        self.assertEqual(counts["hits"] + counts["misses"], 24)

    def test_a_late_sample_holds_nothing_back_that_is_read_ahead(self) -> None:
        self.run_.append("late", rows_of(10, 3)[:4], tokens=np.arange(4))
        self.run_.flush()
        source = StepSource(trainer.ServiceSource(self.counted), deadline=30.0)
        self.addCleanup(source.close)
        source.begin_step()
        source.prefetch([(plan_of({"late": 10, **some(0)}), None)])
        self.assertTrue(source.drain(10))
        source.fetch(plan_of(some(0)))
        self.assertEqual(self.counted.reads["s0"], 1)
        threading.Timer(0.1, self.append_rest_of_late).start()
        batch = source.fetch(plan_of({"late": 10, **some(0)}))
        self.assertEqual((batch.fallback_sequences, self.counted.reads["s0"]), (0, 1))

    def append_rest_of_late(self) -> None:
        self.run_.append("late", rows_of(10, 3)[4:], tokens=np.arange(4, 9), row_start=4, num_tokens=10, seal=True)
        self.run_.flush()

    def test_inspection_says_what_a_fetch_says(self) -> None:
        service = trainer.ServiceSource(self.run_, wait=False)
        self.run_.append("one", num_tokens=1, seal=True)
        self.run_.append("open", rows_of(10, 3), tokens=np.arange(9))
        self.run_.flush()
        cases = [
            trainer.FetchSequence("s0", 20, np.arange(20)),
            trainer.FetchSequence("s0", 20, np.arange(20) + 1),
            trainer.FetchSequence("s0", 21),
            trainer.FetchSequence("absent", 9),
            trainer.FetchSequence("open", 10),
            trainer.FetchSequence("s1"),
        ]
        self.assertEqual(service.inspect([trainer.FetchSequence("one", 1)])[0]["status"], "OK")
        records = service.inspect(cases)
        for case, record in zip(cases, records, strict=True):
            plan = plan_of({str(case.sample): case.num_tokens or 20})
            told = service.fetch(plan, sequences=[case], missing="live").sequences[0]
            self.assertEqual(record, {key: value for key, value in told.items() if key not in ("sequence", "sample")})
        self.assertEqual([record["status"] for record in records][1:3], ["TOKENS_MISMATCH", "LENGTH_MISMATCH"])
        self.assertEqual(service.inspect([]), [])

    def test_content_that_changes_after_the_agreement(self) -> None:
        source = self.source()
        for missing in ("strict", "live"):
            source.begin_step()
            steps = AgreedSteps(source, missing=missing)  # type: ignore[arg-type]
            expected = AgreedTest.expected(0, 1)
            steps.begin(expected)
            self.run_.truncate("s1", rows=0)
            self.append("s1", SAMPLES["s1"], 50, revision=self.run_.stat("s1").revision)
            self.run_.flush()
            with self.assertRaises(trainer.FailedPreconditionError) as caught:
                source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual((caught.exception.field, caught.exception.sample), ("content_id", "s1"))

    def test_a_service_that_is_away(self) -> None:
        source = self.source(deadline=1.0)
        source.begin_step()
        source.fetch(plan_of(some(0)))
        self.gate.shut()
        batch = source.fetch(plan_of(some(0, 1)), missing="live")
        self.assertEqual([one["status"] for one in batch.sequences], ["OK", "NOT_READY"])
        with self.assertRaises(trainer.DeadlineExceededError):
            source.fetch(plan_of(some(2)))
        begun = AgreedSteps(source, missing="live", max_fallback_fraction=1.0).begin(AgreedTest.expected(0))
        self.assertEqual(begun.counts, {"SOURCE_FAILED": 1})
        self.gate.open()
        source = self.source()
        source.begin_step()
        self.assertEqual(source.fetch(plan_of(some(2))).fallback_sequences, 0)


if __name__ == "__main__":
    unittest.main()
