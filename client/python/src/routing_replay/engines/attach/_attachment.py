"""Shared by all engine attachments: names samples, counts outputs, and replaces rows in outputs by a reference."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from routing_replay import _convert, _values
from routing_replay.appender import ON_FULL
from routing_replay.client import Client
from routing_replay.engines import _forms
from routing_replay.errors import DeadlineExceededError, FailedPreconditionError, InternalError, RoutingReplayError
from routing_replay.geometry import Geometry
from routing_replay.run import Run
from routing_replay.types import Append, RecordedRows

_log = logging.getLogger("routing_replay")

VARIABLE = "ROUTING_REPLAY_RUN"  # The environment variable that names the run and so turns the plug-ins on.
RETRY_SECONDS = 2.0
_PATIENCE = 60.0  # Seconds for which all outputs of one call of the engine together may wait while the queue is full.
_KEPT = 100_000  # Limit for the number of samples that the error of a flush names.
_REASONED = 100  # Limit for the number of failures that the error of a flush lists.
SampleName = Callable[[Any, int], str]


def reference(run: Run, sample: str, row_start: int, num_tokens: int) -> str:
    """Makes the text that replaces the rows in an output: one line of JSON, because the servers of engines pass text
    on unchanged. Its fields have the names that SGLang's output store uses:

    handle: {"run", "sample", "row_start", "num_tokens"}; `run.read_one(handle["sample"])` returns the rows
    fields: dtype and shape [rows, MoE layers, K] of the stored rows
    """
    geometry = run.geometry
    shape = [num_tokens - 1 - row_start, len(geometry.moe_layers), geometry.max_top_k]
    handle = {"run": run.name, "sample": sample, "row_start": row_start, "num_tokens": num_tokens}
    fields = {"routed_experts": {"dtype": geometry.dtype.name, "shape": shape}}
    return json.dumps({"handle": handle, "fields": fields})


@dataclass(frozen=True)
class Finished:
    """A completion that the engine has finished.

    output, index: arguments of the function that names the sample
    has_rows: whether there are rows in the output
    row_start: absolute row of the first of these rows
    num_tokens: number of tokens of the sample
    describe: returns the rows of the output as RecordedRows
    refer: replaces the rows in the output by its argument, a reference
    """

    output: Any
    index: int
    has_rows: bool
    row_start: int
    num_tokens: int
    describe: Callable[[Geometry], RecordedRows]
    refer: Callable[[str], None]


class Collector(Protocol):
    """Reads the outputs of one call of an engine."""

    def parts(self, outputs: Any) -> Iterable[Any]:
        """Splits outputs into parts, one per completion."""

    def ended(self, part: Any) -> Finished | None:
        """Returns the completion if `part` is its last part; None if more parts of a stream follow. If the output has
        an unknown shape, any exception may be raised: its rows are lost, and are not marked as unrecorded either."""


def read(collector: Collector, outputs: Any) -> tuple[list[Finished], int]:
    """Returns the completions that end with these outputs, and the number of parts that cannot be read (1 if `outputs`
    cannot be split). Each of these failures is logged, and does not affect other parts."""
    found: list[Finished] = []
    unreadable = 0
    try:
        parts = list(collector.parts(outputs))
    except Exception:
        _log.exception(_UNREADABLE)
        return [], 1
    for part in parts:
        try:
            finished = collector.ended(part)
        except Exception:
            _log.exception(_UNREADABLE)
            unreadable += 1
        else:
            found += [] if finished is None else [finished]
    return found, unreadable


_UNREADABLE = "rows of an output cannot be taken"


class Attachment:
    """Sends the rows of one engine to one run. Made by `attach.vllm` and `attach.sglang`, which take these options:

    max_queued_bytes: limit for rows that wait to be sent (default 256 MiB). If there is no room, a call of the engine
        waits for it for at most about a minute; then rows are dropped and marked as unrecorded
    replace: whether a reference replaces the rows in the output (default True); rows that are rejected stay in the
        output
    seal: whether a finished output ends its sample (default True); pass False if more turns follow
    group, weight_version: used for all following appends; set these attributes when a step begins or weights change.
        Without a weight_version, the version in the outputs is used

    A wrong value of an option raises InvalidArgumentError.

    attached: whether rows are recorded; False after `detach`, and for an engine that is known to give incomplete or
        wrong rows, whose methods are not wrapped

    When `flush` returns without an error, all recorded rows are in the store. If rows were rejected, `flush` raises the
    reason; rows that were rejected before they were sent are marked as unrecorded.

    When a call of the engine returns outputs, their rows are encoded and queued. In an event loop a thread does this,
    and only the request to which the rows belong waits for it.
    """

    def __init__(
        self,
        run: Run,
        engine: str,
        sample: SampleName,
        *,
        max_queued_bytes: int = 256 << 20,
        replace: bool = True,
        seal: bool = True,
        group: int | None = None,
        weight_version: int | None = None,
    ) -> None:
        """engine: name and version of the engine, stored with rows that are marked as unrecorded"""
        if not callable(sample):
            raise _values.invalid("sample", f"must be a function that names samples, got a {type(sample).__name__}")
        self._run, self._engine, self._sample = run, engine, sample
        self._replace, self._seal = replace, seal
        self.group, self.weight_version = group, weight_version
        _convert.appends([Append("checked", None, group=group, weight_version=weight_version)])
        self.attached = True
        self._counts = dict.fromkeys(("rejected", "without_rows", "unreadable", "not_recorded"), 0)
        self._passed_by: set[str] = set()
        self._appender = run.appender(max_queued_bytes=max_queued_bytes, on_full="block")
        self._thread = ThreadPoolExecutor(1, "routing-replay-attachment")  # Makes the appends for `take_async`.
        self._newest: futures.Future[None] | None = None  # The last job that the thread was given.
        self._made_in = os.getpid()
        self._lock = threading.Lock()
        self._rejected: dict[str, RoutingReplayError] = {}  # By sample, since the last flush. Guarded by _lock.

    def wrap(self, engine: Any, around: Mapping[str, Around]) -> None:
        """Wraps the methods of the engine that are keys of `around`, each by the function that is its value."""
        wrapped = {name: make(getattr(engine, name), self) for name, make in around.items()}
        vars(engine).update(wrapped, **{MARK: self})

    def take(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """Appends the rows of the outputs of one call of the engine, and replaces those rows by references."""
        self._append_all(self._ended(outputs), time.monotonic() + _PATIENCE)

    async def take_async(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """Does the same as `take`, without blocking the event loop."""
        if found := self._ended(outputs):
            try:
                job = self._thread.submit(self._append_all, found, time.monotonic() + _PATIENCE)
            except RuntimeError as error:  # `detach` has ended the thread meanwhile.
                for sample, _, _ in found:
                    self._reject(sample, error)
            else:
                self._newest = job
                await asyncio.shield(asyncio.wrap_future(job))  # A cancelled request does not cancel its appends.

    def _ended(self, outputs: Iterable[tuple[Collector, Any]]) -> list[tuple[str, Finished, dict[str, Any]]]:
        """Returns the completions that end with these outputs, each with its sample id and the options of its append.
        Options are read here, because the weights may change before the thread appends. An output of an unknown shape
        loses its rows, and never fails the request. After `detach` the list is empty."""
        ended = []
        for collector, output in outputs if self.attached else ():
            found, unreadable = read(collector, output)
            self._counts["unreadable"] += unreadable
            for finished in found:
                self._counts["without_rows"] += not finished.has_rows
                options: dict[str, Any] = {"group": self.group, "weight_version": self.weight_version}
                if self._seal:
                    options |= {"num_tokens": finished.num_tokens, "seal": True}
                try:
                    if finished.num_tokens > 0:
                        ended.append((self._sample(finished.output, finished.index), finished, options))
                except Exception:
                    self._counts["unreadable"] += 1
                    _log.exception(_UNREADABLE)
        return ended

    def _append_all(self, ended: list[tuple[str, Finished, dict[str, Any]]], end: float) -> None:
        for sample, finished, options in ended:
            # The appends of one call share a time limit: those that begin after `end` do not wait for room.
            on_full = None if time.monotonic() < end else ON_FULL["drop"]
            try:
                self._appender.queue_one(Append(sample, finished.describe(self._run.geometry), **options), on_full)
            except Exception as error:
                self._reject(sample, error)
                self._mark(sample, finished, options)
            else:
                if finished.has_rows and self._replace:
                    finished.refer(reference(self._run, sample, finished.row_start, finished.num_tokens))

    def _reject(self, sample: str, error: Exception) -> None:
        _log.warning("rows of sample %s are rejected: %s", sample, error)
        self._counts["rejected"] += 1
        if not isinstance(error, RoutingReplayError):  # For example because an object of the engine has another shape.
            error = InternalError(f"sample {sample}: {error!r}", sample=sample)
        with self._lock:
            if len(self._rejected) < _KEPT:
                self._rejected.setdefault(sample, error)

    def _mark(self, sample: str, finished: Finished, options: dict[str, Any]) -> None:
        """Marks rejected rows as unrecorded, so that a trainer that waits for the sample stops waiting."""
        start, end = finished.row_start, finished.num_tokens - 1
        holes = [(start, end)] if end > start else []
        try:
            self._appender.append(sample, None, row_start=start, unrecorded=holes, engine=self._engine, **options)
        except RoutingReplayError as error:
            _log.warning("rows of sample %s cannot be marked as unrecorded: %s", sample, error)

    def pass_by(self, method: str, count: int) -> None:
        """Counts outputs of an engine method whose outputs are not recorded, and warns once per method."""
        if not count or not self.attached:
            return
        if method not in self._passed_by:
            self._passed_by.add(method)
            _log.warning("outputs of %s are not recorded: their rows do not reach run %s", method, self._run.name)
        self._counts["not_recorded"] += count

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until the rows of all outputs finished so far are acknowledged; raises the first error since the last
        flush, whose `failed_samples` names the samples that failed (of more than 100,000 perhaps not all). After
        `timeout` seconds raises DeadlineExceededError; then the next flush reports the failures."""
        left = self._wait_for_thread(timeout)
        failed: RoutingReplayError | None = None
        try:
            self._appender.flush(left)
        except RoutingReplayError as error:
            if not error.failed_samples:  # The flush timed out, or the appender is closed.
                raise
            failed = error
        with self._lock:
            rejected, self._rejected = self._rejected, {}
        if rejected:
            failures = list(itertools.islice(rejected.items(), _REASONED))
            first = failures[0][1].with_failures(list(rejected), failures)
            raise first if failed is None else first.with_failures(failed.failed_samples, failed.failures)
        if failed is not None:
            raise failed

    def metrics(self) -> dict[str, int]:
        """Flat counters: rejected (by this process), without_rows (finished outputs without rows), unreadable (outputs
        of an unknown shape, which are not even marked), not_recorded (outputs of methods that are not recorded), and
        those of `Appender.metrics`."""
        return {**self._appender.metrics(), **self._counts}

    def detach(self, timeout: float = 60.0) -> None:
        """Ends the recording. Sends what is queued for at most `timeout` seconds; then abandons the rest. Idempotent.

        Requests in progress go on, and their outputs keep their rows. The engine's methods stay wrapped, but then the
        wrappers change nothing.
        """
        self.attached = False
        try:
            left = self._wait_for_thread(timeout)
        except DeadlineExceededError as error:
            _log.warning("detach from run %s: %s", self._run.name, error)
            left = 0.0
        self._thread.shutdown(wait=False)
        self._appender.close(left)

    def _wait_for_thread(self, timeout: float) -> float:
        """Waits until the thread has made the appends that it was given. Returns what is left of `timeout`."""
        end = time.monotonic() + _values.seconds(timeout)
        # In a child of os.fork the thread does not exist.
        newest = [self._newest] if self._newest is not None and self._made_in == os.getpid() else []
        if futures.wait(newest, end - time.monotonic()).not_done:
            raise DeadlineExceededError("outputs of an event loop still wait for room in the queue")
        return max(0.0, end - time.monotonic())

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()


