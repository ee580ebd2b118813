"""The service as a path of the peers' benchmark: Python at both ends, `bench.py --service routing_replay_service`.

A round is a training step: it appends new samples in the group with the step's number, and releases the earlier groups
inside the clock. Both sides count rounds by their calls. Uses only the public packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import routing_replay
import routing_replay_trainer as trainer
from numpy.typing import NDArray

RUN = "handoff"


def serve(scenario: Any) -> tuple[str, list[int], Callable[[], None]]:
    """Starts a server. Returns its address, its process ids, and a function that stops it."""
    stack = ExitStack()
    server = stack.enter_context(routing_replay.local_server())
    return server.endpoint, [server.pid], stack.close


def geometry_of(scenario: Any) -> routing_replay.Geometry:
    return routing_replay.Geometry(num_layers=scenario.L, num_experts=scenario.E, top_k=scenario.K)


def sample_id(step: int, sample: int) -> str:
    return f"step-{step}/{sample}"


class Producer:
    """A rollout worker."""

    def __init__(self, address: str, scenario: Any) -> None:
        self._run = routing_replay.Client(address).run(RUN, geometry_of(scenario))
        self._step = 0

    def put(self, samples: Mapping[int, NDArray[Any]]) -> None:
        """samples: ids [rows, layers, K], with one row less than tokens. Returns when all rows are acknowledged and
        sealed."""
        self._step += 1
        if 0 in samples:  # Only one of the workers has sample 0.
            self._run.release_groups(0, self._step)
        for i, rows in samples.items():
            self._run.append(sample_id(self._step, i), rows, group=self._step, seal=True)
        self._run.flush()


class Consumer:
    """A trainer rank; `rank` is (tp, cp, pp)."""

    def __init__(self, address: str, scenario: Any, rank: tuple[int, int, int]) -> None:
        self._tokens: list[int] = scenario.T
        self._client = routing_replay.Client(address)
        self._source: trainer.ServiceSource | None = None
        self._step = 0
        self._batches = [self._plan(scenario, rank, samples) for samples in scenario.micro_batches]

    def _plan(
        self, scenario: Any, rank: tuple[int, int, int], samples: Sequence[int]
    ) -> tuple[Sequence[int], trainer.Plan, NDArray[np.uint8]]:
        pad = scenario.cfg["trainer"]["sample_pad_multiple"]
        ends = np.cumsum([0] + [-(-scenario.T[i] // pad) * pad for i in samples])
        tp, cp, pp = rank
        plan = trainer.plan(
            geometry_of(scenario),
            {
                "format": "THD",
                "sequences": [{"tokens": scenario.T[i]} for i in samples],
                "cu_seqlens_padded": ends,
                "total_rows": ends[-1],
                "partition": "zigzag_per_document",
                "cp_size": scenario.cp,
                "tp_size": scenario.tp,
                "sequence_parallel": True,
            },
            rank={"pp": pp, "cp": cp, "tp": tp},
            split={"pipeline_size": scenario.pp},
        )
        return samples, plan, np.zeros(plan.buffer_bytes, np.uint8)

    def get(self, out: NDArray[np.uint8]) -> None:
        """Fills out [layers, local rows, K] in the order of micro-batches; rows without a record are 0."""
        self._step += 1
        if self._source is None:
            self._source = trainer.ServiceSource(self._client.run(RUN))
        begin = 0
        for samples, plan, buffer in self._batches:
            sequences = [trainer.FetchSequence(sample_id(self._step, i), self._tokens[i]) for i in samples]
            batch = self._source.fetch(plan, sequences=sequences, out=buffer)
            rows = out[:, begin : begin + plan.rows]
            for layer, ids in enumerate(batch.indices):
                rows[layer] = ids
            rows[:, batch.states != trainer.REPLAYED] = 0
            begin += plan.rows
