"""The native library: its structures and functions, as client/include/routing_replay/c_api.h declares them.

Every call through ctypes releases the GIL while it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import Structure, byref, c_char, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, TypeVar

from routing_replay import errors

T = TypeVar("T")

_ABI_VERSION = 2
_LIBRARY = "librouting_replay.so"
_DIRECTORY_VARIABLE = "ROUTING_REPLAY_LIBRARY_DIR"


# Structures are named as in the header, in camel case without "rr_": rr_weight_span is WeightSpan.


class Text(Structure):
    """rr_text. It is made from bytes, which it keeps alive; `str` converts an rr_text that the library returned."""

    _fields_ = (("data", c_char_p), ("size", c_size_t))

    def __str__(self) -> str:
        return take_bytes(self).decode()


def take_bytes(text: Any) -> bytes:
    """Returns a copy of the bytes of an rr_text or rr_bytes."""
    address = c_void_p.from_address(ctypes.addressof(text)).value
    return ctypes.string_at(address, text.size) if address and text.size else b""


def text(value: str) -> Text:
    encoded = value.encode()
    return Text(encoded, len(encoded))


class Integer(Structure):
    """rr_integer: an int64 that may be absent."""

    _fields_ = (("_value", c_int64), ("present", c_int32))

    @property
    def value(self) -> int | None:
        return self._value if self.present else None


def integer(value: int | None) -> Integer:
    return Integer() if value is None else Integer(value, 1)


_KINDS: dict[str, Any] = {
    **{"p": c_void_p, "c": c_char_p, "t": Text, "o": Integer, "i": c_int64, "w": c_int32},
    **{"u": c_uint32, "q": c_uint64, "z": c_size_t},
}


def fields(declaration: str) -> tuple[tuple[str, Any], ...]:
    """Makes the _fields_ of a structure: "i:begin,end t:label" declares two int64 and an rr_text. Before the colon is a
    letter of _KINDS, or the name of a structure; "*" after it declares a pointer."""
    made = []
    for group in declaration.split():
        kind, names = group.split(":")
        base = kind.rstrip("*")
        type_ = _KINDS[base] if base in _KINDS else globals()[base]
        made += [(name, ctypes.POINTER(type_) if kind.endswith("*") else type_) for name in names.split(",")]
    return tuple(made)


class List(Structure):
    """A structure that is a list: `data` points to the first of `count` items."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data[: self.count])


def structure(name: str, declaration: str, base: Any = Structure) -> Any:
    return type(name, (base,), {"_fields_": fields(declaration)})


def sequence(name: str, item: str) -> Any:
    """Makes the structure for a list of items; `item` is a kind as in `fields`."""
    return structure(name, f"{item}*:data z:count", List)


Range = structure("Range", "i:begin,end")
Counter = structure("Counter", "t:name i:value")


class Ranges(List):
    _fields_ = fields("Range*:data z:count")

    def pairs(self) -> list[tuple[int, int]]:
        return [(span.begin, span.end) for span in self]


class Counters(List):
    _fields_ = fields("Counter*:data z:count")

    def dict(self) -> dict[str, int]:
        return {str(counter.name): counter.value for counter in self}


class Step(Structure):
    _fields_ = fields("t:key i:index")

    def value(self) -> str | int:
        return str(self.key) if self.index < 0 else self.index


