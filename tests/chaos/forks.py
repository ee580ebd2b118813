"""Forks a process with a working client again and again; parent and child both append and read afterwards.

    forks.py [COUNT]       10,000 by default; needs ROUTING_REPLAY_SERVER and the environment of the client's tests

Half of the forks happen at rest, half while a thread appends. Each child appends a sample of its own under a new
identity, and reads it and a sample of the parent; the parent does the same at the same time. At the end every sample of
the parent is read again.

Prints the time of os.fork at rest and at work: median, 99th percentile and maximum.
"""

import os
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/tests"))

import numpy as np
import routing_replay as rr
from support import Server, random_routes

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
ROWS = random_routes(np.random.default_rng(1), 40, 3, 64, 4)
PATIENCE = 60


def side(run: rr.Run, name: str, known: str) -> None:
    run.append(name, ROWS, seal=True)
    run.flush(PATIENCE)
    for read in run.read([name, known], timeout=PATIENCE):
        assert (np.asarray(read.rows) == ROWS).all(), name


def forked(run: rr.Run, number: int) -> float:
    known = f"parent/{max(number - 1, 0)}"
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert run.metrics()["appends"] == 0, "the child begins with its parent's counts"
            side(run, f"child/{number}", known)
            status = 0
        except BaseException as error:
            print(f"child {number}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    took = time.monotonic() - start
    side(run, f"parent/{number + 1}", known)
    deadline = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            raise AssertionError(f"child {number} hangs")
        time.sleep(0.001)
    assert ended[1] == 0, f"child {number} ended with {ended[1]}"
    run.release([f"child/{number}"])
    return took


def told(name: str, times: list[float]) -> None:
    ms = sorted(1000 * t for t in times)
    print(f"{name}: {len(ms)} forks, median {statistics.median(ms):.1f} ms, 99 % {ms[len(ms) * 99 // 100]:.1f}, "
          f"longest {ms[-1]:.1f}", flush=True)  # fmt: skip


def main() -> None:
    server = Server("--memory-budget", "2GiB")
    try:
        client = rr.Client(server.endpoint)
        run = client.run("forks", rr.Geometry(num_layers=3, num_experts=64, top_k=4))
        side(run, "parent/0", "parent/0")
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(COUNT):
            at_work = number % 2 == 1
            stop = threading.Event()

            def work(stop: threading.Event = stop, number: int = number) -> None:
                i = 0
                while not stop.is_set():
                    run.append(f"busy/{number}/{i}", ROWS, seal=True, group=1)
                    i += 1
                    stop.wait(0.001)

            thread = threading.Thread(target=work)
            if at_work:
                thread.start()
                time.sleep(0.002)
            try:
                times[at_work].append(forked(run, number))
            finally:
                stop.set()
                if at_work:
                    thread.join()
            if at_work:
                run.flush(PATIENCE)
                run.release_groups(1, 2)
            if number % 1000 == 999:
                print(f"{number + 1} forks", flush=True)
        for first in range(0, COUNT + 1, 100):
            names = [f"parent/{i}" for i in range(first, min(first + 100, COUNT + 1))]
            for read in run.read(names):
                assert (np.asarray(read.rows) == ROWS).all(), "a sample of the parent is not what was appended"
        assert run.metrics()["failed"] == 0
        told("at rest", times[False])
        told("at work", times[True])
        client.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
