"""Tests SGLang's server: stores the rows from each of its HTTP routes that return routed experts, through the adapter
and through the plug-in, and runs the README's rollout worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import unittest
from typing import Any

import routing_replay as rr
from common.answers import MODELS, PeerTest
from common.entry_points import plugged
from common.served import PATIENCE, post, served
from common.support import ROOT
from peer import given_rows, settings
from routing_replay import http
from routing_replay.engines import sglang

MESSAGES = [{"role": "user", "content": "w10 w20 w30 w40"}]
CHAT = [10, 20, 30, 40]  # The tokens of MESSAGES.


class HttpTest(PeerTest):
    """The server of these tests has the plug-in. The plug-in leaves the rows in the answers until its run exists, which
    the last test (in alphabetical order) creates."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        around = cls.enterClassContext(plugged("plugged"))
        cls.url = cls.enterClassContext(served("sglang.launch_server", settings(), around))
        cls.run_ = cls.open_run("http")

    def generate(self, ids: Any, stream: bool = False, start: int = 0, **params: Any) -> bytes:
        params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True} | params
        asked = {"return_routed_experts": True, "routed_experts_start_len": start, "stream": stream}
        return post(self.url + "/generate", asked | {"input_ids": ids, "sampling_params": params})

    def openai(self, route: str, **body: Any) -> bytes:
        body = {"model": "m", "max_tokens": 12, "temperature": 0, "ignore_eos": True} | body
        # Chats reject the second with streams.
        asked = {"return_routed_experts": True, "return_token_ids": not body.get("stream")}
        return post(f"{self.url}/v1/{route}", asked | body)

    def check_text(self, case: str, text: bytes, prompt: list[int], place: int | None = None, **options: Any) -> None:
        """Reads the answer in two ways, with json.loads and with routing_replay.http, and stores and compares its rows.

        place: the index of the answer, if `text` is the list of a batch of /generate
        """
        for kind, reply in (("json", json.loads(text)), ("http", http.routed_experts(text))):
            reply = reply if place is None else reply[place]
            sample = f"{case}/{place}/{kind}".replace(" ", "-")
            rows = sglang.rows(reply, self.run_.geometry, prompt_token_ids=prompt, **options)
            self.run_.append(sample, rows, seal=True)
            self.run_.flush()
            plain = json.loads(text)
            plain = plain if place is None else plain[place]
            meta = plain.get("meta_info") or plain["sglext"]
            sampled = options.get("output_token_ids") or self.sampled(plain)
            self.check(case, self.run_, sample, prompt + sampled, given_rows(meta, self.run_.geometry))

    @staticmethod
    def sampled(reply: dict[str, Any]) -> list[int]:
        if "output_ids" in reply:
            return reply["output_ids"]
        [choice] = reply["choices"]
        return choice.get("token_ids") or choice["response_token_ids"]

    @staticmethod
    def events(text: bytes) -> list[bytes]:
        return [line[6:] for line in text.split(b"\n") if line.startswith(b"data: {")]

    def test_generate(self) -> None:
        prompts = [self.ids(15), self.ids(70)]
        self.check_text("generate", self.generate(prompts[0]), prompts[0])
        text = self.generate(prompts, n=2, temperature=1.0)
        for place in range(4):
            self.check_text("generate of two prompts", text, prompts[place // 2], place)

    def test_streams(self) -> None:
        prompt = self.ids(15)
        last = self.events(self.generate(prompt, stream=True))[-1]
        self.check_text("stream", last, prompt)
        for route, asked, ids in (
            ("completions", {"prompt": prompt}, prompt),
            ("chat/completions", {"messages": MESSAGES}, CHAT),
        ):
            events = self.events(self.openai(route, stream=True, **asked))
            [last] = [event for event in events if b'"routed_experts":"' in event]
            meta = json.loads(last)["sglext"]
            given = given_rows(meta, self.run_.geometry)
            self.assertEqual(len(given), len(ids) + 12 - 1)

    def test_completions(self) -> None:
        prompt = self.ids(15)
        self.check_text("completions", self.openai("completions", prompt=prompt), prompt)
        text = self.openai("completions", prompt=prompt, max_tokens=1)
        self.check_text("completions of one token", text, prompt)
        two = json.loads(self.openai("completions", prompt=prompt, n=2))
        with self.assertRaisesRegex(rr.InvalidArgumentError, "2 choices: it must be in a choice"):
            sglang.rows(two, self.run_.geometry, 1, prompt_token_ids=prompt)

    def test_chat(self) -> None:
        text = self.openai("chat/completions", messages=MESSAGES, return_prompt_token_ids=True)
        [choice] = json.loads(text)["choices"]
        self.assertEqual(choice["prompt_token_ids"], CHAT)
        self.check_text("chat", text, CHAT)
        recorded = sglang.rows(json.loads(text), self.run_.geometry)
        self.assertEqual(recorded.tokens.tolist(), CHAT + choice["response_token_ids"])

    def test_the_readmes_rollout_worker(self) -> None:
        """Runs the part of the README's rollout worker that calls SGLang."""
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "client/README.md").read_text(), re.S | re.M)
        [block] = [block for block in blocks if 'os.environ["SGLANG_URL"]' in block]
        begin, rest = block.split("\n# vLLM, ")
        code = begin + "\n# SGLang" + rest.split("\n# SGLang")[1] + "print(json.dumps(context[:-2]))\n"
        around = {"MODEL_CONFIG": str(MODELS / "qwen3/config.json"), "SGLANG_URL": self.url}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=os.environ | around, check=True, timeout=PATIENCE, stdout=subprocess.PIPE)
        run = self.client.run("grpo-42")
        self.check("README", run, "step1/agent-3", json.loads(done.stdout))
        self.assertEqual([span.version for span in run.stat("step1/agent-3").weights], [17])

    def test_when_the_run_is_made(self) -> None:
        """Asks each of the server's routes before and after the plug-in's run exists. The sampled tokens must be the
        same. Afterwards, the rows must be in the service, and the answer must have a reference to them."""
        prompt = self.ids(20)
        asked = {"completions": {"prompt": prompt}, "chat/completions": {"messages": MESSAGES}}

        def answers() -> list[tuple[list[int], list[int], dict[str, Any]]]:
            """Returns for each route the tokens of the prompt, those of the answer, and the part of the reply that has
            the rows."""
            told = [
                (prompt, json.loads(text))
                for text in (self.generate(prompt), self.events(self.generate(prompt, True))[-1])
            ]
            found = [(ids, reply["output_ids"], reply["meta_info"]) for ids, reply in told]
            for route, body in asked.items():
                ids = prompt if route == "completions" else CHAT
                reply = json.loads(self.openai(route, **body))
                sampled = self.sampled(reply)
                found.append((ids, sampled, reply["sglext"]))
                events = [json.loads(event) for event in self.events(self.openai(route, stream=True, **body))]
                [last] = [event for event in events if (event.get("sglext") or {}).get("routed_experts")]
                found.append((ids, sampled, last["sglext"]))
            return found

        before = answers()
        run = self.open_run("plugged")
        deadline = time.monotonic() + 60
        while not json.loads(self.generate(prompt))["meta_info"]["routed_experts"].startswith("{"):
            self.assertLess(time.monotonic(), deadline, "the plug-in does not join its run")
        after = answers()
        for (ids, sampled, rows), (_, again, reference) in zip(before, after, strict=True):
            self.assertEqual(sampled, again)
            sample = json.loads(reference["routed_experts"])["handle"]["sample"]
            state = self.sealed(run, sample)
            self.assertEqual(state.num_tokens, len(ids) + len(sampled))
            self.check("plug-in", run, sample, ids + sampled, given_rows(rows, run.geometry))
        without = json.loads(post(self.url + "/generate", {"input_ids": prompt}))
        self.assertNotIn("routed_experts", without["meta_info"])
        self.assertEqual(len({state.sample for state in run.list()}), len(after) + 1)

    def sealed(self, run: rr.Run, sample: str) -> Any:
        """Waits until the sample is sealed, because the plug-in may still be appending rows when the answer has
        arrived. Returns its state."""
        run.read_one(sample, wait=True)
        return run.stat(sample)


if __name__ == "__main__":
    unittest.main()
