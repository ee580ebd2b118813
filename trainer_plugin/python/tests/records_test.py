"""R2 records of all ranks of a replica are merged and appended to a service. Ids are a function of sample, row and
layer."""

from __future__ import annotations

import os
import sys
import threading
import types
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
from local_group import LocalGroup
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer._micro_batch import MicroBatch, of_megatron
from routing_replay_trainer._micro_batch import described as describe
from routing_replay_trainer._passes import PassKey
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.megatron import RecordWriter, Sequence

CP, TP, PP, CHUNKS = 2, 2, 2, 2
LAYERS, EXPERTS, TOP_K = 8, 300, 3
CONFIG = {
    "num_layers": LAYERS,
    "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1],
    "num_moe_experts": EXPERTS,
    "moe_router_topk": TOP_K,
    "pipeline_model_parallel_size": PP,
    "virtual_pipeline_model_parallel_size": CHUNKS,
}
MICRO_BATCHES = ((21, 5, 2), (40,), (9, 9))  # Tokens of each sample.


def samples(index: int) -> list[str]:
    return [f"step/{index}/{number}" for number in range(len(MICRO_BATCHES[index]))]


def routes(sample: str, rows: int) -> np.ndarray:
    """Returns the routes [rows, MoE layers, K] of a sample; they depend only on its name."""
    rng = np.random.default_rng(list(sample.encode()))
    return rng.random((rows, LAYERS - 1, EXPERTS)).argpartition(TOP_K, axis=2)[:, :, :TOP_K].astype(np.int32)


def tokens(index: int) -> list[np.ndarray]:
    return [np.arange(count) * 7 + index for count in MICRO_BATCHES[index]]


