"""The metrics that a trainer logs: one flat dict, reduced over ranks, with one table of its keys. Also the on-policy
contract, which checks the weight versions of the rows that a step replays.

A rollout that continues while weights are updated has rows of several versions. Under on_policy="strict" such a sample
is rejected, for trainers that need engine and trainer to be bit-equal; else the share of such samples and the oldest
version are reported. The decision is made from the weight spans of the whole sample, which every read returns, not from
the rows that a rank happens to hold. So all ranks decide alike, whatever the parallelism.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from routing_replay import errors

from routing_replay_trainer._core import check_choice, invalid, unmet
from routing_replay_trainer.collective import Collective

PREFIX = "routing_replay/"
_DEADLINE = 120.0  # Seconds that ranks wait for each other in a report.
Reduction = Literal["sum", "max", "min", "ratio"]


class Key(NamedTuple):
    """name: the key without PREFIX; NN stands for a layer
    reduction: how values of several ranks are combined: "sum", "max", "min", or "ratio" (the sum of all numerators
        divided by the sum of all denominators)
    meaning: what one rank's value says about the time since the last report
    """

    name: str
    reduction: Reduction
    meaning: str


KEYS = (
    Key("replayed_rows", "sum", "local rows, of each model chunk, that were replayed (in mode shadow: compared)"),
    Key("unrecorded_rows", "sum", "local rows of tokens that routed live: route not recorded, or sample fell back"),
    Key("live_rows", "sum", "local rows of sequences without a sample (None, or handle 0)"),
    Key("pad_rows", "sum", "local rows of padding, and of last tokens that get filler experts (option last_row)"),
    Key("replayed_fraction", "ratio", "replayed_rows over all rows but pad_rows"),
    Key("unrecorded_fraction", "ratio", "unrecorded_rows over all rows but pad_rows"),
    Key("live_fraction", "ratio", "live_rows over all rows but pad_rows"),
    Key("clamped_ids", "sum", "ids out of range in a router's buffer, which then is corrupt (inject='fused' only)"),
    Key("fallback_sequences", "sum", "sequences that routed live because their sample fell back, counted in each pass"),
    Key("fallback_fraction", "ratio", "fallback_sequences over all sequences of which the rank needs rows"),
    Key("step_samples", "max", "samples of begin_step, the same on all ranks of a replica"),
    Key("step_fallback_samples", "max", "samples of begin_step that the ranks agreed to route live"),
    Key("step_dropped_samples", "max", "samples of begin_step that the caller must leave out of the loss"),
    Key(
        "weight_version/mixed_ratio",
        "ratio",
        "share of replayed samples with rows of several weight versions (unknown counts as a version)",
    ),
    Key("weight_version/oldest", "min", "lowest known weight version of any row of the replayed samples"),
    Key("fetch_wait_s", "max", "seconds that the trainer waited for rows and for states of samples"),
    Key("fetch_timeouts", "sum", "fetches that ended at the step's deadline"),
    Key("prefetch_hit_rate", "ratio", "slices that a fetch found in the cache, or being read, over all slices needed"),
    Key("fetched_bytes", "sum", "bytes of slices that were read, prefetched or not"),
    Key("cache_bytes", "max", "bytes of slices in the cache"),
    Key("record_bytes", "max", "bytes that mode R2 has recorded and not released"),
    Key("overlap/layer_NN", "ratio", "replayed experts that are in the live choice of the layer's router, too"),
    Key("live_mismatch/layer_NN", "sum", "compared rows whose live experts differ from the replayed ones"),
    Key("recompute_mismatch/layer_NN", "sum", "rows whose experts differed between recompute and forward: a fault"),
    Key("no_overlap_fraction", "ratio", "compared (row, layer) pairs with no live expert among the replayed ones"),
    Key("no_overlap_alarms", "sum", "micro-batches that match their record so badly that a fault is likely"),
    Key("mismatch/k3_kl", "ratio", "estimated divergence of the trainer's policy from the rollout's, per token"),
    Key("mismatch/mean_abs_diff", "ratio", "absolute difference of the log-probabilities, per token"),
    Key("mismatch/fraction_above_2x", "ratio", "share of tokens whose two probabilities differ by over a factor of 2"),
)
_BY_NAME = {key.name: key for key in KEYS}
_LAYER = re.compile(r"layer_\d+$")


def layer_key(name: str, layer: int) -> str:
    """overlap, 7 → "overlap/layer_07"."""
    return f"{name}/layer_{layer:02}"


class Counters:
    """The counters of one rank for keys of the table. Not thread-safe."""

    def __init__(self) -> None:
        # Two numbers for each key: numerator and denominator of a ratio, or the value and 0 for other keys.
        self._values: dict[str, tuple[float, float]] = {}

    def count(self, name: str, value: float) -> None:
        """Adds to a sum, or updates a maximum or a minimum."""
        self.ratio(name, value, 0)

    def ratio(self, name: str, numerator: float, denominator: float) -> None:
        """Adds to numerator and denominator."""
        _combine(self._values, name, (float(numerator), float(denominator)))

    def report(self, reduce: Collective | None = None) -> dict[str, float]:
        """Returns {"routing_replay/…": value} since the last report, combined over all ranks of `reduce`, which must
        call this together. A ratio whose denominator is 0 is left out."""
        values, self._values = self._values, {}
        if reduce is not None:
            values = _reduced(values, reduce)
        report = {}
        for name, (value, denominator) in sorted(values.items()):
            if _reduction(name) != "ratio":
                report[PREFIX + name] = value
            elif denominator:
                report[PREFIX + name] = value / denominator
        return report


def mismatch(
    rollout_logprobs: Any, train_logprobs: Any, mask: Any = None, *, reduce: Collective | None = None
) -> dict[str, float]:
    """Measures how far the trainer's log-probabilities of the sampled tokens are from the rollout's. Replay reduces
    this mismatch.

    rollout_logprobs, train_logprobs: numpy or torch arrays of the same shape
    mask: array of that shape, nonzero where a token counts; by default all count
    reduce: the ranks over which the result is combined; they must call this together

    mismatch/k3_kl is the mean of r - 1 - log r, r = train / rollout probability: an unbiased estimate of KL(rollout ‖
    train) from samples of the rollout that is never negative (k3 in J. Schulman, "Approximating KL Divergence", 2020).
    The result also has mismatch/mean_abs_diff and mismatch/fraction_above_2x. It is empty if no token counts.
    """
    rollout, train = _host(rollout_logprobs, "rollout_logprobs"), _host(train_logprobs, "train_logprobs")
    counted = np.ones(rollout.shape) if mask is None else _host(mask, "mask")
    for name, given in (("train_logprobs", train), ("mask", counted)):
        if given.shape != rollout.shape:
            raise invalid(name, f"must have the shape {rollout.shape} of rollout_logprobs, got {given.shape}", "SHAPE")
    log_ratio = (train - rollout)[counted != 0]
    counters = Counters()
    counters.ratio("mismatch/k3_kl", float((np.expm1(log_ratio) - log_ratio).sum()), log_ratio.size)
    counters.ratio("mismatch/mean_abs_diff", float(np.abs(log_ratio).sum()), log_ratio.size)
    counters.ratio("mismatch/fraction_above_2x", int((np.abs(log_ratio) > math.log(2)).sum()), log_ratio.size)
    return counters.report(reduce)


def _host(values: Any, field: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Converts values to a numpy array of doubles. Tensors may need a gradient, be on a device, or be bfloat16."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise invalid(field, str(error), "DTYPE") from None


def _reduction(name: str) -> Reduction:
    return _BY_NAME[_LAYER.sub("layer_NN", name)].reduction


def _combine(values: dict[str, tuple[float, float]], name: str, more: tuple[float, float]) -> None:
    """Combines `more` with the value of a key, as the key's reduction says."""
    reduction, held = _reduction(name), values.get(name)
    if held is None:
        values[name] = more
    elif reduction in ("max", "min"):
        values[name] = max(held, more) if reduction == "max" else min(held, more)
    else:
        values[name] = held[0] + more[0], held[1] + more[1]


