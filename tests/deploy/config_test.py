"""The server must accept the settings of every rendered pod, and the settings must fit the pod.

Usage: config_test.py SERVER
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import redis_pod
import yaml
from manifests import (
    KUBERNETES,
    RENDERED,
    SERVER_IMAGE,
    Template,
    number_of_bytes,
    of_kind,
    render,
    seconds,
    started,
    templates,
)

SERVER = Path(sys.argv.pop(1)).resolve()
# Memory that a server may use beyond its budget, as tests/integration/budget_test.cc measures and limits it, and room
# for connections.
FACTOR, ROOM = 1.3, 256 << 20


@functools.cache
def certificate() -> dict[str, bytes]:
    """A Secret like cert-manager's, with a self-signed certificate."""
    with tempfile.TemporaryDirectory() as directory:
        own, key = Path(directory, "own"), Path(directory, "key")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
                *("-days", "1", "-subj", "/CN=routing-replay", "-keyout", key, "-out", own),
            ],
            check=True,
            capture_output=True,
        )
        return {"tls.crt": own.read_bytes(), "ca.crt": own.read_bytes(), "tls.key": key.read_bytes()}


class Files:
    """Writes the volumes of a pod into a folder: settings unchanged, and generated secrets."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def mount(self, template: Template, container: dict[str, Any], resources: list[dict[str, Any]]) -> dict[str, str]:
        """Maps paths of the container to paths of this machine."""
        volumes = {volume["name"]: volume for volume in template.spec.get("volumes", [])}
        found = {}
        for mount in container.get("volumeMounts", []):
            here = Path(tempfile.mkdtemp(dir=self._directory))
            self._fill(here, volumes.get(mount["name"], {}), resources)
            found[mount["mountPath"]] = str(here / mount["subPath"] if "subPath" in mount else here)
        return found

    def _fill(self, here: Path, volume: dict[str, Any], resources: list[dict[str, Any]]) -> None:
        for config in of_kind(resources, "ConfigMap"):
            if config["metadata"]["name"] == volume.get("configMap", {}).get("name"):
                for name, text in config["data"].items():
                    (here / name).write_text(text)
        if "secret" in volume or "projected" in volume:
            for name, content in certificate().items():
                (here / name).write_bytes(content)
            (here / "password").write_text("secret\n")
            (here / "server-password").write_text("secret\n")
            (here / "tokens.yaml").write_text(f"[{{name: a, sha256: {'0' * 64}, runs: [grpo-], scopes: [put]}}]\n")


@contextlib.contextmanager
def at_home(template: Template, container: dict[str, Any], resources: list[dict[str, Any]]):
    """The server's command line in the pod, and its environment, with paths of this machine."""
    with tempfile.TemporaryDirectory() as directory:
        paths = Files(Path(directory)).mount(template, container, resources)

        def here(text: str) -> str:
            mounted = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
            return re.sub(rf"(?:{mounted})(?![\w-])", lambda path: paths[path[0]], text) if paths else text

        arguments, variables = started(container, {"metadata.name": "routing-replay-0"})
        environment = {name: here(value) for name, value in variables.items()}
        yield [str(SERVER), *map(here, arguments)], {**environment, "PATH": os.environ["PATH"]}


def settings(template: Template, container: dict[str, Any], resources: list[dict[str, Any]], *more: str):
    """Runs the server with the pod's command line and the flags `more`, which must make it print or check its settings
    and exit. Returns the finished process."""
    with at_home(template, container, resources) as (command, environment):
        return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)


def servers():
    """Every container with our server, and its pod."""
    for directory in RENDERED:
        resources = render(directory)
        for template in templates(resources):
            for container in template.containers():
                if SERVER_IMAGE.match(container["image"]):
                    yield f"{directory.name}: {template.where}", template, container, resources


class ConfigTest(unittest.TestCase):
    def printed(self, *server) -> dict[str, Any]:
        done = settings(*server, "--print-config")
        self.assertEqual(done.returncode, 0, done.stderr)
        return yaml.safe_load(done.stdout)

    def test_the_server_takes_them(self):
        found = list(servers())
        self.assertGreaterEqual(len(found), 5)
        for where, *server in found:
            with self.subTest(where):
                done = settings(*server, "--check-config")
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_listens_where_the_pod_says(self):
        for where, template, container, resources in servers():
            with self.subTest(where):
                config = self.printed(template, container, resources)
                ports = {port["name"].removeprefix("rr-"): port["containerPort"] for port in container["ports"]}
                listening = {"grpc": config["listen"][0], "http-ops": config["operations-listen"]}
                listening["health"] = config["health-listen"]
                for name, address in listening.items():
                    if address and not address.startswith("127.0.0.1:"):
                        self.assertEqual(int(address.rpartition(":")[2]), ports[name])
                    else:
                        self.assertNotIn(name, ports)

    def test_it_ends_within_its_grace_period(self):
        for where, template, container, resources in servers():
            with self.subTest(where):
                config = self.printed(template, container, resources)
                needed = seconds(config["drain-delay"]) + seconds(config["drain-timeout"]) + 15
                # 30 s is what Kubernetes uses if the pod sets no grace period.
                self.assertLessEqual(needed, template.spec.get("terminationGracePeriodSeconds", 30))

    def test_its_memory_fits_the_limit(self):
        for where, template, container, resources in servers():
            with self.subTest(where):
                budget = number_of_bytes(self.printed(template, container, resources)["memory-budget"])
                limit = number_of_bytes(container["resources"]["limits"]["memory"])
                self.assertGreaterEqual(limit, FACTOR * budget + ROOM)

    def test_the_base_alone_is_rejected(self):
        resources = render(KUBERNETES / "base")
        (template,) = templates(resources)
        done = settings(template, template.containers()[0], resources, "--check-config")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("insecure", done.stderr)

    def test_an_unknown_key_is_rejected(self):
        resources = render(KUBERNETES / "overlays/dev")
        for config in of_kind(resources, "ConfigMap"):
            if "server.yaml" in config["data"]:
                config["data"]["server.yaml"] += "memory-buget: 1GiB\n"
        (template,) = templates(of_kind(resources, "StatefulSet"))
        done = settings(template, template.containers()[0], resources, "--check-config")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("memory-buget", done.stderr)


