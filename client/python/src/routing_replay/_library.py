"""Loads librouting_replay.so and names its functions, as client/include/routing_replay/capi.h declares them.

Every call through ctypes gives up the GIL while it runs.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

_ABI_VERSION = 1
_DIRECTORY_VARIABLE = "ROUTING_REPLAY_LIBRARY_DIR"


class Span(Structure):
    """rr_span"""

    _fields_ = (("data", c_void_p), ("size", c_size_t))


class MergeStep(Structure):
    """rr_merge_step"""

    _fields_ = (("kind", c_int32), ("stream", c_size_t), ("member", c_size_t), ("bytes", c_void_p))


class Action(Structure):
    """rr_action"""

    _fields_ = (("step", c_int32), ("until", c_int64), ("message", c_void_p), ("ask", c_void_p))


_text = (c_char_p, c_size_t)  # Also bytes: Python passes their address.
_out = POINTER(c_void_p)
_append = (*_text, *_text, c_void_p, c_size_t, c_void_p, c_size_t, _out)

# Functions that give an error or NULL.
_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "rr_defaults": (c_int32, _out),
    "rr_servers_new": (*_text, _out),
    "rr_servers_present": (c_void_p, c_int64, _out),
    "rr_security_new": (*_text, _out),
    "rr_security_channel": (c_void_p, *_text, _out),
    "rr_security_authorization": (c_void_p, _out),
    "rr_token_ids": (*_text, c_void_p, c_size_t, _out),
    "rr_sample_handle": (*_text, POINTER(c_int64)),
    "rr_geometry_new": (*_text, _out),
    "rr_geometry_from_config": (*_text, *_text, _out, _out),
    "rr_geometry_json": (c_void_p, _out),
    "rr_geometry_facts": (c_void_p, _out),
    "rr_geometry_block_bytes": (c_void_p, c_int64, *_text, POINTER(c_int64)),
    "rr_run_new": (*_text, _out),
    "rr_plan_rows": (c_void_p, *_append),
    "rr_plan_tensor": (c_void_p, *_append),
    "rr_plan_unrecorded": (*_text, c_int64, c_void_p, c_size_t, _out),
    "rr_put_message": (c_void_p, c_void_p, _out),
    "rr_put_outcome": (*_text, _out),
    "rr_put_piece": (c_void_p, c_void_p, c_size_t, _out),
    "rr_put_outcomes": (POINTER(Span), c_size_t, _out),
    "rr_account_rows": (*_text, _out),
    "rr_output_weights": (*_text, _out),
    "rr_open_nrlre1": (c_void_p, c_size_t, _out),
    "rr_open_object": (*_text, *_text, _out),
    "rr_check_narrowest": (*_text, c_void_p, c_size_t),
    "rr_decode_base85": (c_void_p, c_size_t, _out),
    "rr_open_rows_file": (c_void_p, c_size_t, *_text, _out),
    "rr_trace_sequences": (*_text, *_text, c_int64, _out),
    "rr_find_routes": (c_void_p, c_size_t, _out),
    "rr_payload_shape": (*_text, c_void_p, c_size_t, _out),
    "rr_appender_new": (*_text, _out),
    "rr_appender_add": (c_void_p, c_void_p, c_int64, POINTER(c_uint64)),
    "rr_appender_add_failed": (c_void_p, c_void_p, c_void_p, c_int64, POINTER(c_uint64)),
    "rr_appender_add_dropped": (c_void_p, c_void_p, c_int64, POINTER(c_uint64)),
    "rr_appender_next": (c_void_p, c_int64, c_int32, POINTER(Action)),
    "rr_appender_on_states": (c_void_p, *_text, c_int64),
    "rr_appender_on_message": (c_void_p, *_text, c_int64),
    "rr_appender_take_finished": (c_void_p, _out),
    "rr_appender_metrics": (c_void_p, _out),
    "rr_trajectory_new": (*_text, _out),
    "rr_trajectory_fork": (c_void_p, *_text, _out),
    "rr_trajectory_turn": (c_void_p, c_void_p, *_text, c_void_p, c_size_t, *_text, c_void_p, c_size_t, _out),
    "rr_trajectory_take_plan": (c_void_p, _out),
    "rr_trajectory_on_outcome": (c_void_p, *_text),
    "rr_trajectory_on_dropped": (c_void_p, c_int64, c_int64),
    "rr_trajectory_on_state": (c_void_p, *_text),
    "rr_trajectory_on_truncated": (c_void_p, *_text),
    "rr_trajectory_state": (c_void_p, _out),
    "rr_reader_new": (c_void_p, *_text, _out),
    "rr_reader_request": (c_void_p, _out),
    "rr_reader_push": (c_void_p, *_text),
    "rr_reader_end": (c_void_p,),
    "rr_reader_break": (c_void_p,),
    "rr_reader_result": (c_void_p, _out),
    "rr_reader_take_ids": (c_void_p, c_size_t, _out),
    "rr_shard_new": (*_text, _out),
    "rr_shard_members": (c_void_p, _out),
    "rr_shard_judge": (c_void_p, POINTER(c_int32), c_size_t, c_int32, POINTER(c_int32)),
    "rr_shard_check_distinct": (c_void_p, POINTER(c_uint64), c_size_t),
    "rr_lives_new": (c_size_t, _out),
    "rr_lives_open": (c_void_p, c_size_t, c_uint64),
    "rr_lives_check": (c_void_p, c_size_t, *_text, c_uint64),
    "rr_places_new": (c_void_p, _out),
    "rr_places_find": (c_void_p, *_text, c_int64, POINTER(c_int32)),
    "rr_places_learn": (c_void_p, *_text, c_int64, POINTER(c_int32), c_size_t, POINTER(c_int32)),
    "rr_places_route": (c_void_p, c_void_p, c_int32, POINTER(c_int32), _out),
    "rr_merge_new": (c_void_p, c_void_p, *_text, _out),
    "rr_merge_next": (c_void_p, POINTER(MergeStep)),
    "rr_merge_on_message": (c_void_p, c_size_t, *_text),
    "rr_merge_on_end": (c_void_p, c_size_t, c_void_p),
    "rr_merge_on_located": (c_void_p, *_text),
    "rr_export_new": (c_void_p, *_text, _out),
    "rr_export_on_list": (c_void_p, *_text, c_uint64),
    "rr_export_next": (c_void_p, _out),
    "rr_export_on_rows": (c_void_p, *_text, c_void_p),
    "rr_export_finish": (c_void_p, _out),
    "rr_export_unread": (c_void_p,),
    "rr_import_new": (*_text, _out),
    "rr_import_contents": (c_void_p, _out),
    "rr_import_begin": (c_void_p, c_size_t, *_text, _out),
    "rr_import_compare": (c_void_p, c_void_p),
    "rr_import_take_plan": (c_void_p, c_void_p, _out, POINTER(c_int64)),
    "rr_retry_new": (c_int64, _out),
}
# Functions that make an error to be kept or told.
_ERRORS: dict[str, tuple[Any, ...]] = {
    "rr_error_from_rpc": (c_int32, *_text, *_text),
    "rr_appender_no_room": (c_void_p, *_text),
    "rr_appender_not_flushed": (c_void_p,),
    "rr_appender_take_error": (c_void_p,),
}
_OTHERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rr_abi_version": (c_int32, ()),
    "rr_error_code": (c_int32, (c_void_p,)),
    "rr_error_json": (c_char_p, (c_void_p,)),
    "rr_error_free": (None, (c_void_p,)),
    "rr_bytes_data": (c_void_p, (c_void_p,)),
    "rr_bytes_size": (c_size_t, (c_void_p,)),
    "rr_bytes_free": (None, (c_void_p,)),
    "rr_token_check": (c_uint32, (c_uint32, c_void_p, c_size_t)),
    "rr_geometry_free": (None, (c_void_p,)),
    "rr_run_free": (None, (c_void_p,)),
    "rr_plan_bytes": (c_int64, (c_void_p,)),
    "rr_plan_pieces": (c_size_t, (c_void_p,)),
    "rr_plan_free": (None, (c_void_p,)),
    "rr_message_parts": (POINTER(Span), (c_void_p, POINTER(c_size_t))),
    "rr_message_free": (None, (c_void_p,)),
    "rr_appender_free": (None, (c_void_p,)),
    "rr_appender_has_room": (c_int32, (c_void_p, c_int64)),
    "rr_appender_count_refusal": (None, (c_void_p, *_text)),
    "rr_appender_on_ask_error": (None, (c_void_p, c_void_p, c_int64)),
    "rr_appender_on_stream_end": (None, (c_void_p, c_void_p, c_int64)),
    "rr_appender_has_finished": (c_int32, (c_void_p,)),
    "rr_appender_delivered": (None, (c_void_p,)),
    "rr_appender_newest_open": (c_uint64, (c_void_p,)),
    "rr_appender_settled": (c_int32, (c_void_p, c_uint64)),
    "rr_trajectory_free": (None, (c_void_p,)),
    "rr_trajectory_on_truncate_failed": (None, (c_void_p,)),
    "rr_trajectory_next_row": (c_int64, (c_void_p, c_void_p, c_size_t)),
    "rr_reader_free": (None, (c_void_p,)),
    "rr_servers_free": (None, (c_void_p,)),
    "rr_servers_on_unavailable": (None, (c_void_p, *_text)),
    "rr_servers_has_others": (c_int32, (c_void_p,)),
    "rr_servers_look_again": (None, (c_void_p,)),
    "rr_security_free": (None, (c_void_p,)),
    "rr_security_token_replaced": (c_int32, (c_void_p, *_text, c_void_p)),
    "rr_shard_free": (None, (c_void_p,)),
    "rr_lives_free": (None, (c_void_p,)),
    "rr_lives_whole": (c_uint64, (c_void_p,)),
    "rr_places_free": (None, (c_void_p,)),
    "rr_merge_free": (None, (c_void_p,)),
    "rr_export_free": (None, (c_void_p,)),
    "rr_import_free": (None, (c_void_p,)),
    "rr_retry_free": (None, (c_void_p,)),
    "rr_retry_wait": (c_int64, (c_void_p, c_void_p, c_int64)),
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
    library = ctypes.CDLL(str(find_file("librouting_replay.so")))
    pointers = {name: (c_void_p, arguments) for name, arguments in (_FALLIBLE | _ERRORS).items()}
    for name, (result, arguments) in (pointers | _OTHERS).items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.rr_abi_version() != _ABI_VERSION:
        raise ImportError(f"{library._name} is of ABI {library.rr_abi_version()}, this package needs {_ABI_VERSION}")
    return library


def fallible() -> frozenset[str]:
    """Names of the functions whose result must be checked."""
    return frozenset(_FALLIBLE)


LIBRARY = _load()
