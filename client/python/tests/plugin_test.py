"""The plug-ins of SGLang's and vLLM's servers: requests are answered whatever happens to the run."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sys
import threading
import time
import types
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from support import ServerTest, random_routes

from routing_replay import Client, FailedPreconditionError, Geometry
from routing_replay.engines import attach
from routing_replay.engines.attach import _attachment, _sglang

GEOMETRY = Geometry(num_layers=4, num_experts=32, top_k=4)
ROUTES = random_routes(np.random.default_rng(5), 5, 4, 32, 4)
TEXT = base64.b64encode(ROUTES.astype("<i4").tobytes()).decode()


async def generate_request(manager: Any, request: Any) -> Any:
    """Stands in for the method generate_request of SGLang's TokenizerManager, which the plug-in wraps."""
    meta = {"id": request.rid, "prompt_tokens": 2, "completion_tokens": 4, "finish_reason": {"type": "stop"}}
    if hasattr(request, "is_embedding"):
        yield {"embedding": [0.5], "meta_info": {"id": request.rid, "prompt_tokens": 2, "finish_reason": {}}}
        return
    await getattr(request, "goes_on", asyncio.sleep)(0)
    rows = {"routed_experts": TEXT} if getattr(request, "return_routed_experts", False) else {}
    yield {"output_ids": [1, 2, 3, 4], "meta_info": meta | rows}


