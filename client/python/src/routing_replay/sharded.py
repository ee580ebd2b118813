"""A run whose samples are spread over several servers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from routing_replay import _append, _calls, _core, _shard_core, _values
from routing_replay._commits import Key, Trouble, worse
from routing_replay._shard import ShardTransport
from routing_replay._transport import SERVICE, UNAVAILABLE, Broken, Metadata, is_refusal
from routing_replay.appender import Appender, Note, queue_options
from routing_replay.errors import RoutingReplayError, UnavailableError
from routing_replay.run import Run
from routing_replay.types import AppendOutcome, OnFull

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.types import AppendOptions, Rows

T = TypeVar("T")


class ShardedRun(Run):
    """One run of several servers, made by `Client("shard:a:7400,b:7400").run`.

    Every client of the run must state the same servers, in any order. A sample is with the one that rendezvous hashing
    of its handle says (client/shard/members.h), a fork with its parent; an id is opened as a fork or on its own, never
    once so and once so. A run is made on all of them; it is joined, and used, without those that cannot be reached:
    samples of theirs have the status UNAVAILABLE, `release` leaves them out, and what would not be whole without them
    (`list`, `drop`) raises UnavailableError naming one. So does an append whose sample may be with one of them. One
    that is back without the run raises DataLossError from `list`; `Client.run` with the geometry makes the run there
    again. After a `drop` that failed, what the others had is gone: call it again. A `read` that waits for a sample that
    nobody has begun waits where its handle says, so that it may miss one that is then begun as a fork.
    """

    _transport: ShardTransport  # type: ignore[assignment]

    def __init__(self, transport: ShardTransport, name: str, opened: _calls.OpenedRun) -> None:
        super().__init__(transport, name, opened)  # type: ignore[arg-type]

    def appender(
        self,
        *,
        max_queued_bytes: int | None = None,
        on_full: OnFull | None = None,
        queue_timeout: float | None = None,
        append_timeout: float | None = None,
        encode_blocks: bool = True,
        on_outcome: Callable[[AppendOutcome], None] | None = None,
    ) -> ShardedAppender:
        """As `Run.appender`. Each server has an equal share of max_queued_bytes."""
        servers = len(self._transport.members)
        queue = queue_options(max_queued_bytes, on_full, queue_timeout, append_timeout)
        options = {**dataclasses.asdict(queue), "max_queued_bytes": max(1, queue.max_queued_bytes // servers)}
        appender = ShardedAppender(self._transport, self._name, self._opened.core, options, encode_blocks, on_outcome)
        with self._lock:
            self._appenders.add(appender)
        return appender

    def put(self, sample: str, rows: Rows | None = None, **options: Unpack[AppendOptions]) -> AppendOutcome:
        with self._default_appender().counting_refusals():
            plan = _append.make_plan(self._opened.core, False, sample, rows, **options)
        member = self._transport.route(self._name, plan)
        messages = self._opened.core.put_messages(plan)
        answers = [self._transport.call_member(member, "Put", message) for message in messages]
        return _append.outcome_from(_core.put_outcome(answers))

    def _read_once(self, request: bytes, deadline: float) -> Iterator[bytes]:
        """What one server with all the samples would send."""
        merge = _shard_core.Merge(self._opened.core, self._transport.places(self._name), request)
        streams: list[Any] = []
        try:
            while True:
                kind, stream, member, text = merge.next()
                if kind == merge.DELIVER:
                    yield text
                elif kind == merge.START:
                    channel = self._transport.members[member].channel()
                    left = max(0.0, deadline - time.monotonic())
                    metadata = self._transport.members[member].metadata()
                    call = channel.unary_stream(SERVICE + "Read")(text, timeout=left, metadata=metadata)
                    streams.append((channel, call, metadata))
                elif kind == merge.RECEIVE:
                    self._receive(merge, stream, member, *streams[stream])
                elif kind == merge.LOCATE:
                    merge.on_located(self._transport.locate(self._name, **json.loads(text)))
                else:
                    return
        finally:
            for _, call, _ in streams:
                call.cancel()

    def _do(self, call: _calls.Call[T]) -> T:
        lives = self._opened.lives
        return call.read(self._transport.call_of_opened(lives, call.method, call.request, call.repeat))

    def _receive(
        self,
        merge: _shard_core.Merge,
        stream: int,
        member: int,
        channel: grpc.Channel,
        call: Any,
        metadata: Metadata,
    ) -> None:
        try:
            message = next(call, None)
        except grpc.RpcError as failure:
            error = self._transport.members[member].failed(channel, failure, metadata)
            if is_refusal(failure) and error.code == UNAVAILABLE:  # By a token that was replaced meanwhile.
                raise Broken(error, refused=True) from None
            return merge.on_end(stream, error)
        if message is None:
            return merge.on_end(stream, None)
        return merge.on_message(stream, message)


class ShardedAppender(Appender):
    """An appender per server behind one face: see `Appender`. Sequence numbers ascend, but not by 1."""

    def __init__(
        self,
        transport: ShardTransport,
        name: str,
        run: _core.Run,
        options: dict[str, Any],
        encode_blocks: bool,
        on_outcome: Callable[[AppendOutcome], None] | None,
    ) -> None:
        self._transport: ShardTransport = transport  # type: ignore[assignment]
        self._name = name
        self._run = run
        self._encode_blocks = encode_blocks
        self._telling = threading.Lock()
        self._parts = [
            Appender(
                member,
                name,
                run,
                encode_blocks=encode_blocks,
                on_outcome=None if on_outcome is None else self._teller(index, on_outcome),
                **options,
            )
            for index, member in enumerate(transport.members)
        ]

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        with self._parts[0].counting_refusals():
            yield

    def _enqueue(
        self, plan: _core.Plan, sample: str, note: Note | None = None, attempt: int | None = None
    ) -> tuple[int, bool]:
        try:
            index = self._transport.route(self._name, plan)
        except UnavailableError as error:  # Trouble of the service is told by the outcome.
            index = self._transport.first_gone()
            told = None if note is None else self._noter(index, note)
            return self._number(index, self._parts[index]._enqueue_failed(plan, error, sample, told, attempt)), False
        told = None if note is None else self._noter(index, note)
        sequence, dropped = self._parts[index]._enqueue(plan, sample, told, attempt)
        return self._number(index, sequence), dropped

    def _settled(self, sequence: int, timeout: float) -> bool:
        part, own = self._part_of(sequence)
        return part._settled(own, timeout)

    def _settle(self, sequence: int) -> None:
        part, own = self._part_of(sequence)
        part._settle(own)

    def _settle_sample(self, key: Key, deadline: float) -> Trouble | None:
        trouble: Trouble | None = None
        for part in self._parts:
            trouble = worse(trouble, part._settle_sample(key, deadline))
        return trouble

    def flush(self, timeout: float = 120.0) -> None:
        deadline = time.monotonic() + _values.seconds(timeout)
        first: RoutingReplayError | None = None
        for index, part in enumerate(self._parts):
            try:
                part.flush(max(0.0, deadline - time.monotonic()))
            except RoutingReplayError as error:
                if first is None:
                    first = self._transport.named(index, error)
                else:
                    first.tell_failures(error.failed_samples, error.failures)
        if first is not None:
            raise first

    def metrics(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for part in self._parts:
            for name, value in part.metrics().items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + _values.seconds(timeout)
        for part in self._parts:
            part.close(max(0.0, deadline - time.monotonic()))

    def _abandon(self) -> None:
        for part in self._parts:
            part._abandon()

    @property
    def streaming(self) -> bool:
        return any(part.streaming for part in self._parts)

    # A number says whose it is; those of one sample, all of one part, ascend.

    def _number(self, index: int, own: int) -> int:
        return own * len(self._parts) + index

    def _part_of(self, sequence: int) -> tuple[Appender, int]:
        own, index = divmod(sequence, len(self._parts))
        return self._parts[index], own

    def _noter(self, index: int, note: Note) -> Note:
        return lambda record: note({**record, "sequence": self._number(index, record["sequence"])})

    def _teller(self, index: int, on_outcome: Callable[[AppendOutcome], None]) -> Callable[[AppendOutcome], None]:
        def tell(outcome: AppendOutcome) -> None:
            with self._telling:
                on_outcome(dataclasses.replace(outcome, sequence=self._number(index, outcome.sequence)))

        return tell
