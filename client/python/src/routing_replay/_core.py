"""Python objects over the C core. The rules are all there; here is only who owns what."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from routing_replay import _library, _values, errors

_lib = _library.LIBRARY
_PYBUF_READ = 0x100
_memory_view = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.restype = ctypes.py_object
_memory_view.argtypes = (c_void_p, ctypes.c_ssize_t, ctypes.c_int)

WAIT, ASK, CONNECT, SEND, CANCEL = range(5)


class _Handle:
    """An object of the core, which goes with this one."""

    __slots__ = ("pointer",)
    _free: Any  # Held by its class: the names of a module may be gone when the interpreter ends.

    def __init__(self, pointer: int | None) -> None:
        self.pointer = pointer

    def __del__(self) -> None:
        self._free(self.pointer)


class CoreError(_Handle):
    """An error object of the core. Immutable."""

    __slots__ = ()
    _free = _lib.rr_error_free

    @property
    def code(self) -> int:
        """As grpc.StatusCode has it."""
        return _lib.rr_error_code(self.pointer)

    def exception(self) -> errors.RoutingReplayError:
        return errors.from_detail(json.loads(_lib.rr_error_json(self.pointer)))


def rpc_error(code: int, message: str, details: bytes) -> CoreError:
    """The error of a failed call: its code, its message and its grpc-status-details-bin."""
    text = message.encode()
    return CoreError(_lib.rr_error_from_rpc(code, text, len(text), details, len(details)))


def _check(pointer: int | None, function: Any = None, arguments: Any = None) -> None:
    if pointer is not None:
        raise CoreError(pointer).exception()


for _name in _library.fallible():
    getattr(_lib, _name).errcheck = _check


def _exception(pointer: int | None) -> errors.RoutingReplayError | None:
    return None if pointer is None else CoreError(pointer).exception()


class _Bytes(_Handle):
    """rr_bytes: keeps its memory until it is collected."""

    __slots__ = ()
    _free = _lib.rr_bytes_free

    def copy(self) -> bytes:
        return ctypes.string_at(_lib.rr_bytes_data(self.pointer), _lib.rr_bytes_size(self.pointer))


class _ArrayMemory:
    """What numpy takes as the owner of an array's memory."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: _Bytes, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (_lib.rr_bytes_data(owner.pointer), False),
            "shape": shape,
            "typestr": typestr,
        }


def _give(function: Any, *arguments: Any) -> bytes:
    out = c_void_p()
    function(*arguments, byref(out))
    return _Bytes(out.value).copy()


def _make(function: Any, *arguments: Any) -> int:
    out = c_void_p()
    function(*arguments, byref(out))
    assert out.value is not None
    return out.value


def _json(value: Any) -> tuple[bytes, int]:
    text = json.dumps(value).encode()
    return text, len(text)


def leak(value: Any) -> None:
    """Keeps `value` for ever: what a fork left behind must not even be freed, or the child may hang or crash."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def defaults(use_http_proxy: bool = False) -> dict[str, Any]:
    return json.loads(_give(_lib.rr_defaults, int(use_http_proxy)))


class Server(NamedTuple):
    target: str  # Of gRPC.
    judged: str  # What Security.channel is asked of.
    channel_options: list[tuple[str, str]]  # Beside those of defaults().


class Servers(_Handle):
    """rr_servers: those of an endpoint. InvalidArgumentError for a bad endpoint. Thread-safe."""

    __slots__ = ("endpoint",)
    _free = _lib.rr_servers_free

    def __init__(self, endpoint: str | None) -> None:
        self.pointer = None
        # The environment of now, whatever becomes of it.
        self.endpoint = endpoint or os.environ.get(defaults()["endpoint_variable"], "")
        text = self.endpoint.encode()
        self.pointer = _make(_lib.rr_servers_new, text, len(text))

    def present(self, timeout: float) -> Server:
        """The one to talk to; waits `timeout` seconds for the file of a "file:PATH", then DeadlineExceededError."""
        said = json.loads(_give(_lib.rr_servers_present, self.pointer, round(timeout * 1000)))
        options = [(name, value) for name, value in said["channel_options"]]
        return Server(said["target"], said["judged"], options)

    @property
    def has_others(self) -> bool:
        """Whether another may be there when the present one is away."""
        return bool(_lib.rr_servers_has_others(self.pointer))

    def on_unavailable(self, server: Server) -> None:
        """A call found no server there."""
        target = server.target.encode()
        _lib.rr_servers_on_unavailable(self.pointer, target, len(target))

    def look_again(self) -> None:
        """Reads the endpoint's file again: a server that was started anew has another port."""
        _lib.rr_servers_look_again(self.pointer)


