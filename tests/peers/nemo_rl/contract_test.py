"""Tests which workers NeMo-RL starts after the import of our `driver`."""

from __future__ import annotations

import importlib
import pickle
import unittest
from pathlib import Path

import sides  # noqa: F401  Must be imported before NeMo-RL.
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY, get_actor_python_env
from nemo_rl.distributed.worker_groups import RayWorkerBuilder
from nemo_rl.models.generation import vllm
from routing_replay import errors
from routing_replay_trainer.integrations.nemo_rl import driver, policy


class ContractTest(unittest.TestCase):
    def test_workers_are_ours(self) -> None:
        """Our workers run in the Python environment of NeMo-RL's own workers. Ray finds them by name, and imports our
        module with them."""
        for theirs, ours in driver.WORKERS.items():
            self.assertEqual(RayWorkerBuilder(theirs, {}).ray_actor_class_fqn, ours)
            self.assertEqual(get_actor_python_env(ours), ACTOR_ENVIRONMENT_REGISTRY[theirs])
            module, name = ours.rsplit(".", 1)
            worker = getattr(importlib.import_module(module), name).__ray_metadata__.modified_class
            self.assertEqual(worker.__module__, module)
            base = theirs.rsplit(".", 1)
            own = getattr(importlib.import_module(base[0]), f"{base[1]}Impl")
            self.assertTrue(issubclass(worker, own))
            [found] = [base for base in worker.__mro__ if (base.__module__, base.__name__) == (module, "Worker")]
            self.assertIn(module.encode(), pickle.dumps(found))

    def test_other_workers_are_not(self) -> None:
        other = "nemo_rl.models.value.workers.megatron_value_worker.MegatronValueWorker"
        self.assertEqual(RayWorkerBuilder(other).ray_actor_class_fqn, other)

    def test_its_engines_have_no_version_of_their_weights(self) -> None:
        for file in Path(vllm.__file__).parent.glob("*.py"):
            self.assertNotIn("weight_version", file.read_text(), file)

    def test_what_is_rejected(self) -> None:
        with self.assertRaisesRegex(
            errors.FailedPreconditionError, "start with `policy.generation.*async_engine=false`"
        ):
            RayWorkerBuilder(driver._ASYNCHRONOUS, {})
        with self.assertRaisesRegex(
            errors.FailedPreconditionError, r"start with `\+\+policy.router_replay.enabled=true`"
        ):
            policy.Worker({})


if __name__ == "__main__":
    unittest.main()
