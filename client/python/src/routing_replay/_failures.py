"""Appends that failed, for the error of flush and for the log."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from typing import Any

from routing_replay import errors

_log = logging.getLogger("routing_replay")
_NAMED = 100_000  # Samples that an error names.
_REASONED = 100  # Failures whose reason it keeps.
_LINES, _PERIOD = 20, 10.0  # Lines of the log in so many seconds.


class Failures:
    """Those since the last flush. Not thread-safe."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._samples: dict[str, None] = {}
        self._first: list[tuple[str, errors.RoutingReplayError]] = []
        self._lines, self._since, self._rest = 0, 0.0, 0
        self.stale = 0  # So far, of attempts that a later one has replaced.
        self._some_stale = False

    def add(
        self, finished: list[dict[str, Any]], outdated: Callable[[dict[str, Any]], bool] = lambda record: False
    ) -> None:
        """Outcomes of appends, as the core tells them; those that are outdated are no failures."""
        for record in finished:
            if "error" in record and outdated(record):
                self.stale += 1
                self._some_stale = True
            elif "error" in record:
                error = errors.from_detail(record["error"])
                if self.keep(record["sample"], error):
                    self._warn(record["sample"], error)

    def keep(self, sample: str, error: errors.RoutingReplayError) -> bool:
        """Without a line in the log. False for a sample that is kept already."""
        if len(self._first) < _REASONED:
            self._first.append((sample, error))
        if sample in self._samples:
            return False
        if len(self._samples) < _NAMED:
            self._samples[sample] = None
        return True

    def of_flush(self, error: errors.RoutingReplayError | None) -> errors.RoutingReplayError | None:
        """As `attach`, of the core's error, which may be that of an append that is no failure."""
        if self._some_stale and error is not None:
            error = copy.copy(self._first[0][1]) if self._first else None
        self._some_stale = False
        self.attach(error)
        return error

    def attach(self, error: errors.RoutingReplayError | None) -> None:
        """To the error of a flush, which tells them once."""
        self._tell_rest()
        samples, self._samples = self._samples, {}
        first, self._first = self._first, []
        if error is not None:
            error.tell_failures(list(samples), first)

    def _warn(self, sample: str, error: errors.RoutingReplayError) -> None:
        now = time.monotonic()
        if now - self._since >= _PERIOD:
            self._tell_rest()
            self._since, self._lines = now, 0
        if self._lines == _LINES:
            self._rest += 1
            return
        self._lines += 1
        _log.warning("run %s: an append of sample %s failed: %s", self._run, sample, error)

    def _tell_rest(self) -> None:
        if self._rest:
            _log.warning("run %s: appends of %d more samples failed", self._run, self._rest)
        self._rest = 0
