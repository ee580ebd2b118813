"""Outputs of engines that come in several events, or are malformed: a malformed output loses its own rows only, and no
row is guessed."""

from __future__ import annotations

import asyncio
import base64
import collections
import logging
import threading
import unittest
from types import SimpleNamespace
from typing import Any

import numpy as np
from support import ServerTest, random_routes

from routing_replay import Client, Geometry, InvalidArgumentError, NotFoundError
from routing_replay.engines import attach
from routing_replay.engines.attach._attachment import read
from routing_replay.engines.attach._sglang import DELTAS, _Collector

LAYERS, EXPERTS, TOP_K = 4, 32, 4
GEOMETRY = Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K)
RNG = np.random.default_rng(11)
STOP, LENGTH = {"type": "stop"}, {"type": "length"}


def routes_of(tokens: int) -> np.ndarray:
    return random_routes(RNG, tokens - 1, LAYERS, EXPERTS, TOP_K)


def text_of(routes: np.ndarray) -> str:
    return base64.b64encode(routes.astype("<i4").tobytes()).decode()


def event(name: str, prompt: int, count: int | None, finish: Any, ids: Any = None, rows: Any = None) -> dict[str, Any]:
    """Makes one event of a request, with the fields of SGLang's output."""
    meta = {"id": name, "prompt_tokens": prompt, "finish_reason": finish}
    if count is not None:
        meta["completion_tokens"] = count
    if rows is not None:
        meta["routed_experts"] = text_of(rows)
    return {"meta_info": meta} | ({} if ids is None else {"output_ids": ids})


class Engine:
    """Like sglang.Engine: returns the answers that it is given."""

    def __init__(self, answer: Any, **settings: Any) -> None:
        self.answer = answer
        self.server_args = SimpleNamespace(**settings)

    def generate(self, input_ids: Any = None, stream: bool = False) -> Any:
        return iter(self.answer) if stream else self.answer


class StreamTest(unittest.TestCase):
    """Streams whose events hold all ids so far, or only the new ones, as the engine's settings say."""

    def test_against_the_truth(self) -> None:
        """Random streams. In some, a stop token is cut off; in others, the settings do not match the events. Rows that
        are not rejected must be the right ones."""
        seen: collections.Counter[bool] = collections.Counter()
        for number in range(1000):
            prompt, ids = RNG.integers(3, size=RNG.integers(1, 4)).tolist(), RNG.integers(3, size=RNG.integers(1, 7))
            new_alone, cut, wrong = bool(RNG.integers(2)), RNG.random() < 0.2, RNG.random() < 0.2
            ends = sorted({len(ids), *RNG.choice(np.arange(1, len(ids) + 1), RNG.integers(1, len(ids) + 1)).tolist()})
            says = DELTAS[number % len(DELTAS)]
            engine = SimpleNamespace(server_args=SimpleNamespace(**{says: new_alone != wrong}))
            routes, found = routes_of(len(prompt) + len(ids)), []
            collector = _Collector({"input_ids": prompt}, engine)
            for begin, end in zip([0, *ends], ends, strict=False):
                is_last = end == len(ids)
                told = ids[begin if new_alone else 0 : end - (is_last and cut)].tolist()
                output = event("x", len(prompt), end, STOP if is_last else None, told, routes if is_last else None)
                found += read(collector, output)[0]
            (finished,) = found
            try:
                recorded = finished.describe(GEOMETRY)
            except InvalidArgumentError:
                self.assertTrue(cut or wrong)
                seen[False] += 1
                continue
            truth = [*prompt, *ids.tolist()]
            self.assertEqual((finished.num_tokens, recorded.take), (len(truth), (0, len(truth) - 1)))
            if not (cut and wrong):  # Else wrong ids may have the right number by chance.
                self.assertEqual(recorded.tokens.tolist(), truth)
            seen[True] += 1
        self.assertGreater(seen[False], 100)
        self.assertGreater(seen[True], 500)


