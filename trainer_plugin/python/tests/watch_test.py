"""The watch over replayed routes, its diagnosis, and the on-policy contract, without torch."""

from __future__ import annotations

import os
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import diagnose
from routing_replay_trainer._micro_batch import MicroBatch, Sequence, described, of_megatron
from routing_replay_trainer.diagnose import Watch
from routing_replay_trainer.metrics import Contract

LAYERS, EXPERTS, TOP_K = 6, 32, 4
MOE = list(range(1, LAYERS))
GEOMETRY = {"num_layers": LAYERS, "moe_layers": MOE, "num_experts": EXPERTS, "top_k": TOP_K}
LENGTHS = (150, 61, 205)
SAMPLES = ("math/0", "math/1", "code/7")
SPLIT = {"pipeline_size": 2}
RANK = {"pp": 1, "cp": 1, "tp": 0}


class Model:
    """Scores of every token in every layer, and the experts that follow from them."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        popular = self._random.normal(size=(len(MOE), EXPERTS))
        self.scores = [self._random.normal(size=(length, len(MOE), EXPERTS)) + popular for length in LENGTHS]

    def choices(self, noise: float = 0.0) -> list[np.ndarray]:
        """Returns for each sample the chosen ids [tokens, MoE layers, K]."""
        noisy = [scores + noise * self._random.normal(size=scores.shape) for scores in self.scores]
        return [np.argsort(-scores, axis=2)[..., :TOP_K] for scores in noisy]


def micro_batch(samples: Any = SAMPLES, lengths: Any = LENGTHS) -> MicroBatch:
    padded = np.cumsum([0, *(-(-length // 8) * 8 for length in lengths)])
    params = types.SimpleNamespace(
        qkv_format="thd", cu_seqlens_q=np.cumsum([0, *lengths]), cu_seqlens_q_padded=padded, total_tokens=None
    )
    parallel = {"cp_size": 2, "tp_size": 2, "sequence_parallel": True}
    return described(samples, *of_megatron(None, params, None, {}, parallel))


def source_of(recorded: list[np.ndarray], names: Any = SAMPLES) -> trainer.LocalSource:
    source = trainer.LocalSource(GEOMETRY)
    for name, rows in zip(names, recorded, strict=True):
        source.add(name, rows[:-1].astype(np.int32))
    return source


def plan_of(described: MicroBatch) -> trainer.Plan:
    return trainer.plan(GEOMETRY, described.layout, rank=RANK, split=SPLIT)


def counts(live: np.ndarray, replayed: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Returns the counts that ops.compare would return."""
    common = (replayed[:, :, None].astype(int) == live[:, None, :]).any(2).sum(1)[states == trainer.REPLAYED]
    return np.array([len(common), (common < TOP_K).sum(), (common == 0).sum(), common.sum()])


def run_step(watch: Watch, source: Any, described: MicroBatch, choices: list[np.ndarray]) -> Any:
    """Runs one micro-batch on one rank whose routers make these choices; returns the batch."""
    plan = plan_of(described)
    batch = source.fetch(plan, sequences=described.fetch)
    whole = MicroBatch({**described.layout, "sequences": [{"tokens": n} for n in LENGTHS]}, [])
    rows = plan_of(whole).local_rows()
    if watch.begin(0, described, batch):
        for slot, layer in enumerate(plan.layers):
            live = np.zeros((plan.rows, TOP_K), np.int64)
            for i, (sequence, row) in enumerate(zip(rows.sequence, rows.row, strict=True)):
                if sequence >= 0:
                    live[i] = choices[sequence][row, layer.ordinal]
            ids = batch.indices[slot]
            watch.saw(0, batch, slot, live, ids, counts(live, ids, batch.states))
    watch.end_step()
    return batch


def shifted(rows: list[np.ndarray], by: int) -> list[np.ndarray]:
    return [np.roll(sample, by, axis=0) for sample in rows]


