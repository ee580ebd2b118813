"""components/redis-cluster with six real Redis servers: its scripts run as in the pods, each "pod" with an address of
its own, by the names of the Service.

Runs in a network and with an /etc/hosts of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from manifests import KUBERNETES, of_kind, render, templates

REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")  # One program under two names.
ALONE = ["unshare", "--net", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net", "--mount"]
INSIDE = "ROUTING_REPLAY_TEST_INSIDE"
MEMBERS = 6


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.2)


class Member:
    """A pod of the StatefulSet: a volume that stays, and an address that changes with every start."""

    def __init__(self, directory: Path, container: dict, config: str) -> None:
        self._directory, self._container, self._config = directory, container, config
        for name in ("etc", "auth", "run", "data", "bin"):
            (directory / name).mkdir(parents=True)
        (directory / "bin/redis-server").symlink_to(REDIS)
        (directory / "auth/password").write_text("secret\n")
        self.address = ""
        self._process: subprocess.Popen | None = None

    def start(self, address: str) -> None:
        self.address = address
        config = self._config.replace("dir /data", f"dir {self._directory}/data\nbind {address}")
        # Smaller and quicker than in the cluster.
        config = config.replace("1gb", "1mb").replace("cluster-node-timeout 5000", "cluster-node-timeout 1000")
        (self._directory / "etc/redis.conf").write_text(config)
        script = self._here(self._container["command"][-1]).replace("while sleep 5", "while sleep 1")
        self._process = subprocess.Popen(
            ["sh", "-ec", script], env=self._environment(), stdout=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """All that runs in the pod."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def run(self, command: list[str]) -> int:
        script = self._here(command[-1])
        return subprocess.run(
            [*command[:-1], script], env=self._environment(), capture_output=True, check=False
        ).returncode

    def ready(self) -> bool:
        return self.run(self._container["readinessProbe"]["exec"]["command"]) == 0

    def stop(self) -> None:
        """What the kubelet does before it sends SIGTERM."""
        self.run(self._container["lifecycle"]["preStop"]["exec"]["command"])

    def ask(self, *command: str) -> str:
        return subprocess.run(
            ["redis-cli", "-h", self.address, *command],
            env={**self._environment(), "REDISCLI_AUTH": "secret"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    def well(self) -> bool:
        nodes = self.ask("cluster", "nodes")
        whole = nodes.count(" connected") == MEMBERS and ",fail" not in nodes
        return "cluster_state:ok" in self.ask("cluster", "info") and whole

    def _here(self, script: str) -> str:
        for inside, name in (("/etc/redis/", "etc"), ("/etc/redis-auth/", "auth"), ("/run/redis/", "run")):
            script = script.replace(inside, f"{self._directory}/{name}/")
        return script

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self._directory}/bin:{os.environ['PATH']}", "POD_IP": self.address}


class RedisClusterTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(directory.cleanup)
        resources = render(KUBERNETES / "overlays/prod-redis")
        found = {each.where: each.containers()[0] for each in templates(resources)}
        self.job = found["Job/routing-replay-redis-create"]
        (config,) = [each for each in of_kind(resources, "ConfigMap") if "redis.conf" in each["data"]]
        self.members = []
        for number in range(MEMBERS):
            place = Path(directory.name, str(number))
            member = Member(place, found["StatefulSet/routing-replay-redis"], config["data"]["redis.conf"])
            self.addCleanup(member.kill)
            self.members.append(member)

    def start(self, network: str) -> None:
        lines = ["127.0.0.1 localhost"]
        for number, member in enumerate(self.members):
            member.start(f"{network}.{number + 1}")
            lines.append(f"{member.address} routing-replay-redis-{number}.routing-replay-redis")
        Path("/etc/hosts").write_text("\n".join(lines) + "\n")

    def test_it_is_made_comes_back_under_other_addresses_and_hands_over(self):
        self.start("127.0.1")
        # The script of the job does the same twice.
        for _ in range(2):
            self.assertEqual(self.members[0].run(self.job["command"]), 0)
        until(lambda: all(member.well() for member in self.members), "a cluster")
        until(lambda: all(member.ready() for member in self.members), "all caught up")
        self.assertIn("OK", self.members[0].ask("-c", "set", "key", "value"))
        until(lambda: "value" in self.members[3].ask("-c", "get", "key"), "the key")

        with self.subTest("all at once"):
            time.sleep(1.5)  # appendfsync everysec
            for member in self.members:
                member.kill()
            self.start("127.0.2")
            until(lambda: all(member.well() for member in self.members), "the cluster is back")
            self.assertIn("value", self.members[0].ask("-c", "get", "key"))
            until(lambda: all(member.ready() for member in self.members), "all caught up again")

        with self.subTest("a master that is asked to end"):
            master = next(member for member in self.members if member.ask("role").startswith("master"))
            master.stop()
            self.assertTrue(master.ask("role").startswith("slave"))


if __name__ == "__main__":
    if not REDIS or not shutil.which("redis-cli"):
        print("skipped: there is no redis-server (Debian: redis-tools)")
        sys.exit(77)
    if INSIDE not in os.environ:
        if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
            print("skipped: a network of its own needs root, or user namespaces")
            sys.exit(77)
        with tempfile.NamedTemporaryFile() as hosts:
            script = 'mount --bind "$0" /etc/hosts && ip link set lo up && exec "$@"'
            inside = {**os.environ, INSIDE: "1"}
            command = [*ALONE, "sh", "-ec", script, hosts.name, sys.executable, *sys.argv]
            sys.exit(subprocess.run(command, env=inside, check=False).returncode)
    unittest.main()
