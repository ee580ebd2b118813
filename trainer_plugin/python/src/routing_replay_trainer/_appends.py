"""Appends of one `RecordWriter.write`, each of which may fail by itself. No torch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from routing_replay_trainer import errors

LOG = logging.getLogger("routing_replay_trainer")
_NAMED = 8


class Appends:
    """run: routing_replay.Run, of which it has an appender of its own; who: would need one"""

    def __init__(self, run: Any, who: str) -> None:
        self._run = run
        self._who = who
        self._appender: Any = None
        self._queued: list[str] = []
        self._told: dict[str, Any] = {}  # Outcomes, from a thread of the appender.
        self.failures: list[Exception] = []
        self.written: list[str] = []  # In the order of the appends, once they are finished.

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """An exception in here is one of the failures."""
        try:
            yield
        except Exception as error:
            self.failures.append(error)

    def add(self, sample: str, rows: Any, **options: Any) -> None:
        if self._run is None:
            raise failed_precondition(f"{self._who} has no run")
        if self._appender is None:
            self._appender = self._run.appender(on_outcome=self._on_outcome)
        self._appender.append(sample, rows, **options)
        self._queued.append(sample)

    def finish(self, timeout: float) -> None:
        """Waits for all, and says which of them the service has."""
        if self._appender is None:
            return
        trouble: Exception | None = None
        try:
            self._appender.flush(max(0.0, timeout))
        except Exception as error:  # Of one append, which its outcome says too, or of all that have none.
            trouble = error
        finally:
            self._appender.close(0.0)
        failed = []
        for sample in self._queued:
            outcome = self._told.get(sample)
            failure = trouble if outcome is None else _failure(sample, outcome)
            if failure is None:
                self.written.append(sample)
            else:
                failed.append(sample)
                self.failures.append(failure)
        if len(failed) > 1:
            named = ", ".join(failed[:_NAMED]) + (", …" if len(failed) > _NAMED else "")
            LOG.warning("write: %d samples were not written: %s", len(failed), named)

    def _on_outcome(self, outcome: Any) -> None:
        self._told[outcome.sample] = outcome


def _failure(sample: str, outcome: Any) -> Exception | None:
    """Of an append that has ended."""
    if outcome.error is not None:
        return outcome.error
    others = outcome.conflicting_rows + outcome.late_rows
    if not others:
        return None
    return failed_precondition(
        f"sample {sample}: the service has {others} of its rows already, with other routes or none, and keeps those: "
        "give the samples of each rollout names of their own, or write with restart=",
        sample=sample,
        reason="CONFLICTING_ROWS",
    )


def failed_precondition(what: str, **detail: Any) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(f"write: {what}", code_name="FAILED_PRECONDITION", field="write", **detail)
