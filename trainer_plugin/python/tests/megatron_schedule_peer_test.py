"""All ranks of a trainer, one after the other on one CPU, through the real face and Megatron-Core's real routers.

Tensor, context and pipeline parallelism of two each, two virtual stages, log-probabilities first and then training with
full recompute. Replayed ids say of which sample, row and layer they are.
"""

from __future__ import annotations

import itertools
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np

import routing_replay_trainer as trainer
from routing_replay_trainer import megatron

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import megatron_models as models
    import torch
    from megatron.core.pipeline_parallel.schedules import get_schedule_table, set_current_microbatch
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with megatron-core")
    sys.exit(SKIPPED)

STEPS, LONG_RUN = 3, 50
MICRO_BATCHES, STAGES, PP, CP, TP = 8, 2, 2, 2, 2
LAYERS, EXPERTS, TOP_K = 8, 160, 3
MOE = range(1, LAYERS)
MOST_TOKENS, MOST_SAMPLES = 24, 4
MULTIPLE = 2 * CP * TP
NUMBERS = {(0, 0): [1, 2], (1, 0): [3, 4], (0, 1): [5, 6], (1, 1): [7, 8]}  # Layers by (pp, chunk).


def ids_of(sample: int, row: int, layer: int) -> list[int]:
    return [sample, 80 + row, 120 + layer]