Around = Callable[[Callable[..., Any], Attachment], Callable[..., Any]]  # Makes the function that replaces a method.
MARK = "_routing_replay_attachment"


def attach(
    engine: Any,
    run: Run,
    sample: SampleName,
    around: Mapping[str, Around],
    package: str,
    usable: bool,
    options: dict[str, Any],
) -> Attachment:
    """Makes an attachment. Wraps the engine's methods that `around` names, unless `usable` is False.

    FailedPreconditionError if the engine has an attachment already.
    """
    if getattr(getattr(engine, MARK, None), "attached", False):
        raise FailedPreconditionError("the engine has an attachment already: detach that one first")
    attachment = Attachment(run, _forms.engine_name(package), sample, **options)
    attachment.attached = usable
    if usable:
        attachment.wrap(engine, around)
    return attachment


class Joining:
    """Records the outputs of a server in a run that another process creates.

    `begin` starts a thread that joins the run. The thread retries every RETRY_SECONDS until the run exists and can be
    reached; no request waits for that. Outputs that end before the run is joined keep their rows.

    attachment: None until the run is joined
    """

    attached = True  # So `attach.vllm` rejects an AsyncLLM whose rows the plug-in records already.

    def __init__(self, name: str, package: str, sample: SampleName, connect: Callable[[], Client] = Client) -> None:
        self.attachment: Attachment | None = None
        self._name = name
        self._package, self._sample = package, sample
        self._connect = connect
        self._begun = False

    def begin(self) -> None:
        """Starts joining the run, unless this was called before. Call it only in the server's event loop."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._join, name="routing-replay-joining", daemon=True).start()

    async def take(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """Calls `Attachment.take_async` if the run is joined. The first call begins to join it."""
        self.begin()
        if self.attachment is not None:
            await self.attachment.take_async(outputs)

    def _join(self) -> None:
        client: Client | None = None
        warned: object = None
        while self.attachment is None:
            try:
                client = client or self._connect()
                run = client.run(self._name)
                self.attachment = Attachment(run, _forms.engine_name(self._package), self._sample)
                _log.log(logging.INFO if warned is None else logging.WARNING, "attached to run %s", self._name)
            except Exception as error:  # Whatever the error is, retry: the engine also works without the run.
                kind = type(error), getattr(error, "reason", None)
                level = logging.DEBUG if kind == warned else logging.WARNING
                _log.log(level, "run %s cannot be joined yet, rows stay in the outputs: %s", self._name, error)
                warned = kind
                time.sleep(RETRY_SECONDS)
