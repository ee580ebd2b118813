"""Attachments to stand-ins with the fields of vLLM's and SGLang's outputs."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from support import ServerTest, random_routes

from routing_replay import (
    Client,
    FailedPreconditionError,
    Geometry,
    RoutingReplayError,
    token_check,
)
from routing_replay.appender import ON_FULL
from routing_replay.engines import attach
from routing_replay.engines.attach import _attachment

LAYERS, EXPERTS, TOP_K = 4, 32, 4
RNG = np.random.default_rng(3)


def completion(index: int, count: int, routes: Any, finish: str | None = "length") -> SimpleNamespace:
    ids = [100 * index + i for i in range(count)]
    return SimpleNamespace(index=index, token_ids=ids, finish_reason=finish, routed_experts=routes)


def routes_of(tokens: int) -> np.ndarray:
    return random_routes(RNG, tokens - 1, LAYERS, EXPERTS, TOP_K)


class Llm:
    """Like vllm.LLM: two completions per prompt. The last prompt's second one was aborted before any forward pass."""

    def __init__(self) -> None:
        self.made: dict[str, np.ndarray] = {}

    def generate(self, prompts: list[list[int]], sampling_params: Any = None) -> list[SimpleNamespace]:
        outputs = []
        for number, prompt in enumerate(prompts):
            all_routes = [routes_of(len(prompt) + 5) for _ in range(2)]
            self.made |= {f"{number}/{j}": routes for j, routes in enumerate(all_routes)}
            choices = [completion(j, 5, routes.astype(np.uint8)) for j, routes in enumerate(all_routes)]
            outputs.append(SimpleNamespace(request_id=str(number), prompt_token_ids=prompt, outputs=choices))
        outputs[-1].outputs[1] = completion(1, 0, None, "abort")
        return outputs


class AsyncLlm:
    """Like vllm's AsyncLLM; in DELTA mode an output has only its new tokens."""

    def __init__(self) -> None:
        self.routes = routes_of(9)
        self.closed = False

    async def generate(self, prompt: list[int], sampling_params: Any, request_id: str) -> Any:
        try:
            for count in range(1, 6):
                ids = [count] if sampling_params.output_kind.name == "DELTA" else list(range(1, count + 1))
                done = count == 5
                choice = SimpleNamespace(
                    index=0,
                    token_ids=ids,
                    finish_reason="stop" if done else None,
                    routed_experts=self.routes.astype(np.uint8) if done else None,
                )
                yield SimpleNamespace(request_id=request_id, prompt_token_ids=prompt, outputs=[choice])
        finally:
            self.closed = True


def params(kind: str) -> SimpleNamespace:
    return SimpleNamespace(output_kind=SimpleNamespace(name=kind))


