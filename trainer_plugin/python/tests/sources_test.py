"""Both sources, compared with each other and with rows looked up one by one, on random runs against a real server."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer


@dataclass
class Sample:
    """What an engine delivered of a sample of T tokens: `rows` [T - 1, MoE layers, K], except those in `unrecorded`;
    nothing if not `sent`."""

    tokens: np.ndarray
    rows: np.ndarray
    unrecorded: list[tuple[int, int]] = field(default_factory=list)
    sent: bool = True

    @property
    def recorded(self) -> np.ndarray:
        """[T - 1] bool: True for rows that are not in `unrecorded`."""
        mask = np.ones(len(self.rows), bool)
        for begin, end in self.unrecorded:
            mask[begin:end] = False
        return mask


@dataclass
class Scenario:
    geometry: dict[str, Any]
    samples: list[Sample]
    cp: int
    pp: int

    @property
    def partition(self) -> list[int]:
        multiple = 2 * self.cp
        return [(len(sample.tokens) + multiple - 1) // multiple * multiple for sample in self.samples]

    def plan(self, pp: int, cp: int, **options: Any) -> trainer.Plan:
        ends = np.cumsum(self.partition)
        micro_batch = {
            "format": "THD",
            "sequences": [{"sample": f"s{i}", "tokens": len(s.tokens)} for i, s in enumerate(self.samples)],
            "cu_seqlens_padded": [0, *ends],
            "total_rows": ends[-1],
            "partition": "zigzag_per_document",
            "cp_size": self.cp,
        }
        rank = {"pp": pp, "cp": cp}
        return trainer.plan(self.geometry, micro_batch, rank=rank, split={"pipeline_size": self.pp}, **options)

    def local_rows(self, cp: int) -> list[tuple[int, int]]:
        """Returns (sequence, position) for each local row."""
        rows = []
        for sequence, padded in enumerate(self.partition):
            half = padded // (2 * self.cp)
            for chunk in (cp, 2 * self.cp - 1 - cp):
                rows += [(sequence, position) for position in range(chunk * half, (chunk + 1) * half)]
        return rows

    def sequences(self) -> list[trainer.FetchSequence]:
        return [trainer.FetchSequence(f"s{i}", len(s.tokens), s.tokens) for i, s in enumerate(self.samples)]

    def local_source(self) -> trainer.LocalSource:
        source = trainer.LocalSource(self.geometry)
        for i, sample in enumerate(self.samples):
            if sample.sent:
                rows = sample.rows[sample.recorded]
                total = len(sample.tokens)
                source.add(f"s{i}", rows, num_tokens=total, unrecorded=sample.unrecorded, tokens=sample.tokens)
        return source


def random_scenario(rng: np.random.Generator) -> Scenario:
    pp, cp = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    experts, top_k = ((8, 2), (64, 6), (128, 8), (300, 5), (1024, 3))[rng.integers(5)]
    moe_layers = [1, 2, 4, 5]
    geometry = {"num_layers": 6, "moe_layers": moe_layers, "num_experts": experts, "top_k": top_k}
    samples = []
    for _ in range(rng.integers(1, 5)):
        length = int(rng.choice([2, 9, 300, 700]) + rng.integers(4))
        rows = rng.random((length - 1, len(moe_layers), experts)).argpartition(top_k - 1, axis=2)[:, :, :top_k]
        sample = Sample(rng.integers(0, 150_000, length).astype(np.uint32), rows.astype(np.int32))
        sample.sent = bool(rng.random() < 0.8)
        for begin in range(3, length - 12, 150):
            if rng.random() < 0.4:
                sample.unrecorded.append((begin, begin + int(rng.integers(1, 8))))
        samples.append(sample)
    return Scenario(geometry, samples, cp, pp)


class SourcesTest(unittest.TestCase):
    def check(self, scenario: Scenario, plan: trainer.Plan, batch: trainer.Batch, cp: int) -> None:
        expected = scenario.local_rows(cp)
        shown = plan.local_rows()
        self.assertEqual(len(expected), plan.rows)
        for row, (sequence, position) in enumerate(expected):
            sample = scenario.samples[sequence]
            length = len(sample.tokens)
            if position >= length:
                state = planned = trainer.PAD
            else:
                planned = trainer.REPLAYED if position < length - 1 else trainer.UNRECORDED
                replayed = sample.sent and position < length - 1 and sample.recorded[position]
                state = trainer.REPLAYED if replayed else trainer.UNRECORDED
                self.assertEqual((shown.sequence[row], shown.row[row]), (sequence, position))
            self.assertEqual((batch.states[row], shown.state[row]), (state, planned), (sequence, position))
            for slot, layer in enumerate(plan.layers):
                ids = batch.indices[slot][row]
                if state == trainer.REPLAYED:
                    self.assertEqual(ids.tolist(), sample.rows[position, layer.ordinal].tolist())
                else:
                    self.assertEqual(len(set(ids.tolist())), layer.top_k)
        counts = np.bincount(batch.states, minlength=3)
        self.assertEqual((batch.replayed_rows, batch.unrecorded_rows, batch.pad_rows), tuple(counts))

    def compare(self, scenario: Scenario, sources: list[trainer.Source]) -> None:
        for pp, cp in np.ndindex(scenario.pp, scenario.cp):
            plan = scenario.plan(pp, cp)
            batches = [source.fetch(plan, sequences=scenario.sequences(), missing="live") for source in sources]
            for batch in batches:
                self.check(scenario, plan, batch, cp)
            for batch in batches[1:]:
                for ours, theirs in zip(batch.indices, batches[0].indices, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
                self.assertEqual(batch.fallback_sequences, batches[0].fallback_sequences)
                told = [(s["sample"], s["status"], s["unrecorded"]) for s in batch.sequences]
                self.assertEqual(told, [(s["sample"], s["status"], s["unrecorded"]) for s in batches[0].sequences])
        plans = [scenario.plan(pp, cp) for pp, cp in np.ndindex(scenario.pp, scenario.cp)]
        for source in sources:
            named, out = [scenario.sequences()] * len(plans), [np.empty(plan.buffer_bytes, np.uint8) for plan in plans]
            together = source.fetch_all(plans, sequences=named, missing="live", out=out)
            for (_, cp), plan, batch in zip(np.ndindex(scenario.pp, scenario.cp), plans, together, strict=True):
                self.check(scenario, plan, batch, cp)
            with self.assertRaises(ValueError):
                source.fetch_all(plans, sequences=[], missing="live")

    def test_local_source_on_random_runs(self) -> None:
        for seed in range(24):
            with self.subTest(seed=seed):
                scenario = random_scenario(np.random.default_rng(seed))
                self.compare(scenario, [scenario.local_source()])

    def test_service_source_on_random_runs(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        server = Server()
        self.addCleanup(server.stop)
        client = routing_replay.Client(server.endpoint)
        self.addCleanup(client.close)
        for seed in range(12):
            with self.subTest(seed=seed):
                scenario = random_scenario(np.random.default_rng(seed))
                run = client.run(f"run-{seed}", routing_replay.Geometry(**scenario.geometry))
                for i, sample in enumerate(scenario.samples):
                    if sample.sent:
                        run.append(
                            f"s{i}",
                            sample.rows[sample.recorded],
                            tokens=sample.tokens[:-1],
                            unrecorded=sample.unrecorded,
                            num_tokens=len(sample.tokens),
                            seal=True,
                        )
                run.flush()
                service = trainer.ServiceSource(run, wait=False)
                self.compare(scenario, [scenario.local_source(), service])
                other = trainer.plan(
                    scenario.geometry | {"num_experts": scenario.geometry["num_experts"] + 1},
                    {
                        "format": "THD",
                        "sequences": [{"sample": "s0", "tokens": 2}],
                        "cu_seqlens_padded": [0, 2],
                        "total_rows": 2,
                        "partition": "contiguous",
                    },
                )
                with self.assertRaises(errors.InvalidArgumentError) as caught:
                    service.fetch(other, missing="live")
                self.assertEqual(caught.exception.reason, "GEOMETRY_MISMATCH")
                run.close()

    def test_a_run_of_asyncio(self) -> None:
        import routing_replay.aio

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        server = Server()
        self.addCleanup(server.stop)
        scenario = random_scenario(np.random.default_rng(3))

        async def fetched() -> trainer.Batch:
            async with routing_replay.aio.Client(server.endpoint) as client:
                run = await client.run("r", routing_replay.Geometry(**scenario.geometry))
                for i, sample in enumerate(scenario.samples):
                    rows = sample.rows[sample.recorded]
                    await run.put(f"s{i}", rows, unrecorded=sample.unrecorded, num_tokens=len(sample.tokens), seal=True)
                source = trainer.ServiceSource(run)
                return await asyncio.to_thread(source.fetch, scenario.plan(0, 0))

        for sample in scenario.samples:
            sample.sent = True
        plan = scenario.plan(0, 0)
        self.check(scenario, plan, asyncio.run(fetched()), 0)

    def test_a_plan_of_another_geometry_is_rejected(self) -> None:
        scenario = random_scenario(np.random.default_rng(1))
        wider = trainer.LocalSource(scenario.geometry | {"top_k": scenario.geometry["top_k"] * 2, "num_experts": 512})
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            wider.fetch(scenario.plan(0, 0), missing="live")
        self.assertEqual((caught.exception.reason, caught.exception.layer), ("GEOMETRY_MISMATCH", 1))

    def test_tokens_are_compared(self) -> None:
        rng = np.random.default_rng(2)
        tokens = rng.integers(0, 1000, 40).astype(np.int64)
        rows = rng.random((39, 1, 8)).argpartition(1, axis=2)[:, :, :2].astype(np.uint8)
        geometry = {"num_layers": 1, "num_experts": 8, "top_k": 2}
        source = trainer.LocalSource(geometry)
        source.add("a", rows, tokens=tokens)

        def fetch(count: int, **said: Any) -> trainer.Batch:
            shape = {"sequences": [{"tokens": count}], "cu_seqlens_padded": [0, count], "total_rows": count}
            plan = trainer.plan(geometry, shape | {"format": "THD", "partition": "contiguous"})
            return source.fetch(plan, sequences=[trainer.FetchSequence("a", **said)])

        self.assertEqual(fetch(40, tokens=tokens).replayed_rows, 39)
        self.assertEqual(fetch(40, tokens=tokens, num_tokens=40).replayed_rows, 39)
        self.assertEqual(fetch(25, tokens=tokens[:25]).replayed_rows, 24)  # The trainer cut the sequence.
        other = tokens.copy()
        other[7] += 1
        for said in ({"tokens": other}, {"tokens": other, "num_tokens": 40}, {"num_tokens": 41}):
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                fetch(40, **said)
            self.assertEqual(caught.exception.sample, "a")
        for bad, reason in (([-1], "FIELD"), ([2**32], "FIELD"), ([0.5], "DTYPE")):
            with self.assertRaises(errors.InvalidArgumentError) as rejected:
                fetch(40, tokens=np.array(bad * 40))
            self.assertEqual((rejected.exception.reason, rejected.exception.field), (reason, "tokens"))

    def test_rejections_name_the_argument_and_the_sample(self) -> None:
        source = trainer.LocalSource({"num_layers": 2, "num_experts": 8, "top_k": 2})
        rows = np.tile(np.arange(2, dtype=np.int32), (5, 2, 1))
        source.add("a", rows)
        far, twice = rows.copy(), rows.copy()
        far[3, 1, 0] = 8
        twice[2, 0] = 1
        wrong: list[tuple[str, str, dict[str, Any]]] = [
            ("rows", "DTYPE", {"rows": rows.astype(np.float32)}),
            ("rows", "SHAPE", {"rows": rows[:, :, 0]}),
            ("rows", "SHAPE", {"rows": [[1], [2, 3]]}),
            ("rows", "ID_RANGE", {"rows": far}),
            ("rows", "DUPLICATE_ID", {"rows": twice}),
            ("rows", "ROW_COUNT", {"num_tokens": 7}),
            ("num_tokens", "FIELD", {"num_tokens": 0}),
            ("num_tokens", "FIELD", {"num_tokens": 6.0}),
            ("num_tokens", "FIELD", {"num_tokens": 2**63}),
            ("unrecorded", "FIELD", {"unrecorded": [(3, 2)]}),
            ("unrecorded", "FIELD", {"unrecorded": [(0.5, 2)]}),
            ("unrecorded", "FIELD", {"unrecorded": [3]}),
            ("layers", "FIELD", {"layers": [1, 5]}),
            ("layers", "FIELD", {"layers": [0, 1.5]}),
            ("layers", "FIELD", {"layers": [0, 2**40]}),
            ("tokens", "ROW_COUNT", {"tokens": [1, 2]}),
            ("tokens", "LENGTH", {"tokens": []}),
            ("tokens", "SHAPE", {"tokens": [[1, 2, 3, 4, 5]]}),
            ("tokens", "DTYPE", {"tokens": [True] * 5}),
            ("tokens", "FIELD", {"tokens": [1, 2, 3, 4, -1]}),
        ]
        for name, reason, said in wrong:
            with self.assertRaises(errors.InvalidArgumentError, msg=f"{said}") as caught:
                source.add("a", **({"rows": rows} | said))
            error = caught.exception
            self.assertEqual((error.field, error.reason, error.sample), (name, reason, "a"), f"{said}: {error}")
            self.assertNotIn("append.", str(error))
            self.assertNotIn("tensor", error.message.split(":")[0])
        for sample in ("", "with space", 5, b"a"):
            with self.assertRaises(errors.InvalidArgumentError) as caught:
                source.add(sample, rows)  # type: ignore[arg-type]
            self.assertEqual(caught.exception.field, "sample")
        self.assertTrue(source.remove("a"))
        self.assertFalse(source.remove("\ud800"))

    def test_numbers_are_never_cut(self) -> None:
        geometry = {"num_layers": 1, "num_experts": 8, "top_k": 2}
        batch: dict[str, Any] = {
            "format": "THD",
            "partition": "contiguous",
            "sequences": [{"sample": "a", "tokens": 3}],
        }
        batch |= {"cu_seqlens_padded": [0, 3], "total_rows": 3}
        source = trainer.LocalSource(geometry)
        cases: list[tuple[str, Any]] = [
            ("micro_batch.total_rows", lambda: trainer.plan(geometry, batch | {"total_rows": 3.0})),
            ("micro_batch.total_rows", lambda: trainer.plan(geometry, batch | {"total_rows": float("nan")})),
            ("micro_batch.total_rows", lambda: trainer.plan(geometry, batch | {"total_rows": object()})),
            ("micro_batch.total_rows", lambda: trainer.plan(geometry, batch | {"total_rows": 2**64})),
            ("rank.pp", lambda: trainer.plan(geometry, batch, rank={"pp": 0.0})),
            ("ep_size", lambda: trainer.plan(geometry, batch, ep_size=1.5)),  # type: ignore[arg-type]
            ("ep_size", lambda: trainer.plan(geometry, batch, ep_size=2**32 + 1)),
            ("num_tokens", lambda: source.inspect([trainer.FetchSequence("a", num_tokens=2.5)])),  # type: ignore[arg-type]
        ]
        for name, call in cases:
            with self.assertRaises(errors.InvalidArgumentError, msg=name) as caught:
                call()
            self.assertEqual(caught.exception.field, name)

    def test_index_buffer_of_the_caller(self) -> None:
        scenario = random_scenario(np.random.default_rng(3))
        plan = scenario.plan(0, 0)
        source = scenario.local_source()
        out = np.full(plan.buffer_bytes, 0xCD, np.uint8)
        batch = source.fetch(plan, missing="live", out=out)
        self.check(scenario, plan, batch, 0)
        self.assertTrue(all(np.shares_memory(ids, out) for ids in batch.indices))
        frozen = out.copy()
        frozen.flags.writeable = False
        objects = np.array([None] * len(out))
        for wrong in (
            bytearray(out),
            objects,
            out[:-1],
            out.view(np.int8),
            np.zeros(2 * len(out), np.uint8)[::2],
            frozen,
        ):
            with self.assertRaises(errors.InvalidArgumentError) as caught:
                source.fetch(plan, missing="live", out=wrong)
            self.assertEqual(caught.exception.field, "out")

    def test_signatures_name_every_option(self) -> None:
        for name in trainer.__all__:
            value = getattr(trainer, name)
            if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Exception)):
                kinds = {parameter.kind for parameter in inspect.signature(value).parameters.values()}
                self.assertFalse(kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name)

    def test_layers_from_megatron_and_a_live_model(self) -> None:
        batch: dict[str, Any] = {
            "format": "THD",
            "partition": "contiguous",
            "sequences": [{"sample": "a", "tokens": 3}],
            "cu_seqlens_padded": [0, 3],
            "total_rows": 3,
        }
        megatron = {
            "num_layers": 8,
            "num_moe_experts": 8,
            "moe_router_topk": 2,
            "pipeline_model_parallel_size": np.int64(2),
            "virtual_pipeline_model_parallel_size": None,
            "pipeline_model_parallel_layout": "Ett|ttt|tt|tmL",
            "mtp_num_layers": 1,
        }
        rank: dict[str, Any] = {"pp": 1, "model": [{"layer_numbers": [3, 4, 5]}, {"layer_numbers": [8]}]}
        plan = trainer.plan(None, batch, megatron=megatron, rank=rank, native_layers=[3])
        self.assertEqual([(layer.layer, layer.chunk) for layer in plan.layers], [(2, 0), (4, 0), (7, 1)])
        rank["model"][1]["layer_numbers"] = [7]
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            trainer.plan(None, batch, megatron=megatron, rank=rank)
        self.assertEqual(caught.exception.field, "rank.model")

    def test_threads_share_plan_and_source(self) -> None:
        scenario = random_scenario(np.random.default_rng(5))
        plan, source = scenario.plan(0, 0), scenario.local_source()
        with ThreadPoolExecutor(8) as pool:
            batches = list(pool.map(lambda _: source.fetch(plan, missing="live"), range(64)))
        for batch in batches:
            np.testing.assert_array_equal(batch.states, batches[0].states)
            for ours, theirs in zip(batch.indices, batches[0].indices, strict=True):
                np.testing.assert_array_equal(ours, theirs)

    def test_after_fork(self) -> None:
        code = (
            "import os, numpy, routing_replay_trainer as t; g = {'num_layers': 1, 'num_experts': 8, 'top_k': 2};"
            "s = t.LocalSource(g); s.add('a', numpy.array([[[1, 2]], [[3, 4]]]));"
            "p = t.plan(g, {'format': 'THD', 'sequences': [{'sample': 'a', 'tokens': 3}], 'cu_seqlens_padded': [0, 3],"
            " 'total_rows': 3, 'partition': 'contiguous'});"
            "child = os.fork();"
            "assert s.fetch(p).indices[0][:2].tolist() == [[1, 2], [3, 4]];"
            "assert child == 0 or os.waitpid(child, 0)[1] == 0"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
