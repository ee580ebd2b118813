"""Answers whose rows, tokens or layers are misleading, in forms that real engines returned."""

from __future__ import annotations

import base64
import unittest
from types import SimpleNamespace
from typing import Any

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay.engines import attach, sglang, vllm

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
RNG = np.random.default_rng(23)
PROMPT, ANSWER = [11, 12, 13, 14, 15, 16], [21, 22, 23]
TOKENS = PROMPT + ANSWER
ROUTES = random_routes(RNG, len(TOKENS), 3, 64, 4)  # One row too many: that of the last token.


def text_of(rows: np.ndarray) -> str:
    return base64.b64encode(rows.astype("<i4").tobytes()).decode()


class AnswerTest(ServerTest):
    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.store = client.run(self.run_name, GEOMETRY)

    def stored(self, recorded: Any, begin: int = 0, unrecorded: tuple[tuple[int, int], ...] = ()) -> rr.SampleState:
        """Appends the first `begin` rows and then those of the answer, checks what is stored, and returns the state."""
        if begin:
            self.store.append("s", ROUTES[:begin], tokens=TOKENS[:begin])
        self.store.append("s", recorded, seal=True)
        self.store.flush()
        rows = self.store.read_one("s")
        self.assertEqual((rows.num_tokens, rows.unrecorded), (len(TOKENS), unrecorded))
        held = [ROUTES[b:e] for b, e in rows.row_ranges]
        np.testing.assert_array_equal(rows.rows, np.concatenate(held) if held else rows.rows[:0])
        return self.store.stat("s")


class ChatTest(AnswerTest):
    """/v1/chat/completions of SGLang 0.5.23."""

    def response(self, choices: int = 1, **fields: Any) -> dict[str, Any]:
        usage = {"prompt_tokens": len(PROMPT), "completion_tokens": choices * len(ANSWER)}
        message = {"role": "assistant", "content": "…"}
        each = [{"index": i, "message": message, "finish_reason": "length"} for i in range(choices)]
        spans = [{"version": "6", "start": 0, "end": 2}, {"version": "7", "start": 2, "end": 3}]
        metadata = {"weight_version": "7", "weight_versions": spans}
        sglext = {"routed_experts": text_of(ROUTES[:-1]), **fields}
        return {"object": "chat.completion", "choices": each, "usage": usage, "metadata": metadata, "sglext": sglext}

    def test_token_ids_of_the_choice(self) -> None:
        answer = self.response()
        answer["choices"][0] |= {"prompt_token_ids": PROMPT, "response_token_ids": ANSWER}
        recorded = sglang.rows(answer, GEOMETRY)
        self.assertEqual(recorded.tokens.tolist(), TOKENS)
        state = self.stored(recorded)
        self.assertEqual(state.token_check, rr.token_check(TOKENS[:-1]))

    def test_token_ids_of_the_extension(self) -> None:
        answer = self.response(input_ids=PROMPT, output_ids=[ANSWER])
        state = self.stored(sglang.rows(answer, GEOMETRY))
        self.assertEqual(state.token_check, rr.token_check(TOKENS[:-1]))
        two = self.response(2, input_ids=PROMPT, output_ids=[ANSWER, [7]])
        del two["sglext"]["routed_experts"]
        self.assertEqual(sglang.rows(two, GEOMETRY, 1, absent="unrecorded").tokens.tolist(), [*PROMPT, 7])
        for odd in ([], [[7]], 3):
            two["sglext"]["output_ids"] = odd
            with self.assertRaisesRegex(rr.InvalidArgumentError, "counts no tokens"):
                sglang.rows(two, GEOMETRY, 1, absent="unrecorded")

    def test_weight_versions_of_the_metadata(self) -> None:
        state = self.stored(sglang.rows(self.response(), GEOMETRY))
        spans = [(span.begin, span.end, span.version) for span in state.weights]
        self.assertEqual(spans, [(0, 7, 6), (7, 8, 7)])

    def test_rows_of_one_of_several_choices(self) -> None:
        for index in (0, 1):
            with self.assertRaisesRegex(rr.InvalidArgumentError, "2 choices: it must be in a choice"):
                sglang.rows(self.response(2), GEOMETRY, index)
        answer = self.response(2)
        meta = {"prompt_tokens": len(PROMPT), "completion_tokens": len(ANSWER)}
        answer["choices"][1]["meta_info"] = {**meta, "routed_experts": answer.pop("sglext")["routed_experts"]}
        answer["choices"][1]["meta_info"] |= answer.pop("metadata")
        self.stored(sglang.rows(answer, GEOMETRY, 1))


