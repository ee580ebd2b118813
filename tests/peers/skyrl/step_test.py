"""SkyRL's own training with the README's command line, from its data set to the release: `BasePPOExp.run` and
`RayPPOTrainer.train` with its generator, its dispatch, and its policy's and reference's workers. Some answers have two
turns, and of each rollout the routes of one answer are lost."""

from __future__ import annotations

import json
import pickle
import runpy
import shlex
import sys
import tempfile
import unittest
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import sides

sides.setup()
import numpy as np  # noqa: E402
import ray  # noqa: E402
import recipes  # noqa: E402
import routing_replay as rr  # noqa: E402
import skyrl_gym  # noqa: E402
import torch  # noqa: E402
from common.support import passed  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from skyrl.backends.skyrl_train.workers.megatron import megatron_worker  # noqa: E402
from skyrl.train.dataset import PromptDataset  # noqa: E402
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: E402

PROMPTS, ANSWERS, STEPS = 10, 4, 2
TABLE = np.random.default_rng(1).random((sides.gpt.VOCABULARY, sides.LAYERS, sides.EXPERTS)).argsort(axis=2)
TABLE = TABLE[..., : sides.TOP_K]  # The experts [token, layer, K] that the engine chooses for each token.


class Words(BaseTextEnv):
    """An environment in which every third answer gets a second turn."""

    count = 0

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()
        Words.count += 1
        self.left = int(Words.count % 3 == 0)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.left -= 1
        asked = [{"role": "user", "content": "w7 w8"}] if self.left >= 0 else []
        return BaseTextEnvStepOutput(observations=asked, reward=float(len(action) % 2), done=not asked, metadata={})


class Engine:
    """Takes the place of SkyRL's inference client. Its answers have only the rows that the earlier turns do not
    have."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)

    async def generate(self, asked: Any, model: str | None = None) -> dict[str, Any]:
        [prompt], [start] = asked["prompt_token_ids"], asked["routed_experts_prompt_starts"]
        answer = self.random.integers(10, sides.gpt.VOCABULARY, self.random.integers(3, 8)).tolist()
        return {
            "responses": [" ".join(f"w{token}" for token in answer)],
            "response_ids": [answer],
            "stop_reasons": ["stop"],
            "response_logprobs": None,
            "rollout_expert_indices": [TABLE[[*prompt, *answer][start:-1]].astype(np.uint8)],
        }

    async def finish_session(self, session: str) -> None:
        pass


class Local:
    """Takes the place of a class of Ray actors: makes objects in this process instead."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def options(self, **_: Any) -> Local:
        return self

    def remote(self, **said: Any) -> Any:
        return Actor(self._kind(**said))


class Actor:
    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._made, name))


class Seen:
    """A part of a worker class that keeps, for each pass, the column of handles and the choices of the routers."""

    def init_model(self, *said: Any, **options: Any) -> None:
        super().init_model(*said, **options)
        self.passes, self.kept = [], sides.Provider.built.kept

    def forward(self, data: Any, **said: Any) -> Any:
        return self._take("forward", data, super().forward(data, **said))

    def forward_backward(self, data: Any, **said: Any) -> Any:
        return self._take("training", data, super().forward_backward(data, **said))

    def _take(self, name: str, data: Any, output: Any) -> Any:
        chosen = Counter(self.kept.rows([*self.kept.fed]))
        self.passes.append((name, data["rollout_expert_indices"].values.flatten().tolist(), chosen))
        return output

    def look(self) -> Any:
        passes, self.passes = self.passes, []
        return passes


def trainer(integration: Any) -> Any:
    """Returns a class derived from our integration's trainer that sends no weights to engines, and keeps the results of
    each step."""

    class Trainer(integration.Trainer):
        steps: ClassVar[list[dict[str, Any]]] = []

        def init_weight_sync_state(self) -> None:
            self.dispatch.save_weights_for_sampler = mock.AsyncMock()

        def convert_to_training_input(self, output: Any, uids: Any) -> Any:
            batch = super().convert_to_training_input(output, uids)
            carried = batch["rollout_expert_indices"]
            handles = carried.values.flatten().tolist()
            tokens = list(map(list.__add__, output["prompt_token_ids"], output["response_ids"]))
            rows = [self.routes.read_one(handle) for handle in handles[: len(tokens)]]
            versions = {span.version for state in self.routes.list() for span in state.weights}
            assert versions == {self.global_step - 1}, versions  # All others are released.
            lost = 5 + self.global_step
            self.routes.release([handles[lost]])
            self.steps.append({"handles": handles, "tokens": tokens, "rows": rows, "lost": lost, "carried": carried})
            self.steps[-1]["turns"] = [0 in mask for mask in output["loss_masks"]]
            return batch

        def train_critic_and_policy(self, data: Any) -> Any:
            self.steps[-1]["before"] = {one.handle for one in self.routes.list()}
            status = super().train_critic_and_policy(data)
            self.steps[-1] |= {"after": self.routes.list(), "columns": set(data), "status": status}
            for name, group in (("policy", self.policy_model), ("ref", self.ref_model)):
                [self.steps[-1][name]] = group.async_run_ray_method("pass_through", "look")
            return status

    return Trainer


class StepTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        sides.checkpoint(self.folder / "model")
        self.enterContext(rr.local_server())
        lines = [
            json.dumps({"prompt": [{"role": "user", "content": f"w{20 + i} w{300 + i} w9"}], "env_class": "words"})
            for i in range(STEPS * PROMPTS)
        ]
        (self.folder / "prompts.jsonl").write_text("\n".join(lines))
        skyrl_gym.register(id="words", entry_point=Words)

    def test_train(self) -> None:
        from routing_replay_trainer.integrations import skyrl

        class Policy(Seen, skyrl.Policy):
            def init_model(self, *said: Any, **options: Any) -> None:
                self.cfg = sides.reduced(self.cfg)
                super().init_model(*said, **options)

        class Reference(Seen, megatron_worker.MegatronRefWorkerBase):
            def init_worker_process_group(self) -> None:
                # The policy has made its process groups in this process, but no model yet, so they can be destroyed and
                # made again.
                mpu.destroy_model_parallel()
                super().init_worker_process_group()

        said = [
            *(f"trainer.{name}_batch_size={PROMPTS}" for name in ("train", "policy_mini")),
            f"generator.n_samples_per_prompt={ANSWERS}",
            f"data.train_data=[{self.folder}/prompts.jsonl]",
            "generator.batched=false",
            "generator.max_turns=2",
            "generator.max_input_length=512",
            "trainer.max_tokens_per_microbatch=60",
            "trainer.placement.colocate_policy_ref=false",
            "trainer.enable_ray_gpu_monitor=false",
            "generator.inference_engine.enable_ray_prometheus_stats=false",
            "trainer.gradient_checkpointing=true",
            "trainer.epochs=1",
            "data.dataloader.num_workers=0",
            *(f"trainer.{name}_interval=-1" for name in ("eval", "ckpt", "hf_save")),
            "trainer.resume_mode=none",
            "trainer.logger=console",
            *(f"trainer.{name}_path={self.folder}/{name}" for name in ("ckpt", "export", "log")),
        ]
        kind = trainer(skyrl)
        [line] = recipes.lines("SkyRL")
        python, option, module, *arguments = shlex.split(line)
        self.assertEqual((python, option), ("python", "-m"))

        class Experiment(skyrl.Experiment):
            def get_train_dataset(self) -> PromptDataset:
                return PromptDataset(self.cfg.data.train_data, self.tokenizer, 512, num_workers=1)

            def get_inference_client(self) -> Engine:
                return Engine()

        run = SimpleNamespace(remote=skyrl.run._function)
        for place, name, value in (
            (skyrl, "Experiment", Experiment),
            (skyrl, "Trainer", kind),
            (skyrl, "Policy", Policy),
            (skyrl, "run", run),
            (skyrl, "initialize_ray", lambda config: None),
            (megatron_worker, "RefWorker", Local(Reference)),
            (ray, "remote", lambda **_: Local),
            (ray, "get", lambda said, **_: said),
            (ray, "put", lambda value: pickle.loads(pickle.dumps(value))),
            (sys, "argv", ["-m", *arguments, *sides.options(self.folder / "model"), *said]),
        ):
            self.enterContext(mock.patch.object(place, name, value))
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        self.assertEqual(len(kind.steps), STEPS)
        for number, step in enumerate(kind.steps):
            with self.subTest(step=number):
                self.check(step)
        self.assertFalse(set(kind.steps[0]["handles"]) & set(kind.steps[1]["handles"]))
        passed(
            "SkyRL",
            version("skyrl"),
            "RayPPOTrainer.train with its generator and workers, from command line and data set to release",
            f"{sides.CHANGED}, random answers instead of an engine's, no weights sent to an engine, "
            "one process instead of Ray's",
        )

    def check(self, step: dict[str, Any]) -> None:
        handles, tokens, lost = step["handles"], step["tokens"], step["lost"]
        self.assertEqual(len(set(handles)), PROMPTS * ANSWERS)
        self.assertEqual((step["carried"].values.shape, step["carried"].dtype), ((len(handles), 1, 1), torch.int64))
        self.assertNotIn(0, handles)
        self.assertIn(True, step["turns"])
        for one, rows in zip(tokens, step["rows"], strict=True):
            self.assertEqual((rows.status, rows.num_tokens), ("OK", len(one)))
            np.testing.assert_array_equal(np.sort(rows.rows), np.sort(TABLE[one[:-1]][:, 1:]))
        self.assertEqual(step["before"], set(handles) - {handles[lost]})
        self.assertFalse(step["after"])
        self.assertIn("rollout_expert_indices", step["columns"])
        told = self.told(tokens[:lost] + tokens[lost + 1 :])
        self.assertFalse(any(0 in one for one in tokens))
        for name, times in (("forward", 1), ("training", 2)):  # Forward and recompute.
            [(carried, seen)] = [(handles, rows) for kind, handles, rows in step["policy"] if kind == name]
            self.assertEqual(sorted(carried), sorted(handles))
            wanted = Counter({row: count * times for row, count in told.items()})
            self.assertEqual((wanted - seen).total(), 0, name)
            whole = Counter({row: count * times for row, count in self.told(tokens).items()})
            # The routers chose by themselves for the sample whose routes were lost.
            self.assertGreater((whole - seen).total(), 0)
            moved = Counter({row: count * times for row, count in self.told(tokens, late=1).items()})
            self.assertGreater((moved - seen).total(), moved.total() // 2)  # The check must detect late routes.
            self.assertTrue(any(token == 0 for _, token, _ in seen))  # SkyRL has added samples as padding.
            print(f"{name}: {wanted.total()} rows and layers as recorded")
        [(_, _, seen)] = step["ref"]
        self.assertGreater((told - seen).total(), told.total() // 4)  # It routes live.

    def told(self, samples: list[list[int]], late: int = 0) -> Counter[Any]:
        """Counts (layer, token, its experts) over the rows that the engine returned. late: by how many rows the experts
        are late"""
        chosen = np.sort(TABLE).tolist()
        return Counter(
            (layer, token, tuple(chosen[one[place - late]][layer]))
            for one in samples
            for place, token in enumerate(one[:-1])
            for layer in range(1, sides.LAYERS)
        )


if __name__ == "__main__":
    unittest.main()
