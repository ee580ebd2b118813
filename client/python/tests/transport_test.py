"""Appends and reads use the direct path where it reaches the server, and gRPC otherwise."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np
from fork_test import in_child
from support import Gate, Server, random_routes, reserve_address

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
LOG = "routing_replay"
# An address of this machine on which no server listens, so that proxies can use the ports of servers there.
ELSEWHERE = "127.0.0.3"


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


class Forwarder:
    """Forwards connections to `port` of ELSEWHERE to `target`. Without a target it accepts connections and sends only
    `says`."""

    def __init__(self, port: int, target: str | None = None, says: bytes = b"") -> None:
        self._target, self._says = target, says
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server((ELSEWHERE, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._kept:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._kept.append(client)
            if self._target is None:
                client.sendall(self._says)
                continue
            server = socket.create_connection(("127.0.0.1", port_of(self._target)))
            self._kept.append(server)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class TransportTest(unittest.TestCase):
    flags: tuple[str, ...] = ()  # Flags of every server.
    security: ClassVar[dict[str, str]] = {}  # Settings of clients that connect to these servers.
    local = "shm"  # The transport that a client on the server's machine gets.

    def setUp(self) -> None:
        self.lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger(LOG).addHandler(handler)
        self.addCleanup(logging.getLogger(LOG).removeHandler, handler)

    def start(self, *flags: str, listen: str | None = None) -> Server:
        server = Server(*self.flags, *flags, listen=listen)
        self.addCleanup(server.stop)
        return server

    def client(self, endpoint: str) -> rr.Client:
        return rr.Client(endpoint, **self.security)

    def run_of(self, client: rr.Client, name: str = "run") -> rr.Run:
        """Opens a run and appends a sample to it."""
        run = client.run(name, GEOMETRY)
        run.append("a", ROWS)
        run.flush(30)
        return run

    def elsewhere(self, port: int, target: str | None = None, says: bytes = b"") -> None:
        self.addCleanup(Forwarder(port, target, says).close)

    def use(self, endpoint: str, transport: str = "") -> dict[str, object]:
        """Makes an append and two reads. Returns the client's metrics."""
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRANSPORT": transport}), self.client(endpoint) as client:
            self.assertIsNone(client.metrics()["transport"])
            run = client.run("run", GEOMETRY)
            run.append(f"s{transport}", ROWS, seal=True)
            run.flush(30)
            for _ in range(2):
                np.testing.assert_array_equal(run.read_one(f"s{transport}").rows, ROWS)
            return client.metrics()

    def check(self, metrics: dict[str, object], transport: str) -> None:
        counts = {f"{name}_streams": 3 if name == transport else 0 for name in ("grpc", "direct", "unix", "shm")}
        self.assertEqual(metrics, {"transport": transport, **counts})

    def direct_lines(self) -> list[str]:
        return [line for line in self.lines if "direct path" in line]

    def test_what_is_fastest_or_what_is_asked_for(self) -> None:
        server = self.start()
        used = {"": self.local, "auto": self.local, "direct": "direct", "grpc": "grpc"}
        used |= {name: name if self.local == "shm" else "grpc" for name in ("shm", "unix")}
        for asked, name in used.items():
            with self.subTest(asked=asked):
                self.check(self.use(server.endpoint, asked), name)
        with self.client(server.endpoint) as client:
            counters = client.server_info().counters
        for name, times in collections.Counter(used.values()).items():
            self.assertEqual(counters[f'routing_replay_streams_total{{transport="{name}"}}'], 3 * times)
        self.assertEqual(self.direct_lines(), [])

    def test_a_server_without_it(self) -> None:
        self.check(self.use(self.start("--direct-listen", "off").endpoint), "grpc")
        self.assertEqual(self.direct_lines(), [])

    def test_a_server_that_listens_on_a_socket_alone(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = self.start(listen=f"unix:{directory}/socket")
            self.check(self.use(server.endpoint), "shm" if self.local == "shm" else "grpc")

    def test_a_port_of_its_own(self) -> None:
        server = self.start("--direct-listen", reserve_address())
        self.check(self.use(server.endpoint, "direct"), "direct")

    def test_nobody_goes_around_what_stands_between(self) -> None:
        gate = Gate(self.start())
        self.addCleanup(gate.shut)
        self.check(self.use(gate.endpoint), "grpc")
        self.assertEqual(self.direct_lines(), [])

    def test_another_address_of_the_server(self) -> None:
        """The server is reached at another address, which forwards both of its ports, like a Kubernetes Service."""
        direct = reserve_address()
        server = self.start("--direct-listen", direct)
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.elsewhere(port_of(direct), direct)
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "direct")

    def test_strangers_where_the_direct_path_should_be(self) -> None:
        """Each failure is noticed and logged once, and the path is not tried again for a minute."""
        for name, says in (
            ("silence", b""),
            ("HTTP/2", b"\0\0\0\4\0\0\0\0\0"),
            ("text", b"220 mail.example ESMTP\r\n" * 9),
        ):
            with self.subTest(name):
                direct = reserve_address()
                server = self.start("--direct-listen", direct)
                self.elsewhere(port_of(server.endpoint), server.endpoint)
                self.elsewhere(port_of(direct), says=says)
                self.lines.clear()
                self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "grpc")
                self.assertEqual(len(self.direct_lines()), 1, self.lines)

    def test_nobody_where_the_direct_path_should_be(self) -> None:
        server = self.start()
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "grpc")
        self.assertEqual(len(self.direct_lines()), 1, self.lines)

    def test_several_servers_behind_one_address(self) -> None:
        """The direct port leads to another server than the gRPC port. The client's ticket is from the server behind the
        gRPC port, so the other server does not know it."""
        direct = reserve_address()
        server, other = self.start("--direct-listen", direct), self.start("--direct-listen", reserve_address())
        with self.client(other.endpoint) as client:  # After this call the other server has issued tickets, too.
            client.run("run", GEOMETRY).append("s", ROWS)
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.elsewhere(port_of(direct), f"127.0.0.1:{port_of(other.endpoint)}")
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "grpc")
        self.assertEqual(len(self.direct_lines()), 1, self.lines)

    def test_a_server_that_comes_back(self) -> None:
        address, direct = reserve_address(), reserve_address()
        store = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, store, ignore_errors=True)
        flags = (*self.flags, "--direct-listen", direct, "--store", f"rocksdb:{store}", "--durability", "written")
        for transport in sorted({"direct", self.local} | ({"unix"} if self.local == "shm" else set())):
            server = Server(*flags, listen=address)
            with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRANSPORT": transport}), self.client(address) as client:
                run = self.run_of(client, transport)
                server.stop()
                run.append("b", ROWS)
                server = Server(*flags, listen=address)
                self.addCleanup(server.stop)
                run.flush(60)
                for name in ("a", "b"):
                    np.testing.assert_array_equal(run.read_one(name, timeout=60).rows, ROWS)
                self.assertEqual(client.metrics()["transport"], transport)
            server.stop()

    def test_a_server_that_says_nothing_costs_no_call_its_time(self) -> None:
        server = self.start()
        with self.client(server.endpoint) as client:
            run = self.run_of(client)
            server.pause()
            threading.Timer(3, lambda: server.process.send_signal(signal.SIGCONT)).start()
            np.testing.assert_array_equal(run.read_one("a", timeout=30).rows, ROWS)

    def test_a_child_has_connections_of_its_own(self) -> None:
        server = self.start()
        with self.client(server.endpoint) as client:
            run = self.run_of(client)
            np.testing.assert_array_equal(run.read_one("a").rows, ROWS)

            def sockets() -> set[str]:
                mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if self.is_open(fd)}
                return {one for one in mine if one.startswith("socket:")}

            def child() -> None:
                before = sockets()
                np.testing.assert_array_equal(run.read_one("a").rows, ROWS)
                run.append("b", ROWS)
                run.flush(30)
                assert sockets() > before
                assert client.metrics()["transport"] == self.local, client.metrics()

            self.assertEqual(in_child(child), 0)
            for name in ("a", "b"):
                np.testing.assert_array_equal(run.read_one(name).rows, ROWS)
            self.assertEqual(client.metrics()["transport"], self.local)

    @staticmethod
    def is_open(fd: str) -> bool:
        return Path(f"/proc/self/fd/{fd}").is_symlink()


def openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl program")
class TlsTransportTest(TransportTest):
    """Makes the tests of TransportTest with TLS, where server and client each have a certificate."""

    local = "direct"

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = Path(directory.name)
        cls.new_authority("ca")
        cls.issue("ca", "server")
        cls.issue("ca", "worker")
        path = str(cls.directory) + "/"
        cls.security = {"cacert": path + "ca.crt", "cert": path + "worker.crt", "key": path + "worker.key"}
        cls.flags = ("--tls-cert", path + "server.crt", "--tls-key", path + "server.key")
        cls.flags += ("--tls-client-ca", path + "ca.crt")

    @classmethod
    def new_authority(cls, name: str) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")
        openssl(cls.directory, "req", "-x509", *key, "-out", f"{name}.crt", "-days", "1", "-subj", f"/CN={name}")

    @classmethod
    def issue(cls, authority: str, name: str) -> None:
        """Writes NAME.crt and NAME.key, a certificate for the names and addresses of this machine."""
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")
        openssl(cls.directory, "req", *key, "-out", "request", "-subj", f"/CN={name}")
        (cls.directory / "names").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,IP:{ELSEWHERE}\n")
        signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "1")
        openssl(cls.directory, "x509", "-req", "-in", "request", *signer, "-extfile", "names", "-out", f"{name}.crt")

    def test_a_name_that_is_expected_instead(self) -> None:
        server = self.start()
        with mock.patch.dict(self.security, server_name="localhost"):
            self.check(self.use(server.endpoint), "direct")

    def test_another_server_with_a_certificate_of_somebody_else(self) -> None:
        """Another server listens on the port of the direct path; the client does not send it a ticket."""
        self.new_authority("stranger")
        self.issue("stranger", "other")
        direct = reserve_address()
        path = str(self.directory) + "/"
        server, other = self.start("--direct-listen", direct), reserve_address()
        stranger = Server("--direct-listen", other, "--tls-cert", path + "other.crt", "--tls-key", path + "other.key")
        self.addCleanup(stranger.stop)
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.elsewhere(port_of(direct), other)
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}"), "grpc")
        self.assertEqual(len(self.direct_lines()), 1, self.lines)
        self.assertIn("certificate", self.direct_lines()[0])

    def test_certificates_of_another_authority_are_taken_while_it_goes_on(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for name in ("ca.crt", "server.crt", "server.key", "worker.crt", "worker.key"):
                shutil.copy(self.directory / name, directory)
            moved = [word.replace(str(self.directory), directory) for word in self.flags]
            server = Server(*moved)
            self.addCleanup(server.stop)
            self.new_authority("next")
            for name in ("server", "worker"):
                self.issue("next", f"next-{name}")
            trusted = (self.directory / "ca.crt").read_text() + (self.directory / "next.crt").read_text()
            security = {key: value.replace(str(self.directory), directory) for key, value in self.security.items()}
            with rr.Client(server.endpoint, **security) as client:
                run = self.run_of(client)
                Path(directory, "ca.crt").write_text(trusted)
                for name in ("server", "worker"):
                    for kind in ("key", "crt"):
                        shutil.copy(self.directory / f"next-{name}.{kind}", f"{directory}/{name}.{kind}")
                self.await_certificate(server.endpoint, "next")
                Path(directory, "ca.crt").write_text((self.directory / "next.crt").read_text())
                for _ in range(3):
                    np.testing.assert_array_equal(run.read_one("a").rows, ROWS)
                    time.sleep(1)
                with rr.Client(server.endpoint, **security) as late:
                    np.testing.assert_array_equal(late.run("run", GEOMETRY).read_one("a").rows, ROWS)
                    self.assertEqual(late.metrics()["transport"], "direct")
                self.assertEqual(client.metrics()["transport"], "direct")
        self.assertEqual(self.direct_lines(), [])

    def await_certificate(self, endpoint: str, authority: str) -> None:
        """Waits until the server shows a certificate of that authority."""
        issuer, deadline = ((("commonName", authority),),), time.monotonic() + 30
        context = ssl.create_default_context(cafile=str(self.directory / f"{authority}.crt"))
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port_of(endpoint))) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as shown,
            ):
                self.assertEqual(shown.getpeercert()["issuer"], issuer)
                return
            time.sleep(0.1)
        self.fail("the server keeps its certificate")


if __name__ == "__main__":
    unittest.main()