class CacheTest(AnswerTest):
    """If SGLang loads a prefix from its hierarchical cache, the rows of this prefix belong to other requests."""

    def response(self, **meta: Any) -> dict[str, Any]:
        counts = {"prompt_tokens": len(PROMPT), "completion_tokens": len(ANSWER), "finish_reason": {"type": "length"}}
        rows = ROUTES[meta.pop("start", 0) : -1]
        meta = {"id": "s", **counts, "num_retractions": 0, "cached_tokens": 4, **meta, "routed_experts": text_of(rows)}
        return {"output_ids": ANSWER, "meta_info": meta}

    def rows(self, response: Any, **options: Any) -> rr.RecordedRows:
        return sglang.rows(response, GEOMETRY, prompt_token_ids=PROMPT, **options)

    def test_the_device_alone(self) -> None:
        for details in (None, {"device": 4, "host": 0}, {"device": 4, "host": 0, "storage": 0, "storage_backend": "x"}):
            recorded = self.rows(self.response(cached_tokens_details=details))
            self.assertEqual((recorded.missing_rows, recorded.take), (0, (0, 8)))

    def test_host_and_storage(self) -> None:
        for details in ({"device": 1, "host": 3}, {"device": 1, "host": 0, "storage": 3, "storage_backend": "x"}):
            recorded = self.rows(self.response(cached_tokens_details=details))
            self.assertEqual((recorded.missing_rows, recorded.take), (4, (4, 8)))
        state = self.stored(recorded, unrecorded=((0, 4),))
        self.assertEqual(state.token_check, rr.token_check(TOKENS[:-1]))

    def test_rows_that_the_service_has_stay(self) -> None:
        recorded = self.rows(self.response(cached_tokens_details={"device": 0, "host": 5}))
        self.stored(recorded, begin=3, unrecorded=((3, 5),))

    def test_rows_from_a_later_start(self) -> None:
        details = {"cached_tokens_details": {"device": 0, "host": 5}}
        recorded = self.rows(self.response(start=3, **details), start_len=3)
        self.assertEqual((recorded.row_start, recorded.missing_rows, recorded.take), (3, 2, (2, 5)))
        recorded = self.rows(self.response(start=6, **details), start_len=6)
        self.assertEqual((recorded.row_start, recorded.missing_rows, recorded.take), (6, 0, (0, 2)))

    def test_a_trajectory(self) -> None:
        trajectory = self.store.trajectory("s")
        trajectory.add(self.rows(self.response(cached_tokens_details={"device": 2, "host": 2})))
        trajectory.seal()
        self.store.flush()
        self.assertEqual(self.store.stat("s").unrecorded, ((0, 4),))

    def test_a_server_that_is_known_to_have_one(self) -> None:
        for meta, missing in (
            ({"cached_tokens_details": {"device": 4, "host": 0}}, 4),
            ({"cached_tokens_details": None, "cached_tokens": 0}, 0),
            ({}, 4),
            ({"cached_tokens": None}, 6),  # The number of cached tokens is unknown: the whole prompt counts as cached.
            ({"num_retractions": 1}, 8),
        ):
            recorded = self.rows(self.response(**meta), hierarchical_cache=True)
            self.assertEqual(recorded.missing_rows, missing)
        self.assertIsNone(recorded.rows)
        chat = {"choices": [{"index": 0}], "usage": {"prompt_tokens": 6, "completion_tokens": 3}}
        chat["sglext"] = {"routed_experts": text_of(ROUTES[:-1]), "cached_tokens_details": {"device": 0, "host": 2}}
        self.assertEqual(sglang.rows(chat, GEOMETRY).missing_rows, 2)
        del chat["sglext"]["cached_tokens_details"]
        self.assertEqual(sglang.rows(chat, GEOMETRY, hierarchical_cache=True).missing_rows, 6)

    def test_rows_of_later_weights(self) -> None:
        """SGLang computes a retracted answer again, with the weights of that time. So rows of tokens that older weights
        sampled come from later weights, and must count as missing."""
        spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 3}]
        for meta, missing in (
            ({"num_retractions": 1, "weight_versions": spans}, 7),
            ({"num_retractions": 1, "weight_versions": spans, "cached_tokens_details": {"host": 1}}, 8),
            ({"num_retractions": 0, "weight_versions": spans}, 0),
            ({"num_retractions": 1, "weight_versions": spans[:1]}, 0),
            ({"num_retractions": 1}, 0),
        ):
            self.assertEqual(self.rows(self.response(**meta)).missing_rows, missing)

    def test_an_engine_that_says_so(self) -> None:
        arguments = SimpleNamespace(enable_hierarchical_cache=True, disaggregation_mode="null")
        engine = SimpleNamespace(generate=lambda input_ids: self.response(), server_args=arguments)
        with attach.sglang(engine, self.store) as attachment:
            engine.generate(input_ids=PROMPT)
            attachment.flush()
        self.assertEqual(self.store.stat("s").unrecorded, ((0, 4),))


