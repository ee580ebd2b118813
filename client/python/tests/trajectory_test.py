"""Trajectories of several turns, against a real server and a fake engine."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import os
import time
import unittest
from typing import Any

import numpy as np
from support import Gate, ServerTest, random_routes

import routing_replay as rr
from routing_replay import aio
from routing_replay.engines import sglang, vllm

GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4, moe_layers=[1, 2, 3])


class Engine:
    """Makes routes that depend on the tokens so far and on the version of the weights, as a model's routes do."""

    def __init__(self) -> None:
        self.version = 1

    def rows(self, tokens: list[int], start: int = 0, version: int | None = None) -> np.ndarray:
        """Returns the rows start … T - 2 of a context of T tokens."""
        rows = [self._row(tuple(tokens[: i + 1]), version or self.version) for i in range(start, len(tokens) - 1)]
        return np.array(rows, np.int32).reshape(-1, 3, 4)

    @staticmethod
    def _row(history: tuple[int, ...], version: int) -> np.ndarray:
        return random_routes(np.random.default_rng([version, *history]), 1, 3, 64, 4)[0]


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, length).tolist()


class TrajectoryTest(ServerTest):
    def open(self, endpoint: str | None = None, **options: Any) -> rr.Run:
        client = rr.Client(endpoint or self.server.endpoint, call_timeout=2)
        self.addCleanup(client.close)
        return client.run(self.run_name, GEOMETRY, **options)

    def open_gate(self, gate: Gate, run: rr.Run) -> None:
        gate.open()
        deadline = time.monotonic() + 60
        while True:
            try:
                run.stat_many(["a"])
                return
            except rr.RoutingReplayError:
                self.assertLess(time.monotonic(), deadline)

    def check(self, run: rr.Run, sample: str, expected: np.ndarray, **fields: Any) -> rr.SampleRows:
        run.flush()
        got = run.read_one(sample)
        self.assertTrue(got.ok, got.message)
        np.testing.assert_array_equal(got.rows, expected)
        for name, value in fields.items():
            self.assertEqual(getattr(got, name), value, name)
        return got

    def test_turns(self) -> None:
        """Adds turns that deliver the rows of the whole context, or only the new rows, while the weights change. The
        row of a turn's last token comes with the next turn."""
        for whole in (True, False):
            run, engine = self.open(), Engine()
            trajectory = run.trajectory(f"whole/{whole}", group=7)
            context, versions, conflicts = tokens_of(9), [], 0
            expected = np.empty((0, 3, 4), np.int32)
            for turn in range(5):
                engine.version = 1 + turn // 2
                start = 0 if whole else trajectory.next_row(context)
                self.assertEqual(trajectory.next_row(context), len(expected))
                context = context + tokens_of(4 + turn, seed=turn)  # The answer.
                told = trajectory.add(
                    engine.rows(context, start), tokens=context, start=start, weight_version=engine.version
                )
                self.assertEqual(told.appended, ((len(expected), len(context) - 1),))
                self.assertEqual(told.repeated_rows, len(expected) if whole else 0)
                conflicts += told.conflicting_rows
                # If the engine computes the whole context again under newer weights, the rows that were appended first
                # are kept.
                fresh = engine.rows(context, len(expected))
                versions += [engine.version] * len(fresh)
                expected = np.concatenate([expected, fresh])
                context = context + tokens_of(3, seed=50 + turn)  # A tool's answer.
            context = context[:-3]
            told = trajectory.seal()
            self.assertEqual(told.num_tokens, len(context))
            got = self.check(run, trajectory.sample, expected, num_tokens=len(context), revision=0)
            self.assertEqual([v for w in got.weights for v in [w.version] * (w.end - w.begin)], versions)
            state = run.stat(trajectory.sample)
            self.assertEqual(state.group, 7)
            self.assertEqual(state.token_check, rr.token_check(context[:-1]))
            self.assertEqual(conflicts > 0, whole)

    def test_token_deltas(self) -> None:
        run, engine = self.open(), Engine()
        trajectory = run.trajectory("a")
        context = tokens_of(30)
        trajectory.add(engine.rows(context[:10]), tokens=context[:10])
        trajectory.add(engine.rows(context[:20], 9), tokens=context[10:20], tokens_start=10, start=9)
        trajectory.add(engine.rows(context, 19), tokens=context[20:], tokens_start=20, start=19, seal=True)
        self.check(run, "a", engine.rows(context), num_tokens=30)
        with self.assertRaises(rr.InvalidArgumentError):
            trajectory.add(None, tokens=[1], tokens_start=31)

    def test_retokenised_history(self) -> None:
        run, engine = self.open(), Engine()
        trajectory = run.trajectory("a")
        context = tokens_of(40)
        trajectory.add(engine.rows(context), tokens=context)
        changed = [*context[:25], 7777, *context[26:], 5, 6]
        self.assertEqual(trajectory.next_row(changed), 25)
        # Errors are found before rows are truncated.
        with self.assertRaises(rr.InvalidArgumentError) as wrong:
            trajectory.add(np.full((16, 3, 4), 64, np.int32), tokens=changed, start=25)
        self.assertEqual(wrong.exception.reason, "ID_RANGE")
        run.flush()
        self.assertEqual(run.stat("a").revision, 0)
        self.assertEqual(trajectory.rows, 39)
        told = trajectory.add(engine.rows(changed, 25), tokens=changed, start=25, seal=True)
        self.assertEqual((told.retokenised_at, told.truncated_rows, told.appended), (25, 14, ((25, 41),)))
        self.check(run, "a", engine.rows(changed), num_tokens=42, revision=1)
        # The last token was never routed: another token in its place truncates nothing.
        other = run.trajectory("b")
        other.add(engine.rows(context), tokens=context)
        told = other.add(engine.rows([*context[:-1], 3, 4], 39), tokens=[*context[:-1], 3, 4], start=39)
        self.assertEqual((told.retokenised_at, told.truncated_rows, told.appended), (39, 0, ((39, 40),)))

    def test_aborts(self) -> None:
        run, engine = self.open(), Engine()
        trajectory = run.trajectory("a")
        context = tokens_of(50)
        trajectory.add(engine.rows(context[:20]), tokens=context[:20])
        abort = functools.partial(trajectory.add, outcome="aborted")
        self.assertEqual(abort().appended, ())
        self.assertEqual(abort(None, tokens=context[:23]).appended, ())
        told = abort(engine.rows(context[:30], 19)[:4], tokens=context[:30], start=19)
        self.assertEqual(told.appended, ((19, 23),))
        self.assertEqual(trajectory.next_row(context[:30]), 23)
        with self.assertRaises(rr.FailedPreconditionError) as gap:
            trajectory.add(engine.rows(context, 25), tokens=context, start=25)
        self.assertEqual((gap.exception.reason, gap.exception.row), ("GAP", 23))
        with self.assertRaises(rr.InvalidArgumentError) as short:
            trajectory.add(engine.rows(context, 23)[:-1], tokens=context, start=23)
        self.assertEqual(short.exception.reason, "ROW_COUNT")
        told = trajectory.add(engine.rows(context, 20), tokens=context, start=20, outcome="preempted", weight_version=2)
        self.assertEqual((told.appended, told.repeated_rows, told.conflicting_rows), (((23, 49),), 3, 0))
        trajectory.seal()
        self.check(run, "a", engine.rows(context), num_tokens=50)

    def test_missing_rows(self) -> None:
        run, engine = self.open(), Engine()
        context = tokens_of(30)
        trajectory = run.trajectory("a")
        told = trajectory.add(engine.rows(context, 5), tokens=context, start=5, missing="unrecorded")
        self.assertEqual((told.appended, told.unrecorded_rows), (((0, 5), (5, 29)), 5))
        late = trajectory.add(engine.rows(context), tokens=context)
        self.assertEqual((late.appended, late.late_rows), ((), 5))
        more = [*context, 1, 2]
        trajectory.add(None, tokens=more)
        with self.assertRaises(rr.FailedPreconditionError) as open_rows:
            trajectory.seal()
        self.assertEqual(open_rows.exception.row, 29)
        trajectory.seal(missing="unrecorded")
        got = self.check(run, "a", engine.rows(context, 5), num_tokens=32)
        self.assertEqual(got.unrecorded, ((0, 5), (29, 31)))
        # Rows as an adapter returns them: the first rows came from the engine's prefix cache and are missing, and there
        # is a surplus row for the last token.
        file = io.BytesIO()
        rows = np.concatenate([engine.rows(context, 10), engine.rows([*context, 3], 29)])
        np.save(file, rows.astype(np.uint8))
        recorded = rr.RecordedRows(
            rr.Payload(base64.b64encode(file.getvalue()), "BASE64_NPY"),
            row_start=0,
            missing_rows=10,
            weights=(rr.WeightSpan(0, 20, 4), rr.WeightSpan(20, 29, 5, "five")),
            engine="vllm 0.33.0",
            tokens=np.array(context, np.uint32),
        )
        told = run.trajectory("b").add(recorded, seal=True)
        self.assertEqual((told.surplus_rows, told.unrecorded_rows), (1, 10))
        got = self.check(run, "b", engine.rows(context, 10), num_tokens=30, unrecorded=((0, 10),))
        self.assertEqual(got.weights, (rr.WeightSpan(0, 20, 4), rr.WeightSpan(20, 29, 5, "five")))
        self.assertEqual(run.stat("b").engine, "vllm 0.33.0")

    def test_conflicts(self) -> None:
        engine, context = Engine(), tokens_of(30)
        for strict in (False, True):
            client = rr.Client(self.server.endpoint)
            self.addCleanup(client.close)
            run = client.run(f"{self.run_name}/{strict}", GEOMETRY, strict=strict)
            trajectory = run.trajectory("a")
            trajectory.add(engine.rows(context[:20]), tokens=context[:20])
            newer = engine.rows(context, version=2)
            if strict:
                with self.assertRaises(rr.AlreadyExistsError) as conflict:
                    trajectory.add(newer, tokens=context)
                self.assertEqual((conflict.exception.reason, conflict.exception.row), ("CONFLICTING_ROWS", 0))
                continue
            told = trajectory.add(newer, tokens=context, weight_version=2, seal=True)
            self.assertEqual((told.conflicting_rows, told.appended), (19, ((19, 29),)))
            self.check(run, "a", np.concatenate([engine.rows(context[:20]), newer[19:]]))
            # The same call again changes nothing.
            again = trajectory.add(newer, tokens=context, weight_version=2, seal=True)
            self.assertEqual((again.appended, again.repeated_rows), ((), 29))
            with self.assertRaises(rr.FailedPreconditionError) as sealed:
                trajectory.add(None, tokens=[*context, 1])
            self.assertEqual(sealed.exception.reason, "SEALED")

    def test_groups_share_what_is_the_same(self) -> None:
        run, engine = self.open(), Engine()
        prompt = tokens_of(600)
        first = run.trajectory("0", group=3)
        answer = prompt + tokens_of(20, 1)
        first.add(engine.rows(answer), tokens=answer, seal=True)
        siblings = [first.fork(f"{i}", wait=10) for i in range(1, 5)]
        for i, sibling in enumerate(siblings, 1):
            answer = prompt + tokens_of(20, 1 + i)
            rows = engine.rows(answer)
            if i == 4:  # The same prompt, but other routes from row 300 on.
                rows[300:] = engine.rows(answer, 300, version=9)
            told = sibling.add(rows, tokens=answer, seal=True)
            self.assertEqual(told.shared_rows, 300 if i == 4 else 600)
            got = self.check(run, f"{i}", rows, num_tokens=620)
            self.assertEqual(got.revision, 0)
        states = {state.sample: state for state in run.list(groups=(3, 4))}
        self.assertEqual(len(states), 5)
        self.assertLess(states["1"].stored_bytes, states["0"].stored_bytes / 2)
        # A fork of a fork. Its engine delivers only the rows from the one on where the fork begins to differ.
        branch = siblings[0].fork("1/1")
        context = prompt + tokens_of(20, 2) + [1, 2, 3]
        start = branch.next_row(context)
        self.assertEqual(start, 619)
        told = branch.add(engine.rows(context, start), tokens=context, start=start)
        self.assertEqual((told.shared_rows, told.appended), (619, ((619, 622),)))
        self.check(run, "1/1", engine.rows(context))
        # No common tokens, so no shared rows.
        other = first.fork("other")
        context = tokens_of(50, 77)
        self.assertEqual(other.add(engine.rows(context), tokens=context).shared_rows, 0)
        self.check(run, "other", engine.rows(context))

    def test_cut(self) -> None:
        run, engine = self.open(), Engine()
        context = tokens_of(60)
        trajectory = run.trajectory("a")
        trajectory.add(engine.rows(context), tokens=context, seal=True)
        told = trajectory.seal(40)
        self.assertEqual((told.num_tokens, told.truncated_rows, told.retokenised_at), (40, 20, 40))
        self.check(run, "a", engine.rows(context[:40]), num_tokens=40, revision=1)
        trajectory.seal(30)
        self.check(run, "a", engine.rows(context[:30]), num_tokens=30, revision=2)
        for wrong in (0, 31, "7", 2.0):
            with self.assertRaises(rr.InvalidArgumentError):
                trajectory.seal(wrong)

    def test_trouble(self) -> None:
        """Appends that fail, a truncation that is rejected, and rows that are sent again because they were lost."""
        gate = Gate(self.server)
        self.addCleanup(gate.shut)
        run, engine = self.open(gate.endpoint), Engine()
        appender = run._kept_appender = run.appender(append_timeout=0.5)
        context = tokens_of(40)
        trajectory = run.trajectory("a")
        trajectory.add(engine.rows(context[:20]), tokens=context[:20])
        appender.flush()
        gate.shut()
        trajectory.add(engine.rows(context[:30]), tokens=context[:30])
        with self.assertRaises(rr.RoutingReplayError):
            appender.flush()
        self.assertEqual(trajectory.rows, 29)
        self.open_gate(gate, run)
        told = trajectory.add(engine.rows(context), tokens=context)
        self.assertEqual(told.appended, ((19, 39),))
        appender.flush()
        gate.shut()
        changed = [*context[:10], 5, *context[11:]]
        with self.assertRaises(rr.RoutingReplayError):
            trajectory.add(engine.rows(changed), tokens=changed)
        self.open_gate(gate, run)
        told = trajectory.add(engine.rows(changed), tokens=changed, seal=True)
        self.assertEqual(told.appended, ((10, 39),))
        appender.flush()
        self.check(run, "a", engine.rows(changed), num_tokens=40, revision=1)

    def test_another_writer(self) -> None:
        engine, context = Engine(), tokens_of(40)
        before = self.open()
        before.trajectory("a").add(engine.rows(context[:20]), tokens=context[:20])
        before.flush()
        run = self.open()
        resumed = run.trajectory("a", existing="resume")
        told = resumed.add(engine.rows(context, version=2), tokens=context)
        self.assertEqual((told.appended, told.uncompared_rows), (((19, 39),), 19))
        expected = np.concatenate([engine.rows(context[:20]), engine.rows(context, 19, version=2)])
        self.check(run, "a", expected, revision=0)
        other = tokens_of(40, 5)
        with self.assertRaises(rr.AlreadyExistsError) as tokens:
            run.trajectory("a", existing="resume").add(engine.rows(other), tokens=other)
        self.assertEqual(tokens.exception.reason, "OTHER_TOKENS")
        # A trajectory that does not know of the stored sample gets the server's error, and repeats it from then on.
        unaware = run.trajectory("a")
        unaware.add(engine.rows(other), tokens=other)
        with self.assertRaises(rr.AlreadyExistsError):
            run.flush()
        with self.assertRaises(rr.AlreadyExistsError):
            unaware.add(engine.rows([*other, 1], 39), tokens=[*other, 1], start=39)
        told = run.trajectory("a", existing="replace").add(engine.rows(other), tokens=other, seal=True)
        self.assertEqual(told.truncated_rows, 39)
        self.check(run, "a", engine.rows(other), num_tokens=40, revision=1)

    def test_rows_that_the_queue_does_not_take(self) -> None:
        run, engine = self.open(), Engine()
        appender = run._kept_appender = run.appender(max_queued_bytes=1, on_full="drop")
        trajectory = run.trajectory("a")
        context = tokens_of(400)
        dropped = 0
        for end in range(100, 401, 100):
            start = trajectory.next_row(context[:end])
            told = trajectory.add(engine.rows(context[:end], start), tokens=context[:end], start=start)
            dropped += told.dropped_rows
        trajectory.seal()
        appender.flush()
        state = run.stat("a")
        self.assertEqual((state.num_tokens, state.committed_rows), (400, 399))
        self.assertEqual(sum(end - begin for begin, end in state.unrecorded), dropped)

    def test_a_queue_that_rejects(self) -> None:
        gate = Gate(self.server)
        self.addCleanup(gate.shut)
        run, engine = self.open(gate.endpoint), Engine()
        appender = run._kept_appender = run.appender(max_queued_bytes=1, on_full="raise")
        trajectory = run.trajectory("a")
        context = tokens_of(60)
        gate.shut()
        trajectory.add(engine.rows(context[:40]), tokens=context[:40])
        with self.assertRaises(rr.ResourceExhaustedError):
            trajectory.add(engine.rows(context), tokens=context)
        self.open_gate(gate, run)
        appender.flush()
        told = trajectory.add(engine.rows(context), tokens=context, seal=True)
        self.assertEqual(told.appended, ((39, 59),))
        appender.flush()
        self.check(run, "a", engine.rows(context), num_tokens=60)

    def test_rows_that_an_adapter_declares_unrecorded(self) -> None:
        run, engine = self.open(), Engine()
        context = tokens_of(30)
        null = {"prompt_token_ids": context[:20], "choices": [{"token_ids": context[20:], "routed_experts": None}]}
        recorded = vllm.rows(null, absent="unrecorded")
        told = run.trajectory("a").add(recorded, seal=True)
        self.assertEqual((told.unrecorded_rows, told.appended), (29, ((0, 29),)))
        run.append("b", recorded, seal=True)
        # Rows 0 … 13 of "c" are stored, so the second turn leaves only rows 14 … 28 unrecorded.
        trajectory = run.trajectory("c")
        trajectory.add(engine.rows(context[:15]), tokens=context[:15])
        self.assertEqual(trajectory.add(recorded, seal=True).unrecorded_rows, 15)
        # Until the sample is sealed, another turn may still deliver the missing rows.
        open_ended = run.trajectory("d")
        self.assertEqual(open_ended.add(recorded).appended, ())
        open_ended.add(engine.rows(context), seal=True)
        run.flush()
        self.assertEqual([run.stat(sample).unrecorded for sample in "abcd"], [((0, 29),), ((0, 29),), ((14, 29),), ()])
        # Rows that were not declared missing are still an error.
        with self.assertRaises(rr.FailedPreconditionError):
            run.trajectory("e").add(None, tokens=context, seal=True)

    def test_the_example(self) -> None:
        """Plays an agent of several turns, with an engine that answers like SGLang."""
        run, routes = self.open(), Engine()
        version = 3

        def generate(input_ids: list[int], return_routed_experts: bool, routed_experts_start_len: int) -> Any:
            output = tokens_of(5, seed=len(input_ids))
            rows = np.zeros((len(input_ids) + 4 - routed_experts_start_len, 4, 4), np.int32)
            rows[:, 1:] = routes.rows(input_ids + output, routed_experts_start_len)
            meta = {"prompt_tokens": len(input_ids), "completion_tokens": 5, "finish_reason": {"type": "stop"}}
            meta["routed_experts"] = base64.b64encode(rows.tobytes()).decode()
            return {"output_ids": output, "meta_info": meta}

        trajectory = run.trajectory("step7/agent3", group=7)
        context = tokens_of(9)
        for turn in range(3):
            start = trajectory.next_row(context)
            answer = generate(input_ids=context, return_routed_experts=True, routed_experts_start_len=start)
            recorded = sglang.rows(answer, run.geometry, start_len=start, prompt_token_ids=context)
            trajectory.add(recorded, weight_version=version)
            context = context + answer["output_ids"]
            if turn == 2:
                break
            context = context + tokens_of(4, seed=turn)
        trajectory.seal()
        self.check(run, "step7/agent3", routes.rows(context), num_tokens=len(context))
        text = answer["meta_info"]["routed_experts"]
        with self.assertRaisesRegex(rr.InvalidArgumentError, r"sglang\.rows"):
            run.trajectory("text").add(text, tokens=context)

    def test_arguments(self) -> None:
        run = self.open()
        rows, context = Engine().rows(tokens_of(9)), tokens_of(9)
        for options in (
            {"tokens": "abc"},
            {"tokens": [1.5]},
            {"tokens": context, "start": -1},
            {"tokens": context, "start": "0"},
            {"tokens": context, "outcome": "lost"},
            {"tokens": context, "missing": "ignore"},
            {"tokens": context, "weights": [(0, 3, 1)]},
            {"tokens": context, "weights": [rr.WeightSpan(3, 5, 1), rr.WeightSpan(0, 3, 1)]},
            {"tokens": context, "take": (0, 99)},
            {"tokens": context, "layers": "some"},
            {"tokens": context, "weight_version": 1.0},
            {"tokens": context[:-2]},
        ):
            with self.subTest(options), self.assertRaises(rr.InvalidArgumentError):
                run.trajectory("a").add(rows, **options)
        for options in ({"existing": "maybe"}, {"group": "x"}):
            with self.subTest(options), self.assertRaises(rr.InvalidArgumentError):
                run.trajectory("a", **options)
        for sample in ("", "a b", 7):
            with self.subTest(sample), self.assertRaises(rr.InvalidArgumentError):
                run.trajectory(sample)
            with self.subTest(sample), self.assertRaises(rr.InvalidArgumentError):
                run.trajectory("a").fork(sample)
        self.assertEqual(run.list(), [])
        self.assertEqual(repr(run.trajectory("a")), "<Trajectory a: 0 tokens, 0 rows>")

    def test_fork_of_the_process(self) -> None:
        run, engine = self.open(), Engine()
        trajectory = run.trajectory("a")
        context = tokens_of(20)
        trajectory.add(engine.rows(context), tokens=context)
        pid = os.fork()
        if pid == 0:
            try:
                trajectory.add(None, tokens=[*context, 1])
                os._exit(1)
            except rr.FailedPreconditionError:
                os._exit(0)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.check(run, "a", engine.rows(context))

    def test_asyncio(self) -> None:
        engine, context = Engine(), tokens_of(300)
        changed = [*context[:250], 9999, *context[251:], 1]

        async def agent(run: aio.Run, name: str) -> None:
            trajectory = run.trajectory(name, group=1)
            for end in range(100, 301, 50):
                start = trajectory.next_row(context[:end])
                rows = engine.rows(context[:end], start)
                await trajectory.add(rows, tokens=context[:end], start=start, weight_version=end)
                await trajectory.add(outcome="aborted")
            told = await trajectory.add(engine.rows(changed), tokens=changed)
            self.assertEqual((told.retokenised_at, told.truncated_rows), (250, 49))
            branch = await trajectory.fork(f"{name}/branch", wait=10)
            sibling = await trajectory.fork(f"{name}/sibling", wait=10)
            for other in (branch, sibling):
                told = await other.add(engine.rows(context), tokens=context, seal=True)
                self.assertEqual(told.shared_rows, 250)
            await trajectory.seal()
            await trajectory.seal(260)
            self.assertEqual((trajectory.num_tokens, trajectory.rows, trajectory.sealed), (260, 259, True))
            with self.assertRaises(rr.FailedPreconditionError):
                await trajectory.add(None, tokens=context)

        async def main() -> None:
            async with aio.Client(self.server.endpoint) as client:
                run = await client.run(self.run_name, GEOMETRY)
                await asyncio.gather(*(agent(run, f"agent{i}") for i in range(4)))
                await run.flush()
                for i in range(4):
                    got = await run.read_one(f"agent{i}")
                    np.testing.assert_array_equal(got.rows, engine.rows(changed[:260]))
                    got = await run.read_one(f"agent{i}/branch")
                    np.testing.assert_array_equal(got.rows, engine.rows(context))

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
