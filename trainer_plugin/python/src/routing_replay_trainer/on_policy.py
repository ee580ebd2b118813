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
from routing_replay_trainer._values import integer, invalid

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
        self._samples = self._mixed = 0
        self._oldest: int | None = None
        self._lag = 0

    def begin_step(self, current: int | None = None) -> None:
        """current: version of the trainer's weights, in the numbers that the rollout gives its own"""
        self._current = None if current is None else integer(current, "weight_version")
        self._taken.clear()

    def take(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Counts each sample once a step.

        samples: "sample" and "weights" of each as `Batch.sequences` has them

        Under "strict" FailedPreconditionError (reason "MIXED_WEIGHTS", field "weights") naming the first sample with
        rows of several versions, and these.
        """
        for sample in samples:
            spans = sample.get("weights") or ()
            if not spans or sample["sample"] in self._taken:
                continue
            self._taken.add(sample["sample"])
            versions = {(int(version), label) for _, _, version, label in spans}
            if len(versions) > 1 and self._kind == "strict":
                raise _mixed(sample["sample"], spans)
            self._count(versions)

    def metrics(self) -> dict[str, float]:
        """Since the last call; empty where no sample said anything.

        weight_version/mixed_ratio: samples with rows of several versions, of those that know their versions
        weight_version/oldest: of all rows
        weight_lag_max: the trainer's version less the oldest, where both are known
        """
        said: dict[str, float] = {}
        if self._samples:
            said["weight_version/mixed_ratio"] = self._mixed / self._samples
        if self._oldest is not None:
            said["weight_version/oldest"] = float(self._oldest)
            said["weight_lag_max"] = float(self._lag)
        self._samples = self._mixed = self._lag = 0
        self._oldest = None
        return said

    def _count(self, versions: set[tuple[int, str]]) -> None:
        self._samples += 1
        self._mixed += len(versions) > 1
        known = [version for version, _ in versions if version != UNKNOWN]
        if not known:
            return
        oldest = min(known)
        self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
        if self._current is not None:
            self._lag = max(self._lag, self._current - oldest)


def _mixed(sample: Any, spans: Any) -> errors.FailedPreconditionError:
    words = ", ".join(f"rows {begin} … {end - 1} of {_name(version, label)}" for begin, end, version, label in spans)
    return errors.FailedPreconditionError(
        f"weights: sample {sample} is of several weight versions: {words}",
        code_name="FAILED_PRECONDITION",
        reason="MIXED_WEIGHTS",
        field="weights",
        sample=sample if isinstance(sample, str) else None,
    )


def _name(version: int, label: str) -> str:
    number = "an unknown version" if version == UNKNOWN else f"version {version}"
    return f"{number} ({label})" if label else number