HASHED = {"model_type": "deepseek_v4", "num_hidden_layers": 6, "n_routed_experts": 64, "num_experts_per_tok": 4}
HASHED |= {"num_hash_layers": 2}


class HashLayerTest(unittest.TestCase):
    def test_they_can_be_left_out(self) -> None:
        whole = rr.Geometry.from_hf_config(HASHED)
        self.assertEqual(whole.moe_layers, (0, 1, 2, 3, 4, 5))
        geometry = rr.Geometry.from_hf_config(HASHED, hash_layers=False)
        self.assertEqual(geometry, rr.Geometry(6, 64, 4, [2, 3, 4, 5]))
        megatron = {"num_layers": 6, "num_moe_experts": 64, "moe_router_topk": 4, "moe_n_hash_layers": 2}
        self.assertEqual(rr.Geometry.from_megatron_config(megatron, hash_layers=False), geometry)

    def test_a_model_without_them(self) -> None:
        config = {"model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": 64, "num_experts_per_tok": 4}
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
        self.assertEqual(rr.Geometry.from_hf_config(config, hash_layers=False), rr.Geometry(3, 64, 4))


class HashLayerRowsTest(ServerTest):
    def test_what_sglang_gives(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        rows = np.zeros((8, 6, 4), np.int32)
        rows[:, 2:] = random_routes(RNG, 8, 4, 64, 4)
        meta = {"prompt_tokens": 6, "completion_tokens": 3, "routed_experts": text_of(rows)}
        for hash_layers in (True, False):
            geometry = rr.Geometry.from_hf_config(HASHED, hash_layers=hash_layers)
            run = client.run(f"{self.run_name}-{hash_layers}", geometry)
            recorded = sglang.rows({"meta_info": meta}, geometry)
            if hash_layers:
                with self.assertRaisesRegex(rr.InvalidArgumentError, "hash layers") as caught:
                    run.append("s", recorded)
                self.assertEqual(caught.exception.reason, "ALL_ZERO_LAYER")
            else:
                run.append("s", recorded, seal=True)
                run.flush()
                np.testing.assert_array_equal(run.read_one("s").rows, rows[:, 2:])


class StreamTest(unittest.TestCase):
    def test_a_last_event_names_what_it_lacks(self) -> None:
        for count in (1, 2):
            for spans in ([{"version": "7", "start": 0, "end": len(ANSWER)}], None):
                choice = {"index": 0, "token_ids": ANSWER[-count:], "routed_experts": ROUTES[:-1]}
                event = {"choices": [{**choice, "weight_versions": spans}]}
                with self.assertRaisesRegex(rr.InvalidArgumentError, "pass their ids as output_token_ids"):
                    vllm.rows(event, prompt_token_ids=PROMPT)
                recorded = vllm.rows(event, prompt_token_ids=PROMPT, output_token_ids=ANSWER)
                self.assertEqual([span.version for span in recorded.weights], [7] if spans else [])


class OptionTest(AnswerTest):
    def test_an_option_that_is_none(self) -> None:
        with self.assertRaisesRegex(TypeError, "'version'"):
            self.store.append("s", ROUTES, version=3)


if __name__ == "__main__":
    unittest.main()
