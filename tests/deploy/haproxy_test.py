"""deploy/haproxy with the real HAProxy in front of the real server: which calls it forwards, which clients it rejects,
and that it absorbs calls that are started and cancelled.

Usage: haproxy_test.py SERVER RRCTL
"""

import contextlib
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))
CONFIG = Path(__file__).resolve().parents[2] / "deploy/haproxy/haproxy.cfg"
HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
SKIPPED = 77
PATIENCE = 60  # Seconds.
MIB = 1 << 20


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def make_authority(directory: Path, name: str) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}")
    files = ("-keyout", directory / f"{name}.key", "-out", directory / f"{name}.crt")
    subprocess.run(["openssl", "req", "-x509", "-days", "1", *key, *files], check=True, capture_output=True)


def issue(directory: Path, authority: str, name: str) -> None:
    """Writes a certificate and its key for NAME: NAME.crt, NAME.key, and both together in NAME.pem."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}")
    request, names = directory / f"{name}.csr", directory / f"{name}.ext"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", *key, "-keyout", directory / f"{name}.key", "-out", request], check=True, capture_output=True
    )
    signer = ("-CA", directory / f"{authority}.crt", "-CAkey", directory / f"{authority}.key", "-CAcreateserial")
    done = ("-days", "1", "-extfile", names, "-out", directory / f"{name}.crt")
    subprocess.run(["openssl", "x509", "-req", "-in", request, *signer, *done], check=True, capture_output=True)
    pem = (directory / f"{name}.crt").read_text() + (directory / f"{name}.key").read_text()
    (directory / f"{name}.pem").write_text(pem)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def kept(name: bytes, value: bytes) -> bytes:
    """Encodes a header so that its receiver adds it to its table (HPACK). Later one byte is enough to send it again."""
    return b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value


class HaproxyTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.files = Path(directory.name)
        for authority, names in {"clients": ["client"], "server": ["served", "proxy"], "inner": ["upstream"]}.items():
            make_authority(self.files, authority)
            for name in names:
                issue(self.files, authority, name)
        self.port, inner = free_port(), free_port()
        self.endpoint = f"localhost:{self.port}"
        tls = {"cert": "served.crt", "key": "served.key", "client-ca": "inner.crt"}
        flags = [word for key, file in tls.items() for word in (f"--tls-{key}", self.files / file)]
        address = f"127.0.0.1:{inner}"
        self.server = self.start(
            SERVER, "--listen", address, "--memory-budget", "64MiB", "--log-level", "error", *flags
        )
        self.environment = {
            **os.environ,
            "PROXY_LISTEN": f"127.0.0.1:{self.port}",
            "PROXY_SERVER": address,
            "PROXY_SERVER_NAME": "localhost",
            "PROXY_FILES": str(self.files),
        }
        self.start(HAPROXY, "-f", CONFIG)
        # Waits for both ports. A call that comes too early would be retried by the proxy or by rrctl, which takes time.
        for port in (inner, self.port):
            self.await_listener(port)

    def start(self, *command) -> subprocess.Popen:
        process = subprocess.Popen(command, env=getattr(self, "environment", None))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def rrctl(self, *words: str, certificate: bool = True) -> subprocess.CompletedProcess:
        files = {"CACERT": "server.crt"}
        if certificate:
            files.update({"CERT": "client.crt", "KEY": "client.key"})
        environment = {f"ROUTING_REPLAY_{key}": str(self.files / file) for key, file in files.items()}
        environment = {**os.environ, **environment, "ROUTING_REPLAY_ENDPOINT": self.endpoint}
        return subprocess.run([RRCTL, *words], env=environment, capture_output=True, text=True, check=False)

    def await_listener(self, port: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE):
                return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def await_answer(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while (done := self.rrctl("status")).returncode != 0:
            self.assertLess(time.monotonic(), deadline, done.stderr)

    def peak(self) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def attack(self, calls: int) -> None:
        context = ssl.create_default_context(cafile=self.files / "server.crt")
        context.load_cert_chain(self.files / "client.crt", self.files / "client.key")
        context.set_alpn_protocols(["h2"])
        headers = {
            b":method": b"POST",
            b":scheme": b"https",
            b":authority": b"test",
            b":path": b"/routing_replay.v1.RoutingReplay/Stat",
            b"te": b"trailers",
            b"content-type": b"application/grpc",
        }
        first, again = b"".join(kept(*each) for each in headers.items()), bytes(range(0xC3, 0xBD, -1))
        with (
            socket.create_connection(("127.0.0.1", self.port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
            for begin in range(0, calls, 500):
                streams = range(2 * begin + 1, 2 * begin + 1001, 2)
                block = b"".join(
                    frame(1, 4, stream, first if stream == 1 else again) + frame(3, 0, stream, b"\0\0\0\x08")
                    for stream in streams
                )
                connection.sendall(block)

    def test_appends_and_reads_go_through(self):
        self.await_answer()
        header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 2), }".ljust(117) + "\n"
        rows = self.files / "rows.npy"
        rows.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes([0, 1, 2, 3]))
        for words in (["put", "run", "s", str(rows), "--experts", "4"], ["verify", "run"], ["doctor"]):
            done = self.rrctl(*words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_strangers_stay_outside(self):
        self.await_answer()
        # rrctl has no certificate here. It retries the rejected connection until its timeout, 3 s, and then fails.
        done = self.rrctl("--timeout", "3", "status", certificate=False)
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_calls_that_are_taken_back_cost_the_server_little(self):
        self.await_answer()
        before = self.peak()
        for _ in range(3):
            with contextlib.suppress(OSError):  # The proxy may close the connection.
                self.attack(50_000)
        self.await_answer()
        self.assertLess(self.peak() - before, 100 * MIB)


if __name__ == "__main__":
    if HAPROXY is None:
        print("skipped: there is no haproxy (apt-get install haproxy)")
        sys.exit(SKIPPED)
    unittest.main()
