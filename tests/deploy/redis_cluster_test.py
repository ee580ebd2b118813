"""Tests components/redis-cluster with six real Redis servers. Its scripts run as in the pods, and each "pod" has an
address of its own and its name in the Service. A routing-replay server, with the settings of its pod, stores a sample
in the cluster.

Usage: redis_cluster_test.py SERVER RRCTL

Runs in a private network and with a private /etc/hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import npy
import redis_pod
from manifests import KUBERNETES, render, templates

ALONE = ["unshare", "--net", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net", "--mount"]
INSIDE = "ROUTING_REPLAY_TEST_INSIDE"
MEMBERS = 6
RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.2)


class Member:
    """A pod of the StatefulSet. It keeps its volume when it is started again, also at another address."""

    def __init__(self, directory: Path, number: int, container: dict, files: dict, tls: Path) -> None:
        self._pod = redis_pod.RedisPod(directory, f"routing-replay-redis-{number}", files, tls)
        self._container = container
        self.address = ""
        self._process: subprocess.Popen | None = None

    def start(self, address: str) -> None:
        self.address = address
        file = self._pod.directory / "etc/redis.conf"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("bind")]
        file.write_text("\n".join([*lines, f"bind {address}", ""]))
        command, environment = self._pod.started(self._container, address)
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        """Kills all processes of the pod."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def run(self, container: dict) -> int:
        """Runs the command of another pod's container, such as the job's, with this pod's volumes and address. Returns
        its exit status."""
        command, environment = self._pod.started(container, self.address)
        return subprocess.run(command, env=environment, capture_output=True).returncode

    def _exec(self, asked: dict) -> int:
        """Runs the command of a probe or hook in the pod's own container, without expanding variables. Returns its exit
        status."""
        command = [self._pod.here(word) for word in asked["exec"]["command"]]
        _, environment = self._pod.started(self._container, self.address)
        return subprocess.run(command, env=environment, capture_output=True).returncode

    def ready(self) -> bool:
        return self._exec(self._container["readinessProbe"]) == 0

    def stop(self) -> None:
        """Runs the preStop hook, as the kubelet does before it sends SIGTERM."""
        self._exec(self._container["lifecycle"]["preStop"])

    def ask(self, *command: str, **who: str) -> str:
        return self._pod.ask(self.address, *command, **who)

    def serial(self) -> str:
        """Returns the serial number of the certificate that the Redis server presents, e.g. "02"."""
        shown = f"openssl s_client -connect {self.address}:6379 </dev/null 2>/dev/null | openssl x509 -noout -serial"
        return subprocess.run(["sh", "-c", shown], capture_output=True, text=True).stdout.strip().partition("=")[2]

    def well(self) -> bool:
        nodes = self.ask("cluster", "nodes")
        whole = nodes.count(" connected") == MEMBERS and ",fail" not in nodes
        return "cluster_state:ok" in self.ask("cluster", "info") and whole


class RedisClusterTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        resources = render(KUBERNETES / "overlays/prod-redis")
        found = {each.where: each for each in templates(resources)}
        job, redis = found["Job/routing-replay-redis-create"], found["StatefulSet/routing-replay-redis"]
        self.job = job.containers()[0]
        self.server = found["StatefulSet/routing-replay"].containers()[0]
        self.tls = Path(directory.name, "tls")
        self.tls.mkdir()
        redis_pod.issue(self.tls, serial=1)
        # The test changes the configuration and the scripts: less memory and shorter waits than in a real cluster.
        files = {**redis_pod.mounted(job, resources), **redis_pod.mounted(redis, resources)}
        quicker = {
            "1gb": "1mb",
            # By default, a master waits 5 s for further replicas before it sends all its data to a new replica.
            "cluster-node-timeout 5000": "cluster-node-timeout 1000\nrepl-diskless-sync-delay 0",
            "sleep 5": "sleep 1",
            "sleep 2": "sleep 0.2",
        }
        for name, text in files["/etc/redis"].items():
            for slow, quick in quicker.items():
                text = text.replace(slow, quick)
            files["/etc/redis"][name] = text
        self.members = []
        for number in range(MEMBERS):
            place = Path(directory.name, str(number))
            member = Member(place, number, redis.containers()[0], files, self.tls)
            self.addCleanup(member.kill)
            self.members.append(member)

    def start(self, network: str) -> None:
        lines = ["127.0.0.1 localhost"]
        for number, member in enumerate(self.members):
            member.start(f"{network}.{number + 1}")
            lines.append(f"{member.address} routing-replay-redis-{number}.routing-replay-redis")
        Path("/etc/hosts").write_text("\n".join(lines) + "\n")

    def assert_a_server_keeps_a_sample(self, directory: Path) -> None:
        (store,) = [each["value"] for each in self.server["env"] if each["name"] == "RR_STORE"]
        (directory / "server-password").write_text(f"{redis_pod.SERVER_PASSWORD}\n")
        (directory / "ca.crt").write_bytes((self.tls / "ca.crt").read_bytes())
        store = store.replace("/etc/routing-replay/redis", str(directory))
        endpoint = directory / "endpoint"
        command = [SERVER, "--store", store, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: endpoint.exists() or server.poll() is not None, "a server")
            npy.write(directory / "rows.npy", rows=99, layers=48)
            ask = [RRCTL, "--endpoint", f"file:{endpoint}"]
            put = ("put", "run", "a", directory / "rows.npy", "--experts", str(npy.EXPERTS), "--seal")
            for done in (put, ("verify", "run")):
                subprocess.run([*ask, *done], check=True, capture_output=True, timeout=60)
        finally:
            server.terminate()
            said = server.communicate(timeout=60)[1]
        self.assertNotIn("NOPERM", said)

    def test_it_is_made_comes_back_under_other_addresses_and_hands_over(self):
        self.start("127.0.1")
        # The job's script must have no effect when it runs again.
        for _ in range(2):
            self.assertEqual(self.members[0].run(self.job), 0)
        until(lambda: all(member.well() for member in self.members), "a cluster")
        until(lambda: all(member.ready() for member in self.members), "all caught up")
        with self.subTest("a server with the settings of its pod"):
            self.assert_a_server_keeps_a_sample(self.directory)
        with self.subTest("what servers may not do"):
            user = {"user": "routing-replay", "password": redis_pod.SERVER_PASSWORD}
            for command in (("config", "set", "maxmemory", "1"), ("get", "key"), ("flushall",), ("acl", "list")):
                self.assertIn("NOPERM", self.members[0].ask(*command, **user))
            self.assertIn("NOAUTH", self.members[0].ask("ping", password=""))
        with self.subTest("a new certificate"):
            redis_pod.issue(self.tls, serial=2)
            until(lambda: all(member.serial() == "02" for member in self.members), "the certificate")

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
    if redis_pod.missing:
        print(f"skipped: there is no {redis_pod.missing} (Debian: redis-tools, openssl)")
        sys.exit(77)
    if INSIDE not in os.environ:
        if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
            print("skipped: a network of its own needs root, or user namespaces")
            sys.exit(77)
        with tempfile.NamedTemporaryFile() as hosts:
            script = 'mount --bind "$0" /etc/hosts && ip link set lo up && exec "$@"'
            inside = {**os.environ, INSIDE: "1"}
            command = [*ALONE, "sh", "-ec", script, hosts.name, sys.executable, *sys.argv, SERVER, RRCTL]
            sys.exit(subprocess.run(command, env=inside, check=False).returncode)
    unittest.main()
