"""verl's own training, from its data set to the release of the routes, with the README's three lines: `PPOTrainer.fit`
with the replay buffer, agent loops of Ray over TransferQueue, the actor's and the reference's workers and Megatron
engines.

Some answers are cut short and go on with other weights, one fails, some end with a tool's answer, prompts are
dispatched again, batches are filled up, and answers are validated.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import unittest
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import actors
import numpy as np
import pandas
import ray
import rollouts
import routing_replay
import torch
import transfer_queue
import verl
import yaml
from common import models as small
from common.support import passed
from routing_replay import errors
from routing_replay_trainer.integrations import _shared
from support import Server
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync
from verl.workers.rollout.router import get_router_handle

PROMPTS, ANSWERS = 4, 2  # Of a step.
RUN = "here/first-try"
PLAIN, TOOL = "single_turn_agent", "tool_loop"


def prompts(path: Path, words: list[int]) -> str:
    """Of two words, the first of which says what becomes of it."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"w{word} w{20 + i}"}],
            "agent_name": TOOL if i % 4 == 2 else PLAIN,
            "data_source": "here",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": i},
        }
        for i, word in enumerate(words)
    ]
    pandas.DataFrame(rows).to_parquet(path)
    return str(path)


class Workers:
    """The actor's and the reference's workers, in this process: verl's RayWorkerGroup wants GPUs. It keeps what each
    pass was given."""

    def __init__(self, config: Any) -> None:
        self._dispatch_info = {"actor": [0]}
        self.actor = actors.worker(config)
        self.reference = actors.worker(config, "ref")
        self.passes: list[SimpleNamespace] = []
        self.actor.checkpoint_engine = mock.AsyncMock()  # Takes weights that go to no engine.
        self.actor.actor.engine.get_per_tensor_param = lambda: ((), None)

    def update_weights(self, step: int) -> None:
        asyncio.run(self.actor.update_weights(global_steps=step, mode="elsewhere"))

    def compute_log_prob(self, batch: Any) -> Any:
        return self._kept("log_prob", self.actor.actor, self.actor.compute_log_prob, batch)

    def compute_ref_log_prob(self, batch: Any) -> Any:
        return self._kept("reference", self.reference.ref, self.reference.compute_ref_log_prob, batch)

    def update_actor(self, batch: Any) -> Any:
        return self._kept("update", self.actor.actor, self.actor.update_actor, batch)

    def _kept(self, name: str, worker: Any, call: Any, batch: Any) -> Any:
        [model] = worker.engine.module
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        result = call(batch)
        layers = [torch.cat([chosen for _, chosen in layer.seen]) for layer in model.decoder.layers]
        experts = torch.stack([torch.nonzero(one)[:, 1].reshape(-1, rollouts.TOP_K) for one in layers], 1)
        self.passes.append(
            SimpleNamespace(
                name=name,
                keys=list(batch.keys),
                tokens=[ids.tolist() for ids in data["input_ids"].unbind()],
                columns=set(data.keys()),
                handles=data["routing_handle"],
                fed=torch.cat(model.fed).tolist(),
                experts=experts.numpy(),
            )
        )
        model.fed.clear()
        for layer in model.decoder.layers:
            layer.seen.clear()
        return result


class StepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = Path(folder.name)
        small.make(actors.MODEL, path / "model")
        os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"  # Of Ray's workers.
        server = Server()
        cls.addClassCleanup(server.stop)
        os.environ["ROUTING_REPLAY_ENDPOINT"] = server.endpoint
        loops = path / "loops.yaml"
        loops.write_text(yaml.safe_dump([{"name": TOOL, "_target_": "rollouts.ToolLoop"}]))
        words = [rollouts.INTERRUPTED, rollouts.BROKEN, 14, 15, 16, 17, 18, 19]
        cls.config = actors.configuration(
            path / "model",
            *actors.flags(),
            f"data.train_files={prompts(path / 'train.parquet', words)}",
            f"data.val_files={prompts(path / 'validation.parquet', words[2:4])}",
            "data.shuffle=False",
            "data.dataloader_num_workers=0",
            "data.max_prompt_length=8",
            "data.max_response_length=64",
            f"data.train_batch_size={PROMPTS}",
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.actor.ppo_mini_batch_size=3",  # No 8 trajectories, so that batches are filled up.
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=160",
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=160",
            f"actor_rollout_ref.rollout.n={ANSWERS}",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
            "algorithm.adv_estimator=grpo",
            "trainer.v1.trainer_mode=colocate_async",
            "trainer.logger=[console]",
            f"trainer.project_name={RUN.split('/')[0]}",
            "trainer.experiment_name='first try'",
            "trainer.n_gpus_per_node=1",
            "trainer.save_freq=-1",
            "trainer.test_freq=-1",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        )
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        ray.init(
            address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
        cls.addClassCleanup(ray.shutdown)
        cls.config.transfer_queue.enable = True
        transfer_queue.init(cls.config.transfer_queue)
        cls.addClassCleanup(transfer_queue.close)

    def trainer(self) -> Any:
        """As `PPOTrainer.init` and `TaskRunnerV1.run` make it, but for what starts on GPUs."""
        trainer = PPOTrainerColocateAsync(self.config)
        trainer._init_tokenizer()
        self.integration = sys.modules["routing_replay_trainer.integrations.verl"]  # As `external_lib` brought it.
        trainer._init_dataloader()
        self.engine = ray.remote(rollouts.Engine).remote()
        self.workers = Workers(self.config)
        balancer = get_router_handle(servers={"engine": self.engine}, router_config_path=None, full_determinism=False)
        clients = lambda client_cls: client_cls(config=self.config, load_balancer_handle=balancer)  # noqa: E731
        trainer.llm_server_manager = SimpleNamespace(get_client=clients)
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[ray.remote(rollouts.Reward).remote()])
        trainer.checkpoint_manager = mock.Mock()
        trainer.checkpoint_manager.update_weights = self.update_weights
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        trainer.actor_rollout_wg = trainer.ref_policy_wg = self.workers
        trainer.ref_in_actor, trainer.global_steps = False, 0
        compute_metrics, self.staleness = trainer._compute_metrics, []

        def computed(batch: Any, metrics: dict[str, Any], *more: Any, **named: Any) -> None:
            compute_metrics(batch, metrics, *more, **named)
            self.staleness.append(metrics["training/off_policy/trajectory_staleness/max"])

        trainer._compute_metrics = computed
        runner = object.__new__(TaskRunnerV1.__ray_metadata__.modified_class)
        runner.config, runner.trainer = self.config, trainer
        runner.init_agent_loop_manager()
        trainer.agent_loop_manager = runner.agent_loop_manager
        return trainer

    def update_weights(self, step: int) -> None:
        """Of actor and engine, as CheckpointEngineManager does."""
        self.workers.update_weights(step)
        ray.get(self.engine.set_version.remote(step))

    def rows_of(self, tokens: list[int]) -> tuple[list[Any], bool]:
        """What the engine gave for these tokens, None for what it has not seen, and whether it was cut short."""
        rows, short = [None] * len(tokens), False
        for known, _, aborted, given in reversed(ray.get(self.engine.given.remote())):
            if tokens[: len(known)] == known and (aborted or not any(row is not None for row in rows)):
                rows[: len(given)] = list(given)  # What came first stays where an answer went on.
                short |= aborted
        return rows, short

    def compared(self, one: SimpleNamespace) -> Counter[str]:
        """Of a pass, (token, layer) sets that were recorded, and how many of them the routers were given."""
        counts: Counter[str] = Counter()
        waiting = sorted(zip(one.tokens, one.keys, strict=True), key=lambda each: -len(each[0]))
        at = 0
        while waiting:  # The stream of all micro-batches holds them one behind another.
            found = next(each for each in waiting if one.fed[at : at + len(each[0])] == each[0])
            waiting.remove(found)
            tokens, key = found
            chosen = np.sort(one.experts[at : at + len(tokens)])
            at += len(tokens)
            if key.startswith("pad"):
                counts["pads"] += 1
                continue
            rows, short = self.rows_of(tokens)
            counts["short"] += short
            counts["unrecorded"] += sum(row is None for row in rows) - 1
            recorded = np.sort([row for row in rows if row is not None])
            counts["sets"] += recorded[..., 0].size
            counts["equal"] += int((recorded == chosen[: len(recorded)]).all(2).sum())
            counts["moved"] += int((np.roll(recorded, 1, axis=0) == chosen[: len(recorded)]).all(2).sum())
        self.assertEqual(at, len(one.fed))
        return counts

    def samples(self) -> set[str]:
        """Their rows have the version that verl knows of the answer's weights, where that is one."""
        tags = transfer_queue.kv_list("train").get("train", {})
        with routing_replay.Client() as client:
            found = {state.sample: state for state in client.run(RUN).list()}
        for name, state in found.items():
            first, last = (tags[name][f"{which}_global_steps"] for which in ("min", "max"))
            self.assertEqual({span.version for span in state.weights}, {first if first == last else -1})
        return set(found)

    def held(self) -> tuple[list[str], dict[str, list[int]]]:
        """Of TransferQueue, once no agent loop runs: the prompts, and the trajectories' tokens."""
        limit = time.monotonic() + 60
        while True:
            tags = transfer_queue.kv_list("train").get("train", {})
            prompts = {key: tag["status"] for key, tag in tags.items() if tag.get("is_prompt")}
            if not {"pending", "running"} & set(prompts.values()):
                break
            self.assertLess(time.monotonic(), limit, prompts)
            time.sleep(0.1)
        keys = [key for key in tags if key not in prompts]
        data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["input_ids"])
        return list(prompts), dict(zip(keys, [ids.tolist() for ids in data["input_ids"].unbind()], strict=True))

    def fit(self, trainer: Any, steps: int) -> tuple[list[str], dict[str, list[int]]]:
        trainer._init_dump_executor()
        trainer.total_training_steps = steps
        trainer.fit(trainer.agent_loop_manager)
        prompts, trajectories = self.held()
        self.assertEqual(self.samples(), set(trajectories))  # Of all others the routes are released.
        return prompts, trajectories

    def report(self, metrics: dict[str, float]) -> None:
        """What the batches of all passes carried, and would have with routes; what was read, and what is held."""
        carried = sum(one.handles.nbytes for one in self.workers.passes)
        rows = sum(len(tokens) for one in self.workers.passes for tokens in one.tokens)
        routes = rows * rollouts.LAYERS * rollouts.TOP_K
        read = int(metrics["routing_replay/fetched_bytes"])
        with routing_replay.Client() as client:
            held = client.server_info().stored_bytes
        print(f"batches carried {carried} bytes of handles in the place of {routes} bytes of routes and more")
        print(f"read {read} bytes; the service holds {held} bytes of what is not trained on yet")
        self.assertLess(carried, routes / 10)
        self.assertGreater(read, 0)

    def test_a_training(self) -> None:
        trainer = self.trainer()
        prompts, before = self.fit(trainer, 2)
        short = {key.split("_")[0] for key, tokens in before.items() if rollouts.INTERRUPTED in tokens}
        again = [uid for uid in prompts if uid not in short]  # Those are left, to be trained in the next step.
        before = {key: tokens for key, tokens in before.items() if key.split("_")[0] in again}

        # As after a resume: prompts of which there are answers are dispatched again, and the service is away when
        # verl clears the old ones. Then once more.
        self.assertGreater(len(before), 0)
        tags = [{"is_prompt": True, "status": "running", "global_steps": 2} for _ in again]
        reissue, issued = trainer._reissue_inflight_prompts, []

        def reissued() -> None:
            away = errors.UnavailableError("away")
            for _ in range(2):
                time.sleep(1)  # Attempts are told apart by seconds.
                transfer_queue.kv_batch_put(keys=again, partition_id="train", tags=tags)
                with (
                    mock.patch.object(_shared, "open_run", side_effect=away),
                    self.assertLogs("routing_replay_trainer", "ERROR"),
                ):
                    issued.append(reissue())
                self.held()

        trainer.global_steps = 2
        trainer.config.trainer.val_before_train = False
        with mock.patch.object(trainer, "_reissue_inflight_prompts", reissued):
            self.fit(trainer, 5)
        self.assertEqual(issued, [len(again)] * 2)

        totals: dict[str, Counter[str]] = {"log_prob": Counter(), "reference": Counter(), "update": Counter()}
        for one in self.workers.passes:
            totals[one.name] += self.compared(one)
            self.assertNotIn("routed_experts", one.columns)
            self.assertEqual(one.handles.dtype, torch.int64)
            handles = [0 if key.startswith("pad") else routing_replay.sample_handle(key) for key in one.keys]
            self.assertEqual(one.handles.tolist(), handles)
        for name, counts in totals.items():
            print(f"{name}: {dict(counts)}")
            for case in ("sets", "pads", "short", "unrecorded"):
                self.assertGreater(counts[case], 0, (name, case))
        for name in ("log_prob", "update"):
            self.assertEqual(totals[name]["equal"], totals[name]["sets"])
            self.assertLess(totals[name]["moved"], totals[name]["sets"] / 5)
        self.assertLess(totals["reference"]["equal"], totals["reference"]["sets"] / 5)

        trained = {key: tokens for one in self.workers.passes for key, tokens in zip(one.keys, one.tokens, strict=True)}
        anew = before.keys() & trained.keys()
        self.assertGreater(len(anew), 0)
        self.assertEqual([key for key in anew if trained[key] == before[key]], [])
        self.assertEqual(ray.get(self.engine.failed.remote()), 1)

        [replay] = self.integration.replays.values()
        metrics = replay.metrics()
        self.assertEqual(metrics["routing_replay/fallback_fraction"], 0)
        self.assertGreater(metrics["routing_replay/live_rows"], 0)
        self.assertGreater(metrics["routing_replay/weight_lag_max"], 0)
        self.assertEqual(metrics["routing_replay/weight_lag_max"], max(self.staleness))
        self.report(metrics)
        what = f"PPOTrainer.fit over Ray and TransferQueue {version('TransferQueue')}, from data set to release"
        changed = f"{actors.CHANGED}, random answers and rewards, one process for the workers"
        passed("verl", verl.__version__, what, changed)


if __name__ == "__main__":
    unittest.main()
