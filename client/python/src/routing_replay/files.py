"""Rows in files: .npy, safetensors, and recorded traces.

for number, recorded in enumerate(routing_replay.files.trace("gptoss20b_e32k4.npy")):
    run.append(f"trace/{number}", recorded, seal=True)
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from routing_replay import _convert, _native, _values
from routing_replay._native import lib
from routing_replay.types import Payload, RecordedRows

Source = str | os.PathLike[str] | bytes | bytearray | memoryview


def rows(source: Source, *, tensor: str = "") -> RecordedRows:
    """Rows of a .npy or safetensors file: ids [rows, layers, K] of an integer dtype, little-endian, C order.

    source: path, or the file's bytes; a path is mapped into memory and not read before the rows are appended
    tensor: its name in a safetensors file; "" is the only one with three axes of integers

    Raises InvalidArgumentError for another kind of file, NotFoundError for a missing tensor (the message lists the
    tensors in the file), OSError if the file cannot be opened.
    """
    view = _view(source, "source")
    arguments = (*_native.address_of(view), _values.native_text(tensor, "tensor"))
    payload, place = _native.give(lib.rr_open_rows_file, _native.Form, _convert.form, *arguments)
    return RecordedRows(replace(payload, data=view[place], encoding="RAW"))


def trace(
    source: Source,
    index: Source | None = None,
    *,
    name: str = "",
    tensor: str = "",
) -> Iterator[RecordedRows]:
    """Splits a recorded trace into its sequences; each becomes a sample of its own, with rows from 0 on.

    source: path or bytes of [tokens of all sequences, layers, K], .npy or safetensors
    index: path or bytes of JSON with "seq_lens", the number of rows of each sequence, at the top level or under the
        stem of the file's name; None: index.json beside the file
    name: the stem, if source is bytes
    tensor: as in `rows`

    A sequence of n rows has n + 1 tokens: the last sampled one has no row. Raises InvalidArgumentError (ROW_COUNT) if
    seq_lens do not add up to the rows of the file, NotFoundError if the index does not have the file, and the errors of
    `rows`.
    """
    path = Path(os.fsdecode(source)) if isinstance(source, (str, os.PathLike)) else None
    if index is None:
        index = path.with_name("index.json") if path is not None else b"{}"
    all_rows = rows(source, tensor=tensor)
    assert isinstance(all_rows.rows, Payload) and all_rows.rows.shape is not None
    stem = _values.text(name, "name") or (path.stem if path is not None else "")
    text = bytes(_view(index, "index"))
    arguments = _native.Text(text, len(text)), _native.text(stem), int(all_rows.rows.shape[0])
    ranges = _native.give(lib.rr_trace_sequences, _native.Ranges, _native.Ranges.pairs, *arguments)
    return (replace(all_rows, take=(begin, end)) for begin, end in ranges)


def _view(source: Source, field: str) -> memoryview:
    if not isinstance(source, (str, os.PathLike)):
        return _values.view(source, field, or_else="a path or ")
    with open(source, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
