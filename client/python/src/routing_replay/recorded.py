"""The result of an engine's adapter, and counters of the adapters."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np

from routing_replay import _values
from routing_replay.errors import InvalidArgumentError
from routing_replay.types import RowRange, WeightSpan, weight_spans

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from routing_replay.types import Payload

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Rows of one sample as an engine returned them, with everything that its response says of them.

    `append`, `put` and `Trajectory.add` take it in place of rows. It is the absolute rows
    [row_start, row_start + missing_rows + slots), where slots are those of `take`:

    rows: ids [slots, layers, K] of an integer dtype, or a Payload of such, undecoded; None: nothing was recorded
    row_start: absolute row of the first row
    take: half-open range of the first axis of `rows` that counts; None: all of it
    layers: what the axis of layers holds: "all", "moe", decoder layer ids, or None: by its length
    weights: weight versions of ranges of absolute rows, ascending and disjoint; may be empty
    engine: for people, for example "vllm 0.33.0"
    surplus_rows: slots outside of `take`: 1 if the engine returned a row for the last token
    missing_rows: rows from row_start on that the engine did not return; they become unrecorded
    tokens: token ids, uint32, one per position from 0 on, or None
    """

    rows: ArrayLike | Payload | None
    row_start: int = 0
    take: RowRange | None = None
    layers: Literal["all", "moe"] | Sequence[int] | None = None
    weights: tuple[WeightSpan, ...] = ()
    engine: str = ""
    surplus_rows: int = 0
    missing_rows: int = 0
    tokens: np.ndarray | None = None

    def without(self, end: int) -> RecordedRows:
        """With the rows before the absolute row `end` missing: they are of another request."""
        begin, past = self.take or (0, 0)
        lost = min(end - self.row_start - self.missing_rows, past - begin)
        if lost <= 0:
            return self
        missing = self.missing_rows + lost
        if begin + lost == past:
            return replace(self, rows=None, take=None, missing_rows=missing)
        return replace(self, take=(begin + lost, past), missing_rows=missing)

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The options of an append of these rows; those that are `given` win.

        A weight_version in `given` is that of all rows, a label alone that of rows without a span in `weights`; with a
        row_start the missing rows and the weights move along.
        """
        start = _values.integer(given.get("row_start", self.row_start), "append.row_start")
        missing = _values.integer(self.missing_rows, "append.unrecorded")
        options: dict[str, Any] = {name: getattr(self, name) for name in ("take", "layers", "engine", "tokens")}
        options |= {"row_start": start, "surplus_rows": self.surplus_rows}
        if missing:
            options["unrecorded"] = [(start, start + missing)]
        if given.get("weight_version") is None:
            options["weights"] = self.weights_at(start, given.get("take"), "append.weights")
        return options | given

    def weights_at(self, start: int, take: RowRange | None = None, field: str = "weights") -> list[WeightSpan]:
        """`weights` if the first row is appended as the absolute row `start`: each moves with its rows.

        take: other slots than those of `take`; then only their weights
        """
        spans = weight_spans(self.weights, field)
        distance = start - _values.integer(self.row_start, "row_start")
        if take is None:
            return [_moved(span, distance) for span in spans]
        [(first, _), (begin, end)] = _values.row_ranges([(0, 0) if self.take is None else self.take, take], "take")
        rows = (start, start + _values.integer(self.missing_rows, "missing_rows") + end - begin)
        moved = [_moved(span, distance + first - begin) for span in spans]
        clipped = [replace(span, begin=max(rows[0], span.begin), end=min(rows[1], span.end)) for span in moved]
        return [span for span in clipped if span.begin < span.end]


def _moved(span: WeightSpan, distance: int) -> WeightSpan:
    return replace(span, begin=span.begin + distance, end=span.end + distance)


# What the adapters of this process rejected and left out, for any run: they do not know it.

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter(adapter_refused=0, adapter_surplus_rows=0)


def adapter_metrics() -> dict[str, int]:
    """Flat: adapter_refused (calls), adapter_refused_<reason>, adapter_surplus_rows."""
    with _lock:
        return dict(_counts)


def count_adapter(name: str, count: int = 1) -> None:
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
                count_adapter("adapter_refused")
                count_adapter(f"adapter_refused_{(error.reason or 'unspecified').lower()}")
            raise

    return call
