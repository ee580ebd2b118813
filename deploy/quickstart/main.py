"""Demonstrates record and replay: 4 rollout workers, one server, 8 trainer ranks; checks every expert id.

worker.py shows how a rollout worker uses the package routing_replay, and rank.py how a trainer rank uses
routing_replay_trainer. deploy/quickstart.sh builds both packages and runs this file.
"""

import argparse
import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

from rank import train
from routing_replay import local_server
from scenario import CP, PP, TP, WORKERS, Play, synthetic
from worker import work

RANKS = TP * CP * PP
LAYOUT = f"tp{TP} cp{CP} pp{PP}, sequence parallel, zigzag per document, packed"
PATIENCE = 120  # Seconds; far more than a successful step takes.
Counts = dict[str, int]
_FORK = multiprocessing.get_context("fork")
MOVED = {
    "engine_bytes": "produced by the engines",
    "server_in_bytes": "into the server",
    "server_out_bytes": f"out to the {RANKS} ranks",
}
HOPS = {
    "appended": "engine arrays -> server, acknowledged",
    "fetched": "server -> index buffers of the ranks",
    "checked": "check of every id, and of routing maps",
}
ROWS = {
    "replayed": "replayed",
    "unrecorded": "unrecorded: live routing",
    "pad": "pad: filler, balanced over experts",
    "router_checked": "rows whose routing map was checked, per layer",
}


def play(count: int, role: Callable[[int, Barrier], Counts], names: list[str]) -> tuple[list[Counts], dict[str, float]]:
    """Runs `role` in `count` processes, which meet at the barrier when they are ready and after each of the steps
    `names`. Returns the results of the processes, and the milliseconds that each step took."""
    barrier, results = _FORK.Barrier(count + 1, timeout=PATIENCE), _FORK.Queue()

    def run(index: int) -> None:
        try:
            results.put(role(index, barrier))
        except BaseException:
            barrier.abort()  # Ends the other processes' wait for this one.
            raise

    children = [_FORK.Process(target=run, args=(index,), daemon=True) for index in range(count)]
    for child in children:
        child.start()
    times = {}
    try:
        barrier.wait()
        for name in names:
            begin = time.perf_counter()
            barrier.wait()
            times[name] = (time.perf_counter() - begin) * 1000
        found = [results.get(timeout=PATIENCE) for _ in children]
    except threading.BrokenBarrierError:
        raise SystemExit("quickstart: a process failed") from None
    return found, times


def table(scenario: Play, counts: Counts, times: dict[str, float]) -> str:
    lines = [f"Qwen3-30B-A3B (synthetic rows): {scenario.geometry}"]
    lines.append("{samples:,} samples, {rows:,} rows, {recorded_rows:,} of them recorded\n".format(**counts))
    lines.append(f"{'moved':<46} {'payload bytes':>15} {'per row':>12}")
    for key, text in MOVED.items():
        lines.append(f"  {text:<44} {counts[key]:>15,} {counts[key] / counts['recorded_rows']:>12.1f}")
    lines.append(f"\n{'hop, all its processes together':<46} {'wall time':>15}")
    lines += [f"  {text:<44} {times[key]:>12.1f} ms" for key, text in HOPS.items()]
    lines.append(f"\n{'rows on the ranks, once per pipeline stage':<46} {'rows':>15}")
    lines += [f"  {text:<44} {counts[key]:>15,}" for key, text in ROWS.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="path of routing-replay-server")
    options = parser.parse_args()
    scenario = synthetic()

    os.environ["ROUTING_REPLAY_SERVER"] = str(options.server)
    with local_server(timeout=PATIENCE) as server:
        at = f"1 server at {server.endpoint}"
        print(f"{at}, {WORKERS} rollout workers, {RANKS} trainer ranks ({LAYOUT})", flush=True)
        workers, append_ms = play(WORKERS, functools.partial(work, scenario), ["appended"])
        ranks, rank_ms = play(RANKS, functools.partial(train, scenario), ["fetched", "checked"])

    counts = {key: sum(result[key] for result in all_of) for all_of in (workers, ranks) for key in all_of[0]}
    print(table(scenario, counts, {**append_ms, **rank_ms}))
    compared, recorded_ids = counts["compared_ids"], counts["recorded_ids"]
    if compared != recorded_ids:
        raise SystemExit(f"quickstart: {compared:,} expert ids were compared, {recorded_ids:,} recorded")
    print(f"{compared:,} expert ids compared, all matched")


if __name__ == "__main__":
    main()
