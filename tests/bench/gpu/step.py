#!/usr/bin/env python3
"""What replay adds to a training step on a GPU: forward and backward of a Qwen3-MoE of transformers, in bf16.

    step.py [--rounds N] [--layers L] [--tokens T] [--small] [--json FILE]

A step has one micro-batch of 8 samples of T tokens each (default: 1024). Each layer has the shape of Qwen3-30B-A3B:
hidden size 2048, 8 of 128 experts; --small has a shape for a CPU. Weights are random. In each round three ways take
turns, each with a step that is not measured, then one that is:

    live    the model as it is
    local   mode R3, with routes that are in this process
    served  mode R3, with routes that a server on this machine holds

The routes are those that the model itself chose before, so that all three do the same work in experts. A step's time
includes begin_step, micro_batch, the fetch and end_step, and ends when the GPU is done. Nothing else should run on the
machine. Needs torch, transformers and routing-replay-server; exit status 77, with the reason, without them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import routing_replay as rr
from routing_replay_trainer import LocalSource, ServiceSource

try:
    import torch
    from routing_replay_trainer import hf
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

SAMPLES = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
LARGE |= {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32768}
SMALL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 16, "num_experts_per_tok": 4}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512}


def make_model(layers: int, shape: dict[str, int]) -> Any:
    torch.manual_seed(1)
    config = Qwen3MoeConfig(num_hidden_layers=layers, use_cache=False, norm_topk_prob=True, **shape)
    with torch.device(DEVICE):
        return Qwen3MoeForCausalLM(config).to(torch.bfloat16).train()


def finished() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Step:
    def __init__(self, model: Any, tokens: int) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(2)
        self.ids = torch.randint(1, model.config.vocab_size, (SAMPLES, tokens), generator=generator)
        self.samples = [f"sample-{i}" for i in range(SAMPLES)]
        self.mask = torch.ones_like(self.ids)
        self.inputs = {"input_ids": self.ids.to(DEVICE), "attention_mask": self.mask.to(DEVICE)}

    def forward_backward(self) -> None:
        logits = self.model(**self.inputs).logits
        loss = logits.float().logsumexp(-1).mean()
        loss.backward()
        self.model.zero_grad()

    def replayed(self, replay: Any) -> None:
        replay.begin_step(self.samples, tokens=list(self.ids.numpy()))
        with replay.micro_batch(self.samples, tokens=self.ids, attention_mask=self.mask):
            self.forward_backward()
        replay.end_step()

    def record(self, run: rr.Run) -> list[Any]:
        """Lets the model choose experts once, and stores this choice as if the rollout had made it. Returns
        each sample's rows."""
        replay = hf.attach(self.model, mode="R2", writer=(writer := hf.RecordWriter(None, run)))
        with (
            replay.micro_batch(self.samples, tokens=self.ids, attention_mask=self.mask),
            torch.no_grad(),
        ):
            self.model(**self.inputs)
        replay.end_step()
        replay.detach()
        writer.write(group=0)
        rows = [sample.rows for sample in run.read(self.samples, producer="trainer")]
        for sample, each, tokens in zip(self.samples, rows, self.ids.numpy(), strict=True):
            run.append(sample, each, tokens=tokens, num_tokens=len(tokens), seal=True)
        run.flush()
        return rows


def measure(step: Step, geometry: rr.Geometry, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"live": [], "local": [], "served": []}
    with rr.local_server() as server, rr.Client(server.endpoint) as client:
        run = client.run("step", geometry)
        local = LocalSource(geometry)
        for sample, tokens, rows in zip(step.samples, step.ids.numpy(), step.record(run), strict=True):
            local.add(sample, rows, tokens=tokens)
        sources = {"local": local, "served": ServiceSource(run)}

        for number in range(-2, rounds):
            for name in times:
                replay = hf.attach(step.model, source=sources[name], mode="R3") if name != "live" else None
                for _ in range(2):
                    begin = finished()
                    if replay is None:
                        step.forward_backward()
                    else:
                        step.replayed(replay)
                    took = finished() - begin
                if replay is not None:
                    assert replay.metrics()["routing_replay/fallback_fraction"] == 0
                    replay.detach()
                if number >= 0:
                    times[name].append(1e3 * took)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = SMALL if options.small else LARGE
    geometry = rr.Geometry(
        num_layers=options.layers, num_experts=shape["num_experts"], top_k=shape["num_experts_per_tok"]
    )
    times = measure(Step(make_model(options.layers, shape), options.tokens), geometry, options.rounds)
    figures = []
    for name, each in times.items():
        ratios = sorted(a / b for a, b in zip(each, times["live"], strict=True))
        figures.append(
            {
                "name": f"step.{name}",
                "unit": "ms",
                "median": statistics.median(each),
                "min": min(each),
                "max": max(each),
                "floor": statistics.median(times["live"]),
                "floor_name": "step.live",
                "ratio": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
            }
        )
        spread = f"{statistics.median(ratios):.3f} [{ratios[0]:.3f} … {ratios[-1]:.3f}]"
        print(f"{name:8}{figures[-1]['median']:9.1f} ms  {spread}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
