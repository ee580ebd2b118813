"""The native library: its structures and functions, as client/include/routing_replay/c_api.h declares them.

Every call through ctypes gives up the GIL while it runs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, TypeVar

from routing_replay import errors

T = TypeVar("T")

_ABI_VERSION = 2
_LIBRARY = "librouting_replay.so"
_DIRECTORY_VARIABLE = "ROUTING_REPLAY_LIBRARY_DIR"


class Text(Structure):
    """rr_text. Made of bytes, which it keeps; `str` of one that the library gave."""

    _fields_ = (("data", c_char_p), ("size", c_size_t))

    def __str__(self) -> str:
        return take_bytes(self).decode()


def take_bytes(text: Any) -> bytes:
    """Of an rr_text or rr_bytes that the library gave."""
    address = c_void_p.from_address(ctypes.addressof(text)).value
    return ctypes.string_at(address, text.size) if address and text.size else b""


def text(value: str) -> Text:
    encoded = value.encode()
    return Text(encoded, len(encoded))


class Range(Structure):
    _fields_ = (("begin", c_int64), ("end", c_int64))


class Ranges(Structure):
    """rr_ranges, and other structures of a pointer and a count, of `Range`."""

    _fields_ = (("data", ctypes.POINTER(Range)), ("count", c_size_t))

    def pairs(self) -> list[tuple[int, int]]:
        return [(one.begin, one.end) for one in self.data[: self.count]]


class Integer(Structure):
    """rr_integer"""

    _fields_ = (("_value", c_int64), ("present", c_int32))

    @property
    def value(self) -> int | None:
        return self._value if self.present else None


def integer(value: int | None) -> Integer:
    return Integer() if value is None else Integer(value, 1)


class WeightSpan(Structure):
    _fields_ = (("begin", c_int64), ("end", c_int64), ("version", c_int64), ("label", Text))


class Error(Structure):
    _fields_ = (
        ("code", c_int32),
        ("has_committed_rows", c_int32),
        ("has_revision", c_int32),
        *((name, Text) for name in ("code_name", "message", "reason", "field", "sample")),
        *((name, Integer) for name in ("row", "layer", "first_differing_block", "retry_after_ms")),
        ("committed_rows", c_int64),
        ("revision", c_int64),
        ("missing_rows", Ranges),
        ("failed_samples", ctypes.POINTER(Text)),
        ("failed_count", c_size_t),
        ("failures", ctypes.POINTER(c_void_p)),
        ("failures_count", c_size_t),
    )


class Call(Structure):
    _fields_ = (("timeout_ms", c_int64), ("queue", c_void_p), ("tag", c_uint64))


class Ended(Structure):
    _fields_ = (("tag", c_uint64), ("error", c_void_p))


class Geometry(Structure):
    _fields_ = (
        ("num_layers", c_int32),
        *((name, ctypes.POINTER(c_int32)) for name in ("moe_layers", "num_experts", "top_k")),
        ("count", c_size_t),
    )


class GeometryFacts(Structure):
    _fields_ = (
        ("max_top_k", c_int32),
        ("id_bytes", c_int32),
        ("raw_row_bytes", c_int64),
        ("default_codec", Text),
        ("text", Text),
        ("fingerprint", c_uint64),
    )


class ClientOptions(Structure):
    _fields_ = (
        ("endpoint", Text),
        ("use_http_proxy", c_int32),
        ("tls", c_int32),
        ("call_timeout_ms", c_int64),
        *((name, Text) for name in ("cacert", "cert", "key", "server_name", "token_file")),
    )


class RunSettings(Structure):
    _fields_ = (
        ("ttl_ms", c_int64),
        ("strict", c_int32),
        ("block_rows", c_int32),
        ("codec", Text),
        ("durability", Text),
    )


class Released(Structure):
    _fields_ = (("samples", c_int64), ("bytes", c_int64))


class RunInfo(Structure):
    _fields_ = (("name", Text), ("geometry", Geometry), ("settings", RunSettings), ("dropped", Released))


class RunSummary(Structure):
    _fields_ = (
        ("name", Text),
        ("geometry", Geometry),
        ("settings", RunSettings),
        *((name, c_int64) for name in ("samples", "sealed_samples", "committed_rows", "stored_bytes")),
    )


def list_of(item: Any) -> Any:
    """A result of `data` and `count`."""
    return type(
        f"{item.__name__}List", (Structure,), {"_fields_": (("data", ctypes.POINTER(item)), ("count", c_size_t))}
    )


class Counter(Structure):
    _fields_ = (("name", Text), ("value", c_int64))


RunSummaries: Any = list_of(RunSummary)
Texts: Any = list_of(Text)


class Counters(list_of(Counter)):  # type: ignore[misc]
    def dict(self) -> dict[str, int]:
        return {str(one.name): one.value for one in self.data[: self.count]}


class ServerInfo(Structure):
    _fields_ = (
        ("version", Text),
        ("store", Text),
        *((name, c_int64) for name in ("budget_bytes", "stored_bytes", "reserved_bytes", "samples", "runs")),
        *((name, c_int64) for name in ("uptime_ms", "spill_budget_bytes", "spilled_bytes")),
        ("draining", c_int32),
        ("counters", Counters),
    )


class TokenCheck(Structure):
    _fields_ = (("rows", c_int64), ("crc32c", c_uint32))


class Provenance(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("begin", "end", "weight_version", "appends")),
        ("weight_label", Text),
        ("engine", Text),
    )


class SampleState(Structure):
    _fields_ = (
        ("sample", Text),
        ("engine", Text),
        *((name, c_int64) for name in ("handle", "group", "committed_rows", "revision", "stored_bytes", "idle_ms")),
        ("content_id", c_uint64),
        ("num_tokens", Integer),
        ("producer", c_int32),
        ("has_token_check", c_int32),
        ("token_check", TokenCheck),
        ("unrecorded", Ranges),
        ("weights", ctypes.POINTER(WeightSpan)),
        ("weights_count", c_size_t),
        ("provenance", ctypes.POINTER(Provenance)),
        ("provenance_count", c_size_t),
    )


SampleStates: Any = list_of(SampleState)


class Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("size", c_size_t),
        *((name, Text) for name in ("encoding", "compression", "dtype", "layer_basis")),
        ("raw_size", c_int64),
        ("shape", ctypes.POINTER(c_int64)),
        ("shape_count", c_size_t),
        ("layer_ids", ctypes.POINTER(c_int32)),
        ("layer_count", c_size_t),
        ("take", ctypes.POINTER(Range)),
        ("ids_and_weights", c_int32),
    )


class Tokens(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t), ("dtype", Text), ("axes", c_int32))


class Append(Structure):
    _fields_ = (
        ("sample", Text),
        ("producer", c_int32),
        ("rows", ctypes.POINTER(Tensor)),
        ("row_start", c_int64),
        ("unrecorded", Ranges),
        ("tokens", Tokens),
        ("revision", c_int64),
        ("restart", c_uint64),
        *((name, Integer) for name in ("attempt", "group", "num_tokens")),
        ("weight_version", c_int64),
        ("weight_label", Text),
        ("weights", ctypes.POINTER(WeightSpan)),
        ("weights_count", c_size_t),
        ("seal", c_int32),
        ("prefix_sample", Text),
        ("prefix_rows", c_int64),
        ("prefix_revision", c_int64),
        ("engine", Text),
        ("surplus_rows", c_int64),
    )


class Outcome(Structure):
    _fields_ = (
        ("sample", Text),
        ("sequence", c_uint64),
        *((name, c_int64) for name in ("committed_rows", "revision", "trimmed_rows", "conflicting_rows", "late_rows")),
        ("unrecorded_rows", c_int64),
        ("unverified_rows", c_int64),
        ("content_id", c_uint64),
        ("sealed", c_int32),
        ("error", c_void_p),
    )


Outcomes: Any = list_of(Outcome)


class AppenderOptions(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("max_queued_bytes", "queue_timeout_ms", "append_timeout_ms")),
        *((name, c_int32) for name in ("on_full", "encode_blocks", "keep_outcomes")),
    )


class Commit(Structure):
    _fields_ = (
        ("sample", Text),
        ("status", Text),
        ("committed_rows", c_int64),
        ("num_tokens", Integer),
        ("error", c_void_p),
    )


class TrajectoryOptions(Structure):
    _fields_ = (("sample", Text), ("engine", Text), ("existing", Text), ("group", Integer))


class Turn(Structure):
    _fields_ = (
        ("rows", ctypes.POINTER(Tensor)),
        ("tokens", Tokens),
        *((name, c_int64) for name in ("tokens_start", "row_start", "missing_rows")),
        ("outcome", Text),
        ("weight_version", Integer),
        ("weight_label", Text),
        ("weights", ctypes.POINTER(WeightSpan)),
        ("weights_count", c_size_t),
        ("missing_is_unrecorded", c_int32),
        ("seal", c_int32),
        ("cut", Integer),
        ("engine", Text),
    )


class TurnResult(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("num_tokens", "unrecorded_rows", "truncated_rows", "repeated_rows")),
        *((name, c_int64) for name in ("conflicting_rows", "late_rows", "uncompared_rows", "shared_rows")),
        *((name, c_int64) for name in ("surplus_rows", "dropped_rows")),
        ("retokenised_at", Integer),
        ("appended", Ranges),
    )


class TrajectoryState(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("num_tokens", "rows", "acknowledged_rows", "revision")),
        ("sealed", c_int32),
        ("counters", Counters),
    )


class SampleRead(Structure):
    _fields_ = (
        ("sample", Text),
        ("handle", c_int64),
        ("rows", Ranges),
        *((name, Integer) for name in ("num_tokens", "min_weight_version", "max_weight_version")),
        ("token_checks", ctypes.POINTER(TokenCheck)),
        ("token_checks_count", c_size_t),
    )


class Read(Structure):
    _fields_ = (
        ("samples", ctypes.POINTER(SampleRead)),
        ("count", c_size_t),
        ("layers", ctypes.POINTER(c_int32)),
        ("layer_count", c_size_t),
        *((name, c_int32) for name in ("producer", "wait", "only_begun")),
        ("out", ctypes.POINTER(c_void_p)),
        ("out_sizes", ctypes.POINTER(c_size_t)),
    )


class SampleRows(Structure):
    _fields_ = (
        ("status", Text),
        ("message", Text),
        ("committed_rows", c_int64),
        ("revision", c_int64),
        ("content_id", c_uint64),
        ("num_tokens", Integer),
        ("unrecorded", Ranges),
        ("weights", ctypes.POINTER(WeightSpan)),
        ("weights_count", c_size_t),
        ("rows", Ranges),
        ("ids", c_void_p),
        ("ids_size", c_size_t),
    )


class Rows(Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(c_int32)),
        ("layer_count", c_size_t),
        ("top_k", c_int32),
        ("id_bytes", c_int32),
        ("samples", ctypes.POINTER(SampleRows)),
        ("count", c_size_t),
    )


Progress = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64, c_int64)


class ExportOptions(Structure):
    _fields_ = (
        ("directory", Text),
        ("groups", ctypes.POINTER(Range)),
        *((name, c_int32) for name in ("producer", "drop_missing")),
        ("read_timeout_ms", c_int64),
        ("progress", Progress),
        ("progress_context", c_void_p),
    )


class Exported(Structure):
    _fields_ = tuple((name, c_int64) for name in ("samples", "written", "dropped", "unsealed", "bytes"))


class ImportOptions(Structure):
    _fields_ = (
        ("directory", Text),
        ("run", Text),
        ("groups", ctypes.POINTER(Range)),
        ("read_timeout_ms", c_int64),
        ("progress", Progress),
        ("progress_context", c_void_p),
    )


class Imported(Structure):
    _fields_ = (("run", Text), ("samples", c_int64), ("appended", c_int64), ("bytes", c_int64))


class Ids(Structure):
    _fields_ = (("data", c_void_p), ("count", c_size_t))


class Form(Structure):
    """rr_form: how ids are said, and where they are."""

    _fields_ = (
        ("encoding", Text),
        ("dtype", Text),
        ("shape", ctypes.POINTER(c_int64)),
        ("shape_count", c_size_t),
        ("data", Range),
        ("start", c_int64),
    )


class Bytes(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class Step(Structure):
    _fields_ = (("key", Text), ("index", c_int64))

    def value(self) -> str | int:
        return str(self.key) if self.index < 0 else self.index


class Route(Structure):
    _fields_ = (("path", ctypes.POINTER(Step)), ("path_count", c_size_t), ("data", Range))


Routes: Any = list_of(Route)
Weights: Any = list_of(WeightSpan)


class RowClaim(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("prompt_tokens", "output_tokens", "start", "rows")),
        ("missing_at_front", c_int32),
    )


class RowAccount(Structure):
    _fields_ = (*((name, c_int64) for name in ("row_start", "missing_rows", "surplus_rows")), ("take", Range))


# Functions by what they take: p an address, t a text, o an optional integer, i int64, w int32, u uint32, q uint64,
# z size_t. Those of _FALLIBLE give an error or NULL.
_KINDS = {
    **{"p": c_void_p, "t": Text, "o": Integer, "i": c_int64, "w": c_int32},
    **{"u": c_uint32, "q": c_uint64, "z": c_size_t},
}
_FALLIBLE = {
    "rr_queue_new": "p",
    "rr_geometry_check": "pp",
    "rr_geometry_block_bytes": "pitp",
    "rr_client_new": "pp",
    "rr_client_open_run": "ptppoipp",
    "rr_client_runs": "ppp",
    "rr_client_server_info": "ppp",
    "rr_client_import": "pppp",
    "rr_run_describe": "pp",
    "rr_run_stat": "ppzwpp",
    "rr_run_list": "ppwpp",
    "rr_run_seal": "ptwiipp",
    "rr_run_truncate": "ptwiopp",
    "rr_run_release": "ppzpzpwpp",
    "rr_run_drop": "ppp",
    "rr_run_put": "pppp",
    "rr_run_new_appender": "ppp",
    "rr_run_commit": "ptopopp",
    "rr_run_read": "pppp",
    "rr_run_export": "pppp",
    "rr_appender_append": "ppzppp",
    "rr_appender_flush": "pp",
    "rr_appender_close": "pp",
    "rr_appender_outcomes": "ppp",
    "rr_appender_metrics": "pp",
    "rr_appender_new_trajectory": "ppp",
    "rr_trajectory_add": "pppp",
    "rr_trajectory_fork": "ptpp",
    "rr_trajectory_next_row": "ppp",
    "rr_trajectory_describe": "pp",
    "rr_log": "pp",
    "rr_sample_handle": "ptp",
    "rr_token_ids": "pttp",
    "rr_payload_shape": "pp",
    "rr_open_nrlre1": "pzp",
    "rr_open_object": "ttp",
    "rr_open_rows_file": "pztp",
    "rr_check_narrowest": "p",
    "rr_decode_base85": "pzp",
    "rr_trace_sequences": "ttip",
    "rr_find_routes": "pzp",
    "rr_account_rows": "pp",
    "rr_output_weights": "pziiip",
}
_OTHERS: dict[str, tuple[Any, str]] = {
    "rr_abi_version": (c_int32, ""),
    "rr_version": (c_char_p, ""),
    "rr_error_free": (None, "p"),
    "rr_free": (None, "p"),
    "rr_queue_descriptor": (c_int32, "p"),
    "rr_queue_take": (c_size_t, "ppz"),
    "rr_queue_cancel": (None, "pq"),
    "rr_queue_free": (None, "p"),
    "rr_client_free": (None, "p"),
    "rr_run_free": (None, "p"),
    "rr_appender_free": (None, "p"),
    "rr_appender_count_refusal": (None, "pt"),
    "rr_trajectory_free": (None, "p"),
    "rr_token_crc": (c_uint32, "upz"),
    "rr_fork_before": (None, ""),
    "rr_fork_in_parent": (None, ""),
    "rr_fork_in_child": (None, ""),
}


def find_file(name: str) -> Path:
    """A file that was built for this package: beside it, or where ROUTING_REPLAY_LIBRARY_DIR says.

    Raises ImportError if it is in neither.
    """
    beside = Path(__file__).parent / "_lib" / name
    if beside.exists():
        return beside
    directory = os.environ.get(_DIRECTORY_VARIABLE)
    if directory is not None and Path(directory, name).exists():
        return Path(directory, name)
    raise ImportError(f"{name} is neither in {beside.parent} nor where {_DIRECTORY_VARIABLE} says ({directory})")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_file(_LIBRARY)))
    for name, (result, arguments) in _OTHERS.items():
        _declare(library, name, result, arguments)
    for name, arguments in _FALLIBLE.items():
        _declare(library, name, c_void_p, arguments)
    if library.rr_abi_version() != _ABI_VERSION:
        raise ImportError(f"{library._name} is of ABI {library.rr_abi_version()}, this package needs {_ABI_VERSION}")
    return library


def _declare(library: ctypes.CDLL, name: str, result: Any, arguments: str) -> None:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = tuple(_KINDS[kind] for kind in arguments)


def declare(**functions: str) -> None:
    """More functions that give an error or NULL, by what they take."""
    for name, arguments in functions.items():
        _declare(lib, name, c_void_p, arguments)


lib = _load()
VERSION: str = lib.rr_version().decode()


# Errors and results.


def _detail(address: int) -> dict[str, Any]:
    error = Error.from_address(address)
    detail: dict[str, Any] = {"code": error.code, "message": str(error.message), "code_name": str(error.code_name)}
    for name in ("reason", "field", "sample"):
        if said := str(getattr(error, name)):
            detail[name] = said
    for name in ("row", "layer", "first_differing_block", "retry_after_ms"):
        if (number := getattr(error, name).value) is not None:
            detail[name] = number
    for name in ("committed_rows", "revision"):
        if getattr(error, f"has_{name}"):
            detail[name] = getattr(error, name)
    if error.missing_rows.count:
        detail["missing_rows"] = error.missing_rows.pairs()
    if error.failed_count:
        failures = [read_error(failure) for failure in error.failures[: error.failures_count]]
        detail["failed_samples"] = [str(sample) for sample in error.failed_samples[: error.failed_count]]
        detail["failures"] = [(failure.sample or "", failure) for failure in failures if failure is not None]
    return detail


def read_error(address: int | None) -> errors.RoutingReplayError | None:
    """Of one that belongs to a result."""
    return None if address is None else errors.from_detail(_detail(address))


def take_error(address: int) -> errors.RoutingReplayError:
    """Of one that is ours."""
    try:
        return errors.from_detail(_detail(address))
    finally:
        lib.rr_error_free(address)


def check(address: int | None) -> None:
    """Raises what a function gave."""
    if address is not None:
        raise take_error(address)


class Handle:
    """An object of the library, which goes with this one: `pointer` is its address, or None."""

    __slots__ = ("__weakref__", "_free", "pointer")

    def __init__(self, free: Callable[[Any], None], pointer: int | None) -> None:
        self._free = free  # Held: the names of a module may be gone when the interpreter ends.
        self.pointer = pointer

    def __del__(self) -> None:
        if self.pointer is not None:
            self._free(self.pointer)


def make(free: Callable[[Any], None], function: Any, *arguments: Any) -> Handle:
    out = c_void_p()
    check(function(*arguments, byref(out)))
    return Handle(free, out.value)


def give(function: Any, kind: Any, read: Callable[[Any], T], *arguments: Any) -> T:
    """What `read` makes of the result of a function that does not wait."""
    out = c_void_p()
    check(function(*arguments, byref(out)))
    with_owner = Handle(lib.rr_free, out.value)
    return read(kind.from_address(with_owner.pointer))


def address_of(payload: Any) -> tuple[int, int]:
    """Where the bytes of a buffer are, and how many; the caller keeps it."""
    import numpy as np

    array = np.frombuffer(payload, np.uint8)
    return array.ctypes.data, array.nbytes


def texts(values: Sequence[str]) -> Any:
    return (Text * len(values))(*(text(value) for value in values))
