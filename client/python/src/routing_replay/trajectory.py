"""A sample that grows turn by turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from ctypes import byref, c_int64
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from numpy.typing import ArrayLike

from routing_replay import _calls, _convert, _native, _values
from routing_replay._calls import Operation, blocking
from routing_replay._convert import taking
from routing_replay._native import lib
from routing_replay.types import RecordedRows, RowRange, Rows, WeightSpan

if TYPE_CHECKING:
    from routing_replay.appender import AppenderCalls

T = TypeVar("T")
OutcomeOfTurn = Literal["finished", "aborted", "preempted"]
Missing = Literal["raise", "unrecorded"]
Existing = Literal["none", "resume", "replace"]

_MISSING = {"raise": False, "unrecorded": True}


@dataclass(frozen=True)
class Turn:
    """The result of a turn.

    num_tokens: length of the history after this turn
    appended: absolute rows that were queued, one range per append
    unrecorded_rows: how many of these rows have no route
    retokenised_at: first position of the history at which the turn has another token or none; None if there is none
    truncated_rows: rows that were removed because of this difference
    repeated_rows: rows of the turn that existed already; the existing rows stay. Of the repeated rows, conflicting_rows
        have other ids than the existing ones, late_rows exist as unrecorded rows, and uncompared_rows could not be
        compared, because another writer sent the existing ones
    shared_rows: rows that a fork takes from its parent
    surplus_rows: rows of the last token, which were left out
    dropped_rows: rows for which the queue had no room; they become unrecorded
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


@dataclass(slots=True)
class NewTurn:
    """One answer of the engine, as an argument of `add`.

    rows: ids [rows, layers, K], a Payload, the result of an adapter of routing_replay.engines, or None: no rows
    tokens: token ids of the whole context, prompt and answer. None: the tokens of `rows`, if it is RecordedRows with
        tokens; otherwise the history does not change
    tokens_start: the position of the first of `tokens`, if the ids before it, which the history has, are left out
    start: absolute row of the first row (default 0)
    take, layers: see Append. If `rows` is RecordedRows, do not give start, take or layers: it states them
    outcome: "finished", "aborted" or "preempted". Only a finished turn must have a row for each token except the last.
        A row for the last token is left out
    weight_version, weight_label: version of the weights that routed these rows; if there are several versions, give
        `weights` (WeightSpans of absolute rows) instead. A weight_version replaces the versions that the engine
        reported; a weight_label alone is used for rows without a version
    missing: "unrecorded" declares that nobody has the missing rows (before `rows`, or before the seal), so that they
        become unrecorded. An adapter with absent="unrecorded" that found no rows does the same
    seal: no more turns will come
    """

    rows: Rows | RecordedRows | None = None
    _: KW_ONLY
    tokens: ArrayLike | None = None
    tokens_start: int = 0
    start: int | None = None
    take: RowRange | None = None
    layers: str | Sequence[int] | None = None
    outcome: OutcomeOfTurn = "finished"
    weight_version: int | None = None
    weight_label: str = ""
    weights: Sequence[WeightSpan] | None = None
    missing: Missing = "raise"
    seal: bool = False


