"""What engines emit, looked at by the library: shapes of undecoded payloads, and which rows they hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import replace
from typing import Any, NamedTuple

from routing_replay import _convert, _native, _values
from routing_replay._native import Range, Text, WeightSpan, byref, give, lib, text
from routing_replay.types import Payload


class _Form(Structure):
    _fields_ = (
        ("encoding", Text),
        ("dtype", Text),
        ("shape", POINTER(c_int64)),
        ("shape_count", c_size_t),
        ("data", Range),
        ("start", c_int64),
    )


class _Bytes(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class _Step(Structure):
    _fields_ = (("key", Text), ("index", c_int64))

    def value(self) -> str | int:
        return str(self.key) if self.index < 0 else self.index


class _Route(Structure):
    _fields_ = (("path", POINTER(_Step)), ("path_count", c_size_t), ("data", Range))


class _Routes(Structure):
    _fields_ = (("data", POINTER(_Route)), ("count", c_size_t))


class _RowClaim(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("prompt_tokens", "output_tokens", "start", "rows")),
        ("missing_at_front", c_int32),
    )


class _RowAccount(Structure):
    _fields_ = (*((name, c_int64) for name in ("row_start", "missing_rows", "surplus_rows")), ("take", Range))


class _Weights(Structure):
    _fields_ = (("data", POINTER(WeightSpan)), ("count", c_size_t))


_native.declare(
    rr_payload_shape="pp",
    rr_open_nrlre1="pzp",
    rr_open_object="ttp",
    rr_open_rows_file="pztp",
    rr_check_narrowest="p",
    rr_decode_base85="pzp",
    rr_trace_sequences="ttip",
    rr_find_routes="pzp",
    rr_account_rows="pp",
    rr_output_weights="pziiip",
)


class Form(NamedTuple):
    """How ids are said, and where they are. start: absolute row of the first row"""

    encoding: str
    dtype: str
    shape: list[int]
    begin: int
    end: int
    start: int

    def payload(self, data: Any, encoding: str | None = None) -> Payload:
        return Payload(data, encoding or self.encoding, dtype=self.dtype, shape=self.shape)


class RowAccount(NamedTuple):
    """Which rows a tensor holds: proto/wire/payload/row_account.h."""

    row_start: int
    take: tuple[int, int]
    missing_rows: int
    surplus_rows: int


def _form(said: _Form) -> Form:
    data = said.data.begin, said.data.end
    return Form(str(said.encoding), str(said.dtype), said.shape[: said.shape_count], *data, said.start)


def with_shape(payload: Payload) -> Payload:
    """With the dtype and the shape that its bytes tell. A shape of two is [layers, K] of a row, of flat ids."""
    tensor, _data = _tensor(payload)
    form = give(lib.rr_payload_shape, _Form, _form, tensor)
    return replace(payload, dtype=form.dtype, shape=form.shape)


def check_narrowest(payload: Payload) -> None:
    """InvalidArgumentError if SkyRL would have written another dtype."""
    tensor, _data = _tensor(payload)
    _native.check(lib.rr_check_narrowest(tensor))


def _tensor(payload: Payload) -> tuple[Any, Any]:
    return _convert.tensor(payload, None, "")


def open_nrlre1(data: memoryview) -> Form:
    """What an "nrlre1:…" holds."""
    return give(lib.rr_open_nrlre1, _Form, _form, *_native.address_of(data))


def open_object(dialect: str, described: Any) -> Form:
    """What an object beside base64 says."""
    return give(lib.rr_open_object, _Form, _form, text(dialect), text(json.dumps(described)))


def open_rows_file(file: memoryview, name: str) -> Form:
    """Where the rows are in a file."""
    return give(lib.rr_open_rows_file, _Form, _form, *_native.address_of(file), text(name))


def trace_sequences(index: bytes, stem: str, rows: int) -> list[tuple[int, int]]:
    """Rows of the sequences of a trace."""
    said = Text(index, len(index))
    return give(lib.rr_trace_sequences, _native.Ranges, _native.Ranges.pairs, said, text(stem), rows)


def find_routes(body: memoryview) -> list[tuple[list[Any], int, int]]:
    """Where the routed experts are in a JSON body: keys and indexes, begin and end."""

    def read(said: _Routes) -> list[tuple[list[Any], int, int]]:
        found = said.data[: said.count]
        return [([step.value() for step in one.path[: one.path_count]], one.data.begin, one.data.end) for one in found]

    return give(lib.rr_find_routes, _Routes, read, *_native.address_of(body))


def decode_base85(data: memoryview) -> bytes:
    return give(lib.rr_decode_base85, _Bytes, _native.take_bytes, *_native.address_of(data))


def account_rows(
    prompt_tokens: int, output_tokens: int, start: int, rows: int, missing_at_front: bool = False
) -> RowAccount:
    """Which rows a tensor of so many holds. InvalidArgumentError (ROW_COUNT) if the tokens do not explain them."""
    account = _RowAccount()
    claim = _RowClaim(prompt_tokens, output_tokens, start, rows, missing_at_front)
    _native.check(lib.rr_account_rows(byref(claim), byref(account)))
    take = account.take.begin, account.take.end
    return RowAccount(account.row_start, take, account.missing_rows, account.surplus_rows)


def output_weights(
    versions: Sequence[tuple[int, int, int, str]], prompt_tokens: int, output_tokens: int, row_start: int
) -> list[tuple[int, int, int, str]]:
    """Weights of rows from (begin, end, version, label) of output tokens; version -1 is what the label tells."""
    said = (WeightSpan * len(versions))()
    for (begin, end, version, label), one in zip(versions, said, strict=True):
        one.begin, one.end, one.version = begin, end, version
        one.label = _values.native_text(label, "weight_versions")

    def read(found: _Weights) -> list[tuple[int, int, int, str]]:
        return [(one.begin, one.end, one.version, str(one.label)) for one in found.data[: found.count]]

    counts = prompt_tokens, output_tokens, row_start
    return give(lib.rr_output_weights, _Weights, read, said, len(versions), *counts)
