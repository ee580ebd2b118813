"""How much of verl's own step is spent on routes: verl's R3, with routes in the batch, beside the README's three lines.

    tests/peers/verl.sh --share ROUNDS

The step begins where agent loops end, with verl's own functions over Ray and TransferQueue: its agent loop worker's
`_agent_loop_postprocess`, its trainer's `_compute_old_log_prob`, `_compute_advantage` and `_update_actor`, and
`kv_clear`. For each pass the actor takes the batch from TransferQueue. Answers are random, with routes of
Qwen3-30B-A3B's shape.

Three processes take turns: `live` has no routes, `R3` is verl's own replay, `ours` has the three lines. What a way
spends on routes is its step minus the live step of the same round. This includes everything that routes cost:
converting, carrying, aligning and setting them, and routers that use them instead of their own choice.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import actors
import numpy as np
import ray
import routing_replay
import torch
import transfer_queue
from common import models as small
from support import random_routes
from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopWorkerTQ, PPOTrainerColocateAsync

LAYERS, EXPERTS, TOP_K = 48, 128, 8
SAMPLES, TOKENS = 16, 256  # Samples per step, tokens per sample.
WARM_UP = 2  # Rounds that are not counted.
RUN = "here/share"
WAYS = {
    "live": [],
    "R3": [
        "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
        "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
    ],
    "ours": actors.flags(),
}
COLUMNS = {"R3": "routed_experts", "ours": "routing_handle"}
PARTS = ("end of agent loops", "log-probabilities", "advantages", "update", "clear")


class Way:
    """verl's trainer, agent loop worker and actor, in a Ray process."""

    def __init__(self, name: str, config: Any) -> None:
        self.name = name
        actors.LAYERS = LAYERS
        actors.models.make_config = partial(actors.models.make_config, num_moe_experts=EXPERTS, moe_router_topk=TOP_K)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        transfer_queue.init()
        self.trainer = object.__new__(PPOTrainerColocateAsync)
        self.trainer.config, self.trainer.actor_rollout_wg = config, actors.worker(config)
        worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
        if name == "ours":
            integration = sys.modules["routing_replay_trainer.integrations.verl"]  # Imported as `external_lib`.
            worker, integration.Manager.run = integration.Worker, RUN
        self.worker = object.__new__(worker)
        self.worker.config, self.worker.processor, self.worker.distillation_enabled = config, None, False
        self.worker.reward_loop_worker_handles = None
        model = AutoConfig.from_pretrained(config.actor_rollout_ref.model.path)
        self.worker.model_config = SimpleNamespace(hf_config=model)
        self.loop = asyncio.new_event_loop()
        random = np.random.default_rng(7)
        self.answers = [
            (
                random.integers(20, actors.VOCABULARY, TOKENS).tolist(),
                random_routes(random, TOKENS - 1, LAYERS, EXPERTS, TOP_K).astype(np.uint8),
            )
            for _ in range(SAMPLES)
        ]

    def step(self, number: int) -> dict[str, float]:
        """Returns the seconds of each part and of the step, the CPU seconds of this process, the bytes of routes in the
        batch, and the entropy."""
        uids = [f"{self.name}-{number}-{i}" for i in range(len(self.answers))]
        batch = transfer_queue.KVBatchMeta(
            keys=[f"{uid}_0_0" for uid in uids], tags=[{} for _ in uids], partition_id="train"
        )
        outputs, metrics = [self.output(*answer) for answer in self.answers], {}
        calls = (
            lambda batch: self.loop.run_until_complete(end(self.worker, uids, outputs, number)) or batch,
            lambda batch: self.trainer._compute_old_log_prob(batch, metrics),
            lambda batch: self.trainer._compute_advantage(batch, metrics),
            lambda batch: self.trainer._update_actor(batch, metrics),
            lambda batch: transfer_queue.kv_clear(keys=batch.keys, partition_id="train"),
        )
        said = {"CPU": 0.0}
        for part, call in zip(PARTS, calls, strict=True):
            if part == "clear" and self.name in COLUMNS:
                column = COLUMNS[self.name]
                data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[column])
                said["bytes"] = sum(value.nbytes for value in data[column].unbind())
            began, cpu = time.perf_counter(), time.process_time()
            batch = call(batch)
            said[part] = time.perf_counter() - began
            said["CPU"] += time.process_time() - cpu
        [model] = self.trainer.actor_rollout_wg.actor.engine.module
        for seen in (model.fed, *(layer.seen for layer in model.decoder.layers)):
            seen.clear()
        return said | {"step": sum(said[part] for part in PARTS), "entropy": metrics["actor/entropy"]}

    def output(self, ids: list[int], rows: np.ndarray) -> AgentLoopOutput:
        prompt, response = ids[:16], ids[16:]
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response,
            response_mask=[1] * len(response),
            response_logprobs=[-1.0] * len(response),
            routed_experts=rows if self.name in COLUMNS else None,
            reward_score=float(ids[0] % 2),
            metrics=AgentLoopMetrics(),
        )


