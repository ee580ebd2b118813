"""Servers that answer like vLLM and SGLang, with a model whose routes can be computed: no engine, no GPU.

The fields and their forms are those of vLLM 0.33 and SGLang 0.5.23.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

# The model's Hugging Face config.json. Its layer 0 is dense, so engines report zeros for this layer.
CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 6,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "norm_topk_prob": True,
}
LAYERS, EXPERTS, TOP_K = 6, 32, 4
MOE_LAYERS = [1, 2, 3, 4, 5]
VOCABULARY = 1000


def answer_of(prompt: list[int], choice: int, count: int) -> list[int]:
    """The tokens that the model samples after `prompt`."""
    return np.random.default_rng([choice, *prompt]).integers(0, VOCABULARY, count).tolist()


def routes_of(tokens: list[int]) -> np.ndarray:
    """ids [len(tokens) - 1, LAYERS, TOP_K] int32: the experts of each position, which depend on the tokens up to it."""
    rows = np.zeros((max(0, len(tokens) - 1), LAYERS, TOP_K), np.int32)
    for position in range(len(rows)):
        seed = zlib.crc32(np.asarray(tokens[: position + 1], np.uint32).tobytes())
        scores = np.random.default_rng(seed).random((len(MOE_LAYERS), EXPERTS))
        rows[position, MOE_LAYERS] = scores.argsort(axis=1)[:, :TOP_K]
    return rows


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Writes no log."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = self.server.answers(self.path, body)  # type: ignore[attr-defined]
        if body.get("stream"):
            self._send("text/event-stream", b"".join(_event(answer) for answer in answers) + b"data: [DONE]\n\n")
        else:
            *_, last = answers
            self._send("application/json", json.dumps(last).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _event(answer: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(answer).encode() + b"\n\n"


class FakeEngine(ThreadingHTTPServer):
    """A context that listens on a free port of the loopback interface; `url` is its address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> FakeEngine:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def answers(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the events of a stream; without streaming, the last one is the answer. Each contains the whole answer
        so far, except in streams of vLLM, whose events contain only what is new."""
        raise NotImplementedError


class FakeVllm(FakeEngine):
    """Answers `/v1/completions` with token ids as the prompt, and `/inference/v1/generate`, which takes and returns
    token ids."""

    def answers(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if path == "/inference/v1/generate":
            yield from self._generate(body)
        elif path == "/v1/completions":
            yield self._completions(body)

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        choices = [
            {
                "index": i,
                "text": "…",
                "finish_reason": "length",
                "prompt_token_ids": prompt if body.get("return_token_ids") else None,
                "token_ids": answer if body.get("return_token_ids") else None,
                "routed_experts": self._npy(prompt + answer, body.get("routed_experts_prompt_start", 0)),
            }
            for i in range(body.get("n", 1))
            for answer in [answer_of(prompt, i, body["max_tokens"])]
        ]
        return {"id": "cmpl-1", "object": "text_completion", "model": "fake", "choices": choices}

    def _generate(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        prompt, params = body["token_ids"], body["sampling_params"]
        answer = answer_of(prompt, 0, params["max_tokens"])
        rows = self._npy(prompt + answer, params.get("routed_experts_prompt_start", 0))
        spans = [{"version": "17", "start": 0, "end": len(answer)}]
        last = {"index": 0, "finish_reason": "length", "routed_experts": rows, "weight_versions": spans}
        if not body.get("stream"):
            yield {"request_id": "gen-1", "choices": [{**last, "token_ids": answer}]}
            return
        for token in answer[:-1]:
            yield {"request_id": "gen-1", "choices": [{"index": 0, "finish_reason": None, "token_ids": [token]}]}
        yield {"request_id": "gen-1", "choices": [{**last, "token_ids": answer[-1:]}]}

    @staticmethod
    def _npy(tokens: list[int], start: int) -> str:
        file = io.BytesIO()
        np.save(file, routes_of(tokens)[start:].astype(np.uint8))
        return base64.b64encode(file.getvalue()).decode()


class FakeSglang(FakeEngine):
    """Answers `/generate` with input_ids. In a stream, each event carries the whole answer so far."""

    def answers(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        prompt, start = body["input_ids"], body.get("routed_experts_start_len", 0)
        answer = answer_of(prompt, 0, body["sampling_params"]["max_new_tokens"])
        for count in range(1, len(answer) + 1):
            ends = count == len(answer)
            meta = {
                "id": body.get("rid", "rid-1"),
                "prompt_tokens": len(prompt),
                "completion_tokens": count,
                "finish_reason": {"type": "length", "length": count} if ends else None,
                "weight_version": "17",
            }
            if ends and body.get("return_routed_experts"):
                rows = routes_of(prompt + answer)[start:].astype("<i4")
                meta["routed_experts"] = base64.b64encode(rows.tobytes()).decode()
            yield {"text": "…", "output_ids": answer[:count], "meta_info": meta}
