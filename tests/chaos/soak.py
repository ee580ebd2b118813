"""Overloads a server: writers queue ten times its memory budget, readers stall, and writers and readers are killed.

    soak.py DURATION [--transport NAME]     6m, 20m, 1h; NAME as in ROUTING_REPLAY_TRANSPORT; default: all at once

Twelve writers, each with a queue as long as the memory budget of 64 MiB, append to one run, which may use three
quarters of the budget. A trainer reads and releases at most 16 samples of that run per second, which frees room. Four
readers read all samples every few seconds, and are stopped at random moments for longer than the server waits. Every
few seconds a writer or a reader is killed and replaced. The transports have three writers and one reader each. For each
transport a well-behaved client with a run of its own puts and reads one small sample every 80 ms; these clients start
a minute before the others (a sixth of DURATION if that is shorter).

Checks, from the server's /proc and the times that the well-behaved clients measure. They begin after the first sixth
of DURATION (10 minutes of an hour):
  - the memory in use, as the median of a minute, is at most 5 % above the median of the second sixth, and its peak
    stays below the limit that deploy/OPERATING.md gives a container (1.3 times the budget plus 256 MiB)
  - the numbers of descriptors and threads are at most 10 % above those of the first sixth
  - when the others have gone, at most two descriptors more than before are left (threads stay: pools keep them)
  - on each transport, the 99th percentiles of puts and reads are at most 3 times those before the others started
  - at the end the run uses at least 80 % of what it may, and no writer or reader ended by itself
Prints one JSON line. Exit status 1 if a check failed.

The server keeps freed memory for later use. It returns it to the system only in a second with little work, and only if
it holds over a quarter plus 48 MiB more than it needs. So without a leak its memory rises and falls by up to 9 %, and a
minute can be 6 % above the median. If so, see in "memory by minute" whether the lowest minutes rise, too.

In production, clients run on other machines than the server. Here the server has the first half of the processors and
the clients the others, where the writers, readers and the trainer run only while the well-behaved clients do not. So
the times hardly include waits for a processor that other clients use. With one processor, all share it.

Needs ROUTING_REPLAY_SERVER and the environment of the client's tests.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import routing_replay as rr

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "history"))
from history import duration
from support import Server, random_routes

MIB = 1 << 20
BUDGET = 64 * MIB
RUN_BUDGET = BUDGET * 3 // 4
WRITERS, READERS = 12, 4
TRANSPORT = "ROUTING_REPLAY_TRANSPORT"
TRANSPORTS = ("grpc", "direct", "unix", "shm")
GEOMETRY = rr.Geometry(num_layers=32, num_experts=128, top_k=8)
ROWS = random_routes(np.random.default_rng(1), 2048, 32, 128, 8)
UNLOADED = 60.0  # Seconds.
STALL = 150  # Seconds for which a reader is stopped: longer than the two minutes that the server waits.
RELEASES = 16  # Samples per second.
ACT_EVERY = 3.0  # Seconds.


# The other processes, started as `soak.py ROLE ENDPOINT NUMBER`.


def write(run: rr.Run, number: int) -> None:
    """Keeps its queue full."""
    appender = run.appender(max_queued_bytes=BUDGET, append_timeout=3600.0, queue_timeout=3600.0)
    choice = random.Random()
    for i in range(1 << 60):
        rows = ROWS[: choice.choice((64, 512, 2048))]
        appender.append(f"{number}/{os.getpid()}/{i}", rows, seal=True)


def sealed(run: rr.Run) -> list[rr.SampleState]:
    return [state for state in run.list() if state.sealed]


def train(run: rr.Run, number: int) -> None:
    """Reads and releases the samples that have waited longest."""
    while True:
        began = time.monotonic()
        oldest = sorted(sealed(run), key=lambda state: -state.idle_ms)[:RELEASES]
        names = [state.sample for state in oldest]
        for state, read in zip(oldest, run.read(names) if names else (), strict=True):
            if read.ok and not np.array_equal(read.rows, ROWS[: state.committed_rows]):
                raise SystemExit(f"the rows of {state.sample} are not those that were appended")
        run.release(names)
        time.sleep(max(0.0, began + 1 - time.monotonic()))


def read(run: rr.Run, number: int) -> None:
    """Reads all samples again and again."""
    while True:
        with contextlib.suppress(rr.RoutingReplayError):
            run.read([state.sample for state in sealed(run)])
        time.sleep(2)


ROLES = {"write": write, "train": train, "read": read}


class Crowd:
    """The trainer, and the writers and readers, some of which are killed or stopped at random moments."""

    def __init__(self, endpoint: str, transports: Sequence[str]) -> None:
        self._endpoint, self._transports = endpoint, transports
        self.killed = self.stalled = self.ended = 0
        self.trainer = self._start("train", 0)
        self._others = [self._start("write", i) for i in range(WRITERS)]
        self._others += [self._start("read", i) for i in range(READERS)]
        self._stopped: deque[tuple[float, subprocess.Popen[bytes]]] = deque()

    def _start(self, role: str, number: int) -> subprocess.Popen[bytes]:
        command = ["chrt", "--idle", "0", "setpriv", "--pdeathsig", "KILL", sys.executable, __file__, role]
        variables = {**os.environ, TRANSPORT: self._transports[number % len(self._transports)]}
        return subprocess.Popen([*command, self._endpoint, str(number)], stderr=subprocess.DEVNULL, env=variables)

    def act(self) -> None:
        now = time.monotonic()
        while self._stopped and self._stopped[0][0] < now:
            self._stopped.popleft()[1].send_signal(signal.SIGCONT)
        stopped = {process for _, process in self._stopped}
        index = random.choice([i for i, process in enumerate(self._others) if process not in stopped])
        if self._others[index].poll() is not None:
            self.ended += 1
        elif index >= WRITERS and random.random() < 0.7:
            self._others[index].send_signal(signal.SIGSTOP)
            self._stopped.append((now + STALL, self._others[index]))
            self.stalled += 1
            return
        self._others[index].kill()
        self._others[index].wait()
        self.killed += 1
        self._others[index] = self._start("write" if index < WRITERS else "read", index)

    def end(self) -> None:
        for process in (self.trainer, *self._others):
            process.kill()
            process.wait()


class Calm:
    """A well-behaved client."""

    def __init__(self, endpoint: str, transport: str) -> None:
        # Clients with equal options share their connections and their transport.
        options = {"call_timeout": 60.0 + TRANSPORTS.index(transport)}
        with mock.patch.dict(os.environ, {TRANSPORT: transport}):
            self.client = rr.Client(endpoint, **options)
            self._run = self.client.run(f"calm-{transport}", GEOMETRY)
        self.times: list[tuple[float, float]] = []  # Per call of `act`: the milliseconds of its put and of its read.
        self._made = 0

    def act(self) -> None:
        name, began = f"calm/{self._made}", time.perf_counter()
        self._made += 1
        self._run.put(name, ROWS[:8], seal=True)
        put = time.perf_counter()
        rows = self._run.read_one(name).rows
        ended = time.perf_counter()
        if not np.array_equal(rows, ROWS[:8]):
            raise SystemExit(f"the rows of {name} are not those that were put")
        self._run.release([name])
        self.times.append((1000 * (put - began), 1000 * (ended - put)))

    def taken(self) -> tuple[float, float, float]:
        """Returns the 99th percentiles of the put and read times, in ms, since the last call of this method, and the
        longest time of a put or read."""
        times, self.times = np.array(self.times), []
        put, got = np.percentile(times, 99, axis=0)
        return round(float(put), 2), round(float(got), 2), round(float(times.max()), 2)


def sizes(process: subprocess.Popen[bytes]) -> tuple[int, int, int, int]:
    """Descriptors, threads and memory in bytes now, and the highest memory so far."""
    folder = Path(f"/proc/{process.pid}")
    status = dict(re.findall(r"(\w+):\s*(\d+)", (folder / "status").read_text()))
    memory = int(status["VmRSS"]) * 1024, int(status["VmHWM"]) * 1024
    return len(os.listdir(folder / "fd")), int(status["Threads"]), *memory


def settled(process: subprocess.Popen[bytes], within: float) -> tuple[int, int]:
    """Looks at the process every second for `within` seconds. Returns the lowest numbers of descriptors and threads."""
    seen = []
    for _ in range(int(within)):
        seen.append(sizes(process)[:2])
        time.sleep(1)
    return min(descriptors for descriptors, _ in seen), min(threads for _, threads in seen)


def soak(transports: Sequence[str], seconds: float) -> dict[str, Any]:
    processors = sorted(os.sched_getaffinity(0))
    half = (len(processors) + 1) // 2
    os.sched_setaffinity(0, processors[:half])  # The server inherits it.
    server = Server("--memory-budget", str(BUDGET), "--run-budget", str(RUN_BUDGET))
    os.sched_setaffinity(0, processors[half:] or processors)  # All clients inherit it.
    calm = {transport: Calm(server.endpoint, transport) for transport in transports}
    early: list[tuple[int, int, int, int]] = []
    late: list[tuple[int, int, int, int]] = []
    pace(min(UNLOADED, seconds / 6), calm)
    alone = sizes(server.process)
    unloaded = {transport: one.taken() for transport, one in calm.items()}
    crowd = Crowd(server.endpoint, transports)
    try:
        pace(seconds / 6, calm, crowd, server, early)
        for one in calm.values():
            one.taken()
        pace(seconds * 5 / 6, calm, crowd, server, late)
        loaded = {transport: one.taken() for transport, one in calm.items()}
        used = {transport: one.client.metrics()["transport"] for transport, one in calm.items()}
        trains = crowd.trainer.poll() is None
        stored = rr.Client(server.endpoint).server_info().stored_bytes
    finally:
        crowd.end()
    left = settled(server.process, 30.0)
    server.stop()
    before, after = ([max(column) for column in zip(*found, strict=True)] for found in (early, late))
    memory = [used_now for _, _, used_now, _ in late]
    minutes = [int(np.median(memory[i : i + 60])) for i in range(0, max(1, len(memory) - 59), 60)]
    result = {
        "transports": used,
        "seconds": round(seconds),
        "killed": crowd.killed,
        "stalled": crowd.stalled,
        "ended": crowd.ended,
        "stored": stored,
        "memory": [int(np.median(memory[: len(memory) // 5])), max(minutes)],
        "memory by minute": minutes,
        "peak": after[3],
        "descriptors": [alone[0], before[0], after[0], left[0]],
        "threads": [alone[1], before[1], after[1], left[1]],
        "put p99 ms": {transport: [unloaded[transport][0], loaded[transport][0]] for transport in transports},
        "read p99 ms": {transport: [unloaded[transport][1], loaded[transport][1]] for transport in transports},
        "longest ms": {transport: [unloaded[transport][2], loaded[transport][2]] for transport in transports},
    }
    result["broken"] = broken(result, trains)
    return result


def pace(
    seconds: float,
    calm: Mapping[str, Calm],
    crowd: Crowd | None = None,
    server: Server | None = None,
    found: list[tuple[int, int, int, int]] | None = None,
) -> None:
    """Makes a put and a read of the next well-behaved client every 20 ms. Kills or stops one of the others every 3 s.
    Adds the server's sizes to `found` every second."""
    end, turns = time.monotonic() + seconds, itertools.cycle(calm.values())
    look = act = time.monotonic()
    while (now := time.monotonic()) < end:
        next(turns).act()
        if crowd is not None and now >= act:
            crowd.act()
            act = now + ACT_EVERY
        if server is not None and found is not None and now >= look:
            found.append(sizes(server.process))
            look += 1
        time.sleep(0.02)


