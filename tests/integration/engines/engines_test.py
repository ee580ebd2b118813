"""The rollout script of a user, against servers that answer like vLLM and SGLang: every row must arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import routing_replay as rr
from fake_engines import CONFIG, MOE_LAYERS, FakeSglang, FakeVllm, answer_of, routes_of
from routing_replay import http
from routing_replay.engines import sglang, vllm

HERE = Path(__file__).resolve().parent
README = HERE.parents[2] / "client/README.md"
PROMPT = [11, 12, 13, 14, 15]


def post(url: str, **body: Any) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return reply.read()


def events(stream: bytes) -> list[bytes]:
    found = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    return [event for event in found if event != b"[DONE]"]


class EnginesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.vllm = self.enterContext_(FakeVllm())
        self.sglang = self.enterContext_(FakeSglang())
        server = self.enterContext_(rr.local_server())
        self.client = rr.Client(server.endpoint)
        self.addCleanup(self.client.close)

    def enterContext_(self, context: Any) -> Any:
        """Does what TestCase.enterContext does, which exists only from Python 3.11 on."""
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def check(self, run: rr.Run, sample: str, tokens: list[int]) -> rr.SampleState:
        """Checks that the sample holds the routes of these tokens and has their token check."""
        rows = run.read_one(sample)
        self.assertEqual(rows.status, "OK", rows.message)
        np.testing.assert_array_equal(rows.rows, routes_of(tokens)[:, MOE_LAYERS])
        state = run.stat(sample)
        self.assertEqual(state.num_tokens, len(tokens))
        self.assertEqual(state.token_check, rr.token_check(tokens[:-1]))
        return state

    def test_the_rollout_script(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            config = Path(directory, "config.json")
            config.write_text(json.dumps(CONFIG))
            variables = {"MODEL_CONFIG": str(config), "VLLM_URL": self.vllm.url, "SGLANG_URL": self.sglang.url}
            subprocess.run([sys.executable, HERE / "rollout.py"], env=os.environ | variables, check=True, timeout=120)
        run = self.client.run("grpo-42")
        for j in range(2):
            self.check(run, f"step1/math-7/{j}", PROMPT + answer_of(PROMPT, j, 12))
        context = list(PROMPT)
        for _ in range(3):
            answered = context + answer_of(context, 0, 9)
            context = [*answered, 901, 902]
        state = self.check(run, "step1/agent-3", answered)
        self.assertEqual([(span.begin, span.end, span.version) for span in state.weights], [(0, len(answered) - 1, 17)])

    def test_the_script_is_the_readmes_example(self) -> None:
        self.assertIn((HERE / "rollout.py").read_text(), README.read_text())

    def test_the_finishing_event_of_vllms_stream(self) -> None:
        run = self.client.run("vllm-stream", rr.Geometry.from_hf_config(CONFIG))
        params = {"max_tokens": 6, "routed_experts_prompt_start": 2}
        stream = post(self.vllm.url + "/inference/v1/generate", token_ids=PROMPT, sampling_params=params, stream=True)
        chunks = [http.routed_experts(event) for event in events(stream)]
        sampled = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        answer = answer_of(PROMPT, 0, 6)
        self.assertEqual(sampled, answer)
        tokens = PROMPT + answer
        run.put("s", routes_of(tokens)[:2].astype(np.uint8), tokens=tokens[:2])
        recorded = vllm.rows(chunks[-1], prompt_start=2, prompt_token_ids=PROMPT, output_token_ids=sampled)
        run.put("s", recorded, num_tokens=len(tokens))
        state = self.check(run, "s", tokens)
        self.assertEqual(
            [(span.begin, span.end, span.version) for span in state.weights], [(0, 2, -1), (2, len(tokens) - 1, 17)]
        )

    def test_the_last_event_of_sglangs_stream(self) -> None:
        run = self.client.run("sglang-stream", rr.Geometry.from_hf_config(CONFIG))
        stream = post(
            self.sglang.url + "/generate",
            input_ids=PROMPT,
            sampling_params={"max_new_tokens": 7},
            return_routed_experts=True,
            stream=True,
        )
        last = http.routed_experts(events(stream)[-1])
        run.put("s", sglang.rows(last, run.geometry, prompt_token_ids=PROMPT), weight_version=17, seal=True)
        state = self.check(run, "s", PROMPT + answer_of(PROMPT, 0, 7))
        self.assertEqual([span.version for span in state.weights], [17])

    def test_an_engine_without_the_flag_is_told_apart(self) -> None:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3}}
        reply = json.loads(post(self.sglang.url + "/generate", **body))
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            sglang.rows(reply, rr.Geometry.from_hf_config(CONFIG), prompt_token_ids=PROMPT)
        self.assertIn("return_routed_experts", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
