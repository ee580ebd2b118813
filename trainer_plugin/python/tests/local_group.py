"""The ranks of a model replica as threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from routing_replay import errors

from routing_replay_trainer._core import unmet


class LocalGroup(Sequence["LocalCollective"]):
    """The ranks of a group as threads of this process: `group[rank]` is for the thread of that rank."""

    def __init__(self, size: int) -> None:
        meeting = _Meeting(size)
        self._ranks = [LocalCollective(meeting, rank) for rank in range(size)]

    def __getitem__(self, rank: Any) -> Any:
        return self._ranks[rank]

    def __len__(self) -> int:
        return len(self._ranks)


class _Meeting:
    """A barrier for the ranks of a group that can be used again: a meeting ends when all ranks have come, and the next
    one cannot end before all have left this one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._here: dict[int, Any] = {}  # The values of the ranks that wait.
        self._met: list[Any] = []  # The values of the last meeting, by rank.
        self._number = 0
        self._failure: errors.RoutingReplayError | None = None

    def meet(self, rank: int, brought: Any, deadline: float) -> list[Any]:
        """Returns the values of all ranks. brought: a function's name, and its arguments"""
        end = time.monotonic() + min(deadline, threading.TIMEOUT_MAX)
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
        for other, (function, _) in self._here.items():
            if other == rank:
                return unmet("collective", f"rank {rank} calls twice at a time")
            if function != brought[0]:
                return unmet("collective", f"rank {rank} calls {brought[0]}, rank {other} {function}")
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


def fake_run() -> mock.Mock:
    """A run that accepts every `put`."""
    return mock.Mock(put=mock.Mock(return_value=mock.Mock(conflicting_rows=0, late_rows=0)))
