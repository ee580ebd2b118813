"""Reads the formats in which training frameworks pass on the expert ids that they got from the engine.

| format | written by | notes |
|---|---|---|
| "nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>" | NeMo-RL | int8, int16 or int32; rows of -1 are unrecorded |
| {data: base64, shape, start, dtype} | prime-rl | if absent, start is 0 and dtype is uint8 |
| {data: base64, shape, dtype} | SkyRL | pass dialect="skyrl"; dtype: the narrowest of uint8, int16, int32 for the ids |
| {data: base64, shape, dtype, __ndarray__: true} | ms-swift | pass dialect="ms_swift" |
| base64 of a .npy file | vLLM | |
| flat base64 | SGLang, AReaL | pass geometry, and dtype if it is not int32 |
| nested lists | NeMo-RL, older ms-swift, twinkle | converted by numpy, which takes a hundred times as long as base64 |
| a numpy or torch array | tunix, ROLL | rows of -1 are unrecorded |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from routing_replay import _values
from routing_replay.engines import _forms
from routing_replay.geometry import Geometry
from routing_replay.types import RecordedRows

Dialect = Literal["prime_rl", "skyrl", "ms_swift"]
_FIELD = "routed_experts"


def rows(
    value: Any,
    geometry: Geometry | None = None,
    *,
    tokens: Any = None,
    start: int = 0,
    dialect: Dialect = "prime_rl",
    dtype: str | None = None,
    layers: Literal["all", "moe"] | Sequence[int] | None = None,
) -> RecordedRows:
    """Reads the rows of one sample, in any format of the module's table.

    geometry: of the run; needed for flat ids
    tokens: token ids of all T positions. The number of rows is then checked, and a T-th row, that of the last token, is
        left out. None: all rows are taken
    start: absolute row number of the first row. If the object states a start, `start` must be equal to it, or 0
    dialect: "skyrl" or "ms_swift" for an object of that framework; "prime_rl" for every other format
    dtype: dtype of flat base64 ("uint8" …); None: int32
    layers: what the axis of layers holds: "all", "moe" or layer ids; None: its length decides

    Raises InvalidArgumentError (ENCODING, DTYPE, SHAPE, LENGTH, ROW_COUNT or FIELD) naming the field.
    """
    if _values.text(dialect, "dialect") == "prime_rl":
        found, own_start = _forms.any_payload(value, _FIELD, _forms.row_of(geometry, layers), dtype)
    else:
        found, own_start = _forms.object_payload(value, dialect, _FIELD)
    if dialect == "skyrl":
        _forms.check_narrowest(found)
    begin = _forms.start_of(own_start, start, _FIELD)
    ids = _forms.ids(tokens, "tokens")
    if ids is None:
        return RecordedRows(found, row_start=begin, layers=layers)
    counted = _forms.Tokens(ids, np.empty(0, np.uint32), ids.size, 0)
    return _forms.account(found, counted, begin, layers=layers)
