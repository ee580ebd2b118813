"""The processes of a history: the server, a proxy before it, the workers, and Redis."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "client/python/tests"))
from support import reserve_address  # noqa: E402

PATIENCE = 120.0


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {patience} s: {what}")
        time.sleep(0.01)


def replace(path: Path, text: str) -> None:
    """Replaces the file atomically."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


class Shim:
    """The library of shim.c for LD_PRELOAD, or None if it cannot be compiled."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "shim.so"
        self._file = directory / "shim"
        self.set(0, 0)
        compiler = shutil.which("cc")
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(self.library), str(HERE / "shim.c"), "-ldl"]
        self.works = compiler is not None and subprocess.run(command, check=False).returncode == 0
        self.environment = (
            {"LD_PRELOAD": str(self.library), "CHAOS_SHIM": str(self._file)} if self.works else dict[str, str]()
        )

    def set(self, microseconds: int, clock: int) -> None:
        with open(self._file, "r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("<qq", microseconds, clock))


class Security:
    """Writes tokens; and certificates of a new authority, if `tls` is set and the openssl program exists."""

    def __init__(self, directory: Path, tls: bool) -> None:
        self._directory = directory
        self.tls = tls and shutil.which("openssl") is not None
        self._tokens: list[str] = []
        self.new_token()
        self.flags = ["--token-file", str(directory / "tokens.json")]
        self.client = {"token_file": str(directory / "token")}
        if not self.tls:
            return
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", "ca.crt", "-days", "2", "-subj", "/CN=history")
        self.new_certificate()
        self.flags += ["--tls-cert", str(directory / "server.crt"), "--tls-key", str(directory / "server.key")]
        self.client["cacert"] = str(directory / "ca.crt")

    def _openssl(self, *words: str) -> None:
        command = ["openssl", *words]
        subprocess.run(command, cwd=self._directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _new_key(self, name: str) -> list[str]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]

    def new_certificate(self) -> None:
        (self._directory / "extensions").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,IP:{Proxy.HOST}\n")
        self._openssl("req", "-new", *self._new_key("next"), "-out", "next.csr", "-subj", "/CN=server")
        self._openssl(
            *("x509", "-req", "-in", "next.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1"),
            *("-extfile", "extensions", "-out", "next.crt"),
        )
        for suffix in ("key", "crt"):
            (self._directory / f"next.{suffix}").rename(self._directory / f"server.{suffix}")

    def new_token(self, kept: int = 1) -> None:
        """Makes workers use a new token; the last `kept` ones before it stay valid."""
        self._tokens = [*self._tokens, os.urandom(16).hex()][-1 - kept :]
        hashed = [hashlib.sha256(token.encode()).hexdigest() for token in self._tokens]
        entries = [{"name": "w", "sha256": each, "runs": [""], "scopes": ["put", "read", "admin"]} for each in hashed]
        replace(self._directory / "tokens.json", json.dumps(entries))
        replace(self._directory / "token", self._tokens[-1] + "\n")


class Server:
    def __init__(
        self, program: str, directory: Path, flags: list[str], environment: dict[str, str], direct: bool = False
    ) -> None:
        """direct: whether the server offers the direct path"""
        self._command = [program, *flags, "--endpoint-file", str(directory / "endpoint")]
        self._file, self._said = directory / "endpoint", directory / "server.log"
        self._environment = os.environ | environment
        self.addresses = [reserve_address() for _ in range(1 + direct)]  # Addresses for gRPC and for the direct path.
        self.endpoint = self.addresses[0]
        self._command += ["--listen", self.endpoint, "--direct-listen", self.addresses[1] if direct else "off"]
        self.starting = threading.Lock()  # Held while the server is stopped on purpose.
        self.start()

    def start(self) -> None:
        self._file.unlink(missing_ok=True)
        with open(self._said, "ab") as said:
            self.process = subprocess.Popen(self._command, env=self._environment, stderr=said)
        until(lambda: self._file.exists() or self.process.poll() is not None, "the server listens")
        if self.process.poll() is not None:
            raise RuntimeError(f"no server, see {self._said}")

    def stop(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)

    def status(self, name: str) -> int:
        """Returns the value of the line `name` of /proc/PID/status in bytes, or 0 if the process is gone."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) * 1024
        return 0


