"""Tests sglang.Engine with a hierarchical cache, which restores the keys and values of tokens from host memory, but not
their rows."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

import numpy as np
from peer import EngineTest, given_rows
from routing_replay.engines import attach
from routing_replay.engines import sglang as adapter


class CacheTest(EngineTest):
    KERNELS = True
    OTHERS: ClassVar[dict[str, Any]] = {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 4.0,
        "hicache_io_backend": "direct",
        "hicache_mem_layout": "layer_first",
    }

    def test_tokens_from_host_memory(self) -> None:
        prompt, geometry = self.ids(300), self.run_.geometry
        first = self.ask(prompt)
        # Each of these answers takes memory of the device, until the tokens of the first prompt are only in host
        # memory.
        for _ in range(4):
            self.ask(self.ids(700))
        attached = self.open_run("attached")
        with attach.sglang(self.engine, attached, replace=False) as attachment:
            reply = self.ask(prompt)
            attachment.flush()
        self.assertEqual(reply["output_ids"], first["output_ids"])
        details = reply["meta_info"]["cached_tokens_details"]
        self.assertGreater(details["host"], 0)
        cached = details["device"] + details["host"]
        right, given = (given_rows(each["meta_info"], geometry) for each in (first, reply))
        self.assertFalse(np.array_equal(given[:cached], right[:cached]), "rows of the cache are right: record them")
        self.run_.append("adapter", adapter.rows(reply, geometry, prompt_token_ids=prompt), seal=True)
        self.run_.flush()
        for run, sample in ((self.run_, "adapter"), (attached, reply["meta_info"]["id"])):
            self.assertEqual(run.stat(sample).unrecorded, ((0, cached),))
            np.testing.assert_array_equal(run.read_one(sample).rows, given[cached:])
            np.testing.assert_array_equal(given[cached:], right[cached:])
        self.kept.add("before the cache", prompt + first["output_ids"], right, "qwen3")


if __name__ == "__main__":
    unittest.main()