def broken(result: dict[str, Any], trains: bool) -> list[str]:
    found = [] if trains else ["the trainer ended: a call failed, or rows were wrong"]
    if result["ended"]:
        found.append(f"{result['ended']} writers or readers ended by themselves")
    if result["stored"] < 0.8 * RUN_BUDGET:
        found.append("the run used less than 80 % of what it may")
    if result["memory"][1] > 1.05 * result["memory"][0]:
        found.append("memory grew by more than 5 %")
    if result["peak"] > 1.3 * BUDGET + 256 * MIB:
        found.append("the peak of the memory is above the container's limit")
    for name in ("descriptors", "threads"):
        alone, before, after, left = result[name]
        if after > 1.1 * before:
            found.append(f"there are more {name} than before")
        if name == "descriptors" and left > alone + 2:
            found.append("descriptors are left")
    found += [f"{name}: {used} was used" for name, used in result["transports"].items() if used != name]
    for name in ("put", "read"):
        for transport, (unloaded, loaded) in result[f"{name} p99 ms"].items():
            if loaded > 3 * unloaded:
                found.append(f"{transport}: a {name} takes {loaded / unloaded:.1f} times as long")
    return found


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in ROLES:
        role, endpoint, number = sys.argv[1:]
        ROLES[role](rr.Client(endpoint, call_timeout=600.0).run("flood", GEOMETRY), int(number))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("duration", type=duration)
    parser.add_argument("--transport", choices=TRANSPORTS)
    options = parser.parse_args()
    result = soak([options.transport] if options.transport else TRANSPORTS, options.duration)
    print(json.dumps(result))
    return 1 if result["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
