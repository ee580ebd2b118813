"""Attached engines: which calls are recorded, what their outputs contain, and what remains after detach."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay.engines import attach, sglang, vllm

GEOMETRY = rr.Geometry(num_layers=4, num_experts=32, top_k=4)
RNG = np.random.default_rng(17)
PROMPT, ANSWER = [1, 2, 3, 4, 5], [6, 7, 8]
ROUTES = random_routes(RNG, len(PROMPT + ANSWER) - 1, 4, 32, 4)
PATIENCE = 60.0
TEXT = base64.b64encode(ROUTES.astype("<i4").tobytes()).decode()


def output(name: str, start: int = 0, tokens: list[int] = ANSWER, rows: np.ndarray = ROUTES) -> SimpleNamespace:
    """Like vLLM's RequestOutput."""
    fields = {"index": 0, "token_ids": tokens, "finish_reason": "length"}
    choice = SimpleNamespace(**fields, routed_experts=rows[start:].astype(np.uint8))
    return SimpleNamespace(request_id=name, prompt_token_ids=PROMPT, outputs=[choice])


def params(start: int) -> SimpleNamespace:
    return SimpleNamespace(routed_experts_prompt_start=start)


class Llm:
    """Stands in for the LLM of vLLM 0.33: its methods call each other in the same way, and can enqueue requests."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.count = 0

    def _add(self, prompts: list[Any], sampling_params: Any) -> list[str]:
        names = []
        for number, _ in enumerate(prompts):
            own = sampling_params[number] if isinstance(sampling_params, list) else sampling_params
            self.queue.append(output(str(self.count), getattr(own, "routed_experts_prompt_start", 0)))
            names.append(f"{self.count}-0a1b2c3d")
            self.count += 1
        return names

    def _run_engine(self, output_type: Any = None) -> list[Any]:
        self.queue, done = [], self.queue
        return done

    def generate(self, prompts: list[Any], sampling_params: Any = None) -> list[Any]:
        self._add(prompts, sampling_params)
        return self._run_engine()

    def chat(self, messages: list[Any], sampling_params: Any = None) -> list[Any]:
        self._add(messages, sampling_params)
        return self._run_engine()

    def enqueue(self, prompts: list[Any], sampling_params: Any = None) -> list[str]:
        return self._add(prompts, sampling_params)

    def enqueue_chat(self, messages: list[Any], sampling_params: Any = None) -> list[str]:
        return self._add(messages, sampling_params)

    def wait_for_completion(self) -> list[Any]:
        return self._run_engine()

    def beam_search(self, prompts: list[Any], params: Any) -> list[Any]:
        for _ in range(3):
            self.generate(prompts)
        return [SimpleNamespace(sequences=[SimpleNamespace(tokens=[1, 2])]) for _ in prompts]

    def later_method(self, prompts: list[Any]) -> list[Any]:
        self._add(prompts, None)
        return self._run_engine()

    def embed(self, prompts: list[Any]) -> list[Any]:
        self.queue = [SimpleNamespace(request_id="9", outputs=SimpleNamespace(embedding=[0.5]))]
        return self._run_engine()


class AttachedTest(ServerTest):
    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.run_ = client.run(self.run_name, GEOMETRY)

    def attached(self, engine: Any) -> attach.Attachment:
        kind = attach.vllm if isinstance(engine, Llm) else attach.sglang
        attachment = kind(engine, self.run_)
        self.addCleanup(attachment.detach)
        return attachment

    def stored(self, *samples: str) -> None:
        for sample in samples:
            rows = self.run_.read_one(sample)
            self.assertEqual((rows.status, rows.num_tokens), ("OK", len(PROMPT + ANSWER)), rows.message)
            np.testing.assert_array_equal(rows.rows, ROUTES)


class CallsTest(AttachedTest):
    def test_chat(self) -> None:
        llm = Llm()
        attachment = self.attached(llm)
        outputs = llm.chat([["hello"], ["you"]], params(0))
        attachment.flush()
        self.stored("0/0", "1/0")
        self.assertIsNone(outputs[1].outputs[0].routed_experts)

    def test_chat_that_calls_generate(self) -> None:
        """In older releases of vLLM, `chat` calls `generate`: outputs are recorded only once."""
        llm = Llm()
        llm.chat = lambda messages, sampling_params=None: llm.generate(messages, sampling_params)
        attachment = self.attached(llm)
        llm.chat([["hello"]])
        attachment.flush()
        self.stored("0/0")
        metrics = attachment.metrics()
        self.assertEqual([metrics[name] for name in ("appends", "without_rows", "not_recorded")], [1, 0, 0])

    def test_what_was_enqueued(self) -> None:
        llm = Llm()
        attachment = self.attached(llm)
        llm.enqueue(["a", "b"], params(0))
        llm.enqueue_chat([["c"]], params(0))
        self.assertEqual(len(llm.wait_for_completion()), 3)
        llm.enqueue(["d"], params(0))
        # Also runs the enqueued request "d".
        self.assertEqual(len(llm.generate(["e"], params(0))), 2)
        attachment.flush()
        self.stored(*(f"{i}/0" for i in range(5)))

    def test_what_is_not_recorded_says_so_once(self) -> None:
        llm = Llm()
        attachment = self.attached(llm)
        with self.assertLogs("routing_replay", logging.WARNING) as logs:
            for _ in range(2):
                self.assertEqual(len(llm.beam_search(["a", "b"], None)), 2)
                self.assertEqual(len(llm.later_method(["c"])), 1)
                llm.embed(["d"])
        self.assertEqual(len(logs.output), 2)
        self.assertIn("beam_search are not recorded", logs.output[0])
        self.assertIn("methods that are not known here are not recorded", logs.output[1])
        attachment.flush()
        self.assertEqual((attachment.metrics()["not_recorded"], self.run_.list()), (6, []))

    def test_a_call_that_raises_is_followed_by_others(self) -> None:
        llm = Llm()
        attachment = self.attached(llm)
        with self.assertRaises(TypeError):
            llm.generate(None)
        llm.generate(["a"])
        attachment.flush()
        self.stored("0/0")


class ReferenceTest(AttachedTest):
    def test_the_reference_is_beside_the_rows_of_vllm(self) -> None:
        llm = Llm()
        self.attached(llm)
        [out] = llm.generate(["a"])
        self.assertIsNone(out.outputs[0].routed_experts)  # vLLM's servers send it as an array, not text.
        self.check(out.outputs[0].routing_replay, "0/0")
        for absent in ("raise", "unrecorded"):
            with self.assertRaisesRegex(rr.InvalidArgumentError, "is a reference"):
                vllm.rows(out, absent=absent)

    def test_the_reference_of_sglang_is_text(self) -> None:
        meta = {"id": "q", "finish_reason": {"type": "length"}, "routed_experts": TEXT, "prompt_tokens": len(PROMPT)}
        answer = {"output_ids": ANSWER, "meta_info": {**meta, "completion_tokens": len(ANSWER)}}
        engine = SimpleNamespace(generate=lambda input_ids: answer)
        self.attached(engine)
        engine.generate(input_ids=PROMPT)
        reference = answer["meta_info"]["routed_experts"]
        self.check(reference, "q")
        with self.assertRaisesRegex(rr.InvalidArgumentError, "is a reference"):
            sglang.rows(answer, GEOMETRY, prompt_token_ids=PROMPT)

    def check(self, reference: str, sample: str) -> None:
        self.assertNotIn("\n", reference)
        handle = {"run": self.run_name, "sample": sample, "row_start": 0, "num_tokens": len(PROMPT + ANSWER)}
        rows = {"dtype": "uint8", "shape": list(ROUTES.shape)}
        self.assertEqual(json.loads(reference), {"handle": handle, "fields": {"routed_experts": rows}})


class GapTest(AttachedTest):
    def test_what_the_server_rejects_for_a_gap_is_told(self) -> None:
        llm = Llm()
        attachment = self.attached(llm)
        llm.generate(["a"], params(4))
        with self.assertRaises(rr.FailedPreconditionError) as caught:
            attachment.flush()
        self.assertEqual((caught.exception.reason, caught.exception.failed_samples), ("GAP", ["0/0"]))
        attachment.flush()


class FlushTest(AttachedTest):
    def test_all_that_failed_are_named(self) -> None:
        """`flush` names the samples whose rows the client rejected, and those whose rows the server rejected."""
        llm = Llm()
        attachment = self.attached(llm)
        for sample in ("0/0", "1/0"):
            self.run_.append(sample, ROUTES[:2], tokens=[91, 92])
        self.run_.flush()
        twice = np.zeros_like(ROUTES)
        llm.generate(["a", "b"])
        with mock.patch.object(output, "__defaults__", (0, ANSWER, twice)):
            llm.generate(["c", "d"])
        with self.assertRaises(rr.RoutingReplayError) as caught:
            attachment.flush(PATIENCE)
        names = ["0/0", "1/0", "2/0", "3/0"]
        self.assertEqual(sorted(caught.exception.failed_samples), names)
        self.assertEqual(sorted(sample for sample, _ in caught.exception.failures), names)
        self.assertEqual(sorted(pickle.loads(pickle.dumps(caught.exception)).failed_samples), names)
        attachment.flush(PATIENCE)


class UsableTest(AttachedTest):
    def test_a_server_of_one_half(self) -> None:
        engine = SimpleNamespace(generate=list, server_args=SimpleNamespace(disaggregation_mode="decode"))
        with self.assertLogs("routing_replay", logging.WARNING) as logs:
            self.assertFalse(self.attached(engine).attached)
        self.assertIn("only does decode", logs.output[0])

    def test_several_guesses_at_once(self) -> None:
        for right, settings in (
            (True, {"speculative_algorithm": None, "speculative_eagle_topk": 4}),
            (True, {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1}),
            (False, {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}),
            (False, {"speculative_algorithm": "NGRAM", "speculative_ngram_external_sam_budget": 2}),
        ):
            for arguments in (SimpleNamespace(**settings), SimpleNamespace(resolved_dict=lambda said=settings: said)):
                engine = SimpleNamespace(generate=list, server_args=arguments)
                if right:
                    self.assertTrue(self.attached(engine).attached)
                    continue
                with self.assertLogs("routing_replay", logging.WARNING) as logs:
                    self.assertFalse(self.attached(engine).attached)
                self.assertIn("several drafts", logs.output[0])


HANDS_OVER = """
import sys
from types import SimpleNamespace
import numpy as np
import routing_replay as rr
from routing_replay.engines import attach

