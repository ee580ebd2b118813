"""From the arguments of `append` to a plan of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from routing_replay import _core
from routing_replay.errors import InvalidArgumentError, from_detail
from routing_replay.types import AppendOutcome, Payload, Prefix, Producer, RowRange

_DTYPES = {"u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "i4": "I32", "i8": "I64"}


def make_plan(
    run: _core.Run,
    encode: bool,
    sample: str,
    rows: Any = None,
    *,
    row_start: int = 0,
    take: RowRange | None = None,
    unrecorded: Sequence[RowRange] = (),
    tokens: Any = None,
    layers: str | Sequence[int] | None = None,
    seal: bool = False,
    num_tokens: int | None = None,
    group: int | None = None,
    weight_version: int | None = None,
    weight_label: str = "",
    revision: int = 0,
    restart: int = 0,
    prefix: Prefix | None = None,
    engine: str = "",
    producer: Producer = "rollout",
) -> _core.Plan:
    """A plan of types.AppendOptions. InvalidArgumentError for what the ingest checks refuse."""
    holes = [[int(begin), int(end)] for begin, end in unrecorded]
    missing = sum(end - begin for begin, end in holes)
    append: dict[str, Any] = {"sample": sample, "producer": producer, "row_start": int(row_start)}
    tensor, payload, given = ({}, None, 0) if rows is None else _tensor(rows, layers, sample)
    if take is not None and rows is not None:
        given = int(take[1]) - int(take[0])
        tensor["take"] = [int(take[0]), int(take[1])]
    if holes:
        append["unrecorded"] = holes
    if seal and num_tokens is None:
        if given is None:
            raise _invalid("FIELD", "append.seal_num_tokens", "say num_tokens: the payload has no shape", sample)
        num_tokens = int(row_start) + given + missing + 1
    optional = {"seal_num_tokens": num_tokens, "group": group, "weight_version": weight_version}
    append.update({key: int(value) for key, value in optional.items() if value is not None})
    texts = {"weight_label": weight_label, "engine": engine}
    append.update({key: value for key, value in texts.items() if value})
    numbers = {"revision": revision, "restart_nonce": restart}
    append.update({key: int(value) for key, value in numbers.items() if value})
    if prefix is not None:
        append["prefix"] = {"sample": prefix.sample, "rows": prefix.rows, "revision": prefix.revision}
    ids = None if tokens is None else _token_ids(tokens, sample)
    if rows is None:
        return _core.plan_unrecorded(append, missing, ids)
    return run.plan(append, tensor, ids, payload, encode)


def outcome_from(record: dict[str, Any]) -> AppendOutcome:
    error = record.pop("error", None)
    return AppendOutcome(**record, error=None if error is None else from_detail(error))


def _tensor(rows: Any, layers: str | Sequence[int] | None, sample: str) -> tuple[dict[str, Any], Any, int | None]:
    """Description, bytes, and the number of rows where it is known without decoding."""
    if isinstance(rows, Payload):
        tensor = {"encoding": rows.encoding, "compression": rows.compression, "raw_size": rows.raw_size}
        if rows.dtype is not None:
            tensor["dtype"] = rows.dtype
        if rows.shape is not None:
            tensor["shape"] = [int(axis) for axis in rows.shape]
        payload: Any = rows.data.encode() if isinstance(rows.data, str) else rows.data
        given = int(rows.shape[0]) if rows.shape else None
    else:
        array = np.asarray(rows)
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in _DTYPES:
            raise _invalid("DTYPE", "append.tensor.dtype", f"numpy {array.dtype} is not one of ids", sample)
        payload = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        tensor = {"encoding": "RAW", "dtype": _DTYPES[kind], "shape": list(array.shape)}
        given = array.shape[0] if array.ndim > 0 else None
    if layers == "all":
        tensor["layer_basis"] = "ALL_LAYERS"
    elif layers == "moe":
        tensor["layer_basis"] = "MOE_LAYERS"
    elif isinstance(layers, str):
        raise _invalid("FIELD", "layers", f'{layers!r} is neither "all" nor "moe" nor a list of layer ids', sample)
    elif layers is not None:
        tensor["layer_basis"] = "EXPLICIT"
        tensor["layer_ids"] = [int(layer) for layer in layers]
    return tensor, payload, given


def _token_ids(tokens: Any, sample: str) -> np.ndarray:
    ids = np.asarray(tokens)
    if ids.size == 0:
        return np.empty(0, np.uint32)
    if ids.dtype.kind not in "iu":
        raise _invalid("DTYPE", "append.token_ids", f"numpy {ids.dtype} is not one of token ids", sample)
    if ids.dtype != np.uint32 and not (ids.min() >= 0 and ids.max() < 2**32):
        raise _invalid("FIELD", "append.token_ids", f"{ids.min()} … {ids.max()} are not token ids of 32 bits", sample)
    return np.ascontiguousarray(ids, np.uint32).ravel()


def _invalid(reason: str, field: str, what: str, sample: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {what}", reason=reason, field=field, sample=sample)
