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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from routing_replay import errors
from routing_replay._values import integer

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, plain, unmet

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
        """What each rank gave, by rank; equally many bytes each."""
        ...


class LocalGroup(Sequence["LocalCollective"]):
    """The ranks of a group as threads of this process: `group[rank]` is for the thread of that rank."""

    def __init__(self, size: int) -> None:
        meeting = _Meeting(integer(size, "size", (1, 4096)))
        self._ranks = [LocalCollective(meeting, rank) for rank in range(meeting.size)]

    def __getitem__(self, rank: Any) -> Any:
        return self._ranks[rank]

    def __len__(self) -> int:
        return len(self._ranks)


class _Meeting:
    """Where the ranks of a group meet, again and again: the next meeting cannot end before all have left this one, as
    each of them comes to it, too."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._here: dict[int, Any] = {}  # What those brought that wait.
        self._met: list[Any] = []  # Of the last meeting, by rank.
        self._number = 0
        self._failure: errors.RoutingReplayError | None = None

    def meet(self, rank: int, brought: Any, deadline: float) -> list[Any]:
        """What all ranks brought. brought: a function's name, and what it was called with"""
        end = _end(min(deadline, threading.TIMEOUT_MAX))
        with self._changed:
            if self._failure is None:
                self._failure = self._wrong(rank, brought)
            if self._failure is None:
                self._here[rank] = brought
                if len(self._here) == self.size:
                    self._met = [self._here[other][1] for other in range(self.size)]
                    self._here = {}
                    self._number += 1
                    self._changed.notify_all()
                    return self._met
                number = self._number
                while self._number == number and self._failure is None:
                    if not self._changed.wait(max(0.0, end - time.monotonic())) and self._number == number:
                        self._failure = self._failure or self._late()
                if self._number != number:
                    return self._met
            self._changed.notify_all()
            raise type(self._failure)(self._failure.message, code_name=self._failure.code)

    def _wrong(self, rank: int, brought: Any) -> errors.RoutingReplayError | None:
        for other, (function, value) in self._here.items():
            if other == rank:
                return unmet("collective", f"rank {rank} calls twice at a time")
            if function != brought[0] or len(value) != len(brought[1]):
                what = f"{brought[0]} of {len(brought[1])} values, rank {other} {function} of {len(value)}"
                return unmet("collective", f"rank {rank} calls {what}")
        return None

    def _late(self) -> errors.RoutingReplayError:
        late = ", ".join(str(rank) for rank in range(self.size) if rank not in self._here)
        what = f"collective: of {self.size} ranks these did not come: {late}"
        return errors.DeadlineExceededError(what, code_name="DEADLINE_EXCEEDED")


class LocalCollective:
    """A rank of a LocalGroup."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self._failure: str | None = None
        self.rank = rank
        self.size = meeting.size

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        return np.max(self._meet("all_reduce_max", np.array(values, np.int64), deadline), axis=0)

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        return list(self._meet("all_gather", bytes(data), deadline))

    def _meet(self, function: str, value: Any, deadline: float) -> list[Any]:
        if self._failure is not None:
            raise unmet("collective", f"not usable after an earlier failure: {self._failure}")
        try:
            return self._meeting.meet(self.rank, (function, value), deadline)
        except errors.RoutingReplayError as error:
            self._failure = error.message
            raise


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
        gathered = np.frombuffer(data, np.uint8)
        for group, device in zip(self._groups, self._devices, strict=True):
            with self._failing(end):
                tensor = self._torch.from_numpy(gathered.copy()).to(device)
                parts = [self._torch.empty_like(tensor) for _ in range(self._distributed.get_world_size(group))]
                if gathered.size:
                    self._wait(self._distributed.all_gather(parts, tensor, group, async_op=True), end)
                gathered = self._torch.cat(parts).cpu().numpy()
        return _cut(gathered.tobytes(), self.size)

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
        left = datetime.timedelta(milliseconds=max(1, _milliseconds(end - time.monotonic())))  # 0 would be for ever.
        if work.wait(left) is False:
            raise TimeoutError(f"not ended after {left}")


_ROUNDING = 0.01  # Timeouts of torch are whole milliseconds.


def _end(deadline: float) -> float:
    return time.monotonic() + deadline


def _milliseconds(seconds: float) -> int:
    """For ever is a hundred years."""
    return math.ceil(1000 * min(max(seconds, 0.0), 3.2e9))


def _cut(gathered: bytes, parts: int) -> list[bytes]:
    size = len(gathered) // parts
    return [gathered[part * size : (part + 1) * size] for part in range(parts)]


def all_gather_any_size(collective: Collective, data: bytes, deadline: float) -> list[bytes]:
    """`all_gather` of bytes of which each rank has any number."""
    end = _end(deadline)
    sizes = np.zeros(collective.size, np.int64)
    sizes[collective.rank] = len(data)
    sizes = collective.all_reduce_max(sizes, deadline)
    gathered = collective.all_gather(data.ljust(int(sizes.max()), b"\0"), end - time.monotonic())
    return [part[:size] for part, size in zip(gathered, sizes, strict=True)]


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
