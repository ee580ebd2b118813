"""What attachments to the engines share: naming, accounting, and the reference that stands for rows in an output."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from routing_replay.engines.attach._handover import HandOver, Job
from routing_replay.errors import RoutingReplayError
from routing_replay.recorded import RecordedRows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from routing_replay.geometry import Geometry
    from routing_replay.run import Run
    from routing_replay.types import OnFull

_log = logging.getLogger("routing_replay")

SampleName = Callable[[Any, int], str]
Version = tuple[int, ...]


class AttachOptions(TypedDict, total=False):
    """How rows leave the engine.

    max_queued_bytes: of rows that wait to be encoded (default 256 MiB)
    on_full: "block" (default: for at most queue_timeout seconds, then drop), "drop" or "raise"
    queue_timeout: seconds (default 60)
    replace: whether the rows in the output give way to a reference (default True)
    seal: whether a finished output ends its sample (default True); False for turns that go on
    group, weight_version, weight_label: of all appends until set anew on the attachment; without a version that which
        the outputs tell
    """

    max_queued_bytes: int
    on_full: OnFull
    queue_timeout: float
    replace: bool
    seal: bool
    group: int | None
    weight_version: int | None
    weight_label: str


def reference(run: Run, sample: str, row_start: int, num_tokens: int) -> dict[str, Any]:
    """What stands in an output where its rows were: JSON, in the shape of SGLang's output store.

    handle: {"run", "sample", "row_start", "num_tokens"}; `run.read(handle["sample"])` gives the rows
    fields: dtype and shape [rows, MoE layers, K] of what lies there
    """
    geometry = run.geometry
    shape = [num_tokens - 1 - row_start, len(geometry.moe_layers), geometry.max_top_k]
    return {
        "handle": {"run": run.name, "sample": sample, "row_start": row_start, "num_tokens": num_tokens},
        "fields": {"routed_experts": {"dtype": geometry.dtype.name, "shape": shape}},
    }


class Attachment:
    """Rows of one engine on their way to one run. Made by `attach.vllm` and `attach.sglang`.

    attached: False where the engine's version is not one that this release knows: then nothing was changed
    group, weight_version, weight_label: of the appends from now on; set them when a step begins or weights change
    """

    def __init__(self, run: Run, sample: SampleName, **options: Unpack[AttachOptions]) -> None:
        self._run = run
        self._sample = sample
        self._replace = options.get("replace", True)
        self._seal = options.get("seal", True)
        self.group = options.get("group")
        self.weight_version = options.get("weight_version")
        self.weight_label = options.get("weight_label", "")
        self.attached = True
        self._detach: Callable[[], None] | None = None
        self._without_rows = 0
        self._unreadable = 0
        self._appender = run.appender()
        self._handover = HandOver(
            self._appender,
            options.get("max_queued_bytes", 256 << 20),
            options.get("on_full", "block"),
            options.get("queue_timeout", 60.0),
        )

    def on_detach(self, undo: Callable[[], None]) -> None:
        """What takes the attachment off the engine."""
        self._detach = undo

    def job(
        self, output: Any, index: int, num_tokens: int, describe: Callable[[], RecordedRows]
    ) -> tuple[Job, dict[str, Any] | None]:
        """The append of a finished output, and the reference to what it stores; None where it has no rows.

        describe: reads the rows out of the output; what it refuses is kept for `flush` and marked in the store, so that
            a trainer that waits for the sample learns of it
        """
        sample = self._sample(output, index)
        options: dict[str, Any] = {"num_tokens": num_tokens, "seal": True} if self._seal else {}
        if self.group is not None:
            options["group"] = self.group
        if self.weight_version is not None:  # Else what the output says of it.
            options |= {"weight_version": self.weight_version, "weight_label": self.weight_label}
        recorded, refused = _nothing, None
        try:
            recorded = describe()
        except RoutingReplayError as error:
            refused = error
        start, engine = recorded.row_start, recorded.engine  # A mark must not hold the rows.
        holes = [(start, num_tokens - 1)] if num_tokens - 1 > start else []

        def mark() -> None:
            self._appender.append(sample, None, row_start=start, unrecorded=holes, engine=engine, **options)

        def run() -> None:
            if refused is not None:
                raise refused
            self._appender.append(sample, recorded, **options)

        if recorded.rows is None:
            self._without_rows += refused is None
            return Job(sample, 0, mark if refused is None else run, mark), None
        return Job(sample, _bytes_of(recorded.rows), run, mark), reference(self._run, sample, start, num_tokens)

    def guarded(self, collect: Callable[..., list[Job]], *arguments: Any) -> list[Job]:
        """What `collect` gives. An output that is not what this release knows costs its rows, never the request."""
        try:
            return collect(*arguments)
        except Exception:
            self._unreadable += 1
            _log.exception("rows of an output cannot be taken")
            return []

    def take(self, job: Job) -> None:
        self._handover.put(job)

    async def take_async(self, job: Job) -> None:
        await self._handover.put_async(job)

    @property
    def replaces(self) -> bool:
        return self._replace

    @property
    def geometry(self) -> Geometry:
        return self._run.geometry

    def flush(self, timeout: float = 120.0) -> None:
        """Waits until the rows of all finished outputs are acknowledged; raises the first error since the last one."""
        self._handover.flush(timeout)

    def metrics(self) -> dict[str, int]:
        """Flat: handed_over, refused, dropped, waiting_bytes, without_rows (finished outputs that had none), unreadable
        (outputs of another shape than is known), and what `Run.metrics` has."""
        own = {"without_rows": self._without_rows, "unreadable": self._unreadable}
        return {**self._handover.metrics(), **own}

    def detach(self, timeout: float = 60.0) -> None:
        """Leaves the engine as it was, and waits for what is queued. Idempotent."""
        if self._detach is not None:
            undo, self._detach = self._detach, None
            undo()
        self._handover.close(timeout)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()


_nothing = RecordedRows(None)


def _bytes_of(rows: Any) -> int:
    """Held while the rows wait."""
    data = getattr(rows, "data", rows)
    size = getattr(rows, "nbytes", None)
    if size is None:
        size = data.nbytes if isinstance(data, memoryview) else len(data) if isinstance(data, (bytes, str)) else 0
    return int(size)


def known_version(package: str, version: str | None, first: Version, last: Version) -> bool:
    """Whether the engine is of a version in [first, last); warns once where it is not, with what to do instead."""
    found = version or _installed(package)
    numbers = tuple(int(part) for part in (found or "").split(".")[:2] if part.isdecimal())
    if first <= numbers < last:
        return True
    _log.warning(
        "not attached: %s %s is not one of %s up to %s; give its outputs to routing_replay.engines.%s.rows",
        package,
        found or "of no known version",
        ".".join(map(str, first)),
        ".".join(map(str, last)),
        package,
    )
    return False


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
