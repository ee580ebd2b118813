"""What an engine's adapter makes of a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from routing_replay.types import RowRange, WeightSpan

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from routing_replay.types import AppendOptions, Payload


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Rows of one sample as an engine gave them, with all that its response says of them.

    `append`, `put` and `Trajectory.add` take it in place of rows. It stands for the absolute rows
    [row_start, row_start + missing_rows + slots), where slots are those of `take`:

    rows: ids [slots, layers, K] of an integer dtype, or a Payload of such, undecoded; None: nothing was recorded
    row_start: absolute row of the first row
    take: half-open range of the first axis of `rows` that counts; None: all of it
    layers: what the axis of layers holds: "all", "moe", decoder layer ids, or None: told by its length
    weights: weight versions of ranges of absolute rows, ascending and disjoint; may be empty
    engine: for people, for example "vllm 0.33.0"
    surplus_rows: slots outside of `take`: 1 where the engine gave a row for the last token, which has none
    missing_rows: rows from row_start on that the engine did not give; they become unrecorded
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

    def options(self, given: AppendOptions | dict[str, Any]) -> dict[str, Any]:
        """The options of an append of these rows; those that are `given` win.

        A weight_version that is given stands for all rows, a label alone for those that `weights` does not name; with
        a row_start the missing rows move along.
        """
        start = given.get("row_start", self.row_start)
        own: dict[str, Any] = {"row_start": start, "take": self.take, "layers": self.layers, "engine": self.engine}
        own["tokens"] = self.tokens
        own["surplus_rows"] = self.surplus_rows
        if self.missing_rows:
            own["unrecorded"] = [(start, start + self.missing_rows)]
        if given.get("weight_version") is None:
            own["weights"] = self.weights
        return own | given
