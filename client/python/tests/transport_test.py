"""Appends and reads without gRPC, where that reaches the server, and over gRPC where it does not."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from fork_test import in_child
from support import Gate, Server, random_routes, reserve_address

import routing_replay as rr

GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 300, 3, 64, 4)
LOG = "routing_replay"
# An address of this machine at which no server listens, so that others may stand there.
ELSEWHERE = "127.0.0.3"


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


class Forwarder:
    """Passes what comes to `port` of ELSEWHERE on to `target`; without one it takes connections and says nothing."""

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
    def setUp(self) -> None:
        self.lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger(LOG).addHandler(handler)
        self.addCleanup(logging.getLogger(LOG).removeHandler, handler)

    def start(self, *flags: str, listen: str | None = None) -> Server:
        server = Server(*flags, listen=listen)
        self.addCleanup(server.stop)
        return server

    def run_of(self, client: rr.Client, name: str = "run") -> rr.Run:
        """With a sample."""
        run = client.run(name, GEOMETRY)
        run.append("a", ROWS)
        run.flush(30)
        return run

    def elsewhere(self, port: int, target: str | None = None, says: bytes = b"") -> None:
        self.addCleanup(Forwarder(port, target, says).close)

    def use(self, endpoint: str, transport: str = "") -> dict[str, object]:
        """What the client says after an append and two reads."""
        with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRANSPORT": transport}), rr.Client(endpoint) as client:
            self.assertIsNone(client.metrics()["transport"])
            run = client.run("run", GEOMETRY)
            run.append(f"s{transport}", ROWS, seal=True)
            run.flush(30)
            for _ in range(2):
                np.testing.assert_array_equal(run.read_one(f"s{transport}").rows, ROWS)
            return client.metrics()

    def check(self, metrics: dict[str, object], transport: str) -> None:
        counts = {f"{name}_streams": 3 if name == transport else 0 for name in ("grpc", "direct", "unix")}
        self.assertEqual(metrics, {"transport": transport, **counts})

    def direct_lines(self) -> list[str]:
        return [line for line in self.lines if "direct path" in line]

    def test_what_is_fastest_or_what_is_asked_for(self) -> None:
        server = self.start()
        for asked, used in (("", "unix"), ("auto", "unix"), ("unix", "unix"), ("direct", "direct"), ("grpc", "grpc")):
            with self.subTest(asked=asked):
                self.check(self.use(server.endpoint, asked), used)
        with rr.Client(server.endpoint) as client:
            counters = client.server_info().counters
        for name, times in (("unix", 3), ("direct", 1), ("grpc", 1)):
            self.assertEqual(counters[f'routing_replay_streams_total{{transport="{name}"}}'], 3 * times)
        self.assertEqual(self.direct_lines(), [])

    def test_a_server_without_it(self) -> None:
        self.check(self.use(self.start("--direct-listen", "off").endpoint), "grpc")
        self.assertEqual(self.direct_lines(), [])

    def test_a_server_that_listens_on_a_socket_alone(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = self.start(listen=f"unix:{directory}/socket")
            self.check(self.use(server.endpoint), "unix")

    def test_a_port_of_its_own(self) -> None:
        server = self.start("--direct-listen", reserve_address())
        self.check(self.use(server.endpoint, "direct"), "direct")

    def test_nobody_goes_around_what_stands_between(self) -> None:
        gate = Gate(self.start())
        self.addCleanup(gate.shut)
        self.check(self.use(gate.endpoint), "grpc")
        self.assertEqual(self.direct_lines(), [])

    def test_another_address_of_the_server(self) -> None:
        """As that of a service in front of one server, which has both ports."""
        direct = reserve_address()
        server = self.start("--direct-listen", direct)
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.elsewhere(port_of(direct), direct)
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "direct")

    def test_strangers_where_the_direct_path_should_be(self) -> None:
        """Each is noticed, said once, and not asked again for a minute."""
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
        """The other does not know the ticket."""
        direct = reserve_address()
        server, other = self.start("--direct-listen", direct), self.start("--direct-listen", reserve_address())
        with rr.Client(other.endpoint) as client:  # It has tickets of its own.
            client.run("run", GEOMETRY).append("s", ROWS)
        self.elsewhere(port_of(server.endpoint), server.endpoint)
        self.elsewhere(port_of(direct), f"127.0.0.1:{port_of(other.endpoint)}")
        self.check(self.use(f"{ELSEWHERE}:{port_of(server.endpoint)}", "direct"), "grpc")
        self.assertEqual(len(self.direct_lines()), 1, self.lines)

    def test_a_server_that_comes_back(self) -> None:
        address, direct = reserve_address(), reserve_address()
        store = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, store, ignore_errors=True)
        flags = ("--direct-listen", direct, "--store", f"rocksdb:{store}", "--durability", "written")
        for transport in ("direct", "unix"):
            server = Server(*flags, listen=address)
            with mock.patch.dict(os.environ, {"ROUTING_REPLAY_TRANSPORT": transport}), rr.Client(address) as client:
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
        with rr.Client(server.endpoint) as client:
            run = self.run_of(client)
            server.pause()
            threading.Timer(3, lambda: server.process.send_signal(signal.SIGCONT)).start()
            np.testing.assert_array_equal(run.read_one("a", timeout=30).rows, ROWS)

    def test_a_child_has_connections_of_its_own(self) -> None:
        server = self.start()
        with rr.Client(server.endpoint) as client:
            run = self.run_of(client)
            np.testing.assert_array_equal(run.read_one("a").rows, ROWS)

            def sockets() -> set[str]:
                """Of Unix, that are connected."""
                mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if self.is_open(fd)}
                return {one for one in mine if one.startswith("socket:")}

            def child() -> None:
                before = sockets()
                np.testing.assert_array_equal(run.read_one("a").rows, ROWS)
                run.append("b", ROWS)
                run.flush(30)
                assert sockets() > before
                assert client.metrics()["transport"] == "unix", client.metrics()

            self.assertEqual(in_child(child), 0)
            for name in ("a", "b"):
                np.testing.assert_array_equal(run.read_one(name).rows, ROWS)
            self.assertEqual(client.metrics()["transport"], "unix")

    @staticmethod
    def is_open(fd: str) -> bool:
        return Path(f"/proc/self/fd/{fd}").is_symlink()


if __name__ == "__main__":
    unittest.main()