def described(index: int, sequence_parallel: bool) -> MicroBatch:
    multiple = 2 * CP * TP
    ends = np.cumsum([-(-count // multiple) * multiple for count in MICRO_BATCHES[index]])
    parallel = {"cp_size": CP, "tp_size": TP, "sequence_parallel": sequence_parallel}
    layout = {"format": "THD", "cu_seqlens_padded": [0, *ends.tolist()], "total_rows": int(ends[-1])}
    return describe(samples(index), *of_megatron(tokens(index), None, None, layout, parallel))


def ranks() -> list[dict[str, int]]:
    return [{"tp": i % TP, "cp": i // TP % CP, "pp": i // TP // CP} for i in range(TP * CP * PP)]


def plan_arguments(said: MicroBatch, rank: dict[str, int], chunk: int) -> dict[str, Any]:
    return {"micro_batch": said.layout, "megatron": CONFIG, "rank": rank | {"chunk": chunk}}


def recorded(said: MicroBatch, plan: trainer.Plan) -> np.ndarray:
    """The content of the index buffer if routers choose the samples' own routes."""
    buffer = np.zeros(plan.buffer_bytes, np.uint8)
    shown = plan.local_rows()
    own = [routes(s["sample"], s["tokens"]) for s in said.layout["sequences"]]
    for layer in plan.layers:
        ids = np.frombuffer(buffer, layer.dtype, plan.rows * TOP_K, layer.offset).reshape(plan.rows, TOP_K)
        for local, (sequence, row, state) in enumerate(zip(*shown, strict=True)):
            if state != trainer.PAD:
                ids[local] = own[sequence][row, layer.ordinal]
    return buffer


def on_all(body: Callable[[Collective, dict[str, int]], Any]) -> list[Any]:
    """Runs `body` on all ranks, and returns what it returned or raised on each."""
    group, results = LocalGroup(len(ranks())), [None] * len(ranks())

    def run(number: int) -> None:
        try:
            results[number] = body(group[number], ranks()[number])
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Run:
    """A fake run that keeps all appends. rejects: by sample: an exception"""

    def __init__(self, **rejects: Exception) -> None:
        self.appended: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
        self.rejects = {name.replace("_", "/"): error for name, error in rejects.items()}

    def put(self, sample: str, rows: np.ndarray, **options: Any) -> Any:
        if sample in self.rejects:
            raise self.rejects[sample]
        self.appended[sample] = (rows, options)
        return types.SimpleNamespace(conflicting_rows=0, late_rows=0)


class MergeTest(unittest.TestCase):
    def records(self, index: int, sequence_parallel: bool) -> list[tuple[trainer.Plan, np.ndarray]]:
        said = described(index, sequence_parallel)
        plans = [trainer.Plan(None, **plan_arguments(said, rank, chunk)) for rank in ranks() for chunk in range(CHUNKS)]
        return [(plan, recorded(said, plan)) for plan in plans]

    def test_whole_rows(self) -> None:
        for sequence_parallel in (True, False):
            for index in range(len(MICRO_BATCHES)):
                merged = trainer.merge_records(self.records(index, sequence_parallel)[::-1])
                for sample, count, rows in zip(samples(index), MICRO_BATCHES[index], merged, strict=True):
                    self.assertEqual(rows.dtype, np.uint16)
                    np.testing.assert_array_equal(rows, routes(sample, count)[: count - 1])

    def test_what_is_missing_or_different(self) -> None:
        records = self.records(0, True)
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            trainer.merge_records(records[: len(records) // 2])
        self.assertEqual(caught.exception.layer, 2)
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            trainer.merge_records(records[:3] + records[4:])
        self.assertEqual((caught.exception.layer, caught.exception.reason), (4, "NOT_COMMITTED"))
        self.assertIsNotNone(caught.exception.row)
        records = self.records(0, False)
        records[0] = (records[0][0], records[0][1] + np.uint8(1))
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            trainer.merge_records(records)
        self.assertEqual((caught.exception.layer, caught.exception.reason), (1, "CONFLICTING_ROWS"))

    def test_records_that_do_not_fit(self) -> None:
        records = self.records(0, True)
        for wrong in ([], records[:1] + self.records(1, True)[:1], [(records[0][0], records[0][1][:-1])]):
            with self.assertRaises(errors.InvalidArgumentError):
                trainer.merge_records(wrong)


class WriterTest(unittest.TestCase):
    def record(
        self, writer: RecordWriter, rank: dict[str, int], batches: int = len(MICRO_BATCHES), step: int = 0
    ) -> None:
        """Gives the writer what a rank records in one pass: micro-batch by micro-batch in one chunk, then in the
        next."""
        for chunk in range(CHUNKS):
            for index in range(batches):
                said = described(index, True)
                arguments = plan_arguments(said, rank, chunk)
                buffer = recorded(said, trainer.Plan(None, **arguments))
                writer.keep(PassKey(step, index, chunk), {"geometry": None} | arguments, said, buffer)

    def test_one_rank_appends_whole_rows(self) -> None:
        run = Run()

        def body(collective: Collective, rank: dict[str, int]) -> list[str]:
            writer = RecordWriter(collective, run if collective.rank == 0 else None)
            self.record(writer, rank)
            written = writer.write(group=3, weight_version=17)
            self.assertEqual(writer.write(), [])  # Nothing is left to write.
            return written

        names = [name for index in range(len(MICRO_BATCHES)) for name in samples(index)]
        self.assertEqual(on_all(body), [names] + [[]] * 7)
        counts = [(index, number) for index, batch in enumerate(MICRO_BATCHES) for number in range(len(batch))]
        for name, (index, number) in zip(names, counts, strict=True):
            rows, options = run.appended[name]
            count = MICRO_BATCHES[index][number]
            np.testing.assert_array_equal(rows, routes(name, count)[: count - 1])
            np.testing.assert_array_equal(options.pop("tokens"), tokens(index)[number][: count - 1])
            self.assertEqual(options, {"num_tokens": count, "producer": "trainer", "group": 3, "weight_version": 17})

    def test_all_ranks_learn_of_a_failure(self) -> None:
        """If an append fails, no later sample is written, and the next call writes all of them."""
        names = [name for index in range(len(MICRO_BATCHES)) for name in samples(index)]
        run = Run(**{samples(1)[0].replace("/", "_"): ValueError("no room")})

        def body(collective: Collective, rank: dict[str, int]) -> list[str]:
            writer = RecordWriter(collective, run)
            self.record(writer, rank)
            expected, words = errors.FailedPreconditionError, "rank 0 could not append"
            if collective.rank == 0:
                expected, words = ValueError, "no room"
            with self.assertRaisesRegex(expected, words):
                writer.write()
            if collective.rank == 0:
                self.assertEqual(list(run.appended), samples(0))
                run.rejects.clear()
            return [*writer.write(), *writer.write()]

        self.assertEqual(on_all(body), [names] + [[]] * 7)
        self.assertEqual(sorted(run.appended), sorted(names))

    def test_a_run_that_is_missing(self) -> None:
        def body(collective: Collective, rank: dict[str, int]) -> None:
            writer = RecordWriter(collective)
            self.record(writer, rank)
            writer.write()

        first, *others = on_all(body)
        self.assertIn("rank 0, which appends, has no run", first.message)
        self.assertIn("rank 0 could not append", others[0].message)

    def test_ranks_with_other_passes(self) -> None:
        """If a rank has recorded fewer passes than the others, `write` fails. Nothing is lost: the rank may still
        record what is missing."""
        run = Run()

        def body(collective: Collective, rank: dict[str, int]) -> list[str]:
            writer = RecordWriter(collective, run)
            self.record(writer, rank, 2 if collective.rank == 5 else 3)
            with self.assertRaisesRegex(errors.FailedPreconditionError, "recorded 2 micro-batches, another 3"):
                writer.write()
            self.record(writer, rank)
            return writer.write()

        names = [name for index in range(len(MICRO_BATCHES)) for name in samples(index)]
        self.assertEqual(on_all(body), [names] + [[]] * 7)

    def test_passes_that_were_given_up(self) -> None:
        """Odd ranks have recorded a micro-batch of a step that was abandoned, and forget it."""
        run = Run()

        def body(collective: Collective, rank: dict[str, int]) -> Any:
            writer = RecordWriter(collective, run)
            if collective.rank % 2:
                for chunk in range(CHUNKS):
                    said = described(1, True)
                    arguments = plan_arguments(said, rank, chunk)
                    wrong = np.zeros_like(recorded(said, trainer.Plan(None, **arguments)))
                    writer.keep(PassKey(0, 1, chunk), {"geometry": None} | arguments, said, wrong)
                    writer.forget(PassKey(0, 1, chunk))
            self.record(writer, rank, step=1)
            return writer.write()

        names = [name for index in range(len(MICRO_BATCHES)) for name in samples(index)]
        self.assertEqual(on_all(body), [names] + [[]] * 7)
        for name in names:
            rows = run.appended[name][0]
            np.testing.assert_array_equal(rows, routes(name, len(rows)))

    def test_a_rank_without_routers(self) -> None:
        """The lowest rank that has routers appends the rows. An error names rows that are missing then."""

        def body(collective: Collective, rank: dict[str, int]) -> None:
            writer = RecordWriter(collective, Run() if collective.rank == 1 else None)
            if collective.rank:
                self.record(writer, rank)
            writer.write()

        results = on_all(body)
        self.assertIn("rank 1 could not append", results[0].message)
        self.assertEqual(results[1].reason, "NOT_COMMITTED")

    def test_a_rank_that_never_comes(self) -> None:
        def body(collective: Collective, rank: dict[str, int]) -> None:
            if collective.rank == 4:
                return
            with self.assertRaises(errors.DeadlineExceededError):
                RecordWriter(collective, Run()).write(deadline=0.02)

        self.assertEqual(on_all(body), [None] * 8)

    def test_only_whole_samples_with_a_name(self) -> None:
        writer = RecordWriter(LocalGroup(1)[0], Run())
        for part in (Sequence("a", rows=4), 7, ["a", "b"]):
            said = describe([part], *of_megatron([np.arange(8)], None, None, {"padding": {}}))
            with self.assertRaisesRegex(errors.InvalidArgumentError, "sequences"):
                writer.keep(PassKey(0, 0, 0), {}, said, np.zeros(1, np.uint8))

    def test_into_a_service(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        server = Server()
        self.addCleanup(server.stop)
        client = routing_replay.Client(server.endpoint)
        self.addCleanup(client.close)
        geometry = routing_replay.Geometry(
            num_layers=LAYERS, moe_layers=range(1, LAYERS), num_experts=EXPERTS, top_k=TOP_K
        )
        run = client.run("r2", geometry)

        def body(collective: Collective, rank: dict[str, int]) -> None:
            writer = RecordWriter(collective, run if collective.rank == 0 else None)
            self.record(writer, rank)
            writer.write(group=1)

        self.assertEqual(on_all(body), [None] * 8)
        source = trainer.ServiceSource(run, producer="trainer")
        said = described(0, True)
        plan = trainer.Plan(None, **plan_arguments(said, ranks()[5], 1))
        batch = source.fetch(plan, sequences=said.fetch)
        shown = plan.local_rows()
        for layer, ids in zip(plan.layers, batch.indices, strict=True):
            for local in np.flatnonzero(batch.states == trainer.REPLAYED):
                name = samples(0)[shown.sequence[local]]
                own = routes(name, MICRO_BATCHES[0][shown.sequence[local]])
                self.assertEqual(ids[local].tolist(), own[shown.row[local], layer.ordinal].tolist())
        self.assertEqual(batch.unrecorded_rows, plan.described["row_map"]["unrecorded"])

        # A sample of one token has no rows.
        writer = RecordWriter(None, run)
        layout = {"format": "THD", "cu_seqlens_padded": [0, 8, 16], "total_rows": 16}
        said = describe(["five", "one"], *of_megatron([np.arange(5), np.arange(1)], None, None, layout))
        arguments = {"micro_batch": said.layout, "megatron": CONFIG | {"pipeline_model_parallel_size": 1}}
        arguments["megatron"].pop("virtual_pipeline_model_parallel_size")
        writer.keep(
            PassKey(0, 0, 0), {"geometry": None} | arguments, said, recorded(said, trainer.Plan(None, **arguments))
        )
        self.assertEqual(writer.write(group=2), ["five", "one"])
        states = run.stat_many(["five", "one"], producer="trainer")
        self.assertEqual([(state.num_tokens, state.committed_rows) for state in states], [(5, 4), (1, 0)])

        # An earlier rollout has used the name "five". Its rows stay, unless `write` is called with restart=.
        said = describe(["new", "five"], *of_megatron([np.arange(5)] * 2, None, None, layout))
        arguments |= {"micro_batch": said.layout}
        plan = trainer.Plan(None, **arguments)
        other = recorded(said, plan)
        layer = plan.layers[0]
        ids = np.frombuffer(other, layer.dtype, plan.rows * TOP_K, layer.offset)
        ids[:] = ids.reshape(-1, TOP_K)[:, ::-1].reshape(-1)  # The same ids in another order are another route.
        writer.keep(PassKey(1, 0, 0), {"geometry": None} | arguments, said, other)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "five: .*restart=") as caught:
            writer.write(group=3)
        self.assertEqual((caught.exception.sample, caught.exception.reason), ("five", "CONFLICTING_ROWS"))
        self.assertEqual(writer.write(group=3, restart=1), ["new", "five"])
        self.assertEqual(writer.write(), [])


if __name__ == "__main__":
    unittest.main()
