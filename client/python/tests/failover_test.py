"""Clients of several servers over one store: two proxies before one server are shut and opened in turn."""

from __future__ import annotations

import asyncio
import threading
import time
import unittest

import numpy as np
from support import Gate, ServerTest, random_routes

import routing_replay as rr
from routing_replay import aio

GEOMETRY = rr.Geometry(num_layers=8, num_experts=64, top_k=8)
ROWS = random_routes(np.random.default_rng(1), 2000, 8, 64, 8)
SAMPLES = [f"s{i}" for i in range(8)]


class Shutters:
    """Shuts the gates in turn, but never both at once."""

    def __init__(self, gates: list[Gate]) -> None:
        self._gates = gates
        self._done = threading.Event()
        self.rounds = 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while not self._done.is_set():
            gate = self._gates[self.rounds % len(self._gates)]
            gate.shut()
            self._done.wait(0.05)
            gate.open()
            self._done.wait(0.02)
            self.rounds += 1

    def __enter__(self) -> Shutters:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()


class FailoverTest(ServerTest):
    def setUp(self) -> None:
        self.gates = [Gate(self.server), Gate(self.server)]
        for gate in self.gates:
            self.addCleanup(gate.shut)
        self.endpoint = ",".join(gate.endpoint for gate in self.gates)

    def write_all(self) -> None:
        with rr.Client(self.server.endpoint) as client, client.run(self.run_name, GEOMETRY) as run:
            for name in SAMPLES:
                run.append(name, ROWS, seal=True)
            run.flush(60)

    def test_calls_appends_and_reads_go_on(self) -> None:
        with rr.Client(self.endpoint, call_timeout=60) as client, client.run(self.run_name, GEOMETRY) as run:
            with Shutters(self.gates) as shutters, run.appender() as appender:
                for begin in range(0, 2000, 200):
                    for name in SAMPLES:
                        appender.append(name, ROWS[begin : begin + 200], row_start=begin, seal=begin == 1800)
                    run.stat_many(SAMPLES)
                    time.sleep(0.01)
                appender.flush(60)
                for _ in range(5):
                    for sample in run.read(SAMPLES, timeout=60):
                        np.testing.assert_array_equal(sample.rows, ROWS)
                while shutters.rounds < 4:
                    run.stat_many(SAMPLES)
            self.assertEqual(appender.metrics()["conflicting_rows"], 0)

    def test_asyncio_too(self) -> None:
        async def work() -> None:
            async with (
                aio.Client(self.endpoint, call_timeout=60) as client,
                await client.run(self.run_name, GEOMETRY) as run,
            ):
                with Shutters(self.gates):
                    for begin in range(0, 2000, 400):
                        for name in SAMPLES:
                            await run.append(name, ROWS[begin : begin + 400], row_start=begin, seal=begin == 1600)
                        await asyncio.sleep(0.01)
                    await run.flush(60)
                    for _ in range(5):
                        for sample in await run.read(SAMPLES, timeout=60):
                            np.testing.assert_array_equal(sample.rows, ROWS)
                # This call is not retried: it would fail if its server is shut while it is in flight.
                self.gates[0].shut()
                self.assertEqual((await run.truncate("s1", 10)).committed_rows, 10)

        asyncio.run(work())

    def test_what_must_not_be_repeated_finds_a_living_server(self) -> None:
        for name, shut in zip("ab", self.gates, strict=True):
            with rr.Client(self.endpoint, call_timeout=60) as client:
                run = client.run(self.run_name, GEOMETRY)
                run.put(name, ROWS[:10])
                shut.shut()
                self.assertEqual(run.truncate(name, 0).revision, 1)
                shut.open()

    def test_a_read_of_which_nothing_came_goes_on(self) -> None:
        self.write_all()
        for shut in self.gates:
            with rr.Client(self.endpoint) as client:
                run = client.run(self.run_name)
                shut.shut()
                np.testing.assert_array_equal(run.read_one("s0").rows, ROWS)
                shut.open()

    def test_bad_endpoints_are_rejected_at_once(self) -> None:
        for endpoint in ("a:1,a:1", "a:1,", "a:1,unix:/s", "dns:///a:1,b:1"):
            with self.subTest(endpoint), self.assertRaises(rr.InvalidArgumentError) as caught:
                rr.Client(endpoint)
            self.assertEqual(caught.exception.field, "endpoint")

    def test_a_busy_server_has_seconds_to_answer_a_connection(self) -> None:
        gate = Gate(self.server, delay=0.7)
        self.addCleanup(gate.shut)
        with rr.Client(gate.endpoint) as client:
            client.run(self.run_name, GEOMETRY).put("a", ROWS[:10])

        async def read() -> rr.SampleRows:
            async with aio.Client(gate.endpoint) as client:
                run = await client.run(self.run_name)
                return await run.read_one("a")

        np.testing.assert_array_equal(asyncio.run(read()).rows, ROWS[:10])

    def test_a_name(self) -> None:
        port = self.gates[0].endpoint.rsplit(":", 1)[1]
        with rr.Client(f"dns:///localhost:{port}") as client:
            run = client.run(self.run_name, GEOMETRY)
            run.put("a", ROWS[:10])
            np.testing.assert_array_equal(run.read_one("a").rows, ROWS[:10])


if __name__ == "__main__":
    unittest.main()
