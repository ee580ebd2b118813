"""Before a step: what the source has of its samples, what the ranks of the replica do with each, and what a fetch must
then find."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from routing_replay import errors

from routing_replay_trainer._values import invalid
from routing_replay_trainer.collective import (
    Collective,
    Decision,
    LocalGroup,
    SampleReport,
    StepDecision,
    agree,
    refuse,
)
from routing_replay_trainer.fetch import Batch, FetchSequence, Missing, Source
from routing_replay_trainer.on_policy import summarize

LOG = logging.getLogger("routing_replay_trainer")
_NAMED = 8  # Samples that an error names.
_ASKING = 0.75  # Share of the deadline.


@dataclass(frozen=True)
class BegunStep:
    """What `begin_step` decided, the same on all ranks of the replica.

    decisions: one per sample of the step that can have rows, in the order in which they were given first; of no token
        or one there is nothing to replay, and nothing is asked. Of a sample whose sequences contradict each other, by
        their lengths or tokens, one for each of what they say: what is not so recorded falls back alone
    replayed, fallen_back: decisions to replay, and others
    counts: decisions by status
    live, dropped: samples (ids or handles) of which a sequence routes live, and those that the caller is to leave out
        of the loss, by the policy; those that are dropped route live, too. What was said to be of no sample (None) is
        in neither
    weight_lag: how many weight versions the oldest replayed row is behind, where both are known
    """

    decisions: tuple[Decision, ...]
    replayed: int
    fallen_back: int
    counts: Mapping[str, int]
    live: tuple[str | int, ...]
    dropped: tuple[str | int, ...]
    weight_lag: int | None


class AgreedSteps:
    """The samples of one step at a time. Used by one thread.

    collective: of the ranks that must decide alike; without one this rank decides alone
    max_fallback_fraction: of a step's samples; FallbackLimitError if more fall back
    deadline: seconds that `begin` may take
    binds: a sample that the ranks agreed on must still be what it was, or the fetch fails. False: such a sample falls
        back as any other, of a replay that only compares
    """

    def __init__(
        self,
        source: Source,
        *,
        missing: Missing,
        collective: Collective | None = None,
        max_fallback_fraction: float = 0.05,
        deadline: float = 120.0,
        binds: bool = True,
    ) -> None:
        if not 0 <= max_fallback_fraction <= 1:
            raise invalid("max_fallback_fraction", f"{max_fallback_fraction} is not in 0 … 1")
        self._source = source
        self._missing: Missing = missing
        self._collective = LocalGroup(1)[0] if collective is None else collective
        self._limit = max_fallback_fraction
        self._deadline = deadline
        self._binds = binds
        self._decided: dict[str | int, list[tuple[FetchSequence, Decision]]] | None = None
        self.weights: list[dict[str, Any]] = []  # "sample" and "weights" of those that the step replays.
        self._comparable: dict[str | int, int] = {}  # Rows whose tokens are known, of samples that end without.
        self._rowless: set[str | int] = set()  # Samples of the step of which no rows are.
        self._warned: set[str] = set()  # Of what there is one warning.
        self._fetched: Counter[tuple[str | int, str, str]] = Counter()  # Where nothing was decided before.

    @property
    def required(self) -> bool:
        """Whether a fetch without an agreement could let this rank fall back alone."""
        return self._collective.size > 1 and self._missing != "strict"

    def begin(
        self, sequences: Sequence[FetchSequence], weight_version: int | None = None, geometry: int = 0
    ) -> BegunStep:
        """Of all ranks of the replica with the same samples in the same order, and of one geometry
        (`Plan.geometry_fingerprint`; 0 if not known). What is raised is raised on all of them, but for what is wrong
        with this rank's own arguments or source, which the others see as SOURCE_FAILED. A service that could not be
        reached is the cause (`__cause__`) of what is raised, and the first time a warning."""
        end = time.monotonic() + self._deadline
        self._decided, self._fetched, self.weights = None, Counter(), []
        self._comparable = {}
        named = [one for one in sequences if not one.live]
        if sequences and not named:
            self._warn_once("no sample", "begin_step: no sequence of this step is of a sample (all are None, or 0)")
        samples = _claims([one for one in named if one.num_tokens not in (0, 1)])
        records, failure = self._inspect(samples, _contradiction(named) if self._missing == "strict" else None)
        states = [SampleReport.of(one.sample, said) for one, said in zip(samples, records, strict=True)]
        told = {one.sample: said["message"] for one, said in zip(samples, records, strict=True) if _tells(said)}
        left = max(0.0, end - time.monotonic())
        with self._blaming(failure, told):
            decision = agree(
                self._collective, states, self._missing, left, geometry=geometry, failed=failure is not None
            )
            statuses = Counter((one.sample, one.status, one.action) for one in decision.samples)
            self._check_limit("begin_step", statuses)
            self._check_compares(statuses)
        self._decided, self._rowless = {}, {one.sample for one in named if one.num_tokens in (0, 1)}
        for one, decided in zip(samples, decision.samples, strict=True):
            self._decided.setdefault(one.sample, []).append((one, decided))
        self.weights = _weights(decision, records)
        return _begun(decision, summarize(self.weights, weight_version).lag)

    def stay_away(self, wrong: Exception) -> None:
        """Instead of `begin`, where this rank's arguments are wrong: the others are told, and need not wait for it."""
        self._decided, self._fetched, self.weights = None, Counter(), []
        if self._collective.size > 1:
            with contextlib.suppress(type(wrong), errors.RoutingReplayError):
                refuse(self._collective, self._deadline, wrong)

    @contextlib.contextmanager
    def _blaming(self, failure: Exception | None, told: Mapping[str | int, str]) -> Iterator[None]:
        """Around what the ranks decide: on a rank whose own asking failed, that is the cause of what is raised, or,
        where it is no matter of the connection, raised itself. What its source told of a sample is in the message."""
        unreachable = isinstance(failure, (ConnectionError, TimeoutError))
        if unreachable:
            self._warn_once("unreachable", f"begin_step could not ask the source: {failure}")
        try:
            yield
        except errors.RoutingReplayError as error:
            if failure is None or unreachable:
                raise _with_numbers(error, told) from failure
        if failure is not None and not unreachable:
            raise failure

    def _warn_once(self, of: str, words: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            LOG.warning("router replay: %s", words)

    def apply(self, sequences: Sequence[FetchSequence]) -> list[FetchSequence]:
        """As the ranks agreed; what is live stays live. FailedPreconditionError for a sample that the step does not
        have, or if no step was begun where there must be one."""
        if self._decided is None:
            if self.required:
                raise _error("micro_batch: the ranks decide together what falls back, so begin_step comes first")
            return list(sequences)
        applied = [sequence if sequence.live else self._applied(sequence) for sequence in sequences]
        known = self._comparable
        return [_with_tokens_of(one, known[one.sample]) if one.sample in known else one for one in applied]

    def saw(self, batch: Batch) -> None:
        """What a fetch gave, which counts where no step was begun, or where what was decided binds nothing. Else
        nothing but tokens that begin_step was not told lets a sample fall back here."""
        decided = self._decided is not None and self._binds
        for one in batch.sequences:
            if decided and one["status"] == "UNSPECIFIED":
                continue
            action = "replay" if one["status"] == "OK" else self._missing
            self._fetched[one["sample"], one["status"], action] += 1

    def end_pass(self) -> None:
        """After the passes of a schedule: FallbackLimitError for what `begin` could not know, as `begin` raises it."""
        fetched, self._fetched = self._fetched, Counter()
        self._check_limit("end_step", fetched)
        self._check_compares(fetched)

    def forget_pass(self) -> None:
        """The passes of a schedule have failed: what they fetched is judged by nothing."""
        self._fetched.clear()

    def _check_limit(self, where: str, samples: Counter[tuple[str | int, str, str]]) -> None:
        """samples: how often (id, status, what is done) was seen"""
        by_status: Counter[str] = Counter()
        for (_, status, action), count in samples.items():
            by_status[status] += count if action != "replay" else 0
        total, fallen = samples.total(), by_status.total()
        # The quotient, which is rounded as the limit's text was: 29 of 100 are no more than 0.29.
        if not total or fallen / total <= self._limit:
            return
        by_status = +by_status
        raise errors.FallbackLimitError(
            f"{where}: {fallen} of {total} samples fall back, more than max_fallback_fraction "
            f"{self._limit:g} allows: {_reasons(by_status, samples)}",
            code_name="FAILED_PRECONDITION",
            field="max_fallback_fraction",
            samples=total,
            fallen_back=fallen,
            by_status=dict(by_status),
            first=_first(samples),
        )

    def _check_compares(self, samples: Counter[tuple[str | int, str, str]]) -> None:
        """One warning for each set of reasons, of a replay that only compares and has nothing to compare with."""
        by_status: Counter[str] = Counter()
        for (_, status, _), count in samples.items():
            by_status[status] += count
        del by_status["UNSPECIFIED"]  # Live by what was decided, or said, before.
        if self._binds or not by_status or "OK" in by_status:
            return
        words = f"mode shadow compares nothing, as all samples fall back: {_reasons(by_status, samples)}"
        self._warn_once(f"nothing: {sorted(by_status)}", words)

    def _applied(self, sequence: FetchSequence) -> FetchSequence:
        assert self._decided is not None
        claims = self._decided.get(sequence.sample, [])
        if sequence.num_tokens in (0, 1) and (claims or sequence.sample in self._rowless):
            return sequence  # Nothing is read of it.
        if not claims:
            what = f"sample {sequence.sample} is none of those that begin_step was told{self._hint(sequence)}"
            raise _error(f"micro_batch: {what}", sequence)
        alike = [decision for claim, decision in claims if _alike(claim, sequence)] if len(claims) > 1 else []
        decisions = alike or [decision for _, decision in claims]
        length, known = sequence.num_tokens, decisions[0].num_tokens
        contradicts = self._binds and self._missing != "strict" and None not in (length, known) and length != known
        if contradicts or any(one.action != "replay" for one in decisions):
            return dataclasses.replace(sequence, live=True, content_id=None)
        return dataclasses.replace(sequence, content_id=decisions[0].content_id) if self._binds else sequence

    def _hint(self, sequence: FetchSequence) -> str:
        by_id = isinstance(sequence.sample, str)
        if not self._decided or any(isinstance(sample, str) == by_id for sample in self._decided):
            return ""
        here, there = ("ids", "handles") if by_id else ("handles", "ids")
        return f": these are {here}, and begin_step was told {there}. Name samples alike in both"

    def _inspect(
        self, samples: list[FetchSequence], wrong: Exception | None
    ) -> tuple[Sequence[Mapping[str, Any]], Exception | None]:
        """What the source has of each, and how it failed.

        wrong: with the samples; nothing is asked then, but the other ranks wait for what this one says"""
        try:
            if wrong is not None:
                raise wrong
            # The rest of the time is for ranks to meet.
            end = time.monotonic() + _ASKING * self._deadline
            records = list(self._source.inspect(samples, timeout=_ASKING * self._deadline))
            if len(records) != len(samples):
                raise invalid("source", f"inspect says something of {len(records)} of {len(samples)} samples", "LENGTH")
            for one, said in zip(samples, records, strict=True):
                SampleReport.of(one.sample, said)  # Of which the rest is made.
            self._compare_before_tails(samples, records, end)
            return [_judged(one, said) for one, said in zip(samples, records, strict=True)], None
        except Exception as error:
            return [{"status": "OK"} for _ in samples], error

    def _compare_before_tails(
        self, samples: Sequence[FetchSequence], records: list[Mapping[str, Any]], end: float
    ) -> None:
        """Asks again about samples whose last rows are unrecorded and came without tokens: whether the rows before
        them, which alone are replayed, are of the same tokens. Replaces their records."""
        rows = {at: _rows_before_tail(one, said) for at, (one, said) in enumerate(zip(samples, records, strict=True))}
        asked = {at: _with_tokens_of(samples[at], count) for at, count in rows.items() if count}
        if not asked:
            return
        left = max(1.0, end - time.monotonic())
        for at, said in zip(asked, self._source.inspect(list(asked.values()), timeout=left), strict=True):
            records[at] = said
            if said["status"] == "OK":
                self._comparable[samples[at].sample] = rows[at]


def _rows_before_tail(one: FetchSequence, said: Mapping[str, Any]) -> int:
    """How many rows come before the unrecorded ones at the end of a whole sample, where its tokens are not known there;
    0 where there are none of either."""
    tail = (said.get("unrecorded") or [(0, 0)])[-1]
    asked = said["status"] == "TOKENS_NOT_KNOWN" and one.tokens is not None and one.num_tokens == tail[1] + 1
    return tail[0] if asked else 0


def _with_tokens_of(one: FetchSequence, rows: int) -> FetchSequence:
    return one if one.tokens is None else dataclasses.replace(one, tokens=np.asarray(one.tokens)[:rows])


def _first(samples: Counter[tuple[str | int, str, str]]) -> list[tuple[str | int, str]]:
    return [(sample, status) for sample, status, action in samples if action != "replay"][:_NAMED]


def _reasons(by_status: Counter[str], samples: Counter[tuple[str | int, str, str]]) -> str:
    counted = ", ".join(f"{count} {status}" for status, count in sorted(by_status.items()))
    return f"{counted}; first {', '.join(f'{sample} ({status})' for sample, status in _first(samples))}"


def _claims(sequences: Sequence[FetchSequence]) -> list[FetchSequence]:
    """A sample of several sequences is asked about once, with what is expected of it as far as one of them says; where
    they contradict each other, once with each of what they say."""
    claims: dict[str | int, list[FetchSequence]] = {}
    order: list[tuple[str | int, int]] = []
    for sequence in sequences:
        known = claims.setdefault(sequence.sample, [])
        at = next((at for at, claim in enumerate(known) if _alike(claim, sequence)), len(known))
        if at == len(known):
            known.append(sequence)
            order.append((sequence.sample, at))
            continue
        rows = max((one.rows for one in (known[at], sequence) if one.rows is not None), default=None)
        says_more = known[at].tokens is None and known[at].num_tokens in (None, sequence.num_tokens)
        known[at] = dataclasses.replace(sequence if says_more else known[at], rows=rows)
    return [claims[sample][at] for sample, at in order]


def _alike(one: FetchSequence, other: FetchSequence) -> bool:
    """Whether two sequences can be of one sample, which has one length and one token at each place."""
    if None not in (one.num_tokens, other.num_tokens) and one.num_tokens != other.num_tokens:
        return False
    if one.tokens is None or other.tokens is None:
        return True
    ids = [np.asarray(each.tokens) for each in (one, other)]
    rows = max(0, min(len(each) for each in ids) - 1)  # The last token of either may be one that has no row.
    return bool(np.array_equal(ids[0][:rows], ids[1][:rows]))


def _judged(expected: FetchSequence, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a source says of a sample, whose rows must be as many as its sequences need."""
    tokens = said.get("num_tokens")
    if said["status"] != "OK" or expected.rows is None or tokens is None or expected.rows < tokens:
        return said
    message = f"rows up to {expected.rows} asked, there are {max(0, tokens - 1)}"
    return {**said, "status": "OUT_OF_RANGE", "message": message}


def _with_numbers(error: errors.RoutingReplayError, told: Mapping[str | int, str]) -> errors.RoutingReplayError:
    """told: what this rank's source said of samples, such as both lengths"""
    if isinstance(error, errors.FallbackLimitError):
        named = [sample for sample, _ in error.first]
    elif error.sample is not None:
        named = [error.sample]
    else:  # Errors have no handles.
        named = [sample for sample in told if not isinstance(sample, str) and f"handle {sample} " in error.message]
    words = "; ".join(f"{sample}: {told[sample]}" for sample in named if sample in told)
    return type(error)(f"{error.message}. On this rank: {words}", **error._detail) if words else error


def _contradiction(sequences: Sequence[FetchSequence]) -> errors.InvalidArgumentError | None:
    """Of sequences of one sample, which has one length."""
    lengths: dict[str | int, int] = {}
    for one in sequences:
        if one.num_tokens is None:
            continue
        known = lengths.setdefault(one.sample, one.num_tokens)
        if known != one.num_tokens:
            what = f"sample {one.sample} has {known} tokens in one sequence and {one.num_tokens} in another"
            return invalid("lengths", what, "LENGTH", one.sample)
    return None


def _tells(said: Mapping[str, Any]) -> bool:
    """Why a sample cannot be replayed."""
    return said["status"] != "OK" and bool(said.get("message"))


def _weights(decision: StepDecision, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the samples that are replayed, their weights, on all ranks alike: those that this rank's source tells, as the
    ranks have agreed on the content; or of a source that tells others than those of the other ranks, the oldest and the
    newest."""
    said = []
    for one, record in zip(decision.samples, records, strict=True):
        if one.action != "replay":
            continue
        spans = [tuple(span) for span in record.get("weights") or ()]
        extremes = [one.oldest_weight_version, one.newest_weight_version]
        if [min((s[2] for s in spans), default=None), max((s[2] for s in spans), default=None)] != extremes:
            rows = max(0, (one.num_tokens or 1) - 1)
            spans = [(0, rows, version, "") for version in dict.fromkeys(extremes) if version is not None]
        said.append({"sample": one.sample, "weights": spans})
    return said


def _begun(decision: StepDecision, lag: int | None) -> BegunStep:
    by_action: dict[str, list[str | int]] = {"replay": [], "live": [], "drop": []}
    for one in decision.samples:
        by_action[one.action].append(one.sample)
    return BegunStep(
        decision.samples,
        decision.replayed,
        decision.fallen_back,
        decision.counts,
        tuple(dict.fromkeys(by_action["live"])),
        tuple(dict.fromkeys(by_action["drop"])),
        lag,
    )


def _error(message: str, of: Any = None) -> errors.FailedPreconditionError:
    sample = getattr(of, "sample", None)
    return errors.FailedPreconditionError(
        message, code_name="FAILED_PRECONDITION", sample=sample if isinstance(sample, str) else None
    )
