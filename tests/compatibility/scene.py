"""The content of a recording: rows of two runs, always written and read in the same order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import routing_replay as rr

# `narrow` has one-byte ids and a router in every layer; `wide` has two-byte ids and routers in some layers only.
GEOMETRIES = {
    "narrow": rr.Geometry(num_layers=4, num_experts=64, top_k=4),
    "wide": rr.Geometry(num_layers=6, moe_layers=[1, 3, 5], num_experts=300, top_k=6),
}
ROWS = {"whole": 70, "turns": 45}
LABELS = {"narrow": "actor", "wide": ""}


def ids(run: str, sample: str) -> np.ndarray:
    """[rows, MoE layers, K], different in each row and layer. Uses plain arithmetic, because NumPy's generators may
    change."""
    geometry = GEOMETRIES[run]
    rows, layers, k = np.ogrid[: ROWS[sample], : len(geometry.moe_layers), : geometry.top_k[0]]
    return (7 * rows + 13 * layers + 5 * k + len(sample)) % (64 if run == "narrow" else 300)


def tokens(sample: str) -> np.ndarray:
    return np.arange(ROWS[sample]) * 3 + 1


def write(client: rr.Client) -> None:
    # Both runs are opened before the first append, because one call may carry the appends to both.
    runs = {name: client.run(name, geometry, block_rows=32) for name, geometry in GEOMETRIES.items()}
    for name, run in runs.items():
        said = {"group": 3, "weight_version": 17, "weight_label": LABELS[name], "engine": "recorded"}
        run.append("whole", ids(name, "whole"), tokens=tokens("whole"), seal=True, **said)
        run.flush()
        turns = ids(name, "turns")
        run.append("turns", turns[:20], tokens=tokens("turns")[:20], **said)
        run.flush()
        run.append("turns", turns[20:], row_start=20, tokens=tokens("turns")[20:], seal=True, **said)
        run.flush()


def check(client: rr.Client) -> None:
    """Raises AssertionError if a run does not have what `write` wrote."""
    for name, geometry in GEOMETRIES.items():
        run = client.run(name)
        for sample, count in ROWS.items():
            rows = run.read_one(sample).rows
            np.testing.assert_array_equal(rows, ids(name, sample))
            part = run.read_one(sample, layers=list(geometry.moe_layers)[1:2]).rows
            np.testing.assert_array_equal(part, rows[:, 1:2])
            state = run.stat(sample)
            assert (state.committed_rows, state.num_tokens, state.group) == (count, count + 1, 3), state
            assert state.weights == (rr.WeightSpan(0, count, 17, LABELS[name]),), state


class Server:
    """A server of this build on a free port, until the end of the block."""

    def __init__(self, program: Path, directory: Path, *flags: str, under: tuple[str, ...] = ()) -> None:
        self._file = directory / "endpoint"
        self._file.unlink(missing_ok=True)
        command = [
            *under,
            program,
            "--listen",
            "127.0.0.1:0",
            "--endpoint-file",
            self._file,
            "--log-level",
            "error",
            *flags,
        ]
        self._command = [*command, "--exit-with-pid", str(os.getpid())]

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command)
        while not self._file.exists():
            assert self._process.poll() is None, "the server has ended"
        return self._file.read_text().strip()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(30) == 0