class Proxy:
    """A proxy that forwards connections to the server and can disturb them. It listens on the server's ports at another
    address of this machine, because clients look for the direct path at the address of the gRPC server."""

    HOST = "127.0.0.3"

    def __init__(self, targets: list[str]) -> None:
        self.delay = 0.0  # Delay before each piece, in seconds.
        self.rate = 0  # Limit in bytes per second and direction; 0: no limit.
        self._open: set[socket.socket] = set()
        self._cut: set[socket.socket] = set()
        self._lock = threading.Lock()
        for target in targets:
            host, port = target.rsplit(":", 1)
            listener = socket.create_server((self.HOST, int(port)), backlog=128)
            threading.Thread(target=self._accept, args=(listener, (host, int(port))), daemon=True).start()
        self.endpoint = f"{self.HOST}:{targets[0].rsplit(':', 1)[1]}"

    def cut(self) -> None:
        """Cuts every open connection when it next forwards data, in the middle of that data."""
        with self._lock:
            self._cut |= self._open

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096 if self.rate else 1 << 16):
                if source in self._cut:
                    sink.sendall(data[: random.randrange(len(data))])
                    sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                pause = self.delay + (len(data) / self.rate if self.rate else 0)
                if pause:
                    time.sleep(pause)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= {source, sink}
            self._cut -= {source, sink}


class Workers:
    """Processes that run clients.py."""

    def __init__(self, config: Path, count: int, transports: list[str]) -> None:
        self._config, self._transports = config, transports
        self._logs = Path(json.loads(config.read_text())["logs"])
        self._generations = [0] * count
        self._used = list(range(count))  # Index of each worker's transport, modulo the number of transports.
        self.processes = [self._start(number) for number in range(count)]

    def await_work(self) -> None:
        logs = [
            self._logs / f"worker-{number}.{generation}.jsonl" for number, generation in enumerate(self._generations)
        ]
        until(lambda: all(log.exists() for log in logs), "the workers work", 3 * PATIENCE)

    def _start(self, number: int, *more: str) -> subprocess.Popen[bytes]:
        transport = self._transports[self._used[number] % len(self._transports)]
        words = [str(self._config), str(number), str(self._generations[number]), transport, *more]
        with open(self._logs / "said", "ab") as said:
            return subprocess.Popen([sys.executable, str(HERE / "clients.py"), *words], stderr=said)

    def again(self, number: int, ending: int, transport: int = 0) -> None:
        """Ends a worker with the signal `ending` and starts its next generation, with the transport that is `transport`
        places further in the list (0: the same one)."""
        self.processes[number].send_signal(ending)
        self.processes[number].wait(2 * PATIENCE)
        self._generations[number] += 1
        self._used[number] += transport
        self.processes[number] = self._start(number)

    def finish(self) -> list[int]:
        """Stops the workers and runs one that reads all remaining samples. Returns their exit statuses."""
        self.await_work()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        ends = [process.wait(3 * PATIENCE) for process in self.processes]
        return [*ends, self._start(0, "audit").wait(10 * PATIENCE)]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Redis:
    """One redis-server that stores its data on disk."""

    # In Debian's redis-tools, the second name is the same program: its behaviour depends on the name.
    PROGRAMS = ("/usr/bin/redis-server", "/usr/bin/redis-check-rdb")

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir()
        program = directory / "redis-server"
        program.symlink_to(next(path for path in self.PROGRAMS if os.access(path, os.X_OK)))
        self.address = reserve_address()
        self.port = self.address.rsplit(":", 1)[1]
        self._command = ["/usr/bin/setpriv", "--pdeathsig", "KILL", str(program), "--bind", "127.0.0.1"]
        self._command += ["--port", self.port, "--dir", str(directory), "--logfile", str(directory / "log")]
        self._command += ["--save", "", "--appendonly", "yes", "--maxmemory", "64mb", *flags]
        self.start()

    @classmethod
    def there(cls) -> bool:
        return any(os.access(path, os.X_OK) for path in cls.PROGRAMS)

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(lambda: self.says("PING") == "PONG", "Redis answers")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, *words: object) -> Any:
        """Returns the reply: text, a number or a list. Raises RuntimeError for an error, OSError if Redis cannot be
        reached."""
        host, port = self.address.rsplit(":", 1)
        encoded = [str(word).encode() for word in words]
        request = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"*%d\r\n%s" % (len(encoded), request))
            with connection.makefile("rb") as file:
                return self._reply(file)

    def _reply(self, file: Any) -> Any:
        line = file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection ended")
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise RuntimeError(text)
        if kind == b"*":
            return [self._reply(file) for _ in range(int(text))]
        if kind == b"$":
            return None if text == "-1" else file.read(int(text) + 2)[:-2].decode()
        return int(text) if kind == b":" else text

    def says(self, *words: object) -> Any:
        """Like `ask`, but returns None if Redis cannot be reached or is not ready."""
        try:
            return self.ask(*words)
        except (OSError, RuntimeError):
            return None


