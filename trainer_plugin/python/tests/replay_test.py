"""The trainer's Python package: plans against a slow reference, both sources compared, router replay in numpy."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import unittest
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer

GEOMETRY = {"num_layers": 5, "moe_layers": [1, 2, 3, 4], "num_experts": 300, "top_k": 3}
PP, CP, TP = 2, 2, 2
LENGTHS = (37, 600, 5)


def routes(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Returns random routes [rows, 4, 3] without an id twice in a row."""
    return rng.random((rows, 4, 300)).argpartition(2, axis=2)[:, :, :3].astype(np.int32)


def padded(length: int) -> int:
    multiple = 2 * CP * TP
    return (length + multiple - 1) // multiple * multiple


def local_rows(cp: int, tp: int) -> list[tuple[int, int]]:
    """Returns (sequence, position) for each local row: documents are cut zigzag, the cuts are packed, and tensor
    parallelism slices the whole."""
    rows = []
    for sequence, length in enumerate(LENGTHS):
        part = padded(length) // (2 * CP)
        for chunk in (cp, 2 * CP - 1 - cp):
            rows += [(sequence, position) for position in range(chunk * part, (chunk + 1) * part)]
    each = len(rows) // TP
    return rows[tp * each : (tp + 1) * each]


def make_plan(pp: int, cp: int, tp: int, **changes: Any) -> trainer.Plan:
    ends = np.cumsum([padded(length) for length in LENGTHS])
    micro_batch = {
        "format": "THD",
        "sequences": [{"sample": f"s{i}", "tokens": length} for i, length in enumerate(LENGTHS)],
        "cu_seqlens_padded": np.array([0, *ends]),
        "total_rows": ends[-1],
        "partition": "zigzag_per_document",
        "cp_size": CP,
        "tp_size": TP,
        "sequence_parallel": True,
    }
    return trainer.plan(
        GEOMETRY,
        micro_batch | changes,
        rank={"pp": pp, "cp": cp, "tp": tp},
        split={"pipeline_size": PP, "first_stage_layers": 2},
    )


