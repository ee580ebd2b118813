"""Runs routing-replay servers as actors of a Ray cluster: one per node, restarted if they end.

Copy this file beside your script, or put its folder into `py_modules`; it needs ray and the package
routing-replay-server on every node. See README.md.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NAMESPACE = "routing-replay"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0  # A server that has not ended by then is killed. Longer than a server takes to drain.
_WRONG_SETTING = 2  # The server's exit status if its settings are wrong, so that a restart would not help.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # Seconds before a restart; doubled while the server keeps ending.


class Supervisor:
    """A server as a child process. It is restarted whenever it ends, until `stop` is called."""

    def __init__(self, command: Sequence[str], address: str) -> None:
        """command: routing-replay-server and its flags; address: what clients use. Returns when the server listens."""
        self._directory = tempfile.TemporaryDirectory(prefix="routing-replay-")
        self._file = Path(self._directory.name, "endpoint")
        # The server also ends if this process is killed.
        own = ["--advertise", address, "--endpoint-file", str(self._file), "--exit-with-pid", str(os.getpid())]
        self._command = [*command, *own]
        self._stopped = threading.Event()
        self._starts = 0
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name="routing-replay-supervisor", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._file.exists():
            status = self._process.poll()
            # After any other status, _watch restarts the server: the port may still be in use by the draining server of
            # an actor that has just died.
            if status == _WRONG_SETTING or time.monotonic() > deadline:
                self.stop()
                how = f"after {_START_SECONDS:g} s" if status is None else f"exit status {status}"
                raise RuntimeError(f"{self._command[0]} does not listen, {how}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def starts(self) -> int:
        return self._starts

    def listens(self) -> bool:
        return self._process.poll() is None and self._file.exists()

    def stop(self) -> None:
        """Asks the server to drain and end."""
        self._stopped.set()
        self._thread.join()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        self._file.unlink(missing_ok=True)  # A server that was killed leaves its endpoint file.
        # In its own session, so that signals to Ray's worker process do not reach the server. --exit-with-pid ends it.
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            began = time.monotonic()
            while self._process.poll() is None:
                if self._stopped.wait(0.2):
                    return
            pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            if self._stopped.wait(pause):
                return
            self._process = self._start()


class _Server:
    """A Ray actor that runs one server."""

    def __init__(self, port: int, flags: Sequence[str]) -> None:
        host = ray.util.get_node_ip_address()
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._supervisor = Supervisor([_program(), "--listen", f"[::]:{port}", *flags], self._address)

    def address(self) -> str:
        return self._address

    def state(self) -> dict[str, int | bool]:
        """Returns whether the server listens, its pid, and how often this actor has started it."""
        supervisor = self._supervisor
        return {"listens": supervisor.listens(), "pid": supervisor.pid, "starts": supervisor.starts}

    def stop(self) -> None:
        self._supervisor.stop()


class _Directory:
    """The actor by whose name clients find the servers. It holds the handles of their actors."""

    def __init__(self, servers: Mapping[str, ray.actor.ActorHandle]) -> None:
        self._servers = dict(servers)

    def endpoint(self) -> str:
        # Sorted, so that every client gets the same list.
        members = sorted(self._servers)
        return members[0] if len(members) == 1 else "shard:" + ",".join(members)

    def servers(self) -> dict[str, ray.actor.ActorHandle]:
        return self._servers


def start(flags: Sequence[str], *, port: int = 7400, name: str = "routing-replay", num_cpus: float = 1) -> str:
    """Starts a server on every node that the cluster has now, and returns the endpoint for a Client. Nodes that never
    offer `num_cpus` CPUs, such as a head that only coordinates (num-cpus: "0"), get none.

    flags: of routing-replay-server, such as "--memory-budget", "64GiB". Servers are reached over the network: use TLS
        (--tls-cert, …), or --insecure if you trust the cluster's network as far as for Ray's own ports
    port: on which each server listens, also after a restart
    name: the name under which `endpoint` and `stop` find the servers, which outlive the job that started them

    A server that ends is restarted on its node and port. A store in memory is empty then, and its samples are counted
    as missing. Raises ValueError if there are servers with that name, RuntimeError if a server cannot be started or no
    node has the CPUs.
    """
    kept: dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1, "lifetime": "detached", "namespace": NAMESPACE}
    actor, directory = ray.remote(_Server), ray.remote(_Directory)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= num_cpus]
    if not nodes:
        raise RuntimeError(f"no node of the cluster has {num_cpus} CPUs for a server")
    handles = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        options = actor.options(**kept, num_cpus=num_cpus, scheduling_strategy=there, name=f"{name}/{node}")
        handles.append(options.remote(port, list(flags)))
    try:
        addresses = ray.get([handle.address.remote() for handle in handles])
    except ray.exceptions.RayError as error:
        for handle in handles:
            ray.kill(handle)
        raise RuntimeError(f"a server could not be started: {error}") from error
    held = dict(zip(addresses, handles, strict=True))
    return ray.get(directory.options(**kept, num_cpus=0, name=name).remote(held).endpoint.remote())


def endpoint(name: str = "routing-replay") -> str:
    """The endpoint for a Client, in any actor or task of any job of the cluster. Raises ValueError if no servers
    have this name."""
    return ray.get(ray.get_actor(name, namespace=NAMESPACE).endpoint.remote())


def stop(name: str = "routing-replay") -> None:
    """Ends the servers, and waits until they have drained."""
    directory = ray.get_actor(name, namespace=NAMESPACE)
    servers = ray.get(directory.servers.remote()).values()
    ray.get([server.stop.remote() for server in servers])
    for actor in (*servers, directory):
        ray.kill(actor)


def _program() -> str:
    named = os.environ.get("ROUTING_REPLAY_SERVER")
    if named is not None:
        return named
    import routing_replay_server

    return str(routing_replay_server.program("routing-replay-server"))
