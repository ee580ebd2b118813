"""Tests sglang.Engine with n-gram speculative decoding, which guesses (drafts) the next tokens. With one draft per
token, rows are right. With several drafts per token, SGLang returns wrong rows, so `attach` refuses such an engine."""

from __future__ import annotations

import os
import unittest
from typing import Any, ClassVar

os.environ["TRITON_INTERPRET"] = "1"  # Is needed by the kernels of kernels.py.

from common.chosen import equal_sets
from peer import EngineTest, given_rows
from routing_replay.engines import attach

# These settings have the attention backend "triton", because the backend must support several drafts per token (a
# tree).
GUESSES = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4, "attention_backend": "triton"}


class OneGuessTest(EngineTest):
    KERNELS = True
    OTHERS: ClassVar[dict[str, Any]] = GUESSES | {"speculative_ngram_max_bfs_breadth": 1}

    def test_guesses_of_n_grams(self) -> None:
        prompts = [self.ids(8) * 5 for _ in range(4)]
        with attach.sglang(self.engine, self.run_, replace=False) as attachment:
            self.assertTrue(attachment.attached)
            replies = self.ask(prompts, max_new_tokens=60)
            attachment.flush()
        checks = sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)
        self.assertLess(checks, 4 * 59, "no guess was right")
        for prompt, reply in zip(prompts, replies, strict=True):
            self.check_reply("guesses", self.run_, reply["meta_info"]["id"], prompt, reply)


class SeveralGuessesTest(EngineTest):
    KERNELS = True
    OTHERS: ClassVar[dict[str, Any]] = GUESSES | {"speculative_ngram_max_bfs_breadth": 4}

    def test_they_are_rejected(self) -> None:
        with self.assertLogs("routing_replay", "WARNING") as logs:
            attachment = attach.sglang(self.engine, self.run_)
        self.assertFalse(attachment.attached)
        self.assertIn("several drafts", logs.output[0])
        wrong = 0
        # A try may give no wrong rows, because drafts depend on which requests share a batch. So there are up to 20
        # tries.
        for _ in range(20):
            wrong = wrong or self.wrong_sets()
        self.assertGreater(wrong, 0, "SGLang's rows of several drafts are correct by now: attach must accept them")
        self.assertEqual(self.run_.list(), [])

    def wrong_sets(self) -> int:
        """Makes some answers, and then sends their tokens as prompts, for which SGLang's rows are right. Returns how
        many sets of experts differ."""
        prompts = [[token for _ in range(8) for token in (10, 11, *self.ids(2))] for _ in range(4)]
        guessed = self.ask(prompts, max_new_tokens=60)
        self.engine.flush_cache()
        whole = self.ask([prompt + reply["output_ids"] for prompt, reply in zip(prompts, guessed, strict=True)])
        wrong = 0
        for each, again in zip(guessed, whole, strict=True):
            given, right = (given_rows(reply["meta_info"], self.run_.geometry) for reply in (each, again))
            wrong += int((~equal_sets(given, right[: len(given)])).sum())
        return wrong


if __name__ == "__main__":
    unittest.main()
