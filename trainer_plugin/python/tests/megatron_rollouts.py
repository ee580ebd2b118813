"""Rollouts and schedules for tests with Megatron-Core's real routers."""

from __future__ import annotations

import threading
import types
from ctypes import byref, c_void_p
from typing import Any

import megatron_models as models
import numpy as np
import torch
from megatron.core.pipeline_parallel.schedules import get_schedule_table

import routing_replay_trainer as trainer
from routing_replay_trainer._core import LIBRARY
from routing_replay_trainer.fetch import _Target

MICRO_BATCHES, CHUNKS, PIPELINE = 8, 2, 2
LENGTHS = ((5, 9, 2), (16,), (3, 3), (7, 6), (12, 4), (2, 2, 2), (11,), (8, 5))  # Tokens, per micro-batch.


class Rollout:
    """Random routes of all samples, and the micro-batches that use them."""

    def __init__(self, config: Any, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.moe = [i for i, moe in enumerate(pattern(config)) if moe]
        experts, top_k = config.num_moe_experts, config.moe_router_topk
        geometry = {"num_layers": config.num_layers, "moe_layers": self.moe, "num_experts": experts, "top_k": top_k}
        self.source = trainer.LocalSource(geometry)
        self.rows: list[list[np.ndarray]] = []
        self.tokens: list[list[np.ndarray]] = []
        for index, lengths in enumerate(LENGTHS):
            self.rows.append([])
            self.tokens.append([])
            for place, length in enumerate(lengths):
                rows = random.random((length - 1, len(self.moe), experts)).argpartition(top_k - 1, axis=2)[..., :top_k]
                tokens = random.integers(0, 1000, length)
                self.source.add(f"{index}/{place}", rows.astype(np.int32), tokens=tokens)
                self.rows[-1].append(rows)
                self.tokens[-1].append(tokens)

    def samples(self, index: int) -> list[str]:
        return [f"{index}/{place}" for place in range(len(LENGTHS[index]))]

    def packed(self, index: int) -> Any:
        ends = np.cumsum([0, *LENGTHS[index]])
        return types.SimpleNamespace(
            qkv_format="thd", cu_seqlens_q=torch.tensor(ends), cu_seqlens_q_padded=None, total_tokens=None
        )

    def ids(self, index: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For one layer and all N tokens of a micro-batch: the ids [N, K], and [N] bools: True if the row has a route.
        The last token of a sample has none; its ids repeat those of the row before it."""
        column = self.moe.index(layer)
        ids, recorded = [], []
        for rows in self.rows[index]:
            ids += [*rows[:, column], rows[-1, column]]
            recorded += [*(True,) * len(rows), False]
        return torch.tensor(np.array(ids)), torch.tensor(recorded)


class CountingSource(trainer.Source):
    """Reads through another source, slowly, like a remote service."""

    def __init__(self, source: trainer.LocalSource) -> None:
        super().__init__(source.geometry)
        self._source = source
        self._lock = threading.Lock()
        self.samples = 0
        self.inspections = 0

    def inspect(self, sequences: Any, *, timeout: float | None = None) -> list[dict[str, Any]]:
        self.inspections += 1
        return self._source.inspect(sequences, timeout=timeout)

    def _start(self, plan: trainer.Plan, sequences: Any, missing: Any) -> Any:
        return self._source._start(plan, sequences, missing)

    def _bring(self, fetch: Any, timeout: float | None) -> None:
        self._source._bring(fetch, timeout)
        target, records = _Target(fetch.plan, None), c_void_p()
        LIBRARY.rrt_fetch_result(fetch.pointer, byref(target.native), byref(records))
        read = sum(sequence["status"] != "UNSPECIFIED" for sequence in target.batch(records.value).sequences)
        with self._lock:  # Threads read ahead.
            self.samples += read


def pattern(config: Any) -> list[bool]:
    freq = config.moe_layer_freq
    return [bool(x) for x in freq] if isinstance(freq, list) else [i % freq == 0 for i in range(config.num_layers)]


def by_hand(model: Any, rollout: Rollout, index: int, hidden: torch.Tensor) -> torch.Tensor:
    """Runs one micro-batch with Megatron's own replay, layer by layer, without recompute. Rows without a route get the
    experts that the router would choose for them."""
    for layer in model.decoder.layers:
        if layer.layer_number - 1 in rollout.moe:
            router = layer.mlp.router
            ids, recorded = rollout.ids(index, layer.layer_number - 1)
            with torch.no_grad():
                live = router.gating(hidden).view(len(ids), -1).topk(ids.shape[1]).indices
            router.router_replay.set_target_indices(torch.where(recorded[:, None], ids, live))
            router.router_replay.set_router_replay_action(models.RouterReplayAction.REPLAY_FORWARD)
        hidden = layer(hidden)
        if layer.layer_number - 1 in rollout.moe:
            router.router_replay.clear_router_replay_action()
            router.router_replay.clear_indices()
    return hidden


def interleaved() -> list[tuple[str, int, int]]:
    """Returns the order of passes on pipeline rank 0, from Megatron's own table: (forward or backward, micro-batch,
    chunk) for each pass."""
    table = get_schedule_table(MICRO_BATCHES, CHUNKS, PIPELINE)
    warmup = (PIPELINE - 1) * 2 + (CHUNKS - 1) * PIPELINE
    forward = [("forward", index, chunk) for index, chunk in table]
    backward = [("backward", index, CHUNKS - 1 - chunk) for index, chunk in table]
    order = forward[:warmup]
    for step, back in enumerate(backward):
        order += [*forward[warmup + step : warmup + step + 1], back]
    return order
