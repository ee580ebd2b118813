"""What goes wrong, as exceptions: one class per status code, with the fields that programs need.

What the service itself refuses comes as the exceptions of `routing_replay`. They have the same names and attributes,
but are unrelated classes: each of the two packages works without the other, so neither can define the classes of both.
Who uses a `ServiceSource` catches both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ReplayError(Exception):
    """Any error of the trainer plugin. Can be pickled.

    Attributes are None where the error does not say:

    code: name of the status code, for example "INVALID_ARGUMENT"
    message: for people
    reason: for programs, for example "ID_RANGE" (ErrorDetail.Reason in common.proto)
    field: path of the wrong field, for example "micro_batch.cp_size"
    sample, row, layer: where: sample id, absolute row number, global decoder layer id
    missing_rows: list of half-open (begin, end)
    """

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code: str = detail.get("code_name", "UNKNOWN")
        self.reason: str | None = detail.get("reason")
        self.field: str | None = detail.get("field")
        self.sample: str | None = detail.get("sample")
        self.row: int | None = detail.get("row")
        self.layer: int | None = detail.get("layer")
        ranges = detail.get("missing_rows")
        self.missing_rows: list[tuple[int, int]] | None = ranges and [(begin, end) for begin, end in ranges]
        self._detail = detail

    def renamed(self, names: Mapping[str, str]) -> ReplayError:
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


class InvalidArgumentError(ReplayError, ValueError):
    """A description, an array or a payload is wrong: field, row and layer say where."""


class FailedPreconditionError(ReplayError):
    """A sample that cannot be replayed under `missing="strict"`, or a step out of order."""


class DataLossError(ReplayError):
    """Bytes do not fit their checksum, or rows did not come."""


class InternalError(ReplayError):
    """The server does not keep to the protocol, or a bug."""


class DeadlineExceededError(ReplayError, TimeoutError):
    """What was waited for did not come in time."""


class CancelledError(ReplayError):
    """What was asked was stopped meanwhile, by `close()`."""


class FallbackLimitError(FailedPreconditionError):
    """More of a step's samples fall back to live routing than `max_fallback_fraction` allows.

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


_BY_NAME: dict[str, type[ReplayError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "FAILED_PRECONDITION": FailedPreconditionError,
    "DATA_LOSS": DataLossError,
    "CANCELLED": CancelledError,
    "INTERNAL": InternalError,
}


def from_detail(detail: dict[str, Any]) -> ReplayError:
    """The exception that the core describes (proto/json/status_json.h)."""
    fields = {key: value for key, value in detail.items() if key not in ("code", "message")}
    return _BY_NAME.get(detail["code_name"], ReplayError)(detail["message"], **fields)


def _restore(kind: type[ReplayError], message: str, detail: dict[str, Any]) -> ReplayError:
    return kind(message, **detail)
