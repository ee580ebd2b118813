"""verl's own training without GPUs: `PPOTrainer.fit` with the replay buffer, over Ray and TransferQueue."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import actors
import numpy as np
import pandas
import ray
import rollouts
import routing_replay
import torch
import transfer_queue
import yaml
from common import models as small
from support import Server
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync
from verl.workers.rollout.router import get_router_handle

PROMPTS, ANSWERS = 4, 2  # Of a step.
RUN = "here/first-try"
PLAIN, TOOL = "single_turn_agent", "tool_loop"


def prompts(path: Path, words: tuple[int, ...]) -> str:
    """Prompts of two words, the first of which determines what happens to the answer."""
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


def taken(name: str, model: Any, data: Any) -> SimpleNamespace:
    """Returns the inputs of a finished pass, and the experts that the routers of its rank chose."""
    layers = [torch.cat([chosen for _, chosen in layer.seen]) for layer in model.decoder.layers]
    experts = torch.stack([torch.nonzero(one)[:, 1].reshape(-1, rollouts.TOP_K) for one in layers], 1)
    one = SimpleNamespace(
        name=name,
        tokens=[ids.tolist() for ids in data["input_ids"].unbind()],
        columns=set(data.keys()),
        handles=data["routing_handle"],
        fed=torch.cat(model.fed).tolist(),
        experts=experts.numpy(),
    )
    model.fed.clear()
    for layer in model.decoder.layers:
        layer.seen.clear()
    return one


class Training(unittest.TestCase):
    WORDS: ClassVar[tuple[int, ...]]  # Of the prompts.
    OPTIONS: ClassVar[tuple[str, ...]]
    RANKS = 1

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = Path(folder.name)
        small.make(actors.MODEL, path / "model")
        os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"  # For Ray's workers.
        server = Server()
        cls.addClassCleanup(server.stop)
        os.environ["ROUTING_REPLAY_ENDPOINT"] = server.endpoint
        loops = path / "loops.yaml"
        loops.write_text(yaml.safe_dump([{"name": TOOL, "_target_": "rollouts.ToolLoop"}]))
        cls.config = actors.configuration(
            path / "model",
            *actors.flags(),
            f"data.train_files={prompts(path / 'train.parquet', cls.WORDS)}",
            f"data.val_files={prompts(path / 'validation.parquet', cls.WORDS[4:6])}",
            "data.shuffle=False",
            "data.dataloader_num_workers=0",
            "data.max_prompt_length=8",
            "data.max_response_length=64",
            f"data.train_batch_size={PROMPTS}",
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
            f"trainer.n_gpus_per_node={cls.RANKS}",
            "trainer.save_freq=-1",
            "trainer.test_freq=-1",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            *cls.OPTIONS,
        )
        ray.init(
            address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
        cls.addClassCleanup(ray.shutdown)
        cls.config.transfer_queue.enable = True
        transfer_queue.init(cls.config.transfer_queue)
        cls.addClassCleanup(transfer_queue.close)

    def trainer(self, workers: Any) -> Any:
        """Makes the trainer as `PPOTrainer.init` and `TaskRunnerV1.run` do, without the parts that start on GPUs."""
        trainer = PPOTrainerColocateAsync(self.config)
        trainer._init_tokenizer()
        self.integration = sys.modules["routing_replay_trainer.integrations.verl"]  # Imported by `external_lib`.
        trainer._init_dataloader()
        self.engine = ray.remote(rollouts.Engine).remote()
        balancer = get_router_handle(servers={"engine": self.engine}, router_config_path=None, full_determinism=False)
        clients = lambda client_cls: client_cls(config=self.config, load_balancer_handle=balancer)  # noqa: E731
        trainer.llm_server_manager = SimpleNamespace(get_client=clients)
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[ray.remote(rollouts.Reward).remote()])
        trainer.checkpoint_manager = mock.Mock()
        trainer.checkpoint_manager.update_weights = self.update_weights
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: self.RANKS)
        trainer.actor_rollout_wg = trainer.ref_policy_wg = workers
        trainer.ref_in_actor, trainer.global_steps = False, 0
        runner = object.__new__(TaskRunnerV1.__ray_metadata__.modified_class)
        runner.config, runner.trainer = self.config, trainer
        runner.init_agent_loop_manager()
        trainer.agent_loop_manager = runner.agent_loop_manager
        return trainer

    def update_weights(self, step: int) -> None:
        """Sets the weights of actor and engine, like CheckpointEngineManager."""
        self.update_actor(step)
        ray.get(self.engine.set_version.remote(step))

    def rows_of(self, tokens: list[int]) -> tuple[list[Any], bool]:
        """Returns the rows that the engine gave for these tokens (None for a token that it has not processed), and
        whether the answer was cut short."""
        rows, short = [None] * len(tokens), False
        for known, _, aborted, given in reversed(ray.get(self.engine.given.remote())):
            if tokens[: len(known)] == known and (aborted or not any(row is not None for row in rows)):
                rows[: len(given)] = list(given)  # A continued answer keeps the rows of its first part.
                short |= aborted
        return rows, short

    def compared(self, one: SimpleNamespace) -> Counter[str]:
        """Counts, for a pass, the (token, layer) pairs with recorded experts ("sets"), and in how many of them the
        routers used these experts ("equal"), or those of the token before ("moved")."""
        counts: Counter[str] = Counter()
        waiting = sorted(zip(one.tokens, one.handles.tolist(), strict=True), key=lambda each: -len(each[0]))
        at = 0
        while waiting:  # The stream contains the sequences of all micro-batches, one after the other.
            found = next(each for each in waiting if one.fed[at : at + len(each[0])] == each[0])
            waiting.remove(found)
            tokens, handle = found
            chosen = np.sort(one.experts[at : at + len(tokens)])
            at += len(tokens)
            if handle == 0:
                counts["unrouted" if rollouts.UNROUTED in tokens else "pads"] += 1
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

    def samples(self) -> dict[str, Any]:
        """Returns the samples of the service by name. Checks their weight version: the one that verl knows for the
        answer, or -1 if the answer was made with several."""
        tags = transfer_queue.kv_list("train").get("train", {})
        with routing_replay.Client() as client:
            found = {state.sample: state for state in client.run(RUN).list()}
        for name, state in found.items():
            first, last = (tags[name][f"{which}_global_steps"] for which in ("min", "max"))
            self.assertEqual({span.version for span in state.weights}, {first if first == last else -1})
        return found

    def held(self) -> tuple[list[str], dict[str, list[int]]]:
        """The content of TransferQueue when no agent loop runs: the prompts, and the trajectories' tokens."""
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
        routed = {key for key, tokens in trajectories.items() if rollouts.UNROUTED not in tokens}
        self.assertEqual(set(self.samples()), routed)  # All other samples are released.
        return prompts, trajectories
