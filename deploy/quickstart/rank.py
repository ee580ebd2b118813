"""A trainer rank: plans its micro-batches, reads its layers and rows, replays them, and checks every result."""

from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import routing_replay_trainer as rrt
from numpy.typing import NDArray
from routing_replay import Client
from scenario import CP, PP, TP, Play, Sample

MULTIPLE = 2 * CP * TP  # Documents are padded to multiples of this many tokens.


def micro_batch(samples: list[Sample]) -> dict[str, Any]:
    """The trainer's layout: packed samples, each cut into zigzag pieces over the context parallel ranks."""
    bounds = np.cumsum([0, *(padded(sample) for sample in samples)]).tolist()
    return {
        "format": "THD",
        "sequences": [{"sample": sample.id, "tokens": len(sample.tokens)} for sample in samples],
        "cu_seqlens_padded": bounds,
        "total_rows": bounds[-1],
        "partition": "zigzag_per_document",
        "cp_size": CP,
        "tp_size": TP,
        "sequence_parallel": True,
    }


def padded(sample: Sample) -> int:
    return -(-len(sample.tokens) // MULTIPLE) * MULTIPLE


def train(play: Play, rank: int, barrier: Barrier) -> dict[str, int]:
    place = {"pp": rank // (TP * CP), "cp": rank // TP % CP, "tp": rank % TP}
    work = [
        (samples, rrt.plan(play.geometry, micro_batch(samples), rank=place, split={"pipeline_size": PP}))
        for samples in play.micro_batches()
    ]
    with Client() as client:
        source = rrt.ServiceSource(client.run(play.run))
        barrier.wait()
        batches = []
        for samples, plan in work:
            sequences = [rrt.FetchSequence(each.id, len(each.tokens), each.tokens) for each in samples]
            batches.append(source.fetch(plan, sequences=sequences))
        barrier.wait()
    counts = dict.fromkeys(("replayed", "unrecorded", "pad", "router_checked", "compared_ids", "server_out_bytes"), 0)
    for (samples, plan), batch in zip(work, batches, strict=True):
        check(play, samples, place, plan, batch, counts)
    barrier.wait()
    return counts


def expected_rows(samples: list[Sample], place: dict[str, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Returns the state and the ids [layers, K] of each row of this rank, computed without the plan.

    Each document is cut into 2 * CP pieces. The context parallel rank r has the r-th piece from the front and the r-th
    from the back. The rows of all its pieces are cut into TP equal parts, one for each sequence parallel rank.
    """
    states, ids = [], []
    for sample in samples:
        rows = np.arange(padded(sample)).reshape(2 * CP, -1)[[place["cp"], -1 - place["cp"]]].ravel()
        state = np.full(len(rows), rrt.PAD, np.uint8)
        state[rows < len(sample.tokens)] = rrt.UNRECORDED  # The last token has no row, so it stays unrecorded.
        has_row = rows < len(sample.ids)
        state[has_row] = np.where(sample.recorded()[rows[has_row]], rrt.REPLAYED, rrt.UNRECORDED)
        states.append(state)
        ids.append(sample.ids[np.minimum(rows, len(sample.ids) - 1)])
    mine = np.array_split(np.arange(sum(map(len, states))), TP)[place["tp"]]
    return np.concatenate(states)[mine], np.concatenate(ids)[mine]


def check(
    play: Play, samples: list[Sample], place: dict[str, int], plan: rrt.Plan, batch: rrt.Batch, counts: dict[str, int]
) -> None:
    """Checks every row state, every id of every replayed row, and for three layers the router's result."""
    states, ids = expected_rows(samples, place)
    layers = np.array_split(np.arange(play.geometry.num_layers), PP)[place["pp"]].tolist()
    same([layer.layer for layer in plan.layers], layers, "the rank's layers")
    same(batch.states, states, "states")
    replayed = states == rrt.REPLAYED
    for slot, layer in enumerate(layers):
        same(batch.indices[slot][replayed], ids[replayed, layer], f"ids of layer {layer}")
        counts["compared_ids"] += ids[replayed, layer].size
        counts["server_out_bytes"] += batch.indices[slot][replayed].nbytes
    for slot in sorted({0, len(layers) // 2, len(layers) - 1}):
        check_router(plan.layers[slot], batch.indices[slot], states, ids[:, layers[slot]])
        counts["router_checked"] += len(states)
    for name, state in (("replayed", rrt.REPLAYED), ("unrecorded", rrt.UNRECORDED), ("pad", rrt.PAD)):
        counts[name] += int((states == state).sum())


def check_router(layer: rrt.Layer, indices: NDArray[Any], states: NDArray[Any], ids: NDArray[Any]) -> None:
    """Replayed rows must go to their experts, unrecorded ones to the K highest logits; probabilities must be
    softmax."""
    experts, top_k = layer.num_experts, layer.top_k
    logits = np.random.default_rng(layer.layer).standard_normal((len(states), experts), np.float32)
    out = rrt.router_replay_forward(rrt.Router(experts, top_k), logits, indices, states)
    wanted = np.where((states == rrt.REPLAYED)[:, None], ids, np.argpartition(-logits, top_k)[:, :top_k])
    routing_map = np.zeros_like(out.routing_map)
    np.put_along_axis(routing_map, wanted.astype(np.int64), True, axis=1)
    token = states != rrt.PAD
    same(out.routing_map[token], routing_map[token], f"the routing map of layer {layer.layer}")
    same(out.routing_map.sum(axis=1), [top_k] * len(states), f"experts per row of layer {layer.layer}")
    weights = np.where(out.routing_map, np.exp(logits), 0)
    if not np.allclose(out.probs, weights / weights.sum(axis=1, keepdims=True), rtol=0, atol=1e-5):
        raise AssertionError(f"the probabilities of layer {layer.layer} are not softmax over the replayed experts")


def same(found: Any, expected: Any, what: str) -> None:
    if not np.array_equal(found, expected):
        raise AssertionError(f"{what} differ: {found} instead of {expected}")