_KINDS["r"] = Ranges
WeightSpan = structure("WeightSpan", "i:begin,end,version t:label")
Error = structure(
    "Error",
    "w:code t:code_name,message,reason,field,sample o:row,layer,first_differing_block,retry_after_ms,committed_rows,"
    "revision t*:failed_samples z:failed_count p*:failures z:failures_count",
)
Call = structure("Call", "i:timeout_ms p:queue q:tag")
Ended = structure("Ended", "q:tag p:error")
Geometry = structure("Geometry", "w:num_layers w*:moe_layers,num_experts,top_k z:count")
GeometryFacts = structure("GeometryFacts", "w:max_top_k,id_bytes t:text q:fingerprint")
ClientOptions = structure(
    "ClientOptions", "t:endpoint w:tls i:call_timeout_ms t:cacert,cert,key,server_name,token_file"
)
RunSettings = structure("RunSettings", "i:ttl_ms w:strict,block_rows t:codec,durability")
Released = structure("Released", "i:samples,bytes")
RunInfo = structure(
    "RunInfo", "t:name Geometry:geometry RunSettings:settings Released:dropped t:place t*:places z:place_count"
)
Texts = sequence("Texts", "t")
ServerInfo = structure(
    "ServerInfo",
    "t:version,store i:budget_bytes,stored_bytes,reserved_bytes,samples,runs,uptime_ms,spill_budget_bytes,"
    "spilled_bytes w:draining Counters:counters",
)
Transports = structure("Transports", "t:transport i:grpc_streams,direct_streams,unix_streams,shm_streams")
TokenCheck = structure("TokenCheck", "i:rows u:crc32c")
SampleState = structure(
    "SampleState",
    "t:sample,engine i:handle,group,committed_rows,revision,stored_bytes,idle_ms q:content_id o:num_tokens "
    "w:producer,has_token_check TokenCheck:token_check Ranges:unrecorded WeightSpan*:weights z:weights_count",
)
SampleStates = sequence("SampleStates", "SampleState")
Tensor = structure(
    "Tensor",
    "p:data z:size t:encoding,compression,dtype,layer_basis i:raw_size i*:shape z:shape_count w*:layer_ids "
    "z:layer_count Range*:take",
)
Tokens = structure("Tokens", "p:data z:size t:dtype w:axes")
# Fields that nearly every append sets are not nested as Text or Integer, because making those takes a microsecond each.
Append = structure(
    "Append",
    "c:sample z:sample_size w:producer p:rows i:row_start Ranges:unrecorded Tokens:tokens i:revision q:restart "
    "i:attempt w:has_attempt i:group w:has_group i:num_tokens w:has_num_tokens i:weight_version t:weight_label "
    "WeightSpan*:weights z:weights_count w:seal t:engine",
)
Outcome = structure(
    "Outcome",
    "t:sample q:sequence i:committed_rows,revision,trimmed_rows,conflicting_rows,late_rows,unrecorded_rows,"
    "unverified_rows q:content_id w:sealed p:error",
)
Outcomes = sequence("Outcomes", "Outcome")
AppenderOptions = structure(
    "AppenderOptions", "i:max_queued_bytes,queue_timeout_ms,append_timeout_ms w:on_full,keep_outcomes"
)
Commit = structure("Commit", "t:sample,status i:committed_rows o:num_tokens p:error")
TrajectoryOptions = structure("TrajectoryOptions", "t:sample,existing o:group")
Turn = structure(
    "Turn",
    "p:rows Tokens:tokens i:tokens_start,row_start,missing_rows t:outcome o:weight_version t:weight_label "
    "WeightSpan*:weights z:weights_count w:missing_is_unrecorded,seal o:cut t:engine",
)
TurnResult = structure(
    "TurnResult",
    "i:num_tokens,unrecorded_rows,truncated_rows,repeated_rows,conflicting_rows,late_rows,uncompared_rows,"
    "shared_rows,surplus_rows,dropped_rows o:retokenised_at Ranges:appended",
)
TrajectoryState = structure("TrajectoryState", "i:num_tokens,rows w:sealed")
SampleRead = structure(
    "SampleRead",
    "t:sample i:handle Ranges:rows o:num_tokens,min_weight_version,max_weight_version TokenCheck*:token_checks "
    "z:token_checks_count",
)
Read = structure("Read", "SampleRead*:samples z:count w*:layers z:layer_count w:producer,wait,only_begun")
SampleRows = structure(
    "SampleRows",
    "t:status,message i:committed_rows,revision q:content_id o:num_tokens Ranges:unrecorded WeightSpan*:weights "
    "z:weights_count Ranges:rows p:ids z:ids_size",
)
Rows = structure("Rows", "w*:layers z:layer_count w:top_k,id_bytes SampleRows*:samples z:count")
ExportOptions = structure("ExportOptions", "t:directory,previous Range*:groups w:producer")
Exported = structure("Exported", "i:samples,written,unsealed,bytes")
ImportOptions = structure("ImportOptions", "t:directory,run Range*:groups")
Imported = structure("Imported", "t:run i:samples,appended,bytes")
Ids = structure("Ids", "p:data z:count")
Bytes = structure("Bytes", "p:data z:size")
Form = structure("Form", "i*:shape z:shape_count")
Route = structure("Route", "Step*:path z:path_count Range:data")
Routes = sequence("Routes", "Route")

# The functions of the library, with a letter of _KINDS for each parameter. Those in _FALLIBLE return NULL, or the
# address of an error; those in _OTHERS return the type that is given there.
_FALLIBLE = {
    "rr_queue_new": "p",
    "rr_geometry_check": "pp",
    "rr_client_new": "pp",
    "rr_client_open_run": "ptppoipp",
    "rr_client_server_info": "ppp",
    "rr_client_metrics": "pp",
    "rr_client_import": "pppp",
    "rr_run_describe": "pp",
    "rr_run_stat": "ppzwpp",
    "rr_run_list": "ppwpp",
    "rr_run_truncate": "ptwiopp",
    "rr_run_release": "ppzpzpwpp",
    "rr_run_drop": "ppp",
    "rr_run_put": "pppp",
    "rr_run_new_appender": "ppp",
    "rr_run_commit": "ptopopp",
    "rr_run_read": "pppp",
    "rr_run_export": "pppp",
    "rr_appender_append": "ppzwppp",
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
    "rr_find_routes": "pzp",
}
_OTHERS: dict[str, tuple[Any, str]] = {
    "rr_abi_version": (c_int32, ""),
    "rr_version": (c_char_p, ""),
    "rr_free": (None, "p"),
    "rr_object_free": (None, "p"),
    "rr_queue_descriptor": (c_int32, "p"),
    "rr_queue_take": (c_size_t, "ppz"),
    "rr_queue_wait": (c_int32, "pip"),
    "rr_queue_cancel": (None, "pq"),
    "rr_token_crc": (c_uint32, "upz"),
    "rr_fork_before": (None, ""),
    "rr_fork_in_parent": (None, ""),
    "rr_fork_in_child": (None, ""),
}


