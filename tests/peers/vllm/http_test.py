"""vLLM's server: its routes that return routed experts, through the adapter and the plug-in, and the README's rollout
worker."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import time
import unittest
from typing import Any

import numpy as np
from common.answers import MODELS, PeerTest
from common.entry_points import plugged
from common.served import PATIENCE, post, served
from common.support import ROOT
from peer import settings
from routing_replay import http
from routing_replay.engines import vllm


def rows_of(choice: dict[str, Any]) -> np.ndarray:
    """Reads rows as vLLM's documentation says."""
    return np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))


class HttpTest(PeerTest):
    """The server has the plug-in, which takes the rows out of answers as soon as its run exists. Only the last test
    creates this run, so in all other tests the answers still have their rows."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        flags = {"served_model_name": "m", "enable_scale_out": True}
        around = cls.enterClassContext(plugged("plugged"))
        cls.url = cls.enterClassContext(served("vllm.entrypoints.openai.api_server", settings() | flags, around))
        cls.run_ = cls.open_run("http")

    def post(self, route: str, **body: Any) -> bytes:
        body = {"model": "m", "max_tokens": 12, "temperature": 1.0} | body
        if route.endswith("generate"):
            sampling = {name: body.pop(name) for name in ("max_tokens", "temperature", "n") if name in body}
            body["sampling_params"] = sampling
        return post(self.url + route, body)

    def check_reply(self, case: str, text: bytes, index: int, prompt: list[int], **options: Any) -> None:
        """Checks the stored rows of one choice, for the reply as json.loads and as routing_replay.http read it."""
        plain = json.loads(text)
        [choice] = [each for each in plain["choices"] if each["index"] == index]
        for kind, reply in (("json", plain), ("http", http.routed_experts(text))):
            sample = f"{case}/{index}/{kind}".replace(" ", "-")
            self.run_.append(sample, vllm.rows(reply, index, **options), seal=True)
            self.run_.flush()
            tokens = prompt + options.get("output_token_ids", choice["token_ids"])
            self.check(case, self.run_, sample, tokens, rows_of(choice))

    def test_completions(self) -> None:
        prompt, second = self.ids(15), self.ids(9)
        text = self.post("/v1/completions", prompt=prompt, n=2, return_token_ids=True)
        for index in range(2):
            self.check_reply("completions", text, index, prompt)
        text = self.post("/v1/completions", prompt=[prompt, second], n=2, max_tokens=5, return_token_ids=True)
        for index in range(4):
            self.check_reply("completions of two prompts", text, index, (prompt, second)[index // 2])
        text = self.post("/v1/completions", prompt=prompt, max_tokens=1, return_token_ids=True)
        self.check_reply("completions of one token", text, 0, prompt)
        text = self.post("/v1/completions", prompt=prompt, echo=True, logprobs=1, return_token_ids=True)
        self.check_reply("completions with echo", text, 0, prompt)

    def test_completions_without_token_ids(self) -> None:
        """Without token ids, the number of tokens comes from the reply's `usage`, and the sample has no token check."""
        text = self.post("/v1/completions", prompt=self.ids(15), max_tokens=6)
        reply = json.loads(text)
        self.run_.append("counted", vllm.rows(reply), seal=True)
        self.run_.flush()
        np.testing.assert_array_equal(self.run_.read_one("counted").rows, rows_of(reply["choices"][0]))

    def test_chat(self) -> None:
        messages = [{"role": "user", "content": "w10 w20 w30 w40"}]
        text = self.post("/v1/chat/completions", messages=messages, n=2, return_token_ids=True)
        prompt = json.loads(text)["prompt_token_ids"]
        self.assertEqual(prompt, [10, 20, 30, 40])
        for index in range(2):
            self.check_reply("chat", text, index, prompt)

    def test_generate(self) -> None:
        prompt = self.ids(15)
        text = self.post("/inference/v1/generate", token_ids=prompt, n=2)
        for index in range(2):
            self.check_reply("generate", text, index, prompt, prompt_token_ids=prompt)
        recorded = vllm.rows(json.loads(text))
        self.assertIsNone(recorded.tokens)  # The answer does not contain the prompt's tokens.
        self.assertEqual([span.label for span in recorded.weights], ["default"])
        text = self.post("/inference/v1/generate", token_ids=prompt, return_token_ids=True)
        self.check_reply("generate with token ids", text, 0, prompt)

    def test_streams(self) -> None:
        prompt = self.ids(15)
        for number in (1, 2):
            text = self.post("/inference/v1/generate", token_ids=prompt, n=number, stream=True)
            lines = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: {")]
            sampled: dict[int, list[int]] = {}
            finished = 0
            for line in lines:
                for choice in json.loads(line)["choices"]:
                    sampled.setdefault(choice["index"], []).extend(choice["token_ids"] or [])
                    if choice.get("routed_experts"):
                        ids = {"prompt_token_ids": prompt, "output_token_ids": sampled[choice["index"]]}
                        self.check_reply(f"stream of {number}", line, choice["index"], prompt, **ids)
                        finished += 1
            self.assertEqual(finished, number)
        for route, asked in (
            ("/v1/completions", {"prompt": prompt}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w10"}]}),
        ):
            text = self.post(route, stream=True, return_token_ids=True, **asked)
            self.assertNotIn(b'"routed_experts":"', text)

    def test_turns(self) -> None:
        agent, context = self.run_.trajectory("agent", group=1), self.ids(40)
        for turn in range(3):
            start = min(agent.next_row(context), len(context))
            asked = {"prompt": context, "return_token_ids": True, "routed_experts_prompt_start": start}
            text = self.post("/v1/completions", **asked)
            agent.add(vllm.rows(http.routed_experts(text), prompt_start=start), weight_version=turn)
            [choice] = json.loads(text)["choices"]
            tokens = context + choice["token_ids"]
            context = tokens + self.ids(5)
        agent.seal()
        self.run_.flush()
        self.check("turns", self.run_, "agent", tokens, rows_of(choice), start=start)

    def test_the_readmes_rollout_worker(self) -> None:
        """Runs the part of the README's worker that calls vLLM."""
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "client/README.md").read_text(), re.S | re.M)
        [block] = [block for block in blocks if 'os.environ["VLLM_URL"]' in block]
        code = block.split("\n# SGLang")[0] + "\nrun.flush()\n"
        code += 'print(json.dumps([[*prompt, *choice["token_ids"]] for choice in reply["choices"]]))\n'
        around = {"MODEL_CONFIG": str(MODELS / "qwen3/config.json"), "VLLM_URL": self.url}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=os.environ | around, check=True, timeout=PATIENCE, stdout=subprocess.PIPE)
        run = self.client.run("grpo-42")
        for index, tokens in enumerate(json.loads(done.stdout)):
            self.check("README", run, f"step1/math-7/{index}", tokens)
            self.assertEqual([span.version for span in run.stat(f"step1/math-7/{index}").weights], [17])
        self.assertEqual(len(run.list()), 2)

    def test_when_the_run_is_made(self) -> None:
        """Asks each route of the server before and after the run exists: the plug-in must then store the same rows that
        the answers carried before."""
        prompt = self.ids(70)
        messages = [{"role": "user", "content": "w10 w20 w30 w40"}]
        openai = {"temperature": 0.0, "return_token_ids": True}

        def answers() -> list[tuple[list[int], dict[str, Any]]]:
            """Returns, for each answer, the tokens of the prompt and the choice in the reply."""
            two = json.loads(self.post("/v1/completions", prompt=prompt, n=2, seed=1, **openai | {"temperature": 1.0}))
            found = [(prompt, choice) for choice in two["choices"]]
            found += [
                (
                    [10, 20, 30, 40],
                    *json.loads(self.post("/v1/chat/completions", messages=messages, **openai))["choices"],
                )
            ]
            asked = {"token_ids": prompt, "temperature": 0.0}
            found += [(prompt, *json.loads(self.post("/inference/v1/generate", **asked))["choices"])]
            text = self.post("/inference/v1/generate", stream=True, **asked)
            parts = [
                part
                for line in text.split(b"\n")
                if line.startswith(b"data: {")
                for part in json.loads(line[6:])["choices"]
            ]
            ids = [token for part in parts for token in part["token_ids"] or []]
            [last] = [part for part in parts if part.get("routed_experts")]
            return [*found, (prompt, last | {"token_ids": ids})]

        before = answers()
        run = self.open_run("plugged")
        deadline = time.monotonic() + 60
        first = ""
        while not first.startswith("{"):
            self.assertLess(time.monotonic(), deadline, "the plug-in does not join its run")
            first = json.loads(self.post("/v1/completions", prompt=prompt))["choices"][0]["routed_experts"]
        # The server sends an answer before its rows are stored.
        run.read_one(json.loads(first)["handle"]["sample"], wait=True)
        count = len(run.list())
        after = answers()
        for (ids, own), (_, choice) in zip(before, after, strict=True):
            self.assertEqual(own["token_ids"], choice["token_ids"])
            sample = json.loads(choice["routed_experts"])["handle"]["sample"]
            run.read_one(sample, wait=True)
            self.check("plug-in", run, sample, ids + choice["token_ids"], rows_of(own))
        self.assertEqual(len(run.list()), count + len(after))
        text = self.post("/v1/completions", prompt=prompt, stream=True, request_id="streamed")
        self.assertNotIn(b'routed_experts":"', text)
        run.read_one("cmpl-streamed-0/0", wait=True)  # Stored although the stream has no rows.


if __name__ == "__main__":
    unittest.main()
