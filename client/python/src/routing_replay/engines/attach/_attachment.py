"""Shared by all engine attachments: names samples, counts outputs, and replaces rows in outputs by a reference."""

from __future__ import annotations

import array
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from routing_replay import _convert, _values
from routing_replay.client import Client
from routing_replay.engines import _forms
from routing_replay.engines.attach._handover import HandOver, Job
from routing_replay.errors import FailedPreconditionError
from routing_replay.geometry import Geometry
from routing_replay.run import Run
from routing_replay.types import Append, RecordedRows

_log = logging.getLogger("routing_replay")

VARIABLE = "ROUTING_REPLAY_RUN"  # The environment variable that names the run and so turns the plug-ins on.
RETRY_SECONDS = 2.0
SampleName = Callable[[Any, int], str]


def reference(run: Run, sample: str, row_start: int, num_tokens: int) -> str:
    """What replaces the rows in an output: a line of JSON, because the servers of engines pass text on. Its fields are
    those of SGLang's output store:

    handle: {"run", "sample", "row_start", "num_tokens"}; `run.read(handle["sample"])` returns the rows
    fields: dtype and shape [rows, MoE layers, K] of what is stored there
    """
    geometry = run.geometry
    shape = [num_tokens - 1 - row_start, len(geometry.moe_layers), geometry.max_top_k]
    handle = {"run": run.name, "sample": sample, "row_start": row_start, "num_tokens": num_tokens}
    fields = {"routed_experts": {"dtype": geometry.dtype.name, "shape": shape}}
    return json.dumps({"handle": handle, "fields": fields})


@dataclass(frozen=True)
class Finished:
    """A completion that the engine has finished. Only what must be read in the engine's loop has been read.

    output, index: name the sample
    rows: the rows in the output, or a tuple of them; their size counts as the size of the job. None: the output has no
        rows
    row_start: absolute row of the first of these rows
    num_tokens: number of tokens of the sample
    describe: converts the rows for the run's geometry; called in the thread of the hand-over. It must not refer to
        anything that the engine may change: see `snapshot`
    refer: replaces the rows in the output by a reference. None if the rows are known to be rejected: then they stay,
        and `describe` raises the reason
    """

    output: Any
    index: int
    rows: Any
    row_start: int
    num_tokens: int
    describe: Callable[[Geometry], RecordedRows]
    refer: Callable[[str], None] | None


class Collector(Protocol):
    """Reads the outputs of one call of an engine."""

    def parts(self, outputs: Any) -> Iterable[Any]:
        """Splits outputs into parts, one per completion."""

    def ended(self, part: Any) -> Finished | None:
        """Returns the completion if the part is its last one and rows are expected; else None. Raises any exception for
        an output of an unknown shape: without a name and a token count its rows cannot even be marked as unrecorded."""


