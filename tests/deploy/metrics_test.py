"""Alerts, dashboard and documentation must name metrics that real servers expose, and promtool must accept these
metrics.

Usage: metrics_test.py SERVER RRCTL

A metric with labels appears only after it has counted something. So one server rejects calls, another spills, and a
third loses its Redis.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from concurrent import futures
from pathlib import Path

import expressions
import npy
from manifests import TOOLS

RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))
REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")  # Both names are the same program.
# Suffixes of a histogram's series.
SUFFIXES = ("_bucket", "_sum", "_count")


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within a minute: {what}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """A server with an operations port and a folder of its own. It runs until `ends` is closed."""

    def __init__(self, ends: contextlib.ExitStack, *flags: object) -> None:
        self.directory = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        endpoint = self.directory / "endpoint"
        self._operations = f"127.0.0.1:{free_port()}"
        command = [SERVER, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint, "--log-level", "error"]
        self.process = subprocess.Popen([*command, "--operations-listen", self._operations, *map(str, flags)])
        ends.callback(self._end)
        until(lambda: endpoint.exists() or self.process.poll() is not None, "a server")
        self.endpoint = endpoint.read_text().strip()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

    def rrctl(self, *arguments: object) -> int:
        command = [RRCTL, "--endpoint", self.endpoint, "--timeout", "5", *map(str, arguments)]
        return subprocess.run(command, cwd=self.directory, capture_output=True, check=False).returncode

    def metrics(self, context: ssl.SSLContext | None = None) -> str:
        scheme = "https" if context else "http"
        with urllib.request.urlopen(f"{scheme}://{self._operations}/metrics", timeout=10, context=context) as reply:
            return reply.read().decode()


def names(exposed: str) -> set[str]:
    """The names of all exposed series. A histogram has three: NAME_bucket, NAME_sum and NAME_count."""
    found = set()
    for line in exposed.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found |= {name + suffix for suffix in SUFFIXES} if kind == "histogram" else {name}
    return found


class Guarded:
    """A server with TLS, tokens, quotas and a spill directory, which has rejected a call for every possible reason."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        certificate, key = directory / "tls.crt", directory / "tls.key"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
                *("-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", key, "-out", certificate),
            ],
            check=True,
            capture_output=True,
        )
        token, tokens = directory / "token", directory / "tokens.yaml"
        made = [RRCTL, "-w", "json", "token", "all", "--run", "", "--scope", "put,read,admin", "--out", token]
        tokens.write_text(json.loads(subprocess.run(made, check=True, capture_output=True).stdout)["entry"] + "\n")
        flags = ("--tls-cert", certificate, "--tls-key", key, "--token-file", tokens, "--run-budget", "8KiB")
        self._server = Server(ends, *flags, "--spill-directory", directory / "spill")
        self._context = ssl.create_default_context(cafile=certificate)
        self._stranger = ("--cacert", certificate)
        self._known = (*self._stranger, "--token-file", token)

    def metrics(self) -> str:
        for name, rows in (("few", 9), ("more", 12), ("many", 999)):
            npy.write(self._server.directory / f"{name}.npy", rows=rows, layers=4)
        put = ("put", "run", "a", "few.npy", "--experts", npy.EXPERTS)
        for what, call, done in (
            ("there is no token", (*self._stranger, *put), False),
            ("all is well", (*self._known, *put, "--seal"), True),
            ("it is sealed", (*self._known, "put", "run", "a", "more.npy"), False),
            ("it is over its budget", (*self._known, "put", "run", "b", "many.npy"), False),
            ("it is there", (*self._known, "get", "run", "a"), True),
        ):
            assert (self._server.rrctl(*call) == 0) == done, what
        return self._server.metrics(self._context)


class Bereft:
    """A server whose Redis has stopped."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        directory, port = Path(ends.enter_context(tempfile.TemporaryDirectory())), free_port()
        redis = subprocess.Popen(
            ["redis-server", "--port", str(port), "--save", "", "--dir", directory],
            executable=REDIS,
            stdout=subprocess.DEVNULL,
        )
        ends.callback(redis.wait)
        ends.callback(redis.kill)
        until(lambda: answers(port), "Redis")
        self._server = Server(ends, "--store", f"redis://127.0.0.1:{port}")
        assert self._server.rrctl("ls") == 0
        redis.kill()
        redis.wait()

    def metrics(self) -> str:
        assert self._server.rrctl("ls", "run") != 0
        # The server may still wait for Redis when rrctl has given up.
        expected = "routing_replay_store_errors_total"
        until(lambda: expected in names(self._server.metrics()), expected)
        return self._server.metrics()


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with contextlib.ExitStack() as ends, futures.ThreadPoolExecutor() as threads:
            servers = [Guarded(ends), *([Bereft(ends)] if REDIS else [])]
            cls.exposed = list(threads.map(lambda server: server.metrics(), servers))  # They mostly wait.

    def test_what_is_shown_and_watched_is_exposed(self):
        wanted = set().union(*(expressions.metrics(alert["expr"]) for alert in expressions.alerts()))
        for row in ("Overview", "Ingest", "Serve", "Store"):
            wanted |= set().union(*map(expressions.metrics, expressions.of_panels(expressions.panels(row))))
        self.assertGreater(len(wanted), 30)
        if not REDIS:
            print("no redis-server here (Debian: redis-tools): errors of the store are not looked for")
            wanted.discard("routing_replay_store_errors_total")
        self.assertEqual(wanted - set().union(*map(names, self.exposed)), set())

    def test_reads_that_wait_are_told_apart(self):
        # Prometheus reports no quantile above a histogram's last finite bound. A read may wait for 10 minutes, so there
        # must be a bound of 600 s.
        self.assertIn('method="Read",le="600"', self.exposed[0])

    def test_promtool_takes_it(self):
        for exposed in self.exposed:
            done = subprocess.run(
                [TOOLS / "promtool", "check", "metrics"], input=exposed, capture_output=True, text=True, check=False
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl (Debian: apt-get install openssl)")
        sys.exit(77)
    unittest.main()
