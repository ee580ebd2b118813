"""Compares rollout workers in Python with the C++ client, from an engine's output to acknowledged rows, in the same
rounds.

    producer.py --build DIR [--repetitions N] [--tls] [--quick] [--json FILE]

Each round appends the same samples of Qwen3-30B-A3B's shape through the C++ client (int32 arrays, the floor) and from
Python in several forms: int32 arrays; base64 of .npy, as in vLLM's HTTP answers; whole HTTP bodies with it (found,
decoded, appended); and nested JSON lists as of vLLM 0.21, from text to rows (only some of the samples, as the figure is
per byte). GB/s count one byte per id. `small` is the CPU time per append of 8 rows, from the call to its
acknowledgement, over two thousand appends in a row, of a worker's process that does nothing else. With --tls everything
runs over TLS, and the figures' names say so. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, EXPERTS, TOP_K = 48, 128, 8
SMALL_ROWS, SMALL_APPENDS = 8, 2000
RUN = "producer"
TUNED = (
    "glibc.malloc.trim_threshold=2147483647:glibc.malloc.mmap_threshold=33554432:glibc.malloc.mxfast=0"
    ":glibc.malloc.top_pad=4194304"
)


class Worker:
    """A process that waits for its next round: append_rounds or, in Python, `small_worker`."""

    def __init__(self, *command: object) -> None:
        self._process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, group: int) -> tuple[float, float]:
        """Plays one round. Returns its wall seconds, and the CPU seconds that the process used."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(group, file=self._process.stdin, flush=True)
        took, cpu = self._process.stdout.readline().split()
        return float(took), float(cpu)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def routes(rows: int) -> np.ndarray:
    scores = np.random.default_rng(7).random((rows, LAYERS, EXPERTS), np.float32)
    return scores.argpartition(TOP_K - 1, axis=2)[:, :, :TOP_K].astype(np.int32)


def certificate(directory: Path) -> list[str]:
    """Flags of a server with a certificate that this process and its children trust."""
    cert, key = str(directory / "server.crt"), str(directory / "server.key")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    words += ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(["openssl", *words], check=True, stderr=subprocess.DEVNULL)
    os.environ["ROUTING_REPLAY_CACERT"] = cert
    return ["--tls-cert", cert, "--tls-key", key]


def appended(run: Any, rows: Callable[[], object], group: int, count: int, num_tokens: int) -> tuple[float, float]:
    """Appends samples and releases them. Returns wall seconds and CPU seconds of this process up to the last
    acknowledgement."""
    start, cpu = time.perf_counter(), time.process_time()
    for i in range(count):
        run.append(f"py/{group}/{i}", rows(), group=group, num_tokens=num_tokens, seal=True)
    run.flush()
    took = time.perf_counter() - start, time.process_time() - cpu
    run.release_groups(group, group + 1)
    return took


def small_worker(endpoint: str, file: str) -> None:
    """The counterpart of append_rounds for small appends. It runs in a new process, so that its heap is as fresh."""
    import routing_replay as rr

    ids = np.fromfile(file, np.int32).reshape(SMALL_ROWS, LAYERS, TOP_K)
    with rr.Client(endpoint) as client:
        run = client.run(RUN)
        for line in sys.stdin:
            print(*appended(run, lambda: ids, int(line), SMALL_APPENDS, SMALL_ROWS + 1), flush=True)


