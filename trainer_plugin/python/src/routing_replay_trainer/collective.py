"""The ranks of a model replica, and how they agree on a step.

    decision = agree(TorchCollective([tp_cp_group, pp_group]), states, policy="live", deadline=120.0)

One rule holds everything together: **every rank of the collective calls `agree` once per step, whatever it has seen.**
A rank whose source failed says so (`failed=True`) instead of staying away, so that nobody waits for it until the
deadline. All ranks then have the same decision, or the same error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Policy = Literal["strict", "live", "drop"]
Action = Literal["replay", "live", "drop"]


@dataclass(frozen=True)
class SampleState:
    """What one rank has seen of one sample of the step. None: not known, and so not compared.

    sample: id or handle
    status: "OK", or why it cannot be replayed: NOT_FOUND, NOT_RECORDED, NOT_READY, LOST, VERSION_REFUSED,
        LENGTH_MISMATCH, TOKENS_MISMATCH, OUT_OF_RANGE; SOURCE_FAILED where the rank could not ask
    num_tokens, revision, content_id: what all ranks that have it must have the same
    oldest_weight_version, newest_weight_version: of its rows; -1 where rows are of an unknown one
    """

    sample: str | int
    status: str = "OK"
    num_tokens: int | None = None
    revision: int | None = None
    content_id: int | None = None
    oldest_weight_version: int | None = None
    newest_weight_version: int | None = None

    @classmethod
    def of(cls, sample: str | int, record: Mapping[str, Any]) -> SampleState:
        """From what a fetch says of a sequence (`Batch.sequences`)."""
        versions = [span[2] for span in record.get("weights", ())]
        return cls(
            sample,
            record["status"],
            record.get("num_tokens"),
            record.get("revision"),
            record.get("content_id"),
            min(versions, default=None),
            max(versions, default=None),
        )


@dataclass(frozen=True)
class Decision:
    """What all ranks do with one sample. Beside what SampleState says, which is that of the ranks that have it:

    action: "replay"; or "live" (the whole sample routes live) or "drop", as the policy says, where a rank misses it
    status: "OK", or the worst that a rank has seen
    missing_on: the first rank that misses it
    missing_everywhere: no rank has it
    """

    sample: str | int
    action: Action
    status: str
    missing_on: int | None
    missing_everywhere: bool
    num_tokens: int | None
    revision: int | None
    content_id: int | None
    oldest_weight_version: int | None
    newest_weight_version: int | None


@dataclass(frozen=True)
class StepDecision:
    """samples: one entry per sample, in the order in which they were given
    counts: samples by status
    replayed, fallen_back: samples that replay, and those that do not
    source_failed_on: the first rank whose source failed
    """

    samples: tuple[Decision, ...]
    counts: Mapping[str, int]
    replayed: int
    fallen_back: int
    source_failed_on: int | None = None


class Collective(Protocol):
    """The ranks of a model replica; the deadline of a call is in seconds from now.

    A call that fails raises: DeadlineExceededError where a rank does not come in time, never a hang. The collective is
    of no more use then, and every later call raises FailedPreconditionError that says so.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        """The greatest of each value over all ranks, which give equally many."""
        ...

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        """What each rank gave, by rank; equally many bytes each."""
        ...


def agree(
    collective: Collective,
    states: Sequence[SampleState],
    policy: Policy = "strict",
    deadline: float = 120.0,
    *,
    geometry: int = 0,
    failed: bool = False,
) -> StepDecision:
    """What all ranks do with the samples of a step; the same on all of them.

    states: one per sample of the step, in the same order on all ranks
    policy: of a sample that a rank misses: "strict" raises FailedPreconditionError naming it, on all ranks
    deadline: seconds for all of it
    geometry: fingerprint of the run's geometry (`Plan.geometry_fingerprint`), 0 on all ranks if not known
    failed: this rank's source failed: it misses all samples, whatever `states` says of them

    Raises, on all ranks alike, FailedPreconditionError naming the sample and both values where ranks that have a sample
    have different ones; where ranks are of other samples, another policy, geometry or version; or where a rank could
    not take part. DeadlineExceededError where one does not come.
    """
    raise NotImplementedError
