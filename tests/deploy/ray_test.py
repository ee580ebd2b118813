"""deploy/ray on a cluster of one node: clients find servers, and servers restart and end.

Needs ROUTING_REPLAY_SERVER and the Python client in the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RAY = ROOT / "deploy/ray"
# For Ray's workers, too.
os.environ["PYTHONPATH"] = f"{RAY}:{os.environ['PYTHONPATH']}"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(RAY))

import numpy as np  # noqa: E402
import ray  # noqa: E402
import routing_replay  # noqa: E402
import routing_replay_ray  # noqa: E402

GEOMETRY = routing_replay.Geometry(num_layers=4, num_experts=64, top_k=8)
FLAGS = ["--insecure", "--memory-budget", "64MiB", "--log-level", "warning"]
FIND = "import ray, routing_replay_ray as r; ray.init(logging_level='error'); print(r.endpoint('{name}'))"

# Starts a cluster whose head node has no CPUs and only coordinates, as in deploy/kubernetes/examples/raycluster, and
# which has one worker node.
WITH_IDLE_HEAD = """
import ray, routing_replay_ray as r
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0, "object_store_memory": 80 << 20}})
cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
cluster.wait_for_nodes()
ray.init(cluster.address, logging_level="error")
print(r.start({flags}, port={port}))
r.stop()
"""


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as found:
        found.bind(("::", 0))
        return found.getsockname()[1]


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within a minute: {what}")
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Returns whether the process has ended. A zombie counts as ended: it stays one if its parent is gone and no other
    process collects its exit status."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tZ" in status.read_text()


@ray.remote
def append(endpoint: str, sample: str, ids: np.ndarray) -> None:
    run = routing_replay.Client(endpoint).run("ray", GEOMETRY)
    run.append(sample, ids, seal=True)
    run.flush()


class RayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        cls.addClassCleanup(directory.cleanup)
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _temp_dir=directory.name,
            logging_level="error",
        )
        cls.addClassCleanup(ray.shutdown)

    def start(self, name: str) -> str:
        endpoint = routing_replay_ray.start(FLAGS, port=free_port(), name=name)
        self.addCleanup(self.stop, name)
        return endpoint

    def stop(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # ValueError: the test has already stopped it.
            routing_replay_ray.stop(name)

    def server(self, name: str):
        directory = ray.get_actor(name, namespace=routing_replay_ray.NAMESPACE)
        (server,) = ray.get(directory.servers.remote()).values()
        return server

    def assert_served(self, endpoint: str, sample: str) -> None:
        ids = np.random.default_rng(7).random((9, 4, 64)).argsort(axis=2)[:, :, :8]
        ray.get(append.remote(endpoint, sample, ids))
        back = routing_replay.Client(endpoint).run("ray", GEOMETRY).read_one(sample)
        self.assertTrue((back.rows == ids).all())

    def test_actors_append_and_other_jobs_find_the_servers(self):
        endpoint = self.start("found")
        self.assertEqual(endpoint.rpartition(":")[0], ray.util.get_node_ip_address())
        self.assertEqual(routing_replay_ray.endpoint("found"), endpoint)
        self.assert_served(endpoint, "a")
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-c", FIND.format(name="found")]
        environment = {**os.environ, "RAY_ADDRESS": address}
        other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(other.stdout.strip(), endpoint)

    def test_a_name_stands_for_one_fleet(self):
        self.start("once")
        with self.assertRaises(ValueError):
            routing_replay_ray.start(FLAGS, port=free_port(), name="once")
        with self.assertRaises(ValueError):
            routing_replay_ray.endpoint("never")

    def test_a_server_that_ends_is_started_again_where_it_was(self):
        endpoint = self.start("killed")
        server = self.server("killed")
        before = ray.get(server.state.remote())
        os.kill(before["pid"], 9)
        until(lambda: ray.get(server.state.remote())["starts"] == 2, "started again")
        until(lambda: ray.get(server.state.remote())["listens"], "listening again")
        self.assertNotEqual(ray.get(server.state.remote())["pid"], before["pid"])
        self.assert_served(endpoint, "b")

    def test_an_actor_that_ends_takes_its_server_along_and_comes_back_with_another(self):
        endpoint = self.start("actor")
        server = self.server("actor")
        before = ray.get(server.state.remote())["pid"]
        # ray.kill returns before the actor has ended: the actor may still answer once.
        ray.kill(server, no_restart=False)

        def another_listens():
            state = ray.get(server.state.remote())
            return state["listens"] and state["pid"] != before

        until(another_listens, "the actor is back with another server")
        until(lambda: ended(before), "the earlier server has ended")
        self.assert_served(endpoint, "c")

    def test_servers_that_cannot_start_are_told_and_gone(self):
        with self.assertRaisesRegex(RuntimeError, "does not listen, exit status 2"):
            routing_replay_ray.start(["--no-such-flag"], port=free_port(), name="wrong")
        with self.assertRaises(ValueError):
            routing_replay_ray.endpoint("wrong")
        self.start("wrong")  # This succeeds only if no actor has this name any more.

    def test_nodes_without_cpus_get_none(self):
        with self.assertRaisesRegex(RuntimeError, "no node"):
            routing_replay_ray.start(FLAGS, port=free_port(), name="huge", num_cpus=99)
        port = free_port()
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        done = subprocess.run(
            [sys.executable, "-c", WITH_IDLE_HEAD.format(flags=FLAGS, port=port)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.strip().endswith(f":{port}"), done.stdout)
        self.assertNotIn("shard:", done.stdout)

    def test_a_port_that_is_still_taken_is_waited_for(self):
        with socket.socket(socket.AF_INET6) as holder:
            holder.bind(("::", 0))
            holder.listen()
            port = holder.getsockname()[1]
            threading.Timer(2, holder.close).start()
            self.addCleanup(self.stop, "taken")
            self.assert_served(routing_replay_ray.start(FLAGS, port=port, name="taken"), "d")

    def test_stopped_servers_are_gone(self):
        self.start("stopped")
        pid = ray.get(self.server("stopped").state.remote())["pid"]
        routing_replay_ray.stop("stopped")
        self.assertTrue(ended(pid))
        with self.assertRaises(ValueError):
            routing_replay_ray.endpoint("stopped")

    def test_the_recipe(self):
        (recipe,) = re.findall(r"^```python\n(.*?)^```$", (RAY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
        # The recipe must not start Ray, because the cluster runs already, and it gets a free port, because its own may
        # be in use on this machine.
        recipe = recipe.replace("ray.init()", "").replace('"--insecure"]', f'"--insecure"], port={free_port()}')
        self.addCleanup(self.stop, "routing-replay")
        names: dict = {"__name__": "recipe"}
        exec(recipe, names)
        ids = np.random.default_rng(7).random((9, 48, 128)).argsort(axis=2)[:, :, :8]
        ray.get(names["rollout"].step.remote("math-7/0", ids))
        geometry = routing_replay.Geometry(num_layers=48, num_experts=128, top_k=8)
        run = routing_replay.Client(routing_replay_ray.endpoint()).run("grpo-42", geometry)
        self.assertTrue((run.read_one("math-7/0").rows == ids).all())


if __name__ == "__main__":
    unittest.main(verbosity=2)
