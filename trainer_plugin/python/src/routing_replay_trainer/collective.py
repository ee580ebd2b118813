"""The ranks of a model replica, and how they agree on a step.

    decision = agree(TorchCollective([tp_cp_group, pp_group]), samples, records, policy="live", deadline=120.0)

Every rank of the collective must call `agree` once per step, even after a failure. A rank whose source failed passes
`failed=True`, so that the other ranks do not wait for it until the deadline. In the end all ranks have the same
decision or the same error.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import math
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from routing_replay import errors
from routing_replay._values import integer, seconds

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, invalid, plain, unmet
from routing_replay_trainer.fetch import Missing

Action = Literal["replay", "live", "drop"]


@dataclass(frozen=True)
class Decision:
    """The decision of all ranks on one sample.

    sample: id or handle
    action: "replay"; or, if the sample is missing on some rank, "live" (the whole sample routes live) or "drop", as the
        policy says
    status: "OK", or the worst status that a rank has seen; SOURCE_FAILED if the source of a rank failed
    missing_on: the lowest rank on which the sample is missing
    num_tokens, content_id: of the sample, from the ranks that have it
    oldest_weight_version, newest_weight_version: of the sample's rows; an unknown version counts as -1
    """

    sample: str | int
    action: Action
    status: str
    missing_on: int | None
    num_tokens: int | None
    content_id: int | None
    oldest_weight_version: int | None
    newest_weight_version: int | None


@dataclass(frozen=True)
class StepDecision:
    """The decision of a replica's ranks on a step, the same on all of them.

    decisions: one per sample that was asked about (several if its sequences differ), in the order of first mention
    counts: number of decisions by status
    replayed, fallen_back: number of decisions to replay, and of all others
    """

    decisions: tuple[Decision, ...]
    counts: Mapping[str, int]
    replayed: int
    fallen_back: int

    @property
    def live(self) -> tuple[str | int, ...]:
        """Samples (ids or handles) that fall back under the policy "live": at least one of their sequences routes live.
        Sequences that belong to no sample (None or handle 0) are not listed."""
        return self._samples("live")

    @property
    def dropped(self) -> tuple[str | int, ...]:
        """Samples that fall back under the policy "drop": they route live, and the caller must leave them out of the
        loss."""
        return self._samples("drop")

    def _samples(self, action: Action) -> tuple[str | int, ...]:
        return tuple(dict.fromkeys(decided.sample for decided in self.decisions if decided.action == action))


NO_STEP = StepDecision((), {}, 0, 0)


class Collective(Protocol):
    """The ranks of a model replica. The deadline of a call is in seconds from its start.

    A call never hangs: it raises DeadlineExceededError if a rank does not take part in time. After a failure the
    collective cannot be used any more: every later call raises FailedPreconditionError.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        """Returns the maximum of each value over all ranks. All ranks must pass the same number of values."""
        ...

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        """Returns the data of each rank, in the order of the ranks."""
        ...


class Alone:
    """A collective of one rank."""

    rank, size = 0, 1

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        return values

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        return [data]


