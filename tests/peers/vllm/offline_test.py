"""vllm.LLM in this process: through adapters, trajectories and an attachment."""

from __future__ import annotations

import json
import os
import unittest
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import numpy as np
import routing_replay as rr
import torch
from common.answers import MODELS, PeerTest
from common.chosen import Piece
from peer import settings
from routing_replay.engines import attach
from routing_replay.engines import vllm as adapter
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
from vllm.sampling_params import BeamSearchParams


def prompts(*ids: list[int]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": each} for each in ids]


def load_norms(model: str, module: torch.nn.Module) -> None:
    """Loads new weights of the norms in place, as if a trainer had sent them."""
    weights, taken = load_file(MODELS / model / "model.safetensors"), 0
    for name, values in module.named_parameters():
        if name.endswith("norm.weight"):
            values.data.copy_(weights[name])
            taken += 1
    assert taken == 17, taken  # Four norms in each of four layers, and the final norm.


class OfflineTest(PeerTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.llm = LLM(**settings())
        cls.run_ = cls.open_run("offline")

    def generate(self, case: str, *ids: list[int], **params: Any) -> list[Any]:
        """Generates answers, records them through the adapter, and compares the stored rows with each answer's."""
        outputs = self.llm.generate(prompts(*ids), SamplingParams(**params), use_tqdm=False)
        names = {}
        for number, output in enumerate(outputs):
            for place in range(len(output.outputs)):
                sample = f"{case}/{number}/{place}".replace(" ", "-")
                names[sample] = output, place
                self.run_.append(sample, adapter.rows(output, place), seal=True)
        self.run_.flush()
        for sample, (output, place) in names.items():
            self.check_output(case, sample, output, place)
        return outputs

    def check_output(self, case: str, sample: str, output: Any, place: int = 0, run: rr.Run | None = None) -> None:
        answer = output.outputs[place]
        tokens = [*output.prompt_token_ids, *answer.token_ids]
        self.check(case, run or self.run_, sample, tokens, answer.routed_experts)

    def test_generate(self) -> None:
        lengths = (1, 2, 5, 31, 32, 33, 64, 65, 200)
        self.generate("generate", *map(self.ids, lengths), max_tokens=20, temperature=0)
        [output] = self.generate("chunked prefill", self.ids(700), max_tokens=40, temperature=1.0, seed=2)
        self.assertEqual(output.outputs[0].routed_experts.dtype, np.uint8)
        self.generate("n", self.ids(50), self.ids(7), n=4, max_tokens=24, temperature=1.0, seed=3)
        self.generate("one token", self.ids(9), max_tokens=1, temperature=0)

    def test_stops(self) -> None:
        prompt = self.ids(20)
        [output] = self.generate("no stop", prompt, max_tokens=12, temperature=0)
        sampled = output.outputs[0].token_ids
        [output] = self.generate("stop token", prompt, max_tokens=12, temperature=0, stop_token_ids=[sampled[5]])
        self.assertEqual(output.outputs[0].stop_reason, sampled[5])
        [output] = self.generate("stop string", prompt, max_tokens=12, temperature=0, stop=[f"w{sampled[6]}"])
        self.assertEqual(output.outputs[0].stop_reason, f"w{sampled[6]}")

    def test_a_prefix_from_the_cache(self) -> None:
        prompt = self.ids(130)
        self.generate("before the cache", prompt, max_tokens=10, temperature=0)
        [output] = self.generate("prefix cache", prompt, max_tokens=10, temperature=0)
        self.assertGreaterEqual(output.num_cached_tokens, 128)

    def test_only_rows_that_are_asked_for(self) -> None:
        prompt = self.ids(40)
        for start in (1, 32, 39, 40):
            case, params = f"prompt-start-{start}", {"max_tokens": 5, "temperature": 0}
            [whole] = self.llm.generate(prompts(prompt), SamplingParams(**params), use_tqdm=False)
            params["routed_experts_prompt_start"] = start
            [output] = self.llm.generate(prompts(prompt), SamplingParams(**params), use_tqdm=False)
            self.run_.append(case, whole.outputs[0].routed_experts[:start], tokens=prompt[:start])
            self.run_.append(case, adapter.rows(output, prompt_start=start), seal=True)
            self.run_.flush()
            tokens = [*prompt, *output.outputs[0].token_ids]
            self.check("rows asked for", self.run_, case, tokens, output.outputs[0].routed_experts, start=start)

    def test_turns(self) -> None:
        for only_new in (False, True):
            sample = f"agent {only_new}".replace(" ", "-")
            agent, context = self.run_.trajectory(sample, group=1), self.ids(45)
            for turn in range(3):
                start = min(agent.next_row(context), len(context)) if only_new else 0
                params = SamplingParams(max_tokens=11, temperature=1.0, seed=turn, routed_experts_prompt_start=start)
                [output] = self.llm.generate(prompts(context), params, use_tqdm=False)
                told = agent.add(adapter.rows(output, prompt_start=start), weight_version=turn)
                self.assertEqual(told.conflicting_rows, 0)
                answer = output.outputs[0]
                tokens = context + list(answer.token_ids)
                context = tokens + self.ids(6)
            agent.seal()
            self.run_.flush()
            self.check("turns", self.run_, sample, tokens, answer.routed_experts, start=start)

    def test_an_abort_and_its_resumption(self) -> None:
        engine, prompt = self.llm.llm_engine, self.ids(70)
        engine.add_request("aborted", prompts(prompt)[0], SamplingParams(max_tokens=50, temperature=1.0, seed=1))
        seen: list[Any] = []
        while len(seen) < 8:
            seen += engine.step()
        engine.abort_request(["aborted"])
        self.assertFalse(seen[-1].finished)
        agent = self.run_.trajectory("aborted")
        context = prompt + list(seen[-1].outputs[0].token_ids)
        agent.add(tokens=context, outcome="aborted")
        [output] = self.llm.generate(prompts(context), SamplingParams(max_tokens=9, temperature=0), use_tqdm=False)
        agent.add(adapter.rows(output), seal=True)
        self.run_.flush()
        self.check_output("abort", "aborted", output)

    def test_an_attachment(self) -> None:
        """Calls attach.vllm as client/README.md does."""
        params = SamplingParams(n=2, max_tokens=13, temperature=1.0, seed=1)
        single = SamplingParams(max_tokens=7, temperature=0)
        run = self.open_run("attached")
        with attach.vllm(self.llm, run, replace=False) as attachment:
            self.assertTrue(attachment.attached)
            attachment.group, attachment.weight_version = 3, 7
            outputs = self.llm.generate(prompts(self.ids(21), self.ids(3)), params, use_tqdm=False)
            chat = [[{"role": "user", "content": f"w{first} w20 w30"}] for first in (10, 11)]
            outputs += self.llm.chat(chat, single, use_tqdm=False)
            self.llm.enqueue(prompts(self.ids(5), self.ids(90)), single, use_tqdm=False)
            outputs += self.llm.wait_for_completion(use_tqdm=False)
            self.llm.enqueue(prompts(self.ids(4)), params, use_tqdm=False)
            outputs += self.llm.generate(prompts(self.ids(6)), single, use_tqdm=False)
            attachment.flush()
            with self.assertLogs("routing_replay", "WARNING") as logs:
                self.llm.beam_search(prompts(self.ids(5)), BeamSearchParams(beam_width=2, max_tokens=4))
                self.llm.beam_search(prompts(self.ids(5)), BeamSearchParams(beam_width=2, max_tokens=4))
            self.assertEqual(len([line for line in logs.output if "beam_search" in line]), 1)
            self.assertGreater(attachment.metrics()["not_recorded"], 0)
        self.assertEqual(len(outputs), 8)
        for output in outputs:
            for place in range(len(output.outputs)):
                self.check_output("attached", f"{output.request_id}/{place}", output, place, run)
                state = run.stat(f"{output.request_id}/{place}")
                self.assertEqual((state.group, [span.version for span in state.weights]), (3, [7]))
                self.assertTrue(state.sealed)
        self.assertEqual(len(run.list()), sum(len(output.outputs) for output in outputs))
        with attach.vllm(self.llm, run) as attachment:
            [output] = self.llm.generate(prompts(self.ids(21)), single, use_tqdm=False)
            attachment.flush()
        answer = output.outputs[0]
        self.assertIsNone(answer.routed_experts)
        sample = json.loads(answer.routing_replay)["handle"]["sample"]
        self.assertEqual(sample, f"{output.request_id}/0")
        self.check("a reference", run, sample, [*output.prompt_token_ids, *answer.token_ids])
        [output] = self.llm.generate(prompts(self.ids(21)), single, use_tqdm=False)
        self.assertIsInstance(output.outputs[0].routed_experts, np.ndarray)

    def with_later_weights(self) -> None:
        self.llm.apply_model(lambda module: load_norms("qwen3_later", module))
        self.llm.llm_engine.set_weight_version("8")

    def with_first_weights(self) -> None:
        self.llm.apply_model(lambda module: load_norms("qwen3", module))
        self.llm.llm_engine.set_weight_version("7")
        self.assertTrue(self.llm.reset_prefix_cache())

    def rows_so_far(self) -> dict[str, np.ndarray]:
        """Returns the rows of each unfinished answer. vLLM's engine returns rows with every step, and its front end
        holds them until the answer ends (OutputProcessor.process_outputs)."""
        found = {}
        for state in self.llm.llm_engine.output_processor.request_states.values():
            request = state.external_req_id if state.parent_req is None else state.parent_req.external_req_id
            found[f"{request}/{state.request_index}"] = np.concatenate(state.routed_experts_chunks)
        return found

    def play_new_weights(self, case: str, again: bool) -> None:
        self.with_first_weights()
        self.addCleanup(self.with_first_weights)
        run, params = self.open_run(case), SamplingParams(n=2, max_tokens=30, temperature=1.0, seed=1)
        with attach.vllm(self.llm, run, replace=False) as attachment:
            self.llm.enqueue(prompts(self.ids(21), self.ids(40)), params, use_tqdm=False)
            for _ in range(12):
                self.llm.llm_engine.step()
            sampled = self.rows_so_far()
            self.with_later_weights()
            if again:
                self.assertTrue(self.llm.llm_engine.reset_prefix_cache(reset_running_requests=True))
            outputs = self.llm.wait_for_completion(use_tqdm=False)
            attachment.flush()
        for output in outputs:
            for place, answer in enumerate(output.outputs):
                tokens, sample = [*output.prompt_token_ids, *answer.token_ids], f"{output.request_id}/{place}"
                [first, later] = run.stat(sample).weights
                self.assertEqual((first.version, later.version), (7, 8))
                self.assertEqual((first.begin, first.end, later.end), (0, later.begin, len(tokens) - 1))
                pieces = [Piece(first.end, "qwen3"), Piece(later.end, "qwen3_later", goes_on=not again)]
                self.check(case, run, sample, tokens, answer.routed_experts, pieces=pieces)
                np.testing.assert_array_equal(run.read_one(sample).rows[: first.end], sampled[sample])
                if again:
                    params = SamplingParams(max_tokens=1, temperature=0)
                    [anew] = self.llm.generate(prompts(tokens), params, use_tqdm=False)
                    computed = anew.outputs[0].routed_experts
                    np.testing.assert_array_equal(computed[first.end : -1], answer.routed_experts[first.end :])
                    self.assertFalse(np.array_equal(computed[: first.end], sampled[sample]))

    def test_new_weights_in_the_middle_of_answers(self) -> None:
        """What was computed of the context stays in the cache, and the rest is computed with the new weights."""
        self.play_new_weights("new-weights", again=False)

    def test_a_context_that_is_computed_again(self) -> None:
        """The requests are preempted and start again with the new weights. The rows with which tokens were sampled must
        stay, although the engine now computes other rows for the same tokens."""
        self.play_new_weights("recomputed", again=True)

    def test_the_first_rows_stay(self) -> None:
        """An answer is aborted to load new weights, and continued with them. The engine computes the rows of the
        context again; these are compared with the first ones, but not stored."""
        self.with_first_weights()
        self.addCleanup(self.with_first_weights)
        prompt, params = self.ids(50), SamplingParams(max_tokens=20, temperature=1.0, seed=1)
        [output] = self.llm.generate(prompts(prompt), params, use_tqdm=False)
        agent = self.run_.trajectory("resumed")
        agent.add(adapter.rows(output), outcome="aborted")
        first = output.outputs[0]
        self.with_later_weights()
        self.assertTrue(self.llm.reset_prefix_cache())
        context = prompt + list(first.token_ids)
        [output] = self.llm.generate(prompts(context), params, use_tqdm=False)
        told = agent.add(adapter.rows(output), seal=True)
        self.assertGreater(told.conflicting_rows, 0)
        self.run_.flush()
        tokens = context + list(output.outputs[0].token_ids)
        later = output.outputs[0].routed_experts
        given = np.concatenate([first.routed_experts, later[len(first.routed_experts) :]])
        pieces = [Piece(len(context) - 1, "qwen3"), Piece(len(tokens) - 1, "qwen3_later")]
        self.check("resumed with new weights", self.run_, "resumed", tokens, given, pieces=pieces)


if __name__ == "__main__":
    unittest.main()
