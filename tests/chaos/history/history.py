"""Plays histories of workers and a nemesis, and checks each from its logs.

    history.py DURATION [--store STORE] [--transport NAMES] [--seed SEED] [--round DURATION] [--keep DIRECTORY]

DURATION (90, 90s, 20m, 3h) applies to each store. STORE: memory, spill, rocksdb, redis or redis-cluster; default: all.
NAMES: values of ROUTING_REPLAY_TRANSPORT, separated by commas; workers use different ones and switch between them. By
default, histories over gRPC and direct TCP alternate with histories over gRPC, Unix sockets and shared memory. The
former use TLS; the latter cannot, because with TLS there is no Unix socket.

Each seed makes a history of one round (40 s), starting with the first seed that has no result yet, so an interrupted
run continues. Results are added to results.jsonl beside this file, from which ../RESULTS.md is written. --seed repeats
one history and adds no result. The logs of a history with violations are kept, and their folder is printed.

Needs ROUTING_REPLAY_SERVER and the environment of the client's tests. Exit status 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checker
import clients
import numpy as np
from nemesis import MIB, Nemesis, Scene
from processes import Proxy, Redis, RedisCluster, Security, Server, Shim, Workers
from results import RESULTS, add

TRANSPORTS = [["grpc", "direct"], ["grpc", "unix", "shm"]]
STORES = ("memory", "spill", "rocksdb", "redis", "redis-cluster")
WORKERS = 4
BUDGET = 48 * MIB
DISK = 320 * MIB


def memory_bound(budget: int) -> int:
    """The memory limit that deploy/OPERATING.md recommends for a container."""
    return budget * 13 // 10 + 256 * MIB


def duration(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, or with s, m or h, got {text!r}")
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class Watch:
    """Records the server's memory, and whether it ends by itself."""

    def __init__(self, server: Server, log: clients.Log, bound: int) -> None:
        self._server, self._log, self._bound = server, log, bound
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        highest, told = 0, 0
        while not self._stop.wait(0.1):
            with self._server.starting:
                highest = max(highest, self._server.status("VmHWM"))
                ended = self._server.process.poll()
            if ended is not None:
                self._log.write(ended=ended)
                return
            if highest > told:
                told = highest
                self._log.write(memory=highest, bound=self._bound)


