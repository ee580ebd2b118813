"""Samples spread over several servers, one of which is killed: the result of each policy."""

from __future__ import annotations

import os
import sys
import unittest

import numpy as np
from routing_replay import errors
from step_test import geometry_of, plan_of, rows_of

import routing_replay_trainer as trainer
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.step import StepSource

SAMPLES = {f"s{i}": 20 + 5 * i for i in range(24)}


class ShardedTest(unittest.TestCase):
    def setUp(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        self.servers = [Server() for _ in range(4)]
        for server in self.servers:
            self.addCleanup(server.stop)
        endpoint = "shard:" + ",".join(server.endpoint for server in self.servers)
        client = routing_replay.Client(endpoint)
        self.addCleanup(client.close, 5)
        run = client.run("r", routing_replay.Geometry(**geometry_of()))
        self.local = trainer.LocalSource(geometry_of())
        for i, (name, tokens) in enumerate(SAMPLES.items()):
            rows = rows_of(tokens, i)
            run.append(name, rows, tokens=np.arange(tokens - 1), num_tokens=tokens, seal=True)
            self.local.add(name, rows, tokens=np.arange(tokens))
        run.flush()
        self.source = trainer.ServiceSource(run, wait=False)
        with routing_replay.Client(self.servers[1].endpoint) as one:
            self.gone = {state.sample for state in one.run("r").list()}
        self.assertTrue(0 < len(self.gone) < len(SAMPLES))

    def kill(self) -> None:
        self.servers[1].process.kill()
        self.servers[1].process.wait()
        for name in self.gone:
            self.local.remove(name)

    def expected(self) -> list[trainer.FetchSequence]:
        return [trainer.FetchSequence(name, tokens, np.arange(tokens)) for name, tokens in SAMPLES.items()]

    def steps(self, missing: trainer.Missing) -> tuple[StepSource, Steps]:
        source = StepSource(self.source, deadline=20.0)
        self.addCleanup(source.close)
        source.begin_step()
        return source, Steps(source, missing=missing, max_fallback_fraction=1.0)

    def expect_same(self, batch: trainer.Batch, local: trainer.Batch) -> None:
        np.testing.assert_array_equal(batch.states, local.states)
        for ours, theirs in zip(batch.indices, local.indices, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        self.assertEqual(batch.fallback_sequences, local.fallback_sequences)

    def test_all_servers(self) -> None:
        plan = plan_of(SAMPLES)
        self.expect_same(self.source.fetch(plan), self.local.fetch(plan))

    def test_without_one(self) -> None:
        plan = plan_of(SAMPLES)
        self.source.fetch(plan)
        self.kill()
        for missing in ("live", "drop"):
            batch = self.source.fetch(plan, missing=missing)
            self.expect_same(batch, self.local.fetch(plan, missing=missing))
            self.assertEqual(batch.fallback_sequences, len(self.gone))
            statuses = {one["sample"]: one["status"] for one in batch.sequences}
            self.assertEqual({name for name, status in statuses.items() if status == "UNAVAILABLE"}, self.gone)
            self.assertEqual({status for name, status in statuses.items() if name not in self.gone}, {"OK"})
        with self.assertRaisesRegex(errors.FailedPreconditionError, "UNAVAILABLE"):
            self.source.fetch(plan, missing="strict")

    def test_what_the_ranks_decide_without_one(self) -> None:
        self.kill()
        for missing, named in (("live", "live"), ("drop", "dropped")):
            source, steps = self.steps(missing)
            begun = steps.begin(self.expected())
            self.assertEqual(begun.counts, {"OK": len(SAMPLES) - len(self.gone), "UNAVAILABLE": len(self.gone)})
            self.assertEqual(set(getattr(begun, named)), self.gone)
            batch = source.fetch(plan_of(SAMPLES), sequences=steps.apply(self.expected()), missing=missing)
            self.assertEqual(batch.fallback_sequences, len(self.gone))
        with self.assertRaisesRegex(errors.FailedPreconditionError, "UNAVAILABLE"):
            self.steps("strict")[1].begin(self.expected())

    def test_killed_after_the_ranks_decided(self) -> None:
        """A server is killed after the ranks have agreed to replay its samples. The fetch fails, because no rank may
        fall back alone."""
        source, steps = self.steps("live")
        self.assertEqual(steps.begin(self.expected()).replayed, len(SAMPLES))
        self.kill()
        others = {name: tokens for name, tokens in SAMPLES.items() if name not in self.gone}
        expected = [one for one in self.expected() if one.sample in others]
        batch = source.fetch(plan_of(others), sequences=steps.apply(expected), missing="live")
        self.expect_same(batch, self.local.fetch(plan_of(others)))
        with self.assertRaisesRegex(errors.FailedPreconditionError, "UNAVAILABLE"):
            source.fetch(plan_of(SAMPLES), sequences=steps.apply(self.expected()), missing="live")


if __name__ == "__main__":
    unittest.main()
