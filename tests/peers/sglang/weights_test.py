"""Tests sglang.Engine when it gets new weights in the middle of answers, in each of its three modes: in_place, retract
and abort."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

import numpy as np
from common.answers import MODELS
from common.chosen import Piece
from peer import EngineTest, given_rows
from routing_replay.engines import attach
from routing_replay.engines import sglang as adapter
from sglang.srt.managers.io_struct import (
    ContinueGenerationReqInput,
    PauseGenerationReqInput,
    UpdateWeightFromDiskReqInput,
)


class WeightsTest(EngineTest):
    def setUp(self) -> None:
        self.engine.loop.run_until_complete(self.load("qwen3", "7", flush_cache=True))

    async def load(self, model: str, version: str, **options: Any) -> None:
        asked = UpdateWeightFromDiskReqInput(model_path=str(MODELS / model), weight_version=version, **options)
        done, message, _ = await self.engine.tokenizer_manager.update_weights_from_disk(asked)
        self.assertTrue(done, message)

    def across_an_update(self, mode: str, *prompts: list[int]) -> list[Any]:
        """Streams answers to these prompts, and gives the engine new weights when each answer has ten tokens. Returns
        the last event of each stream."""
        begun = [asyncio.Event() for _ in prompts]

        async def stream(number: int) -> Any:
            params = {"max_new_tokens": 400, "temperature": 1.0, "ignore_eos": True}
            asked = {"sampling_params": params, "return_routed_experts": True, "stream": True}
            last = None
            async for output in await self.engine.async_generate(input_ids=prompts[number], **asked):
                # SGLang reads the rows only when the answer ends (BatchResultProcessor._maybe_collect_routed_experts),
                # for all of its tokens. So the rows of a stream cannot be recorded early, before the new weights
                # compute them again.
                self.assertTrue(last is None or "routed_experts" not in last["meta_info"])
                last = output
                if output["meta_info"]["completion_tokens"] >= 10:
                    begun[number].set()
            return last

        async def play() -> list[Any]:
            streams = [asyncio.create_task(stream(number)) for number in range(len(prompts))]
            for each in begun:
                await each.wait()
            await self.engine.tokenizer_manager.pause_generation(PauseGenerationReqInput(mode=mode))
            await self.load("qwen3_later", "8", flush_cache=mode != "in_place")
            await self.engine.tokenizer_manager.continue_generation(ContinueGenerationReqInput())
            return await asyncio.gather(*streams)

        return self.engine.loop.run_until_complete(play())

    def test_in_place(self) -> None:
        """In the mode in_place, what the old weights have computed stays in the cache, and the new weights compute the
        rest. So each row must have the version of the weights that routed it."""
        run, prompts = self.open_run("in-place"), [self.ids(21), self.ids(40)]
        with attach.sglang(self.engine, run, replace=False) as attachment:
            replies = self.across_an_update("in_place", *prompts)
            attachment.flush()
        for prompt, reply in zip(prompts, replies, strict=True):
            sample, num_tokens = reply["meta_info"]["id"], len(prompt) + 400
            [first, later] = run.stat(sample).weights
            self.assertEqual((first.version, later.version), (7, 8))
            self.assertEqual((first.begin, first.end, later.end), (0, later.begin, num_tokens - 1))
            pieces = [Piece(first.end, "qwen3"), Piece(later.end, "qwen3_later", goes_on=True)]
            self.check_reply("in place", run, sample, prompt, reply, pieces=pieces)

    def test_answers_that_are_computed_again(self) -> None:
        """In the mode retract, SGLang returns the experts of the new weights for all tokens, even for those that were
        sampled with older weights. The rows of the older tokens must not be recorded."""
        run, prompts = self.open_run("retracted"), [self.ids(21), self.ids(40)]
        with attach.sglang(self.engine, run, replace=False) as attachment:
            replies = self.across_an_update("retract", *prompts)
            attachment.flush()
        for prompt, reply in zip(prompts, replies, strict=True):
            state = run.stat(reply["meta_info"]["id"])
            self.assertEqual(reply["meta_info"]["num_retractions"], 1)
            sampled = reply["meta_info"]["weight_versions"][0]["end"]
            self.assertEqual(state.unrecorded, ((0, len(prompt) + sampled - 1),))
            given = given_rows(reply["meta_info"], run.geometry)
            self.kept.add("given of a retracted", prompt + reply["output_ids"], given, "qwen3_later")

    def test_an_answer_in_parts_keeps_its_rows(self) -> None:
        """A sample is made by two requests. The rows of the first request must stay those with which its tokens were
        sampled, even if the engine computes them again, with new weights, for the second request."""
        run, prompt = self.open_run("in-parts"), self.ids(30)
        options = {"sample": lambda output, index: "agent", "replace": False, "seal": False}
        with attach.sglang(self.engine, run, **options) as attachment:
            first = self.ask(prompt, max_new_tokens=50, temperature=1.0)
            attachment.flush()
            context = prompt + first["output_ids"]
            [reply] = self.across_an_update("retract", context)
            attachment.flush()
        early, late = (given_rows(each["meta_info"], run.geometry) for each in (first, reply))
        self.assertFalse(np.array_equal(early, late[: len(early)]))
        sampled = reply["meta_info"]["weight_versions"][0]["end"]
        state, begin = run.stat("agent"), len(context) + sampled - 1
        self.assertEqual(state.unrecorded, ((len(early), begin),))
        stored = run.read_one("agent")
        self.assertEqual(stored.row_ranges, ((0, len(early)), (begin, len(late))))
        np.testing.assert_array_equal(stored.rows, np.concatenate([early, late[begin:]]))

    def test_the_first_rows_stay(self) -> None:
        """An answer is aborted for new weights and continued with them: rows that the engine computes again for the
        context are compared, and not stored."""
        prompt = self.ids(50)
        [first] = self.across_an_update("abort", prompt)
        self.assertEqual(first["meta_info"]["finish_reason"]["type"], "abort")
        agent = self.run_.trajectory("resumed")
        agent.add(adapter.rows(first, self.run_.geometry, prompt_token_ids=prompt), outcome="aborted")
        context = prompt + first["output_ids"]
        reply = self.ask(context)
        told = agent.add(adapter.rows(reply, self.run_.geometry, prompt_token_ids=context), seal=True)
        self.assertGreater(told.conflicting_rows, 0)
        self.run_.flush()
        early, late = (given_rows(each["meta_info"], self.run_.geometry) for each in (first, reply))
        given, tokens = np.concatenate([early, late[len(early) :]]), context + reply["output_ids"]
        pieces = [Piece(len(early), "qwen3"), Piece(len(tokens) - 1, "qwen3_later")]
        self.check("resumed with new weights", self.run_, "resumed", tokens, given, pieces=pieces)


if __name__ == "__main__":
    unittest.main()
