"""The ranks of a model replica, and how they agree on a step.

    decision = agree(TorchCollective([tp_cp_group, pp_group]), reports, policy="live", deadline=120.0)

One rule: every rank of the collective calls `agree` once per step, whatever it has seen. A rank whose source failed
says so (`failed=True`) instead of staying away, so that nobody waits for it until the deadline. All ranks then have the
same decision, or the same error.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from routing_replay import errors
from routing_replay._values import integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import FOR_EVER, LIBRARY, plain, unmet

Policy = Literal["strict", "live", "drop"]
Action = Literal["replay", "live", "drop"]


@dataclass(frozen=True)
class SampleReport:
    """What one rank has seen of one sample of the step. None: not known, and so not compared.

    sample: id or handle
    status: "OK", or why it cannot be replayed: NOT_FOUND, NOT_RECORDED, NOT_READY, LOST, VERSION_REFUSED,
        LENGTH_MISMATCH, TOKENS_MISMATCH, TOKENS_NOT_KNOWN, OUT_OF_RANGE, UNAVAILABLE. Of a rank that could not ask,
        `agree` is told that it failed
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
    def of(cls, sample: str | int, record: Mapping[str, Any]) -> SampleReport:
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
    """What all ranks do with one sample. Beside what SampleReport says, which is that of the ranks that have it:

    action: "replay"; or "live" (the whole sample routes live) or "drop", as the policy says, where a rank misses it
    status: "OK", or the worst that a rank has seen; SOURCE_FAILED where a rank could not ask
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
        """What each rank gave, by rank."""
        ...


class Alone:
    """A rank that has no others."""

    rank, size = 0, 1

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        return values

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        return [data]


class TorchCollective:
    """Groups of torch.distributed, of gloo or nccl, called one after the other as one: [tensor-and-context-parallel,
    pipeline]. The ranks are a grid of which the groups are this rank's row, column, …; `rank` has its rank in the first
    group as its lowest digit.

    groups: process groups, which this rank is in; None is the default one. They may be those of the framework, as long
        as no other thread uses them meanwhile
    device: where tensors lie; that which the backend of each group needs if absent

    A group whose call has failed, as by a deadline, cannot be used for anything else either: torch has no way to take a
    call back. Who wants to go on with the framework's groups then makes others for this (torch.distributed.new_group).
    """

    def __init__(self, groups: Sequence[Any], device: Any = None) -> None:
        import torch.distributed  # Only who uses this needs it.

        self._torch = torch
        self._distributed = distributed = torch.distributed
        self._groups = list(groups)
        self._devices = [self._device(group) if device is None else device for group in self._groups]
        self._failure: str | None = None
        self.rank, self.size = 0, 1
        for group in self._groups:
            self.rank += distributed.get_rank(group) * self.size
            self.size *= distributed.get_world_size(group)

    def _device(self, group: Any) -> Any:
        on_host = "gloo" in str(self._distributed.get_backend(group))
        return self._torch.device("cpu") if on_host else self._torch.device("cuda", self._torch.cuda.current_device())

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        end = _end(deadline)
        reduced = np.array(values, np.int64)
        greatest = self._distributed.ReduceOp.MAX
        for group, device in zip(self._groups, self._devices, strict=True):
            with self._failing(end):
                tensor = self._torch.from_numpy(reduced).to(device)
                self._wait(self._distributed.all_reduce(tensor, greatest, group, async_op=True), end)
                reduced = tensor.cpu().numpy()
        return reduced

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        end = _end(deadline)
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = len(data)
        sizes = self.all_reduce_max(sizes, deadline)
        gathered = np.frombuffer(data.ljust(int(sizes.max()), b"\0"), np.uint8)
        for group, device in zip(self._groups, self._devices, strict=True):
            with self._failing(end):
                tensor = self._torch.from_numpy(gathered.copy()).to(device)
                parts = [self._torch.empty_like(tensor) for _ in range(self._distributed.get_world_size(group))]
                if gathered.size:
                    self._wait(self._distributed.all_gather(parts, tensor, group, async_op=True), end)
                gathered = self._torch.cat(parts).cpu().numpy()
        return [part[:size].tobytes() for part, size in zip(gathered.reshape(self.size, -1), sizes, strict=True)]

    @contextlib.contextmanager
    def _failing(self, end: float) -> Iterator[None]:
        if self._failure is not None:
            raise unmet("collective", f"not usable after an earlier failure: {self._failure}")
        try:
            yield
        except Exception as error:
            self._failure = f"collective: {error}"
            # torch says "timed out" in many ways.
            if time.monotonic() + _ROUNDING >= end:
                raise errors.DeadlineExceededError(
                    "collective: a rank did not come in time", code_name="DEADLINE_EXCEEDED"
                ) from error
            raise errors.RoutingReplayError(self._failure, code_name="UNAVAILABLE") from error

    def _wait(self, work: Any, end: float) -> None:
        seconds = min(end - time.monotonic(), FOR_EVER)
        left = datetime.timedelta(milliseconds=max(1, math.ceil(1000 * seconds)))  # 0 would be for ever.
        if work.wait(left) is False:
            raise TimeoutError(f"not ended after {left}")


_ROUNDING = 0.01  # Timeouts of torch are whole milliseconds.


def _end(deadline: float) -> float:
    return time.monotonic() + deadline


def agree(
    collective: Collective,
    reports: Sequence[SampleReport],
    policy: Policy = "strict",
    deadline: float = 120.0,
    *,
    geometry: int = 0,
    failed: bool = False,
) -> StepDecision:
    """What all ranks do with the samples of a step; the same on all of them.

    reports: one per sample of the step, in the same order on all ranks
    policy: of a sample that a rank misses: "strict" raises FailedPreconditionError naming it, on all ranks
    deadline: seconds for all of it. It covers how much later the slowest rank comes: all that a rank may spend on
        asking its source, and a margin
    geometry: fingerprint of the run's geometry (`Plan.geometry_fingerprint`), 0 on all ranks if not known
    failed: this rank's source failed: it misses all samples, whatever `reports` says of them

    Raises, on all ranks alike, FailedPreconditionError naming the sample and both values where ranks that have a sample
    have another num_tokens, revision or content id of it; where ranks are of other samples, or another policy, geometry
    or version; and where an argument is wrong on another rank: on that one it is InvalidArgumentError.
    DeadlineExceededError where a rank does not come.
    """
    end = _end(deadline)
    wrong: Exception | None = None
    try:
        step = _describe(reports, policy, geometry, failed)
    except Exception as error:  # The other ranks must learn of it.
        step, wrong = None, error
    return _decision(reports, _decided(collective, step, wrong, end))


def take_no_part(collective: Collective, deadline: float, wrong: Exception) -> None:
    """Instead of `agree`, of a rank that cannot say what its samples are: the others raise FailedPreconditionError that
    names this rank. Raises `wrong`, or what the collective raises."""
    _decided(collective, None, wrong, _end(deadline))


def _decided(
    collective: Collective, step: Mapping[str, Any] | None, wrong: Exception | None, end: float
) -> dict[str, Any]:
    """step: of this rank; None if it has none, `wrong` being why"""
    agreement = _core.make(LIBRARY.rrt_agreement_new, collective.rank, _core.text(step))
    words = ctypes.c_void_p()
    while count := LIBRARY.rrt_agreement_words(agreement.pointer, ctypes.byref(words)):
        own = np.frombuffer(ctypes.string_at(words.value or 0, 8 * count), np.int64)
        reduced = np.ascontiguousarray(collective.all_reduce_max(own, end - time.monotonic()), np.int64)
        try:
            LIBRARY.rrt_agreement_push(agreement.pointer, reduced.ctypes.data, reduced.size)
        except errors.RoutingReplayError as error:
            raise wrong or error from None
    return _core.give(LIBRARY.rrt_agreement_decision, agreement.pointer)


def _describe(reports: Sequence[SampleReport], policy: str, geometry: int, failed: bool) -> dict[str, Any]:
    samples = []
    for report in reports:
        fields = asdict(report)
        if not isinstance(report.sample, str):
            fields["handle"] = integer(fields.pop("sample"), "sample")
        samples.append(plain(fields, "reports", report.sample))
    fingerprint = integer(geometry, "geometry", (0, 2**64 - 1))
    return {
        "policy": policy,
        "geometry_fingerprint": fingerprint,
        "source_failed": bool(failed),
        "samples": samples,
    }


def _decision(reports: Sequence[SampleReport], fields: dict[str, Any]) -> StepDecision:
    unknown = dict.fromkeys(Decision.__dataclass_fields__)
    fields["samples"] = tuple(
        Decision(**unknown | decision | {"sample": report.sample})
        for report, decision in zip(reports, fields["samples"], strict=True)
    )
    return StepDecision(**fields)
