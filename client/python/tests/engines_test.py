"""Every form and version of answers in engine_forms: stand-ins with the shapes of real responses are appended to a
store."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import unittest
from types import SimpleNamespace as Object
from typing import Any

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import http
from routing_replay.engines import envelope, sglang, vllm

RNG = np.random.default_rng(5)
GEOMETRY = rr.Geometry(num_layers=4, num_experts=64, top_k=4, moe_layers=[1, 2, 3])
P, G = 12, 9
T = P + G
PROMPT = [int(i) for i in RNG.integers(0, 1000, P)]
OUTPUT = [int(i) for i in RNG.integers(0, 1000, G)]
TOKENS = np.array(PROMPT + OUTPUT, np.uint32)
MOE = random_routes(RNG, T, 3, 64, 4)  # One row too many: that of the last token.
ALL = np.concatenate([np.zeros((T, 1, 4), np.int32), MOE], axis=1)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def b64(data: Any) -> str:
    return base64.b64encode(data.tobytes() if isinstance(data, np.ndarray) else data).decode()


def bodies(response: Any) -> list[Any]:
    """A JSON response as json.loads and as http.routed_experts return it."""
    return [json.loads(json.dumps(response)), http.routed_experts(json.dumps(response).encode())]


class EngineTest(ServerTest):
    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.store = client.run(self.run_name, GEOMETRY)
        self.samples = 0

    def check(self, recorded: rr.RecordedRows, begin: int = 0, unrecorded: tuple = (), tokens: bool = True) -> Any:
        """Appends the first `begin` rows and then `recorded`, and checks what is stored."""
        self.samples += 1
        sample = f"s/{self.samples}"
        if begin:
            self.store.append(sample, MOE[:begin], tokens=TOKENS[:begin] if tokens else None)
        self.store.append(sample, recorded, seal=True)
        self.store.flush()
        got = self.store.read_one(sample)
        self.assertEqual((got.status, got.num_tokens, got.unrecorded), ("OK", T, unrecorded))
        np.testing.assert_array_equal(got.rows, np.concatenate([MOE[b:e] for b, e in got.row_ranges]))
        state = self.store.stat(sample)
        self.assertEqual(state.token_check, rr.token_check(TOKENS[:-1]) if tokens else None)
        if tokens:
            np.testing.assert_array_equal(recorded.tokens, TOKENS)
        return state

    def rejected(self, call: Any, reason: str, text: str = "", sample: str = "bad") -> rr.InvalidArgumentError:
        """Returns the error of an adapter, or of the append of its result. Checks that nothing is stored."""
        with self.assertRaises(rr.InvalidArgumentError) as caught:
            recorded = call()
            self.store.append(sample, recorded)
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        self.assertIn(text, str(caught.exception))
        self.store.flush()
        self.assertEqual(self.store.read_one(sample).status, "NOT_FOUND")
        return caught.exception


class VllmTest(EngineTest):
    def output(self, rows: Any, **fields: Any) -> Object:
        completion = Object(index=0, token_ids=OUTPUT, finish_reason="stop", routed_experts=rows)
        if "weight_versions" in fields:
            completion.weight_versions = fields.pop("weight_versions")
        return Object(prompt_token_ids=PROMPT, outputs=[completion], finished=True, **fields)

    def test_objects(self) -> None:
        for rows, surplus in ((ALL, 1), (ALL[:-1], 0), (ALL[:-1].astype(np.uint8), 0), (ALL[:-1].astype(np.uint16), 0)):
            recorded = vllm.rows(self.output(rows), output_token_ids=OUTPUT)
            self.assertEqual((recorded.surplus_rows, recorded.missing_rows, recorded.layers), (surplus, 0, "all"))
            self.assertEqual(self.check(recorded).engine, "vllm")

    def test_a_row_for_the_last_token_is_left_out_where_all_tokens_are_said(self) -> None:
        self.rejected(lambda: vllm.rows(self.output(ALL)), "ROW_COUNT", "pass their ids as output_token_ids")
        choice = {"index": 0, "routed_experts": b64(npy(ALL))}
        body = {"choices": [choice], "usage": {"prompt_tokens": P, "completion_tokens": len(OUTPUT)}}
        self.rejected(lambda: vllm.rows(body), "ROW_COUNT", "pass their ids as output_token_ids")
        recorded = vllm.rows(body, output_token_ids=OUTPUT)
        self.assertEqual(recorded.surplus_rows, 1)
        self.check(recorded, tokens=False)

    def test_nested_lists_have_only_moe_layers(self) -> None:
        for sampled in (2, 3):  # Two rows are no other form, such as a pair.
            completion = Object(index=0, token_ids=OUTPUT[:sampled], finish_reason="stop")
            completion.routed_experts = MOE[:sampled].tolist()  # 1 + sampled tokens have this many rows.
            recorded = vllm.rows(Object(prompt_token_ids=PROMPT[:1], outputs=[completion], finished=True))
            self.assertEqual((recorded.layers, recorded.missing_rows), ("moe", 0))

    def test_strides(self) -> None:
        wide = np.repeat(ALL[:-1], 2, axis=0)[::2].astype(np.int64)
        self.check(vllm.rows(self.output(wide)))
        self.check(vllm.rows(self.output(np.asfortranarray(ALL[:-1]))))

    def test_split_arrays(self) -> None:
        prompt, output = MOE[:P].astype(np.int16), MOE[P:].astype(np.int16)
        prompt[:5] = -1  # -1: unrecorded, as if these rows came from the prefix cache.
        for rows, surplus in ((output, 1), (output[:-1], 0)):
            recorded = vllm.rows(self.output(rows, prompt_routed_experts=prompt))
            self.assertEqual((recorded.layers, recorded.surplus_rows), ("moe", surplus))
            self.check(recorded, unrecorded=((0, 5),))
        for body in bodies(
            {
                "prompt_token_ids": PROMPT,
                "prompt_routed_experts": prompt.tolist(),
                "choices": [{"token_ids": OUTPUT, "routed_experts": output.tolist(), "finish_reason": "stop"}],
            }
        ):
            self.check(vllm.rows(body), unrecorded=((0, 5),))
        self.rejected(lambda: vllm.rows(self.output(None, prompt_routed_experts=prompt)), "FIELD", "preempted")
        self.rejected(lambda: vllm.rows(self.output(output[:, :2], prompt_routed_experts=prompt)), "SHAPE")
        self.rejected(
            lambda: vllm.rows(self.output(output.astype(int), prompt_routed_experts=prompt)), "DTYPE", "int64"
        )

    def test_http(self) -> None:
        text = b64(npy(ALL[:-1].astype(np.uint8)))
        choice = {"index": 0, "token_ids": OUTPUT, "finish_reason": "stop", "routed_experts": text}
        for body in bodies({"prompt_token_ids": PROMPT, "choices": [choice]}):
            self.check(vllm.rows(body))
        for body in bodies({"choices": [{"finish_reason": None}, choice | {"prompt_token_ids": PROMPT}]}):
            self.check(vllm.rows(body, 1))
        chunk = json.dumps({"choices": [choice]}).encode()
        self.check(vllm.rows(http.routed_experts(chunk), prompt_token_ids=PROMPT))
        usage = {"prompt_tokens": P, "completion_tokens": G}
        body = {"usage": usage, "choices": [{"finish_reason": "stop", "routed_experts": text}]}
        self.assertIsNone(vllm.rows(body).tokens)
        self.check(vllm.rows(body), tokens=False)
        body["choices"] *= 2
        self.rejected(lambda: vllm.rows(body), "FIELD", "return_token_ids")
        view = http.routed_experts(json.dumps(body).encode())["choices"][0]["routed_experts"]
        self.assertIsInstance(view, memoryview)

    def test_prompt_start(self) -> None:
        for start in (1, 5, P):
            recorded = vllm.rows(self.output(ALL[start:-1].astype(np.uint8)), prompt_start=start)
            self.assertEqual((recorded.row_start, recorded.missing_rows), (start, 0))
            self.check(recorded, begin=start)
        ignored = self.output(ALL[:-1].astype(np.uint8))
        for start in (1, 5):
            self.rejected(
                lambda start=start: vllm.rows(ignored, prompt_start=start), "ROW_COUNT", f"from row {start} on"
            )
        self.rejected(lambda: vllm.rows(ignored, prompt_start=P + 1), "FIELD", "start")

    def test_missing_at_front(self) -> None:
        self.rejected(lambda: vllm.rows(self.output(ALL[4:-1])), "ROW_COUNT")  # Or there is one token too many.

    def test_absent(self) -> None:
        self.rejected(lambda: vllm.rows(self.output(None)), "FIELD", "enable-return-routed-experts")
        body = {"prompt_token_ids": PROMPT, "choices": [{"token_ids": OUTPUT}]}
        self.rejected(lambda: vllm.rows(body), "FIELD", "proxy")
        recorded = vllm.rows(body, absent="unrecorded")
        self.assertEqual((recorded.rows, recorded.missing_rows), (None, T - 1))
        aborted = self.output(None)
        aborted.outputs[0].finish_reason, aborted.outputs[0].token_ids = "abort", []
        self.assertEqual(vllm.rows(aborted).missing_rows, P - 1)
        self.rejected(lambda: vllm.rows(self.output(None), 1), "FIELD", "no items have index 1")

    def test_weight_versions(self) -> None:
        spans = [{"version": "7", "start": 0, "end": 4}, {"version": "step-8", "start": 4, "end": G}]
        output = self.output(ALL[:-1], weight_versions=[Object(**span) for span in spans])
        state = self.check(vllm.rows(output))
        expected = [(0, P + 3, 7, "7"), (P + 3, T - 1, -1, "step-8")]
        self.assertEqual([(w.begin, w.end, w.version, w.label) for w in state.weights], expected)
        choice = {"token_ids": OUTPUT, "routed_experts": b64(npy(ALL[:-1])), "weight_versions": spans}
        recorded = vllm.rows({"prompt_token_ids": PROMPT, "choices": [choice]})
        self.assertEqual([(w.begin, w.end, w.version, w.label) for w in recorded.weights], expected)

    def test_unknown_objects(self) -> None:
        self.rejected(lambda: vllm.rows(self.output(Object(ref=1))), "FIELD", "must be an array")

    def test_the_last_event_of_a_stream_may_hold_some_tokens_alone(self) -> None:
        short = slice(0, P + 1)  # Of two output tokens, the last one is in the finishing event.
        for rows in (b64(npy(ALL[short].astype(np.uint8))), ALL[short], ALL[short].astype(np.uint8)):
            chunk = {"choices": [{"index": 0, "token_ids": OUTPUT[1:2], "routed_experts": rows}]}
            output = Object(prompt_token_ids=PROMPT, outputs=[Object(**chunk["choices"][0])])
            for response in (chunk, output):
                ids = {"prompt_token_ids": PROMPT}
                error = self.rejected(lambda r=response, ids=ids: vllm.rows(r, **ids), "ROW_COUNT", "output_token_ids")
                self.assertEqual(error.field, "append.rows")
                recorded = vllm.rows(response, output_token_ids=OUTPUT[:2], **ids)
                self.assertEqual((recorded.surplus_rows, recorded.take), (0, (0, P + 1)))
                np.testing.assert_array_equal(recorded.tokens, TOKENS[: P + 2])
            counted = chunk | {"usage": {"prompt_tokens": P, "completion_tokens": 2}}
            self.rejected(lambda r=counted: vllm.rows(r, prompt_token_ids=PROMPT), "ROW_COUNT")
            del counted["choices"][0]["token_ids"]
            self.assertEqual(vllm.rows(counted, prompt_token_ids=PROMPT).take, (0, P + 1))

    def test_choices_go_by_their_index(self) -> None:
        other = RNG.integers(0, 1000, 4).tolist()
        rows = random_routes(RNG, P + 3, 4, 64, 4).astype(np.uint8)
        first = {"index": 0, "token_ids": OUTPUT, "routed_experts": b64(npy(ALL[:-1]))}
        second = {"index": 1, "token_ids": other, "routed_experts": b64(npy(rows))}
        for body in bodies({"prompt_token_ids": PROMPT, "choices": [second, first]}):
            self.check(vllm.rows(body))
            np.testing.assert_array_equal(vllm.rows(body, 1).tokens, PROMPT + other)
            self.assertEqual(vllm.rows(body, 1).take, (0, P + 3))
            told = sglang.rows(body, GEOMETRY, 1, prompt_token_ids=PROMPT, absent="unrecorded")
            np.testing.assert_array_equal(told.tokens, PROMPT + other)
        chunk = {"prompt_token_ids": PROMPT, "choices": [second]}
        self.assertEqual(vllm.rows(chunk, 1).take, (0, P + 3))
        self.rejected(lambda: vllm.rows(chunk), "FIELD", "the response has items [1]")
        output = Object(prompt_token_ids=PROMPT, outputs=[Object(**second), Object(**first)])
        self.check(vllm.rows(output, 0))
        self.rejected(lambda: vllm.rows({"choices": [first, first]}), "FIELD", "2 items have index 0")
        for index in ("x", 0.0, None, -1, True):
            self.rejected(lambda i=index: vllm.rows({"choices": [first]}, i), "FIELD", "index")

    def test_media_in_the_prompt(self) -> None:
        """The engine counts more prompt tokens than the caller, for whom a picture is one token."""
        choice = {"index": 0, "token_ids": OUTPUT, "routed_experts": b64(npy(ALL[:-1]))}
        body = {"usage": {"prompt_tokens": P}, "choices": [choice], "prompt_token_ids": PROMPT[:-5]}
        spans = [{"version": 3, "start": 0, "end": 2}, {"version": 4, "start": 2, "end": G}]
        choice["weight_versions"] = spans
        recorded = vllm.rows(body)
        self.assertEqual([(w.begin, w.end, w.version) for w in recorded.weights], [(0, P + 1, 3), (P + 1, T - 1, 4)])
        self.check(recorded, tokens=False)
        self.assertIsNone(recorded.tokens)
        self.check(vllm.rows(body | {"prompt_token_ids": PROMPT}))
        self.check(vllm.rows(body | {"prompt_token_ids": PROMPT, "usage": {"prompt_tokens": P + 3}}))  # Rows decide.
        self.rejected(lambda: vllm.rows(body | {"usage": {"prompt_tokens": P + 1}}), "ROW_COUNT")
        choice["routed_experts"] = None
        self.assertEqual(vllm.rows(body, absent="unrecorded").missing_rows, T - 1)
        meta = {"prompt_tokens": P, "completion_tokens": G, "routed_experts": b64(ALL[:-1])}
        answer = {"output_ids": OUTPUT, "meta_info": meta}
        self.check(sglang.rows(answer, GEOMETRY, prompt_token_ids=PROMPT[:-5]), tokens=False)

    def test_prime_rl_route(self) -> None:
        rows = ALL[3:-1].astype(np.uint8)
        value = {"data": b64(rows), "shape": list(rows.shape), "start": 3}
        for body in bodies({"prompt_token_ids": PROMPT, "choices": [{"token_ids": OUTPUT, "routed_experts": value}]}):
            self.check(vllm.rows(body), begin=3)
            self.rejected(lambda body=body: vllm.rows(body, prompt_start=2), "ROW_COUNT")
        del value["start"]
        body = {"prompt_token_ids": PROMPT, "choices": [{"token_ids": OUTPUT, "routed_experts": value}]}
        self.check(vllm.rows(body, prompt_start=3), begin=3)
        self.rejected(lambda: vllm.rows(body), "ROW_COUNT")


def npy_payload(array: np.ndarray) -> str:
    return b64(npy(array))


class SglangTest(EngineTest):
    def response(self, rows: Any, place: str = "meta_info", **fields: Any) -> dict[str, Any]:
        meta = {"prompt_tokens": P, "completion_tokens": G, "weight_version": "3", "routed_experts": rows} | fields
        if place == "meta_info":
            return {"text": "", "output_ids": OUTPUT, "meta_info": meta}
        response, where = place.split(".")
        usage = {"prompt_tokens": P, "completion_tokens": G}
        extension = {where: {key: meta[key] for key in meta if key.startswith("routed")}}
        if response == "choice":
            return {"usage": usage, "choices": [{"index": 0} | extension]}
        return {"usage": usage, "choices": [{"index": 0}]} | extension

    def test_places(self) -> None:
        for place in (
            "meta_info",
            "choice.meta_info",
            "choice.sgl_ext",
            "choice.sglext",
            "root.sglext",
            "root.sgl_ext",
        ):
            for body in bodies(self.response(b64(ALL[:-1]), place)):
                ids = {"prompt_token_ids": PROMPT, "output_token_ids": OUTPUT}
                recorded = sglang.rows(body, GEOMETRY, **ids)
                self.assertEqual(self.check(recorded).engine, "sglang")
                self.check(sglang.rows(body, GEOMETRY), tokens=False)

    def test_rows_of_a_response_belong_to_none_of_its_choices(self) -> None:
        for place in ("root.sglext", "root.sgl_ext"):
            response = self.response(b64(ALL[:-1]), place)
            response["choices"] = [{"token_ids": OUTPUT}, {"token_ids": OUTPUT[::-1]}]
            for index in range(2):
                self.rejected(
                    lambda i=index, r=response: sglang.rows(r, GEOMETRY, i, prompt_token_ids=PROMPT),
                    "FIELD",
                    "must be in a choice",
                )

    def test_wire_dtype(self) -> None:
        for dtype in ("int32", "uint16", "uint8"):
            body = self.response(b64(ALL[:-1].astype(dtype)), routed_experts_dtype=dtype)
            self.check(sglang.rows(body, GEOMETRY), tokens=False)
        for dtype in ("float32", "", "int16", "uint64"):
            body = self.response(b64(ALL[:-1]), routed_experts_dtype=dtype)
            self.rejected(lambda body=body: sglang.rows(body, GEOMETRY), "DTYPE")

    def test_start_len(self) -> None:
        for start in (1, 4, P):
            recorded = sglang.rows(self.response(b64(ALL[start:-1])), GEOMETRY, start_len=start)
            self.check(recorded, begin=start, tokens=False)
        body = self.response(b64(ALL[:-1]))
        error = self.rejected(lambda: sglang.rows(body, GEOMETRY, start_len=4), "ROW_COUNT", "from row 4 on")
        self.assertEqual(error.field, "append.rows")

    def test_row_counts(self) -> None:
        recorded = sglang.rows(self.response(b64(ALL)), GEOMETRY)
        self.assertEqual(recorded.surplus_rows, 1)
        self.check(recorded, tokens=False)
        counted = self.response(b64(ALL), "choice.meta_info")
        self.rejected(lambda: sglang.rows(counted, GEOMETRY), "ROW_COUNT", "pass their ids as output_token_ids")
        self.assertEqual(sglang.rows(counted, GEOMETRY, output_token_ids=OUTPUT).surplus_rows, 1)
        uncounted = {"output_ids": OUTPUT, "meta_info": {"routed_experts": b64(ALL)}}  # Possibly part of a stream.
        prompt = {"prompt_token_ids": PROMPT}
        self.rejected(lambda: sglang.rows(uncounted, GEOMETRY, **prompt), "ROW_COUNT", "output_token_ids")
        self.rejected(lambda: sglang.rows(self.response(b64(ALL[1:-1])), GEOMETRY), "ROW_COUNT", "expected 20")
        twice = b64(np.concatenate([ALL[:-1]] * 2))  # The rows of two attention-TP ranks in one buffer.
        self.rejected(lambda: sglang.rows(self.response(twice), GEOMETRY), "ROW_COUNT")
        other = rr.Geometry(num_layers=5, num_experts=64, top_k=3)
        self.rejected(lambda: sglang.rows(self.response(b64(ALL[:-1])), other), "LENGTH", "whole rows")
        self.rejected(lambda: sglang.rows(self.response(b64(ALL[:-1]))), "SHAPE", "geometry")

    def test_the_last_event_of_a_stream_may_hold_some_tokens_alone(self) -> None:
        body = {"output_ids": OUTPUT[1:2], "meta_info": {"completion_tokens": 2, "routed_experts": b64(ALL[: P + 1])}}
        self.rejected(lambda: sglang.rows(body, GEOMETRY, prompt_token_ids=PROMPT), "ROW_COUNT", "output_token_ids")
        ids = {"prompt_token_ids": PROMPT, "output_token_ids": OUTPUT[:2]}
        self.assertEqual(sglang.rows(body, GEOMETRY, **ids).surplus_rows, 0)
        ids["output_token_ids"] = OUTPUT[1:2]  # A stop token was cut off.
        self.assertEqual(sglang.rows(body, GEOMETRY, **ids).surplus_rows, 1)

    def test_tensors(self) -> None:
        for rows in (ALL[:-1], ALL[:-1].ravel(), ALL[:-1].reshape(T - 1, -1), Tensor(ALL[:-1])):
            self.check(sglang.rows(self.response(rows), GEOMETRY), tokens=False)
        self.rejected(lambda: sglang.rows(self.response(ALL[:-1].ravel()[:-1]), GEOMETRY), "LENGTH")

    def test_absent_and_references(self) -> None:
        body = self.response(None)
        self.rejected(lambda: sglang.rows(body, GEOMETRY), "FIELD", "return_routed_experts")
        self.assertEqual(sglang.rows(body, GEOMETRY, absent="unrecorded").missing_rows, T - 1)
        body["meta_info"]["finish_reason"] = {"type": "abort"}
        self.assertEqual(sglang.rows(body, GEOMETRY).missing_rows, T - 1)
        pickled = self.response(base64.b64encode(b"\x80\x04\x95" + bytes(60)).decode())
        self.rejected(lambda: sglang.rows(pickled, GEOMETRY), "ENCODING", "never opened")

    def test_weight_versions(self) -> None:
        body = self.response(b64(ALL[:-1]))
        self.assertEqual(sglang.rows(body, GEOMETRY).weights, ())
        spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": G}]
        recorded = sglang.rows(self.response(b64(ALL[:-1]), weight_versions=spans), GEOMETRY)
        self.assertEqual([(w.begin, w.end, w.version) for w in recorded.weights], [(0, P + 1, 3), (P + 1, T - 1, 4)])
        self.check(recorded, tokens=False)


class Tensor:
    """Like a torch tensor, as far as the adapter uses it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array


