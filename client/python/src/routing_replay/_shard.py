"""Calls of several servers as one: who is asked, and how their answers become one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from routing_replay import _core, _messages, _shard_core, errors
from routing_replay._lives import Lives
from routing_replay._transport import DEFAULTS, SERVICE, Connection, Transport
from routing_replay.errors import RoutingReplayError

_BRIEF = 1.0  # Seconds that a server is tried which was not there the last time.
_PRODUCERS = {0: "rollout", 1: "rollout", 2: "trainer"}
_RELEASED = ("samples", "bytes", "kept")
_SUMMED = ("budget_bytes", "stored_bytes", "reserved_bytes", "spill_budget_bytes", "spilled_bytes", "samples")
_UNREACHABLE = (errors.UnavailableError, errors.DeadlineExceededError)

# Whose answers are needed (RR_NEEDED_… of capi.h).
_THAT_ANSWER, _WITH_THE_RUN, _ALL = range(3)
_NEEDED = {"Release": _THAT_ANSWER, "ReleaseForCheckpoint": _THAT_ANSWER, "DropRun": _WITH_THE_RUN}

Answer = bytes | RoutingReplayError


def _is_no_run(answer: Answer) -> bool:
    return isinstance(answer, errors.NotFoundError) and answer.reason == "NO_RUN"


def _kind(answer: Answer) -> int:
    """As rr_shard_judge takes it."""
    if isinstance(answer, bytes):
        return 0
    if _is_no_run(answer):
        return 1
    return 2 if isinstance(answer, _UNREACHABLE) else 3


class ShardTransport:
    """As Transport, of the members of a sharded endpoint. Thread-safe."""

    def __init__(self, servers: _shard_core.Shard, connection: Connection) -> None:
        self.shard = servers
        self.call_timeout = connection.call_timeout
        self.members = [Transport(one, connection) for one in servers.members]
        brief = connection._replace(call_timeout=min(_BRIEF, self.call_timeout))
        self._brief = [Transport(one, brief) for one in servers.members]
        self._gone = [False] * len(servers.members)  # No server was there at the last call.
        self._places: dict[str, _shard_core.Places] = {}

    @property
    def has_others(self) -> bool:
        """Each server has its own samples."""
        return False

    def places(self, run: str) -> _shard_core.Places:
        return self._places.setdefault(run, _shard_core.Places(self.shard))

    def call(self, method: str, request: bytes, repeat: bool = True) -> bytes:
        """As Transport.call: of all members, or of the one that has the sample."""
        if method in ("Seal", "Truncate"):
            return self._call_at_sample(method, request, repeat)
        if method == "ListRuns":
            return self._list_runs(request)
        if method == "Stat":
            return self._stat(request)
        answers = self._of_all(lambda member: self.call_member(member, method, request, repeat))
        return _MERGES[method](self._good(answers, _NEEDED.get(method, _ALL)))

    def call_of_opened(self, lives: Lives, method: str, request: bytes, repeat: bool = True) -> bytes:
        """As `call`, of a run that open_run gave with `lives`.

        DataLossError where the answer would be without what was lost since then.
        """
        if method == "List":
            return self._list(lives, request)
        return self.call(method, request, repeat)

    def call_member(self, member: int, method: str, request: bytes, repeat: bool = True, brief: bool = False) -> bytes:
        """Of one of them. An error names it."""
        transport = (self._brief if brief or self._gone[member] else self.members)[member]
        try:
            answer = transport.call(method, request, repeat)
        except RoutingReplayError as error:
            if not brief:
                self.note(member, error)
            raise self.named(member, error) from None
        self.note(member, None)
        return answer

    def named(self, member: int, error: RoutingReplayError) -> RoutingReplayError:
        """`error` with the server named before its message."""
        error.message = f"server {self.shard.members[member]}: {error.message}"
        error.args = (error.message,)
        return error

    def note(self, member: int, error: RoutingReplayError | None) -> None:
        """What a call of a member ended with that was tried again and again."""
        self._gone[member] = isinstance(error, _UNREACHABLE)

    def first_gone(self) -> int:
        """The first member that no server was there of at the last call; 0 if all were."""
        return self._gone.index(True) if True in self._gone else 0

    def locate(self, run: str, producer: str, handles: Sequence[int]) -> list[list[int] | None]:
        """By member which of them it has; None if it did not answer soon."""
        request = _messages.StatRequest(run=run, handles=handles, producer=2 if producer == "trainer" else 1)
        text = request.SerializeToString()

        def ask(member: int) -> bytes:
            transport = self.members[member]
            patience = 0.0 if self._gone[member] else _BRIEF
            retry = _core.Retry(int((time.monotonic() + patience) * 1e9))
            while True:
                channel = transport.channel()
                stub = channel.unary_unary(SERVICE + "Stat")
                metadata = transport.metadata()
                try:
                    return stub(text, timeout=DEFAULTS["ask_timeout_ms"] / 1000, metadata=metadata)
                except grpc.RpcError as failure:
                    error = transport.failed(channel, failure, metadata)
                wait = retry.wait(error, time.monotonic_ns())
                if wait is None:
                    raise error.exception()
                time.sleep(wait)

        located: list[list[int] | None] = []
        for member, answer in enumerate(self._of_all(ask)):
            self.note(member, answer if isinstance(answer, RoutingReplayError) else None)
            if isinstance(answer, bytes):
                located.append([state.handle for state in _messages.StatResponse.FromString(answer).found])
            else:
                located.append([] if _is_no_run(answer) else None)
        return located

    def search(self, run: str, producer: str, handle: int) -> int | None:
        """The member that has it, remembered; as Places.learn."""
        located = self.locate(run, producer, [handle])
        found = [-1 if handles is None else int(bool(handles)) for handles in located]
        return self.places(run).learn(producer, handle, found)

    def route(self, run: str, plan: _core.Plan) -> int:
        """The member that the plan of an append goes to."""
        places = self.places(run)
        member, search = places.route(plan, False)
        if search is not None:
            self.search(run, search["producer"], search["handles"][0])
            member, _ = places.route(plan, True)
        return member

    def close(self, timeout: float) -> None:
        for transport in [*self.members, *self._brief]:
            transport.close(timeout)

    def _of_all(self, call: Callable[[int], bytes]) -> list[Answer]:
        """call(0), call(1), … at the same time."""
        answers: list[Answer] = [b""] * len(self.members)

        def ask(member: int) -> None:
            try:
                answers[member] = call(member)
            except RoutingReplayError as error:
                answers[member] = error
            except BaseException as error:
                answers[member] = errors.InternalError(repr(error))

        threads = [threading.Thread(target=ask, args=(member,), daemon=True) for member in range(1, len(answers))]
        for thread in threads:
            thread.start()
        ask(0)
        for thread in threads:
            thread.join()
        return answers

    def _good(self, answers: list[Answer], needed: int) -> list[bytes]:
        """Of the members that have the run; raises where the whole would be missing some of it."""
        failed = self.shard.judge([_kind(answer) for answer in answers], needed)
        if failed is not None:
            error = answers[failed]
            assert isinstance(error, RoutingReplayError)
            raise error
        return [answer for answer in answers if isinstance(answer, bytes)]

    def _check_life(self, lives: Lives, member: int, run: str, life: int) -> None:
        try:
            lives.check(member, run, life)
        except RoutingReplayError as error:
            raise self.named(member, error) from None

    def open_run(self, request: bytes) -> tuple[bytes, Lives]:
        """The answer of all members as one, and which making of the run each of them means by it."""
        message = _messages.OpenRunRequest.FromString(request)
        message.shard_fingerprint = self.shard.fingerprint
        text = message.SerializeToString()
        joins = not message.HasField("geometry")
        repeat = not message.HasField("resume_at")
        answers = self._of_all(lambda member: self.call_member(member, "OpenRun", text, repeat, brief=joins))
        if joins and all(isinstance(answer, _UNREACHABLE) for answer in answers):
            self._gone = [False] * len(self.members)
            answers = self._of_all(lambda member: self.call_member(member, "OpenRun", text))
        good = self._good(answers, _THAT_ANSWER if joins else _ALL)
        opened = [_messages.OpenRunResponse.FromString(one if isinstance(one, bytes) else b"") for one in answers]
        self.shard.check_distinct([one.life for one in opened])
        lives = Lives(len(opened))
        for member, one in enumerate(opened):
            lives.open(member, one.life)
        whole, *others = map(_messages.OpenRunResponse.FromString, good)
        for other in others:
            _add(whole.dropped, other.dropped, _RELEASED)
            whole.features[:] = [feature for feature in whole.features if feature in other.features]
        if any(other.geometry != whole.geometry for other in others):
            raise errors.FailedPreconditionError(
                f"run {message.run} has another geometry on one server than on another", reason="GEOMETRY_MISMATCH"
            )
        whole.life = 0  # Each member has one of its own.
        return whole.SerializeToString(), lives

    def _call_at_sample(self, method: str, request: bytes, repeat: bool) -> bytes:
        kind = {"Seal": _messages.SealRequest, "Truncate": _messages.TruncateRequest}[method]
        message = kind.FromString(request)
        producer, handle = _PRODUCERS[message.producer], _core.sample_handle(message.sample)
        place = self.places(message.run).find(producer, handle)
        try:
            return self.call_member(place, method, request, repeat)
        except (errors.NotFoundError, *_UNREACHABLE) as error:
            try:
                found = self.search(message.run, producer, handle)
            except errors.UnavailableError:
                if isinstance(error, errors.NotFoundError):
                    raise
                found = None
            if found is None or found == place:
                raise error from None
        return self.call_member(found, method, request, repeat)

    def _stat(self, request: bytes) -> bytes:
        """Where all are found it does not matter who did not answer."""
        answers = self._of_all(lambda member: self.call_member(member, "Stat", request))
        found: dict[str, Any] = {}
        for answer in self._good(answers, _THAT_ANSWER):
            for state in _messages.StatResponse.FromString(answer).found:
                found.setdefault(state.sample, state)
        asked = _messages.StatRequest.FromString(request).samples
        if not found.keys() >= set(asked):
            self._good(answers, _WITH_THE_RUN)
        states = [found[name] for name in dict.fromkeys(asked) if name in found]
        return _messages.StatResponse(found=states).SerializeToString()

    def _list(self, lives: Lives, request: bytes) -> bytes:
        asked = _messages.ListRequest.FromString(request)

        def check(member: int, page: Any) -> None:
            self._check_life(lives, member, asked.run, page.life)

        return _merge_samples(self._all_pages("List", asked, _messages.ListResponse, check))

    def _list_runs(self, request: bytes) -> bytes:
        asked = _messages.ListRunsRequest.FromString(request)
        return _merge_runs(self._all_pages("ListRuns", asked, _messages.ListRunsResponse, lambda member, page: None))

    def _all_pages(self, method: str, asked: Any, pages: Any, check: Callable[[int, Any], None]) -> list[bytes]:
        """By member its pages as one; each is checked as it comes."""

        def of_member(member: int) -> bytes:
            whole, message = pages(), type(asked)()
            message.CopyFrom(asked)
            while True:
                page = pages.FromString(self.call_member(member, method, message.SerializeToString()))
                check(member, page)
                message.page_token = page.next_page_token
                page.ClearField("next_page_token")
                whole.MergeFrom(page)
                if not message.page_token:
                    return whole.SerializeToString()

        return self._good(self._of_all(of_member), _ALL)


def _merge_samples(answers: list[bytes]) -> bytes:
    lists = map(_messages.ListResponse.FromString, answers)
    samples = sorted((state for one in lists for state in one.samples), key=lambda state: state.sample)
    return _messages.ListResponse(samples=samples).SerializeToString()


def _merge_runs(answers: list[bytes]) -> bytes:
    runs: dict[str, Any] = {}
    for answer in answers:
        for state in _messages.ListRunsResponse.FromString(answer).runs:
            if (run := runs.setdefault(state.run, state)) is not state:
                _add(run, state, ("samples", "sealed_samples", "committed_rows", "stored_bytes"))
    merged = _messages.ListRunsResponse(runs=[runs[name] for name in sorted(runs)])
    return merged.SerializeToString()


def _merge_released(answers: list[bytes]) -> bytes:
    total, *others = map(_messages.ReleaseResponse.FromString, answers)
    for other in others:
        _add(total, other, _RELEASED)
    return total.SerializeToString()


def _merge_info(answers: list[bytes]) -> bytes:
    infos = list(map(_messages.ServerInfo.FromString, answers))
    total, *others = infos
    for other in others:
        _add(total, other, _SUMMED)
        for name, value in other.counters.items():
            total.counters[name] += value
    total.version = ", ".join(sorted({info.version for info in infos}))
    total.store = ", ".join(sorted({info.store for info in infos}))
    total.runs = max(info.runs for info in infos)
    total.uptime_ms = min(info.uptime_ms for info in infos)
    total.draining = any(info.draining for info in infos)
    return total.SerializeToString()


def _add(total: Any, other: Any, fields: Sequence[str]) -> None:
    for field in fields:
        setattr(total, field, getattr(total, field) + getattr(other, field))


_MERGES: dict[str, Callable[[list[bytes]], bytes]] = {
    "Release": _merge_released,
    "ReleaseForCheckpoint": _merge_released,
    "DropRun": _merge_released,
    "GetServerInfo": _merge_info,
}