def measure(
    build: Path, directory: Path, tls: bool, tokens: int, samples: int, repetitions: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the GB/s of each way, one value per round, and the CPU microseconds of a small append of each client."""
    import routing_replay as rr
    from routing_replay import http
    from routing_replay.engines import vllm

    ids = routes(tokens - 1)
    file = directory / "ids.i32"
    file.write_bytes(ids.tobytes())
    npy = io.BytesIO()
    np.save(npy, ids.astype(np.uint8))
    text = base64.b64encode(npy.getvalue()).decode()
    payload = rr.Payload(text, "BASE64_NPY")
    prompt, answer = list(range(tokens // 2)), list(range(tokens - tokens // 2))
    choice = {"finish_reason": "stop", "prompt_token_ids": prompt, "token_ids": answer, "routed_experts": text}
    body = json.dumps({"choices": [choice]}).encode()
    listed = max(1, samples // 8)
    lists = json.dumps(ids.tolist())
    small = np.ascontiguousarray(ids[:SMALL_ROWS])
    small_file = directory / "small.i32"
    small_file.write_bytes(small.tobytes())

    flags = certificate(directory) if tls else []
    with rr.local_server(*flags) as server, rr.Client(server.endpoint) as client:
        run = client.run(RUN, rr.Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K))
        common = build / "bin" / "append_rounds", server.endpoint, RUN
        worker = Worker(*common, file, tokens, LAYERS, TOP_K, samples)
        small_cpp = Worker(*common, small_file, SMALL_ROWS + 1, LAYERS, TOP_K, SMALL_APPENDS)
        small_python = Worker(sys.executable, __file__, "small", server.endpoint, small_file)

        def python(rows: Callable[[], object], count: int = samples) -> Callable[[int], tuple[float, float]]:
            return lambda group: appended(run, rows, group, count, tokens)

        ways = {
            "cpp.int32": (worker.play, samples),
            "python.int32": (python(lambda: ids), samples),
            "python.base64-npy": (python(lambda: payload), samples),
            "python.http-body": (python(lambda: vllm.rows(http.routed_experts(body))), samples),
            "python.json-lists": (python(lambda: np.array(json.loads(lists)), listed), listed),
        }
        small_ways = {"cpp.small": small_cpp.play, "python.small": small_python.play}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in small_ways}
        group = 0
        for number in range(-1, repetitions):
            for name, (play, count) in ways.items():
                group += 1
                took, _ = play(group)
                if number >= 0:
                    rates[name].append(ids.size * count / took / 1e9)
            for name, play in small_ways.items():
                group += 1
                _, cpu = play(group)
                if number >= 0:
                    costs[name].append(cpu / SMALL_APPENDS * 1e6)
        for each in (worker, small_cpp, small_python):
            each.stop()
    return rates, costs


def figures(measured: dict[str, list[float]], group: str, floor_name: str, unit: str) -> list[dict[str, object]]:
    floor = measured[floor_name]
    result = []
    for name, values in measured.items():
        ratios = [value / base for value, base in zip(values, floor, strict=True)]
        result.append(
            {
                "name": f"{group}.{name}",
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
                "unit": unit,
                "floor": statistics.median(floor),
                "floor_name": floor_name,
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--tls", action="store_true", help="over TLS, with a certificate made by the openssl program")
    parser.add_argument("--quick", action="store_true", help="few and small rounds, only to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:  # As the README recommends; glibc reads it at start.
        os.environ["GLIBC_TUNABLES"] = TUNED
        os.execv(sys.executable, [sys.executable, *sys.argv])
    tokens, samples = (257, 8) if options.quick else (4097, 16)
    repetitions = 1 if options.quick else options.repetitions
    with tempfile.TemporaryDirectory() as directory:
        build = options.build.resolve()
        rates, costs = measure(build, Path(directory), options.tls, tokens, samples, repetitions)
    group = "producer.tls" if options.tls else "producer"
    result = figures(rates, group, "cpp.int32", "GB/s") + figures(costs, group, "cpp.small", "us of CPU")
    for figure in result:
        print(
            f"{figure['name']:<28}{figure['median']:7.3f} {figure['unit']} [{figure['min']:.3f}..{figure['max']:.3f}]"
            f"   {figure['ratio']:.3f} of C++ [{figure['ratio_min']:.3f}..{figure['ratio_max']:.3f}]"
        )
    if options.json:
        host = {"python": platform.python_version(), "cores": os.cpu_count(), "repetitions": repetitions}
        options.json.write_text(json.dumps({"figures": result, "host": host}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["small"]:
        small_worker(*sys.argv[2:])
    else:
        main()
