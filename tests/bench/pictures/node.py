"""Memory and time of a training node: routes as slime carries them, and routes through the service.

    tests/bench/pictures/node.sh [--scale S] [--rounds N] [--json FILE] [--picture FILE]

The node has the 8 ranks (tensor parallel 4, context parallel 2, sequence parallel) of GLM-4.7-Flash (46 MoE layers of
47, 4 of 64 experts), and a step has 1,536 samples of 32,768 tokens: a case in which slime's users ran out of memory
(slime issue 2384). A scale below 1 plays a share of the samples, each in full length. The memory is that of the scale,
and the picture names the factor to the whole step. Everything is also played at half the scale, to show whether the
cost is proportional.

`stock`: int32 tensors of all layers of all tokens of the step are one object of Ray's store. Each rank gets the whole
object (and unpickles it by value, as Ray does with tensors), then cuts its rows and keeps a copy per layer of all
micro-batches, as slime does. `ours`: the same arrays go into a server on the same node. Each rank plans and fetches
each micro-batch, and also keeps all of them. Both use the same processes and arrays, and rounds alternate. The rows
that the ranks hold are compared after each round.

Memory is what processes use beyond their use before the first step, at the moment when their sum is largest, including
what their allocators keep; shared pages count once. The rollout's own arrays do not count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import picture
import ray
import routing_replay as rr
import torch

LAYERS, EXPERTS, TOP_K = 47, 64, 4
MOE_LAYERS = range(1, LAYERS)
SAMPLES, TOKENS = 1536, 32768
TP, CP = 4, 2
RUN = "node"
GB = 1e9


def geometry() -> rr.Geometry:
    return rr.Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K, moe_layers=list(MOE_LAYERS))


def sample_id(step: int, sample: int) -> str:
    return f"step-{step}/{sample}"


class Process:
    def pid(self) -> int:
        return os.getpid()

    def trim(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@ray.remote(num_cpus=1)
class Rollout(Process):
    """The rollout manager, which holds an engine's arrays."""

    def make(self, samples: int) -> None:
        random = np.random.default_rng(3)
        self.rows = []
        for _ in range(samples):
            first, apart = random.integers(0, EXPERTS, (2, TOKENS - 1, LAYERS, 1), np.int32)
            self.rows.append((first + np.arange(TOP_K, dtype=np.int32) * (apart | 1)) % EXPERTS)

    def stock(self) -> list[Any]:
        return [ray.put({"rollout_routed_experts": [torch.as_tensor(rows) for rows in self.rows]})]

    def ours(self, endpoint: str, step: int) -> None:
        with rr.Client(endpoint) as client:
            run = client.run(RUN, geometry())
            for i, rows in enumerate(self.rows):
                run.append(sample_id(step, i), rows, group=step, seal=True)
            run.flush()


@ray.remote(num_cpus=1)
class Rank(Process):
    def __init__(self, cp: int, tp: int) -> None:
        self.cp, self.tp = cp, tp
        self.held: list[Any] = []

    def stock(self, box: list[Any]) -> None:
        data = ray.get(box[0])
        for rows in data["rollout_routed_experts"]:
            padded = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, 1))
            chunks = padded.chunk(2 * CP)
            local = torch.cat([chunks[self.cp], chunks[2 * CP - 1 - self.cp]]).chunk(TP)[self.tp]
            self.held.append([local[:, layer].clone() for layer in MOE_LAYERS])
        del data["rollout_routed_experts"]

    def ours(self, endpoint: str, step: int, samples: int) -> None:
        import routing_replay_trainer as rt

        with rr.Client(endpoint) as client:
            run = client.run(RUN, geometry())
            source = rt.ServiceSource(run)
            for i in range(samples):
                micro_batch = {
                    "format": "THD",
                    "sequences": [{"sample": sample_id(step, i), "tokens": TOKENS}],
                    "cu_seqlens_padded": [0, TOKENS],
                    "total_rows": TOKENS,
                    "partition": "zigzag_per_document",
                    "cp_size": CP,
                    "tp_size": TP,
                    "sequence_parallel": True,
                }
                batch = source.fetch(rt.plan(run.geometry, micro_batch, rank={"cp": self.cp, "tp": self.tp}))
                batch.indices[:, batch.states != rt.REPLAYED] = 0  # As slime's padding.
                self.held.append(batch.indices)

    def digest(self) -> str:
        """Returns the digest of the rows that this rank holds, and frees them."""
        digest = hashlib.sha256()
        for layers in self.held:
            for ids in layers:
                digest.update(np.asarray(ids).astype(np.uint8))
        self.held = []
        self.trim()
        return digest.hexdigest()


