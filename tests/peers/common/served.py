"""Starts an engine's server in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from common.support import ROOT

sys.path.insert(0, str(ROOT / "client/python/tests"))
from support import reserve_address

PATIENCE = 600  # Seconds until the server must answer; it takes one minute on two cores.


@contextlib.contextmanager
def served(module: str, settings: dict[str, Any], environment: dict[str, str] | None = None) -> Iterator[str]:
    """Runs `python3 -m module` with the settings, a host and a port. Returns the URL when its /health answers."""
    address = reserve_address()
    words = [sys.executable, "-m", module]
    for name, value in (settings | {"host": "127.0.0.1", "port": address.split(":")[1]}).items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    with tempfile.TemporaryFile("w+") as log:
        around = os.environ | (environment or {})
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=around)
        try:
            deadline = time.monotonic() + PATIENCE
            while not _is_there(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"no server: exit status {process.poll()}\n{log.read()[-5000:]}")
                time.sleep(0.5)
            yield f"http://{address}"
        finally:
            _end(process)


def _is_there(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"http://{address}/health", timeout=5).status == 200
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # Kills the processes of the server that are still there.
    process.wait()


def post(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return reply.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read()[:500]!r}") from error
