"""Clients of several servers with `shard:`."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import unittest

import numpy as np
from support import Server, random_routes

import routing_replay as rr
from routing_replay import aio

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)


class ShardedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.servers = [Server() for _ in range(4)]
        for server in self.servers:
            self.addCleanup(server.stop)
        self.endpoint = "shard:" + ",".join(server.endpoint for server in self.servers)
        self.client = self.connect()
        self.run_ = self.client.run("run", GEOMETRY)
        self.rng = np.random.default_rng(1)

    def connect(self, endpoint: str | None = None) -> rr.Client:
        client = rr.Client(endpoint or self.endpoint)
        self.addCleanup(client.close, 5)
        return client

    def routes(self, rows: int) -> np.ndarray:
        return random_routes(self.rng, rows, 3, 64, 4)

    def fill(self, count: int = 40) -> dict[str, np.ndarray]:
        samples = {f"s/{i}": self.routes(20 + i) for i in range(count)}
        for i, (name, rows) in enumerate(samples.items()):
            self.run_.append(name, rows, group=i % 4, seal=True)
        self.run_.flush()
        return samples

    def held_by(self, server: Server) -> set[str]:
        return {state.sample for state in self.connect(server.endpoint).run("run").list()}

    def expect(self, run: rr.Run, samples: dict[str, np.ndarray], missing: set[str] = frozenset()) -> None:
        names = list(samples)
        read = run.read([run.handle(name) if i % 2 else name for i, name in enumerate(names)])
        for name, got in zip(names, read, strict=True):
            if name in missing:
                self.assertEqual((got.status, got.rows), ("UNAVAILABLE", None))
            else:
                self.assertEqual((name, got.status, got.message), (name, "OK", ""))
                np.testing.assert_array_equal(got.rows, samples[name], name)

    def test_as_one_server(self) -> None:
        samples = self.fill()
        self.assertTrue(all(self.held_by(server) for server in self.servers))
        for run in (self.run_, self.connect().run("run")):
            self.expect(run, samples)
            self.assertEqual([state.sample for state in run.list()], sorted(samples))
            self.assertEqual([state.sample for state in run.stat_many(["s/7", "no", "s/3"])], ["s/7", "s/3"])
            self.assertEqual(run.read_one("no").status, "NOT_FOUND")
            with self.assertRaises(rr.NotFoundError):
                run.stat("no")
        rows = sum(map(len, samples.values()))
        self.assertEqual(self.run_.metrics()["rows"], rows)
        self.assertEqual(self.client.server_info().samples, len(samples))
        self.assertEqual(self.run_.release(["s/0", "no"]).samples, 1)
        self.assertEqual(self.run_.release_groups(1, 3).samples, 20)
        self.assertEqual(self.run_.drop().samples, 19)
        with self.assertRaises(rr.NotFoundError):
            self.client.run("run")

    def test_writes_of_all_kinds(self) -> None:
        rows = self.routes(30)
        outcomes: list[rr.AppendOutcome] = []
        with self.run_.appender(on_outcome=outcomes.append) as appender:
            numbers = [appender.append(f"a/{i}", rows[:10]) for i in range(8)]
        self.assertEqual(sorted(one.sequence for one in outcomes), sorted(numbers))
        for i in range(8):
            put = self.run_.put(f"a/{i}", rows[10:], row_start=10)
            self.assertEqual(put.committed_rows, 30)
            self.assertEqual(self.run_.truncate(f"a/{i}", 20).revision, 1)
            self.assertTrue(self.run_.put(f"a/{i}", num_tokens=21, revision=1).sealed)
        self.expect(self.run_, {f"a/{i}": rows[:20] for i in range(8)})
        with self.assertRaises(rr.InvalidArgumentError):
            self.run_.append("bad", np.full((2, 3, 4), 64, np.int32))

    def test_forks_are_with_their_parents(self) -> None:
        rows, more = self.routes(30), self.routes(5)
        whole = np.concatenate([rows, more])
        trajectory = self.run_.trajectory("turns:0")
        trajectory.add(rows, tokens=np.arange(31))
        forks = [trajectory.fork(f"turns:{i}") for i in range(1, 8)]
        for fork in forks:
            self.assertGreater(fork.add(whole, tokens=np.arange(36)).shared_rows, 0)
        self.run_.flush()
        self.expect(self.run_, {f"turns:{i}": whole for i in range(1, 8)})
        other = self.connect().run("run")
        for i in range(1, 8):
            other.append(f"turns:{i}", more, row_start=35, tokens=np.arange(40), seal=True)
            other.flush()
        self.expect(self.run_, {f"turns:{i}": np.concatenate([whole, more]) for i in range(1, 8)})

    def test_checkpoints(self) -> None:
        samples = self.fill()
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.run_.checkpoint(directory).written, 40)
            self.assertEqual(self.run_.release_groups(0, 2).samples, 20)
            self.assertEqual(len(self.run_.list()), 20)
            again = self.client.run("run", GEOMETRY, resume_at=3)
            self.assertEqual((again.dropped.samples, len(again.list())), (10, 10))
            self.client.restore(directory)
            self.expect(self.run_, samples)

    def test_without_one_server(self) -> None:
        samples = self.fill()
        gone = self.held_by(self.servers[2])
        self.servers[2].process.kill()
        self.servers[2].process.wait()
        for run in (self.run_, self.connect().run("run")):
            self.expect(run, samples, gone)
            there = sorted(samples.keys() - gone)
            self.assertEqual([state.sample for state in run.stat_many(there)], there)
            for rejected in (run.list, lambda run=run: run.stat_many(samples)):
                with self.assertRaisesRegex(rr.UnavailableError, self.servers[2].endpoint):
                    rejected()
        self.assertEqual(self.run_.release_groups(0, 4).samples, len(samples) - len(gone))

    def test_a_server_that_lost_the_run(self) -> None:
        samples = self.fill()
        endpoint = self.servers[1].endpoint
        with tempfile.TemporaryDirectory() as directory:
            place, following = f"{directory}/1", f"{directory}/2"
            self.run_.checkpoint(place)
            lost = self.connect(endpoint).run("run").drop().samples
            self.assertGreater(lost, 0)
            whole = (self.run_.list, lambda: self.run_.checkpoint(following, previous=place))
            for rejected in whole:
                with self.assertRaisesRegex(rr.DataLossError, f"server {endpoint}: the run is gone there"):
                    rejected()
            again = self.client.run("run", GEOMETRY)
            self.assertEqual(len(again.list()), len(samples) - lost)
            self.assertEqual(again.checkpoint(following, previous=place).samples, len(samples))
            self.assertEqual(self.client.restore(place).appended, lost)
            self.expect(again, samples)

    def test_errors_name_their_server(self) -> None:
        self.fill()
        endpoint = self.servers[2].endpoint
        name = min(self.held_by(self.servers[2]))
        client = rr.Client(self.endpoint, call_timeout=2)
        self.addCleanup(client.close, 5)
        run = client.run("run")
        self.servers[2].process.kill()
        self.servers[2].process.wait()
        for rejected in (
            run.list,
            lambda: run.stat(name),
            lambda: client.run("new", GEOMETRY),
        ):
            with self.assertRaises(rr.UnavailableError) as raised:
                rejected()
            for error in (raised.exception, pickle.loads(pickle.dumps(raised.exception))):
                self.assertIn(f"server {endpoint}: ", str(error))
                self.assertEqual(str(error).count("UNAVAILABLE"), 1)

    def test_a_fork_elsewhere_is_rejected(self) -> None:
        trajectory = self.run_.trajectory("parent")
        trajectory.add(self.routes(30), tokens=np.arange(31))
        self.run_.flush()
        there = next(server for server in self.servers if "parent" in self.held_by(server))
        names = iter(f"fork/{i}" for i in range(100))
        for name in names:  # Ends at a name whose sample is stored on another server than the parent.
            self.run_.put(name, self.routes(1))
            if name not in self.held_by(there):
                break
        with self.assertRaisesRegex(rr.InvalidArgumentError, 'begin the fork\'s id with "parent:"'):
            trajectory.fork(name).add(self.routes(1), tokens=np.arange(32), start=30)

    def test_a_bare_handle_is_rejected(self) -> None:
        self.run_.put("a", self.routes(3))
        for rejected in (self.run_.read, self.run_.release):
            with self.assertRaisesRegex(rr.InvalidArgumentError, r"run\.handle\(id\)"):
                rejected([rr.sample_handle("a")])
        self.assertEqual(self.run_.stat("a").handle, self.run_.handle("a"))
        self.assertEqual(self.run_.release([0, self.run_.handle("a")]).samples, 1)

    def test_a_tag_names_a_server(self) -> None:
        port = self.servers[0].endpoint.rpartition(":")[2]
        client = self.connect(f"shard:localhost:{port},{self.servers[1].endpoint}")
        run = client.run("tags", GEOMETRY)
        names = {f"{tag}:{i}" for tag in ("localhost", "127.0.0.1") for i in range(8)}
        for name in names:
            run.put(name, self.routes(2))
        for tag, server in zip(("localhost", "127.0.0.1"), self.servers, strict=False):
            held = {state.sample for state in self.connect(server.endpoint).run("tags").list()}
            self.assertEqual(held, {name for name in names if name.startswith(tag)})

    def test_another_list_is_rejected(self) -> None:
        fewer = self.connect("shard:" + ",".join(server.endpoint for server in self.servers[1:]))
        for geometry in (GEOMETRY, None):
            with self.assertRaisesRegex(rr.FailedPreconditionError, "spread over other servers"):
                fewer.run("run", geometry)
        part = self.connect(self.servers[0].endpoint)
        with self.assertRaisesRegex(rr.FailedPreconditionError, "spread over other servers"):
            part.run("run", GEOMETRY)
        self.assertEqual(part.run("run").list(), [])
        with self.assertRaises(rr.InvalidArgumentError):
            rr.Client("shard:a:1,a:1")

    def test_asyncio_too(self) -> None:
        samples = self.fill(8)

        async def work() -> None:
            async with aio.Client(self.endpoint) as client:
                run = await client.run("run")
                await run.append("late", self.routes(5), seal=True)
                await run.flush()
                self.assertEqual([state.sample for state in await run.list()], sorted([*samples, "late"]))
                for name, got in zip(samples, await run.read(samples), strict=True):
                    np.testing.assert_array_equal(got.rows, samples[name])

        asyncio.run(work())


if __name__ == "__main__":
    unittest.main()
