"""What the adapters of this process refused and left out, whichever run it was for: they know of none."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from routing_replay.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter(adapter_refused=0, adapter_surplus_rows=0)


def metrics() -> dict[str, int]:
    """Flat: adapter_refused (calls), adapter_refused_<reason>, adapter_surplus_rows."""
    with _lock:
        return dict(_counts)


def add(name: str, count: int = 1) -> None:
    with _lock:
        _counts[name] += count


def counted(adapter: Callable[P, T]) -> Callable[P, T]:
    """An adapter whose InvalidArgumentErrors are counted, each once."""

    @functools.wraps(adapter)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return adapter(*arguments, **keywords)
        except InvalidArgumentError as error:
            if not getattr(error, "_counted", False):
                error._counted = True  # type: ignore[attr-defined]
                add("adapter_refused")
                add(f"adapter_refused_{(error.reason or 'unspecified').lower()}")
            raise

    return call
