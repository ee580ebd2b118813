"""Tests samples that have the same index, made by the framework's own functions: siblings of an agent, samples of an
evaluation, which are numbered from 0, too, and answers that are started again. Each must have the rows that the engine
returned for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import sides
from routing_replay_trainer.integrations import _shared

sides.setup()
import routing_replay as rr  # noqa: E402

sglang_rollout, eval_config = sides.part("rollout.sglang_rollout"), sides.part("utils.eval_config")
Sample = sides.part("utils.types").Sample
PROMPT = [2, 20, 40]


def sample(index: int = 0) -> Any:
    return Sample(index=index, prompt=" ".join(map(str, PROMPT)), metadata={"of": "the user"})


class IdentityTest(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(rr.local_server())
        integration = sides.integration()
        self.enterContext(mock.patch.object(integration.rollout, "_opening", _shared.Opening()))
        self.args = sides.with_lines(sides.args_of(custom_rm_path="sides.reward", partial_rollout=True))
        # The next answers: (new tokens, finish reason, weight version).
        self.answers: list[tuple[list[int], str, int]] = []

    def run_all(self, *samples: Any) -> list[Any]:
        """Makes an answer for each of these samples, one after the other, with the framework's own function for one
        sample of a rollout. Returns the samples with their answers."""

        async def post(url: str, payload: dict[str, Any], headers: Any = None) -> dict[str, Any]:
            new, finish, version = self.answers.pop(0)
            tokens = payload["input_ids"] + new
            return {"text": "x", "meta_info": sides.meta(tokens, len(new), version, finish, payload)}

        async def generated() -> list[Any]:
            return [await sglang_rollout.generate_and_rm(self.args, one, {"max_new_tokens": 32}) for one in samples]

        with self.engine(post):
            return asyncio.run(generated())

    @contextlib.contextmanager
    def engine(self, post: Any) -> Any:
        tokenizer = types.SimpleNamespace(encode=lambda text, **_: [int(word) for word in text.split()])
        state = types.SimpleNamespace(
            args=self.args,
            tokenizer=tokenizer,
            processor=None,
            aborted=False,
            semaphore=contextlib.AsyncExitStack(),
            dp_rank_context=contextlib.nullcontext,
        )
        with (
            mock.patch.object(sglang_rollout, "post", post),
            mock.patch.object(sglang_rollout, "GenerateState", lambda _: state),
        ):
            yield

    def stored(self, one: Any) -> np.ndarray:
        """Returns the rows [T - 1, MoE layers, K] that the service has for this sample, and checks that they belong to
        its tokens."""
        (handle,) = one.rollout_routed_experts.tolist()
        run = rr.Client().run("here/grpo-42")
        rows = run.read_one(handle)
        self.assertEqual((rows.status, rows.num_tokens), ("OK", len(one.tokens)), rows.message)
        (found,) = [state for state in run.list() if state.handle == handle]
        self.assertEqual(found.token_check, rr.token_check(one.tokens[:-1]))
        return rows.rows

    def check(self, one: Any, *versions: tuple[int, int]) -> None:
        """Checks the stored rows of a sample. versions: pairs (end, version): the rows up to `end` are from the engine
        with this version of the weights"""
        begin = 0
        for end, version in versions:
            given = sides.routes(one.tokens, version)[begin:end, 1:]
            np.testing.assert_array_equal(self.stored(one)[begin:end], given)
            begin = end
        self.assertEqual(begin, len(one.tokens) - 1)

    def test_siblings(self) -> None:
        self.args.custom_generate_function_path = f"{sides.own.__name__}.agent"
        self.answers = [([50, 51], "stop", 1), ([60, 61, 62], "stop", 2)]
        (siblings,) = self.run_all(sample())
        self.assertEqual([one.index for one in siblings], [0, 0])
        self.assertNotEqual(*[one.rollout_routed_experts.tolist() for one in siblings])
        for version, one in enumerate(siblings, 1):
            self.check(one, (len(one.tokens) - 1, version))

    def test_begun_again(self) -> None:
        """A sample begins again, with another answer of newer weights, after an aborted answer or a complete one."""
        for finish in ("abort", "stop"):
            with self.subTest(finish):
                self.answers = [([50, 51], finish, 1), ([60, 61, 62], "stop", 2)]
                (one,) = self.run_all(sample())
                before = one.rollout_routed_experts.tolist()
                self.assertEqual(before == [0], finish == "abort")
                sides.own.begin_again(one)
                (one,) = self.run_all(one)
                self.assertEqual(one.tokens, [*PROMPT, 60, 61, 62])
                self.assertNotEqual(before, one.rollout_routed_experts.tolist())
                self.check(one, (5, 2))
                self.assertEqual(one.metadata, {"of": "the user"})

    def test_goes_on(self) -> None:
        """A sample that continues after an abort keeps its rows of older weights."""
        self.answers = [([50, 51], "abort", 1), ([60, 61, 62], "stop", 2)]
        (one,) = self.run_all(sample())
        (one,) = self.run_all(one)
        self.assertEqual(one.tokens, [*PROMPT, 50, 51, 60, 61, 62])
        self.check(one, (4, 1), (7, 2))

    def test_cut_short(self) -> None:
        """The framework trains on an aborted answer if the group's reward comes later, and needs a handle of every
        sample in a batch. So an aborted answer gets handle 0, which routes live, and keeps it if `publish` is called
        again without new tokens."""
        self.answers = [([50, 51], "stop", 1), ([60, 61], "abort", 1)]
        whole, cut = self.run_all(sample(0), sample(1))
        self.assertEqual([len(one.rollout_routed_experts) for one in (whole, cut)], [1, 1])
        self.assertEqual(cut.rollout_routed_experts.tolist(), [0])
        with self.assertNoLogs("routing_replay_trainer"):
            asyncio.run(sides.integration().rollout.publish(self.args, cut))
        self.assertEqual(cut.rollout_routed_experts.tolist(), [0])

    def test_rows_that_are_lost(self) -> None:
        """If the rows cannot be appended, the sample still gets its own handle, so the trainer counts it as a fallback.
        Handle 0, which is not counted, is only for padding and answers without rows."""
        self.answers = [([50, 51], "stop", 1), ([60, 61], "stop", 1)]
        self.run_all(sample())
        away = mock.patch.object(rr.aio.Run, "append", side_effect=rr.errors.UnavailableError("away"))
        with away, self.assertLogs("routing_replay_trainer", "ERROR"):
            (one,) = self.run_all(sample())
        (handle,) = one.rollout_routed_experts.tolist()
        self.assertNotEqual(handle, 0)
        self.assertEqual(rr.Client().run("here/grpo-42").read_one(handle).status, "NOT_FOUND")

    def test_evaluation(self) -> None:
        """Samples of an evaluation have the same indices as trained ones. Their rows are not stored."""
        self.answers = [([50, 51], "stop", 1), ([60, 61, 62], "stop", 1)]
        trained = self.run_all(sample(0), sample(1))
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        sides.checkpoint(folder / "model")
        Path(folder / "prompts.jsonl").write_text(json.dumps({"text": sample().prompt}) + "\n")
        self.args.hf_checkpoint = str(folder / "model")
        config = eval_config.EvalDatasetConfig(name="judged", path=str(folder / "prompts.jsonl"), input_key="text")
        config.n_samples_per_eval_prompt, config.max_response_len, config.temperature = 2, 32, 1.0

        async def post(url: str, payload: dict[str, Any], headers: Any = None) -> dict[str, Any]:
            tokens = [*PROMPT, 70, 71]
            return {"text": "x", "meta_info": sides.meta(tokens, 2, 1, "stop", payload)}

        with self.engine(post):
            said = asyncio.run(sglang_rollout.eval_rollout_single_dataset(self.args, 0, config))
        judged = said["judged"]["samples"]
        self.assertEqual([one.index for one in judged], [0, 1])
        self.assertEqual([one.rollout_routed_experts for one in judged], [None, None])
        for one in trained:
            self.check(one, (len(one.tokens) - 1, 1))
        self.assertEqual(len(rr.Client().run("here/grpo-42").list()), 2)


if __name__ == "__main__":
    unittest.main()
