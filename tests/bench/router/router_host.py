#!/usr/bin/env python3
"""The cost of replay on the host: the fused operator beside Megatron-Core's own unfused replay, on the CPU.

    PYTHONPATH=trainer_plugin/python/src:trainer_plugin/python/tests ROUTING_REPLAY_LIBRARY_DIR=build/release/lib \
        build/peers/megatron-core-0.19.2/bin/python tests/bench/router/router_host.py [--rounds N] [--json FILE]

Prints microseconds of this process per call of one router with 4 rows, and per pass of 48 layers of them. With so few
rows only the host's work remains, which is the same when a GPU computes. "own" is Megatron's function or router, called
directly; "ratio" is our time over its time, the median over rounds in which both take turns. In the 48 layers both
interfaces are those of `megatron.attach`, without the plan and the fetch of the pass. Exit status 77, with the reason,
without megatron-core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import megatron_models as models
    import routing_replay_trainer as trainer
    import torch
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
    from routing_replay_trainer import megatron, ops
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

ROWS, EXPERTS, TOP_K, LAYERS = 4, 64, 4, 48
Timed = Callable[[], float]  # Seconds.


def compared(name: str, ours: Timed, own: Timed, rounds: int, calls: int) -> dict[str, Any]:
    times = []
    for number in range(rounds + 2):
        pair = []
        for one in (ours, own) if number % 2 else (own, ours):
            pair.append(1e6 * sum(one() for _ in range(calls)) / calls)
        times.append(pair if number % 2 else pair[::-1])
    times = times[2:]
    ratios = sorted(a / b for a, b in times)
    ours_us, own_us = (statistics.median(side) for side in zip(*times, strict=True))
    said = {"name": name, "us": ours_us, "own_us": own_us, "ratio": statistics.median(ratios)}
    between = f"{said['ratio']:.2f} [{ratios[0]:.2f} … {ratios[-1]:.2f}]"
    print(f"{name:40} {ours_us:9.1f} us   own {own_us:9.1f} us   ratio {between}", flush=True)
    return said | {"least": ratios[0], "most": ratios[-1]}


def timed(run: Callable[[], Any]) -> Timed:
    def once() -> float:
        before = time.process_time()
        run()
        return time.process_time() - before

    return once


def calls(score: str, rounds: int, count: int) -> list[dict[str, Any]]:
    logits = torch.randn(ROWS, EXPERTS, requires_grad=True)
    ids = torch.rand(ROWS, EXPERTS).topk(TOP_K).indices
    compact, states = ids.to(ops.id_dtype(EXPERTS)), torch.zeros(ROWS, dtype=torch.uint8)
    upstream = torch.randn(ROWS, EXPERTS)
    router = trainer.Router(EXPERTS, TOP_K, score)
    theirs = models.RouterReplay()
    theirs.set_target_indices(ids)

    def ours() -> Any:
        return ops.router_replay(router, logits, compact, states).probs

    def own() -> Any:
        theirs.set_router_replay_action(models.RouterReplayAction.REPLAY_FORWARD)
        theirs.replay_backward_list.clear()
        return topk_routing_with_score_function(logits, TOP_K, score_function=score, router_replay=theirs)[0]

    def without_gradients(run: Callable[[], Any]) -> Callable[[], Any]:
        return torch.no_grad()(run)

    def with_backward(run: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(run(), logits, upstream)

    said = []
    for name, wrapped in (
        ("forward, no gradients", without_gradients),
        ("forward", lambda run: run),
        ("forward and backward", with_backward),
    ):
        pair = (timed(wrapped(ours)), timed(wrapped(own)))
        said.append(compared(f"call, {score}: {name}", *pair, rounds, count))
    return said


class Routers(models.Model):
    """A model that consists only of its routers. `seconds` is the CPU time of its last forward pass."""

    def forward(self, hidden: Any) -> Any:
        before = time.process_time()
        total = sum(layer.mlp.router(hidden)[0].sum() for layer in self.decoder.layers)
        self.seconds = time.process_time() - before
        return total


def layers(score: str, rounds: int) -> list[dict[str, Any]]:
    config = models.make_config(
        num_layers=LAYERS, num_moe_experts=EXPERTS, moe_router_topk=TOP_K, moe_router_score_function=score
    )
    geometry = {"num_layers": LAYERS, "num_experts": EXPERTS, "top_k": TOP_K}
    ids = torch.rand(ROWS, LAYERS, EXPERTS).topk(TOP_K).indices
    source = trainer.LocalSource(geometry)
    source.add("sample", ids[:-1].numpy())
    hidden = torch.randn(ROWS, 1, models.HIDDEN)
    own = Routers(config, list(range(1, LAYERS + 1)))

    def told_by_hand() -> float:
        for number, layer in enumerate(own.decoder.layers):
            replay = layer.mlp.router.router_replay
            replay.replay_backward_list.clear()
            replay.set_target_indices(ids[:, number])
            replay.set_router_replay_action(models.RouterReplayAction.REPLAY_FORWARD)
        return forward_and_backward(own)

    def forward_and_backward(model: Routers) -> float:
        output = model(hidden)
        before = time.process_time()
        output.backward()
        return model.seconds + time.process_time() - before

    said = []
    for inject in ("fused", "native"):
        model = Routers(config, list(range(1, LAYERS + 1)))
        replay = megatron.attach(model, config, source=source, inject=inject, watch="off", ranks={})
        layout = {"format": "THD", "total_rows": ROWS, "cu_seqlens_padded": [0, ROWS], "lengths": [ROWS]}

        def attached(model: Routers = model, replay: Any = replay, layout: Any = layout) -> float:
            with replay.micro_batch(["sample"], index=0, **layout):
                seconds = forward_and_backward(model)
            replay.end_step()
            return seconds

        said.append(compared(f"{LAYERS} layers, {score}: {inject}", attached, told_by_hand, rounds, 5))
        replay.detach()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    said = []
    for score in ("softmax", "sigmoid"):
        said += calls(score, options.rounds, options.calls) + layers(score, options.rounds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(said, file, indent=1)


if __name__ == "__main__":
    main()
