"""Whether a sample is in the store: what `Run.commit` waits for, and what it does where rows did not come."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from routing_replay import _values, errors
from routing_replay.errors import FailedPreconditionError, ResourceExhaustedError, RoutingReplayError
from routing_replay.types import Commit, token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from routing_replay._checkpoint import AnyRun, Steps
    from routing_replay.types import SampleState

_KEPT = 100_000  # Samples whose trouble is remembered.
_OF_ANOTHER = ("OLD_REVISION", "OTHER_TOKENS")  # Reasons that say that the rows there are not this trajectory's.

Key = tuple[str, int | None]  # Sample and attempt.
Ended = tuple[int, dict[str, Any] | None]  # Sequence number, and the error.


class Trouble(NamedTuple):
    """Why rows of a sample did not come. marked: the store was told, in the place of the rows."""

    error: RoutingReplayError
    marked: bool


def worse(one: Trouble | None, other: Trouble | None) -> Trouble | None:
    """The first one; but what was not marked goes before what was."""
    if one is None or other is None:
        return one or other
    return other if one.marked and not other.marked else one


class Troubles:
    """What went wrong with samples, each told until more of it is appended: a commit may be cancelled, or asked again.
    Not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[Key, Trouble] = {}
        self._told: set[Key] = set()

    def note(self, key: Key, error: RoutingReplayError, marked: bool) -> None:
        known = self._of.get(key)
        if known is None and len(self._of) >= _KEPT:
            self._forget(next(iter(self._of)))
        found = worse(known, Trouble(error, marked))
        assert found is not None
        self._of[key] = found
        self._told.discard(key)

    def tell(self, key: Key) -> Trouble | None:
        if key in self._of:
            self._told.add(key)
        return self._of.get(key)

    def appended(self, key: Key) -> None:
        if key in self._told:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._of[key]
        self._told.discard(key)


class Open:
    """The appends of an appender that have no outcome yet, by sample. Not thread-safe."""

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}
        self._counts: Counter[Key] = Counter()
        self._troubles = Troubles()
        self.tell = self._troubles.tell

    def queued(self, sequence: int, sample: str, attempt: int | None, dropped: bool) -> None:
        """dropped: only a mark of its rows was taken"""
        key = sample, attempt
        self._keys[sequence] = key
        self._counts[key] += 1
        self._troubles.appended(key)
        if dropped:
            why = ResourceExhaustedError(
                "the queue was full, and rows were dropped", reason="OVER_BUDGET", sample=sample
            )
            self._troubles.note(key, why, marked=True)

    @staticmethod
    def ended(records: list[dict[str, Any]]) -> list[Ended]:
        """Of outcomes as the core tells them: what `finished` takes."""
        return [(record["sequence"], record.get("error")) for record in records]

    def finished(self, appends: list[Ended]) -> None:
        for sequence, error in appends:
            key = self._keys.pop(sequence, None)
            if key is None:
                continue
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
            if error is not None:
                self._troubles.note(key, errors.from_detail(error), marked=False)

    def outdated(self, record: dict[str, Any]) -> bool:
        """Whether an append came too late, as a later attempt has replaced its own."""
        _, attempt = self._keys.get(record["sequence"], ("", None))
        error = record.get("error", {})
        # Of another field: the sample has no attempts, or was truncated, and rows are lost that nothing newer replaces.
        told = error.get("reason"), error.get("field")
        return attempt is not None and told == ("OLD_REVISION", "append.restart_nonce")

    def has(self, key: Key) -> bool:
        return key in self._counts


