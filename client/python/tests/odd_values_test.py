"""Odd values in responses and arguments, and bodies that are not JSON, give a typed error that names the field."""

from __future__ import annotations

import pickle
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
from engines_test import ALL, GEOMETRY, OUTPUT, PROMPT, G, P, b64, npy
from support import ServerTest

import routing_replay as rr
from routing_replay import http
from routing_replay.engines import envelope, sglang, vllm


class RejectionTest(unittest.TestCase):
    def rejected(self, call: Any, field: str, reason: str = "FIELD") -> None:
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            call()
        self.assertEqual((caught.exception.field, caught.exception.reason), (field, reason), caught.exception)


class OddValueTest(RejectionTest):
    """An odd value in a response or an argument gives a typed error that names the field."""

    def test_vllm(self) -> None:
        rows = b64(npy(ALL[:-1]))
        span = {"version": "1", "start": 0, "end": 3}
        for spans, field in (
            (5, "weight_versions"),
            ("x", "weight_versions"),
            ([7], "weight_versions[0].start"),
            ([span | {"version": None}], "weight_versions[0].version"),
            ([span | {"version": 1.5}], "weight_versions[0].version"),
            ([span, span | {"start": "x"}], "weight_versions[1].start"),
            ([span | {"start": -1}], "weight_versions"),
            ([span | {"end": G + 1}], "weight_versions"),
            ([{"version": "1", "start": 0}], "weight_versions[0].end"),
        ):
            choice = {"token_ids": OUTPUT, "routed_experts": rows, "weight_versions": spans}
            body = {"prompt_token_ids": PROMPT, "choices": [choice]}
            self.rejected(lambda body=body: vllm.rows(body), field)
        del body["choices"][0]["weight_versions"]
        for options, field in (
            ({"prompt_start": "3"}, "start"),
            ({"prompt_start": 1.5}, "start"),
            ({"prompt_token_ids": 5}, "prompt_token_ids"),
            ({"prompt_token_ids": "abc"}, "prompt_token_ids"),
            ({"output_token_ids": {1: 2}}, "token_ids"),
        ):
            self.rejected(lambda options=options: vllm.rows(body, **options), field)
        for usage, field in (
            ({"prompt_tokens": "x", "completion_tokens": 3}, "usage.prompt_tokens"),
            ({"prompt_tokens": 3, "completion_tokens": [1]}, "usage.completion_tokens"),
            ({"prompt_tokens": -3, "completion_tokens": 1}, "usage.prompt_tokens"),
            ("x", "prompt_token_ids"),
        ):
            odd = {"choices": [{"routed_experts": rows}], "usage": usage}
            self.rejected(lambda odd=odd: vllm.rows(odd), field)
        for response, field in ((None, "outputs"), ("x", "outputs"), (5, "outputs"), ({"choices": "xx"}, "choices")):
            self.rejected(lambda response=response: vllm.rows(response), field)

    def test_others(self) -> None:
        meta = {"prompt_tokens": P, "completion_tokens": G, "routed_experts": b64(ALL[:-1])}
        for geometry in (5, "x", {"num_layers": 4}):
            self.rejected(lambda g=geometry: sglang.rows({"meta_info": meta}, g), "geometry")
            self.rejected(lambda g=geometry: envelope.rows(b64(ALL), g), "geometry")
        for name in ("prompt_tokens", "completion_tokens"):
            self.rejected(lambda name=name: sglang.rows({"meta_info": meta | {name: "x"}}, GEOMETRY), name)
        self.rejected(lambda: sglang.rows({"meta_info": meta}, GEOMETRY, start_len=None), "start")
        self.rejected(lambda: envelope.rows(b64(ALL), GEOMETRY, layers=5), "layers")
        self.rejected(lambda: sglang.rows({"choices": 5}, GEOMETRY), "meta_info.prompt_tokens")
        self.rejected(lambda: sglang.rows({"choices": 5}, GEOMETRY, 0), "choices")
        for value, options, field, reason in (
            ({"data": "AA==", "shape": object()}, {}, "append.tensor.shape", "SHAPE"),
            (ALL, {"start": "x"}, "start", "FIELD"),
            ({"data": "AA==", "shape": [1, 4, 4]}, {"dialect": 5}, "dialect", "FIELD"),
            (np.zeros((0, 4, 4), np.float32), {}, "routed_experts", "DTYPE"),
            ([[[10**30]]], {}, "routed_experts", "DTYPE"),
        ):
            self.rejected(lambda v=value, o=options: envelope.rows(v, **o), field, reason)

    def test_arguments(self) -> None:
        rows = b64(npy(ALL[:-1]))
        odd = (5, None, [1], object(), np.zeros(3), np.array(5), {1: 2}, memoryview(np.zeros((2, 2))))
        for value in odd:
            self.rejected(lambda v=value: envelope.rows(rows, dialect=v), "dialect")
            if value is not None:
                self.rejected(lambda v=value: envelope.rows(rows, dtype=v), "dtype")
        shape: list[Any] = [1, 4]
        shape.append(shape)
        self.rejected(lambda: envelope.rows({"data": "AA==", "shape": shape}), "append.tensor.shape", "SHAPE")
        for tokens in (np.array(5), 5, {}):
            self.rejected(lambda t=tokens: envelope.rows(rows, tokens=t), "tokens")
        body = {"prompt_token_ids": PROMPT, "choices": [{"token_ids": OUTPUT, "routed_experts": rows}]}
        for choices in (np.array(5), memoryview(np.zeros((2, 2)))):
            self.rejected(lambda c=choices: vllm.rows(body | {"choices": c}), "choices")
        for index in (np.zeros(3), np.array(["a"]), object()):
            choice = body["choices"][0] | {"index": index}
            self.rejected(lambda c=choice: vllm.rows(body | {"choices": [c]}), "choices")
        for end in (np.array(["a"]), np.zeros(3), object()):
            spans = [{"version": "7", "start": 0, "end": end}]
            choice = body["choices"][0] | {"weight_versions": spans}
            self.rejected(lambda c=choice: vllm.rows(body | {"choices": [c]}), "weight_versions[0].end")

    def test_geometry(self) -> None:
        for config in (None, 5, []):
            self.rejected(lambda c=config: rr.Geometry.from_hf_config(c), "config")
        for path in ("Qwen/Qwen3-30B-A3B", Path("/nowhere"), "/"):
            with self.assertRaises(FileNotFoundError):
                rr.Geometry.from_hf_config(path)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\xff\xfe{}")
            file.flush()
            self.rejected(lambda: rr.Geometry.from_hf_config(file.name), "config")
        for config in (None, 5):
            self.rejected(lambda c=config: rr.Geometry.from_megatron_config(c), "config")
        for text in ("{", "[" * 100_000, '{"num_layers": 1, "num_layers": 2}'):
            self.rejected(lambda t=text: rr.Geometry.from_json(t), "geometry")


