"""Steps: every slice is read once, ahead or not, within the limits of bytes and time; decisions of all ranks hold."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np
from routing_replay import errors
from sources_test import random_scenario

import routing_replay_trainer as trainer
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.step import StepSource

PLENTY = 1 << 30


class CountingSource(trainer.LocalSource):
    """Counts the fetches that read something, as a service would. It can be made slow, be blocked, or reject."""

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


def expected_of(*numbers: int) -> list[trainer.FetchSequence]:
    return [trainer.FetchSequence(name, tokens, np.arange(tokens)) for name, tokens in some(*numbers).items()]


def drain(source: StepSource) -> None:
    """Waits until everything announced has been read: only then are both threads free to come to the meeting."""
    meeting = threading.Barrier(3)
    for _ in range(2):
        source._jobs.put(lambda: meeting.wait(30))
    meeting.wait(30)


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
        self.assertEqual((counts["misses"], counts["hits"]), (6, 18))
        source.begin_step()
        self.assertEqual(source.counts()["bytes"], 0)
        self.fetch(source, 0)
        self.assertEqual(self.rows.reads, 4)

    def test_without_a_step_nothing_is_kept(self) -> None:
        source = self.source()
        self.fetch(source, 0)
        self.fetch(source, 0)
        self.assertEqual(self.rows.reads, 2)
        with self.assertRaises(errors.FailedPreconditionError):
            source.prefetch([(plan_of(some(0)), None)])

    def test_read_ahead(self) -> None:
        source = self.source()
        source.begin_step()
        source.prefetch([(plan_of(some(*both)), None) for both in ((4, 5), (0, 1), (2, 3))])
        drain(source)
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
        self.assertLessEqual(counts["bytes"], 5000)
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
            with self.assertRaises(errors.DeadlineExceededError):
                source.fetch(plan_of(some(2)))
            self.assertLess(time.monotonic() - started, 20)
            self.assertEqual(source.counts()["timeouts"], 4)
            self.rows.gate.set()
            source.begin_step()
            self.fetch(source, 2)

    def test_errors_leave_nothing_behind(self) -> None:
        source = self.source()
        source.begin_step()
        self.rows.failure = ValueError("broken")
        source.prefetch([(plan_of(some(0)), None)])
        drain(source)
        with self.assertRaises(ValueError):
            source.fetch(plan_of(some(0)))
        self.rows.failure = None
        self.fetch(source, 0)

    def test_close_wakes_who_waits(self) -> None:
        source = self.source(cache_bytes=3000)
        source.begin_step()
        source.prefetch([(plan_of(some(i)), None) for i in range(6)])  # More than the cache has room for.
        while not self.rows.reads:
            time.sleep(0.001)
        before = threading.active_count()
        source.close()
        self.assertLess(threading.active_count(), before)
        with self.assertRaises(errors.CancelledError):
            source.fetch(plan_of(some(0)))

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
            with contextlib.closing(source):
                source.begin_step()
                for _ in range(3):
                    for pp, cp in np.ndindex(scenario.pp, scenario.cp):
                        plan = scenario.plan(pp, cp)
                        said = {"sequences": scenario.sequences(), "missing": "live"}
                        same(self, source.fetch(plan, **said), local.fetch(plan, **said))


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

    def append(self, name: str, tokens: int, seed: int, **options: Any) -> None:
        self.run_.append(
            name, rows_of(tokens, seed), tokens=np.arange(tokens - 1), num_tokens=tokens, seal=True, **options
        )

    def samples_read(self) -> int:
        """How many existing samples the server has read so far."""
        return self.client.server_info().counters.get('routing_replay_read_samples_total{status="OK"}', 0)

    def source(self, deadline: float = 30.0) -> StepSource:
        source = StepSource(trainer.ServiceSource(self.run_, wait=False), deadline=deadline)
        self.addCleanup(source.close)
        return source

    def test_rows_that_came_without_tokens(self) -> None:
        """Tokens are compared if the server knows them. "late": they came with the seal. "tail" has none for its
        unrecorded rows, "mute" has none at all."""
        tokens, rows = np.arange(20), rows_of(20, 7)
        self.run_.append("tail", rows[:9], tokens=tokens[:9])
        self.run_.append("tail", row_start=9, unrecorded=[(9, 19)], num_tokens=20, seal=True)
        self.run_.append("late", rows)
        self.run_.append("late", row_start=19, tokens=tokens[:19], num_tokens=20, seal=True)
        self.run_.append("mute", rows, seal=True)
        self.run_.flush()
        names = ("tail", "late", "mute")
        told = [trainer.FetchSequence(name, 20, tokens) for name in names]
        source, plan = self.source(), plan_of(dict.fromkeys(names, 20))
        steps = Steps(source, missing="live", max_fallback_fraction=1.0)
        source.begin_step()
        self.assertEqual(steps.begin(told).counts, {"OK": 1, "TOKENS_NOT_KNOWN": 2})
        batch = source.fetch(plan, sequences=steps.apply(told), missing="live")
        self.assertEqual([one["status"] for one in batch.sequences], ["UNSPECIFIED", "OK", "UNSPECIFIED"])
        others = [trainer.FetchSequence(name, 20, np.concatenate([tokens[:8], tokens[8:] + 1])) for name in names]
        source.begin_step()
        self.assertEqual(steps.begin(others).counts, {"TOKENS_MISMATCH": 1, "TOKENS_NOT_KNOWN": 2})

    def test_each_slice_is_read_once(self) -> None:
        source = self.source()
        steps = Steps(source, missing="strict")
        source.begin_step()
        expected = expected_of(*range(6))
        begun = steps.begin(expected)
        self.assertEqual(begun.replayed, 6)
        self.assertEqual(self.samples_read(), 6)  # The inspection.
        batches = [(0, 1), (2, 3), (4, 5)]
        source.prefetch([(plan_of(some(*numbers)), expected_of(*numbers)) for numbers in batches])
        for numbers in [*batches, *[(5, 0, 3), (1,), (2, 4)] * 3]:
            batch = source.fetch(plan_of(some(*numbers)), sequences=steps.apply(expected_of(*numbers)))
            self.assertEqual(batch.fallback_sequences, 0)
        self.assertEqual(self.samples_read(), 12)
        counts = source.counts()
        self.assertEqual(counts["hits"] + counts["misses"], 24)

    def test_a_late_sample_holds_nothing_back_that_is_read_ahead(self) -> None:
        self.run_.append("late", rows_of(10, 3)[:4], tokens=np.arange(4))
        self.run_.flush()
        source = StepSource(trainer.ServiceSource(self.run_), deadline=30.0)
        self.addCleanup(source.close)
        source.begin_step()
        source.prefetch([(plan_of({"late": 10, **some(0)}), None)])
        drain(source)
        source.fetch(plan_of(some(0)))
        self.assertEqual(self.samples_read(), 1)
        threading.Timer(0.1, self.append_rest_of_late).start()
        batch = source.fetch(plan_of({"late": 10, **some(0)}))
        self.assertEqual((batch.fallback_sequences, self.samples_read()), (0, 2))  # Now the late sample was read, too.

    def append_rest_of_late(self) -> None:
        self.run_.append("late", rows_of(10, 3)[4:], tokens=np.arange(4, 9), row_start=4, num_tokens=10, seal=True)
        self.run_.flush()

    def test_an_unsealed_sample_is_not_ready(self) -> None:
        """A sample that is not sealed has no length yet: it may still grow, so ranks that ask at different times would
        get different lengths."""
        self.run_.append("late", rows_of(10, 3)[:4], tokens=np.arange(4))
        self.run_.flush()
        asked = [trainer.FetchSequence(name) for name in ("late", "s0")]
        now = trainer.ServiceSource(self.run_, wait=False).inspect(asked)
        self.assertEqual([one["status"] for one in now], ["NOT_READY", "OK"])
        self.assertIn("not sealed; 4 rows committed", now[0]["message"])
        patient = trainer.ServiceSource(self.run_)
        self.assertEqual(patient.inspect(asked, timeout=0.2)[0]["status"], "NOT_READY")
        begun = Steps(self.source(), missing="drop", max_fallback_fraction=1.0).begin(asked)
        self.assertEqual((begun.dropped, begun.replayed), (("late",), 1))
        threading.Timer(0.2, self.append_rest_of_late).start()
        later = patient.inspect(asked, timeout=30.0)
        self.assertEqual(
            [(one["status"], one["num_tokens"]) for one in later],
            [("OK", 10), ("OK", SAMPLES["s0"])],
        )

    def test_a_deadline_that_never_comes(self) -> None:
        source = self.source(float("inf"))
        source.begin_step()
        self.assertEqual(Steps(source, missing="strict").begin(expected_of(0)).replayed, 1)
        batch = source.fetch(plan_of(some(0)), sequences=expected_of(0))
        self.assertEqual(batch.fallback_sequences, 0)

    def test_a_prefix_of_any_length_is_read_by_its_tokens(self) -> None:
        """The server has token checks only at block boundaries and at the end of a sample. It therefore compares the
        tokens of a prefix only up to its last whole block."""
        self.append("long", 601, 9)
        self.run_.flush()
        service = trainer.ServiceSource(self.run_, wait=False)
        lengths = [2, 4, 5, 256, 257, 258, 300, 512, 513, 514, 600, 601]
        told = [trainer.FetchSequence("long", tokens=np.arange(n)) for n in lengths]
        self.assertEqual({one["status"] for one in service.inspect(told)}, {"OK"})
        local = CountingSource(geometry_of())
        local.add("long", rows_of(601, 9), tokens=np.arange(601))
        self.assertEqual({one["status"] for one in local.inspect(told)}, {"OK"})
        other = [trainer.FetchSequence("long", tokens=np.arange(n) + 1) for n in lengths]
        found = [one["status"] == "TOKENS_MISMATCH" for one in service.inspect(other)]
        self.assertEqual(found, [n > 256 for n in lengths])
        for n in lengths:
            plan = plan_of({"long": n})
            batch = service.fetch(plan, sequences=[trainer.FetchSequence("long", tokens=np.arange(n))])
            self.assertEqual((batch.replayed_rows, batch.fallback_sequences), (n - 1, 0))

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
            steps = Steps(source, missing=missing)  # type: ignore[arg-type]
            expected = expected_of(0, 1)
            steps.begin(expected)
            self.run_.truncate("s1", rows=0)
            self.append("s1", SAMPLES["s1"], 50, revision=self.run_.stat("s1").revision)
            self.run_.flush()
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                source.fetch(plan_of(some(0, 1)), sequences=steps.apply(expected), missing=missing)
            self.assertEqual((caught.exception.field, caught.exception.sample), ("content_id", "s1"))

    def test_a_service_that_is_away(self) -> None:
        source = self.source(deadline=1.0)
        source.begin_step()
        source.fetch(plan_of(some(0)))
        self.gate.shut()
        batch = source.fetch(plan_of(some(0, 1)), missing="live")
        self.assertEqual([one["status"] for one in batch.sequences], ["OK", "NOT_READY"])
        with self.assertRaises(errors.DeadlineExceededError):
            source.fetch(plan_of(some(2)))
        begun = Steps(source, missing="live", max_fallback_fraction=1.0).begin(expected_of(0))
        self.assertEqual(begun.counts, {"SOURCE_FAILED": 1})
        self.gate.open()
        source = self.source()
        source.begin_step()
        self.assertEqual(source.fetch(plan_of(some(2))).fallback_sequences, 0)


if __name__ == "__main__":
    unittest.main()