class AttachTest(ServerTest):
    def setUp(self) -> None:
        self.client = Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run(self.run_name, Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K))

    def stored(self, sample: str) -> np.ndarray:
        rows = self.run_.read_one(sample)
        self.assertEqual(rows.status, "OK", rows.message)
        return rows.rows

    def test_vllm_offline(self) -> None:
        llm = Llm()
        with attach.vllm(llm, self.run_, group=4, weight_version=17) as attachment:
            outputs = llm.generate([[1, 2, 3], [4, 5, 6, 7]])
            attachment.flush()
            metrics = attachment.metrics()
        for sample in ("0/0", "0/1", "1/0"):
            np.testing.assert_array_equal(self.stored(sample), llm.made[sample])
            state = self.run_.stat(sample)
            self.assertEqual((state.group, state.num_tokens), (4, len(llm.made[sample]) + 1))
            self.assertEqual([span.version for span in state.weights], [17])
        self.assertEqual(self.run_.stat("1/1").unrecorded, ((0, 3),))
        self.assertIsNone(outputs[0].outputs[1].routed_experts)
        reference = json.loads(outputs[0].outputs[1].routing_replay)
        self.assertEqual(reference["handle"]["sample"], "0/1")
        self.assertEqual(reference["fields"]["routed_experts"], {"dtype": "uint8", "shape": [7, LAYERS, TOP_K]})
        self.assertIsNone(outputs[1].outputs[1].routed_experts)
        self.assertEqual((metrics["appends"], metrics["without_rows"]), (4, 1))

    def test_vllm_async(self) -> None:
        async def play(kind: str) -> AsyncLlm:
            engine = AsyncLlm()
            attachment = attach.vllm(engine, self.run_)
            counts = [len(out.outputs[0].token_ids) async for out in engine.generate([7, 8, 9, 10], params(kind), kind)]
            self.assertEqual(counts, [1] * 5 if kind == "DELTA" else [1, 2, 3, 4, 5])
            attachment.flush()
            attachment.detach()
            return engine

        for kind in ("CUMULATIVE", "DELTA"):
            engine = asyncio.run(play(kind))
            np.testing.assert_array_equal(self.stored(f"{kind}/0"), engine.routes)
            self.assertEqual(self.run_.stat(f"{kind}/0").num_tokens, 9)

    def test_a_reader_that_leaves_early_closes_the_engines_generator(self) -> None:
        async def play() -> AsyncLlm:
            engine = AsyncLlm()
            attach.vllm(engine, self.run_)
            outputs = engine.generate([1], params("DELTA"), "r")
            await outputs.__anext__()
            await outputs.aclose()
            return engine

        self.assertTrue(asyncio.run(play()).closed)

    def test_what_does_not_fit_is_rejected_and_marked_and_the_engine_goes_on(self) -> None:
        llm = Llm()
        original = Llm.generate

        def bad(self: Llm, *arguments: Any) -> Any:
            outputs = original(self, *arguments)
            outputs[0].outputs[0].routed_experts = outputs[0].outputs[0].routed_experts[:, :2]  # Too few layers.
            outputs[0].outputs[1].routed_experts = outputs[0].outputs[1].routed_experts[:-2]
            outputs[0].outputs[1].routed_experts[3, 1] = 0  # The first rows are missing, and one row is broken.
            return outputs

        llm.generate = bad.__get__(llm)
        attachment = attach.vllm(llm, self.run_)
        with self.assertLogs("routing_replay", logging.WARNING):
            llm.generate([[1, 2, 3], [4]])
            with self.assertRaises(RoutingReplayError):
                attachment.flush()
        metrics = attachment.metrics()
        self.assertEqual(metrics["rejected"], 2)
        attachment.detach()
        self.assertEqual(self.run_.stat("0/0").unrecorded, ((0, 7),))
        self.assertTrue(self.run_.stat("0/1").sealed)

    def test_sglang_engine(self) -> None:
        routes = [routes_of(7), routes_of(8)]

        def output(i: int, count: int) -> dict[str, Any]:
            meta = {"id": f"q{i}", "prompt_tokens": 3 + i, "completion_tokens": count, "finish_reason": None}
            if count == 4:
                rows = base64.b64encode(routes[i].astype("<i4").tobytes()).decode()
                meta |= {"finish_reason": {"type": "stop"}, "routed_experts": rows}
            return {"text": "", "output_ids": list(range(count)), "meta_info": meta}

        class Engine:
            def generate(self, prompt: Any = None, input_ids: Any = None, stream: bool = False) -> Any:
                if stream:
                    return (output(0, count) for count in range(1, 5))
                return [output(0, 4), output(1, 4)]

            async def async_generate(self, prompt: Any = None, input_ids: Any = None) -> Any:
                return output(0, 4)

        ids = [[1, 2, 3], [4, 5, 6, 7]]
        for name in ("batch", "stream", "async"):
            engine = Engine()
            attachment = attach.sglang(
                engine, self.run_, sample=lambda out, _, name=name: f"{name}/{out['meta_info']['id']}"
            )
            if name == "batch":
                outputs = engine.generate(input_ids=ids)
            elif name == "stream":
                outputs = list(engine.generate(input_ids=ids[0], stream=True))[-1:]
            else:
                outputs = [asyncio.run(engine.async_generate(input_ids=ids[0]))]
            attachment.flush()
            attachment.detach()
            for i, out in enumerate(outputs):
                self.assertEqual(json.loads(out["meta_info"]["routed_experts"])["handle"]["sample"], f"{name}/q{i}")
                np.testing.assert_array_equal(self.stored(f"{name}/q{i}"), routes[i])
                self.assertIsNotNone(self.run_.stat(f"{name}/q{i}").token_check)

    def test_sglang_answers_to_each_prompt(self) -> None:
        routes = [routes_of(5), routes_of(5), routes_of(6), routes_of(6)]
        ids = [[1, 2, 3], [4, 5, 6, 7]]

        class Engine:
            def generate(self, input_ids: Any = None, sampling_params: Any = None) -> Any:
                outputs = []
                for i, rows in enumerate(routes):
                    text = base64.b64encode(rows.astype("<i4").tobytes()).decode()
                    meta = {"id": f"n{i}", "prompt_tokens": len(ids[i // 2]), "finish_reason": {"type": "stop"}}
                    meta |= {"completion_tokens": 2, "routed_experts": text}
                    outputs.append({"output_ids": [i, 9], "meta_info": meta})
                return outputs

        engine = Engine()
        with attach.sglang(engine, self.run_) as attachment:
            engine.generate(input_ids=ids, sampling_params={"n": 2})
            attachment.flush()
        for i, rows in enumerate(routes):
            np.testing.assert_array_equal(self.stored(f"n{i}"), rows)
            self.assertEqual(self.run_.stat(f"n{i}").token_check, token_check([*ids[i // 2], i]))

    def test_an_output_of_another_shape_costs_its_rows_and_not_the_request(self) -> None:
        class Engine:
            def generate(self) -> Any:
                return {"output_ids": [1], "meta_info": {"finish_reason": {"type": "abort"}}}

        engine = Engine()
        with attach.sglang(engine, self.run_) as attachment, self.assertLogs("routing_replay"):
            self.assertEqual(engine.generate()["output_ids"], [1])
            self.assertEqual(attachment.metrics()["unreadable"], 1)


class DetachTest(ServerTest):
    """Detaching ends the recording, whatever calls are running."""

    def setUp(self) -> None:
        client = Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K))

    def test_requests_under_way_go_on(self) -> None:
        async def play() -> None:
            engine = AsyncLlm()
            attachment = attach.vllm(engine, self.run_)
            outputs = engine.generate([7, 8, 9, 10], params("DELTA"), "r")
            got = [await outputs.__anext__()]
            await asyncio.to_thread(attachment.detach)
            got += [output async for output in outputs]
            self.assertEqual([out.outputs[0].token_ids for out in got], [[1], [2], [3], [4], [5]])
            np.testing.assert_array_equal(got[-1].outputs[0].routed_experts, engine.routes)
            self.assertFalse(attachment.attached)

        asyncio.run(play())
        self.assertEqual(self.run_.list(), [])

    def test_streams_of_sglang_under_way_go_on(self) -> None:
        rows = base64.b64encode(routes_of(5).astype("<i4").tobytes()).decode()

        def events() -> Any:
            for count in (1, 2, 3):
                meta = {"id": "s", "prompt_tokens": 2, "completion_tokens": count, "finish_reason": None}
                end = {"finish_reason": {"type": "stop"}, "routed_experts": rows} if count == 3 else {}
                yield {"output_ids": list(range(count)), "meta_info": meta | end}

        async def events_async() -> Any:
            for event in events():
                yield event

        class Engine:
            def generate(self, input_ids: Any = None, stream: bool = True) -> Any:
                return events()

            async def async_generate(self, input_ids: Any = None, stream: bool = True) -> Any:
                return events_async()

        engine = Engine()
        attachment = attach.sglang(engine, self.run_)
        stream = engine.generate(input_ids=[1, 2])
        got = [next(stream)]
        attachment.detach()
        got += stream
        self.assertEqual([len(event["output_ids"]) for event in got], [1, 2, 3])
        self.assertEqual(got[-1]["meta_info"]["routed_experts"], rows)

        async def play() -> list[Any]:
            attachment = attach.sglang(engine, self.run_)
            stream = await engine.async_generate(input_ids=[1, 2])
            got = [await stream.__anext__()]
            attachment.detach()
            return got + [event async for event in stream]

        got = asyncio.run(play())
        self.assertEqual(got[-1]["meta_info"]["routed_experts"], rows)
        self.assertEqual(self.run_.list(), [])

    def test_twice(self) -> None:
        for kind, engine in ((attach.vllm, Llm()), (attach.sglang, Llm())):
            attachment = kind(engine, self.run_)
            wrapped = engine.generate
            with self.assertRaises(FailedPreconditionError) as caught:
                kind(engine, self.run_)
            self.assertIn("detach", str(caught.exception))
            self.assertIs(engine.generate, wrapped)
            attachment.detach()
            attachment.detach()
            again = kind(engine, self.run_)
            attachment.detach()  # To detach the earlier attachment again does not affect the new one.
            self.assertTrue(again.attached)
            again.detach()

    def test_wrapped_again_by_another_party(self) -> None:
        llm = Llm()
        attachment = attach.vllm(llm, self.run_)
        ours = llm.generate
        calls: list[Any] = []
        llm.generate = theirs = lambda *arguments: (calls.append(arguments), ours(*arguments))[1]
        attachment.detach()
        self.assertIs(llm.generate, theirs)
        outputs = llm.generate([[1, 2, 3]])
        np.testing.assert_array_equal(outputs[0].outputs[0].routed_experts, llm.made["0/0"])
        self.assertEqual((len(calls), self.run_.list()), (1, []))
        with attach.vllm(llm, self.run_) as attachment:
            llm.generate([[1, 2, 3], [4]])
            attachment.flush()
        self.assertEqual(len(self.run_.list()), 4)


class RoomTest(ServerTest):
    """How long outputs wait for room in the queue."""

    def setUp(self) -> None:
        client = Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, Geometry(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K))

    def test_the_outputs_of_a_call_wait_together(self) -> None:
        llm = Llm()
        with attach.vllm(llm, self.run_) as attachment:
            waits: list[int | None] = []
            now = iter([0.0, 30.0, 59.0, 61.0, 62.0])

            def queue_one(append: Any, on_full: int | None) -> None:
                waits.append(on_full)

            attachment._appender.queue_one = queue_one  # type: ignore[method-assign]
            with mock.patch.object(_attachment.time, "monotonic", lambda: next(now)):
                llm.generate([[1, 2, 3], [4]])
        self.assertEqual(waits, [None, None, ON_FULL["drop"], ON_FULL["drop"]])


if __name__ == "__main__":
    unittest.main()
