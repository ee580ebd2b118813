"""A local server."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from routing_replay import _values

_PROGRAM = "routing-replay-server"
_PROGRAM_VARIABLE = "ROUTING_REPLAY_SERVER"
_ENDPOINT_VARIABLE = "ROUTING_REPLAY_ENDPOINT"
_TLS_VARIABLES = tuple(f"ROUTING_REPLAY_{name}" for name in ("TLS", "CACERT", "CERT", "KEY", "SERVER_NAME"))
_log = logging.getLogger("routing_replay")
_STOP_SECONDS = 20.0  # A server that has not stopped by then is killed. Longer than a server takes to drain.


@dataclass(frozen=True)
class LocalServer:
    """endpoint: the endpoint for a Client; pid: process id of the server"""

    endpoint: str
    pid: int


@contextmanager
def local_server(*flags: str, timeout: float = 30.0) -> Iterator[LocalServer]:
    """Starts a server on a free port of the loopback interface, and stops it at the end of the context.

    flags: command-line flags of routing-replay-server, for example "--memory-budget", "8GiB"
    timeout: seconds for the server to start

    Within the context the environment variable ROUTING_REPLAY_ENDPOINT names the server, so that `Client()` finds it in
    this process and in child processes. The environment variables for TLS are unset, unless the flags have
    --tls-cert. The server also ends when this process ends, for any reason. Its warnings and errors go to stderr.

    The program comes with the package routing-replay-server; the environment variable ROUTING_REPLAY_SERVER may name
    another one. Raises FileNotFoundError if there is no program, RuntimeError if the server ends at once, TimeoutError
    if it does not start in time, and InvalidArgumentError for a timeout that is not a number of seconds.
    """
    timeout = _values.seconds(timeout)
    with tempfile.TemporaryDirectory(prefix="routing-replay-") as directory:
        file = Path(directory, "endpoint")
        command = [_program(), "--listen", "127.0.0.1:0", "--endpoint-file", str(file), "--log-level", "warning"]
        command += ["--exit-with-pid", str(os.getpid()), *flags]
        # In its own session, because Ctrl-C must not stop it while this process may still have rows to append.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        # Without --tls-cert this server does not use TLS: the TLS variables in the environment are for another server.
        hidden = () if any(flag.partition("=")[0] == "--tls-cert" for flag in flags) else _TLS_VARIABLES
        names = (_ENDPOINT_VARIABLE, *hidden)
        before = {name: os.environ.get(name) for name in names}
        try:
            deadline = time.monotonic() + timeout
            while not file.exists():
                if process.poll() is not None:
                    why = f"exit status {process.returncode}; its last lines on stderr say why"
                    raise RuntimeError(f"{_PROGRAM} ended at once: {why}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{_PROGRAM} did not start within {timeout} s")
                time.sleep(0.005)
            server = LocalServer(file.read_text().strip(), process.pid)
            _set_environment({**dict.fromkeys(names), _ENDPOINT_VARIABLE: server.endpoint})
            yield server
        finally:
            _set_environment(before)
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode != 0:
                _log.warning("%s ended with exit status %d", _PROGRAM, process.returncode)


def _program() -> str:
    if _PROGRAM_VARIABLE in os.environ:
        return os.environ[_PROGRAM_VARIABLE]
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("routing_replay_server").program(_PROGRAM))
    found = shutil.which(_PROGRAM)
    if found is None:
        raise FileNotFoundError(f"no {_PROGRAM}: install the package routing-replay-server, or set {_PROGRAM_VARIABLE}")
    return found


def _set_environment(variables: dict[str, str | None]) -> None:
    """Sets environment variables; the value None unsets one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