class EnvelopeTest(EngineTest):
    def test_every_form(self) -> None:
        rows = ALL[:-1]
        small, text = rows.astype(np.uint8), b64(rows.astype(np.uint8))
        shape = list(rows.shape)
        signed = rows.astype(np.int8)
        forms: list[tuple[Any, dict[str, Any]]] = [
            (f"nrlre1:int8:{T - 1}x4x4:{b64(signed)}", {}),
            ({"data": text, "shape": shape, "start": 0}, {}),
            ({"data": text, "shape": shape, "dtype": "uint8"}, {"dialect": "skyrl"}),
            ({"data": text, "shape": shape, "dtype": "uint8", "__ndarray__": True}, {"dialect": "ms_swift"}),
            (b64(npy(small)), {}),
            (b64(rows), {"geometry": GEOMETRY}),
            (b64(MOE[:-1]), {"geometry": GEOMETRY, "layers": "moe"}),
            (rows.tolist(), {}),
            (rows.astype(np.int64), {}),
            (rr.Payload(npy(rows), "NPY"), {}),
        ]
        for value, options in forms:
            with self.subTest(type=type(value), options=options):
                recorded = envelope.rows(value, tokens=TOKENS, **options)
                self.check(recorded)
                self.check(envelope.rows(value, **options), tokens=False)

    def test_surplus_and_start(self) -> None:
        recorded = envelope.rows(ALL, tokens=TOKENS)
        self.assertEqual(recorded.surplus_rows, 1)
        self.check(recorded)
        later = {"data": b64(ALL[5:-1]), "shape": [T - 6, 4, 4], "start": 5, "dtype": "int32"}
        self.check(envelope.rows(later, tokens=TOKENS), begin=5)
        self.check(envelope.rows(ALL[5:-1], tokens=TOKENS, start=5), begin=5)
        self.rejected(lambda: envelope.rows(later, start=4), "ROW_COUNT")
        self.rejected(lambda: envelope.rows(later | {"start": 0}, start=5), "ROW_COUNT")

    def test_malformed(self) -> None:
        text, shape = b64(ALL[:-1]), [T - 1, 4, 4]
        for value, options, reason in (
            (None, {}, "FIELD"),
            (3, {}, "FIELD"),
            ("nrlre2:int8:1x4x4:AA==", {}, "SHAPE"),
            ("nrlre1:uint8:1x4x4:AA==", {}, "DTYPE"),
            ("nrlre1:int8: 1x4x4:AA==", {}, "SHAPE"),
            ("nrlre1:int8:1x4x4:AA==", {}, "LENGTH"),
            ("nrlre1:int8:1x4x4:A*==", {}, "ENCODING"),
            ({"data": text}, {}, "SHAPE"),
            ({"shape": shape}, {}, "FIELD"),
            ({"data": text, "shape": [T - 1, True, 4]}, {}, "SHAPE"),
            ({"data": text, "shape": shape, "dtype": "intxx"}, {}, "DTYPE"),
            ({"data": text, "shape": shape, "dtype": "int64"}, {}, "LENGTH"),
            ({"data": text[:-2], "shape": shape, "dtype": "int32"}, {}, "ENCODING"),
            ({"data": text, "shape": shape, "dtype": "int32"}, {"dialect": "skyrl"}, "DTYPE"),
            ({"data": text, "shape": shape, "dtype": "int32"}, {"dialect": "ms_swift"}, "FIELD"),
            (text, {"dialect": "skyrl"}, "FIELD"),
            ([[1, 2], [3]], {}, "SHAPE"),
            ([[[0.5]]], {}, "DTYPE"),
            (np.zeros((T - 1, 4, 3), np.int32), {}, "SHAPE"),
            (np.zeros((2, 3, 4, 4), np.int32), {}, "SHAPE"),
            (ALL[:-1].astype(np.float32), {}, "DTYPE"),
        ):
            with self.subTest(value=str(value)[:40]):
                self.rejected(lambda value=value, options=options: envelope.rows(value, **options), reason)