rows = np.random.default_rng(3).random((2000, 4, 32)).argsort(axis=2)[:, :, :4].astype(np.uint8)
made = [SimpleNamespace(index=0, token_ids=[1], finish_reason="stop", routed_experts=rows) for _ in range(40)]
outputs = [SimpleNamespace(request_id=str(i), prompt_token_ids=[2] * 2000, outputs=[one]) for i, one in enumerate(made)]
llm = SimpleNamespace(generate=lambda prompts: outputs)
attach.vllm(llm, rr.Client(sys.argv[1]).run(sys.argv[2], rr.Geometry(4, 32, 4)))
llm.generate([])
"""
HELD = """
import sys, types
early = sys.modules["early"] = sys.keeps_it = types.ModuleType("early")  # As torch, with a hook that holds a run.
import routing_replay as rr
early.run = rr.Client(sys.argv[1]).run(sys.argv[2], rr.Geometry(4, 32, 4))
early.run.append("s", seal=True, num_tokens=1)
"""


class EndTest(AttachedTest):
    def play(self, script: str) -> str:
        command = [sys.executable, "-c", script, self.server.endpoint, self.run_name]
        return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stderr

    def test_what_waits_in_the_queue_arrives(self) -> None:
        self.assertEqual(self.play(HANDS_OVER), "")
        self.assertEqual(sum(state.sealed for state in self.run_.list()), 40)

    def test_nothing_is_said_of_objects_that_live_to_the_end(self) -> None:
        self.assertEqual(self.play(HELD), "")


if __name__ == "__main__":
    unittest.main()
