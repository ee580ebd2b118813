"""Compares a trainer's log-probabilities with the engine's: live routing, replay, and replay of shifted routes.

    tests/bench/pictures/mismatch.sh [--prompts N] [--tokens N] [--noise S] [--json FILE] [--picture FILE]

The engine is vLLM on the CPU in fp32, which produces the answers, their log-probabilities and their routes. The trainer
is the same model in transformers with bf16 and `routing_replay_trainer.hf`, whose routes come from the service. The
model (4 layers, 8 of 64 experts, random weights) is so small that bf16 alone changes few choices. Therefore noise of S
times the size of the weights is added to the trainer's routers; in a large model, other kernels, another order of sums
and slightly older weights have this effect. S = 0 is measured as well.

`live`: the trainer chooses by itself. `R3`: it replays. `R3, one row late`: the stored rows are shifted by one, which
neither shapes nor tokens reveal; the trainer's report is printed.

This shows how much of the difference is due to the choice of experts and disappears with replay, and that a shift is
worse than no replay and is detected. It does not show how large the difference is in a trained model, whose experts may
be more or less alike than random ones.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import numpy as np
import picture
import routing_replay as rr
import routing_replay_trainer as rt
import torch
from common import models
from routing_replay.engines import vllm as adapter
from routing_replay_trainer import hf, metrics

MODEL, ANSWERS_AT_ONCE = "qwen3", 4
WAYS = ("live", "R3", "R3, one row late")


class Answer(NamedTuple):
    """One answer of the engine.

    tokens: the prompt's tokens, then the answer's
    prompt: number of prompt tokens
    logprobs: the engine's log-probability of each token of the answer
    rows: the routes to append
    """

    tokens: list[int]
    prompt: int
    logprobs: np.ndarray
    rows: Any


def rollout(folder: Path, prompts: int, new_tokens: int) -> list[Answer]:
    from vllm import LLM, SamplingParams

    random = np.random.default_rng(1)
    given = [random.integers(3, models.TOKENS, random.integers(8, 65)).tolist() for _ in range(prompts)]
    engine = LLM(
        model=str(folder),
        dtype="float32",
        enable_return_routed_experts=True,
        enforce_eager=True,
        max_model_len=1024,
        kv_cache_memory_bytes=64 << 20,
        block_size=32,
        max_num_seqs=16,
        seed=0,
    )
    params = SamplingParams(max_tokens=new_tokens, temperature=1.0, seed=1, logprobs=0, ignore_eos=True)
    outputs = engine.generate([{"prompt_token_ids": ids} for ids in given], params, use_tqdm=False)
    answers = []
    for output in outputs:
        answer = output.outputs[0]
        logprobs = [said[token].logprob for said, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        tokens = [*output.prompt_token_ids, *answer.token_ids]
        answers.append(Answer(tokens, len(output.prompt_token_ids), np.array(logprobs), adapter.rows(output)))
    return answers


def store(answers: list[Answer], geometry: rr.Geometry) -> dict[str, rr.Run]:
    """Opens a run for each way that replays, and appends the answers' rows."""
    client = rr.Client()
    right, late = (client.run(name, geometry) for name in ("right", "late"))
    for i, answer in enumerate(answers):
        right.append(str(i), answer.rows, seal=True)
    right.flush()
    for i, answer in enumerate(answers):
        rows = right.read_one(str(i)).rows
        late.append(str(i), np.concatenate([rows[:1], rows[:-1]]), tokens=answer.tokens[:-1], seal=True)
    late.flush()
    return {WAYS[1]: right, WAYS[2]: late}


def trainer_of(folder: Path, noise: float) -> Any:
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith(".gate.weight"):
                values.add_(torch.randn_like(values) * values.float().std() * noise)
    return model


class Told(logging.Handler):
    """Collects warnings of the trainer package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


def batches(answers: list[Answer]) -> list[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Makes micro-batches. Each has the numbers of its samples, their tokens padded to a rectangle, and the mask."""
    made = []
    for first in range(0, len(answers), ANSWERS_AT_ONCE):
        samples = list(range(first, min(first + ANSWERS_AT_ONCE, len(answers))))
        rows = [torch.tensor(answers[i].tokens) for i in samples]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        made.append((samples, tokens, mask))
    return made


def logprobs(answers: list[Answer], samples: list[int], tokens: torch.Tensor, logits: torch.Tensor) -> list[np.ndarray]:
    """The log-probabilities of the answers' tokens."""
    told = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, tokens[:, 1:, None])[..., 0].numpy()
    spans = [(answers[i].prompt - 1, len(answers[i].tokens) - 1) for i in samples]
    return [row[begin:end] for row, (begin, end) in zip(told, spans, strict=True)]