class BadCaptureTest(EngineTest):
    """Known bad captures are rejected with reason, row and layer, and counted."""

    def test_each(self) -> None:
        def spoil(*at: Any, value: Any = 0) -> np.ndarray:
            rows = ALL[:-1].copy()
            rows[at] = value
            return rows

        cases: list[tuple[np.ndarray, str, str, int | None, int | None]] = [
            (np.zeros_like(ALL[:-1]), "ALL_ZERO_LAYER", "capture is broken", None, 1),
            (spoil(slice(None), 2), "ALL_ZERO_LAYER", "pipeline stages", None, 2),
            (spoil(slice(0, P)), "DUPLICATE_ID", "occurs twice", 0, 1),  # Prompt rows of a P/D prefill.
            (spoil(7, 3, 1, value=ALL[7, 3, 0]), "DUPLICATE_ID", "occurs twice", 7, 3),
            (spoil(7, 3, 1, value=-1), "PARTIAL_ROW", "only part of the row is marked missing", 7, 3),
            (spoil(7, 3, value=-1), "PARTIAL_ROW", "only part of the row is marked missing", 7, 3),
            (spoil(7, 3, 1, value=64), "ID_RANGE", "expert id 64", 7, 3),
            (ALL[:-1, :2], "SHAPE", "layer axis of 2", None, None),
        ]
        for rows, reason, text, row, layer in cases:
            with self.subTest(reason=reason, text=text):
                error = self.rejected(lambda rows=rows: envelope.rows(rows, tokens=TOKENS), reason, text)
                self.assertEqual((error.row, error.layer), (row, layer))
        whole = spoil(slice(5, 8), value=-1)
        self.check(envelope.rows(whole, tokens=TOKENS), unrecorded=((5, 8),))

    def test_counters(self) -> None:
        self.check(envelope.rows(ALL, tokens=TOKENS))
        self.check(envelope.rows(ALL[:-1].astype(np.uint8), tokens=TOKENS))
        self.check(envelope.rows(b64(npy(ALL[:-1])), tokens=TOKENS))
        self.store.append("lost", vllm.rows({"prompt_token_ids": PROMPT, "choices": [{"token_ids": []}]}), seal=True)
        self.store.flush()
        metrics = self.store.metrics()
        self.assertEqual((metrics["appends"], metrics["unrecorded_rows"]), (4, P - 1))