def request(name: str, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(rid=name, input_ids=[8, 9], sampling_params={}, **fields)


class PluginTest(ServerTest):
    def setUp(self) -> None:
        self.client = Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.patch(mock.patch.object(_attachment, "RETRY_SECONDS", 0.02))

    def patch(self, patch: Any) -> None:
        patch.start()
        self.addCleanup(patch.stop)

    async def joined(self, joining: _attachment.Joining) -> Any:
        joining.begin()
        deadline = time.monotonic() + 20
        while joining.attachment is None and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        self.assertIsNotNone(joining.attachment)
        return joining.attachment

    def samples(self) -> list[str]:
        return sorted(state.sample for state in self.client.run(self.run_name, GEOMETRY).list())


class SglangTest(PluginTest):
    def hook(self, connect: Any = None) -> _sglang.Hook:
        hook = _sglang.Hook(self.run_name, connect or (lambda: self.client))
        self.addCleanup(lambda: hook.attachment and hook.attachment.detach())
        return hook

    async def play(self, hook: _sglang.Hook, asked: Any) -> Any:
        """The last output's rows."""
        outputs = [output async for output in hook(generate_request, None, asked)]
        return outputs[-1]["meta_info"].get("routed_experts")

    def test_rows_of_a_server(self) -> None:
        run = self.client.run(self.run_name, GEOMETRY)

        async def play() -> Any:
            hook = self.hook()
            attachment = await self.joined(hook)
            reference = await self.play(hook, request("h1", return_routed_experts=True, routed_experts_start_len=0))
            await asyncio.to_thread(attachment.flush)
            return reference

        self.assertEqual(json.loads(asyncio.run(play()))["handle"]["sample"], "h1")
        np.testing.assert_array_equal(run.read_one("h1").rows, ROUTES)

    def test_no_request_waits_for_a_service_that_cannot_be_reached(self) -> None:
        self.client.run(self.run_name, GEOMETRY)
        go = threading.Event()
        hook = self.hook(lambda: (go.wait(20), self.client)[1])

        async def play() -> None:
            loop = asyncio.get_running_loop()
            with mock.patch.object(loop, "run_in_executor", side_effect=AssertionError):
                before = [await self.play(hook, request(f"b{i}", return_routed_experts=True)) for i in range(3)]
            self.assertEqual(before, [TEXT] * 3)
            goes_on = asyncio.Event()
            began = asyncio.create_task(
                self.play(hook, request("long", return_routed_experts=True, goes_on=lambda _: goes_on.wait()))
            )
            await asyncio.sleep(0)
            go.set()
            await self.joined(hook)
            goes_on.set()
            self.assertEqual(json.loads(await began)["handle"]["sample"], "long")
            await asyncio.to_thread(hook.attachment.flush)

        asyncio.run(play())
        self.assertEqual(self.samples(), ["long"])

    def test_a_run_that_is_made_later(self) -> None:
        hook = self.hook()

        async def play() -> None:
            self.assertIsNone(await self.play(hook, request("warm-up", return_routed_experts=False)))
            with self.assertLogs("routing_replay", logging.WARNING) as logs:
                while not logs.output:
                    await asyncio.sleep(0.001)
                self.assertEqual(await self.play(hook, request("early", return_routed_experts=True)), TEXT)
                await asyncio.to_thread(self.client.run, self.run_name, GEOMETRY)
                await self.joined(hook)
            # The plug-in logs one line when it begins to wait for the run, and one when it has joined the run.
            self.assertEqual(len(logs.output), 2)
            await self.play(hook, request("real", return_routed_experts=True))
            await asyncio.to_thread(hook.attachment.flush)

        asyncio.run(play())
        self.assertEqual(self.samples(), ["real"])

    def test_a_server_that_checks_several_guesses(self) -> None:
        """A server with speculative decoding that checks several drafts at once returns wrong rows. The plug-in leaves
        the rows in the answers, and joins no run."""
        hook = self.hook(mock.Mock(side_effect=AssertionError))
        settings = SimpleNamespace(speculative_algorithm="EAGLE", speculative_eagle_topk=4)

        async def play() -> Any:
            asked = request("guessed", return_routed_experts=True)
            answers = hook(generate_request, SimpleNamespace(server_args=settings), asked)
            return [answer["meta_info"]["routed_experts"] async for answer in answers]

        with self.assertLogs("routing_replay", logging.WARNING) as logs:
            self.assertEqual(asyncio.run(play()), [TEXT])
        self.assertIn("several drafts", logs.output[0])
        self.assertIsNone(hook.attachment)

    def test_requests_that_do_not_ask_for_rows_are_no_samples(self) -> None:
        self.client.run(self.run_name, GEOMETRY)
        hook = self.hook()

        async def play() -> None:
            await self.joined(hook)
            await self.play(hook, request("judge", return_routed_experts=False))
            await self.play(hook, request("plain"))  # The request does not have the field.
            await self.play(hook, request("embedding", is_embedding=True))
            reference = await self.play(hook, request("with", return_routed_experts=True))
            self.assertEqual(json.loads(reference)["handle"]["sample"], "with")
            await asyncio.to_thread(hook.attachment.flush)

        asyncio.run(play())
        self.assertEqual(self.samples(), ["with"])
        metrics = hook.attachment.metrics()
        self.assertEqual([metrics[name] for name in ("without_rows", "unreadable")], [0, 0])


def choices(finish_reason: str | None) -> list[SimpleNamespace]:
    rows = None if finish_reason is None else ROUTES.astype(np.uint8)
    return [SimpleNamespace(index=0, token_ids=[1, 2, 3, 4], finish_reason=finish_reason, routed_experts=rows)]


class VllmTest(PluginTest):
    """Modules that replace vLLM's."""

    def setUp(self) -> None:
        super().setUp()

        class AsyncLLM:
            async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> Any:
                for end in (None, "stop"):
                    yield SimpleNamespace(request_id=request_id, prompt_token_ids=[8, 9], outputs=choices(end))

        def numpy2base64(array: np.ndarray) -> str:
            return base64.b64encode(array.tobytes()).decode()

        parts = {"v1.engine.async_llm": {"AsyncLLM": AsyncLLM}, "utils.serial_utils": {}, "serving": {}}
        for name, has in parts.items():
            module = types.ModuleType(f"vllm.{name}")
            vars(module).update(has or {"numpy2base64": numpy2base64})
            self.patch(mock.patch.dict(sys.modules, {module.__name__: module}))
        self.engine, self.serving = AsyncLLM(), module
        around = {"ROUTING_REPLAY_RUN": self.run_name, "ROUTING_REPLAY_ENDPOINT": self.server.endpoint}
        self.patch(mock.patch.dict(os.environ, around))

    async def answer(self, request: str) -> str:
        """Returns the rows of an answer as text, as vLLM's servers send them."""
        outputs = [output async for output in self.engine.generate("?", None, request)]
        return self.serving.numpy2base64(outputs[-1].outputs[0].routed_experts)

    def test_rows_of_a_server(self) -> None:
        own = asyncio.run(self.answer("own"))
        for _ in range(2):  # vLLM may load a plug-in more than once.
            attach.vllm_plugin()
        joining = self.engine._routing_replay_attachment

        async def play() -> str:
            self.assertEqual(await self.answer("early"), own)
            await asyncio.to_thread(self.client.run, self.run_name, GEOMETRY)
            self.addCleanup((await self.joined(joining)).detach)
            reference = await self.answer("r")
            await asyncio.to_thread(joining.attachment.flush)
            return reference

        self.assertEqual(json.loads(asyncio.run(play()))["handle"]["sample"], "r/0")
        run = self.client.run(self.run_name)
        np.testing.assert_array_equal(run.read_one("r/0").rows, ROUTES)
        self.assertEqual(self.samples(), ["r/0"])
        with self.assertRaises(FailedPreconditionError):  # Attaching a second time would store the rows twice.
            attach.vllm(self.engine, run)

    def test_without_a_run_nothing_is_wrapped(self) -> None:
        generate = type(self.engine).generate
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_RUN": ""}):
            attach.vllm_plugin()
        del sys.modules["vllm.utils.serial_utils"].numpy2base64
        with self.assertLogs("routing_replay", logging.WARNING):
            attach.vllm_plugin()
        self.assertIs(type(self.engine).generate, generate)


if __name__ == "__main__":
    unittest.main()