class ChannelKeys(NamedTuple):
    """What a channel is made with; PEM, "" where there is none."""

    encrypted: bool
    root_certificates: str
    certificate: str
    key: str
    channel_options: list[tuple[str, str]]  # Beside those of defaults() and of the server.


class Security(_Handle):
    """rr_security: how the client knows the server and shows who it is. Thread-safe."""

    __slots__ = ("settings",)
    _free = _lib.rr_security_free

    def __init__(self, settings: dict[str, Any]) -> None:
        self.pointer = None
        self.settings = settings
        self.pointer = _make(_lib.rr_security_new, *_json(settings))

    def channel(self, target: str) -> ChannelKeys:
        """Of a new channel; InvalidArgumentError for files that cannot be read, and for a token that would go there in
        plaintext."""
        text = target.encode()
        said = json.loads(_give(_lib.rr_security_channel, self.pointer, text, len(text)))
        said["channel_options"] = [(name, value) for name, value in said["channel_options"]]
        return ChannelKeys(**said)

    def authorization(self) -> str:
        """Of a new call; "" for none."""
        return _give(_lib.rr_security_authorization, self.pointer).decode()

    def token_replaced(self, authorization: str, error: CoreError) -> bool:
        """Whether the call that carried `authorization` is to be made again."""
        text = authorization.encode()
        return bool(_lib.rr_security_token_replaced(self.pointer, text, len(text), error.pointer))


def sample_handle(sample: str) -> int:
    text = _values.text(sample, "sample").encode()
    handle = c_int64()
    _lib.rr_sample_handle(text, len(text), byref(handle))
    return handle.value