class OutputsTest(ServerTest):
    def setUp(self) -> None:
        client = Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, GEOMETRY)

    def play(self, answer: Any, input_ids: Any, stream: bool = False, **settings: Any) -> attach.Attachment:
        engine = Engine(answer, **settings)
        attachment = attach.sglang(engine, self.run_)
        self.addCleanup(attachment.detach)
        outputs = engine.generate(input_ids=input_ids, stream=stream)
        if stream:
            list(outputs)
        return attachment

    def stored(self, sample: str, routes: np.ndarray) -> None:
        rows = self.run_.read_one(sample)
        self.assertEqual((rows.status, rows.num_tokens), ("OK", len(routes) + 1))
        np.testing.assert_array_equal(rows.rows, routes)

    def test_streams(self) -> None:
        routes = [routes_of(6), routes_of(6)]
        events = [event("new", 3, 1, None, [7]), event("new", 3, 3, LENGTH, [7, 9], routes[0])]
        self.play(events, [1, 2, 3], stream=True, incremental_streaming_output=True).flush()
        events = [event("all", 3, 1, None, [7]), event("all", 3, 3, LENGTH, [7, 7, 9], routes[1])]
        self.play(events, [1, 2, 3], stream=True).flush()
        self.stored("new", routes[0])
        self.stored("all", routes[1])
        self.assertEqual(self.run_.stat("new").token_check, self.run_.stat("all").token_check)

    def test_other_ids_than_are_counted(self) -> None:
        events = [event("s", 3, 1, None, [7]), event("s", 3, 3, STOP, [7, 9], routes_of(6))]
        text = events[-1]["meta_info"]["routed_experts"]
        with self.assertLogs("routing_replay", logging.WARNING):
            attachment = self.play(events, [1, 2, 3], stream=True)
            with self.assertRaises(InvalidArgumentError) as caught:
                attachment.flush()
        self.assertEqual(caught.exception.field, "output_ids")
        state = self.run_.stat("s")
        self.assertEqual((state.num_tokens, state.unrecorded, state.sealed), (6, ((0, 5),), True))
        self.assertIs(events[-1]["meta_info"]["routed_experts"], text)  # The rows stay in the output.
        self.assertEqual(attachment.metrics()["rejected"], 1)

    def test_a_stream_that_counts_nothing(self) -> None:
        events = [event("s", 3, None, None, [7]), event("s", 3, None, STOP, [8], routes_of(5))]
        with self.assertLogs("routing_replay", logging.ERROR):
            attachment = self.play(events, [1, 2, 3], stream=True)
        attachment.flush()
        self.assertEqual((attachment.metrics()["unreadable"], self.run_.list()), (1, []))

    def test_outputs_without_ids(self) -> None:
        routes = routes_of(4)
        self.play(event("one", 3, 1, LENGTH, rows=routes), [1, 2, 3]).flush()
        self.stored("one", routes)
        with self.assertLogs("routing_replay", logging.WARNING):
            attachment = self.play(event("more", 3, 1, LENGTH, rows=routes_of(5)), [1, 2, 3])
            with self.assertRaises(InvalidArgumentError) as caught:
                attachment.flush()
        self.assertEqual(caught.exception.reason, "ROW_COUNT")
        self.assertEqual(self.run_.stat("more").unrecorded, ((0, 3),))

    def test_odd_outputs_of_a_batch(self) -> None:
        routes = [routes_of(5), routes_of(5)]
        abort = {"type": "abort", "message": "x"}
        answer = [
            event("b0", 3, 2, LENGTH, [5, 6], routes[0]),
            {"meta_info": {"id": "b1", "finish_reason": abort}},
            {"meta_info": None},
            {"meta_info": {"finish_reason": STOP, "prompt_tokens": 3, "completion_tokens": 1}},  # Has no request id.
            None,
            event("b5", 3, 2, LENGTH, [5, 6], routes[1]),
        ]
        with self.assertLogs("routing_replay", logging.ERROR):
            attachment = self.play(answer, [[1, 2, 3]] * 6)
        attachment.flush()
        self.stored("b0", routes[0])
        self.stored("b5", routes[1])
        state = self.run_.stat("b1")
        self.assertEqual((state.num_tokens, state.unrecorded, state.sealed), (3, ((0, 2),), True))
        self.assertEqual(len(self.run_.list()), 3)
        metrics = attachment.metrics()
        self.assertEqual([metrics[name] for name in ("appends", "unreadable", "without_rows")], [3, 3, 2])

    def test_aborts_before_prefill(self) -> None:
        abort = {"type": "abort", "message": "Abort before prefill"}
        known = self.play(event("known", 0, 0, abort), [1, 2, 3])
        known.flush()
        self.assertEqual(self.run_.stat("known").unrecorded, ((0, 2),))
        unknown = self.play(event("unknown", 0, 0, abort), None)
        unknown.flush()
        self.assertEqual([unknown.metrics()[name] for name in ("without_rows", "rejected", "unreadable")], [1, 0, 0])
        with self.assertRaises(NotFoundError):
            self.run_.stat("unknown")

    def test_an_odd_completion_of_vllm(self) -> None:
        routes = [routes_of(6) for _ in range(3)]
        choices = [
            SimpleNamespace(index=i, token_ids=[4, 5, 6], routed_experts=rows, finish_reason="stop")
            for i, rows in enumerate(routes)
        ]
        choices[1].token_ids = None
        answer = [SimpleNamespace(request_id="n", prompt_token_ids=[1, 2, 3], outputs=choices)]
        engine: Any = SimpleNamespace(generate=lambda prompts: [*answer, SimpleNamespace(request_id="odd")])
        with attach.vllm(engine, self.run_) as attachment:
            with self.assertLogs("routing_replay", logging.ERROR):
                engine.generate([])
            attachment.flush()
            self.assertEqual(attachment.metrics()["unreadable"], 2)
        self.stored("n/0", routes[0])
        self.stored("n/2", routes[2])

    def test_who_is_cancelled_while_it_waits_for_room(self) -> None:
        async def generate(prompt: Any, sampling_params: Any, request_id: str) -> Any:
            ids = SimpleNamespace(token_ids=[4, 5], finish_reason="stop")
            choices = [SimpleNamespace(**vars(ids), index=i, routed_experts=routes_of(5)) for i in range(3)]
            yield SimpleNamespace(request_id=request_id, prompt_token_ids=[1, 2, 3], outputs=choices)

        async def play() -> None:
            engine: Any = SimpleNamespace(generate=generate)
            attachment = attach.vllm(engine, self.run_)
            self.addCleanup(attachment.detach)
            go, append = threading.Event(), attachment._append_all
            attachment._append_all = lambda *arguments: (go.wait(20), append(*arguments))  # type: ignore

            async def request(name: str) -> Any:
                return [out async for out in engine.generate("p", None, name)]

            tasks = [asyncio.create_task(request(name)) for name in "cd"]
            for _ in range(100):  # The event loop goes on.
                await asyncio.sleep(0.001)
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            self.assertTrue(tasks[0].cancelled())
            go.set()
            await tasks[1]
            await asyncio.to_thread(attachment.flush)

        asyncio.run(play())
        for name in "cd":  # A thread appends the rows, also if the request was cancelled meanwhile.
            for sample in range(3):
                state = self.run_.stat(f"{name}/{sample}")
                self.assertEqual((state.unrecorded, state.sealed), ((), True))

    def test_options(self) -> None:
        for name, value in (
            ("max_queued_bytes", "1"),
            ("max_queued_bytes", -1),
            ("group", "7"),
            ("weight_version", "abc"),
            ("weight_version", True),
            ("sample", "name"),
        ):
            for kind in (attach.vllm, attach.sglang):
                engine: Any = Engine([])
                with self.subTest(name=name, value=value), self.assertRaises(InvalidArgumentError) as caught:
                    kind(engine, self.run_, **{name: value})
                self.assertEqual(caught.exception.field.removeprefix("append."), name)
                self.assertEqual(vars(engine).keys(), {"answer", "server_args"})
        attachment = attach.sglang(Engine([]), self.run_, group=np.int64(7), weight_version=None)
        self.addCleanup(attachment.detach)
        with self.assertRaisesRegex(TypeError, "weight_versoin"):
            attach.sglang(Engine([]), self.run_, weight_versoin=3)
        attachment.weight_version = 3
        self.assertEqual((attachment.group, attachment.weight_version), (7, 3))


if __name__ == "__main__":
    unittest.main()
