#!/usr/bin/env python3
"""Measures router replay with torch's operators, beside the kernels' figures that gpu_bench wrote.

    unfused.py FIGURES.json [--rounds N] [--launches N]

Adds to the file, for each router.SCORE.DTYPE.EXPERTS[.hbm].forward_backward in it, "….unfused": microseconds of one
forward and backward pass of unfused operators on the GPU. They are replayed from a CUDA graph, so the time of the host,
which launches a dozen kernels, is not in it; with it, the pass is "….unfused-eager". The floor is the kernels' time, so
the ratio says how many times faster the kernels are. Also adds "….transformer-engine" if Transformer Engine is
installed: its fused router, which chooses the experts itself, in a graph too. Exit status 77, with the reason, without
torch or a GPU.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

ROUTED = 8  # K
EPSILON = 1e-20


def forward(torch, logits, ids, score, scale):
    """Gathers, normalises, scales and scatters in fp32 with one cast at the end, as Megatron-Core does from 0.18 on."""
    if score == "softmax":
        probs = torch.softmax(logits.gather(1, ids).float(), dim=-1)
    else:
        scores = torch.sigmoid(logits.float()).gather(1, ids)
        probs = scores / (scores.sum(dim=-1, keepdim=True) + EPSILON) * scale
    probs = probs.type_as(logits)
    dense = torch.zeros_like(logits).scatter(1, ids, probs)
    routed = torch.zeros_like(logits).int().scatter(1, ids, 1).bool()
    return dense, routed


def transformer_engine():
    """Transformer Engine's router as Megatron-Core calls it, or None."""
    try:
        from transformer_engine.pytorch.router import fused_topk_with_score_function
    except ImportError:
        return None

    def route(torch, logits, ids, score, scale):
        return fused_topk_with_score_function(
            logits=logits,
            topk=ROUTED,
            use_pre_softmax=False,
            num_groups=None,
            group_topk=None,
            scaling_factor=1.0 if score == "softmax" else scale,
            score_function=score,
            expert_bias=None,
        )

    return route


def captured(torch, once, launches):
    """Returns a function that runs `launches` passes from a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            once()
    return graph.replay


def measure(torch, route, experts, dtype, score, rows, rounds, launches, eager):
    """Returns the microseconds of one forward and backward pass, one value per round."""
    logits = torch.randn(rows, experts, device="cuda", dtype=dtype, requires_grad=True)
    ids = torch.rand(rows, experts, device="cuda").topk(ROUTED, dim=1).indices
    upstream = torch.randn(rows, experts, device="cuda", dtype=dtype)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once():
        dense, _ = route(torch, logits, ids, score, 2.5)
        torch.autograd.grad(dense, logits, upstream)

    def passes():
        for _ in range(launches):
            once()

    run = passes if eager else captured(torch, once, launches)
    times = []
    for _ in range(rounds + 2):
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / launches)
    return times[2:]


def figure(name, way, times, fused):
    low, middle, high = min(times), statistics.median(times), max(times)
    return {
        "name": f"{name}.{way}",
        "unit": "us",
        "median": middle,
        "min": low,
        "max": high,
        "floor": fused["median"],
        "floor_name": name,
        "ratio": middle / fused["median"],
        "ratio_min": low / fused["max"],
        "ratio_max": high / fused["min"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--launches", type=int, default=20)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no torch: the unfused path is skipped")
        return 77
    if not torch.cuda.is_available():
        print("torch sees no GPU: the unfused path is skipped")
        return 77
    results = json.loads(options.figures.read_text())
    rows = results["host"]["rows"]
    engine = transformer_engine()
    ways = {"unfused": (forward, False), "unfused-eager": (forward, True), "transformer-engine": (engine, False)}
    kept = [f for f in results["figures"] if not f["name"].endswith(tuple(f".{way}" for way in ways))]
    added = []
    for fused in kept:
        parts = fused["name"].split(".")
        if parts[0] != "router" or parts[-1] != "forward_backward" or parts[4:-1] not in ([], ["hbm"]):
            continue
        _, score, dtype, experts = parts[:4]
        torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
        held = rows * 16 if "hbm" in parts else rows  # As in work.cc.
        for way, (route, eager) in ways.items():
            if route is None:
                continue
            shape = int(experts[1:]), torch_dtype, score, held
            times = measure(torch, route, *shape, options.rounds, options.launches, eager)
            added.append(figure(fused["name"], way, times, fused))
            print(f"{added[-1]['name']}: {added[-1]['median']:.1f} us, {added[-1]['ratio']:.1f} x the kernels' time")
    results["figures"] = kept + added
    results["host"]["torch"] = torch.__version__
    options.figures.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
