"""Shared by the tests: a server process and random valid routes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

SERVER = os.environ["ROUTING_REPLAY_SERVER"]


_reserved: list[socket.socket] = []


def reserve_address() -> str:
    """Reserves a port of the loopback interface until this process ends. The port stays reserved after its server was
    killed, so that a client that retries finds no server there, and not the server of another test. The socket that
    reserves the port never listens; its two options let the server bind the same port."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    return f"127.0.0.1:{reserved.getsockname()[1]}"


class Server:
    """A routing-replay-server on a free port of the loopback interface."""

    def __init__(self, *flags: str, listen: str | None = None) -> None:
        listen = listen or reserve_address()
        self._directory = tempfile.TemporaryDirectory()
        file = Path(self._directory.name, "endpoint")
        self.process = subprocess.Popen(
            [SERVER, "--listen", listen, "--endpoint-file", str(file), *flags], stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: exit status {self.process.poll()}")
            time.sleep(0.01)
        self.endpoint = file.read_text().strip()

    def pause(self) -> None:
        """Stops the server until SIGCONT. Returns only when all of its threads have stopped, because SIGSTOP may take
        effect some time after it was sent."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._directory.cleanup()


class Gate:
    """A proxy before a server. While it is shut, the server cannot be reached, but keeps its content. It accepts
    connections at once, and forwards their bytes after `delay` seconds."""

    def __init__(self, server: Server, delay: float = 0) -> None:
        self._delay = delay
        host, port = server.endpoint.rsplit(":", 1)
        self._server = host, int(port)
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.endpoint = reserve_address()  # No other process gets its port while it is shut.
        own, port = self.endpoint.rsplit(":", 1)
        self._address = own, int(port)
        self.open()

    def open(self) -> None:
        self._listener = socket.create_server(self._address, reuse_port=False)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            for source, sink in ((client, server), (server, client)):
                with self._lock:
                    self._open.add(source)
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        time.sleep(self._delay)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


class ServerTest(unittest.TestCase):
    """One server for all tests of a class."""

    flags: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(*cls.flags)
        cls.addClassCleanup(cls.server.stop)

    @property
    def run_name(self) -> str:
        return self.id().rsplit(".", 1)[-1]


def random_routes(rng: np.random.Generator, rows: int, layers: int, experts: int, top_k: int) -> np.ndarray:
    """ids [rows, layers, top_k], int32; those of one row and layer are distinct."""
    scores = rng.random((rows, layers, experts))
    return scores.argpartition(top_k - 1, axis=2)[:, :, :top_k].astype(np.int32)
