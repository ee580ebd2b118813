"""What goes wrong, as exceptions: one class per status code, with the fields that programs need.

All of them can be pickled, so they cross process borders (multiprocessing, Ray).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RoutingReplayError(Exception):
    """Any error of the service or of the client.

    Attributes are None where the error does not say:

    code: name of the status code, for example "INVALID_ARGUMENT"
    message: for people
    reason: for programs, for example "ID_RANGE" (ErrorDetail.Reason in common.proto)
    field: path of the wrong field, for example "append.tensor.dtype"
    sample: sample id
    row: absolute row number
    layer: global decoder layer id
    committed_rows, revision: of the sample
    first_differing_block: number of the first block window whose tokens differ
    missing_rows: list of half-open (begin, end)
    retry_after_ms: how long to wait
    failed_samples: of `flush`: ids of all samples of which an append failed since the last one, up to 100,000
    failures: of `flush`: the first 100 such appends, as (sample, error)
    """

    code: str = "UNKNOWN"

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = detail.get("code_name", type(self).code)
        self.reason: str | None = detail.get("reason")
        self.field: str | None = detail.get("field")
        self.sample: str | None = detail.get("sample")
        self.row: int | None = detail.get("row")
        self.layer: int | None = detail.get("layer")
        self.committed_rows: int | None = detail.get("committed_rows")
        self.revision: int | None = detail.get("revision")
        self.first_differing_block: int | None = detail.get("first_differing_block")
        ranges = detail.get("missing_rows")
        self.missing_rows: list[tuple[int, int]] | None = ranges and [(begin, end) for begin, end in ranges]
        self.retry_after_ms: int | None = detail.get("retry_after_ms")
        self._detail = detail

    @property
    def failed_samples(self) -> list[str]:
        return list(self._detail.get("failed_samples", ()))

    @property
    def failures(self) -> list[tuple[str, RoutingReplayError]]:
        return list(self._detail.get("failures", ()))

    def tell_failures(self, samples: list[str], failures: list[tuple[str, RoutingReplayError]]) -> None:
        """Adds to `failed_samples` and `failures`."""
        names = list(dict.fromkeys(self.failed_samples + samples))
        told = {"failed_samples": names, "failures": self.failures + failures}
        self._detail = {**self._detail, **told}

    def renamed(self, names: Mapping[str, str]) -> RoutingReplayError:
        """This error with its field called as `names` says."""
        name = names.get(self.field or "")
        if name is None:
            return self
        what = self.message.removeprefix(f"{self.field}: ")
        return type(self)(f"{name}: {what}", **self._detail | {"field": name})

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self._detail)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.code}{reason}: {self.message}"


class CancelledError(RoutingReplayError):
    """The call was given up."""

    code = "CANCELLED"


class UnknownError(RoutingReplayError):
    """The server said nothing more precise."""

    code = "UNKNOWN"


class InvalidArgumentError(RoutingReplayError, ValueError):
    """The request or the payload itself is wrong: field, row and layer say where."""

    code = "INVALID_ARGUMENT"


class DeadlineExceededError(RoutingReplayError, TimeoutError):
    """No answer in time."""

    code = "DEADLINE_EXCEEDED"


class NotFoundError(RoutingReplayError, LookupError):
    """No such run (NO_RUN) or sample (NO_SAMPLE)."""

    code = "NOT_FOUND"


class AlreadyExistsError(RoutingReplayError):
    """The sample holds rows of other tokens (OTHER_TOKENS), or other routes in a strict run (CONFLICTING_ROWS)."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(RoutingReplayError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"


class ResourceExhaustedError(RoutingReplayError):
    """No room: in the server's budget or in the appender's queue. retry_after_ms may say how long."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(RoutingReplayError):
    """Right request, wrong moment: a gap, an old revision, a sealed sample, another geometry."""

    code = "FAILED_PRECONDITION"


class FallbackLimitError(FailedPreconditionError):
    """More of a training step's samples fall back to live routing than `max_fallback_fraction` allows.

    samples, fallen_back: how many the step has, and how many of them fall back
    by_status: how many fall back for which reason, for example {"NOT_FOUND": 12}
    first: some of those that fall back: (sample id or handle, status)
    """

    @property
    def samples(self) -> int:
        return self._detail["samples"]

    @property
    def fallen_back(self) -> int:
        return self._detail["fallen_back"]

    @property
    def by_status(self) -> dict[str, int]:
        return dict(self._detail["by_status"])

    @property
    def first(self) -> list[tuple[str | int, str]]:
        return [(sample, status) for sample, status in self._detail["first"]]


class AbortedError(RoutingReplayError):
    """The call was given up because of another one."""

    code = "ABORTED"


class OutOfRangeError(RoutingReplayError, IndexError):
    """Rows past the end."""

    code = "OUT_OF_RANGE"


class UnimplementedError(RoutingReplayError, NotImplementedError):
    """The server lacks this."""

    code = "UNIMPLEMENTED"


class InternalError(RoutingReplayError):
    """Client or server do not keep to the protocol."""

    code = "INTERNAL"


class UnavailableError(RoutingReplayError, ConnectionError):
    """The server cannot be reached, or is shutting down (DRAINING)."""

    code = "UNAVAILABLE"


class DataLossError(RoutingReplayError):
    """Bytes do not fit their checksum, or rows did not come."""

    code = "DATA_LOSS"


class UnauthenticatedError(RoutingReplayError):
    """The caller did not say who it is."""

    code = "UNAUTHENTICATED"


_BY_NAME = {kind.code: kind for kind in RoutingReplayError.__subclasses__()}


def from_detail(detail: dict[str, Any]) -> RoutingReplayError:
    """The exception that the core describes (proto/json/status_json.h)."""
    fields = {key: value for key, value in detail.items() if key not in ("code", "message")}
    return _BY_NAME.get(detail["code_name"], UnknownError)(detail["message"], **fields)


def _restore(kind: type[RoutingReplayError], message: str, detail: dict[str, Any]) -> RoutingReplayError:
    return kind(message, **detail)