def read(collector: Collector, outputs: Any) -> tuple[list[Finished], int]:
    """Returns the completions that end with these outputs, and the number of completions that cannot be read. Each of
    the latter is logged, and does not affect the rows of others."""
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

    max_queued_bytes: limit for rows that wait to be encoded (default 256 MiB). If there is no room, a call of the
        engine waits at most 60 seconds for all of its outputs together; then rows are dropped and marked as unrecorded
    replace: whether a reference replaces the rows in the output (default True); rows that are dropped stay in the
        output
    seal: whether a finished output ends its sample (default True); pass False if more turns follow
    group, weight_version: used for all following appends; set these attributes when a step begins or weights change.
        Without a weight_version, the version in the outputs is used

    Attaching an engine with a wrong value raises InvalidArgumentError.

    attached: whether rows are recorded: False after `detach`, and if the engine is known to give wrong rows (then it
        was not changed)

    Recorded rows are replaced by a reference, and are in the store when `flush` returns. If rows were rejected, `flush`
    raises the reason; rows that were rejected in this process are marked as unrecorded.

    When an output ends, its array of rows is copied; the engine's loop does no other work. Text and the inner lists of
    nested lists are not copied: with replace=False do not change them before `flush`.
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
        """engine: name and version of the engine, stored with the samples."""
        if not callable(sample):
            raise _values.invalid("sample", f"must be a function that names samples, got a {type(sample).__name__}")
        self._run, self._engine, self._sample = run, engine, sample
        self._replace, self._seal = replace, seal
        self.group, self.weight_version = group, weight_version
        _convert.appends([Append("checked", None, group=group, weight_version=weight_version)])
        self.attached = True
        self._wrapped_engine: Any = None
        self._wrapped: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._counts = dict.fromkeys(("without_rows", "unreadable", "after_detach", "not_recorded"), 0)
        self._passed_by: set[str] = set()
        self._handover = HandOver(run, max_queued_bytes)

    def wrap(self, engine: Any, around: Mapping[str, Around]) -> None:
        """Wraps these methods of the engine until `detach`."""
        self._wrapped_engine = engine
        self._wrapped = {name: make(getattr(engine, name), self) for name, make in around.items()}
        self._before = {name: value for name, value in vars(engine).items() if name in around}
        vars(engine).update(self._wrapped, **{MARK: self})

    def take(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """Queues the outputs of one call of the engine, and puts references where rows were taken."""
        self._handover.put(self._jobs(outputs))

    async def take_async(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """As `take`, for an event loop."""
        await self._handover.put_async(self._jobs(outputs))

    def _jobs(self, outputs: Iterable[tuple[Collector, Any]]) -> Iterator[Job]:
        """Makes the appends for the completions that end with these outputs.

        An output of an unknown shape loses its rows, and never fails the request. After `detach` outputs are not
        changed.
        """
        for collector, output in outputs:
            found, unreadable = read(collector, output)
            self._counts["unreadable"] += unreadable
            if not self.attached:
                self._counts["after_detach"] += len(found)
                continue
            for finished in found:
                self._counts["without_rows"] += finished.rows is None
                try:
                    if finished.num_tokens > 0:
                        yield self._job(finished)
                except Exception:
                    self._counts["unreadable"] += 1
                    _log.exception(_UNREADABLE)

    def _job(self, finished: Finished) -> Job:
        sample = self._sample(finished.output, finished.index)
        start, num_tokens = finished.row_start, finished.num_tokens
        options: dict[str, Any] = {"group": self.group, "weight_version": self.weight_version}
        if self._seal:
            options |= {"num_tokens": num_tokens, "seal": True}
        holes = [(start, num_tokens - 1)] if num_tokens - 1 > start else []
        appender, geometry = self._handover.appender, self._run.geometry
        engine, describe = self._engine, finished.describe

        def run() -> None:
            appender.append(sample, describe(geometry), **options)

        def mark() -> None:
            appender.append(sample, None, row_start=start, unrecorded=holes, engine=engine, **options)

        if finished.rows is None or finished.refer is None:
            return Job(sample, 0, run, mark)
        refer = functools.partial(finished.refer, reference(self._run, sample, start, num_tokens))
        return Job(sample, size_of(finished.rows), run, mark, refer if self._replace else None)

    def pass_by(self, method: str, count: int) -> None:
        """Counts outputs of an engine method whose outputs are not recorded, and warns once for each method."""
        if not count or not self.attached:
            return
        if method not in self._passed_by:
            self._passed_by.add(method)
            _log.warning("outputs of %s are not recorded: nothing of them reaches run %s", method, self._run.name)
        self._counts["not_recorded"] += count

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until the rows of all outputs finished so far are acknowledged; raises the first error since the last
        flush, whose `failed_samples` names every sample that failed. After `timeout` seconds raises
        DeadlineExceededError; then the next flush reports the failures."""
        self._handover.flush(timeout)

    def metrics(self) -> dict[str, int]:
        """Flat counters: handed_over, rejected, dropped, waiting_bytes, without_rows (finished outputs without rows),
        unreadable (outputs of an unknown shape, which are not even marked), after_detach (outputs that ended later),
        not_recorded (outputs of methods that are not recorded), and those of `Appender.metrics`."""
        return {**self._handover.metrics(), **self._counts}

    def detach(self, timeout: float = 60.0) -> None:
        """Restores the engine, and waits for what is queued. Idempotent.

        Requests in progress go on, and their outputs keep their rows. If somebody else has wrapped a method since, that
        wrapper stays, and ours, below it, passes everything on.
        """
        self.attached = False
        for name, function in self._wrapped.items():
            if vars(self._wrapped_engine).get(name) is function:
                delattr(self._wrapped_engine, name)
                vars(self._wrapped_engine).update({name: self._before[name]} if name in self._before else {})
        if self._wrapped:
            vars(self._wrapped_engine).pop(MARK)
        self._wrapped = {}
        self._handover.close(timeout)

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
    """Makes an attachment around these methods of the engine, or around none if the engine is not usable.

    FailedPreconditionError if the engine has an attachment already.
    """
    if hasattr(engine, MARK):
        raise FailedPreconditionError("the engine has an attachment already: detach that one first")
    attachment = Attachment(run, _forms.engine_name(package), sample, **options)
    attachment.attached = usable
    if usable:
        attachment.wrap(engine, around)
    return attachment


class Joining:
    """Records the outputs of a server in a run that another process creates.

    `begin` starts a thread that joins the run. The thread retries every RETRY_SECONDS until the run exists and can be
    reached; no request waits for that. Outputs that end before the run is joined keep their rows, and are counted.

    attachment: None until the run is joined
    """

    def __init__(self, name: str, package: str, sample: SampleName, connect: Callable[[], Client] = Client) -> None:
        self.attachment: Attachment | None = None
        self._name = name
        self._package, self._sample = package, sample
        self._connect = connect
        self._begun = False
        self._passed = 0

    def metrics(self) -> dict[str, int]:
        """Flat counters: not_joined (outputs that finished before the run was joined), and those of the attachment."""
        return {"not_joined": self._passed, **({} if self.attachment is None else self.attachment.metrics())}

    def begin(self) -> None:
        """Starts joining the run, unless this was called before. Call it only in the thread of the server's loop."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._join, name="routing-replay-joining", daemon=True).start()

    async def take(self, outputs: Iterable[tuple[Collector, Any]]) -> None:
        """As `Attachment.take_async`."""
        if self.attachment is not None:
            await self.attachment.take_async(outputs)
            return
        for collector, output in outputs:
            found, unreadable = read(collector, output)
            self._passed += len(found) + unreadable

    def _join(self) -> None:
        client: Client | None = None
        warned: object = None
        while self.attachment is None:
            try:
                client = client or self._connect()
                run = client.run(self._name)
                attachment = Attachment(run, _forms.engine_name(self._package), self._sample)
                level = logging.WARNING if self._passed else logging.INFO
                what = "attached to run %s; %d finished outputs were not recorded before"
                _log.log(level, what, self._name, self._passed)
                self.attachment = attachment
            except Exception as error:  # The engine also works without the run, so keep trying.
                kind = type(error), getattr(error, "reason", None)
                level = logging.DEBUG if kind == warned else logging.WARNING
                _log.log(level, "run %s cannot be joined yet, rows stay in the outputs: %s", self._name, error)
                warned = kind
                time.sleep(RETRY_SECONDS)


def snapshot(value: Any) -> Any:
    """Returns rows or token ids that another thread may read while the engine goes on; costs at most one memcpy.

    Arrays and tensors are copied (a tensor on its own device), as engines reuse their buffers; so are writable bytes.
    Of lists and objects the outer one is copied: their items were made for this output. Texts cannot change.
    """
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, (bytearray, memoryview)):
        return value if isinstance(getattr(value, "obj", None), bytes) else bytes(value)
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    return value[:] if isinstance(value, (list, array.array)) else value


def size_of(value: Any) -> int:
    """Returns the memory that rows, or a tuple of them, take while they wait; for lists an estimate from the first
    items."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (Mapping, tuple)):
        return sum(map(size_of, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, list):
        return len(value) * size_of(value[0]) if value else 0
    return 0 if value is None else int(getattr(value, "nbytes", 8))
