"""A base class for the tests of engines. It starts a server of the service, compares the stored rows of each answer
with those of the engine, and keeps them, to compare them with transformers afterwards."""

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
        """Checks that the sample is complete and has these tokens and, from row `start` on, the engine's rows `given`.
        Keeps its rows for the comparison with transformers.

        given: [rows, all layers, K]; None: the rows are not compared with the engine's
        pieces: see `Kept.add`
        """
        rows, state = run.read_one(sample), run.stat(sample)
        self.assertEqual((rows.status, rows.num_tokens), ("OK", len(tokens)), rows.message)
        self.assertEqual(state.token_check, rr.token_check(tokens[:-1]))
        if given is not None:
            layers = run.geometry.moe_layers
            self.assertEqual(given.shape[0], len(tokens) - 1 - start)
            np.testing.assert_array_equal(rows.rows[start:], given[:, layers])
        self.kept.add(case, tokens, rows.rows, pieces)
