"""From a turn to the appends of its new rows: what a trajectory asks of its transport, sync and async alike."""

from __future__ import annotations

import collections
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from routing_replay import _append, _calls, _core, _values
from routing_replay.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    OutOfRangeError,
    UnavailableError,
)
from routing_replay.recorded import RecordedRows
from routing_replay.types import RowRange, SampleState, WeightSpan, token_ids, weight_spans

Outcome = Literal["finished", "aborted", "preempted"]
Missing = Literal["raise", "unrecorded"]
Existing = Literal["none", "resume", "replace"]

_OUTCOMES = {name: name for name in ("finished", "aborted", "preempted")}
_MISSING = {"raise": False, "unrecorded": True}
_EXISTING = {name: name for name in ("none", "resume", "replace")}
_TRUNCATE_ATTEMPTS = 3
# After these a truncation may have happened, or not.
_UNCERTAIN = (UnavailableError, DeadlineExceededError, FailedPreconditionError, OutOfRangeError)


@dataclass(frozen=True)
class Turn:
    """What came of a turn.

    num_tokens: of the history with it
    appended: absolute rows that are on their way now, one range per append
    unrecorded_rows: of them, rows without a route
    retokenised_at: first position at which the tokens differ from those that were told before (or end), or None
    truncated_rows: rows that were taken back for it
    repeated_rows: rows that were given before; of them, conflicting_rows had another route, late_rows none, and
        uncompared_rows were sent by another process. What was there first stays
    shared_rows: rows that are those of the parent
    surplus_rows: rows for the last token, left out
    dropped_rows: rows that the full queue did not take; they become unrecorded
    """

    num_tokens: int
    appended: tuple[RowRange, ...] = ()
    unrecorded_rows: int = 0
    retokenised_at: int | None = None
    truncated_rows: int = 0
    repeated_rows: int = 0
    conflicting_rows: int = 0
    late_rows: int = 0
    uncompared_rows: int = 0
    shared_rows: int = 0
    surplus_rows: int = 0
    dropped_rows: int = 0


# What the transport is asked to do. `yield` gives the answer, or raises what went wrong.


@dataclass(frozen=True)
class Settle:
    """Wait for the outcomes of all that was queued."""


@dataclass(frozen=True)
class Stat:
    """The states of the sample: one or none."""


@dataclass(frozen=True)
class Truncate:
    """The state after it."""

    rows: int
    expected_revision: int


@dataclass(frozen=True)
class Queue:
    """The sequence number, and whether only a mark of the append was taken."""

    plan: _core.Plan


Steps = Generator[Settle | Stat | Truncate | Queue, Any, Turn]


def advance(steps: Steps, answer: Any = None, error: BaseException | None = None) -> Any:
    """The next step after the answer to the one before, or the turn."""
    try:
        return steps.send(answer) if error is None else steps.throw(error)
    except StopIteration as end:
        return end.value


