"""The on-policy contract: with which weights the rows that a step replays were made.

A rollout that goes on while weights are updated holds rows of several versions. Under "strict" such a sample is
refused, as trainers that want engine and trainer to be bit-equal demand; under "lax" the share of such samples and the
oldest version are reported. What counts are the spans of the whole sample, which every read tells, and not the rows
that a rank happens to hold: all ranks decide alike whatever the parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from routing_replay import errors

from routing_replay_trainer._core import INT64, integer, invalid
from routing_replay_trainer.metrics import Counters

OnPolicy = Literal["strict", "lax"]
UNKNOWN = -1  # The version of rows whose producer did not know it.
_VERSIONS = (UNKNOWN, INT64[1])


class WeightSummary(NamedTuple):
    """samples: that say their versions at all
    mixed: of those, the ones of several versions; a version is a number with its label
    first_mixed: number of the first one, among all that were given
    oldest: of the rows whose version has a number
    lag: how many versions that is behind the trainer's
    """

    samples: int
    mixed: int
    first_mixed: int | None = None
    oldest: int | None = None
    lag: int | None = None


def summarize(samples: Iterable[Mapping[str, Any]], current: int | None = None) -> WeightSummary:
    """The one rule about weight versions.

    samples: "weights" of each as `Batch.sequences` has them
    current: the trainer's version, if it knows one
    """
    told = mixed = 0
    first_mixed = oldest = None
    for number, sample in enumerate(samples):
        versions = {_version(span) for span in sample.get("weights") or ()}
        told += bool(versions)
        if len(versions) > 1:
            mixed += 1
            first_mixed = number if first_mixed is None else first_mixed
        known = [version for version, _ in versions if version != UNKNOWN]
        oldest = min(known if oldest is None else [oldest, *known], default=None)
    lag = None
    if current is not None and integer(current, "current", _VERSIONS) != UNKNOWN and oldest is not None:
        lag = int(current) - oldest
    return WeightSummary(told, mixed, first_mixed, oldest, lag)


def _version(span: Any) -> tuple[int, str]:
    """Of [begin, end, version, label]."""
    try:
        begin, end, version, label = span
    except (TypeError, ValueError):
        raise invalid("weights", f"{span!r} must be [begin, end, version, label]") from None
    if not isinstance(label, str):
        raise invalid("weights", f"label must be a string, got {label!r}")
    for row in (begin, end):
        integer(row, "weights")
    return integer(version, "weights", _VERSIONS), label


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
        """Counts each sample once a step. Those of a step that ranks have begun are all taken then, before its passes.

        samples: "sample" and "weights" of each as `Batch.sequences` has them

        Under "strict" FailedPreconditionError (reason "MIXED_WEIGHTS", field "weights") naming the first sample with
        rows of several versions, and these.
        """
        new: dict[Any, Mapping[str, Any]] = {}
        for one in samples:
            if one.get("weights") and one["sample"] not in self._taken:
                new.setdefault(one["sample"], one)
        listed = list(new.values())
        said = summarize(listed, self._current)
        if said.first_mixed is not None and self._kind == "strict":
            raise _mixed(listed[said.first_mixed])
        self._taken.update(new)
        self._samples += said.samples
        self._mixed += said.mixed
        if said.oldest is not None:
            self._oldest = said.oldest if self._oldest is None else min(self._oldest, said.oldest)
        if said.lag is not None:
            self._lag = said.lag if self._lag is None else max(self._lag, said.lag)

    def count_into(self, counters: Counters) -> None:
        """Since the last call, where samples said something."""
        counters.ratio("weight_version/mixed_ratio", self._mixed, self._samples)
        if self._oldest is not None:
            counters.count("weight_version/oldest", self._oldest)
        if self._lag is not None:
            counters.count("weight_lag_max", self._lag)
        self._samples = self._mixed = 0
        self._oldest = self._lag = None


def _mixed(sample: Mapping[str, Any]) -> errors.FailedPreconditionError:
    name = sample["sample"]
    return errors.FailedPreconditionError(
        f"weights: sample {name} is of several weight versions: {_spans(sample['weights'])}",
        code_name="FAILED_PRECONDITION",
        reason="MIXED_WEIGHTS",
        field="weights",
        sample=name if isinstance(name, str) else None,
    )


def _spans(spans: Sequence[Any]) -> str:
    return ", ".join(f"rows {begin} … {end - 1} of {_name(version, label)}" for begin, end, version, label in spans)


def _name(version: int, label: str) -> str:
    number = "an unknown version" if version == UNKNOWN else f"version {version}"
    return f"{number} ({label})" if label else number
