"""Tests that the rows of sglang.Engine's answers are stored: through the adapter, through trajectories and through an
attachment."""

from __future__ import annotations

import json
import unittest
from typing import Any

from peer import EngineTest, given_rows
from routing_replay.engines import attach
from routing_replay.engines import sglang as adapter


class OfflineTest(EngineTest):
    def generate(self, case: str, *ids: list[int], **params: Any) -> list[Any]:
        """Makes answers to these prompts, appends their rows through the adapter, and compares what is stored. Returns
        the answers."""
        replies = self.ask(list(ids), **params)
        names = {}
        for number, reply in enumerate(replies):
            sample, prompt = f"{case}/{number}".replace(" ", "-"), ids[number // params.get("n", 1)]
            names[sample] = prompt, reply
            rows = adapter.rows(reply, self.run_.geometry, prompt_token_ids=prompt)
            self.run_.append(sample, rows, seal=True)
        self.run_.flush()
        for sample, (prompt, reply) in names.items():
            self.check_reply(case, self.run_, sample, prompt, reply)
        return replies

    def test_prompts(self) -> None:
        self.generate("chunks", *(self.ids(count) for count in (1, 5, 64, 65, 200)))
        self.generate("a long prompt", self.ids(700))
        self.generate("n", self.ids(50), self.ids(7), n=4, max_new_tokens=24, temperature=1.0)
        self.generate("one token", self.ids(9), max_new_tokens=1)

    def test_stops(self) -> None:
        prompt = self.ids(20)
        [whole] = self.generate("no stop", prompt)
        sampled = whole["output_ids"]
        [reply] = self.generate("stop token", prompt, stop_token_ids=[sampled[5]], ignore_eos=False)
        self.assertEqual(reply["meta_info"]["finish_reason"], {"type": "stop", "matched": sampled[5]})
        [reply] = self.generate("stop string", prompt, stop=[f"w{sampled[6]}"])
        self.assertEqual(reply["meta_info"]["finish_reason"], {"type": "stop", "matched": f"w{sampled[6]}"})

    def test_a_prefix_from_the_cache(self) -> None:
        prompt = self.ids(130)
        self.generate("before the cache", prompt)
        [reply] = self.generate("radix cache", prompt)
        self.assertGreaterEqual(reply["meta_info"]["cached_tokens"], 128)

    def test_only_rows_that_are_asked_for(self) -> None:
        prompt = self.ids(40)
        [whole] = self.generate("all rows", prompt)
        for start in (1, 32, 39, 40):
            sample = f"start-{start}"
            reply = self.ask(prompt, start)
            self.assertEqual(reply["output_ids"], whole["output_ids"])
            first = given_rows(whole["meta_info"], self.run_.geometry)[:start]
            self.run_.append(sample, first, tokens=prompt[:start])
            rows = adapter.rows(reply, self.run_.geometry, start_len=start, prompt_token_ids=prompt)
            self.run_.append(sample, rows, seal=True)
            self.run_.flush()
            self.check_reply("rows asked for", self.run_, sample, prompt, reply, start=start)

    def test_turns(self) -> None:
        for only_new in (False, True):
            agent, context = self.run_.trajectory(f"agent-{only_new}", group=1), self.ids(45)
            for turn in range(3):
                start = min(agent.next_row(context), len(context)) if only_new else 0
                prompt, reply = context, self.ask(context, start, max_new_tokens=11, temperature=1.0)
                rows = adapter.rows(reply, self.run_.geometry, start_len=start, prompt_token_ids=prompt)
                self.assertEqual(agent.add(rows, weight_version=turn).conflicting_rows, 0)
                context = prompt + list(reply["output_ids"]) + self.ids(6)
            agent.seal()
            self.run_.flush()
            self.check_reply("turns", self.run_, agent.sample, prompt, reply, start=start)

    def test_an_attachment(self) -> None:
        run = self.open_run("attached")
        batch, single, streamed = [self.ids(21), self.ids(70)], self.ids(5), self.ids(33)
        with attach.sglang(self.engine, run, replace=False, group=3) as attachment:
            self.assertTrue(attachment.attached)
            attachment.weight_version = 7
            prompts = [batch[0]] * 2 + [batch[1]] * 2 + [single, streamed]
            replies = self.ask(batch, n=2, temperature=1.0)
            replies.append(self.ask(single))
            params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
            asked = {"sampling_params": params, "return_routed_experts": True, "stream": True}
            *_, last = self.engine.generate(input_ids=streamed, **asked)
            replies.append(last)
            attachment.flush()
        for prompt, reply in zip(prompts, replies, strict=True):
            sample = reply["meta_info"]["id"]
            self.check_reply("attached", run, sample, prompt, reply)
            state = run.stat(sample)
            self.assertEqual((state.group, [span.version for span in state.weights]), (3, [7]))
            self.assertTrue(state.sealed)
        self.assertEqual(len(run.list()), len(replies))

    def test_references(self) -> None:
        run, prompt = self.open_run("references"), self.ids(21)
        with attach.sglang(self.engine, run) as attachment:
            reply = self.ask(prompt)
            attachment.flush()
        sample = json.loads(reply["meta_info"]["routed_experts"])["handle"]["sample"]
        self.assertEqual(sample, reply["meta_info"]["id"])
        self.check("a reference", run, sample, prompt + reply["output_ids"])
        again = self.ask(prompt)
        self.assertEqual(again["output_ids"], reply["output_ids"])
        self.generate("detached", prompt)

    def test_memory_that_is_short(self) -> None:
        """With too little memory for all requests, SGLang preempts some of them and computes them again later."""
        run = self.open_run("short")
        prompts = [self.ids(60) for _ in range(8)]
        with attach.sglang(self.engine, run, replace=False) as attachment:
            replies = self.ask(prompts, max_new_tokens=180, temperature=1.0, ignore_eos=False)
            attachment.flush()
        self.assertGreater(sum(reply["meta_info"]["num_retractions"] for reply in replies), 0)
        for prompt, reply in zip(prompts, replies, strict=True):
            self.check_reply("retracted", run, reply["meta_info"]["id"], prompt, reply)

    def test_asynchronous_requests_and_aborts(self) -> None:
        run, prompts = self.open_run("asynchronous"), {name: self.ids(40) for name in ("whole", "aborted", "resumed")}

        async def play(name: str) -> Any:
            params = {"max_new_tokens": 30 if name == "whole" else 600, "temperature": 0, "ignore_eos": True}
            asked = {"sampling_params": params, "return_routed_experts": True, "stream": True, "rid": name}
            async for output in await self.engine.async_generate(input_ids=prompts[name], **asked):
                last = output
                if name != "whole" and output["meta_info"]["completion_tokens"] >= 8:
                    self.engine.tokenizer_manager.abort_request(name)
            return last

        with attach.sglang(self.engine, run, replace=False) as attachment:
            replies = {name: self.engine.loop.run_until_complete(play(name)) for name in ("whole", "aborted")}
            attachment.flush()
        for name, reply in replies.items():
            self.assertEqual(reply["meta_info"]["finish_reason"]["type"], "length" if name == "whole" else "abort")
            self.check_reply(f"asynchronous, {name}", run, name, prompts[name], reply)
        agent, prompt = run.trajectory("resumed"), prompts["resumed"]
        first = self.engine.loop.run_until_complete(play("resumed"))
        agent.add(adapter.rows(first, run.geometry, prompt_token_ids=prompt), outcome="aborted")
        context = prompt + first["output_ids"]
        reply = self.ask(context)
        rows = adapter.rows(reply, run.geometry, prompt_token_ids=context)
        self.assertEqual(agent.add(rows, seal=True).conflicting_rows, 0)
        run.flush()
        self.check_reply("resumed", run, "resumed", context, reply)


if __name__ == "__main__":
    unittest.main()
