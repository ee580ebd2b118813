"""Ranks agree on a step: as threads of one process, and as processes with torch.distributed's gloo."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from local_group import LocalGroup
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import collective as collectives
from routing_replay_trainer.collective import Collective, StepDecision, TorchCollective

POLICIES = ("strict", "live", "drop")


@dataclass(frozen=True)
class SampleReport:
    """The state that a rank's source returns for a sample."""

    sample: Any
    status: str = "OK"
    num_tokens: Any = None
    content_id: Any = None
    oldest_weight_version: int | None = None
    newest_weight_version: int | None = None

    def record(self) -> dict[str, Any]:
        versions = (self.oldest_weight_version, self.newest_weight_version)
        return vars(self) | {"weights": [[0, 1, version, ""] for version in versions if version is not None]}


def agree(collective: Collective, seen: list[SampleReport] | None, *arguments: Any, **options: Any) -> StepDecision:
    samples, records = (None, None) if seen is None else ([one.sample for one in seen], [one.record() for one in seen])
    return collectives.agree(collective, samples, records, *arguments, **options)


def on_all(size: int, body: Callable[[Collective], Any]) -> list[Any]:
    """Runs `body` on each rank of a LocalGroup, and returns what it returned or raised on each."""
    group, results = LocalGroup(size), [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = body(group[rank])
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def states(count: int = 5) -> list[SampleReport]:
    return [SampleReport(f"math/{i}", "OK", 100 + i, 2**64 - 1 - i, -1 + i, 7 + i) for i in range(count)]


def plain(result: Any) -> Any:
    """Makes errors comparable by their message."""
    return (type(result), str(result)) if isinstance(result, Exception) else result


class AgreementTest(unittest.TestCase):
    """Sixteen ranks agree on a step."""

    def agree(self, change: Callable[[int, list[SampleReport]], Any] = lambda rank, seen: None, **options: Any) -> Any:
        """Returns the decision of all ranks, or the error that all have raised. change: changes what a rank sees"""

        def body(collective: Collective) -> StepDecision:
            seen = states()
            change(collective.rank, seen)
            return agree(collective, seen, **{"deadline": 600.0} | options)

        first, *others = on_all(16, body)
        for other in others:
            self.assertEqual(plain(other), plain(first))
        return first

    def test_all_replay(self) -> None:
        for policy in POLICIES:
            decision = self.agree(policy=policy, geometry=2**64 - 1)
            self.assertEqual((decision.replayed, decision.fallen_back, decision.counts), (5, 0, {"OK": 5}))
            self.assertEqual(
                SampleReport(**{f: getattr(decision.decisions[2], f) for f in vars(states()[2])}), states()[2]
            )

    def test_one_rank_misses_a_sample(self) -> None:
        def lose(rank: int, seen: list[SampleReport]) -> None:
            if rank == 13:
                seen[3] = SampleReport("math/3", "LOST")

        error = self.agree(lose)
        self.assertIsInstance(error, errors.FailedPreconditionError)
        self.assertEqual(error.sample, "math/3")
        self.assertIn("LOST, first on rank 13; 1 of 5", error.message)
        for policy in ("live", "drop"):
            decision = self.agree(lose, policy=policy)
            self.assertEqual([said.action for said in decision.decisions], ["replay"] * 3 + [policy, "replay"])
            fallen = decision.decisions[3]
            self.assertEqual((fallen.status, fallen.missing_on), ("LOST", 13))
            self.assertEqual((decision.counts, decision.fallen_back), ({"OK": 4, "LOST": 1}, 1))

    def test_other_content(self) -> None:
        def differ(rank: int, seen: list[SampleReport]) -> None:
            if rank == 5:
                seen[2] = replace(seen[2], content_id=17)

        error = self.agree(differ, policy="live")
        self.assertIsInstance(error, errors.FailedPreconditionError)
        self.assertEqual((error.reason, error.sample), ("CONFLICTING_ROWS", "math/2"))
        self.assertIn(f"{2**64 - 3} on one rank and 17 on another", error.message)

    def test_what_ranks_recorded_themselves(self) -> None:
        """Each rank has recorded only its own rows of the sample, so the ranks have no content id to compare."""
        geometry = {"num_layers": 1, "num_experts": 8, "top_k": 2}
        layout = {
            "format": "THD",
            "sequences": [{"sample": "a", "tokens": 8}],
            "cu_seqlens_padded": [0, 8],
            "total_rows": 8,
            "partition": "zigzag_per_document",
            "cp_size": 2,
        }

        def step(collective: Collective) -> Any:
            plan = trainer.plan(geometry, layout, rank={"cp": collective.rank})
            source = trainer.LocalSource(geometry)
            source.record(plan, 0, np.array([[row, 7 - row] for row in range(4)], np.uint8).reshape(-1))
            records = source.inspect([trainer.FetchSequence("a", 8)])
            decision = collectives.agree(collective, ["a"], records, "strict", 600.0)
            agreed = trainer.FetchSequence("a", 8, content_id=decision.decisions[0].content_id)
            return decision, source.fetch(plan, sequences=[agreed]).replayed_rows

        (decision, first), (other, second) = on_all(2, step)
        self.assertEqual((decision, decision.replayed, decision.decisions[0].content_id), (other, 1, None))
        self.assertEqual((first, second), (3, 4))

    def test_other_steps(self) -> None:
        for change in (list.pop, list.reverse, list.clear):
            error = self.agree(lambda rank, seen, change=change: change(seen) if rank == 7 else None)
            self.assertIsInstance(error, errors.FailedPreconditionError)

    def test_a_source_that_failed(self) -> None:
        results = on_all(4, lambda rank: agree(rank, states(), "live", 600.0, failed=rank.rank == 2))
        for decision in results:
            self.assertEqual(decision.counts, {"SOURCE_FAILED": 5})

    def test_wrong_arguments_reach_the_others(self) -> None:
        for wrong in (
            [SampleReport("a", "LATE")],
            [SampleReport("a", "UNSPECIFIED")],
            [SampleReport("a", "SOURCE_FAILED")],
            [SampleReport("a", num_tokens=2**70)],
            [SampleReport("a", num_tokens=True)],
            [SampleReport(1.5)],
            [SampleReport(None)],
            [SampleReport("a", content_id=-1)],
        ):
            with self.subTest(wrong):
                by_rank = (states(1), wrong, states(1))
                results = on_all(3, lambda rank, seen=by_rank: agree(rank, seen[rank.rank], "live", 600.0))
                self.assertIsInstance(results[1], errors.InvalidArgumentError)
                for rank in (0, 2):
                    self.assertIsInstance(results[rank], errors.FailedPreconditionError)
                    self.assertIn("rank 1 cannot take part", results[rank].message)
        results = on_all(3, lambda rank: agree(rank, states(1) if rank.rank else None, deadline=600.0))
        self.assertIsInstance(results[0], TypeError)
        results = on_all(3, lambda rank: agree(rank, states(1), "lives" if rank.rank else "live", deadline=600.0))
        self.assertIsInstance(results[2], errors.InvalidArgumentError)

    def test_a_rank_that_never_comes(self) -> None:
        def body(collective: Collective) -> None:
            if collective.rank == 0:
                return
            with self.assertRaises(errors.DeadlineExceededError):
                agree(collective, states(), deadline=0.02)
            with self.assertRaisesRegex(errors.FailedPreconditionError, "not usable after"):
                agree(collective, states(), deadline=0.02)

        self.assertEqual(on_all(16, body), [None] * 16)

    def test_state_of_a_fetched_sequence(self) -> None:
        geometry = {"num_layers": 1, "num_experts": 8, "top_k": 1}
        source = trainer.LocalSource(geometry)
        source.add("a", np.zeros((3, 1, 1), np.int32) + 1)
        layout = {"format": "THD", "cu_seqlens_padded": [0, 4, 8], "total_rows": 8, "partition": "contiguous"}
        plan = trainer.plan(geometry, layout | {"sequences": [{"sample": s, "tokens": 4} for s in "ab"]})
        seen, fingerprint = source.fetch(plan, missing="live").sequences, plan.described["geometry_fingerprint"]
        decision = collectives.agree(LocalGroup(1)[0], "ab", seen, "drop", geometry=fingerprint)
        self.assertEqual([said.status for said in decision.decisions], ["OK", "NOT_FOUND"])
        self.assertEqual(decision.decisions[0].num_tokens, 4)
        told = {"status": "OK", "weights": [[0, 2, 5, ""], [2, 3, 3, ""]]}
        (decided,) = collectives.agree(LocalGroup(1)[0], "a", [told]).decisions
        self.assertEqual((decided.oldest_weight_version, decided.newest_weight_version), (3, 5))


def check_reductions(collective: Collective, seed: int) -> None:
    """Compares what a collective returns with the values of all ranks, which each rank knows from the seed."""
    rng = np.random.default_rng(seed)
    for count in (1, 5, 0, 300):
        given = rng.integers(-(2**63), 2**63 - 1, (collective.size, count))
        reduced = collective.all_reduce_max(given[collective.rank], 600.0)
        np.testing.assert_array_equal(reduced, given.max(axis=0))
        assert collective.all_gather(given[collective.rank].tobytes(), 600.0) == [row.tobytes() for row in given]
    parts = [bytes([rank]) * (rank * 3 % 7) for rank in range(collective.size)]
    assert collective.all_gather(parts[collective.rank], 600.0) == parts


class LocalGroupTest(unittest.TestCase):
    def test_reductions(self) -> None:
        for size in (1, 2, 5):
            self.assertEqual(on_all(size, lambda rank: check_reductions(rank, 1)), [None] * size)


def random_states(rng: random.Random, ranks: int) -> list[list[SampleReport]]:
    """Returns for each rank what its source reports about each sample."""
    names = [f"s{i}" if rng.random() < 0.8 else i for i in range(rng.randrange(6))]
    seen = []
    for _ in range(ranks):
        statuses = ["OK" if rng.random() < 0.9 else "NOT_READY" for _ in names]
        ids = [5 if rng.random() < 0.97 else 6 for _ in names]
        seen.append([SampleReport(n, s, content_id=c) for n, s, c in zip(names, statuses, ids, strict=True)])
    return seen


def expected(seen: list[list[SampleReport]], policy: str) -> Any:
    """Returns the expected actions, or the sample that the expected error names."""
    actions = []
    for column in zip(*seen, strict=True):
        if len({state.content_id for state in column if state.status == "OK"}) > 1:
            return column[0].sample
        actions.append("replay" if all(state.status == "OK" for state in column) else policy)
    if "strict" in actions:
        return seen[0][actions.index("strict")].sample
    return actions


def check_agreement(collective: Collective, rounds: int) -> None:
    rng = random.Random(2)
    for _ in range(rounds):
        seen, policy = random_states(rng, collective.size), rng.choice(POLICIES)
        want = expected(seen, policy)
        try:
            got: Any = [said.action for said in agree(collective, seen[collective.rank], policy, 600.0).decisions]
        except errors.FailedPreconditionError as error:
            got, want = error.sample, want if isinstance(want, str) else None
        assert got == want, (got, want)


class PropertyTest(unittest.TestCase):
    def test_random_steps(self) -> None:
        for size in (1, 4):
            self.assertEqual(on_all(size, lambda rank: check_agreement(rank, 200)), [None] * size)


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class GlooTest(unittest.TestCase):
    """Runs this file in 4 processes, with the rank as argument."""

    def test_four_processes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--rank"]
            with contextlib.ExitStack() as stack:
                ranks = [
                    stack.enter_context(
                        subprocess.Popen(
                            [*command, str(rank), folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                        )
                    )
                    for rank in range(4)
                ]
                said = [rank.communicate()[0] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0] * 4, "\n".join(said))


def gloo_rank(rank: int, folder: str) -> None:
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{os.path.join(folder, 'meet')}", rank=rank, world_size=4
    )
    pairs = [distributed.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    grid = TorchCollective([pairs[rank // 2], pairs[2 + rank % 2]])
    flat = TorchCollective([None])
    for collective in (flat, grid):
        assert (collective.rank, collective.size) == (rank, 4)
        check_reductions(collective, 3)
        check_agreement(collective, 50)
    last = TorchCollective([distributed.new_group([0, 1, 2, 3])])
    if rank != 3:
        for error in (errors.DeadlineExceededError, errors.FailedPreconditionError):
            try:
                agree(last, states(), deadline=0.5)
            except error:
                continue
            raise AssertionError(error)
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # Threads of gloo wait for the rank that is missing.


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        gloo_rank(int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