def disk_of_its_own(path: Path) -> bool:
    """Mounts a small disk at `path` for processes started from now on; needs a mount namespace (see `main`)."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(path)]
    return os.environ.get("CHAOS_MOUNTS") == "yes" and subprocess.run(command, check=False).returncode == 0


@contextlib.contextmanager
def staged(store: str, transports: list[str], seed: int, directory: Path) -> Iterator[Scene]:
    logs = directory / "logs"
    logs.mkdir()
    log = clients.Log(logs / "nemesis.jsonl")
    direct = any(name != "grpc" for name in transports)
    security, shim = Security(directory, tls=not {"unix", "shm"} & set(transports)), Shim(directory)
    disk = directory / "disk" if store in ("spill", "rocksdb") else None
    mounted = disk is not None and disk_of_its_own(disk)
    redis = Redis(directory / "redis") if store == "redis" else None
    cluster = RedisCluster(directory) if store == "redis-cluster" else None
    flags = ["--memory-budget", str(BUDGET), "--log-level", "warning", "--exit-with-pid", str(os.getpid())]
    flags += security.flags
    if store == "spill":
        flags += ["--spill-directory", str(disk / "spill"), "--spill-budget", str(DISK // 2)]
    if store == "rocksdb":
        flags += ["--store", f"rocksdb:{disk}/db", "--durability", ("written", "synced")[seed % 2]]
    if redis is not None or cluster is not None:
        flags += ["--store", f"redis://{redis.address}" if redis is not None else cluster.url]
    server = Server(os.environ["ROUTING_REPLAY_SERVER"], directory, flags, shim.environment, direct)
    proxy = Proxy(server.addresses)
    np.memmap(directory / "progress", np.int64, "w+", shape=(WORKERS, 2)).flush()
    config = {"endpoints": [server.endpoint, proxy.endpoint], "security": security.client, "seed": seed}
    config |= {"workers": WORKERS, "progress": str(directory / "progress"), "logs": str(logs)}
    (directory / "config.json").write_text(json.dumps(config))
    workers = Workers(directory / "config.json", WORKERS, transports)
    scene = Scene(store, BUDGET, log, server, proxy, workers, security, shim, disk if mounted else None)
    scene.redis, scene.cluster, scene.transports = redis, cluster, len(transports)
    try:
        with Watch(server, log, memory_bound(BUDGET)):
            yield scene
    finally:
        workers.kill()
        server.stop()
        for node in [redis] if redis is not None else cluster.nodes if cluster is not None else []:
            node.kill()
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def history(store: str, transports: list[str], seed: int, seconds: float, directory: Path) -> dict[str, Any]:
    with staged(store, transports, seed, directory) as scene:
        nemesis = Nemesis(scene, seed)
        scene.workers.await_work()
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            nemesis.rest()
            nemesis.act()
        took = time.monotonic() - began
        ends = scene.workers.finish()
    read = checker.read_logs(directory / "logs")
    violations = checker.check(read)
    violations += [f"worker: one ended with status {end}" for end in ends if end != 0]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "store": store,
        "transport": ",".join(transports),
        "seed": seed,
        "seconds": round(took),
        "operations": read.operations,
        "answered": sum(call.ok for call in read.calls),
        "actions": dict(sorted(nemesis.done.items())),
        "memory": max((fact.get("memory", 0) for fact in read.facts), default=0),
        "bound": memory_bound(BUDGET),
        "violations": violations,
    }


def one(store: str, transports: list[str], seed: int, seconds: float, keep: Path) -> dict[str, Any]:
    """Makes a history and prints its result."""
    directory = Path(tempfile.mkdtemp(prefix="history-"))
    try:
        result = history(store, transports, seed, seconds, directory)
    except BaseException:
        print(f"history: {store} seed {seed}: it was not made, see {directory}", file=sys.stderr)
        raise
    count = len(result["violations"])
    print(
        f"history: {store} {result['transport']} seed {seed}: {result['operations']} operations in "
        f"{result['seconds']} s, {sum(result['actions'].values())} actions, {result['memory'] // MIB} MiB: "
        f"{count} violations",
        flush=True,
    )
    for violation in result["violations"][:20]:
        print(f"  {violation}")
    if count:
        kept = keep / f"history-{store}-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(directory / "logs", kept)
        print(f"  its logs: {kept}")
    shutil.rmtree(directory, ignore_errors=True)
    return result


def next_seed(store: str, transport: str) -> int:
    done = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return 1 + max(
        (each["seed"] for each in done if (each["store"], each["transport"]) == (store, transport)), default=0
    )


def many(store: str, sets: list[list[str]], arguments: argparse.Namespace) -> bool:
    """Plays seed after seed for the duration, alternating between the sets of transports. Returns whether all promises
    were kept."""
    kept = True
    end = time.monotonic() + arguments.duration
    for transports in itertools.takewhile(lambda _: time.monotonic() < end, itertools.cycle(sets)):
        seed = next_seed(store, ",".join(transports))
        result = one(store, transports, seed, min(arguments.round, arguments.duration), arguments.keep)
        kept = kept and not result["violations"]
        add(result)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("duration", type=duration)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--transport", default=os.environ.get("ROUTING_REPLAY_TRANSPORT"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--round", type=duration, default=40.0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    if os.environ.get("CHAOS_MOUNTS") is None and shutil.which("unshare"):
        again = [sys.executable, *sys.argv]
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        works = subprocess.run(["unshare", "--mount", *root, "true"], check=False).returncode == 0
        os.environ["CHAOS_MOUNTS"] = "yes" if works else "no"
        if works:
            os.execvp("unshare", ["unshare", "--mount", *root, *again])
    kept = True
    sets = [arguments.transport.split(",")] if arguments.transport else TRANSPORTS
    for store in [arguments.store] if arguments.store else STORES:
        if store.startswith("redis") and not Redis.there():
            print(f"history: {store}: redis-server is not installed (Debian: redis-tools or redis-server)")
        elif arguments.seed is not None:
            result = one(store, sets[0], arguments.seed, arguments.duration, arguments.keep)
            kept = kept and not result["violations"]
        else:
            kept = many(store, sets, arguments) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