class Step:
    """Micro-batches of ragged documents, each a sample of its own."""

    def __init__(self, random: np.random.Generator) -> None:
        geometry = {"num_layers": LAYERS, "moe_layers": list(MOE), "num_experts": EXPERTS, "top_k": TOP_K}
        self.source = trainer.LocalSource(geometry)
        self.documents: list[list[tuple[int, int]]] = []  # (sample, tokens) of each micro-batch.
        number = 0
        for _ in range(MICRO_BATCHES):
            self.documents.append([])
            for tokens in random.integers(1, MOST_TOKENS + 1, random.integers(1, MOST_SAMPLES + 1)).tolist():
                rows = [[ids_of(number, row, layer) for layer in MOE] for row in range(tokens - 1)]
                self.source.add(str(number), np.array(rows, np.int32).reshape(tokens - 1, len(MOE), TOP_K))
                self.documents[-1].append((number, tokens))
                number += 1

    def packed(self, index: int) -> Any:
        tokens = [count for _, count in self.documents[index]]
        padded = [-(-count // MULTIPLE) * MULTIPLE for count in tokens]
        return types.SimpleNamespace(
            qkv_format="thd",
            cu_seqlens_q=torch.tensor([0, *itertools.accumulate(tokens)]),
            cu_seqlens_q_padded=torch.tensor([0, *itertools.accumulate(padded)]),
            total_tokens=None,
        )

    def local_rows(self, index: int, cp: int, tp: int) -> list[tuple[int, int] | None]:
        """(sample, row) of each row at the router, None where nothing is replayed: chunks cp and 2 CP - 1 - cp of each
        padded document, and of these the part of the tensor-parallel rank."""
        rows: list[tuple[int, int] | None] = []
        for sample, tokens in self.documents[index]:
            size = -(-tokens // MULTIPLE) * MULTIPLE // (2 * CP)
            for part in (cp, 2 * CP - 1 - cp):
                rows += [(sample, row) if row < tokens - 1 else None for row in range(part * size, (part + 1) * size)]
        share = len(rows) // TP
        return rows[tp * share : (tp + 1) * share]


def order(pp: int) -> Iterator[tuple[str, int, int]]:
    """(forward or backward, micro-batch, chunk) on a pipeline rank, from Megatron's own table."""
    table = get_schedule_table(MICRO_BATCHES, STAGES, PP)
    forward = [("forward", index, chunk) for index, chunk in table]
    backward = [("backward", index, STAGES - 1 - chunk) for index, chunk in table]
    warmup = min((PP - pp - 1) * 2 + (STAGES - 1) * PP, len(forward))
    yield from forward[:warmup]
    for place, back in enumerate(backward):
        yield from forward[warmup + place : warmup + place + 1]
        yield back


class Rank:
    def __init__(self, pp: int, cp: int, tp: int) -> None:
        self.pp, self.cp, self.tp = pp, cp, tp
        self.config = models.make_config(
            num_layers=LAYERS,
            moe_layer_freq=[int(layer in MOE) for layer in range(LAYERS)],
            num_moe_experts=EXPERTS,
            moe_router_topk=TOP_K,
            pipeline_model_parallel_size=PP,
            virtual_pipeline_model_parallel_size=STAGES,
            context_parallel_size=CP,
            tensor_model_parallel_size=TP,
            sequence_parallel=True,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        )
        self.chunks = [models.Model(self.config, NUMBERS[pp, chunk]) for chunk in range(STAGES)]
        self.calls = 0

    def attach(self, source: Any, **options: Any) -> Any:
        ranks = {"pp": self.pp, "cp": self.cp, "tp": self.tp}
        return megatron.attach(self.chunks, self.config, source=source, ranks=ranks, **options)

    def call(self, replay: Any, step: Step, index: int, chunk: int) -> torch.Tensor:
        set_current_microbatch(self.chunks[chunk], index)
        rows = len(step.local_rows(index, self.cp, self.tp))
        samples = [str(sample) for sample, _ in step.documents[index]]
        with replay.micro_batch(samples, packed_seq_params=step.packed(index)):
            return self.chunks[chunk](torch.randn(rows, 1, models.HIDDEN, requires_grad=True))

    def run(self, replay: Any, step: Step) -> None:
        for index, chunk in get_schedule_table(MICRO_BATCHES, STAGES, PP):
            with torch.no_grad():
                self.call(replay, step, index, chunk)
            self.take(step, index, chunk)
        outputs = {}
        for kind, index, chunk in order(self.pp):
            if kind == "forward":
                outputs[index, chunk] = self.call(replay, step, index, chunk)
            else:
                outputs.pop((index, chunk)).square().sum().backward()
            self.take(step, index, chunk)
        replay.end_step()
        for chunk in self.chunks:
            chunk.zero_grad()

    def take(self, step: Step, index: int, chunk: int) -> None:
        """Every call of this pass's routers since the last time has routed each row as its record says."""
        expected = step.local_rows(index, self.cp, self.tp)
        for layer, moe in models.moe_layers(self.chunks[chunk]).items():
            assert len(moe.seen) == 1, (index, chunk, layer)
            _, routing_map = moe.seen.pop()
            assert len(routing_map) == len(expected)
            for row, of in zip(routing_map, expected, strict=True):
                if of is not None:
                    assert row.nonzero().flatten().tolist() == ids_of(*of, layer), (index, chunk, layer, of)
            self.calls += 1


class ScheduleTest(unittest.TestCase):
    def setUp(self) -> None:
        models.set_up(self)

    def test_every_rank_sees_its_rows(self) -> None:
        random = np.random.default_rng(1)
        steps = [Step(random) for _ in range(STEPS)]
        for place in itertools.product(range(PP), range(CP), range(TP)):
            with self.subTest(place):
                rank = Rank(*place)
                for number, step in enumerate(steps):
                    replay = rank.attach(step.source, inject=("native", "fused")[number % 2], watch="all")
                    rank.run(replay, step)
                    self.assertEqual(replay.kept, 0)
                    said = replay.metrics()
                    mismatch = {key: value for key, value in said.items() if "recompute_mismatch" in key}
                    layers = sum(len(models.moe_layers(chunk)) for chunk in rank.chunks)
                    self.assertEqual((len(mismatch), sum(mismatch.values())), (layers, 0))
                    replay.detach()
                self.assertGreaterEqual(rank.calls, STEPS * 3 * MICRO_BATCHES * 3)

    def test_memory_is_constant(self) -> None:
        random = np.random.default_rng(2)
        rank = Rank(0, 1, 0)
        current: list[Step] = []

        class Now:
            """The rows of the step that runs."""

            def fetch(self, plan: Any, **options: Any) -> Any:
                return current[-1].source.fetch(plan, **options)

            def inspect(self, sequences: Any, **options: Any) -> Any:
                return current[-1].source.inspect(sequences, **options)

        replay = rank.attach(Now())
        largest = [(0, MOST_TOKENS)] * MOST_SAMPLES
        held = []
        for number in range(LONG_RUN):
            current[:] = [Step(random)]
            if number == 0:  # One that needs the most, as the largest micro-batch of a run does.
                current[0].documents = [[(i, MOST_TOKENS) for i in range(MOST_SAMPLES)] for _ in range(MICRO_BATCHES)]
                for sample in range(len(largest)):
                    rows = [[ids_of(sample, row, layer) for layer in MOE] for row in range(MOST_TOKENS - 1)]
                    current[0].source.add(str(sample), np.array(rows, np.int32))
            rank.run(replay, current[0])
            self.assertEqual(replay.kept, 0)
            held.append(replay.buffer_bytes)
        self.assertEqual(set(held), {held[0]})


if __name__ == "__main__":
    unittest.main()
