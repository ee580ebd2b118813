"""Several servers as one, as the core sees them: Python objects over the C core."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_int32, c_uint64, c_void_p
from typing import Any

from routing_replay import _library
from routing_replay._core import CoreError, Plan, Run, _Bytes, _give, _Handle, _json, _lib, _make, defaults


class Shard(_Handle):
    """rr_shard: the servers of an endpoint "shard:…". Immutable."""

    __slots__ = ("fingerprint", "members")
    _free = _lib.rr_shard_free

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer
        described = json.loads(_give(_lib.rr_shard_members, pointer))
        self.members: list[str] = described["members"]
        self.fingerprint: int = described["fingerprint"]

    def judge(self, kinds: list[int], needed: int) -> int | None:
        """What the answers of all members are together: None if the good ones are the whole, or whose error says why
        not. DataLossError if that one lost the run."""
        failed = c_int32()
        _lib.rr_shard_judge(self.pointer, (c_int32 * len(kinds))(*kinds), len(kinds), needed, byref(failed))
        return None if failed.value < 0 else failed.value

    def check_distinct(self, lives: list[int]) -> None:
        """InvalidArgumentError if two members told the same life of a run (0: told none): they are one server."""
        _lib.rr_shard_check_distinct(self.pointer, (c_uint64 * len(lives))(*lives), len(lives))


def shard(endpoint: str | None) -> Shard | None:
    """None for an endpoint (or the environment's) of one server. InvalidArgumentError for a bad list of them."""
    text = (endpoint or os.environ.get(defaults()["endpoint_variable"], "")).encode()
    out = c_void_p()
    _lib.rr_shard_new(text, len(text), byref(out))
    return None if out.value is None else Shard(out.value)


class Places(_Handle):
    """rr_places: where samples of a run are. Thread-safe."""

    __slots__ = ()
    _free = _lib.rr_places_free

    def __init__(self, of: Shard) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_places_new, of.pointer)

    def find(self, producer: str, handle: int) -> int:
        member = c_int32()
        _lib.rr_places_find(self.pointer, producer.encode(), len(producer), handle, byref(member))
        return member.value

    def learn(self, producer: str, handle: int, found: list[int]) -> int | None:
        """By member: 1 it has it, 0 it has not, -1 it did not answer; which one it is, None if that can only be the one
        that its hash says. UnavailableError if another one that did not answer may have it."""
        member = c_int32()
        has = (c_int32 * len(found))(*found)
        _lib.rr_places_learn(self.pointer, producer.encode(), len(producer), handle, has, len(found), byref(member))
        return None if member.value < 0 else member.value

    def route(self, plan: Plan, searched: bool) -> tuple[int, dict[str, Any] | None]:
        """Where the plan goes; or what is to be searched for first: {"producer", "handles": [one]}."""
        member, search = c_int32(), c_void_p()
        _lib.rr_places_route(self.pointer, plan.pointer, int(searched), byref(member), byref(search))
        return member.value, None if search.value is None else json.loads(_Bytes(search.value).copy())


class Merge(_Handle):
    """rr_merge: a read of several servers. Not thread-safe."""

    START, RECEIVE, LOCATE, DELIVER, DONE = range(5)
    __slots__ = ("_places", "_present")
    _free = _lib.rr_merge_free

    def __init__(self, run: Run, places: Places, request: bytes) -> None:
        self.pointer = None
        self._places = places
        self._present: dict[int, bytes] = {}  # The core reads them where they are.
        self.pointer = _make(_lib.rr_merge_new, run.pointer, places.pointer, request, len(request))

    def next(self) -> tuple[int, int, int, bytes]:
        """Kind, stream, member, bytes; those of LOCATE are JSON, the arguments of a search."""
        step = _library.MergeStep()
        _lib.rr_merge_next(self.pointer, byref(step))
        return step.kind, step.stream, step.member, b"" if step.bytes is None else _Bytes(step.bytes).copy()

    def on_message(self, stream: int, message: bytes) -> None:
        self._present[stream] = message
        _lib.rr_merge_on_message(self.pointer, stream, message, len(message))

    def on_end(self, stream: int, error: CoreError | None) -> None:
        _lib.rr_merge_on_end(self.pointer, stream, None if error is None else error.pointer)

    def on_located(self, found: list[list[int] | None]) -> None:
        _lib.rr_merge_on_located(self.pointer, *_json(found))
