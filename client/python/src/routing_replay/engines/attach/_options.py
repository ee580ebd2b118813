"""How rows leave an engine, as the caller says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from routing_replay import _values

if TYPE_CHECKING:
    from routing_replay.types import OnFull


class AttachOptions(TypedDict, total=False):
    """How rows leave the engine.

    max_queued_bytes: of rows that wait to be encoded (default 256 MiB)
    on_full: "block" (default: for at most queue_timeout seconds, then drop), "drop" or "raise"
    queue_timeout: seconds (default 60) that each call of the engine may wait, for all of its outputs together
    replace: whether the rows in the output give way to a reference (default True); rows that are dropped do not
    seal: whether a finished output ends its sample (default True); False for turns that go on
    group, weight_version, weight_label: of all appends until set anew on the attachment; without a version that which
        the outputs tell

    InvalidArgumentError, when an engine is attached, for another name or a value that is none of these.
    """

    max_queued_bytes: int
    on_full: OnFull
    queue_timeout: float
    replace: bool
    seal: bool
    group: int | None
    weight_version: int | None
    weight_label: str


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All of AttachOptions, with defaults where nothing is given."""
    for name in options:
        if name not in _DEFAULTS:
            raise _values.invalid(str(name), f"is no option of an attachment; these are: {', '.join(_DEFAULTS)}")
    return {name: _CHECKS[name](options.get(name, default), name) for name, default in _DEFAULTS.items()}


class Stamp:
    """An attribute of an attachment that goes along with every append: an option that can be set anew."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, attachment: Any, owner: type | None = None) -> Any:
        return self if attachment is None else vars(attachment)[self._name]

    def __set__(self, attachment: Any, value: Any) -> None:
        vars(attachment)[self._name] = _CHECKS[self._name](value, self._name)


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _values.invalid(field, f"{value!r} is neither True nor False")
    return bool(value)


def _label(value: Any, field: str) -> str:
    if len(_values.text(value, field).encode()) > _LABEL_BYTES:
        raise _values.invalid(field, f"is longer than {_LABEL_BYTES} bytes")
    return value


def _optional(low: int) -> Callable[[Any, str], int | None]:
    """An integer from `low` on, or None."""
    return lambda value, field: None if value is None else _values.integer(value, field, (low, _values.INT64[1]))


_LABEL_BYTES = 128
_DEFAULTS: dict[str, Any] = {
    "max_queued_bytes": 256 << 20,
    "on_full": "block",
    "queue_timeout": 60.0,
    "replace": True,
    "seal": True,
    "group": None,
    "weight_version": None,
    "weight_label": "",
}

_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "max_queued_bytes": lambda value, field: _values.integer(value, field, _values.NATURAL),
    "on_full": lambda value, field: _values.choice(value, field, {name: name for name in ("block", "drop", "raise")}),
    "queue_timeout": _values.seconds,
    "replace": _flag,
    "seal": _flag,
    "group": _optional(_values.INT64[0]),
    "weight_version": _optional(-1),  # Which is unknown.
    "weight_label": _label,
}