async def end(worker: Any, uids: list[str], outputs: list[AgentLoopOutput], number: int) -> None:
    """Ends all agent loops. This is not a method of Way: if a class has an `async` method, Ray calls all its methods in
    an event loop, in which Way.step could not wait for this coroutine."""
    prompts = [{"uid": uid, "session_id": 0, "global_steps": number} for uid in uids]
    await asyncio.gather(
        *(worker._agent_loop_postprocess(one, False, **of) for one, of in zip(outputs, prompts, strict=True))
    )


def table(played: list[dict[str, dict[str, float]]]) -> str:
    def line(name: str, value: Any) -> str:
        cells = []
        for way in WAYS:
            values = [value(one[way], one["live"]) for one in played]
            cells.append(f"{statistics.median(values):.3g} [{min(values):.3g}..{max(values):.3g}]")
        return f"| {name} | {' | '.join(cells)} |"

    lines = [f"| | {' | '.join(WAYS)} |", "|---" * (1 + len(WAYS)) + "|"]
    lines += [line(f"{part}, s", lambda one, _, part=part: one[part]) for part in (*PARTS, "step")]
    lines.append(line("of it routes, s", lambda one, live: one["step"] - live["step"]))
    lines.append(line("of it routes, %", lambda one, live: 100 * (1 - live["step"] / one["step"])))
    lines.append(line("of it routes, s of CPU", lambda one, live: one["CPU"] - live["CPU"]))
    lines.append(line("routes in the batch, bytes", lambda one, _: one.get("bytes", 0)))
    return "\n".join(lines)


def main() -> None:
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"  # For Ray's workers.
    os.environ["ROUTING_REPLAY_TRAINING_RUN"] = RUN
    with tempfile.TemporaryDirectory() as folder, routing_replay.local_server():
        print(table(rounds(Path(folder), int(sys.argv[1]))))


def rounds(folder: Path, counted: int) -> list[dict[str, dict[str, float]]]:
    """Runs all ways in WARM_UP + `counted` rounds. Returns what Way.step returned, by way, for each counted round."""
    small.make(actors.MODEL, folder)
    file = folder / "config.json"
    shape = {"num_hidden_layers": LAYERS, "num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K}
    file.write_text(json.dumps(json.loads(file.read_text()) | shape))
    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    said = [
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={4 * TOKENS}",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={4 * TOKENS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={SAMPLES}",
        "algorithm.adv_estimator=grpo",
        "transfer_queue.enable=True",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]
    configs = {way: actors.configuration(folder, *said, *lines) for way, lines in WAYS.items()}
    transfer_queue.init(configs["live"].transfer_queue)
    made = ray.remote(Way)
    ways = {way: made.remote(way, config) for way, config in configs.items()}
    played = []
    for number in range(WARM_UP + counted):
        first = number % len(WAYS)
        one = {way: ray.get(ways[way].step.remote(number)) for way in (*ways, *ways)[first : first + len(WAYS)]}
        assert one["R3"]["entropy"] == one["ours"]["entropy"] != one["live"]["entropy"], one
        played.append(one)
    with routing_replay.Client() as client:
        assert not list(client.run(RUN).list()), "routes of trained samples must be released"
    transfer_queue.close()
    ray.shutdown()
    return played[WARM_UP:]


if __name__ == "__main__":
    import share  # Ray's processes find its class by this name.

    share.main()
