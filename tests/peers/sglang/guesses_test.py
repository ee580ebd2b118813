"""SGLang that guesses tokens by n-grams, several at once, whose rows are wrong."""

from __future__ import annotations

import unittest
from types import SimpleNamespace

from common.answers import PeerTest
from peer import settings
from routing_replay.engines import attach
from sglang.srt.server_args import ServerArgs

GUESSES = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}


class SeveralGuessesTest(PeerTest):
    def test_they_are_refused(self) -> None:
        """By the attachment and the plug-in, of settings as SGLang's own arguments say them: here it computes none, as
        attention on the CPU knows no trees."""
        run = self.open_run("several")
        for others in ({}, {"speculative_ngram_max_bfs_breadth": 1, "speculative_ngram_external_sam_budget": 2}):
            arguments = ServerArgs(**settings(**GUESSES, **others))
            arguments.resolve_once()
            engine = SimpleNamespace(server_args=arguments, generate=list)
            with self.assertLogs("routing_replay", "WARNING") as logs:
                self.assertFalse(attach.sglang(engine, run).attached)
            self.assertIn("several guesses", logs.output[0])


if __name__ == "__main__":
    unittest.main()
