"""A local server."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from routing_replay import _values

_PROGRAM = "routing-replay-server"
_PROGRAM_VARIABLE = "ROUTING_REPLAY_SERVER"
_ENDPOINT_VARIABLE = "ROUTING_REPLAY_ENDPOINT"
_TLS_VARIABLES = tuple(f"ROUTING_REPLAY_{name}" for name in ("TLS", "CACERT", "CERT", "KEY", "SERVER_NAME"))
_STDERR = 2
_LAST_LINES = 20
_END_SECONDS = 5.0
_STOP_SECONDS = 20.0  # More than the server takes to drain.


@dataclass(frozen=True)
class LocalServer:
    """endpoint: what a Client takes; pid: of the server's process"""

    endpoint: str
    pid: int


@contextmanager
def local_server(*flags: str, timeout: float = 30.0) -> Iterator[LocalServer]:
    """Starts a server on a free port of the loopback interface, and ends it with the context.

    flags: of routing-replay-server, for example "--memory-budget", "8GiB"
    timeout: seconds for the server to start

    Within the context the environment's ROUTING_REPLAY_ENDPOINT names the server, so that `Client()` finds it, here and
    in child processes; the environment's certificates are hidden, unless the flags have --tls-cert. The server also
    ends when this process ends, for any reason. Its warnings and errors go to the standard error stream.

    The program comes with the package routing-replay-server; the environment's ROUTING_REPLAY_SERVER names another one.
    Raises FileNotFoundError without it, RuntimeError with the server's last lines if it ends at once, TimeoutError,
    InvalidArgumentError for a timeout that is not a number of seconds.
    """
    timeout = _values.seconds(timeout)
    with tempfile.TemporaryDirectory(prefix="routing-replay-") as directory:
        file = Path(directory, "endpoint")
        command = [_program(), "--listen", "127.0.0.1:0", "--endpoint-file", str(file), "--log-level", "warning"]
        command += ["--exit-with-pid", str(os.getpid()), *flags]
        # Not of our process group: Ctrl-C is for this process, which may still have something to append.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        lines = _Lines(process)
        try:
            server = LocalServer(_endpoint(process, lines, file, timeout), process.pid)
            with _environment(_variables(server.endpoint, flags)):
                yield server
        finally:
            _stop(process)
            lines.end()


class _Lines:
    """A server's standard error stream: passed on to ours, and the last lines kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._stream = process.stderr
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._pass_on, name="routing-replay-local-server", daemon=True)
        self._thread.start()

    def end(self) -> str:
        """The last lines, once the server has ended."""
        self._thread.join(_END_SECONDS)  # A process that it started could hold the stream.
        return b"".join(self._last).decode(errors="replace").strip()

    def _pass_on(self) -> None:
        assert self._stream is not None
        with self._stream:
            for line in self._stream:
                self._last.append(line)
                with contextlib.suppress(OSError):
                    os.write(_STDERR, line)


def _program() -> str:
    named = os.environ.get(_PROGRAM_VARIABLE)
    if named is not None:
        return named
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("routing_replay_server").program(_PROGRAM))
    found = shutil.which(_PROGRAM)
    if found is None:
        raise FileNotFoundError(f"no {_PROGRAM}: install the package routing-replay-server, or set {_PROGRAM_VARIABLE}")
    return found


def _endpoint(process: subprocess.Popen[bytes], lines: _Lines, file: Path, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while not file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"{_PROGRAM} ended at once, exit status {process.returncode}: {lines.end()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_PROGRAM} did not start within {timeout} s")
        time.sleep(0.005)
    return file.read_text().strip()


def _variables(endpoint: str, flags: tuple[str, ...]) -> dict[str, str | None]:
    """The environment's certificates are those of another server."""
    encrypted = any(flag.partition("=")[0] == "--tls-cert" for flag in flags)
    return {_ENDPOINT_VARIABLE: endpoint, **({} if encrypted else dict.fromkeys(_TLS_VARIABLES))}


@contextmanager
def _environment(variables: dict[str, str | None]) -> Iterator[None]:
    """With these variables; None: unset."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
