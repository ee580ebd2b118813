"""AsyncLLM, whose engine is a separate process: outputs in three forms, aborts, weight versions."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import AsyncIterator
from typing import Any

from common.answers import PeerTest
from peer import settings
from routing_replay.engines import attach
from routing_replay.engines import vllm as adapter
from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


class Answer:
    """One completion of a request, assembled from the request's outputs."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.rows: Any = None
        self.last: Any = None


class AsyncTest(PeerTest, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings()))
        self.addCleanup(self.engine.shutdown)
        self.prompts: dict[str, list[int]] = {}

    async def outputs(self, request: str, count: int, **params: Any) -> AsyncIterator[Any]:
        self.prompts[request] = self.ids(count)
        prompt, params = {"prompt_token_ids": self.prompts[request]}, {"temperature": 1.0, "seed": 4} | params
        async for output in self.engine.generate(prompt, SamplingParams(**params), request):
            yield output

    async def ask(
        self, request: str, count: int, kind: str, abort_at: int = 0, updates: Any = (), **params: Any
    ) -> dict[int, Answer]:
        """`updates` maps the number of an output to the weight version that is set after this output."""
        answers: dict[int, Answer] = {}
        seen = 0
        async for output in self.outputs(request, count, output_kind=RequestOutputKind[kind], **params):
            for part in output.outputs:
                answer = answers.setdefault(part.index, Answer())
                answer.tokens = (answer.tokens if kind == "DELTA" else []) + list(part.token_ids)
                answer.finish_reason, answer.rows, answer.last = part.finish_reason, part.routed_experts, output
            seen += 1
            if seen == abort_at:
                await self.engine.abort(request)
            if seen in updates:
                await self.engine.update_weight_version(updates[seen])
        return answers

    async def test_outputs_and_aborts(self) -> None:
        run = self.open_run("asynchronous")
        endless: dict[str, Any] = {"max_tokens": 700, "ignore_eos": True}
        kinds = ("CUMULATIVE", "DELTA", "FINAL_ONLY")
        with attach.vllm(self.engine, run, replace=False, weight_version=1) as attachment:
            asked = [self.ask(kind, 40, kind, n=3, max_tokens=20) for kind in kinds]
            asked += [self.ask(f"aborted-{kind}", 33, kind, abort_at=4, **endless) for kind in kinds[:2]]
            asked += [self.ask("aborted-at-once", 300, "DELTA", abort_at=1, **endless)]
            told = await asyncio.gather(*asked)
            await asyncio.to_thread(attachment.flush)
        names = [*kinds, "aborted-CUMULATIVE", "aborted-DELTA", "aborted-at-once"]
        for name, answers in zip(names, told, strict=True):
            self.assertEqual(len(answers), 3 if name in kinds else 1)
            for index, answer in answers.items():
                self.assertEqual(answer.finish_reason == "abort", name not in kinds, answer.finish_reason)
                tokens = self.prompts[name] + answer.tokens
                self.check(f"attached, {name}", run, f"{name}/{index}", tokens, answer.rows)
                recorded = adapter.rows(answer.last, index, output_token_ids=answer.tokens)
                run.append(f"adapter/{name}/{index}", recorded, seal=True)
                await asyncio.to_thread(run.flush)
                self.check(f"adapter, {name}", run, f"adapter/{name}/{index}", tokens, answer.rows)
        with attach.vllm(self.engine, run, replace=False) as attachment:
            told = await self.ask("versions", 30, "CUMULATIVE", updates={3: "6", 9: "7"}, abort_at=15, **endless)
            await asyncio.to_thread(attachment.flush)
        [answer] = told.values()
        tokens = self.prompts["versions"] + answer.tokens
        self.check("weight versions", run, "versions/0", tokens, answer.rows)
        spans = run.stat("versions/0").weights
        self.assertEqual([(span.version, span.label) for span in spans], [(-1, "default"), (6, "6"), (7, "7")])
        ends = [29 + span.end for span in answer.last.outputs[0].weight_versions[:-1]]
        self.assertEqual([span.end for span in spans], [*ends, len(tokens) - 1])


if __name__ == "__main__":
    unittest.main()
