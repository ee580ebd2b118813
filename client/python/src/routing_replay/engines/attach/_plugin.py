"""The common part of the plug-ins for the servers of engines: joins a run once it exists."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from routing_replay.client import Client
from routing_replay.engines import _forms
from routing_replay.engines.attach import _attachment

if TYPE_CHECKING:
    from routing_replay.engines.attach._attachment import Attachment, Collector, SampleName
_log = logging.getLogger("routing_replay")

VARIABLE = "ROUTING_REPLAY_RUN"  # The environment variable that names the run and so turns the plug-ins on.
RETRY_SECONDS = 2.0


class Joining:
    """Records the outputs of a server in a run that another process creates.

    `begin` starts a thread that joins the run. The thread retries every RETRY_SECONDS until the run exists and can be
    reached; no request waits for that. Outputs that end before the run is joined keep their rows, and are counted.

    attachment: None until the run is joined
    """

    def __init__(self, name: str, package: str, sample: SampleName, connect: Callable[[], Client] = Client) -> None:
        self.attachment: Attachment | None = None
        self._name = name
        self._package, self._sample = package, sample
        self._connect = connect
        self._begun = False
        self._passed = 0

    def metrics(self) -> dict[str, int]:
        """Flat counters: not_joined (outputs that finished before the run was joined), and those of the attachment."""
        return {"not_joined": self._passed, **({} if self.attachment is None else self.attachment.metrics())}

    def begin(self) -> None:
        """Starts joining the run, unless this was called before. Call it only in the thread of the server's loop."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._join, name="routing-replay-joining", daemon=True).start()

    async def take(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """As `Attachment.take_async`."""
        if self.attachment is not None:
            await self.attachment.take_async(outputs)
            return
        for collector, output in outputs:
            found, unreadable = _attachment.read(collector, output)
            self._passed += len(found) + unreadable

    def _join(self) -> None:
        client: Client | None = None
        warned: object = None
        while self.attachment is None:
            try:
                client = client or self._connect()
                run = client.run(self._name)
                attachment = _attachment.Attachment(run, _forms.engine_name(self._package), self._sample)
                level = logging.WARNING if self._passed else logging.INFO
                what = "attached to run %s; %d finished outputs were not recorded before"
                _log.log(level, what, self._name, self._passed)
                self.attachment = attachment
            except Exception as error:  # The engine also works without the run, so keep trying.
                kind = type(error), getattr(error, "reason", None)
                level = logging.DEBUG if kind == warned else logging.WARNING
                _log.log(level, "run %s cannot be joined yet, rows stay in the outputs: %s", self._name, error)
                warned = kind
                time.sleep(RETRY_SECONDS)
