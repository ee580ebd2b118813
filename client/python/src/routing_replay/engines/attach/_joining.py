"""Joining a run while requests go on."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing_replay.client import Client
    from routing_replay.engines.attach._attachment import Attachment
    from routing_replay.run import Run

_log = logging.getLogger("routing_replay")

RETRY_SECONDS = 2.0


class Joining:
    """Joins a run in a thread of its own, again every RETRY_SECONDS until that run exists and can be reached.

    attachment: None until then
    """

    def __init__(self, name: str, new_client: Callable[[], Client], attach: Callable[[Run], Attachment]) -> None:
        self.attachment: Attachment | None = None
        self._name = name
        self._new_client = new_client
        self._attach = attach
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Returns at once. Idempotent. A thread that was lost in a fork is started anew."""
        with self._lock:
            if self.attachment is not None or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._work, name="routing-replay-joining", daemon=True)
            with contextlib.suppress(RuntimeError):  # The interpreter ends.
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        told: object = None
        while True:
            try:
                if self._client is None:
                    self._client = self._new_client()
                self.attachment = self._attach(self._client.run(self._name))
                return
            except Exception as error:  # The engine serves without, whatever it is.
                kind = type(error), getattr(error, "reason", None)
                level = logging.DEBUG if kind == told else logging.WARNING
                _log.log(level, "run %s cannot be joined yet, rows stay in the outputs: %s", self._name, error)
                told = kind
            time.sleep(RETRY_SECONDS)
