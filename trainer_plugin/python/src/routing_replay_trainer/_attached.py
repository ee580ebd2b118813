"""The common part of the replays for Megatron and Hugging Face: their options, which are checked before a model is
changed, how passes get their rows, and the steps of a replay. Does not need torch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import numbers
import reprlib
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from routing_replay_trainer._core import check_choice, invalid, plain, unmet
from routing_replay_trainer._micro_batch import Given, MicroBatch, described, expected, of_step
from routing_replay_trainer._passes import ChunkPasses, Pass, PassKey
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.collective import NO_STEP, Collective, StepDecision
from routing_replay_trainer.diagnose import Watch, Watched
from routing_replay_trainer.fetch import Missing, Source
from routing_replay_trainer.metrics import Contract, Counters, OnPolicy
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.records import Records, RecordWriter, check_own
from routing_replay_trainer.step import StepSource

if TYPE_CHECKING:  # That module needs torch.
    from routing_replay_trainer._hooks import Tally

Mode = Literal["disabled", "shadow", "R2", "R3"]


@dataclass(frozen=True)
class Options:
    """The options of `attach` that Megatron and Hugging Face share; a table in the trainer plugin's README explains
    them. In mode shadow a missing sample is counted and is never an error, whatever the other options say. Without
    `agree`, or if a replica has only one rank, each rank decides alone which samples replay.

    Raises InvalidArgumentError naming an option that is wrong, or one of `source`, `agree`, `on_policy` and `writer`
    that the mode does not use. In mode disabled none of these four is used, but giving them is no error.
    """

    source: Source | None = None
    mode: Mode = "R3"
    missing: Missing = "strict"
    last_row: Literal["filler", "live"] = "filler"
    agree: Collective | None = None
    max_fallback_fraction: float = 0.05
    fetch_deadline: float = 120.0
    cache_bytes: int = 1 << 30
    watch: Watched = "first"
    alarm_no_overlap: float | None = 0.01
    on_policy: OnPolicy | None = None
    writer: RecordWriter | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("disabled", "shadow", "R2", "R3"))
        check_choice("missing", self.missing, ("strict", "live", "drop"))
        check_choice("last_row", self.last_row, ("filler", "live"))
        if self.mode in ("R3", "shadow") and self.source is None:
            raise invalid("source", f"must be given in mode {self.mode}")
        if self.source is not None and not isinstance(self.source, Source):
            raise invalid("source", f"must be a ServiceSource or another Source, got {type(self.source).__name__}")
        if self.agree is not None and not hasattr(self.agree, "size"):
            raise invalid("agree", f"must be a Collective, got {self.agree!r}")
        for name in ("max_fallback_fraction", "alarm_no_overlap"):
            value = getattr(self, name)
            if name == "alarm_no_overlap" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
                raise invalid(name, f"must be a number in 0 … 1, got {value!r}")
        ignored = {"R2": ("source", "agree", "on_policy"), "disabled": ()}.get(self.mode, ("writer",))
        for name in ignored:
            if getattr(self, name) is not None:
                raise invalid(name, f"mode {self.mode} does not use it")

    def check_agreement(self, replica: int, sizes: str) -> None:
        """Raises InvalidArgumentError if a rank could fall back without the other ranks of its replica knowing.

        replica: number of ranks that share the samples of a step
        sizes: for the message, the names of the sizes whose product is this number, such as "cp_size"
        """
        size = None if self.agree is None else self.agree.size
        if self.mode == "R3" and self.missing != "strict" and replica > 1 and size != replica:
            raise invalid(
                "agree",
                f"must have {replica} ranks ({sizes}), got {size}: with missing={self.missing!r} all {replica} ranks "
                "of a sample decide together what falls back. Give the collective of these ranks, or missing='strict'",
            )

    def steps(self, contract: Contract) -> Steps | None:
        if self.mode not in ("R3", "shadow"):
            return None
        assert self.source is not None
        kept = 0 if self.source.keeps_rows else self.cache_bytes
        source = StepSource(self.source, cache_bytes=kept, deadline=self.fetch_deadline)
        # In mode shadow all samples may fall back (1.0), because missing samples must not stop training.
        limit = self.max_fallback_fraction if self.mode == "R3" else 1.0
        return Steps(source, self.missing_or_live, self.agree, limit, contract, self.mode == "R3")

    @property
    def missing_or_live(self) -> Missing:
        return "live" if self.mode == "shadow" else self.missing


@dataclass(eq=False)
class Chunk:
    """A model chunk that is attached. number: its virtual stage
    parts: objects with `install` and `remove`, which put hooks on the chunk and pass ids to its routers
    records: in mode R2, what its routers chose
    last_index: index of the micro-batch of its last pass; -1 at the beginning of a step
    """

    number: int
    passes: ChunkPasses
    parts: list[Any] = field(default_factory=list)
    records: Records | None = None
    last_index: int = -1


@dataclass(frozen=True)
class Open:
    """An open `micro_batch` context. said: its arguments that describe the layout; described: the micro-batch made from
    `said` (None for Megatron, where each call of the model describes one); begun: passes begun in the context so far"""

    sequences: Listing[Any]
    said: Mapping[str, Any]
    described: MicroBatch | None
    forward_only: bool | None
    index: int | None = None
    schedule: bool = True
    begun: list[tuple[Chunk, Pass]] = field(default_factory=list)


class Attached:
    """A replay that is attached to a model of this process. A replay cannot be copied or pickled. The model can; its
    copy has no replay.

    A subclass converts the arguments of `micro_batch` in `_given`, returns arguments of plans from `_plan_arguments`,
    puts the model's chunks into `_chunks`, and calls `_enter` when a chunk is called.
    """

    _AT_ONCE: bool  # True if the arguments of micro_batch suffice to make a plan before the model is called.

    def __init__(self, options: Options, buffers: Any, tally: Tally) -> None:
        self._mode = options.mode
        self._missing = options.missing_or_live
        self._last_row_filler = options.last_row == "filler"
        self._writer = options.writer
        self._watch = Watch("all" if options.mode == "shadow" else options.watch, options.alarm_no_overlap)
        self._counters = Counters()
        self._contract = Contract(options.on_policy, self._counters)
        self._steps = options.steps(self._contract)
        self._buffers = buffers
        self._tally = tally
        self._plans = functools.lru_cache(maxsize=512)(self._make_plan)
        self._lock = threading.RLock()
        self._chunks: list[Chunk] = []
        self._step = 0  # Number of the current step.
        self._open: Open | None = None
        self._fingerprint = 0  # Fingerprint of the model's geometry.

    def _given(self, sequences: Listing[Any], **said: Any) -> Given:
        """Converts the arguments of `micro_batch` to a `Given`. said: those that describe the layout"""
        raise NotImplementedError

    def _plan_arguments(self, chunk: int, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments for the `Plan` of a chunk."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        why = "is attached to a model of this process, and can be neither copied nor pickled"
        raise unmet("replay", why)

    def _install(self) -> None:
        try:
            for chunk in self._chunks:
                for part in chunk.parts:
                    part.install()
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        for chunk in self._chunks:
            for part in reversed(chunk.parts):
                part.remove()
            chunk.passes.drop_all()
        self._chunks = []

    def begin_step(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        lengths: Any = None,
        step: Any = None,
    ) -> StepDecision:
        """Begins a step. Call this on all ranks of the replica together, before the schedule and the passes of the
        step.

        sequences: all sequences on which the replica trains in this step, in the form that `micro_batch` takes, in the
            same order on all ranks
        step: any name. If the previous step had the same name, that step continues: the ranks decide on the samples
            again, but rows that were read stay in the cache. Use this if the log-probability pass and the training
            passes of one rollout each call begin_step
        tokens: token ids of each sequence, as a list of arrays or a rectangle [b, s]; lengths: number of tokens of each
            sequence, if lower than in `tokens`, or if `tokens` is absent. Without `tokens`, no ids are compared

        Asks the source once about every sample, and lets the ranks agree on which samples replay. `micro_batch` follows
        this decision in all passes of the step. If a sample has changed since, the rank that notices raises an error
        (in mode shadow, the sample falls back). In modes R2 and disabled, begin_step does nothing.

        Waits no longer than `fetch_deadline`. Raises FailedPreconditionError for a missing sample if missing="strict",
        FallbackLimitError if too many samples fall back, and the errors of `collective.agree`.
        """
        if self._steps is None:
            return NO_STEP
        try:
            samples = expected(sequences, *of_step(tokens, lengths))
        except Exception as error:
            self._steps.stay_away(error)
            raise
        return self._steps.begin(samples, self._fingerprint, step)

    def _described(self, sequences: Listing[Any], said: Mapping[str, Any]) -> MicroBatch:
        micro_batch = described(sequences, *self._given(sequences, **said))
        if self._steps is not None:
            self._plan(0, micro_batch.layout)
        return micro_batch

    def prefetch(self, micro_batches: Listing[Mapping[str, Any]]) -> None:
        """Announces micro-batches of this step, each with the arguments that `micro_batch` will get for it. Threads
        read the announced rows while the trainer computes. Raises InvalidArgumentError for arguments that `micro_batch`
        would reject, and FailedPreconditionError if begin_step has not been called."""
        if self._steps is None:
            return
        others = set(Open.__dataclass_fields__)
        announced = []
        for each in micro_batches:
            if not isinstance(each, Mapping) or "sequences" not in each:
                raise invalid("sequences", f"must be a key of each announced micro-batch, got {reprlib.repr(each)}")
            said = {name: each[name] for name in each if name not in others}
            if (said := self._guessed(each["sequences"], said)) is not None:
                announced.append(self._described(each["sequences"], said))
        chunks = [chunk.number for chunk in self._chunks if chunk.parts]
        for one in announced:
            plans = [(self._plan(chunk, one.layout), one.fetch) for chunk in chunks]
            self._steps.source.prefetch(plans)

    def _guessed(self, sequences: Listing[Any], said: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the arguments of an announced micro_batch, with defaults for values that only the call of the model
        will give. Returns None if too little is known before that call to prefetch anything."""
        return said

    @contextlib.contextmanager
    def _opened(self, sequences: Listing[Any], said: Mapping[str, Any], **passes: Any) -> Iterator[None]:
        """Returns the context of `micro_batch`. passes: further fields of `Open`"""
        if self._open is not None:
            raise unmet("micro_batch", "another micro_batch context is open already")
        if self._mode == "disabled":
            yield
            return
        described = self._described(sequences, said) if self._AT_ONCE else None
        self._open = Open(sequences, said, described, **passes)
        try:
            yield
        finally:
            self._open = None

    def _enter(self, chunk: Chunk, opened: Open, described: MicroBatch, index: int, gradients: bool) -> None:
        """Begins a pass; called when a chunk is called inside a micro_batch."""
        forward_only = not gradients if opened.forward_only is None else opened.forward_only
        key, records, layout = PassKey(self._step, index, chunk.number), chunk.records, described.layout
        plan = self._plan(chunk.number, layout) if records is None else records.plan(layout)
        number = self._buffers.take(plan)
        try:
            if records is None:
                begun = self._fetch(key, number, described, plan, forward_only)
            elif forward_only:  # In mode R2, such a pass records.
                begun = self._record(key, number, described, plan, records)
            else:
                begun = self._replay_records(key, number, described, plan, records)
            begun.kept.update(self._buffers.tensors(number, plan))
            chunk.passes.begin(begun)
        except BaseException:
            self._buffers.give(number)
            raise
        chunk.last_index = index
        opened.begun.append((chunk, begun))

    def _fetch(self, key: PassKey, number: int, described: MicroBatch, plan: Plan, forward_only: bool) -> Pass:
        """Makes a pass that replays rows of the source. number: number of the pass's buffer"""
        assert self._steps is not None
        sequences = self._steps.apply(described.fetch)
        batch = self._buffers.fetch(number, self._steps.source, plan, sequences=sequences, missing=self._missing)
        self._tally.batch(batch)
        watch = self._watch if self._watch.begin(key.chunk, described, batch) else None
        return Pass(key, batch, number, "compare" if self._mode == "shadow" else "replay", forward_only, watch)

    def _replay_records(self, key: PassKey, number: int, described: MicroBatch, plan: Plan, records: Records) -> Pass:
        """Makes a pass of mode R2 that replays. Before that, settles the records: `abandon_step` then keeps them."""
        records.settle()
        options = {"sequences": described.fetch, "missing": self._missing}
        batch = self._buffers.fetch(number, records.source, plan, **options)
        if self._missing == "strict":  # Otherwise rows that this rank has not recorded route live.
            check_own(batch)
        self._tally.batch(batch)
        return Pass(key, batch, number, "replay", False)

    def _record(self, key: PassKey, number: int, described: MicroBatch, plan: Plan, records: Records) -> Pass:
        """Makes a pass of mode R2 that records. `abandon_step` discards its record if no pass has replayed since."""
        records.check(described)
        batch = records.empty(plan, self._buffers.empty(number, plan))
        read = self._buffers.reader(number, plan)

        def keep() -> None:
            ids = read()
            records.keep(key, plan, described, ids)
            if self._writer is not None:
                layout = plain(described.layout, "micro_batch")
                self._writer.keep(key, self._plan_arguments(key.chunk, layout), described, ids)

        return Pass(key, batch, number, "record", True, keep=keep)

    def _plan(self, chunk: int, layout: Mapping[str, Any]) -> Plan:
        """Returns the plan of a micro-batch for a chunk. Cached: micro-batches with equal layouts share a plan."""
        return self._plans(chunk, json.dumps(plain(layout, "micro_batch")))

    def _make_plan(self, chunk: int, layout: str) -> Plan:
        return Plan(**self._plan_arguments(chunk, json.loads(layout)))

    @property
    def last_step(self) -> StepDecision:
        """The decision of the last begin_step, whoever called it (for example `megatron.replayed`). Under
        missing="drop", mask the loss of the samples in `dropped`. Has no samples if no step has begun, or if the last
        begin_step failed."""
        return NO_STEP if self._steps is None else self._steps.last

    def stay_away(self, wrong: Exception) -> None:
        """Call this instead of begin_step on a rank that does not know the samples of the step. The other ranks, which
        are in begin_step, then raise FailedPreconditionError naming this rank instead of waiting until the deadline.

        wrong: the reason
        """
        if self._steps is not None:
            self._steps.stay_away(wrong)

    def end_step(self) -> None:
        """Ends a step. Call this after its last backward pass (in Megatron, after forward_backward_func). Raises
        FailedPreconditionError naming a pass whose backward part never ran; the pass does not affect the next step."""
        self._step += 1
        for chunk in self._chunks:
            chunk.last_index = -1
        left = [key for chunk in self._chunks for key in chunk.passes.drop_all()]
        for records in self._records():
            records.settle()
        self._watch.end_step()
        if left:
            what = f"{len(left)} passes were not finished, the first one {min(left)}: its backward part has not run"
            raise unmet("targets", f"{what}. A pass without a backward part must be forward_only")

    def abandon_step(self) -> None:
        """Call this instead of end_step if an exception was raised in a micro_batch, or between the passes of the step.
        It gives up the passes and raises nothing; the next step can begin as usual. In mode R2 it also discards, in the
        writer too, what the step has recorded since its last replaying pass began, or all if none has begun."""
        for chunk in self._chunks:
            chunk.passes.drop_all()
        for records in self._records():
            for recorded in records.forget():
                if self._writer is not None:
                    self._writer.forget(recorded)
        self._watch.forget()
        self.end_step()

    def release_records(self) -> None:
        """In mode R2, discards all records. Call this after the last training pass that replays a rollout; only the
        caller knows which one is the last. Recording a sample again replaces its record, but without this call the
        records of other samples stay in host memory (`record_bytes` of `metrics`)."""
        for records in self._records():
            records.release()

    def _records(self) -> list[Records]:
        return [chunk.records for chunk in self._chunks if chunk.records is not None]

    def detach(self) -> None:
        """Restores the model. Raises FailedPreconditionError, and changes nothing, while a pass waits for its backward
        part; end_step gives up such passes.

        After this call, backward through an autograd graph that was kept raises FailedPreconditionError, because
        recomputed routers would choose live. Under a checkpoint around the whole model this is not detected.
        """
        for chunk in self._chunks:
            chunk.passes.check_none_in_flight()
        self._remove()
        self._mode = "disabled"
        if self._steps is not None:
            self._steps.source.close()
            self._steps = None

    def metrics(self, *, reduce: Collective | None = None) -> dict[str, float]:
        """Returns the metrics since the last call: those keys of `routing_replay_trainer.metrics.KEYS` that have a
        value. Without `reduce`, the values are those of this rank. With it, they are combined over all of its ranks,
        which must call this together."""
        if self._steps is not None:
            self._steps.count()
        self._tally.count_into(self._counters)
        self._watch.count_into(self._counters)
        if self._mode == "R2":
            self._counters.count("record_bytes", sum(records.bytes for records in self._records()))
        return self._counters.report(reduce)

    @property
    def kept(self) -> int:
        """Number of passes whose forward or backward part has not ended; 0 between steps."""
        return sum(chunk.passes.in_flight for chunk in self._chunks)