class ReplayTest(unittest.TestCase):
    def setUp(self) -> None:
        rng = np.random.default_rng(7)
        self.ids = [routes(rng, length - 1) for length in LENGTHS]
        self.tokens = [rng.integers(0, 150_000, length).astype(np.uint32) for length in LENGTHS]

    def local_source(self) -> trainer.LocalSource:
        source = trainer.LocalSource(GEOMETRY)
        for i, ids in enumerate(self.ids):
            source.add(f"s{i}", ids, tokens=self.tokens[i])
        return source

    def check(self, plan: trainer.Plan, batch: trainer.Batch, pp: int, cp: int, tp: int) -> None:
        # The first stage has layers 0 and 1, of which layer 0 is dense.
        self.assertEqual([layer.layer for layer in plan.layers], [1] if pp == 0 else [2, 3, 4])
        expected = local_rows(cp, tp)
        self.assertEqual(plan.rows, len(expected))
        for row, (sequence, position) in enumerate(expected):
            length = LENGTHS[sequence]
            if position >= length:
                self.assertEqual(batch.states[row], trainer.PAD)
            elif position == length - 1:
                self.assertEqual(batch.states[row], trainer.UNRECORDED)
            else:
                self.assertEqual(batch.states[row], trainer.REPLAYED)
                for slot, layer in enumerate(plan.layers):
                    np.testing.assert_array_equal(batch.indices[slot][row], self.ids[sequence][position, layer.ordinal])
        self.assertEqual(batch.replayed_rows + batch.unrecorded_rows + batch.pad_rows, plan.rows)

    def test_local_source_on_every_rank(self) -> None:
        source = self.local_source()
        for rank in np.ndindex(PP, CP, TP):
            with self.subTest(rank=rank):
                plan = make_plan(*rank)
                self.check(plan, source.fetch(plan), *rank)

    def test_service_source_gives_the_same(self) -> None:
        import routing_replay

        sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
        from support import Server

        server = Server()
        self.addCleanup(server.stop)
        with routing_replay.Client(server.endpoint) as client:
            run = client.run("trainer", routing_replay.Geometry(5, 300, 3, [1, 2, 3, 4]))
            for i, ids in enumerate(self.ids):
                run.append(f"s{i}", ids, tokens=self.tokens[i][:-1], seal=True)
            run.flush()
            source, local = trainer.ServiceSource(run), self.local_source()
            sequences = [trainer.FetchSequence(f"s{i}", len(t), t) for i, t in enumerate(self.tokens)]
            for rank in np.ndindex(PP, CP, TP):
                plan = make_plan(*rank)
                batch = source.fetch(plan, sequences=sequences)
                self.check(plan, batch, *rank)
                for ours, theirs in zip(batch.indices, local.fetch(plan).indices, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
            other = self.tokens[1].copy()
            other[3] += 1
            sequences[1] = trainer.FetchSequence("s1", len(other), other)
            with self.assertRaises(errors.FailedPreconditionError) as caught:
                source.fetch(make_plan(0, 0, 0), sequences=sequences)
            self.assertEqual((caught.exception.reason, caught.exception.sample), ("OTHER_TOKENS", "s1"))
            run.close()

    def test_a_missing_sample(self) -> None:
        source = self.local_source()
        self.assertTrue(source.remove("s1"))
        self.assertFalse(source.remove("s1"))
        plan = make_plan(0, 0, 0)
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            source.fetch(plan)
        self.assertEqual((caught.exception.reason, caught.exception.sample), ("NO_SAMPLE", "s1"))
        batch = source.fetch(plan, missing="live")
        self.assertEqual(batch.fallback_sequences, 1)
        for row, (sequence, position) in enumerate(local_rows(0, 0)):
            if sequence == 1 and position < LENGTHS[1]:
                self.assertEqual(batch.states[row], trainer.UNRECORDED)
        self.assertEqual([s["status"] for s in batch.sequences if s["sample"] == "s1"], ["NOT_FOUND"])

    def test_bad_input_names_its_place(self) -> None:
        source = self.local_source()
        bad = self.ids[1].copy()
        bad[300, 2, 1] = 300
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            source.add("s1", bad)
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((error.reason, error.row, error.layer), ("ID_RANGE", 300, 3))
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            source.add("s1", bad.astype(np.float32))
        self.assertEqual(caught.exception.reason, "DTYPE")
        with self.assertRaises(errors.InvalidArgumentError) as caught:
            make_plan(0, 0, 0, cp_size="two")
        self.assertEqual(caught.exception.field, "micro_batch.cp_size")
        plan = make_plan(1, 1, 1)
        self.check(plan, source.fetch(plan), 1, 1, 1)  # The rejected calls have left the stored rows unchanged.

    def test_padding_as_a_policy_predicts(self) -> None:
        sequences = [{"sample": f"s{i}", "tokens": length} for i, length in enumerate(LENGTHS)]
        sizes = {"cp_size": CP, "tp_size": TP, "sequence_parallel": True}
        predicted = trainer.plan(
            GEOMETRY, {"sequences": sequences, **sizes, "padding": {"policy": "verl"}}, rank={"cp": 1, "tp": 1}
        )
        given = make_plan(0, 1, 1)
        self.assertEqual(predicted.described["layout"], given.described["layout"])
        self.assertEqual(predicted.described["row_map"], given.described["row_map"])
        self.assertEqual(predicted.described["warnings"], [])
        other = make_plan(0, 1, 1, padding={"policy": "slime"})
        self.assertEqual(other.described["layout"], given.described["layout"])
        self.assertRegex(other.described["warnings"][0], r"cu_seqlens_padded\[\d\] is \d+, slime gives \d+")

    def test_local_source_needs_no_grpc(self) -> None:
        code = (
            "import sys, numpy, routing_replay_trainer as t; g = {'num_layers': 1, 'num_experts': 8, 'top_k': 2};"
            "s = t.LocalSource(g); s.add('a', numpy.array([[[1, 2]], [[3, 4]]]));"
            "p = t.plan(g, {'format': 'THD', 'sequences': [{'sample': 'a', 'tokens': 3}], 'cu_seqlens_padded': [0, 3],"
            " 'total_rows': 3, 'partition': 'contiguous'});"
            "assert s.fetch(p).indices[0][:2].tolist() == [[1, 2], [3, 4]];"
            "assert not {'grpc', 'google.protobuf'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class RouterTest(unittest.TestCase):
    def setUp(self) -> None:
        rng = np.random.default_rng(3)
        self.logits = rng.normal(size=(20, 64)).astype(np.float32)
        self.indices = rng.random((20, 64)).argpartition(5, axis=1)[:, :6].astype(np.uint8)

    def reference(self, router: trainer.Router, logits: np.ndarray) -> np.ndarray:
        """Computes the expected probabilities [N, E] in float64."""
        x = logits.astype(np.float64)
        chosen = np.take_along_axis(x, self.indices.astype(np.int64), 1)
        if router.pre_softmax:
            scores = np.exp(x) / np.exp(x).sum(1, keepdims=True)
            p = np.take_along_axis(scores, self.indices.astype(np.int64), 1)
        elif router.score_function == "softmax":
            p = np.exp(chosen) / np.exp(chosen).sum(1, keepdims=True)
        else:
            sigmoid = router.score_function == "sigmoid"
            a = 1 / (1 + np.exp(-chosen)) if sigmoid else np.sqrt(np.log1p(np.exp(chosen)))
            p = a / a.sum(1, keepdims=True)
        probs = np.zeros_like(x)
        np.put_along_axis(probs, self.indices.astype(np.int64), p * (router.scaling_factor or 1), 1)
        return probs

    def test_against_numpy(self) -> None:
        for options in (
            {},
            {"pre_softmax": True},
            {"score_function": "sigmoid", "scaling_factor": 2.5},
            {"score_function": "sqrtsoftplus", "scaling_factor": 1.5},
        ):
            router = trainer.Router(64, 6, **options)
            for dtype in (np.float32, np.float64):
                with self.subTest(options=options, dtype=dtype):
                    logits = self.logits.astype(dtype)
                    out = trainer.router_replay_forward(router, logits, self.indices)
                    self.assertEqual(out.probs.dtype, dtype)
                    np.testing.assert_allclose(out.probs, self.reference(router, logits), atol=2e-6)
                    self.assertEqual(out.routing_map.sum(), 20 * 6)
                    np.testing.assert_array_equal(out.chosen, self.indices)
                    self.assertEqual(out.counters["replayed_rows"], 20)

    def test_bfloat16(self) -> None:
        router = trainer.Router(64, 6)
        bits = (self.logits.view(np.uint32) >> 16).astype(np.uint16)
        logits = (bits.astype(np.uint32) << 16).view(np.float32)
        for rounding in ("once", "each_step"):
            out = trainer.router_replay_forward(trainer.Router(64, 6, rounding=rounding), bits, self.indices)
            probs = (out.probs.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_allclose(probs, self.reference(router, logits), rtol=1 / 128)

    def test_live_rows(self) -> None:
        states = np.full(20, trainer.UNRECORDED, np.uint8)
        states[::3] = trainer.LIVE
        out = trainer.router_replay_forward(trainer.Router(64, 6), self.logits, self.indices, states)
        np.testing.assert_array_equal(out.chosen, np.argsort(-self.logits, 1, kind="stable")[:, :6])
        self.assertEqual(out.counters["live_rows"], 20)

    def test_what_does_not_fit_is_rejected(self) -> None:
        router = trainer.Router(64, 6)
        for field, call in {
            "router.logits": lambda: trainer.router_replay_forward(router, self.logits[:, :9], self.indices),
            "router.indices": lambda: trainer.router_replay_forward(router, self.logits, self.indices[:, :5]),
            "router.top_k": lambda: trainer.router_replay_forward(
                trainer.Router(64, 65), self.logits, np.zeros((20, 65), np.uint8)
            ),
            "router.num_experts": lambda: trainer.router_replay_forward(
                trainer.Router(64.0, 6),
                self.logits,
                self.indices,  # type: ignore[arg-type]
            ),
            "router.group_topk": lambda: trainer.router_replay_forward(
                trainer.Router(64, 6, num_groups=1, group_topk=2**32 + 1), self.logits, self.indices
            ),
            "router.score_function": lambda: trainer.router_replay_forward(
                trainer.Router(64, 6, score_function=[]),
                self.logits,
                self.indices,  # type: ignore[arg-type]
            ),
        }.items():
            with self.subTest(field=field), self.assertRaises(errors.InvalidArgumentError) as caught:
                call()
            self.assertEqual(caught.exception.field, field)
        for dtype in (np.float64, np.float16, np.uint16, np.int32):
            with self.subTest(dtype=dtype), self.assertRaises(errors.InvalidArgumentError) as caught:
                trainer.router_replay_forward(router, self.logits, self.indices, expert_bias=np.zeros(64, dtype))
            self.assertEqual((caught.exception.field, caught.exception.reason), ("router.expert_bias", "DTYPE"))


if __name__ == "__main__":
    unittest.main()
