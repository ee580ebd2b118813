"""The disturbances of a history, one after the other. The seed determines their kinds and order."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import clients
import numpy as np
import routing_replay as rr
import rows
from processes import Proxy, Redis, RedisCluster, Security, Server, Shim, Workers
from routing_replay.errors import RoutingReplayError

MIB = 1 << 20
KEPT_ON_DISK = 128 << 10  # Bytes that stay free when the disk is filled.


@dataclass
class Scene:
    """What can be disturbed. A field is None or empty if this history has no such process."""

    store: str
    budget: int
    log: clients.Log
    server: Server
    proxy: Proxy
    workers: Workers
    security: Security
    shim: Shim
    disk: Path | None = None  # A small disk for the server alone.
    redis: Redis | None = None
    cluster: RedisCluster | None = None
    transports: int = 1


class Nemesis:
    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.done: Counter[str] = Counter()
        self._choice = random.Random(rows.number(seed, "nemesis"))
        self._actions = self._possible()

    def _possible(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Returns each action by name: how often it comes, relative to the others, and its function."""
        scene = self.scene
        volatile = scene.store in ("memory", "spill")
        actions: dict[str, tuple[int, Callable[[], None]]] = {
            "kill server": (1 if volatile else 3, self._kill_server),
            "restart server": (1, self._restart_server),
            "stop server": (4, self._stop_server),
            "kill worker": (2, self._kill_worker),
            "stop worker": (4, self._stop_worker),
            "flood": (3, self._flood),
            "cut": (8, self._cut),
            "delay": (4, self._delay),
            "throttle": (4, self._throttle),
            "descriptors": (3, self._descriptors),
            "budget": (3 if scene.store == "spill" else 1, self._budget),
            "token": (3, self._token),
            "token taken back": (1, self._token_taken_back),
        }
        if scene.security.tls:
            actions |= {"certificate": (2, self._certificate)}
        if scene.shim.works:
            actions |= {"clock": (2, self._clock)}
            if scene.store == "rocksdb":
                actions |= {"slow fsync": (3, self._slow_fsync)}
        if scene.disk is not None:
            actions |= {"full disk": (2, self._full_disk)}
        if scene.transports > 1:
            actions |= {"switch transport": (3, self._switch_transport)}
        if scene.redis is not None:
            actions |= {"kill redis": (2, self._kill_redis), "stop redis": (2, self._stop_redis)}
        if scene.cluster is not None:
            actions |= {"kill master": (2, self._kill_master), "stop master": (2, self._stop_master)}
            actions |= {"reshard": (4, self._reshard)}
        return actions

    def act(self) -> None:
        name = self._choice.choices(list(self._actions), [weight for weight, _ in self._actions.values()])[0]
        self.scene.log.write(action=name)
        self._actions[name][1]()
        self.done[name] += 1

    def rest(self) -> None:
        self._sleep(0.02, 0.25)

    def _sleep(self, least: float, most: float) -> None:
        time.sleep(self._choice.uniform(least, most))

    @contextlib.contextmanager
    def _losing(self, loss: str | None) -> Iterator[None]:
        """Logs the span of time in which an action may lose acknowledged changes, as the store's table permits."""
        begin = time.monotonic()
        try:
            yield
        finally:
            if loss is not None:
                self.scene.log.write(loss=loss, **{"from": begin})

    # The server.

    def _server_loses(self) -> str | None:
        return "all" if self.scene.store in ("memory", "spill") else None

    def _end_server(self, number: int) -> None:
        server = self.scene.server
        with server.starting, self._losing(self._server_loses()):
            server.stop(number)
            self._sleep(0, 0.4)
            server.start()

    def _kill_server(self) -> None:
        self._end_server(signal.SIGKILL)

    def _restart_server(self) -> None:
        self._end_server(signal.SIGTERM)

    def _stop_server(self) -> None:
        with self._stopped(self.scene.server.process.pid):
            self._sleep(0.05, 1.0)

    @contextlib.contextmanager
    def _stopped(self, process: int) -> Iterator[None]:
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def _descriptors(self) -> None:
        process = self.scene.server.process.pid
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{process}/fd"))
        resource.prlimit(process, resource.RLIMIT_NOFILE, (used + self._choice.randint(0, 2), limits[1]))
        try:
            self.scene.proxy.cut()
            self._sleep(0.1, 0.6)
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, limits)

    def _clock(self) -> None:
        """Sets the server's clock to another time and back. The timers of gRPC then wait as long as the clock was set
        back."""
        seconds = self._choice.choice((-3600, -60, -1, 1, 60, 3600))
        self.scene.log.write(clock=seconds)
        self.scene.shim.set(0, seconds)
        self._sleep(0.1, 0.6)
        self.scene.shim.set(0, 0)

    def _slow_fsync(self) -> None:
        self.scene.shim.set(self._choice.randint(1_000, 200_000), 0)
        self._sleep(0.2, 1.0)
        self.scene.shim.set(0, 0)

    # Disk and memory.

    def _full_disk(self) -> None:
        """Fills the disk to its last bytes with another file."""
        others = self.scene.disk / "of-others"
        try:
            # The allocation fails if the server has used the space meanwhile.
            with contextlib.suppress(OSError), open(others, "wb") as file:
                left = os.statvfs(others)
                os.posix_fallocate(file.fileno(), 0, max(1, left.f_bavail * left.f_frsize - KEPT_ON_DISK))
            self._sleep(0.2, 1.0)
        finally:
            others.unlink(missing_ok=True)

    def _budget(self) -> None:
        """Appends to a run of its own until the budget is full, then drops the run."""
        geometry = rr.Geometry(num_layers=32, num_experts=rows.EXPERTS, top_k=8)
        ids = np.tile(np.arange(8, dtype=np.uint8), (16384, 32, 1)) + np.arange(32, dtype=np.uint8)[:, None]
        scene = self.scene
        call = scene.log.call("budget", run="budget")
        try:
            with rr.Client(scene.server.endpoint, call_timeout=2, **scene.security.client) as client:
                run = client.run("budget", geometry)
                try:
                    for i in range(2 * scene.budget // ids.nbytes):
                        run.put(str(i), ids, seal=True)
                finally:
                    scene.log.write(spilled=client.server_info().spilled_bytes)
                    run.drop()
        except RoutingReplayError as error:
            scene.log.failed(call, error)
            return
        scene.log.write(of=call, code="OK")

    def _certificate(self) -> None:
        self.scene.security.new_certificate()

    def _token(self) -> None:
        self.scene.security.new_token()

    def _token_taken_back(self) -> None:
        """Replaces tokens or certificates while calls are in flight."""
        self.scene.security.new_token(kept=0)

    # The workers.

    def _worker(self) -> int:
        return self._choice.randrange(len(self.scene.workers.processes))

    def _kill_worker(self) -> None:
        self.scene.workers.again(self._worker(), signal.SIGKILL)

    def _stop_worker(self) -> None:
        with self._stopped(self.scene.workers.processes[self._worker()].pid):
            self._sleep(0.05, 0.6)

    def _switch_transport(self) -> None:
        self.scene.workers.again(self._worker(), signal.SIGKILL, self._choice.randint(1, self.scene.transports - 1))

    # The connections.

    def _flood(self) -> None:
        """Connects from another address of this machine; some connections send the beginning of HTTP/2, some random
        bytes."""
        host, port = self.scene.server.endpoint.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            for i in range(200):
                with contextlib.suppress(OSError):
                    one = socket.create_connection((host, int(port)), 1, ("127.0.0.2", 0))
                    stack.enter_context(one)
                    one.sendall((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\xff\xff" * 20)[i % 3])
            self._sleep(0.05, 0.3)

    def _cut(self) -> None:
        self.scene.proxy.cut()

    def _delay(self) -> None:
        self.scene.proxy.delay = self._choice.uniform(0.001, 0.05)
        self._sleep(0.2, 0.8)
        self.scene.proxy.delay = 0

    def _throttle(self) -> None:
        self.scene.proxy.rate = self._choice.choice((4 << 10, 32 << 10, 256 << 10))
        self._sleep(0.2, 0.8)
        self.scene.proxy.rate = 0

    # Redis.

    def _kill_redis(self) -> None:
        with self._losing("tail"):
            self.scene.redis.kill()
            self._sleep(0, 0.5)
            self.scene.redis.start()

    def _stop_redis(self) -> None:
        with self._stopped(self.scene.redis.process.pid):
            self._sleep(0.05, 1.0)

    def _kill_master(self) -> None:
        cluster = self.scene.cluster
        number = self._choice.choice(cluster.masters())
        with self._losing("tail"):
            cluster.nodes[number].kill()
            # After a random time the killed master starts again, before or after its replica has taken over.
            self._sleep(0, 4)
            cluster.nodes[number].start()
            cluster.await_whole()

    def _stop_master(self) -> None:
        cluster = self.scene.cluster
        number = self._choice.choice(cluster.masters())
        with self._losing("tail"):
            with self._stopped(cluster.nodes[number].process.pid):
                self._sleep(0.2, 4)
            cluster.await_whole()

    def _reshard(self) -> None:
        self.scene.cluster.move_slot(self._choice.randrange(RedisCluster.SLOTS), self._choice)
