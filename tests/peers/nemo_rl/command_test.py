"""The README's two lines with NeMo-RL's own command: `examples/run_grpo.py` with the import after its own, its example
configurations with the override, and its `setup`, up to the start of its workers."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import runpy
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import recipes
import sides  # noqa: F401  Must be imported before NeMo-RL.
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms import utils as algorithms
from nemo_rl.data import utils as data
from nemo_rl.distributed import virtual_cluster
from nemo_rl.models.generation.vllm import vllm_generation
from nemo_rl.models.policy import lm_policy
from nemo_rl.utils import config as configs
from routing_replay_trainer.integrations.nemo_rl import driver

EXAMPLES = Path(os.environ["RR_NEMO_RL"], "examples")
WITH_ROUTER_REPLAY = "configs/grpo_math_qwen30ba3b_megatron.yaml"
WITHOUT = "configs/recipes/llm/grpo-moonlight-16ba3b-4n8g-megatron.yaml"


class Started(Exception):
    """Is raised where NeMo-RL would start the policy's workers, to end the script there."""


class Cluster:
    """Takes the place of NeMo-RL's cluster, and claims to have GPUs, which this machine need not have."""

    _sorted_bundle_indices = None

    def __init__(self, bundle_ct_per_node_list: list[int], num_gpus_per_node: int, **_: Any) -> None:
        self.num_gpus_per_node = num_gpus_per_node
        self._size = sum(bundle_ct_per_node_list)

    def world_size(self) -> int:
        return self._size

    def _init_placement_groups(self, **_: Any) -> None:
        pass


class CommandTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, TORCH_CUDA_ARCH_LIST="9.0"))
        self.started: dict[str, tuple[Any, ...]] = {}

        def generates(cluster: Any, builder: Any, sharding_annotations: Any, **_: Any) -> Any:
            self.started[builder.ray_actor_class_fqn] = builder.args
            return mock.MagicMock(dp_size=sharding_annotations.get_axis_size("data_parallel"))

        def trains(cluster: Any, builder: Any, **_: Any) -> Any:
            self.started[builder.ray_actor_class_fqn] = builder.args
            raise Started

        tokenizer = types.SimpleNamespace(pad_token_id=0, eos_token_id=1)
        for place, name, value in (
            (virtual_cluster, "init_ray", lambda: None),
            (algorithms, "get_tokenizer", lambda said: tokenizer),
            (data, "setup_response_data", lambda *_: (mock.MagicMock(), mock.MagicMock(), {}, {})),
            (grpo, "Logger", mock.MagicMock()),
            (grpo, "RayVirtualCluster", Cluster),
            (vllm_generation, "ray", mock.MagicMock()),
            (vllm_generation, "RayWorkerGroup", generates),
            (vllm_generation.VllmGeneration, "_get_tied_worker_bundle_indices", lambda *_: []),
            (lm_policy, "RayWorkerGroup", trains),
            (lm_policy, "RayQueue", mock.MagicMock()),
        ):
            self.enterContext(mock.patch.object(place, name, value))

    def script(self, line: str) -> Path:
        """Writes a copy of NeMo-RL's own script, with the README's line after its imports. Returns its path."""
        source = (EXAMPLES / "run_grpo.py").read_text()
        last = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))][-1]
        lines = source.splitlines()
        lines.insert(last.end_lineno or 0, line)
        path = self.folder / "run_grpo.py"
        path.write_text("\n".join(lines))
        return path

    def start(self, config: str, *overrides: str) -> None:
        line, _ = recipes.lines("NeMo-RL")
        said = [f"--config={EXAMPLES / config}", f"logger.log_dir={self.folder}/logs", *overrides]
        with mock.patch.object(sys, "argv", ["run_grpo.py", *said]), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(self.script(line)), run_name="__main__")

    def test_the_lines_start_our_workers(self) -> None:
        _, override = recipes.lines("NeMo-RL")
        for config in (WITH_ROUTER_REPLAY, WITHOUT):
            with self.subTest(config), self.assertRaises(Started):
                self.start(config, override)
            generation, policy = self.started
            self.assertEqual([generation, policy], list(driver.WORKERS.values()))
            self.assertIs(self.started[generation][0]["vllm_kwargs"]["enable_return_routed_experts"], True)
            self.assertIs(self.started[policy][0]["router_replay"]["enabled"], True)
            print(f"{config}: {', '.join(self.started)}")
            self.started.clear()

    def test_without_the_override(self) -> None:
        with self.assertRaises(Started):
            self.start(WITH_ROUTER_REPLAY)
        self.assertNotIn("enable_return_routed_experts", next(iter(self.started.values()))[0]["vllm_kwargs"])

    def test_an_override_that_no_configuration_has(self) -> None:
        """NeMo-RL must reject an unknown setting. So if it accepts the README's override, the setting exists."""
        with self.assertRaises(configs.OverridesError):
            self.start(WITH_ROUTER_REPLAY, "policy.router_replays.enabled=true")


if __name__ == "__main__":
    unittest.main()