# Asks like the kubelet, through gRPC's health service; the system's Python has grpcio.
PROBE = """
import sys, grpc
name = sys.argv[2].encode()
check = grpc.insecure_channel(sys.argv[1]).unary_unary("/grpc.health.v1.Health/Check")
print({0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING"}[check(b"\\n" + bytes([len(name)]) + name, timeout=20)[1]])
"""
SYSTEM_PYTHON = "/usr/bin/python3"


class ProbeTest(unittest.TestCase):
    def test_probes_are_answered_until_the_end(self):
        self.assert_answered("dev")

    def test_probes_need_no_certificate_and_no_token(self):
        self.assert_answered("prod-tokens")

    def assert_answered(self, overlay: str) -> None:
        if subprocess.run([SYSTEM_PYTHON, "-c", "import grpc"], capture_output=True, check=False).returncode:
            self.skipTest("the system's Python has no grpcio (Debian: python3-grpcio)")
        resources = render(KUBERNETES / "overlays" / overlay)
        (template,) = templates(of_kind(resources, "StatefulSet"))
        (container,) = template.containers()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            health = f"127.0.0.1:{found.getsockname()[1]}"
        ask = {kind: container[kind]["grpc"]["service"] for kind in container if kind.endswith("Probe")}

        def answer(kind: str) -> str:
            probe = [SYSTEM_PYTHON, "-c", PROBE, health, ask[kind]]
            return subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip()

        with at_home(template, container, resources) as (command, environment), tempfile.TemporaryDirectory() as work:
            endpoint = Path(work, "endpoint")
            ports = ["--listen", "127.0.0.1:0", "--operations-listen", "127.0.0.1:0", "--health-listen", health]
            # The drain delay is long enough for two requests on a slow machine.
            own = ["--endpoint-file", str(endpoint), "--drain-delay", "30s"]
            server = subprocess.Popen([*command, *ports, *own], env=environment, stderr=subprocess.DEVNULL)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            while not endpoint.exists():
                self.assertIsNone(server.poll())
                time.sleep(0.01)
            self.assertEqual([answer(kind) for kind in sorted(ask)], ["SERVING"] * 3)
            server.terminate()
            while answer("readinessProbe") == "SERVING":
                self.assertIsNone(server.poll())
            self.assertEqual(answer("livenessProbe"), "SERVING")


class RedisTest(unittest.TestCase):
    """The Redis of a pod of components/redis-cluster, started by its own script."""

    def setUp(self):
        resources = render(KUBERNETES / "overlays/prod-redis")
        (self.template,) = [each for each in templates(resources) if each.where == "StatefulSet/routing-replay-redis"]
        self.files = redis_pod.mounted(self.template, resources)
        self.config = self.files["/etc/redis"]["redis.conf"]

    def test_its_memory_fits_the_limit(self):
        (maximum,) = re.findall(r"^maxmemory (\d+)gb$", self.config, re.MULTILINE)
        limit = number_of_bytes(self.template.containers()[0]["resources"]["limits"]["memory"])
        self.assertGreaterEqual(limit, 2 * int(maximum) * 2**30)

    def test_its_script_starts_a_server_that_asks_for_the_password(self):
        if redis_pod.missing:
            self.skipTest(f"there is no {redis_pod.missing} (Debian: redis-tools, openssl)")
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        with socket.socket() as one, socket.socket() as other:
            for found in (one, other):
                found.bind(("127.0.0.1", 0))
            port, bus = one.getsockname()[1], other.getsockname()[1]
        tls = Path(directory.name, "tls")
        tls.mkdir()
        redis_pod.issue(tls, serial=1)
        self.files["/etc/redis"]["redis.conf"] = self.config.replace("port 6379", f"port {port}\ncluster-port {bus}")
        pod = redis_pod.RedisPod(Path(directory.name, "pod"), "routing-replay-redis-0", self.files, tls)
        command, environment = pod.started(self.template.containers()[0], "127.0.0.1")
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        said = ""
        while "Ready to accept connections" not in said:
            said += server.stdout.readline() or self.fail(said)

        def ask(*command: str, **who: str) -> str:
            return pod.ask("127.0.0.1", *command, port=port, **who)

        self.assertEqual(ask("ping").strip(), "PONG")
        self.assertIn("NOAUTH", ask("ping", password=""))
        self.assertIn("noeviction", ask("config", "get", "maxmemory-policy"))
        self.assertIn("cluster_enabled:1", ask("info", "cluster"))
        self.assertEqual(ask("config", "get", "masterauth").split(), ["masterauth", "secret"])
        self.assertEqual((pod.directory / "run/redis.conf").stat().st_mode & 0o077, 0)


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl (Debian: apt-get install openssl)")
        sys.exit(77)
    unittest.main()
