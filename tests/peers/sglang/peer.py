"""A base class for the tests of SGLang. It starts an engine, sends prompts, and reads the rows of replies as SGLang's
documentation says."""

from __future__ import annotations

import sys
import tempfile
from typing import Any, ClassVar

import numpy as np
import sglang
from common.answers import MODELS, PeerTest
from common.entry_points import install
from kernels import PLUGINS
from sglang.srt.state_capturer.routed_experts import extract_routed_experts_from_meta_info


def settings(model: str = "qwen3", **others: Any) -> dict[str, Any]:
    """Returns SGLang's settings for these tests. The sizes are small, so that prompts of more than 64 tokens are
    computed in chunks, and only requests with 1024 tokens in all fit into memory at the same time."""
    return {
        "model_path": str(MODELS / model),
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "enable_return_routed_experts": True,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.8,
        "max_total_tokens": 1024,
        "max_running_requests": 8,
        "context_length": 1024,
        "chunked_prefill_size": 64,
        "schedule_conservativeness": 0.1,  # More requests start than there is room for, so that some are preempted.
        "random_seed": 0,
        "log_level": "error",
        "skip_server_warmup": True,
    } | others


def given_rows(meta: dict[str, Any], geometry: Any) -> np.ndarray:
    """Returns the rows in the meta_info of a reply: [rows, layers, K]."""
    flat = extract_routed_experts_from_meta_info({"meta_info": meta})
    return flat.reshape(-1, geometry.num_layers, geometry.max_top_k)


class EngineTest(PeerTest):
    MODEL = "qwen3"
    OTHERS: ClassVar[dict[str, Any]] = {}
    KERNELS = False  # Whether the engine needs the kernels of kernels.py.

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if cls.KERNELS:
            folder = cls.enterClassContext(tempfile.TemporaryDirectory())
            install(folder, "peer-kernels", {PLUGINS: {"kernels": "kernels:plug_in"}})
            sys.path.append(folder)
        cls.engine = sglang.Engine(**settings(cls.MODEL, **cls.OTHERS))
        # When the engine ends, it kills all child processes of this process, among them our server. So tests must read
        # stored rows before that.
        cls.addClassCleanup(cls.engine.shutdown)
        cls.run_ = cls.open_run(cls.__name__, cls.MODEL)

    def ask(self, ids: Any, start: int = 0, **params: Any) -> Any:
        params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True} | params
        asked = {"return_routed_experts": True, "routed_experts_start_len": start}
        return self.engine.generate(input_ids=ids, sampling_params=params, **asked)

    def check_reply(
        self, case: str, run: Any, sample: str, prompt: list[int], reply: dict[str, Any], **options: Any
    ) -> None:
        """Does the same as `check`, for a reply that contains the engine's rows."""
        given = given_rows(reply["meta_info"], run.geometry)
        pieces = options.pop("pieces", self.MODEL)
        self.check(case, run, sample, prompt + list(reply["output_ids"]), given, pieces=pieces, **options)
