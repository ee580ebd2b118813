"""Shared by the tests of engines: a server of the service, and answers, which are compared with the engine's rows and
kept for the comparison with transformers."""

from __future__ import annotations

import os
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import routing_replay as rr

from common.chosen import Kept, Piece
from common.models import TOKENS

MODELS = Path(os.environ["PEER_MODELS"])


class PeerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(rr.local_server())
        cls.client = rr.Client()
        cls.addClassCleanup(cls.client.close)
        cls.kept = Kept(os.environ["PEER_KEPT"], cls.__name__)
        cls.addClassCleanup(cls.kept.write)
        cls.random = np.random.default_rng(5)

    @classmethod
    def open_run(cls, name: str, model: str = "qwen3") -> rr.Run:
        return cls.client.run(name, rr.Geometry.from_hf_config(MODELS / model))

    def ids(self, count: int) -> list[int]:
        return self.random.integers(3, TOKENS, count).tolist()

    def check(
        self,
        case: str,
        run: rr.Run,
        sample: str,
        tokens: Sequence[int],
        given: Any = None,
        *,
        start: int = 0,
        pieces: str | list[Piece] = "qwen3",
    ) -> None:
        """Expects a complete sample with these tokens and, from row `start` on, the engine's rows."""
        rows, state = run.read_one(sample), run.stat(sample)
        self.assertEqual((rows.status, rows.num_tokens), ("OK", len(tokens)), rows.message)
        self.assertEqual(state.token_check, rr.token_check(tokens[:-1]))
        if given is not None:
            layers = run.geometry.moe_layers
            self.assertEqual(given.shape[0], len(tokens) - 1 - start)
            np.testing.assert_array_equal(rows.rows[start:], given[:, layers])
        self.kept.add(case, tokens, rows.rows, pieces)