class TrajectoryCalls:
    """What the blocking Trajectory and the asyncio Trajectory have in common."""

    def __init__(self, appender: Any, sample: str, native: _native.Handle) -> None:
        self._appender: AppenderCalls = appender
        self.sample = sample
        self._native = native

    def _turn(self, made: _native.Turn, kept: Any) -> Operation[Turn]:
        arguments = self._native.pointer, byref(made)
        kept = self._native, kept
        read = functools.partial(_convert.value, Turn)
        return _calls.operation(lib.rr_trajectory_add, arguments, _native.TurnResult, read, kept=kept)

    def next_row(self, tokens: ArrayLike) -> int:
        """Returns the first row that the engine must return for a request with these tokens; earlier rows exist."""
        native, _array = _values.native_tokens(tokens, "tokens", self.sample)
        row = c_int64()
        _native.check(lib.rr_trajectory_next_row(self._native.pointer, byref(native), byref(row)))
        return row.value

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the history so far."""
        return self._described(lambda state: int(state.num_tokens))

    @property
    def rows(self) -> int:
        """The number of rows that are in the store or being sent, from row 0 on."""
        return self._described(lambda state: int(state.rows))

    @property
    def sealed(self) -> bool:
        return self._described(lambda state: bool(state.sealed))

    def _described(self, read: Callable[[Any], T]) -> T:
        return _native.give(lib.rr_trajectory_describe, _native.TrajectoryState, read, self._native.pointer)

    def __repr__(self) -> str:
        return f"<Trajectory {self.sample}: {self.num_tokens} tokens, {self.rows} rows>"


class Trajectory(TrajectoryCalls):
    """The rows of one sample over several turns, aborts and weight updates. Thread-safe. Made by `Run.trajectory`.

    client/README.md shows an agent of several turns under "From an engine".

    A history of T tokens has rows 0 … T - 2: the last token was never fed to the model. So the row of a turn's last
    token is the first one of the next turn, and nothing is ever overwritten.

    - Token ids decide what is new. The tokens of a turn are compared with the history. Rows before the first token that
      differs stay; later rows are removed from the server (`Turn.truncated_rows`), and the turn must bring them again.
    - The first route of a row stays. Repeated rows, perhaps under newer weights, are compared and not sent. Differences
      are counted (`Turn.conflicting_rows`); in a strict run they raise AlreadyExistsError (CONFLICTING_ROWS).
    - Rows that a turn lacks (aborted, preempted, not recorded) may come with the next turn. A turn after a gap raises
      FailedPreconditionError (GAP), unless `missing="unrecorded"` says that nobody has these rows.
    - Every call may be repeated: rows that are stored are not sent again.

    `add` queues rows and returns, like `Run.append`; the appender retries if the service fails. `add` waits for the
    server, and raises its errors, only to remove rows or to ask for the sample's state (after a failed append or a
    cancelled turn, and in the first turn with existing="resume" or "replace").
    """

    @blocking
    @taking(NewTurn)
    def add(self, turn: NewTurn) -> Operation[Turn]:
        """Adds one answer of the engine. The parameters are the fields of `NewTurn`.

        After an error nothing has changed, except that rows may have been removed (those that `Turn.truncated_rows`
        would count). InvalidArgumentError (ROW_COUNT) if the number of rows does not fit the tokens, and for a wrong
        shape, dtype or id; FailedPreconditionError for a gap (the error's `row` is the first missing one), a seal
        before all rows, or tokens after the seal; AlreadyExistsError for a sample with other tokens and, in a strict
        run, for conflicting rows. With asyncio, do not change `rows` before this returns. A turn that was cancelled may
        have been queued in part; the next turn then first asks the server which rows it has.
        """
        sample = self.sample
        if isinstance(turn.rows, RecordedRows):
            _convert.reject_given(turn, ("start", "take", "layers"), "", sample)
            recorded = turn.rows
        else:
            recorded = RecordedRows(turn.rows, 0 if turn.start is None else turn.start, turn.take, turn.layers)
        start = _values.integer(recorded.row_start, "start", sample=sample)
        weights = turn.weights
        if weights is None:
            weights = recorded.weights if recorded.rows is not None and turn.weight_version is None else ()
        missing_rows = _values.integer(recorded.missing_rows, "missing_rows", sample=sample)
        # An adapter with absent="unrecorded" has declared these rows unrecorded.
        declared = recorded.rows is None and missing_rows > 0
        made = _native.Turn(
            row_start=start,
            missing_rows=missing_rows,
            outcome=_values.native_text(turn.outcome, "outcome", sample),
            weight_version=_values.optional(turn.weight_version, "weight_version", sample=sample),
            weight_label=_values.native_text(turn.weight_label, "weight_label", sample),
            missing_is_unrecorded=_values.choice(turn.missing, "missing", _MISSING) or declared,
            seal=bool(turn.seal),
            engine=_values.native_text(recorded.engine, "engine", sample),
        )
        made.weights, made.weights_count = _convert.spans(weights, "weights", sample)
        tokens = recorded.tokens if turn.tokens is None else turn.tokens
        kept: list[Any] = []
        if tokens is not None:
            made.tokens_start = _values.integer(turn.tokens_start, "tokens_start", sample=sample)
            made.tokens, array = _values.native_tokens(tokens, "tokens", sample)
            kept.append(array)
        if recorded.rows is not None:
            made.rows, payload = _convert.tensor(recorded.rows, recorded.layers, sample, recorded.take)
            kept.append(payload)
        return self._turn(made, kept)

    @blocking
    def seal(self, num_tokens: int | None = None, *, missing: Missing = "raise") -> Operation[Turn]:
        """Declares that no more turns will come. With num_tokens the sample is first cut to this length."""
        made = _native.Turn(
            cut=_values.optional(num_tokens, "num_tokens", sample=self.sample),
            missing_is_unrecorded=_values.choice(missing, "missing", _MISSING),
            outcome=_native.text("finished"),
            seal=True,
        )
        return self._turn(made, None)

    @blocking
    def fork(self, sample: str, *, wait: float = 1.0) -> Operation[Trajectory]:
        """Makes a trajectory of a new sample that begins like this one, for example for other answers to a prompt or
        branches of a tree.

        Its first turn must have the whole context. Rows before the first token or route that differs are not sent; the
        new sample refers to the rows of this one. (Equal tokens may have other routes, because they were routed again.)
        Only acknowledged rows can be shared: the call waits for them for at most `wait` seconds.
        """
        arguments = self._native.pointer, _values.native_text(sample, "sample")
        seconds = _values.seconds(wait, "wait")
        forking = _calls.making(lib.rr_trajectory_fork, arguments, seconds, self._native)
        return forking.then(lambda native: type(self)(self._appender, sample, native))