class Meter:
    """Measures memory and CPU time of processes while something runs. A part is a named group of processes. The memory
    that processes share is counted as one more part, "object store".

    parts: process ids of each part
    before: bytes to subtract from each part
    counted: the parts whose sum decides which moment is the peak
    """

    def __init__(self, parts: dict[str, list[int]], before: dict[str, int], counted: set[str]) -> None:
        self._parts, self._before, self._counted = parts, before, counted
        self._stop = threading.Event()
        self._cpu = self._cpu_seconds()
        self._most = dict.fromkeys(parts, 0)
        self._peak: dict[str, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> tuple[dict[str, int], dict[str, int], float]:
        """Returns each part's bytes at the moment of the peak, each part's own largest bytes, and CPU seconds."""
        cpu = self._cpu_seconds() - self._cpu
        self._stop.set()
        self._thread.join()
        return self._peak, self._most, cpu

    def _watch(self) -> None:
        while True:
            now = {name: held - self._before[name] for name, held in private(self._parts).items()}
            now["object store"] = max(_status(pid, "RssShmem") for pid in itertools.chain(*self._parts.values()))
            self._most = {name: max(held, self._most.get(name, 0)) for name, held in now.items()}
            if not self._peak or self._sum(now) > self._sum(self._peak):
                self._peak = now
            if self._stop.wait(0.02):
                return

    def _sum(self, now: dict[str, int]) -> int:
        return sum(held for name, held in now.items() if name in self._counted)

    def _cpu_seconds(self) -> float:
        ticks = 0
        for pid in itertools.chain(*self._parts.values()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def private(parts: dict[str, list[int]]) -> dict[str, int]:
    """Bytes of each part."""
    return {name: sum(_status(pid, "RssAnon") for pid in pids) for name, pids in parts.items()}


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


# A function that stores a step, and one that makes a rank fetch it.
Way = tuple[Callable[[], Any], Callable[[Any], Any]]


class Node:
    def __init__(self, server: rr.LocalServer) -> None:
        self._server = server
        self._rollout = Rollout.remote()
        self._ranks = [Rank.remote(cp, tp) for cp in range(CP) for tp in range(TP)]
        self._pids = {
            "rollout": ray.get([self._rollout.pid.remote()]),
            "8 ranks": ray.get([rank.pid.remote() for rank in self._ranks]),
            "server": [server.pid],
        }
        self._before = private(self._pids)
        self._step = 0
        self._boxes: list[Any] = []

    def play(self, samples: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
        ray.get(self._rollout.make.remote(samples))
        self._before["rollout"] = private(self._pids)["rollout"]
        played: dict[str, list[dict[str, Any]]] = {"stock": [], "ours": []}
        for number in range(-1, rounds):  # The first one is a warm-up.
            digests = []
            for way, (put, take) in {"stock": self._stock(), "ours": self._ours(samples)}.items():
                seen, digest = self._measure("object store" if way == "stock" else "server", put, take)
                digests.append(digest)
                if number >= 0:
                    played[way].append(seen)
            assert digests[0] == digests[1], "the ranks hold different rows in the two ways"
        return played

    def _stock(self) -> Way:
        def put() -> Any:
            self._boxes = ray.get(self._rollout.stock.remote())

        return put, lambda rank: rank.stock.remote(self._boxes)

    def _ours(self, samples: int) -> Way:
        self._step += 1
        endpoint, step = self._server.endpoint, self._step
        return (
            lambda: ray.get(self._rollout.ours.remote(endpoint, step)),
            lambda rank: rank.ours.remote(endpoint, step, samples),
        )

    def _measure(self, middle: str, put: Callable[[], Any], take: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
        ray.get([self._rollout.trim.remote(), *(rank.trim.remote() for rank in self._ranks)])
        meter = Meter(self._pids, self._before, {middle, "8 ranks"})
        begin = time.perf_counter()
        put()
        stored = time.perf_counter()
        ray.get([take(rank) for rank in self._ranks])
        end = time.perf_counter()
        peak, most, cpu = meter.end()
        digests = ray.get([rank.digest.remote() for rank in self._ranks])
        self._boxes = []
        with rr.Client(self._server.endpoint) as client:
            client.run(RUN, geometry()).release_groups(0, self._step + 1)
        seen = {"middle": peak[middle], "ranks": peak["8 ranks"], "rollout": most["rollout"], "cpu": cpu}
        return seen | {"put": stored - begin, "take": end - stored}, digests


def median(played: list[dict[str, Any]], *keys: str) -> float:
    return statistics.median(sum(one[key] for key in keys) for one in played)


def spread(played: list[dict[str, Any]], *keys: str, scale: float = 1.0) -> str:
    values = [sum(one[key] for key in keys) * scale for one in played]
    return f"{statistics.median(values):.3g} [{min(values):.3g}..{max(values):.3g}]"


ROWS: list[tuple[str, tuple[str, ...], float]] = [
    ("node, GB", ("middle", "ranks"), 1 / GB),
    ("… object store or server, GB", ("middle",), 1 / GB),
    ("… 8 ranks, GB", ("ranks",), 1 / GB),
    ("rollout, beyond its arrays, GB", ("rollout",), 1 / GB),
    ("until stored, s", ("put",), 1.0),
    ("until 8 ranks hold their rows, s", ("take",), 1.0),
    ("CPU, s", ("cpu",), 1.0),
]


def table(results: dict[int, dict[str, list[dict[str, Any]]]]) -> str:
    (small, of_small), (large, of_large) = sorted(results.items())
    factor = SAMPLES / large
    lines = [
        f"| {large} of {SAMPLES} samples | stock | ours | stock / ours | stock at {large} / {small} samples | ours |",
        "|---|---|---|---|---|---|",
    ]
    for name, keys, scale in ROWS:
        stock, ours = (median(of_large[way], *keys) for way in ("stock", "ours"))
        grown = [median(of_large[way], *keys) / (median(of_small[way], *keys) or 1) for way in ("stock", "ours")]
        cells = [spread(of_large[way], *keys, scale=scale) for way in ("stock", "ours")]
        ratio = f"{stock / ours:.1f}" if ours > 1e-3 else "-"
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio} | {grown[0]:.2f} | {grown[1]:.2f} |")
    stock, ours = (median(of_large[way], "middle", "ranks") * factor / GB for way in ("stock", "ours"))
    return "\n".join(lines) + (
        f"\n\nTimes {factor:.0f}, at {SAMPLES:,} samples: {stock:.0f} GB stock, {ours:.1f} GB ours. Linear is "
        f"{large / small:.2f} in the last two columns."
    )


def draw(results: dict[int, dict[str, list[dict[str, Any]]]]) -> str:
    large = max(results)
    factor, played = SAMPLES / large, results[large]

    def bars(keys: dict[str, str], scale: float) -> list[tuple[str, list[float]]]:
        return [(way, [median(played[way], key) * scale for key in keys]) for way in ("stock", "ours")]

    memory = {"middle": "object store, or server", "ranks": "8 ranks"}
    clock = {"put": "until stored", "take": "until 8 ranks hold their rows"}
    return picture.bars(
        "GLM-4.7-Flash, 1,536 samples of 32k tokens, tp4 · cp2: routes on one training node",
        [
            (
                f"Memory, GB: measured at {large} samples, times {factor:.0f}",
                memory.values(),
                bars(memory, factor / GB),
            ),
            (f"Time, s, of {large} samples on {os.cpu_count()} cores", clock.values(), bars(clock, 1.0)),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time of a training node.")
    parser.add_argument("--scale", type=float, default=0.01, help="share of the step's 1,536 samples")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds at this scale and at half of it")
    parser.add_argument("--json", type=Path, help="file for the results of all rounds")
    parser.add_argument("--picture", type=Path, help="file for the picture, an SVG")
    options = parser.parse_args()
    half = max(1, round(SAMPLES * options.scale / 2))
    size = 2 * half * TOKENS * LAYERS * TOP_K * 4
    store = max(1 << 28, size + size // 4)
    ray.init("local", num_cpus=2 + TP * CP, object_store_memory=store, include_dashboard=False, logging_level="ERROR")
    results = {}
    with rr.local_server("--memory-budget", f"{max(1 << 30, size)}") as server:
        node = Node(server)
        for samples in (half, 2 * half):
            results[samples] = node.play(samples, options.rounds)
    ray.shutdown()
    print(picture.machine())
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.picture:
        options.picture.write_text(draw(results))


if __name__ == "__main__":
    main()