class TorchCollective:
    """Several torch.distributed groups (gloo or nccl) used together as one collective, for example
    [tensor-and-context-parallel, pipeline]. The ranks form a grid: the first group is this rank's row, the second its
    column, and so on. `rank` is the position in this grid, with the rank in the first group varying fastest.

    groups: process groups that contain this rank; None is the default group. They may be the framework's own groups, as
        long as no other thread uses them at the same time. But torch cannot cancel a call, so after a failure, for
        example at a deadline, a group cannot be used for anything else
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        import torch.distributed  # Imported here, because only users of this class need torch.

        self._torch = torch
        self._distributed = distributed = torch.distributed
        self._groups = list(groups)
        self._devices = [self._device(group) for group in self._groups]
        self._failure: str | None = None
        self.rank, self.size = 0, 1
        for group in self._groups:
            self.rank += distributed.get_rank(group) * self.size
            self.size *= distributed.get_world_size(group)

    def _device(self, group: Any) -> Any:
        on_host = "gloo" in str(self._distributed.get_backend(group))
        return self._torch.device("cpu") if on_host else self._torch.device("cuda", self._torch.cuda.current_device())

    def all_reduce_max(self, values: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        end = time.monotonic() + deadline
        reduced = np.array(values, np.int64)
        greatest = self._distributed.ReduceOp.MAX
        for group, device in zip(self._groups, self._devices, strict=True):
            with self._failing(end):
                tensor = self._torch.from_numpy(reduced).to(device)
                self._wait(self._distributed.all_reduce(tensor, greatest, group, async_op=True), end)
                reduced = tensor.cpu().numpy()
        return reduced

    def all_gather(self, data: bytes, deadline: float) -> list[bytes]:
        end = time.monotonic() + deadline
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
            # Whether this is a timeout is judged by the time, because torch has many messages for it.
            if time.monotonic() + _ROUNDING >= end:
                raise errors.DeadlineExceededError("collective: a rank did not take part in time") from error
            raise errors.RoutingReplayError(self._failure, code_name="UNAVAILABLE") from error

    def _wait(self, work: Any, end: float) -> None:
        left_ms = math.ceil(1000 * seconds(max(end - time.monotonic(), 0.0)))
        left = datetime.timedelta(milliseconds=max(1, left_ms))  # A timeout of 0 would wait forever.
        if work.wait(left) is False:
            raise TimeoutError(f"not ended after {left}")


_ROUNDING = 0.01  # Seconds by which a timeout may come early, because torch rounds it to whole milliseconds.


def agree(
    collective: Collective,
    samples: Sequence[str | int],
    records: Sequence[Mapping[str, Any]],
    policy: Missing = "strict",
    deadline: float = 120.0,
    *,
    geometry: int = 0,
    failed: bool = False,
) -> StepDecision:
    """Agrees on what all ranks do with the samples of a step. The result is the same on all ranks.

    samples: ids or handles of the step's samples, in the same order on all ranks
    records: what this rank's source reports about each sample (as `Batch.sequences`)
    policy: what happens to a sample that is missing on some rank: "strict" raises FailedPreconditionError naming the
        sample, on all ranks; "live" or "drop" becomes its action
    deadline: seconds for the whole call. Make it longer than the first rank may have to wait for the last one
    geometry: fingerprint of the model's geometry (from `Plan.described`); 0 on all ranks if unknown
    failed: True if this rank's source failed: then all samples count as missing here, whatever `records` says

    Raises FailedPreconditionError on all ranks alike: if ranks know different num_tokens or content ids of a sample
    (the message names the sample and both values); if ranks differ in their samples, policy, geometry or version; and
    if an argument is wrong on another rank (that rank raises InvalidArgumentError). Raises DeadlineExceededError if a
    rank does not take part in time.
    """
    end = time.monotonic() + deadline
    wrong: Exception | None = None
    try:
        step = _describe(samples, records, policy, geometry, failed)
    except Exception as error:  # Take part all the same, so that the other ranks learn of the error.
        step, wrong = None, error
    return _decision(samples, _decided(collective, step, wrong, end))


def share(ranks: Collective, samples: Any, deadline: float = 120.0) -> Any:
    """Passes sample ids or handles to ranks without a data iterator, such as those of middle pipeline stages. All ranks
    must call this together; each gets what the lowest rank with samples has passed.

    samples: any value that can be pickled; None on ranks that do not have the samples. InvalidArgumentError if no rank
        has them
    """
    parts = ranks.all_gather(b"" if samples is None else pickle.dumps(samples), deadline)
    given = next((part for part in parts if part), None)
    if given is None:
        raise invalid("samples", "no rank has them")
    return pickle.loads(given)


def take_no_part(collective: Collective, deadline: float, wrong: Exception) -> None:
    """Call this instead of `agree` on a rank that, because of the error `wrong`, does not know its samples: the other
    ranks then raise FailedPreconditionError naming this rank. Raises `wrong`, or an error of the collective."""
    _decided(collective, None, wrong, time.monotonic() + deadline)


def _decided(
    collective: Collective, step: Mapping[str, Any] | None, wrong: Exception | None, end: float
) -> dict[str, Any]:
    """Exchanges reports with the other ranks and returns what all ranks decided. step: this rank's report; None if the
    error `wrong` prevented it"""
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


def _describe(
    samples: Sequence[str | int], records: Sequence[Mapping[str, Any]], policy: str, geometry: int, failed: bool
) -> dict[str, Any]:
    described = []
    for sample, record in zip(samples, records, strict=True):
        versions = [span[2] for span in record.get("weights", ())]
        fields = {name: record.get(name) for name in ("status", "num_tokens", "content_id")}
        fields["oldest_weight_version"] = min(versions, default=None)
        fields["newest_weight_version"] = max(versions, default=None)
        fields |= {"sample": sample} if isinstance(sample, str) else {"handle": integer(sample, "sample")}
        described.append(plain(fields, "records", sample))
    fingerprint = integer(geometry, "geometry", (0, 2**64 - 1))
    return {
        "policy": policy,
        "geometry_fingerprint": fingerprint,
        "source_failed": bool(failed),
        "samples": described,
    }


def _decision(samples: Sequence[str | int], fields: dict[str, Any]) -> StepDecision:
    unknown = dict.fromkeys(Decision.__dataclass_fields__)
    decisions = tuple(
        Decision(**unknown | decision | {"sample": sample})
        for sample, decision in zip(samples, fields.pop("samples"), strict=True)
    )
    return StepDecision(decisions, **fields)