class Writer:
    """A trajectory without its I/O. Not thread-safe but for `note`."""

    def __init__(self, core: _core.Trajectory, run: _core.Run, sample: str) -> None:
        self.core = core
        self.sample = sample
        self.last_sequence = 0
        self._run = run
        self._outcomes: collections.deque[dict[str, Any]] = collections.deque()
        self._pid = os.getpid()

    def note(self, record: dict[str, Any]) -> None:
        """The outcome of an append; from any thread."""
        self._outcomes.append(record)

    def check(self) -> None:
        if self._pid != os.getpid():
            raise FailedPreconditionError("a trajectory stays in the process that made it", sample=self.sample)

    def drain(self) -> bool:
        """Tells the core of the outcomes so far. Whether an append failed."""
        failed = False
        while self._outcomes:
            record = self._outcomes.popleft()
            failed = failed or "error" in record
            self.core.on_outcome(record)
        return failed

    def steps(self, turn: dict[str, Any], tokens: Any = None, tensor: Any = None, payload: Any = None) -> Steps:
        self.check()
        self.drain()
        truncated, attempts = 0, 0
        while True:
            decision = self.core.turn(self._run, turn, tokens, tensor, payload)
            if decision["step"] == "append":
                return (yield from self._queue(decision, truncated))
            yield Settle()
            failed = self.drain()
            if decision["step"] == "ask":
                self.core.on_state(_calls.states_for_core((yield Stat())))
            elif not failed:
                before = self.core.state()["rows"]
                attempts += 1
                yield from self._truncate(Truncate(decision["truncate_rows"], decision["expected_revision"]), attempts)
                truncated += before - decision["truncate_rows"]

    def _truncate(self, step: Truncate, attempt: int) -> Generator[Truncate, SampleState, None]:
        try:
            state = yield step
        except BaseException as error:  # Also where nobody waits for it any more.
            self.core.on_truncate_failed()
            if attempt == _TRUNCATE_ATTEMPTS or not isinstance(error, _UNCERTAIN):
                raise
            return
        self.core.on_truncated(_calls.states_for_core([state]))

    def _queue(self, decision: dict[str, Any], truncated: int) -> Generator[Queue, tuple[int, bool], Turn]:
        dropped_rows = 0
        for begin, end in decision["appends"]:
            try:
                self.last_sequence, dropped = yield Queue(self.core.take_plan())
            except BaseException:
                self.core.on_outcome({"error": "it was not queued"})
                raise
            if dropped:
                self.core.on_dropped(begin, end)
                dropped_rows += end - begin
        return Turn(
            num_tokens=decision["num_tokens"],
            appended=tuple((begin, end) for begin, end in decision["appends"]),
            unrecorded_rows=decision["unrecorded_rows"],
            retokenised_at=decision.get("retokenised_at"),
            truncated_rows=truncated,
            repeated_rows=decision["repeated_rows"],
            conflicting_rows=decision["conflicting_rows"],
            late_rows=decision["late_rows"],
            uncompared_rows=decision["uncompared_rows"],
            shared_rows=decision["prefix_rows"],
            surplus_rows=decision["surplus_rows"],
            dropped_rows=dropped_rows,
        )

    # The turns.

    def add(
        self,
        rows: Any = None,
        *,
        tokens: Any = None,
        tokens_start: int = 0,
        start: int | None = None,
        take: RowRange | None = None,
        layers: str | Sequence[int] | None = None,
        outcome: Outcome = "finished",
        weight_version: int | None = None,
        weight_label: str | None = None,
        weights: Sequence[WeightSpan] | None = None,
        missing: Missing = "raise",
        seal: bool = False,
    ) -> Steps:
        sample = self.sample
        recorded = rows if isinstance(rows, RecordedRows) else RecordedRows(rows)
        start = _values.integer(recorded.row_start if start is None else start, "start", sample=sample)
        if weights is None:
            known = recorded.rows is not None and weight_version is None
            weights = recorded.weights_at(start, take) if known else ()
        missing_rows = _values.integer(recorded.missing_rows, "missing_rows", sample=sample)
        # An adapter that was told what no rows mean has declared them.
        declared = recorded.rows is None and missing_rows > 0
        turn: dict[str, Any] = {
            "outcome": _values.choice(outcome, "outcome", _OUTCOMES),
            "missing_is_unrecorded": _values.choice(missing, "missing", _MISSING) or declared,
            "seal": bool(seal),
            "row_start": start,
            "missing_rows": missing_rows,
            "weight_label": _values.text("" if weight_label is None else weight_label, "weight_label", sample),
            "weights": [_append.listed(span) for span in weight_spans(weights, "weights", sample)],
        }
        if recorded.engine:
            turn["engine"] = _values.text(recorded.engine, "engine", sample)
        if weight_version is not None:
            turn["weight_version"] = _values.integer(weight_version, "weight_version", sample=sample)
        tokens = recorded.tokens if tokens is None else tokens
        if tokens is not None:
            turn["tokens_start"] = _values.integer(tokens_start, "tokens_start", sample=sample)
            tokens = token_ids(tokens, "tokens", sample)
        if recorded.rows is None:
            return self.steps(turn, tokens)
        tensor, payload = _append.tensor_of(recorded.rows, recorded.layers if layers is None else layers, sample)
        take = recorded.take if take is None else take
        if take is not None:
            [tensor["take"]] = _values.row_ranges([take], "take", sample)
        return self.steps(turn, tokens, tensor, payload)

    def cut(self, num_tokens: int, seal: bool, missing: Missing) -> Steps:
        turn = {
            "cut": _values.integer(num_tokens, "num_tokens", sample=self.sample),
            "missing_is_unrecorded": _values.choice(missing, "missing", _MISSING),
            "seal": bool(seal),
        }
        return self.steps(turn)

    def seal(self, num_tokens: int | None, missing: Missing) -> Steps:
        if num_tokens is not None:
            return self.cut(num_tokens, True, missing)
        return self.steps({"seal": True, "missing_is_unrecorded": _values.choice(missing, "missing", _MISSING)})

    def next_row(self, tokens: Any) -> int:
        self.check()
        self.drain()
        return self.core.next_row(token_ids(tokens, "tokens", self.sample))

    def fork(self, sample: str) -> Writer:
        self.check()
        self.drain()
        return Writer(self.core.fork(_values.text(sample, "sample")), self._run, sample)

    def state(self) -> dict[str, Any]:
        self.drain()
        return self.core.state()


def new_writer(
    run: _core.Run,
    sample: str,
    *,
    existing: Existing = "none",
    strict: bool = False,
    group: int | None = None,
    engine: str = "",
) -> Writer:
    description: dict[str, Any] = {
        "sample": _values.text(sample, "sample"),
        "existing": _values.choice(existing, "existing", _EXISTING),
        "strict": strict,
        "engine": _values.text(engine, "engine", sample),
    }
    if group is not None:
        description["group"] = _values.integer(group, "group", sample=sample)
    return Writer(_core.Trajectory(description), run, sample)
