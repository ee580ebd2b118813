"""Cancels asyncio calls of every kind at random moments, and checks that no stored row is wrong and no resource leaks.

    cancellations.py [SECONDS] [SEED]     default: 60 s; needs ROUTING_REPLAY_SERVER and the client tests' environment

Thirty-two tasks use a run, its appenders, trajectories and reads (some into the task's own buffers). Each call is
cancelled after 0 to 20 ms, or never. Rows that a put or a commit acknowledged are read again and compared. Buffers of
cancelled reads are freed at once, so that AddressSanitizer detects a late write. At the end there must be no more
threads and descriptors than after the warm-up.
"""

import asyncio
import collections
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/tests"))

import numpy as np
import routing_replay as rr
from routing_replay import aio
from support import Server, random_routes

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
TASKS = 32
GEOMETRY = rr.Geometry(num_layers=3, num_experts=300, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 600, 3, 300, 4)
counts: collections.Counter[str] = collections.Counter()


def threads_and_descriptors() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class Worker:
    def __init__(self, number: int, run: aio.Run, client: aio.Client) -> None:
        self.random = random.Random(f"{SEED}/{number}")
        self.number = number
        self.run = run
        self.client = client
        self.made = 0
        self.known: list[str] = []

    def name(self) -> str:
        self.made += 1
        return f"{self.number}/{self.made}"

    def rows(self) -> np.ndarray:
        return ROWS[: self.random.choice((1, 7, 100, 300, 600))]

    async def one(self) -> None:
        kinds = (
            self.append,
            self.put,
            self.read,
            self.stat,
            self.commit,
            self.trajectory,
            self.appender,
        )
        kind = self.random.choice((*kinds, self.release, self.other_run))
        task = asyncio.ensure_future(kind())
        if self.random.random() < 0.7:
            await asyncio.sleep(self.random.random() * 0.02)
            task.cancel()
        try:
            await task
            counts[f"{kind.__name__} done"] += 1
        except asyncio.CancelledError:
            counts[f"{kind.__name__} cancelled"] += 1
        except (rr.NotFoundError, rr.AlreadyExistsError, rr.FailedPreconditionError) as error:
            counts[f"{kind.__name__} {error.reason}"] += 1

    async def append(self) -> None:
        name, rows = self.name(), self.rows()
        await self.run.append(name, rows, seal=True)
        if (await self.run.commit(name)).ok:
            self.known.append(f"{name}:{len(rows)}")

    async def put(self) -> None:
        name, rows = self.name(), self.rows()
        await self.run.put(name, rows.astype(np.int32), seal=True)
        self.known.append(f"{name}:{len(rows)}")

    async def read(self) -> None:
        if not self.known:
            return
        chosen = self.random.sample(self.known, min(len(self.known), 5))
        names = [each.rsplit(":", 1)[0] for each in chosen]
        for each, sample in zip(chosen, await self.run.read(names), strict=True):
            assert (np.asarray(sample.rows) == ROWS[: int(each.rsplit(":", 1)[1])]).all(), each

    async def stat(self) -> None:
        await asyncio.gather(self.run.list(), self.run.stat_many([self.name()]), self.client.server_info())

    async def commit(self) -> None:
        name = self.name()
        await self.run.append(name, ROWS[:9])
        await self.run.commit(name, 21)

    async def trajectory(self) -> None:
        trajectory = self.run.trajectory(self.name())
        await trajectory.add(ROWS[:99], tokens=np.arange(100), start=0)
        await trajectory.add(ROWS[99:199], tokens=np.arange(200), start=99)
        await trajectory.seal()

    async def appender(self) -> None:
        async with self.run.appender() as appender:
            for _ in range(5):
                await appender.append(self.name(), self.rows(), seal=True)
            await appender.flush()

    async def release(self) -> None:
        gone, self.known = self.known[:-50], self.known[-50:]
        await self.run.release([each.rsplit(":", 1)[0] for each in gone])

    async def other_run(self) -> None:
        run = await self.client.run(f"other-{self.number}", GEOMETRY)
        try:
            await run.append(self.name(), ROWS[:5], seal=True)
        finally:
            await run.close()  # An open run keeps a thread and the queue of a cancelled append.


async def play(endpoint: str) -> None:
    async with aio.Client(endpoint) as client:
        run = await client.run("cancelled", GEOMETRY)
        workers = [Worker(number, run, client) for number in range(TASKS)]

        async def until(worker: Worker, end: float) -> None:
            while time.monotonic() < end:
                await worker.one()

        warm = time.monotonic() + min(SECONDS / 4, 20)
        await asyncio.gather(*(until(worker, warm) for worker in workers))
        await asyncio.sleep(10)
        before = threads_and_descriptors()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            await asyncio.gather(*(until(worker, min(end, time.monotonic() + 60)) for worker in workers))
            print(f"{sum(counts.values())} calls, threads and descriptors {threads_and_descriptors()}", flush=True)
        for worker in workers:
            for each in worker.known:
                name, count = each.rsplit(":", 1)
                assert (np.asarray((await run.read_one(name)).rows) == ROWS[: int(count)]).all(), each
        await asyncio.sleep(10)  # Idle threads end after some seconds.
        after = threads_and_descriptors()
        print(f"before {before}, after {after}; {dict(sorted(counts.items()))}")
        assert after[0] <= before[0] + 8 and after[1] <= before[1] + 8, "threads or descriptors are left"


def main() -> None:
    server = Server()
    try:
        asyncio.run(play(server.endpoint))
    finally:
        server.stop()
    print("threads and descriptors once all is closed:", threads_and_descriptors())


if __name__ == "__main__":
    main()