class RedisCluster:
    """A cluster of three masters with a replica each."""

    MASTERS, SLOTS = 3, 16384
    FLAGS = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0")
    MORE = (
        "--cluster-require-full-coverage",
        "no",
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    )

    def __init__(self, directory: Path) -> None:
        self.nodes = []
        for i in range(2 * self.MASTERS):
            bus = reserve_address().rsplit(":", 1)[1]
            self.nodes.append(Redis(directory / f"redis-{i}", *self.FLAGS, *self.MORE, "--cluster-port", bus))
            self.nodes[i].ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i > 0:
                self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[i].port, bus)
        for i, master in enumerate(self.nodes[: self.MASTERS]):
            ends = [self.SLOTS * end // self.MASTERS for end in (i, i + 1)]
            master.ask("CLUSTER", "ADDSLOTSRANGE", ends[0], ends[1] - 1)
        until(lambda: self._all("CLUSTER", "INFO", has="cluster_known_nodes:6"), "the nodes meet")
        until(lambda: self._all("CLUSTER", "INFO", has="cluster_state:ok"), "the nodes agree")
        for i, replica in enumerate(self.nodes[self.MASTERS :]):
            replica.ask("CLUSTER", "REPLICATE", self.nodes[i].ask("CLUSTER", "MYID"))
        self.await_whole()

    @property
    def url(self) -> str:
        return "redis://" + ",".join(node.address for node in self.nodes)

    def _all(self, *words: str, has: str) -> bool:
        return all(has in (node.says(*words) or "") for node in self.nodes)

    def masters(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if "role:master" in (node.says("INFO", "replication") or "")]

    def await_whole(self) -> None:
        """Whether every master has a replica that has caught up, and all servers know it."""
        until(self._whole, "the cluster is whole", 3 * PATIENCE)

    def _whole(self) -> bool:
        infos = [node.says("INFO", "replication") or "" for node in self.nodes]
        followed = sum("role:master" in info and "state=online" in info for info in infos)
        following = sum("master_link_status:up" in info for info in infos)
        views = [node.says("CLUSTER", "NODES") or "fail" for node in self.nodes]
        same = all("fail" not in view and view.count("slave ") == self.MASTERS for view in views)
        return followed == following == self.MASTERS and same and self._all("CLUSTER", "INFO", has="cluster_state:ok")

    def move_slot(self, slot: int, choice: random.Random) -> None:
        """Moves one slot to another master while it is in use."""
        masters = self.masters()
        ids = {i: self.nodes[i].ask("CLUSTER", "MYID") for i in masters}
        owner = next(
            i for i in masters for begin, end, (_, port, *_), *_ in self.nodes[masters[0]].ask("CLUSTER", "SLOTS")
            if begin <= slot <= end and str(port) == self.nodes[i].port
        )  # fmt: skip
        to = choice.choice([i for i in masters if i != owner])
        self.nodes[to].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
        self.nodes[owner].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
        while keys := self.nodes[owner].ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.nodes[owner].ask("MIGRATE", "127.0.0.1", self.nodes[to].port, "", 0, 5000, "KEYS", *keys)
        for i in (to, owner, *masters):
            self.nodes[i].ask("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