def _reduced(values: Mapping[str, tuple[float, float]], collective: Collective) -> dict[str, tuple[float, float]]:
    """Combines the counts of all ranks. Their keys may differ: each rank has the layers of its pipeline stage."""
    total: dict[str, tuple[float, float]] = {}
    for part in collective.all_gather(json.dumps(values).encode(), _DEADLINE):
        for name, value in json.loads(part).items():
            _combine(total, name, tuple(value))
    return total


OnPolicy = Literal["strict"]
UNKNOWN = -1  # The version of rows whose producer did not know the weight version.


class Contract:
    """The on-policy contract. kind: "strict" rejects samples of several weight versions, None rejects nothing
    counters: receives the counts
    """

    def __init__(self, kind: OnPolicy | None = None, counters: Counters | None = None) -> None:
        check_choice("on_policy", kind, ("strict", None))
        self.is_strict = kind is not None
        self.counters = Counters() if counters is None else counters

    def take(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Counts the samples of a step. Versions are equal if both number and label are equal.

        samples: for each sample "sample" and "weights", as in `Batch.sequences`

        With "strict", raises FailedPreconditionError (reason "MIXED_WEIGHTS", field "weights") that names the first
        sample with rows of several versions, and these versions.
        """
        for sample in samples:
            versions = {(version, label) for _, _, version, label in sample.get("weights") or ()}
            if not versions:
                continue
            mixed = len(versions) > 1
            if mixed and self.is_strict:
                raise _mixed(sample)
            self.counters.ratio("weight_version/mixed_ratio", mixed, 1)
            oldest = min((version for version, _ in versions if version != UNKNOWN), default=None)
            if oldest is not None:
                self.counters.count("weight_version/oldest", oldest)


def _mixed(sample: Mapping[str, Any]) -> errors.FailedPreconditionError:
    spans = []
    for begin, end, version, label in sample["weights"]:
        number = "an unknown version" if version == UNKNOWN else f"version {version}"
        spans.append(f"rows {begin} … {end - 1} of {number}{f' ({label})' if label else ''}")
    name = sample["sample"]
    why = f"sample {name} is of several weight versions: {', '.join(spans)}"
    return unmet("weights", why, reason="MIXED_WEIGHTS", sample=name)
