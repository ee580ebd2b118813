"""Exceptions: one class per status code, with the fields that programs need.

All of them can be pickled, so they can be passed between processes (multiprocessing, Ray).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

TEXTS = ("reason", "field", "sample")
NUMBERS = ("row", "layer", "first_differing_block", "retry_after_ms", "committed_rows", "revision")


class RoutingReplayError(Exception):
    """Any error of the service or of the client.

    Attributes that an error does not set are None:

    code: name of the status code, for example "INVALID_ARGUMENT"
    message: text for people
    reason: name for programs, for example "ID_RANGE" (ErrorDetail.Reason in common.proto)
    field: path of the wrong field, for example "append.tensor.dtype"
    sample: sample id
    row: absolute row number
    layer: global decoder layer id
    committed_rows, revision: the sample's number of committed rows, and its revision
    first_differing_block: index of the first block of rows whose stored tokens differ from those of the request
    retry_after_ms: how long to wait before a retry
    failed_samples: if `flush` raised the error, ids of the samples with failed appends, at most 100,000; else []
    failures: if `flush` raised the error, the first 100 failed appends, as (sample, error); else []
    """

    code: str = "UNKNOWN"
    message: str
    reason: str | None
    field: str | None
    sample: str | None
    row: int | None
    layer: int | None
    committed_rows: int | None
    revision: int | None
    first_differing_block: int | None
    retry_after_ms: int | None
    failed_samples: list[str]
    failures: list[tuple[str, RoutingReplayError]]

    def __init_subclass__(cls, code: str | None = None) -> None:
        cls.code = code or cls.code

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = detail.get("code_name", type(self).code)
        for name in TEXTS + NUMBERS:
            setattr(self, name, detail.get(name))
        self.failed_samples = list(detail.get("failed_samples", ()))
        self.failures = list(detail.get("failures", ()))
        self._detail = detail

    def with_failures(self, samples: list[str], failures: list[tuple[str, RoutingReplayError]]) -> RoutingReplayError:
        """Returns a copy of this error, with these added to its `failed_samples` and `failures`."""
        names = list(dict.fromkeys(self.failed_samples + samples))
        detail = self._detail | {"failed_samples": names, "failures": self.failures + failures}
        return type(self)(self.message, **detail)

    def renamed(self, names: Mapping[str, str]) -> RoutingReplayError:
        """Returns a copy in which names[field] replaces the field's name, or this error if `names` lacks the field."""
        name = names.get(self.field or "")
        if name is None:
            return self
        what = self.message.removeprefix(f"{self.field}: ")
        return type(self)(f"{name}: {what}", **self._detail | {"field": name})

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self.message, **self._detail), ()

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.code}{reason}: {self.message}"


class CancelledError(RoutingReplayError, code="CANCELLED"):
    """The call was cancelled, or its client is closed."""


class UnknownError(RoutingReplayError, code="UNKNOWN"):
    """The status code is UNKNOWN, or one that this client does not know."""


class InvalidArgumentError(RoutingReplayError, ValueError, code="INVALID_ARGUMENT"):
    """The request or the payload itself is wrong: field, row and layer say where."""


class DeadlineExceededError(RoutingReplayError, TimeoutError, code="DEADLINE_EXCEEDED"):
    """There was no answer in time."""


class NotFoundError(RoutingReplayError, LookupError, code="NOT_FOUND"):
    """No such run (NO_RUN) or sample (NO_SAMPLE)."""


class AlreadyExistsError(RoutingReplayError, code="ALREADY_EXISTS"):
    """The sample has rows of other tokens (OTHER_TOKENS) or, in a strict run or for `restore`, other routes
    (CONFLICTING_ROWS); another sample has the same handle (HANDLE_COLLISION); or a checkpoint's directory has files."""


class PermissionDeniedError(RoutingReplayError, code="PERMISSION_DENIED"):
    """The caller lacks the permission for this call."""


class ResourceExhaustedError(RoutingReplayError, code="RESOURCE_EXHAUSTED"):
    """The server's memory budget or the appender's queue is full. retry_after_ms may say when to retry."""


class FailedPreconditionError(RoutingReplayError, code="FAILED_PRECONDITION"):
    """The request is valid, but the state of the run, sample or client forbids it. Example: a sealed sample."""


class FallbackLimitError(FailedPreconditionError):
    """More of a training step's samples fall back to live routing than `max_fallback_fraction` allows.

    samples, fallen_back: number of samples in the step, and number of those that fall back
    by_status: for each status, the number of samples that fall back because of it, for example {"NOT_FOUND": 12}
    first: the first samples that fall back, as (sample id or handle, status)
    """

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message, **detail)
        self.samples: int = detail["samples"]
        self.fallen_back: int = detail["fallen_back"]
        self.by_status: dict[str, int] = dict(detail["by_status"])
        self.first: list[tuple[str | int, str]] = [(sample, status) for sample, status in detail["first"]]


class AbortedError(RoutingReplayError, code="ABORTED"):
    """The call was aborted because of a concurrent call."""


class OutOfRangeError(RoutingReplayError, IndexError, code="OUT_OF_RANGE"):
    """The request names rows that the sample does not have: for example, `truncate` to more rows than it has."""


class UnimplementedError(RoutingReplayError, NotImplementedError, code="UNIMPLEMENTED"):
    """The server does not implement this."""


class InternalError(RoutingReplayError, code="INTERNAL"):
    """The client or the server violated the protocol."""


class UnavailableError(RoutingReplayError, ConnectionError, code="UNAVAILABLE"):
    """The server cannot be reached, or is shutting down (DRAINING)."""


class DataLossError(RoutingReplayError, code="DATA_LOSS"):
    """Bytes do not match their checksum, or rows were lost."""


class UnauthenticatedError(RoutingReplayError, code="UNAUTHENTICATED"):
    """The request has no valid credentials."""


_BY_NAME = {kind.code: kind for kind in RoutingReplayError.__subclasses__()}


def from_detail(detail: dict[str, Any]) -> RoutingReplayError:
    """Makes the exception of the class for `detail["code_name"]`, with `detail["message"]` and the other fields."""
    return _BY_NAME.get(detail["code_name"], UnknownError)(**detail)