def find_file(name: str) -> Path:
    """Returns the path of a library file: in the package's folder _lib or, if it is not there, in the directory that
    ROUTING_REPLAY_LIBRARY_DIR names. Raises ImportError if neither has the file.
    """
    beside = Path(__file__).parent / "_lib" / name
    if beside.exists():
        return beside
    directory = os.environ.get(_DIRECTORY_VARIABLE)
    if directory is not None and Path(directory, name).exists():
        return Path(directory, name)
    raise ImportError(f"{name} is neither in {beside.parent} nor in {_DIRECTORY_VARIABLE} ({directory})")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_file(_LIBRARY)))
    fallible = {name: (c_void_p, arguments) for name, arguments in _FALLIBLE.items()}
    for name, (result, arguments) in {**_OTHERS, **fallible}.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = tuple(_KINDS[kind] for kind in arguments)
    if library.rr_abi_version() != _ABI_VERSION:
        raise ImportError(f"{library._name} has ABI version {library.rr_abi_version()}, must be {_ABI_VERSION}")
    return library


lib = _load()
VERSION: str = lib.rr_version().decode()


def _load_queue() -> Callable[[int | None, tuple[Any, ...], dict[str, Any]], int]:
    """Returns `queue` of append_extension.cc. If the extension was not built, or this Python cannot load it, returns a
    function that always returns 0, so that the caller makes every append through ctypes."""
    with contextlib.suppress(ImportError):
        # Free-threaded Pythons before 3.15 would also load a file of this name, and crash.
        if ".abi3.so" in EXTENSION_SUFFIXES and "t" not in sys.abiflags:
            file = Path(lib._name).with_name("_append.abi3.so")
            loader = ExtensionFileLoader("routing_replay._append", str(file))
            module: Any = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
            loader.exec_module(module)
            module.bind(ctypes.cast(lib.rr_appender_append, c_void_p).value)
            queue: Callable[[int | None, tuple[Any, ...], dict[str, Any]], int] = module.queue
            return queue
    return lambda appender, arguments, options: 0


queue = _load_queue()
DROPPED = 2**62


# Errors and results.


def _detail(address: int) -> dict[str, Any]:
    error = Error.from_address(address)
    detail: dict[str, Any] = {"message": str(error.message), "code_name": str(error.code_name)}
    detail |= {name: str(getattr(error, name)) or None for name in errors.TEXTS}
    detail |= {name: getattr(error, name).value for name in errors.NUMBERS}
    if error.failed_count:
        failures = [read_error(failure) for failure in error.failures[: error.failures_count]]
        detail["failed_samples"] = [str(sample) for sample in error.failed_samples[: error.failed_count]]
        detail["failures"] = [(failure.sample or "", failure) for failure in failures if failure is not None]
    return {name: value for name, value in detail.items() if value is not None}


def read_error(address: int | None) -> errors.RoutingReplayError | None:
    """The exception for an error that is part of a result and is freed with it; None if there is no error."""
    return None if address is None else errors.from_detail(_detail(address))


def take_error(address: int) -> errors.RoutingReplayError:
    """The exception for an error that a function returned. Frees the error."""
    try:
        return errors.from_detail(_detail(address))
    finally:
        lib.rr_free(address)


def check(address: int | None) -> None:
    """Raises the error that a function returned, if it returned one, and frees it."""
    if address is not None:
        raise take_error(address)


class Handle:
    """Owns an object of the library. `pointer` is the object's address, or None."""

    __slots__ = ("__weakref__", "_free", "pointer")

    def __init__(self, free: Callable[[Any], None], pointer: int | None) -> None:
        self._free = free  # An attribute, because module globals may be gone when the interpreter exits.
        self.pointer = pointer

    def __del__(self) -> None:
        if getattr(self, "pointer", None) is not None:  # Absent if __init__ was interrupted.
            self._free(self.pointer)


def made(function: Any, *arguments: Any) -> int | None:
    """Calls a function that does not wait, and returns the address of its result, which the caller must free."""
    out = c_void_p()
    check(function(*arguments, byref(out)))
    return out.value


def give(function: Any, kind: Any, read: Callable[[Any], T], *arguments: Any) -> T:
    """Calls a function that does not wait, converts its result with `read`, and frees the result."""
    owner = Handle(lib.rr_free, made(function, *arguments))
    return read(kind.from_address(owner.pointer))


def data_of(array: Any) -> int:
    """The address of a numpy array's first byte. The attribute `array.ctypes.data` is ten times slower."""
    try:
        return ctypes.addressof(c_char.from_buffer(array))
    except (TypeError, ValueError):  # The buffer is read-only, or empty.
        return int(array.ctypes.data)


def address_of(payload: Any) -> tuple[int, int]:
    """Address and size of a buffer, which the caller must keep alive."""
    import numpy as np

    array = np.frombuffer(payload, np.uint8)
    return array.ctypes.data, array.nbytes