@torch.no_grad()
def play(model: Any, answers: list[Answer], run: rr.Run | None) -> tuple[np.ndarray, dict[str, float]]:
    """Returns the trainer's log-probabilities of all answers' tokens, and its report.

    run: the run whose routes the trainer replays; None: it routes live
    """
    told: list[np.ndarray] = []
    if run is None:
        for samples, tokens, mask in batches(answers):
            told += logprobs(answers, samples, tokens, model(input_ids=tokens, attention_mask=mask).logits)
        return np.concatenate(told), {}
    replay = hf.attach(model, source=rt.ServiceSource(run), watch="all")
    replay.begin_step([str(i) for i in range(len(answers))], tokens=[np.array(answer.tokens) for answer in answers])
    for samples, tokens, mask in batches(answers):
        with replay.micro_batch([str(i) for i in samples], tokens=tokens, attention_mask=mask):
            logits = model(input_ids=tokens, attention_mask=mask).logits
        told += logprobs(answers, samples, tokens, logits)
    replay.end_step()
    report = replay.metrics()
    replay.detach()
    return np.concatenate(told), report


def main() -> None:
    parser = argparse.ArgumentParser(description="A trainer's log-probabilities beside the engine's.")
    parser.add_argument("--prompts", type=int, default=16, help="number of answers")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per answer")
    parser.add_argument(
        "--noise", type=float, default=0.02, help="noise of the trainer's routers, relative to their weights"
    )
    parser.add_argument("--json", type=Path, help="file for all differences")
    parser.add_argument("--picture", type=Path, help="file for the picture, an SVG")
    options = parser.parse_args()
    said, log = Told(), logging.getLogger("routing_replay_trainer")
    log.addHandler(said)
    log.propagate = False
    with tempfile.TemporaryDirectory() as directory, rr.local_server():
        folder = Path(directory)
        models.make(MODEL, folder)
        answers = rollout(folder, options.prompts, options.tokens)
        runs = store(answers, rr.Geometry.from_hf_config(folder))
        engine = np.concatenate([answer.logprobs for answer in answers])
        found: dict[str, dict[str, list[float]]] = {}
        table = []
        for noise in (0.0, options.noise):
            model, name = trainer_of(folder, noise), f"bf16, noise {noise:g}"
            found[name] = {}
            for way in WAYS:
                told, report = play(model, answers, runs.get(way))
                found[name][way] = np.abs(told - engine).tolist()
                table.append(row(name, way, metrics.mismatch(engine, told), report))
    print(f"{picture.machine()}\n{len(answers)} answers, {engine.size} tokens.\n")
    print("| trainer | routing | mean of differences | K3 | off by more than 2x | rows with other experts | alarms |")
    print("\n".join(["|---|---|---|---|---|---|---|", *table]))
    print("\nThe trainer's report on the shifted routes:\n")
    print("\n".join(f"> {words}" for words in said.words))
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    if options.picture:
        options.picture.write_text(draw(found[f"bf16, noise {options.noise:g}"], options.noise))


def row(trainer: str, way: str, mismatch: dict[str, float], report: dict[str, float]) -> str:
    mean, k3, above = (
        mismatch[f"{metrics.PREFIX}mismatch/{key}"] for key in ("mean_abs_diff", "k3_kl", "fraction_above_2x")
    )
    others, alarms = "", ""
    if report:
        each = [value for key, value in report.items() if key.startswith(metrics.PREFIX + "live_mismatch/")]
        others = f"{sum(each) / len(each) / report[metrics.PREFIX + 'replayed_rows']:.1%}"
        alarms = f"{report[metrics.PREFIX + 'no_overlap_alarms']:.0f}"
    return f"| {trainer} | {way} | {mean:.4f} | {k3:.2g} | {above:.2%} | {others} | {alarms} |"


def draw(found: dict[str, list[float]], noise: float) -> str:
    return picture.shares(
        "A trainer's log-probabilities beside the engine's, per token of the answers",
        f"vLLM in fp32; trainer in bf16, routers with noise of {noise:.0%}; a small random model, "
        f"{len(found[WAYS[0]])} tokens",
        "|difference of log-probabilities|",
        "tokens with more",
        {f"{way}: mean {np.mean(values):.3g}": values for way, values in found.items()},
    )


if __name__ == "__main__":
    main()
