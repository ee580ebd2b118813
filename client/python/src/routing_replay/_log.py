"""Lines of the library for people: to the logger "routing_replay"."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from routing_replay import _native
from routing_replay.errors import RoutingReplayError

_log = logging.getLogger("routing_replay")
_Texts: Any = _native.list_of(_native.Text)
_thread: threading.Thread | None = None
_lock = threading.Lock()


def start() -> None:
    """A thread that passes them on."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_pass_on, name="routing-replay-log", daemon=True)
            _thread.start()


def _pass_on() -> None:
    def read(said: Any) -> list[str]:
        return [str(line) for line in said.data[: said.count]]

    while True:
        try:
            for line in _native.operation(_native.lib.rr_log, (), _Texts, read, timeout=1e9).here():
                _log.warning("%s", line)
        except RoutingReplayError:  # A fork, or nothing for a day.
            time.sleep(1)


def _after_fork_in_child() -> None:
    global _thread, _lock
    _lock = threading.Lock()
    if _thread is not None:
        _thread = None
        start()


os.register_at_fork(after_in_child=_after_fork_in_child)
