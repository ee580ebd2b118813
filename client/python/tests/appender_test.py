"""The background appender against a real server that starts, stops, hangs and is full."""

from __future__ import annotations

import base64
import gc
import io
import logging
import os
import signal
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path

import numpy as np
from support import Gate, Server, ServerTest, random_routes

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4, moe_layers=[1, 2, 3])
ROWS = random_routes(np.random.default_rng(1), 500, 3, 64, 4)
TOKENS = np.arange(501)


class AppenderTest(ServerTest):
    def open(self) -> rr.Run:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        return client.run(self.run_name, GEOMETRY)

    def test_append_and_read(self) -> None:
        run = self.open()
        sequences = [
            run.append(f"a/{i}", ROWS[: 100 + i], tokens=TOKENS[: 101 + i], group=i, weight_version=5, seal=True)
            for i in range(50)
        ]
        run.flush()
        self.assertEqual(sequences, list(range(1, 51)))
        got = run.read([f"a/{i}" for i in range(50)])
        for i, sample in enumerate(got):
            self.assertTrue(sample.ok)
            self.assertEqual(sample.num_tokens, 101 + i)
            self.assertEqual(sample.rows.dtype, np.uint8)
            np.testing.assert_array_equal(sample.rows, ROWS[: 100 + i])
        one = run.read_one(rr.SampleRead("a/7", rows=[(3, 5), (90, 107)]), layers=[3])
        np.testing.assert_array_equal(one.rows[:, 0], np.concatenate([ROWS[3:5, 2], ROWS[90:107, 2]]))
        self.assertEqual(one.row_ranges, ((3, 5), (90, 107)))
        self.assertEqual(one.layers, (3,))
        self.assertEqual(run.read_one("nobody").status, "NOT_FOUND")
        self.assertIsNone(run.read_one("nobody").rows)
        metrics = run.metrics()
        self.assertEqual((metrics["appends"], metrics["acknowledged"], metrics["failed"]), (50, 50, 0))
        self.assertEqual(metrics["queued_bytes"], 0)
        state = run.stat("a/3")
        self.assertTrue(state.sealed)
        self.assertEqual(state.token_check, rr.token_check(TOKENS[:103]))
        self.assertEqual(state.handle, rr.sample_handle("a/3"))
        self.assertEqual([s.sample for s in run.list(groups=(10, 12))], ["a/10", "a/11"])
        self.assertEqual(run.release_groups(0, 10).samples, 10)
        self.assertEqual(run.release(["a/10", "nobody"]).samples, 1)
        with self.assertRaises(rr.NotFoundError) as caught:
            run.stat("a/3")
        self.assertEqual(caught.exception.reason, "NO_SAMPLE")

    def test_some_rows_of_a_payload(self) -> None:
        run = self.open()
        payload = rr.Payload(base64.b64encode(ROWS.tobytes()).decode(), "BASE64", dtype="I32", shape=ROWS.shape)
        run.append("s", payload, take=(10, 60), layers="moe")
        run.append("s", ROWS, row_start=50, take=(60, 80), seal=True)
        run.flush()
        run.put("t", payload, take=(10, 60))
        run.put("t", ROWS, row_start=50, take=(60, 80), seal=True)
        for sample in run.read(["s", "t"]):
            self.assertEqual(sample.num_tokens, 71)
            np.testing.assert_array_equal(sample.rows, ROWS[10:80])
        for rows in (ROWS, payload):
            with self.assertRaises(rr.InvalidArgumentError) as caught:
                run.append("u", rows, take=(490, 501))
            self.assertEqual(caught.exception.field, "append.tensor.take")

    def test_states_that_are_too_long_for_one_answer(self) -> None:
        run = self.open()
        rows = np.resize(ROWS, (4000, *ROWS.shape[1:]))
        holes = [(row, row + 1) for row in range(0, 8000, 2)]
        names = [f"s{i:03}" for i in range(120)]
        for name in names:
            run.append(name, rows, unrecorded=holes)
        run.flush()
        self.assertEqual([state.sample for state in run.stat_many([*names, "none", "s003"])], names)
        self.assertEqual([state.sample for state in run.list()], names)

    def test_turns_unrecorded_rows_and_restart(self) -> None:
        run = self.open()
        run.append("s", ROWS[:100])
        run.append("s", ROWS[105:200], row_start=100, unrecorded=[(100, 105)])
        run.append("s", seal=True, row_start=200)
        run.flush()
        sample = run.read_one("s")
        self.assertEqual(sample.num_tokens, 201)
        self.assertEqual(sample.unrecorded, ((100, 105),))
        self.assertEqual(sample.row_ranges, ((0, 100), (105, 200)))
        np.testing.assert_array_equal(sample.rows, np.concatenate([ROWS[:100], ROWS[105:200]]))
        run.append("s", ROWS[200:250], restart=77)
        run.append("s", ROWS[250:300], row_start=50, restart=77, num_tokens=101)
        run.flush()
        sample = run.read_one("s")
        self.assertEqual((sample.revision, sample.num_tokens), (1, 101))
        np.testing.assert_array_equal(sample.rows, ROWS[200:300])
        state = run.truncate("s", 10, expected_revision=1)
        self.assertEqual((state.committed_rows, state.revision, state.sealed), (10, 2, False))
        self.assertTrue(run.put("s", num_tokens=11, revision=2).sealed)

    def test_seals_without_a_number(self) -> None:
        run = self.open()
        run.append("holes", ROWS[:3], unrecorded=[(1, 3), (5, 6)], seal=True)
        run.append("lost", unrecorded=[(0, 4)], seal=True)
        run.append("empty", seal=True)
        run.flush()
        for name, tokens in (("holes", 7), ("lost", 5), ("empty", 1)):
            self.assertEqual(run.stat(name).num_tokens, tokens, name)
        # The shape of this payload is only in the header of its .npy file.
        file = io.BytesIO()
        np.save(file, ROWS[:20])
        outcome = run.put("file", rr.Payload(file.getvalue(), "NPY"), seal=True)
        self.assertTrue(outcome.sealed)
        self.assertEqual(run.stat("file").num_tokens, 21)

    def test_nothing_closed_is_kept(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run(self.run_name, GEOMETRY)
        appender = run.appender(on_outcome=lambda outcome: None)
        appender.append("a", ROWS)
        appender.close()
        run.append("b", ROWS)
        run.close()
        dropped = client.run(self.run_name)
        dropped.append("c", ROWS)
        gone = [weakref.ref(thing) for thing in (appender, run, run._default_appender(), dropped)]
        run.close()
        del appender, run, dropped
        gc.collect()
        self.assertEqual([reference() for reference in gone], [None] * 4)
        client.close()  # Also sends what was queued through a run that nobody refers to any more.
        self.assertEqual(rr.Client(self.server.endpoint).run(self.run_name).stat("c").committed_rows, 500)
        gone = [weakref.ref(client), weakref.ref(client._link)]
        del client
        gc.collect()
        self.assertEqual([reference() for reference in gone], [None] * 2)

    def test_rejections(self) -> None:
        run = self.open()
        bad = ROWS[:10].copy()
        bad[3, 1, 2] = 64
        with self.assertRaises(ValueError) as caught:
            run.append("s", bad)
        error = caught.exception
        assert isinstance(error, rr.InvalidArgumentError)
        self.assertEqual((error.reason, error.row, error.layer, error.sample), ("ID_RANGE", 3, 2, "s"))
        for rows, field in ((ROWS.astype(np.float32), "append.tensor.dtype"), ("text", "append.tensor.dtype")):
            with self.assertRaises(rr.InvalidArgumentError) as caught:
                run.append("s", rows)
            self.assertEqual(caught.exception.field, field)
        for tokens in ([-1] * 10, [2**32] * 10, [0.5] * 10, [1, 2]):
            with self.assertRaises(rr.InvalidArgumentError) as caught:
                run.append("s", ROWS[:10], tokens=tokens)
            self.assertEqual(caught.exception.field, "append.token_ids")
        with self.assertRaises(rr.InvalidArgumentError):
            run.append("s", ROWS[:10], weights=3)
        with self.assertRaises(TypeError):
            run.append("s", ROWS[:10], weight=3)  # type: ignore[call-arg]
        run.append("gap", ROWS[:10], row_start=7)
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            run.flush()
        self.assertEqual((caught.exception.reason, caught.exception.committed_rows), ("GAP", 0))
        run.flush()
        for layers in ([0], []):
            with self.assertRaises(rr.InvalidArgumentError):
                run.read(["s"], layers=layers)
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            rr.Client(self.server.endpoint).run(self.run_name, rr.Geometry(4, 64, 4))
        self.assertEqual(caught.exception.reason, "GEOMETRY_MISMATCH")
        with self.assertRaises(rr.NotFoundError):
            rr.Client(self.server.endpoint).run("no-such-run")
        self.assertEqual(rr.Client(self.server.endpoint).run(self.run_name).geometry, GEOMETRY)

    def test_put_takes_what_engines_give(self) -> None:
        run = self.open()
        for i, rows in enumerate(
            (ROWS, ROWS.astype(np.uint8), ROWS.astype(">i2"), ROWS[::-1][::-1], np.asfortranarray(ROWS))
        ):
            outcome = run.put(f"p{i}", rows, seal=True)
            self.assertEqual((outcome.committed_rows, outcome.sealed), (500, True))
            np.testing.assert_array_equal(run.read_one(f"p{i}").rows, ROWS)
        wide = np.zeros((500, 4, 4), np.int32)
        wide[:, 1:] = ROWS
        run.put("wide", wide, layers="all")
        run.put("order", ROWS[:, [2, 0, 1]], layers=[3, 1, 2])
        for name in ("wide", "order"):
            np.testing.assert_array_equal(run.read_one(name).rows, ROWS)

    def test_outcomes_and_many_threads(self) -> None:
        run = self.open()
        outcomes: list[rr.AppendOutcome] = []
        appender = run.appender(on_outcome=outcomes.append, max_queued_bytes=20000)

        def work(worker: int) -> None:
            for begin in range(0, 500, 50):
                appender.append(f"w{worker}", ROWS[begin : begin + 50], row_start=begin)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        appender.flush()
        self.assertEqual(len(outcomes), 80)
        for worker in range(8):
            committed = [o.committed_rows for o in outcomes if o.sample == f"w{worker}"]
            self.assertEqual(committed, list(range(50, 501, 50)))
            np.testing.assert_array_equal(run.read_one(f"w{worker}").rows, ROWS)

    def test_a_callback_that_fails_harms_nobody(self) -> None:
        run = self.open()

        def fail(outcome: rr.AppendOutcome) -> None:
            raise RuntimeError("mine")

        appender = run.appender(on_outcome=fail)
        with self.assertLogs("routing_replay", logging.ERROR):
            appender.append("s", ROWS)
            appender.flush()
        appender.close()
        with self.assertRaises(rr.CancelledError):
            appender.append("s", ROWS)

    def test_a_read_can_wait(self) -> None:
        run = self.open()
        run.put("s", ROWS[:100])
        self.assertEqual(run.read_one(rr.SampleRead("s", rows=[(0, 200)])).status, "NOT_READY")
        later = threading.Timer(0.2, lambda: run.put("s", ROWS[100:200], row_start=100))
        later.start()
        sample = run.read_one(rr.SampleRead("s", rows=[(0, 200)]), wait=True, timeout=60)
        later.join()
        np.testing.assert_array_equal(sample.rows, ROWS[:200])

    def test_arrays_outlive_the_client(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run(self.run_name, GEOMETRY)
        run.put("s", ROWS)
        rows = run.read_one("s").rows
        client.close()
        del client, run
        np.testing.assert_array_equal(rows, ROWS)
        rows[0, 0, 0] = 9  # Writable.
        self.assertTrue(rows[:, 1].flags.c_contiguous)

    def test_server_info_and_settings(self) -> None:
        client = rr.Client(self.server.endpoint)
        run = client.run(self.run_name, GEOMETRY, ttl=60, block_rows=64, codec="RAW")
        info = client.server_info()
        self.assertEqual((info.version, info.store), (rr.__version__, "memory"))
        self.assertIn("routing_replay_appends_total", info.counters)
        self.assertEqual(
            run.settings, rr.RunSettings(ttl=60, strict=False, block_rows=64, codec="RAW", durability="memory")
        )
        self.assertEqual(client.run(self.run_name).drop().samples, 0)

    def test_proxies_of_the_environment_are_ignored(self) -> None:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            os.environ[name] = "http://127.0.0.1:9"
            self.addCleanup(os.environ.pop, name)
        rr.Client(self.server.endpoint, call_timeout=20).server_info()


class TroubleTest(unittest.TestCase):
    def start(self, *flags: str) -> Server:
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server

    def gate(self) -> Gate:
        gate = Gate(self.start())
        self.addCleanup(gate.shut)
        return gate

    def test_an_unreachable_server_fails_calls_and_queues_appends(self) -> None:
        gate = self.gate()
        run = rr.Client(gate.endpoint, call_timeout=1).run("r", GEOMETRY)
        gate.shut()
        with self.assertRaises(ConnectionError):
            run.stat("s")
        with self.assertRaises(rr.UnavailableError):
            run.read(["s"], timeout=1)
        run.append("s", ROWS)
        with self.assertRaises(TimeoutError):
            run.flush(0.1)
        gate.open()
        run.flush(60)
        np.testing.assert_array_equal(run.read_one("s").rows, ROWS)
        run.close()

    def test_a_server_that_does_not_answer(self) -> None:
        server = self.start()
        client = rr.Client(server.endpoint, call_timeout=1)
        run = client.run("r", GEOMETRY)
        appender = run.appender(append_timeout=1)
        appender.append("s", ROWS)
        appender.flush(20)
        server.pause()
        try:
            appender.append("s", ROWS[:1], row_start=500)
            with self.assertRaises(rr.DeadlineExceededError):
                appender.flush(30)
            with self.assertRaises(rr.DeadlineExceededError):
                run.stat("s")
            with self.assertRaises(rr.DeadlineExceededError):
                run.read(["s"], timeout=1)
        finally:
            server.process.send_signal(signal.SIGCONT)
        begin = time.monotonic()
        appender.append("t", ROWS)
        appender.flush(60)
        np.testing.assert_array_equal(run.read_one("t").rows, ROWS)
        self.assertLess(time.monotonic() - begin, 60)
        client.close()

    def test_a_full_queue(self) -> None:
        gate = self.gate()
        run = rr.Client(gate.endpoint, call_timeout=5).run("r", GEOMETRY)
        gate.shut()
        raising = run.appender(max_queued_bytes=4000, on_full="raise")
        dropping = run.appender(max_queued_bytes=4000, on_full="drop")
        blocking = run.appender(max_queued_bytes=4000, on_full="block", queue_timeout=0.2)
        for appender, name in ((raising, "r"), (dropping, "d"), (blocking, "b")):
            appender.append(f"{name}1", ROWS, seal=True)
        with self.assertRaises(rr.ResourceExhaustedError) as caught:
            raising.append("r2", ROWS, seal=True)
        self.assertEqual((caught.exception.reason, caught.exception.sample), ("OVER_BUDGET", "r2"))
        with self.assertLogs("routing_replay", logging.WARNING):
            dropping.append("d2", ROWS, tokens=TOKENS, seal=True)
        begin = time.monotonic()
        blocking.append("b2", ROWS[:100])
        self.assertGreater(time.monotonic() - begin, 0.15)
        self.assertEqual(dropping.metrics()["dropped_rows"], 500)
        gate.open()
        for appender in (raising, dropping, blocking):
            appender.flush(60)
        blocking.append("b2", ROWS[100:200], row_start=100)
        blocking.flush(60)
        for name in ("r1", "d1", "b1"):
            np.testing.assert_array_equal(run.read_one(name).rows, ROWS)
        self.assertEqual(run.read_one("d2").status, "NOT_RECORDED")
        self.assertEqual(run.stat("d2").num_tokens, 501)
        self.assertEqual(run.read_one("b2").unrecorded, ((0, 100),))
        np.testing.assert_array_equal(run.read_one("b2").rows, ROWS[100:200])
        run.close()

    def test_a_full_server_is_waited_for(self) -> None:
        server = self.start("--memory-budget", "1MiB")
        client = rr.Client(server.endpoint)
        run = client.run("r", GEOMETRY, codec="RAW")
        big = np.tile(ROWS, (20, 1, 1))
        for i in range(8):
            run.append(f"s{i}", big, group=i)
            time.sleep(0.02)
        deadline = time.monotonic() + 30
        while run.metrics()["credit_rejections"] == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertGreater(run.metrics()["credit_rejections"], 0)
        for i in range(8):
            while not run.stat_many([f"s{i}"]) or run.stat(f"s{i}").committed_rows < len(big):
                self.assertLess(time.monotonic(), deadline + 60)
                time.sleep(0.01)
            run.release([f"s{i}"])
        run.flush(60)
        self.assertEqual(run.metrics()["failed"], 0)
        client.close()

    def test_broken_connections_lose_and_repeat_nothing(self) -> None:
        gate = self.gate()
        client = rr.Client(gate.endpoint)
        run = client.run("r", GEOMETRY)
        outcomes: list[rr.AppendOutcome] = []
        appender = run.appender(on_outcome=outcomes.append)
        rng = np.random.default_rng(3)
        for begin in range(0, 500, 5):
            for sample in "abcd":
                tokens = TOKENS[: begin + 5] if sample < "c" else None
                appender.append(sample, ROWS[begin : begin + 5], row_start=begin, tokens=tokens)
            if rng.random() < 0.1:
                gate.shut()
                time.sleep(0.02)
                gate.open()
        appender.flush(120)
        for sample in run.read(list("abcd")):
            np.testing.assert_array_equal(sample.rows, ROWS)
        self.assertEqual(len(outcomes), 400)
        self.assertTrue(all(outcome.error is None for outcome in outcomes))
        self.assertGreater(appender.metrics()["reconnects"], 0)
        client.close()

    def test_a_server_that_has_moved_is_found_again(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "endpoint")
            first = Server()
            file.write_text(first.endpoint)
            with rr.Client(f"file:{file}", call_timeout=20) as client:
                client.run("r", GEOMETRY).put("before", ROWS)
                first.stop()
                second = self.start()
                self.assertNotEqual(second.endpoint, first.endpoint)
                later = threading.Timer(0.3, lambda: file.write_text(second.endpoint))
                file.unlink()
                later.start()
                run = client.run("r", GEOMETRY)  # Waits until the file names the second server.
                later.join()
                run.append("after", ROWS)
                run.flush(60)
                third = self.start()
                file.write_text(third.endpoint)
                with rr.Client(third.endpoint) as direct:
                    direct.run("r", GEOMETRY)
                second.stop()
                run.append("later", ROWS)  # The appender still has a stream to the second server, which is gone.
                run.flush(60)
                self.assertEqual(run.stat("later").committed_rows, 500)
                fourth = self.start()
                file.write_text(fourth.endpoint)
                third.stop()
                with self.assertRaises(rr.NotFoundError):  # Sent only once, so it must go to `fourth`.
                    run.truncate("later", 0)

    def test_a_run_that_a_server_has_lost(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "endpoint")
            first = Server()
            file.write_text(first.endpoint)
            client = rr.Client(f"file:{file}", call_timeout=20)
            self.addCleanup(client.close)
            run = client.run("r", GEOMETRY)
            outcomes: list[rr.AppendOutcome] = []
            appender = run.appender(on_outcome=outcomes.append)
            appender.append("a", ROWS[:100])
            appender.flush(60)
            first.stop()
            file.write_text(self.start().endpoint)
            appender.append("a", ROWS[100:200], row_start=100)
            with self.assertRaises(rr.NotFoundError) as caught:
                appender.flush(60)
            self.assertEqual(caught.exception.reason, "NO_RUN")
            error = outcomes[-1].error
            assert isinstance(error, rr.NotFoundError)
            self.assertEqual(error.reason, "NO_RUN")
            # A client makes the run again, and the same appender continues.
            client.run("r", GEOMETRY)
            appender.append("a", ROWS[:200])
            appender.flush(60)
            np.testing.assert_array_equal(run.read_one("a").rows, ROWS[:200])

    def test_closing_waits_for_no_stream_of_another_appender(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        client = rr.Client(server.endpoint)
        self.addCleanup(client.close)
        run = client.run("several", GEOMETRY)
        appenders = [run.appender() for _ in range(3)]
        for i, appender in enumerate(appenders):
            appender.append(f"a/{i}", ROWS)
            appender.flush()
        for appender in appenders:
            closing = threading.Thread(target=appender.close, daemon=True)
            closing.start()
            closing.join(60)
            self.assertFalse(closing.is_alive())

    def test_closing_does_not_hang(self) -> None:
        server = self.start()
        client = rr.Client(server.endpoint, call_timeout=1)
        run = client.run("r", GEOMETRY)
        server.stop()
        run.append("s", ROWS)
        begin = time.monotonic()
        with self.assertLogs("routing_replay", logging.WARNING):
            client.close(timeout=0.3)
        self.assertLess(time.monotonic() - begin, 10)
        with self.assertRaises(rr.CancelledError):
            run.stat("s")


if __name__ == "__main__":
    unittest.main()
