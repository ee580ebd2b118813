"""The steps of a replay: asks the source about the samples of a step, lets the ranks of the replica agree on what
happens to each, and makes every fetch follow that decision.

A single rank decides by what it finds. Several ranks each ask their source and then call `collective.agree`. From then
on every fetch of the step must find what was agreed: a rank that finds something else fails, because it must not fall
back alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from routing_replay import errors

from routing_replay_trainer._core import LOG, unmet
from routing_replay_trainer.collective import (
    NO_STEP,
    Alone,
    Collective,
    Decision,
    StepDecision,
    agree,
    take_no_part,
)
from routing_replay_trainer.fetch import FetchSequence, Missing
from routing_replay_trainer.metrics import Contract
from routing_replay_trainer.step import StepSource

_NAMED = 8  # Number of samples that an error names.
_ASKING = 0.75  # Share of the deadline that may be spent on asking the source.


class Steps:
    """The current step. For one thread only.

    source: the source of all rows; its deadline also applies to `begin`
    collective: the ranks that must make the same decision; None: this rank decides alone
    max_fallback_fraction: largest share of a step's samples that may fall back; if more do, FallbackLimitError
    contract: checks the weight versions of all samples that replay, and holds the counters
    binds: True: the fetch fails if a sample has changed since the ranks agreed on it. False (for a replay that only
        compares): such a sample falls back
    """

    def __init__(
        self,
        source: StepSource,
        missing: Missing,
        collective: Collective | None = None,
        max_fallback_fraction: float = 0.05,
        contract: Contract | None = None,
        binds: bool = True,
    ) -> None:
        self.source = source
        self._missing: Missing = missing
        self._collective = Alone() if collective is None else collective
        self._limit = max_fallback_fraction
        self._binds = binds
        self._contract = Contract() if contract is None else contract
        self._step: Any = None
        self._warned: set[str] = set()  # Topics for which a warning was logged already.
        self._forget()

    def _forget(self) -> None:
        self.last = NO_STEP  # The decision of the last `begin`.
        self._decided: dict[str | int, list[tuple[FetchSequence, Decision]]] | None = None
        # Number of tokens (0 or 1) of each sample of the step that is too short to have rows.
        self._rowless: dict[str | int, int | None] = {}

    def begin(self, sequences: Sequence[FetchSequence], geometry: int = 0, step: Any = None) -> StepDecision:
        """Begins a step. All ranks of the replica must call this with the same samples in the same order. Samples with
        at most one token have nothing to replay, so the source is not asked about them. If several sequences name one
        sample, but with different lengths or tokens, there is one decision for each of these variants, and only the
        variants that were not recorded fall back.

        Errors are raised on all ranks. Exception: if the source of one rank fails, this rank raises the source's error.
        If this rank cannot reach the service, it only logs a warning, once, and the source's error becomes the
        `__cause__` of the error that all ranks raise, if there is one. In both cases all samples count as missing on
        this rank, with status SOURCE_FAILED.

        geometry: the geometry's fingerprint (from a plan), which the ranks compare; 0 if unknown
        step: name of the step; if the previous step had the same name, that step continues. None: a new step
        """
        end = time.monotonic() + self.source.deadline
        self._forget()
        self.source.begin_step(goes_on=step is not None and step == self._step)
        self._step = step
        named = [sequence for sequence in sequences if not sequence.live]
        if sequences and not named:
            self._warn_once("no sample", "begin_step: no sequence of this step has a sample (all are None or 0)")
        samples = _claims([sequence for sequence in named if sequence.num_tokens not in (0, 1)])
        records, failure = self._inspect(samples)
        decision = self._decide([claim.sample for claim in samples], records, failure, geometry, end)
        self._decided = {}
        self._rowless = {sequence.sample: sequence.num_tokens for sequence in named if sequence.num_tokens in (0, 1)}
        for claim, decided in zip(samples, decision.decisions, strict=True):
            self._decided.setdefault(claim.sample, []).append((claim, decided))
        self._contract.take(
            {"sample": decided.sample, "weights": record.get("weights")}
            for decided, record in zip(decision.decisions, records, strict=True)
            if decided.action == "replay"
        )
        self.last = decision
        counters = self._contract.counters
        counters.count("step_samples", len(decision.decisions))
        counters.count("step_fallback_samples", len(decision.live))
        counters.count("step_dropped_samples", len(decision.dropped))
        return decision

    def stay_away(self, wrong: Exception) -> None:
        """Call this instead of `begin` on a rank that does not know the samples of the step: the other ranks then raise
        an error that names this rank, instead of waiting for it."""
        self._forget()
        if self._collective.size > 1:
            with contextlib.suppress(type(wrong), errors.RoutingReplayError):
                take_no_part(self._collective, self.source.deadline, wrong)

    def count(self) -> None:
        """Adds what the source has counted since the last call to the counters of the contract."""
        counters, counts = self._contract.counters, self.source.counts()
        counters.count("fetch_wait_s", counts["wait_s"])
        counters.count("fetch_timeouts", counts["timeouts"])
        counters.ratio("prefetch_hit_rate", counts["hits"], counts["hits"] + counts["misses"])
        counters.count("fetched_bytes", counts["bytes_read"])
        counters.count("cache_bytes", counts["bytes"])

    def _decide(
        self,
        samples: Sequence[str | int],
        records: Sequence[Mapping[str, Any]],
        failure: Exception | None,
        geometry: int,
        end: float,
    ) -> StepDecision:
        """Agrees with the other ranks. failure: the error of this rank's source, which is raised after the agreement.
        If the source could not be reached, its error only becomes the cause of an error of the agreement."""
        unreachable = isinstance(failure, (ConnectionError, TimeoutError))
        if unreachable:
            self._warn_once("unreachable", f"begin_step could not ask the source: {failure}")
        failed, left = failure is not None, max(0.0, end - time.monotonic())
        try:
            decision = agree(self._collective, samples, records, self._missing, left, geometry=geometry, failed=failed)
            self._judge(decision)
        except errors.RoutingReplayError as error:
            if not failed or unreachable:
                raise error from failure
        if failure is not None and not unreachable:
            raise failure
        return decision

    def _warn_once(self, of: str, words: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            LOG.warning("router replay: %s", words)

    def told(self, sample: str | int | None) -> int | None:
        """Returns the number of tokens of a sample as given to `begin`; None if it was not given, or if several lengths
        were given."""
        lengths = {claim.num_tokens for claim, _ in (self._decided or {}).get(sample, [])}
        return lengths.pop() if len(lengths) == 1 else self._rowless.get(sample)

    def apply(self, sequences: Sequence[FetchSequence]) -> list[FetchSequence]:
        """Applies the step's decision: returns the sequences, live if their samples fell back, else with the agreed
        content id. Raises FailedPreconditionError for a sample that was not given to begin_step, or if begin_step was
        not called although it is required."""
        if self._decided is None:
            # Without a decision this rank could fall back alone, and weight versions would not be checked.
            if (self._collective.size > 1 and self._missing != "strict") or self._contract.is_strict:
                raise unmet("micro_batch", "begin_step comes first: it decides what falls back and what is rejected")
            return list(sequences)
        return [sequence if sequence.live else self._applied(sequence) for sequence in sequences]

    def _judge(self, decision: StepDecision) -> None:
        """Raises FallbackLimitError if too many samples fall back. If decisions do not bind (mode shadow) and no sample
        is left to compare, logs a warning, once for each set of statuses."""
        fallen = [one for one in decision.decisions if one.action != "replay"]
        by_status = Counter(one.status for one in fallen)
        first = [(one.sample, one.status) for one in fallen[:_NAMED]]
        counted = ", ".join(f"{count} {status}" for status, count in sorted(by_status.items()))
        reasons = f"{counted}; first {', '.join(f'{sample} ({status})' for sample, status in first)}"
        total = len(decision.decisions)
        # Compare the rounded quotient, so that 29 of 100 does not count as more than 0.29.
        if total and len(fallen) / total > self._limit:
            raise errors.FallbackLimitError(
                f"begin_step: {len(fallen)} of {total} samples fall back, more than max_fallback_fraction "
                f"{self._limit:g} allows: {reasons}",
                field="max_fallback_fraction",
                samples=total,
                fallen_back=len(fallen),
                by_status=dict(by_status),
                first=first,
            )
        if not self._binds and fallen and len(fallen) == total:
            words = f"mode shadow compares nothing, because all samples fall back: {reasons}"
            self._warn_once(f"nothing: {sorted(by_status)}", words)

    def _applied(self, sequence: FetchSequence) -> FetchSequence:
        assert self._decided is not None
        claims = self._decided.get(sequence.sample, [])
        if sequence.num_tokens in (0, 1) and (claims or sequence.sample in self._rowless):
            return sequence  # No rows of this sample are read.
        if not claims:
            why = f"begin_step was not told of sample {sequence.sample} under this name"
            raise unmet("micro_batch", why, sample=sequence.sample)
        alike = [decision for claim, decision in claims if _alike(claim, sequence)] if len(claims) > 1 else []
        decisions = alike or [decision for _, decision in claims]
        length, known = sequence.num_tokens, decisions[0].num_tokens
        contradicts = self._binds and self._missing != "strict" and None not in (length, known) and length != known
        if contradicts or any(decision.action != "replay" for decision in decisions):
            return dataclasses.replace(sequence, live=True, content_id=None)
        return dataclasses.replace(sequence, content_id=decisions[0].content_id) if self._binds else sequence

    def _inspect(self, samples: list[FetchSequence]) -> tuple[Sequence[Mapping[str, Any]], Exception | None]:
        """Returns the source's record of each sample, and the source's error if it failed (the records then mean
        nothing). Does not raise, because the other ranks wait for this rank's report."""
        try:
            # The rest of the time is for the agreement of the ranks.
            records = self.source.inspect(samples, timeout=_ASKING * self.source.deadline)
            return [_judged(claim, record) for claim, record in zip(samples, records, strict=True)], None
        except Exception as error:
            return [{"status": "OK"} for _ in samples], error


def _claims(sequences: Sequence[FetchSequence]) -> list[FetchSequence]:
    """Returns what is expected of each sample. If several sequences name one sample, their expectations are merged, so
    that the source is asked only once. Expectations that contradict each other stay separate, and the source is asked
    about each."""
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
    """Returns True if two sequences can belong to one sample, which has one length and one token at each position."""
    if None not in (one.num_tokens, other.num_tokens) and one.num_tokens != other.num_tokens:
        return False
    if one.tokens is None or other.tokens is None:
        return True
    ids = [np.asarray(each.tokens) for each in (one, other)]
    # The last token of either sequence may have no row, and so is not compared.
    rows = max(0, min(len(each) for each in ids) - 1)
    return bool(np.array_equal(ids[0][:rows], ids[1][:rows]))


def _judged(claim: FetchSequence, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the sample's record, with status OUT_OF_RANGE if the sample has fewer rows than the sequences need."""
    tokens = record.get("num_tokens")
    if record["status"] != "OK" or claim.rows is None or tokens is None or claim.rows < tokens:
        return record
    return {**record, "status": "OUT_OF_RANGE"}
