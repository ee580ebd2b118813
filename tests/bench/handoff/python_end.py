"""A rollout worker or a trainer rank of the standard hand-off in Python: the counterpart of worker.cc and rank.cc.

    python_end.py worker|rank INDEX DIRECTORY

DIRECTORY holds scenario.json and, per sample, its ids [rows, layers, K] as bytes. Takes the same commands as the C++
roles, one per line, except those for the hub, and answers each with "ok" or an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import routing_replay

RUN, TIMEOUT, POISON = "handoff", 60.0, 0x6E
TRANSPORTS = "direct", "shm", "grpc"


def sample_id(step: int, sample: int) -> str:
    return f"step-{step}/{sample}"


class End:
    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.geometry = routing_replay.Geometry(
            num_layers=scenario["num_layers"], num_experts=scenario["num_experts"], top_k=scenario["top_k"]
        )

    def ready(self) -> None:
        pass

    def open(self, endpoint: str, _: str) -> None:
        self.runs: dict[str, routing_replay.Run] = {}
        for number, transport in enumerate(TRANSPORTS):
            os.environ["ROUTING_REPLAY_TRANSPORT"] = transport
            client = routing_replay.Client(endpoint, call_timeout=TIMEOUT + number)  # Equal options: one connection.
            self.runs[transport] = client.run(RUN, self.geometry)


class Worker(End):
    def __init__(self, scenario: dict[str, Any], index: int, directory: Path) -> None:
        super().__init__(scenario)
        shape = (-1, scenario["num_layers"], scenario["top_k"])
        mine = range(index, len(scenario["tokens"]), scenario["workers"])
        self.held = {i: np.fromfile(directory / str(i), np.uint8).reshape(shape) for i in mine}
        self.wide = {i: rows.astype(np.int32) for i, rows in self.held.items()}
        self.releases = index == 0

    def u8(self, step: str, transport: str) -> None:
        self._append(int(step), self.held, self.runs[transport])

    def i32(self, step: str, transport: str) -> None:
        self._append(int(step), self.wide, self.runs[transport])

    def _append(self, step: int, samples: dict[int, Any], run: routing_replay.Run) -> None:
        if self.releases:
            run.release_groups(0, step)
        append = routing_replay.Append
        run.append_many(append(sample_id(step, i), rows, group=step, seal=True) for i, rows in samples.items())
        run.flush(timeout=TIMEOUT)


class Rank(End):
    def __init__(self, scenario: dict[str, Any], index: int, directory: Path) -> None:
        import routing_replay_trainer as trainer

        super().__init__(scenario)
        self.trainer = trainer
        self.batches = []
        for begin, end in scenario["micro_batches"]:
            plan = self._plan(range(begin, end), scenario["places"][index])
            self.batches.append((range(begin, end), plan, np.full(plan.buffer_bytes, POISON, np.uint8)))
        self.fetched: list[Any] = []

    def _plan(self, samples: range, place: dict[str, int]) -> Any:
        tokens, pad = self.scenario["tokens"], self.scenario["sample_pad_multiple"]
        ends = np.cumsum([0] + [-(-tokens[i] // pad) * pad for i in samples])
        return self.trainer.plan(
            self.geometry,
            {
                "format": "THD",
                "sequences": [{"tokens": tokens[i]} for i in samples],
                "cu_seqlens_padded": ends,
                "total_rows": ends[-1],
                "partition": "zigzag_per_document",
                "cp_size": self.scenario["cp"],
                "tp_size": self.scenario["tp"],
                "sequence_parallel": True,
            },
            rank=place,
            split={"pipeline_size": self.scenario["pp"]},
        )

    def open(self, endpoint: str, _: str) -> None:
        super().open(endpoint, _)
        self.sources = {name: self.trainer.ServiceSource(run, timeout=TIMEOUT) for name, run in self.runs.items()}

    def service(self, step: str, transport: str) -> None:
        tokens, number, sequence = self.scenario["tokens"], int(step), self.trainer.FetchSequence
        samples, plans, buffers = zip(*self.batches, strict=True)
        named = [[sequence(sample_id(number, i), tokens[i]) for i in batch] for batch in samples]
        self.fetched = self.sources[transport].fetch_all(plans, sequences=named, out=buffers)

    def poison(self) -> None:
        self.fetched.clear()
        for _, _, buffer in self.batches:
            buffer.fill(POISON)

    def digest(self, _: str) -> str:
        """Rows without a route hold filler in the buffers, but zeros in the expected digest."""
        digest = hashlib.sha256()
        for slot in range(len(self.fetched[0].indices)):
            for batch in self.fetched:
                ids = batch.indices[slot]
                ids[batch.states != self.trainer.REPLAYED] = 0
                digest.update(ids)
        return digest.hexdigest()


def main() -> None:
    kind, index, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    scenario = json.loads((directory / "scenario.json").read_text())
    end = {"worker": Worker, "rank": Rank}[kind](scenario, index, directory)
    for line in sys.stdin:
        command, *words = line.split()
        try:
            print("ok", getattr(end, command)(*words) or "", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


main()