def commit(
    run: AnyRun, sample: str, num_tokens: int | None, tokens: ArrayLike | None, attempt: int | None, timeout: float
) -> Steps[Commit]:
    """See `Run.commit`."""
    sample = _values.text(sample, "sample")
    ids = None if tokens is None else token_ids(tokens, "tokens", sample)
    if num_tokens is None and ids is not None:
        num_tokens = ids.size
    if num_tokens is not None:
        num_tokens = _values.integer(num_tokens, "num_tokens", (1, _values.INT64[1]), sample)
    if ids is not None and ids.size not in (num_tokens, num_tokens - 1):
        raise _values.invalid("tokens", f"{ids.size} for num_tokens {num_tokens}", sample, "LENGTH")
    if attempt is not None:
        attempt = _values.integer(attempt, "attempt", _values.UINT32, sample)
    seconds = _values.seconds(timeout)
    trouble: Trouble | None = None
    state: SampleState | None = None
    try:
        trouble = yield run._settle_sample((sample, attempt), seconds)
        state = next(iter((yield run.stat_many([sample]))), None)
        if trouble is not None and trouble.error.reason in _OF_ANOTHER:
            return _told(sample, trouble, state)
        if attempt is None and (num_tokens is None or (ids is None and state is not None and state.sealed)):
            if state is not None and num_tokens not in (None, state.num_tokens):
                raise FailedPreconditionError(
                    f"the sample is sealed with {state.num_tokens} tokens, and not {num_tokens}",
                    reason="SEALED",
                    sample=sample,
                )
            return _told(sample, trouble, state)
        if state is None and num_tokens is None:
            return _told(sample, trouble, state)
        # Also where all is there: only so the server says whether that is of this attempt, and of these tokens.
        rows = 0 if state is None else state.committed_rows
        options = {"revision": state.revision} if attempt is None and state else {"attempt": attempt}
        try:
            missing = _missing(rows, num_tokens, ids)
            said = yield run.put(sample, None, **missing, **options)
        except FailedPreconditionError as error:
            if error.reason != "GAP" or num_tokens is None:
                raise
            missing = _missing(error.committed_rows or 0, num_tokens, ids)  # What is there is of an earlier attempt.
            said = yield run.put(sample, None, **missing, **options)
        if "unrecorded" in missing and trouble is None:
            why = FailedPreconditionError("rows had not come", reason="NOT_COMMITTED", sample=sample)
            trouble = Trouble(why, marked=True)
        sealed = num_tokens if num_tokens is not None else state and state.num_tokens
        status: Any = "committed" if trouble is None else "marked" if sealed or trouble.marked else "missing"
        return Commit(sample, status, said.committed_rows, sealed, trouble and trouble.error)
    except RoutingReplayError as error:
        rows = 0 if state is None else state.committed_rows
        return Commit(sample, "missing", rows, state and state.num_tokens, trouble.error if trouble else error)


def _missing(rows: int, num_tokens: int | None, ids: np.ndarray | None) -> dict[str, Any]:
    """Options of an append that says of all behind the first `rows` rows that it is unrecorded, and seals."""
    if num_tokens is None:
        return {"row_start": rows}
    begin, end = min(rows, num_tokens - 1), num_tokens - 1
    options: dict[str, Any] = {"row_start": begin, "num_tokens": num_tokens, "seal": True}
    if ids is not None and end:
        options["tokens"] = ids[:end]
    if begin < end:
        options["unrecorded"] = [(begin, end)]
    return options


def _told(sample: str, trouble: Trouble | None, state: SampleState | None) -> Commit:
    """Without a word to the store."""
    if state is None:
        error = (
            trouble.error
            if trouble
            else errors.NotFoundError(f"there is no sample {sample}", reason="NO_SAMPLE", sample=sample)
        )
        return Commit(sample, "missing", 0, None, error)
    if trouble is None:
        return Commit(sample, "committed", state.committed_rows, state.num_tokens, None)
    ours = trouble.error.reason not in _OF_ANOTHER
    marked = ours and (trouble.marked or state.sealed)
    return Commit(sample, "marked" if marked else "missing", state.committed_rows, state.num_tokens, trouble.error)


def attempt_of(options: Mapping[str, Any]) -> int | None:
    """Of the options of an append that was planned."""
    attempt = options.get("attempt")
    return None if attempt is None else operator.index(attempt)  # Tensors are no keys.