def token_ids(tokens: np.ndarray, field: str, sample: str | None) -> np.ndarray:
    """uint32 [n]. InvalidArgumentError naming `field` for what are no token ids, or none at all."""
    array = np.ascontiguousarray(tokens, tokens.dtype.newbyteorder("<"))
    described = {"dtype": array.dtype.name, "axes": tokens.ndim, "field": field, "sample": sample or ""}
    made = _Bytes(_make(_lib.rr_token_ids, *_json(described), array.ctypes.data, array.nbytes))
    return np.asarray(_ArrayMemory(made, (_lib.rr_bytes_size(made.pointer) // 4,), "<u4"))


def token_check(tokens: np.ndarray, check: int = 0) -> int:
    """CRC32C over `tokens` (uint32, contiguous), after tokens whose check is `check`."""
    return _lib.rr_token_check(check, tokens.ctypes.data, tokens.size)


class Geometry(_Handle):
    """rr_geometry. Immutable."""

    __slots__ = ()
    _free = _lib.rr_geometry_free

    def __init__(self, description: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_geometry_new, *_json(description))

    @classmethod
    def from_config(cls, text: str, source: str) -> tuple[Geometry, dict[str, Any]]:
        """From a model's configuration (source "huggingface" or "megatron"), and what it tells of the routers."""
        geometry = cls.__new__(cls)
        geometry.pointer = None
        made, routing = c_void_p(), c_void_p()
        config, name = text.encode(), source.encode()
        _lib.rr_geometry_from_config(config, len(config), name, len(name), byref(made), byref(routing))
        geometry.pointer = made.value
        return geometry, json.loads(_Bytes(routing.value).copy())

    def json(self) -> str:
        return _give(_lib.rr_geometry_json, self.pointer).decode()

    def facts(self) -> dict[str, Any]:
        return json.loads(_give(_lib.rr_geometry_facts, self.pointer))

    def block_bytes(self, rows: int, codec: str) -> int:
        size = c_int64()
        name = codec.encode()
        _lib.rr_geometry_block_bytes(self.pointer, rows, name, len(name), byref(size))
        return size.value


class Plan(_Handle):
    """rr_plan: an append ready to be queued or put."""

    __slots__ = ()
    _free = _lib.rr_plan_free

    @property
    def bytes(self) -> int:
        return _lib.rr_plan_bytes(self.pointer)


def _tokens(tokens: np.ndarray | None) -> tuple[int | None, int]:
    return (None, 0) if tokens is None else (tokens.ctypes.data, tokens.size)


class Run(_Handle):
    """rr_run. Immutable, may be shared by threads."""

    __slots__ = ()
    _free = _lib.rr_run_free

    def __init__(self, description: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_run_new, *_json(description))

    def plan(
        self,
        append: dict[str, Any],
        tensor: dict[str, Any],
        payload: np.ndarray,
        tokens: np.ndarray | None,
        encode: bool,
    ) -> Plan:
        """`payload`: contiguous. `encode`: decode, check and tile here, or let the server do it."""
        function = _lib.rr_plan_rows if encode else _lib.rr_plan_tensor
        data = (payload.ctypes.data, payload.nbytes)
        return Plan(_make(function, self.pointer, *_json(append), *_json(tensor), *_tokens(tokens), *data))

    def put_messages(self, plan: Plan) -> Iterator[bytes]:
        """The Puts of a plan, one per piece."""
        for piece in range(_lib.rr_plan_pieces(plan.pointer)):
            yield _take_message(_make(_lib.rr_put_piece, self.pointer, plan.pointer, piece))


def plan_unrecorded(append: dict[str, Any], rows: int, tokens: np.ndarray | None) -> Plan:
    return Plan(_make(_lib.rr_plan_unrecorded, *_json(append), rows, *_tokens(tokens)))


def put_outcome(answers: Sequence[bytes]) -> dict[str, Any]:
    """What the answers to the Puts of one append say together."""
    spans = (_library.Span * len(answers))()
    for span, answer in zip(spans, answers, strict=True):
        span.data, span.size = _address(answer)
    return json.loads(_give(_lib.rr_put_outcomes, spans, len(answers)))


def output_weights(claim: dict[str, Any]) -> list[list[Any]]:
    """Weights of rows from versions of output tokens: rr_output_weights."""
    return json.loads(_give(_lib.rr_output_weights, *_json(claim)))


def account_rows(claim: dict[str, Any]) -> dict[str, Any]:
    """Which rows a tensor holds: rr_account_rows."""
    return json.loads(_give(_lib.rr_account_rows, *_json(claim)))


def payload_shape(tensor: dict[str, Any], payload: Any) -> dict[str, Any]:
    """dtype and shape of an undecoded payload: rr_payload_shape."""
    return json.loads(_give(_lib.rr_payload_shape, *_json(tensor), *_address(payload)))


def open_nrlre1(text: Any) -> dict[str, Any]:
    """What an "nrlre1:…" holds: rr_open_nrlre1."""
    return json.loads(_give(_lib.rr_open_nrlre1, *_address(text)))


def open_object(dialect: str, described: Any) -> dict[str, Any]:
    """What an object beside base64 says: rr_open_object."""
    name = dialect.encode()
    return json.loads(_give(_lib.rr_open_object, name, len(name), *_json(described)))


def check_narrowest(tensor: dict[str, Any], payload: Any) -> None:
    """InvalidArgumentError if SkyRL would have written another dtype: rr_check_narrowest."""
    _lib.rr_check_narrowest(*_json(tensor), *_address(payload))


def open_rows_file(file: Any, name: str) -> dict[str, Any]:
    """Where the rows are in a file: rr_open_rows_file."""
    text = name.encode()
    return json.loads(_give(_lib.rr_open_rows_file, *_address(file), text, len(text)))


def trace_sequences(index: bytes, stem: str, rows: int) -> list[tuple[int, int]]:
    """Rows of the sequences of a trace: rr_trace_sequences."""
    text = stem.encode()
    return json.loads(_give(_lib.rr_trace_sequences, index, len(index), text, len(text), rows))


def find_routes(body: Any) -> list[dict[str, Any]]:
    """Where the routed experts are in a JSON body: rr_find_routes."""
    return json.loads(_give(_lib.rr_find_routes, *_address(body)))


def decode_base85(text: Any) -> bytes:
    return _give(_lib.rr_decode_base85, *_address(text))


def _address(payload: Any) -> tuple[int, int]:
    """Where the bytes of a buffer are, and how many; the caller keeps it."""
    array = np.frombuffer(payload, np.uint8)
    return array.ctypes.data, array.nbytes


def _take_message(pointer: int) -> bytes:
    try:
        count = c_size_t()
        parts = _lib.rr_message_parts(pointer, byref(count))
        views = [_memory_view(parts[i].data, parts[i].size, _PYBUF_READ) for i in range(count.value)]
        return b"".join(views)
    finally:
        _lib.rr_message_free(pointer)


class Step:
    """What an appender is to do: `step` and, by its kind, `until` (ns), `message` (pointer) or `ask`."""

    __slots__ = ("ask", "message", "step", "until")

    def __init__(self, action: _library.Action) -> None:
        self.step: int = action.step
        self.until: int = action.until
        self.message: int | None = action.message
        self.ask: dict[str, Any] | None = None
        if action.ask is not None:
            self.ask = json.loads(_Bytes(action.ask).copy())

    def take_message(self) -> bytes:
        """The bytes to send; once."""
        pointer, self.message = self.message, None
        assert pointer is not None
        return _take_message(pointer)

    def __del__(self, free: Any = _lib.rr_message_free) -> None:
        if self.message is not None:
            free(self.message)


class Appender(_Handle):
    """rr_appender. Not thread-safe. Times are nanoseconds of time.monotonic_ns."""

    __slots__ = ()
    _free = _lib.rr_appender_free

    def __init__(self, run: str, max_queued_bytes: int, append_timeout_ms: int) -> None:
        self.pointer = None
        description = {"run": run, "max_queued_bytes": max_queued_bytes, "append_timeout_ms": append_timeout_ms}
        self.pointer = _make(_lib.rr_appender_new, *_json(description))

    def has_room(self, size: int) -> bool:
        return bool(_lib.rr_appender_has_room(self.pointer, size))

    def no_room(self, sample: str) -> errors.RoutingReplayError | None:
        text = sample.encode()
        return _exception(_lib.rr_appender_no_room(self.pointer, text, len(text)))

    def add(self, plan: Plan, now: int) -> int:
        sequence = c_uint64()
        _lib.rr_appender_add(self.pointer, plan.pointer, now, byref(sequence))
        return sequence.value

    def count_refusal(self, reason: str | None) -> None:
        """An append that was refused before it could be added, and why."""
        text = (reason or "").encode()
        _lib.rr_appender_count_refusal(self.pointer, text, len(text))

    def add_dropped(self, plan: Plan, now: int) -> int:
        sequence = c_uint64()
        _lib.rr_appender_add_dropped(self.pointer, plan.pointer, now, byref(sequence))
        return sequence.value

    def add_failed(self, plan: Plan, why: CoreError, now: int) -> int:
        sequence = c_uint64()
        _lib.rr_appender_add_failed(self.pointer, plan.pointer, why.pointer, now, byref(sequence))
        return sequence.value

    def next(self, now: int, can_write: bool) -> Step:
        action = _library.Action()
        _lib.rr_appender_next(self.pointer, now, int(can_write), byref(action))
        return Step(action)

    def on_states(self, states: list[dict[str, Any]], now: int) -> None:
        _lib.rr_appender_on_states(self.pointer, *_json(states), now)

    def on_ask_error(self, error: CoreError, now: int) -> None:
        _lib.rr_appender_on_ask_error(self.pointer, error.pointer, now)

    def on_message(self, message: bytes, now: int) -> None:
        _lib.rr_appender_on_message(self.pointer, message, len(message), now)

    def on_stream_end(self, why: CoreError | None, now: int) -> None:
        _lib.rr_appender_on_stream_end(self.pointer, None if why is None else why.pointer, now)

    def take_finished(self) -> list[dict[str, Any]]:
        return json.loads(_give(_lib.rr_appender_take_finished, self.pointer))

    def has_finished(self) -> bool:
        return bool(_lib.rr_appender_has_finished(self.pointer))

    def delivered(self) -> None:
        _lib.rr_appender_delivered(self.pointer)

    def newest_open(self) -> int:
        return _lib.rr_appender_newest_open(self.pointer)

    def settled(self, sequence: int) -> bool:
        return bool(_lib.rr_appender_settled(self.pointer, sequence))

    def not_flushed(self) -> errors.RoutingReplayError | None:
        return _exception(_lib.rr_appender_not_flushed(self.pointer))

    def take_error(self) -> errors.RoutingReplayError | None:
        return _exception(_lib.rr_appender_take_error(self.pointer))

    def metrics(self) -> dict[str, int]:
        return json.loads(_give(_lib.rr_appender_metrics, self.pointer))


class Trajectory(_Handle):
    """rr_trajectory. Not thread-safe."""

    __slots__ = ()
    _free = _lib.rr_trajectory_free

    def __init__(self, description: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_trajectory_new, *_json(description))

    def fork(self, sample: str) -> Trajectory:
        text = sample.encode()
        made = Trajectory.__new__(Trajectory)
        made.pointer = None
        made.pointer = _make(_lib.rr_trajectory_fork, self.pointer, text, len(text))
        return made

    def turn(
        self,
        run: Run,
        turn: dict[str, Any],
        tokens: np.ndarray | None,
        tensor: dict[str, Any] | None,
        payload: np.ndarray | None,
    ) -> dict[str, Any]:
        described = (None, 0) if tensor is None else _json(tensor)
        data = (None, 0) if payload is None else (payload.ctypes.data, payload.nbytes)
        decision = _give(
            _lib.rr_trajectory_turn, self.pointer, run.pointer, *_json(turn), *_tokens(tokens), *described, *data
        )
        return json.loads(decision)

    def take_plan(self) -> Plan:
        return Plan(_make(_lib.rr_trajectory_take_plan, self.pointer))

    def on_outcome(self, record: dict[str, Any]) -> None:
        _lib.rr_trajectory_on_outcome(self.pointer, *_json(record))

    def on_dropped(self, begin: int, end: int) -> None:
        _lib.rr_trajectory_on_dropped(self.pointer, begin, end)

    def on_state(self, states: list[dict[str, Any]]) -> None:
        _lib.rr_trajectory_on_state(self.pointer, *_json(states))

    def on_truncated(self, states: list[dict[str, Any]]) -> None:
        _lib.rr_trajectory_on_truncated(self.pointer, *_json(states))

    def on_truncate_failed(self) -> None:
        _lib.rr_trajectory_on_truncate_failed(self.pointer)

    def next_row(self, tokens: np.ndarray) -> int:
        return _lib.rr_trajectory_next_row(self.pointer, *_tokens(tokens))

    def state(self) -> dict[str, Any]:
        return json.loads(_give(_lib.rr_trajectory_state, self.pointer))


class Reader(_Handle):
    """rr_reader: one read. Not thread-safe."""

    __slots__ = ()
    _free = _lib.rr_reader_free

    def __init__(self, run: Run, request: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_reader_new, run.pointer, *_json(request))

    def request(self) -> bytes | None:
        """What to ask a server for now; None once nothing is missing."""
        out = c_void_p()
        _lib.rr_reader_request(self.pointer, byref(out))
        return None if out.value is None else _Bytes(out.value).copy()

    def push(self, message: bytes) -> None:
        _lib.rr_reader_push(self.pointer, message, len(message))

    def end(self) -> None:
        """The answer ended well."""
        _lib.rr_reader_end(self.pointer)

    def broke(self) -> None:
        """The answer broke off; another server may be asked for the rest."""
        _lib.rr_reader_break(self.pointer)

    def result(self) -> dict[str, Any]:
        return json.loads(_give(_lib.rr_reader_result, self.pointer))

    def take_ids(self, index: int, shape: Sequence[int], id_bytes: int) -> np.ndarray:
        """The ids of a sample, [layers, rows, K], in memory that the array owns."""
        owner = _Bytes(_make(_lib.rr_reader_take_ids, self.pointer, index))
        typestr = "|u1" if id_bytes == 1 else "<u2"
        if 0 in shape:
            return np.empty(tuple(shape), typestr)
        return np.asarray(_ArrayMemory(owner, tuple(shape), typestr))


class Export(_Handle):
    """rr_export. Not thread-safe."""

    __slots__ = ()
    _free = _lib.rr_export_free

    def __init__(self, run: Run, options: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_export_new, run.pointer, *_json(options))

    def on_list(self, states: list[dict[str, Any]], life: int) -> None:
        _lib.rr_export_on_list(self.pointer, *_json(states), life)

    def next(self) -> tuple[list[str], dict[str, int]]:
        """Samples to be read, none if there are no more, and how far it is."""
        step = json.loads(_give(_lib.rr_export_next, self.pointer))
        return step["samples"], step["progress"]

    def on_rows(self, states: list[dict[str, Any]], reader: Reader) -> None:
        _lib.rr_export_on_rows(self.pointer, *_json(states), reader.pointer)

    def finish(self) -> dict[str, Any]:
        return json.loads(_give(_lib.rr_export_finish, self.pointer))

    def raise_unread(self) -> None:
        """The error that kept a sample out while all others are in, if there was one."""
        _lib.rr_export_unread(self.pointer)


class Import(_Handle):
    """rr_import. Not thread-safe."""

    __slots__ = ()
    _free = _lib.rr_import_free

    def __init__(self, options: dict[str, Any]) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_import_new, *_json(options))

    def contents(self) -> dict[str, Any]:
        return json.loads(_give(_lib.rr_import_contents, self.pointer))

    def begin(self, index: int, states: list[dict[str, Any]]) -> list[list[int]]:
        """Rows that are to be read and compared."""
        return json.loads(_give(_lib.rr_import_begin, self.pointer, index, *_json(states)))

    def compare(self, reader: Reader) -> None:
        _lib.rr_import_compare(self.pointer, reader.pointer)

    def take_plan(self, run: Run) -> tuple[Plan, int] | None:
        plan, size = c_void_p(), c_int64()
        _lib.rr_import_take_plan(self.pointer, run.pointer, byref(plan), byref(size))
        return None if plan.value is None else (Plan(plan.value), size.value)


class Retry(_Handle):
    """rr_retry: the attempts of one call up to `deadline` (ns)."""

    __slots__ = ("told",)
    _free = _lib.rr_retry_free

    def __init__(self, deadline: int) -> None:
        self.told = False  # That somebody waits.
        self.pointer = None
        self.pointer = _make(_lib.rr_retry_new, deadline)

    def wait(self, error: CoreError, now: int) -> float | None:
        """Seconds to wait before the next attempt, or None: the error is final."""
        wait = _lib.rr_retry_wait(self.pointer, error.pointer, now)
        return None if wait < 0 else wait / 1e9
