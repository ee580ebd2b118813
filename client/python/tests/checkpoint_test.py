"""Writes runs to directories and restores them."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import aio

GEOMETRY = rr.Geometry(num_layers=3, num_experts=300, top_k=4)
SEALED = 4


def routes(rows: int, seed: int) -> np.ndarray:
    return random_routes(np.random.default_rng(seed), rows, 3, 300, 4)


class CheckpointTest(ServerTest):
    def setUp(self) -> None:
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run(self.run_name, GEOMETRY)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name, "checkpoint")
        for i in range(3):
            rows = 30 + 400 * i
            tokens = np.arange(rows + 1, dtype=np.int64) * (i + 3)
            self.run_.append(f"s/{i}", routes(rows, i), tokens=tokens[:-1], group=i, weight_version=7 + i, seal=True)
        self.run_.append("gaps", routes(10, 5), unrecorded=[(2, 4), (10, 12)], group=9, weight_label="x", seal=True)
        self.run_.append("open", routes(10, 6))
        self.run_.flush()

    def assert_same(self, a: rr.Run, b: rr.Run) -> None:
        sealed = [state.sample for state in a.list() if state.num_tokens is not None]
        self.assertEqual([state.sample for state in b.list()], sealed)
        for state, copy in zip(a.stat_many(sealed), b.stat_many(sealed), strict=True):
            for field in ("num_tokens", "group", "unrecorded", "weights", "token_check"):
                self.assertEqual(getattr(copy, field), getattr(state, field), (state.sample, field))
        for rows, copied in zip(a.read(sealed), b.read(sealed), strict=True):
            self.assertTrue(copied.ok, copied.message)
            self.assertEqual(copied.row_ranges, rows.row_ranges)
            np.testing.assert_array_equal(copied.rows, rows.rows)

    def test_what_the_server_lost_is_restored(self) -> None:
        self.run_.checkpoint(self.directory)
        self.run_.drop()  # Like a restart of a server with a memory store.
        with self.assertRaises(rr.NotFoundError):
            self.run_.checkpoint(self.directory.with_name("next"), previous=self.directory)
        run = self.client.run(self.run_name, GEOMETRY)
        self.assertEqual(self.client.restore(self.directory).appended, SEALED)
        with self.assertRaises(rr.errors.AlreadyExistsError):
            run.checkpoint(self.directory)
        done = run.checkpoint(self.directory.with_name("next"), previous=self.directory)
        self.assertEqual((done.samples, done.written), (SEALED, SEALED))

    def test_what_was_released_is_taken_from_the_previous_one(self) -> None:
        self.run_.checkpoint(self.directory)
        self.run_.release_groups(0, 2)
        self.run_.append("new", routes(10, 8), seal=True)
        self.run_.flush()
        done = self.run_.checkpoint(self.directory.with_name("next"), previous=self.directory)
        self.assertEqual((done.samples, done.written), (SEALED + 1, 1))
        file = next(self.directory.glob("*.npy"))
        self.assertEqual(file.stat().st_nlink, 2)
        self.assertEqual(self.client.restore(self.directory.with_name("next")).appended, 2)

    def test_what_comes_back_is_what_was_there(self) -> None:
        done = self.run_.checkpoint(self.directory)
        size = sum((30 + 400 * i) * 3 * 4 * 2 for i in range(3)) + 10 * 3 * 4 * 2
        self.assertEqual(done, rr.CheckpointOutcome(SEALED, SEALED, unsealed=1, bytes=size))
        name = self.run_name + "-copy"
        restored = self.client.restore(str(self.directory), name)
        self.assertEqual(restored, rr.RestoreOutcome(name, SEALED, SEALED, size))
        copy = self.client.run(name)
        self.assert_same(self.run_, copy)
        # A reader that passes tokens gets the rows.
        tokens = np.arange(30, dtype=np.uint32) * 3
        asked = rr.SampleRead("s/0", token_checks=[rr.token_check(tokens)])
        self.assertEqual(copy.read_one(asked).status, "OK")
        again = self.client.restore(self.directory, name)
        self.assertEqual(again, rr.RestoreOutcome(name, SEALED, 0, 0))

    def test_the_same_in_an_event_loop(self) -> None:
        async def move() -> None:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run(self.run_name)
                done = await run.checkpoint(self.directory)
                self.assertEqual((done.samples, done.written), (SEALED, SEALED))
                self.assertEqual((await run.release(["s/1", "open"])).samples, 2)
                restored = await client.restore(self.directory, self.run_name)
                self.assertEqual((restored.samples, restored.appended), (SEALED, 1))
                name = self.run_name + "-copy"
                self.assertEqual((await client.restore(self.directory, name)).appended, SEALED)
                self.assertEqual((await client.restore(self.directory, name)).appended, 0)
                await run.truncate("s/0", 0)
                await run.put("s/0", routes(30, 8), revision=1)
                with self.assertRaises(rr.errors.AlreadyExistsError) as caught:
                    await client.restore(self.directory)
                self.assertEqual(caught.exception.sample, "s/0")
                await run.release(["s/0"])
                await client.restore(self.directory)

        asyncio.run(move())
        self.assert_same(self.run_, self.client.run(self.run_name + "-copy"))

    def test_a_cancelled_restore_goes_on_when_it_is_called_again(self) -> None:
        self.run_.checkpoint(self.directory)
        name = self.run_name + "-copy"

        async def cancelled() -> None:
            async with aio.Client(self.server.endpoint) as client:
                task = asyncio.ensure_future(client.restore(self.directory, name))
                await asyncio.sleep(0)  # It begins.
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await client.restore(self.directory, name)

        asyncio.run(cancelled())
        self.assert_same(self.run_, self.client.run(name))

    def test_only_what_changed_is_written(self) -> None:
        places = [self.directory.with_name(str(i)) for i in range(4)]
        self.run_.checkpoint(places[0], groups=(0, 2))
        self.assertEqual(self.run_.checkpoint(places[1], previous=places[0]).written, SEALED - 2)
        self.run_.truncate("s/0", 0)
        self.run_.put("s/0", routes(31, 8), revision=1, seal=True)
        self.assertEqual(self.run_.checkpoint(places[2], previous=places[1]).written, 1)
        self.run_.release(["s/1"])
        self.assertEqual(self.run_.checkpoint(self.directory, previous=places[2]).samples, SEALED)
        self.assertEqual(self.run_.checkpoint(places[3]).samples, SEALED - 1)
        self.client.restore(places[3], self.run_name + "-copy")
        self.assert_same(self.run_, self.client.run(self.run_name + "-copy"))

    def test_another_content_is_rejected_by_name(self) -> None:
        self.run_.checkpoint(self.directory)
        copy = self.client.run(self.run_name + "-copy", GEOMETRY)
        other = routes(30, 0)
        other[6, 2] = other[6, 2, ::-1]
        copy.put("s/0", other, weight_version=7)
        with self.assertRaises(rr.AlreadyExistsError) as rejected:
            self.client.restore(self.directory, copy.name)
        self.assertEqual(rejected.exception.reason, "CONFLICTING_ROWS")
        self.assertEqual(rejected.exception.sample, "s/0")
        # If the run already has some of the same rows, the import continues after them.
        copy.truncate("s/0", 5)
        self.assertEqual(self.client.restore(self.directory, copy.name).samples, SEALED)
        self.assert_same(self.run_, copy)

    def test_a_directory_that_is_none(self) -> None:
        with self.assertRaises(rr.FailedPreconditionError) as missing:
            self.client.restore(self.directory)
        self.assertEqual(missing.exception.reason, "NOT_COMMITTED")
        self.run_.checkpoint(self.directory)
        other = self.client.run(self.run_name + "-other", GEOMETRY)
        with self.assertRaises(rr.FailedPreconditionError):
            other.checkpoint(self.directory.with_name("next"), previous=self.directory)
        (self.directory / "00000001.npy").write_bytes(b"")
        with self.assertRaises(rr.DataLossError) as damaged:
            self.client.restore(self.directory, other.name)
        self.assertIsNotNone(damaged.exception.sample)


if __name__ == "__main__":
    unittest.main()