class WatchTest(unittest.TestCase):
    def warning(self, do: Callable[[], Any]) -> str:
        with self.assertLogs("routing_replay_trainer", "WARNING") as logged:
            do()
        self.assertEqual(len(logged.output), 1)
        return logged.output[0]

    def test_rows_shifted_by_one(self) -> None:
        for by, name in ((1, "one_row_late"), (-1, "one_row_early")):
            for noise in (0.0, 0.3):
                with self.subTest(name, noise=noise):
                    model = Model(1)
                    source = source_of(shifted(model.choices(), by))
                    watch = Watch()
                    said = self.warning(
                        lambda w=watch, s=source, m=model, n=noise: run_step(w, s, micro_batch(), m.choices(n))
                    )
                    self.assertIn(f"{name} (each token got the route of the token", said)
                    self.assertRegex(said, r"sample (math/0|math/1|code/7) .* layer [345]")
                    # The warning states what was measured, and the likely cause.
                    self.assertRegex(said, r"[0-9.]+% of the rows have no expert in common .* chosen live \(100%")
                    self.assertRegex(said, r"corrected, \d+% would be chosen live, so it is the likely cause")
                    self.assertEqual(watch.alarms, 1)
                    # The warning comes once per run and cause; the metrics continue to count.
                    with self.assertNoLogs("routing_replay_trainer"):
                        run_step(watch, source, micro_batch(), model.choices(noise))
                    self.assertEqual(watch.alarms, 2)

    def test_layers_shifted_by_one(self) -> None:
        model = Model(2)
        watch, source = Watch(), source_of([np.roll(rows, 1, axis=1) for rows in model.choices()])
        said = self.warning(lambda: run_step(watch, source, micro_batch(), model.choices(0.2)))
        self.assertIn("one_layer_before (each layer got the routes of the layer before it)", said)
        self.assertNotIn("one_row", said)

    def test_a_wrong_sample(self) -> None:
        model = Model(3)
        record = model.choices()
        record[0] = Model(4).choices()[0]
        watch, source = Watch(), source_of(record)
        said = self.warning(lambda: run_step(watch, source, micro_batch(), model.choices(0.1)))
        self.assertIn("sample math/0", said)
        self.assertRegex(said, "No known mistake .* Likely causes: .* or the weights are far from those of the rollout")

    def test_handles_and_pieces_are_named(self) -> None:
        model = Model(5)
        record = [np.concatenate([np.roll(model.choices()[0], 1, axis=0), model.choices()[0]]), *model.choices()[1:]]
        watch, source = Watch(), source_of(record)
        pieces = [[Sequence("math/0", rows=100, tokens=100), Sequence("math/0", start=100)], "math/1", "code/7"]
        described = micro_batch(pieces)
        said = self.warning(lambda: run_step(watch, source, described, model.choices()))
        self.assertIn("sample math/0", said)
        self.assertIn("one_row_late", said)

    def test_drift_is_no_alarm(self) -> None:
        """If the weights have drifted by some versions, many rows have no expert in common with their record. This
        alone raises no alarm."""
        for noise in (0.3, 0.6, 1.0):
            for seed in range(3):
                model = Model(seed)
                watch, source = Watch(alarm_no_overlap=0.002), source_of(model.choices())
                with self.assertNoLogs("routing_replay_trainer"):
                    batch = run_step(watch, source, micro_batch(), model.choices(noise))
                self.assertEqual(watch.alarms, 0)
                self.assertGreater(batch.replayed_rows, 80)
        # So many rows have no common expert that the share alone would have raised the alarm.
        live, record = (np.concatenate(choices).reshape(-1, TOP_K) for choices in (model.choices(1.0), model.choices()))
        rows, _, disjoint, _ = counts(live, record, np.zeros(len(live), np.uint8))
        self.assertGreater(disjoint, 0.002 * rows)

    def test_what_is_watched(self) -> None:
        model = Model(6)
        source = source_of(shifted(model.choices(), 1))
        batch = source.fetch(plan_of(micro_batch()), sequences=micro_batch().fetch)
        for watched, wanted in (("first", [True, False, True, False]), ("all", [True] * 4), ("off", [False] * 4)):
            watch = Watch(watched)
            self.assertEqual([watch.begin(chunk, micro_batch(), batch) for chunk in (0, 0, 1, 1)], wanted)
        for options in ({"alarm_no_overlap": None}, {"alarm_no_overlap": 1.0}):
            watch = Watch(**options)
            with self.assertNoLogs("routing_replay_trainer"):
                run_step(watch, source, micro_batch(), model.choices())
            self.assertEqual(watch.alarms, 0)
        self.assertRaises(errors.InvalidArgumentError, Watch, "some")  # type: ignore[arg-type]

    def test_no_more_is_kept_than_a_judgement_is_made_from(self) -> None:
        model = Model(1)
        source = source_of(shifted(model.choices(), 1))
        watch = Watch()
        kept = []
        judge = watch._judge

        def judging(seen: Any, no_overlap: float) -> None:
            kept.extend([*seen.live.values(), *seen.replayed.values()])
            judge(seen, no_overlap)

        with mock.patch.object(diagnose, "_MOST_IDS", 1200), mock.patch.object(watch, "_judge", judging):
            said = self.warning(lambda: run_step(watch, source, micro_batch(), model.choices()))
        self.assertIn("one_row_late", said)
        self.assertEqual(len(kept), 2 * 3)  # Layers of the rank.
        for ids in kept:
            self.assertEqual((ids.dtype, ids.shape), (np.uint8, (1200 // (3 * TOP_K), TOP_K)))

    def test_a_judgement_that_fails_stops_nothing(self) -> None:
        model = Model(8)
        rows, watch = source_of(shifted(model.choices(), 1)), Watch()
        with mock.patch.object(diagnose, "judge_alignment", side_effect=ValueError("broken")):
            said = self.warning(lambda: run_step(watch, rows, micro_batch(), model.choices()))
            self.assertIn("could not be judged: broken", said)
            with self.assertNoLogs("routing_replay_trainer"):
                run_step(watch, rows, micro_batch(), model.choices())


class DiagnoseTest(unittest.TestCase):
    def test_alignment(self) -> None:
        model = Model(9)
        plan = plan_of(micro_batch())
        batch = source_of(model.choices()).fetch(plan, sequences=micro_batch().fetch)
        alignment = diagnose.judge_alignment(plan, [c[:-1] for c in model.choices()], np.stack(batch.indices, axis=1))
        self.assertFalse(alignment["misaligned"])
        self.assertAlmostEqual(alignment["kept"], 1.0)
        self.assertEqual(alignment["explanations"][0]["mistakes"], ["none"])
        nothing = diagnose.judge_alignment(plan, [None] * 3, np.stack(batch.indices, axis=1))
        self.assertEqual((nothing["misaligned"], nothing["sequence"]), (False, None))
        self.assertEqual(nothing["explanations"][0]["compared"], 0)
        self.assertEqual(plan.described["geometry"], {**GEOMETRY, "num_experts": EXPERTS, "top_k": TOP_K})
        live = np.stack(batch.indices, axis=1)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "recorded"):
            diagnose.judge_alignment(plan, [model.choices()[0]], live)
        for wrong in (live[0], live[:5]):
            self.assertRaises(errors.InvalidArgumentError, diagnose.judge_alignment, plan, [None] * 3, wrong)


class OnPolicyTest(unittest.TestCase):
    def setUp(self) -> None:
        self.pure = {"sample": "a", "weights": [[0, 9, 17, ""]]}
        self.mixed = {"sample": "b", "weights": [[0, 4, 15, "x"], [4, 9, 17, ""]]}

    def metrics(self, contract: Contract) -> dict[str, float]:
        return {key.removeprefix("routing_replay/"): value for key, value in contract.counters.report().items()}

    def test_strict_rejects_mixed_samples(self) -> None:
        contract = Contract("strict")
        contract.take([self.pure, {"sample": "c", "weights": []}])
        with self.assertRaisesRegex(errors.FailedPreconditionError, "rows 0 … 3 of version 15 .x., rows 4 … 8 of") as e:
            contract.take([self.pure, self.mixed])
        self.assertEqual((e.exception.sample, e.exception.field, e.exception.reason), ("b", "weights", "MIXED_WEIGHTS"))
        unknown = {"sample": "d", "weights": [[0, 1, -1, ""], [1, 2, 17, ""]]}
        with self.assertRaisesRegex(errors.FailedPreconditionError, "an unknown version"):
            contract.take([unknown])
        self.assertRaises(errors.InvalidArgumentError, Contract, "exact")

    def test_mixed_samples_are_reported(self) -> None:
        contract = Contract()
        self.assertEqual(self.metrics(contract), {})
        contract.take([self.pure, self.mixed, {"sample": 5, "weights": [[0, 3, -1, ""]]}])
        expected = {"weight_version/mixed_ratio": 1 / 3, "weight_version/oldest": 15.0}
        self.assertEqual(self.metrics(contract), expected)
        self.assertEqual(self.metrics(contract), {})

    def test_a_version_is_a_number_with_its_label(self) -> None:
        """Some engines have versions that are only strings. Their number is -1, so the label must tell them apart."""
        labels = {"sample": "e", "weights": [[0, 4, -1, "x"], [4, 9, -1, "y"]]}
        with self.assertRaisesRegex(errors.FailedPreconditionError, "sample e .*unknown version .x., .*version .y."):
            Contract("strict").take([self.pure, labels])
        contract = Contract()
        several = [{"sample": 1, "weights": [[0, 4, -1, "x"]]}, {"sample": 2}]
        several.append({"sample": 3, "weights": [[0, 4, -1, ""], [4, 9, 5, ""]]})
        contract.take([*several, labels])
        self.assertEqual(self.metrics(contract), {"weight_version/mixed_ratio": 2 / 3, "weight_version/oldest": 5.0})

    def test_all_ranks_decide_alike(self) -> None:
        """Every rank rejects a sample of several versions, although most ranks hold rows of a single version. The
        layout has sequence, context, pipeline and expert parallelism."""
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        server = Server()
        self.addCleanup(server.stop)
        with routing_replay.Client(server.endpoint) as client:
            run = client.run("policy", routing_replay.Geometry(LAYERS, EXPERTS, TOP_K, MOE))
            for name, rows in zip(SAMPLES, Model(11).choices(), strict=True):
                ids = rows[:-1].astype(np.int32)
                split = len(ids) if name == SAMPLES[1] else 9
                run.append(name, ids[:split], weight_version=5)
                run.append(name, ids[split:], row_start=split, weight_version=6, num_tokens=len(rows), seal=True)
            run.flush()
            source, whole = trainer.ServiceSource(run), micro_batch()
            for pp, cp, tp in np.ndindex(2, 2, 2):
                rank = {"pp": pp, "cp": cp, "tp": tp}
                plan = trainer.plan(GEOMETRY, whole.layout, rank=rank, split=SPLIT, ep_size=4)
                batch = source.fetch(plan, sequences=whole.fetch)
                read = {one["sample"] for one in batch.sequences}
                contract = Contract()
                contract.take(batch.sequences)
                mixed = len(read - {SAMPLES[1]}) / len(read)
                said = {"weight_version/mixed_ratio": mixed, "weight_version/oldest": 5.0}
                self.assertEqual(self.metrics(contract), said)
                with self.assertRaisesRegex(errors.FailedPreconditionError, "rows 0 … 8 of version 5, rows 9 … "):
                    Contract("strict").take(batch.sequences)
                states = [source.inspect([fetch])[0] for fetch in whole.fetch]
                versions = [{span[2] for span in state["weights"]} for state in states]
                self.assertEqual(versions, [{5, 6}, {5}, {5, 6}])
            run.close()


if __name__ == "__main__":
    unittest.main()