class NpyFixtureTest(ServerTest):
    def test_texts(self) -> None:
        known = {
            ("|u1", (1, 4, 8)): (216, "dbedd44e4556020c"),
            ("|u1", (22, 61, 8)): (14488, "48646c763781d148"),
            ("|u1", (0, 61, 8)): (172, "2367878c37678c27"),
            ("<u2", (7, 4, 8)): (768, "22fcf1234a66faec"),
            ("<i4", (3, 2)): (204, "b41ac2da2962f164"),
            ("|u1", (262143, 4, 8)): (11184940, "505f345b45275d10"),
            ("<u2", (16385, 61, 8)): (21322520, "c2e2ae5cf0fb76e3"),
            ("|u1", (5,)): (180, "685bd4ee3e28b406"),
        }
        modulus = {1: 251, 2: 65521, 4: 2147483629}
        for (descr, shape), (length, digest) in known.items():
            size = int(np.prod(shape))
            values = (7 * np.arange(size, dtype=np.int64) + 3) % modulus[np.dtype(descr).itemsize]
            array = values.astype(descr).reshape(shape)
            text = b64(npy(array))
            self.assertEqual((len(text), hashlib.sha256(text.encode()).hexdigest()[:16]), (length, digest))
            if len(shape) != 3:
                with self.assertRaises(rr.InvalidArgumentError) as caught:
                    self.appended(rr.Geometry(4, 251, 8), text)
                self.assertEqual(caught.exception.reason, "SHAPE")
                continue
            limit = 251 if descr == "|u1" else 65521
            sample = self.appended(rr.Geometry(shape[1], limit, 8), text)
            np.testing.assert_array_equal(sample.rows, array)

    def appended(self, geometry: rr.Geometry, text: str) -> rr.SampleRows:
        with rr.Client(self.server.endpoint) as client:
            run = client.run(f"{self.run_name}/{geometry.fingerprint}", geometry)
            run.append("s", envelope.rows(text), restart=len(text))
            run.flush(60)
            return run.read_one("s")


if __name__ == "__main__":
    unittest.main()
