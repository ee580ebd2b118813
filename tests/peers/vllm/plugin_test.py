"""AsyncLLM with the vLLM plug-in, whose rows come from vLLM's AuxOutput store: with blocks from the prefix cache, a KV
cache that is too small for all requests, aborts and stop strings. Answers carry names of samples; their rows are
compared with those that vLLM itself put into the same answers."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import unittest
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import numpy as np
from common.answers import PeerTest
from peer import settings
from routing_replay.engines import attach
from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot

NAME = "plugged"
OWN: dict[str, np.ndarray] = {}  # By sample: the rows that vLLM itself put into the answer.


def keeping(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    async def kept(self: Any, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        async for output in generate(self, prompt, params, request_id):
            for part in output.outputs:
                if part.routed_experts is not None:
                    OWN[f"{output.request_id}/{part.index}"] = part.routed_experts
            yield output

    return kept


AsyncLLM.generate = keeping(AsyncLLM.generate)


class PluginTest(PeerTest, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_RUN": NAME}):
            for _ in range(2):  # vLLM may load a plug-in more than once.
                attach.vllm_plugin()
        arguments = AsyncEngineArgs(**settings(num_gpu_blocks_override=34, disable_log_stats=False))
        self.engine = AsyncLLM.from_engine_args(arguments)
        self.addCleanup(self.engine.shutdown)
        self.run_ = self.open_run(NAME)
        while not isinstance((await self.ask("joining", self.ids(2), max_tokens=1)).outputs[0].routed_experts, str):
            await asyncio.sleep(0.1)

    async def ask(self, request: str, prompt: list[int], abort_at: int = 0, **params: Any) -> Any:
        """The last output."""
        params = {"temperature": 1.0, "seed": 4} | params
        seen: list[Any] = []
        async for output in self.engine.generate({"prompt_token_ids": prompt}, SamplingParams(**params), request):
            seen.append(output)
            if len(seen) == abort_at:
                await self.engine.abort(request)
        return seen[-1]

    def stored(self, case: str, output: Any) -> None:
        for part in output.outputs:
            sample = json.loads(part.routed_experts)["handle"]["sample"]
            self.run_.read_one(sample, wait=True)
            tokens = [*output.prompt_token_ids, *part.token_ids]
            self.check(case, self.run_, sample, tokens, OWN[f"{output.request_id}/{part.index}"])

    async def test_what_the_scheduler_does(self) -> None:
        many = [self.ask(f"many-{i}", self.ids(60), max_tokens=150, min_tokens=150) for i in range(8)]
        outputs = {"plug-in, preemption": await asyncio.gather(*many)}
        taken_back = [each.value for each in get_metrics_snapshot() if each.name == "vllm:num_preemptions"]
        self.assertGreater(sum(taken_back), 0)
        prompt, greedy = self.ids(130), {"temperature": 0.0, "max_tokens": 12}
        first, again = [await self.ask(f"prefix-{i}", prompt, **greedy) for i in range(2)]
        self.assertGreaterEqual(again.num_cached_tokens, 128)
        sampled = again.outputs[0].token_ids
        word = await self.ask("word", prompt, stop=[f"w{sampled[6]}"], **greedy)
        self.assertEqual(word.outputs[0].stop_reason, f"w{sampled[6]}")
        several = await self.ask("several", self.ids(33), n=3, output_kind=RequestOutputKind.FINAL_ONLY, max_tokens=40)
        outputs |= {"plug-in, prefix cache": [first, again, several], "plug-in, a word that stops": [word]}
        endless = {"max_tokens": 700, "ignore_eos": True}
        aborted = [self.ask(f"aborted-{i}", self.ids(33), abort_at=4, **endless) for i in range(2)]
        outputs["plug-in, abort"] = await asyncio.gather(*aborted)
        for case, found in outputs.items():
            for output in found:
                ended = output.outputs[0].finish_reason
                self.assertEqual(ended == "abort", case == "plug-in, abort", ended)
                self.stored(case, output)


if __name__ == "__main__":
    unittest.main()