class Bfloat16:
    """Behaves like a torch tensor of bfloat16: numpy has no such dtype, so numpy() raises an error."""

    def detach(self) -> Any:
        return self

    cpu = detach

    def numpy(self) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


class AppendedValueTest(RejectionTest, ServerTest):
    """Tests odd arguments of the calls of a run. They are rejected before anything is sent to the server."""

    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, GEOMETRY)

    def append(self, rows: Any, **options: Any) -> None:
        self.run_.append("s", rows, **options)

    def add(self, rows: Any, **options: Any) -> None:
        self.run_.trajectory("s").add(rows, tokens=range(len(ALL)), **options)

    def test_rows(self) -> None:
        good = ALL[:-1]
        for call in (self.append, self.add):
            for rows, field, reason in (
                (Bfloat16(), "append.tensor.dtype", "DTYPE"),
                (b64(good), "append.tensor.dtype", "DTYPE"),
                (b64(good).encode(), "append.tensor.dtype", "DTYPE"),
                ({"routed_experts": b64(good)}, "append.tensor.dtype", "DTYPE"),
                ([[1, 2], [3]], "append.tensor.shape", "SHAPE"),
                (object(), "append.tensor.dtype", "DTYPE"),
                (rr.Payload(memoryview(bytes(8))[::2]), "payload", "FIELD"),
                (rr.Payload(5), "payload", "FIELD"),  # type: ignore[arg-type]
            ):
                self.rejected(lambda rows=rows, call=call: call(rows), field, reason)
        for text in (b64(good), {"routed_experts": b64(good)}):
            with self.assertRaisesRegex(rr.InvalidArgumentError, r"routing_replay\.engines \(sglang\.rows"):
                self.append(text)
        self.rejected(lambda: self.append(good, tokens=np.array(5)), "append.token_ids", "SHAPE")

    def test_wrong_types_that_one_may_well_pass(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        run = client.run("types", GEOMETRY)

        for field, call in (
            ("appends[0]", lambda: run.append_many([{"sample": "x"}])),  # type: ignore[list-item]
            ("appends[1]", lambda: run.append_many([rr.Append("x"), ("y", ALL)])),  # type: ignore[list-item]
            ("geometry", lambda: client.run("x", {"num_layers": 4})),  # type: ignore[arg-type]
        ):
            with self.subTest(field):
                self.rejected(call, field)
        with self.assertRaisesRegex(TypeError, "a Client cannot be pickled"):
            pickle.dumps(client)


class HttpTest(unittest.TestCase):
    def test_kinds_of_bytes(self) -> None:
        answer = b'{"choices":[{"index":0,"routed_experts":"AAAA"}]}'
        for body in (answer, answer + b"\n\n", bytearray(answer), memoryview(answer)):
            found = http.routed_experts(body)
            self.assertEqual(bytes(found["choices"][0]["routed_experts"]), b"AAAA")

    def test_rejections(self) -> None:
        answer = b'{"routed_experts":"AAAA"}'
        for body in (
            b"",
            b"[DONE]",
            b"event: ping\n\n",
            b"data: " + answer + b"\n\n",
            answer + b"\n\n" + answer,
            b'{"routed_experts":"AAAA","routed_experts":"BBBB"}',
            b'{"routed_experts":"AAAA","routed_experts":["x"]}',
            b'{"choices":[{"routed_experts":"AAAA"}],"choices":5}',
            b'{"choices":[{"routed_experts":"AAAA"}],"choices":[{"x":1}]}',
            b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b"[" * 2000 + b"]" * 2000,
            answer + b" more",
            "{}",
            memoryview(b"{ }x" * 10)[::2],
        ):
            with self.subTest(body=str(body)[:60]):
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    http.routed_experts(body)
                self.assertEqual((caught.exception.reason, caught.exception.field), ("ENCODING", "body"))

    def test_large_texts_stay_where_they_are(self) -> None:
        text = b"A" * (4 << 20)
        body = b'{"meta_info":{"routed_experts":"' + text + b'"}}\n\n'
        view = http.routed_experts(body)["meta_info"]["routed_experts"]
        self.assertIs(view.obj, body)
        self.assertEqual(view.nbytes, len(text))


if __name__ == "__main__":
    unittest.main()
