"""A certificate with the names of examples/cert-manager must be accepted for every name by which an overlay lets
clients call.

Usage: names_test.py SERVER RRCTL
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from manifests import KUBERNETES, RENDERED, of_kind, render

RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))


def called(resources: list[dict]) -> set[str]:
    """Returns the server names that a certificate must have: those by which Prometheus and clients with TLS call."""
    names = set()
    for config in of_kind(resources, "ConfigMap"):
        if "ROUTING_REPLAY_CACERT" in config["data"]:
            members = config["data"]["ROUTING_REPLAY_ENDPOINT"].removeprefix("shard:").removeprefix("dns:///")
            names |= {member.rpartition(":")[0] for member in members.split(",")}
    for monitor in of_kind(resources, "PodMonitor"):
        names |= {each["tlsConfig"]["serverName"] for each in monitor["spec"]["podMetricsEndpoints"]}
    return names


class NamesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        certificates = of_kind(render(KUBERNETES / "examples/cert-manager"), "Certificate")
        (names,) = [each["spec"]["dnsNames"] for each in certificates if each["metadata"]["name"] == "routing-replay"]
        self.certificate, key = self.directory / "tls.crt", self.directory / "tls.key"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
                *("-days", "1", "-subj", "/CN=server", "-keyout", key, "-out", self.certificate),
                *("-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)),
            ],
            check=True,
            capture_output=True,
        )
        endpoint = self.directory / "endpoint"
        command = [SERVER, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint, "--log-level", "error"]
        server = subprocess.Popen([*command, "--tls-cert", self.certificate, "--tls-key", key])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        while not endpoint.exists():
            self.assertIsNone(server.poll())
            time.sleep(0.01)
        self.endpoint = endpoint.read_text().strip()

    def status(self, name: str) -> subprocess.CompletedProcess:
        command = [RRCTL, "--endpoint", self.endpoint, "--cacert", self.certificate, "--server-name", name]
        return subprocess.run([*command, "--timeout", "10", "status"], capture_output=True, text=True, check=False)

    def test_every_name_that_is_called_is_in_it(self):
        names = set().union(*(called(render(directory)) for directory in RENDERED))
        self.assertGreaterEqual(len(names), 5)  # The names of three members and of two Services.
        for name in sorted(names):
            done = self.status(name)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")

    def test_another_name_is_not(self):
        done = self.status("routing-replay-0.elsewhere")
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"\Arrctl: .*\n\Z", "rrctl must print one line, and none of gRPC's own messages")


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl (Debian: apt-get install openssl)")
        sys.exit(77)
    unittest.main()
