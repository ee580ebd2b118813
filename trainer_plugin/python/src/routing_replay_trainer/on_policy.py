"""The on-policy contract: with which weights the rows that a step replays were made.

A rollout that goes on while weights are updated holds rows of several versions. Under "strict" such a sample is
refused, as trainers that want engine and trainer to be bit-equal demand; under "lax" the share of such samples and the
oldest version are reported. What counts are the spans of the whole sample, which every read tells, and not the rows
that a rank happens to hold: all ranks decide alike whatever the parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from routing_replay_trainer import errors
from routing_replay_trainer._values import invalid
from routing_replay_trainer.collective import Decision
from routing_replay_trainer.metrics import Counters

OnPolicy = Literal["strict", "lax"]
UNKNOWN = -1  # The version of rows whose producer did not know it.


class Contract:
    """kind: None counts as "lax" does and refuses nothing"""

    def __init__(self, kind: OnPolicy | None = None) -> None:
        if kind not in ("strict", "lax", None):
            raise invalid("on_policy", f"{kind!r} is none of strict, lax")
        self._kind = kind
        self._current: int | None = None
        self._taken: set[Any] = set()
        self._begun = False
        self._samples = self._mixed = 0
        self._oldest: int | None = None
        self._lag: int | None = None

    def begin_step(self, current: int | None = None) -> None:
        """current: version of the trainer's weights, in the numbers that the rollout gives its own"""
        self._current, self._begun = current, True
        self._taken.clear()

    def end_pass(self) -> None:
        """Of the schedule; a step where none is begun."""
        if not self._begun:
            self._taken.clear()

    def take(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Counts each sample once a step.

        samples: "sample" and "weights" of each as `Batch.sequences` has them

        Under "strict" FailedPreconditionError (reason "MIXED_WEIGHTS", field "weights") naming the first sample with
        rows of several versions, and these.
        """
        for sample in samples:
            spans = sample.get("weights") or ()
            versions = {(int(version), label) for _, _, version, label in spans}
            if len(versions) > 1 and self._kind == "strict":
                raise _mixed(sample["sample"], _spans(spans))
            self._count(sample["sample"], {version for version, _ in versions}, len(versions) > 1)

    def take_agreed(self, decisions: Iterable[Decision]) -> None:
        """The same, of what the ranks of a replica agreed to replay: on all of them, before the step."""
        for one in decisions:
            oldest, newest = one.oldest_weight_version, one.newest_weight_version
            if one.action != "replay" or oldest is None or newest is None:
                continue
            if oldest != newest and self._kind == "strict":
                raise _mixed(one.sample, f"from {_name(oldest, '')} to {_name(newest, '')}")
            self._count(one.sample, {oldest, newest}, oldest != newest)

    def count_into(self, counters: Counters) -> None:
        """Since the last call, where samples said something."""
        counters.ratio("weight_version/mixed_ratio", self._mixed, self._samples)
        if self._oldest is not None:
            counters.count("weight_version/oldest", self._oldest)
        if self._lag is not None:
            counters.count("weight_lag_max", self._lag)
        self._samples = self._mixed = 0
        self._oldest = self._lag = None

    def _count(self, sample: Any, versions: set[int], mixed: bool) -> None:
        if not versions or sample in self._taken:
            return
        self._taken.add(sample)
        self._samples += 1
        self._mixed += mixed
        known = versions - {UNKNOWN}
        if not known:
            return
        oldest = min(known)
        self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
        if self._current is not None:
            lag = self._current - oldest
            self._lag = lag if self._lag is None else max(self._lag, lag)


def _mixed(sample: Any, versions: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(
        f"weights: sample {sample} is of several weight versions: {versions}",
        code_name="FAILED_PRECONDITION",
        reason="MIXED_WEIGHTS",
        field="weights",
        sample=sample if isinstance(sample, str) else None,
    )


def _spans(spans: Any) -> str:
    return ", ".join(f"rows {begin} … {end - 1} of {_name(version, label)}" for begin, end, version, label in spans)


def _name(version: int, label: str) -> str:
    number = "an unknown version" if version == UNKNOWN else f"version {version}"
    return f"{number} ({label})" if label else number
