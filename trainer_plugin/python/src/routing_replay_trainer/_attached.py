"""What the replays of both faces have in common: the options that both take, checked before anything is touched; how
passes come by their rows; and the steps of a replay. No torch.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import reprlib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from routing_replay._values import INT64, integer

from routing_replay_trainer._core import check_choice, invalid, seconds, unmet
from routing_replay_trainer._micro_batch import Given, MicroBatch, described, expected
from routing_replay_trainer._passes import ChunkPasses, Pass, PassKey, check_all_finished, new_lock
from routing_replay_trainer.agreed import NO_STEP, BegunStep, Steps
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.diagnose import Watch, Watched
from routing_replay_trainer.fetch import FetchSequence, Missing, Source
from routing_replay_trainer.metrics import Contract, Counters, OnPolicy
from routing_replay_trainer.plan import Plan, Plans
from routing_replay_trainer.records import Records, RecordWriter

if TYPE_CHECKING:  # It needs torch.
    from routing_replay_trainer._hooks import Tally

Mode = Literal["disabled", "shadow", "R2", "R3"]


@dataclass(frozen=True)
class Options:
    """Those of `attach`. InvalidArgumentError naming one that is wrong, or that the mode would ignore."""

    source: Source | None
    mode: Mode
    missing: Missing
    agree: Collective | None
    max_fallback_fraction: float
    fetch_deadline: float
    cache_bytes: int
    alarm_no_overlap: float | None
    on_policy: OnPolicy | None
    writer: RecordWriter | None = None
    last_row: Literal["filler", "live"] = "filler"
    watch: Watched = "first"

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("disabled", "shadow", "R2", "R3"))
        check_choice("missing", self.missing, ("strict", "live", "drop"))
        check_choice("last_row", self.last_row, ("filler", "live"))
        if self.mode in ("R3", "shadow") and self.source is None:
            raise invalid("source", f"mode {self.mode} needs one")
        for name, members in (("source", ("fetch", "inspect")), ("agree", ("rank", "size"))):
            value = getattr(self, name)
            lacking = [member for member in members if value is not None and not hasattr(value, member)]
            if lacking:
                raise invalid(name, f"{value!r} has no {lacking[0]}")
        for name in ("max_fallback_fraction", "alarm_no_overlap"):
            value = getattr(self, name)
            if name == "alarm_no_overlap" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
                raise invalid(name, f"must be a number in 0 … 1, got {value!r}")
        seconds(self.fetch_deadline, "fetch_deadline")
        integer(self.cache_bytes, "cache_bytes", (0, INT64[1]))
        ignored = {"R2": ("source", "agree", "on_policy"), "disabled": ()}.get(self.mode, ("writer",))
        for name in ignored:
            if getattr(self, name) is not None:
                raise invalid(name, f"mode {self.mode} does not use it")

    def check_agreement(self, replica: int, sizes: str) -> None:
        """InvalidArgumentError where a rank would fall back, and the others of its replica would not know of it.

        replica: ranks that share the samples of a step
        sizes: whose product that is
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
        # Shadow stops no training: what cannot be compared is counted.
        limit = self.max_fallback_fraction if self.mode == "R3" else 1.0
        missing, binds = self.missing_or_live, self.mode == "R3"
        return Steps(self.source, missing, self.agree, limit, self.fetch_deadline, self.cache_bytes, contract, binds)

    @property
    def missing_or_live(self) -> Missing:
        return "live" if self.mode == "shadow" else self.missing


@dataclass(frozen=True)
class Fetching:
    """How passes come by their rows.

    steps: between the trainer and its source; None in mode R2
    missing: as `Source.fetch` has it
    use: "replay" or "compare", of a pass that does not record
    buffers, tally: of the replay
    watch, contract: what else is asked of the rows of a source
    writer: keeps what mode R2 records, too
    """

    steps: Steps | None
    missing: Missing
    use: str
    buffers: Any  # Buffers or DeviceBuffers.
    tally: Tally
    watch: Watch | None = None
    contract: Contract | None = None
    writer: RecordWriter | None = None
    # What was recorded since it was last settled.
    _open: list[tuple[Records, PassKey]] = field(default_factory=list)

    def read(self, key: PassKey, described: MicroBatch, plan: Plan, forward_only: bool) -> Pass:
        """A pass with the rows of the source."""
        assert self.steps is not None
        with self._taking(plan) as number:
            sequences = self.steps.apply(described.fetch)
            batch = self.buffers.fetch(number, self.steps.source, plan, sequences=sequences, missing=self.missing)
            self.steps.saw(batch)
            if self.contract is not None:
                # As begin_step: the policy does not look at versions of samples that route live.
                self.contract.take([record for record in batch.sequences if record["status"] == "OK"])
        self.tally.batch(key, batch)
        watched = self.watch is not None and self.watch.begin(key.chunk, described, batch)
        kept = self.buffers.tensors(number, plan)
        return Pass(key, batch, number, self.use, forward_only, self.watch if watched else None, kept=kept)

    def record(
        self,
        key: PassKey,
        described: MicroBatch,
        records: Records,
        forward_only: bool,
        record: bool | None,
        whole: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> Pass:
        """A pass of mode R2.

        record: whether it records or replays; if absent, it records if it is forward-only
        whole: from a layout to the arguments of its plan in the whole model's geometry, for the writer

        What passes have recorded stays when one replays, or with `settle`; until then `give_up` takes it back.
        """
        records_now = forward_only if record is None else record
        if records_now:
            records.check(described)
            if self.writer is not None:
                self.writer.check(described)
        plan = records.plan(described.layout)
        with self._taking(plan) as number:
            kept = self.buffers.tensors(number, plan)
            if records_now:
                batch = records.empty(plan, self.buffers.empty(number, plan))
            else:
                self._settle(records)
                fetch = functools.partial(self.buffers.fetch, number)
                batch = records.fetch(plan, described, self.missing, fetch)
        if not records_now:
            self.tally.batch(key, batch)
            return Pass(key, batch, number, "replay", forward_only, kept=kept)
        read = self.buffers.reader(number, plan)

        def keep() -> None:
            self._open.append((records, key))
            records.keep(key, plan, described, read)
            if self.writer is not None:
                self.writer.keep(key, whole(described.named_layout), described, read())

        return Pass(key, batch, number, "record", forward_only, keep=keep, kept=kept)

    def give_up(self, key: PassKey | None = None) -> None:
        """What a pass has recorded or counted, or all that is not settled, is of a micro-batch or a step that has
        failed."""
        self.tally.forget(key)
        for records, recorded in [of for of in self._open if key is None or of[1] == key]:
            self._open.remove((records, recorded))
            records.forget(recorded)
            if self.writer is not None:
                self.writer.forget(recorded)

    def settle(self) -> None:
        """What was recorded and counted so far stays, whatever fails later."""
        self.tally.settle()
        for records, _ in list(self._open):
            self._settle(records)

    def _settle(self, records: Records) -> None:
        records.settle()
        self._open[:] = [of for of in self._open if of[0] is not records]

    @contextlib.contextmanager
    def _taking(self, plan: Plan) -> Iterator[int]:
        """A buffer, which an exception in here gives back."""
        number = self.buffers.take(plan)
        try:
            yield number
        except BaseException:
            self.buffers.give(number)
            raise


class Chunk:
    """A model chunk.

    parts: what stands on it, with `install` and `remove`: how its routers are told, and hooks on itself
    records: mode R2: what its routers chose
    last_index: micro-batch of its last pass; -1 at the beginning of a step
    """

    def __init__(self, number: int, passes: ChunkPasses) -> None:
        self.number = number
        self.passes = passes
        self.parts: list[Any] = []
        self.records: Records | None = None
        self.last_index = -1


@dataclass(frozen=True)
class Open:
    """A micro_batch context. begun: its passes so far; the others are arguments of `micro_batch`."""

    described: MicroBatch
    forward_only: bool | None
    record: bool | None
    index: int | None = None
    schedule: bool = True
    begun: list[tuple[Chunk, Pass]] = field(default_factory=list)


class Attached:
    """A replay that is attached to a model of this process. It is neither copied nor pickled; the model may be, and the
    copy has none.

    A face says by `_given` what its arguments mean and by `_plan_arguments` how a plan is made, puts its chunks into
    `_chunks`, and calls `_enter` when one of them is called.
    """

    _NAMES: tuple[str, ...]  # Arguments of a micro_batch that say something of its rows.
    _OF_PASSES: tuple[str, ...]  # Those that do not.

    def __init__(self, options: Options, buffers: Any, tally: Any) -> None:
        self._mode = options.mode
        self._last_row_filler = options.last_row == "filler"
        self._watch = Watch("all" if options.mode == "shadow" else options.watch, options.alarm_no_overlap)
        self._contract = Contract(options.on_policy)
        self._steps = options.steps(self._contract)
        self._buffers = buffers
        self._tally = tally
        use = "compare" if options.mode == "shadow" else "replay"
        self._fetching = Fetching(
            self._steps, options.missing_or_live, use, buffers, tally, self._watch, self._contract, options.writer
        )
        self._plans = Plans(lambda chunk, layout: Plan(**self._plan_arguments(chunk, layout)))
        self._lock = new_lock()
        self._chunks: list[Chunk] = []
        self._step = 0  # Number of the present one.
        self._open: Open | None = None
        self._fingerprint = 0  # Of the model's geometry.

    def _given(self, sequences: Listing[Any], arguments: tuple[Any, ...], layout: Mapping[str, Any]) -> Given:
        """arguments: in the order of `_NAMES`"""
        raise NotImplementedError

    def _plan_arguments(self, chunk: int, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Of `Plan`."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Micro-batches are counted from the first one on."""
        for chunk in self._chunks:
            chunk.last_index = -1

    def _gave_up(self, chunk: Chunk, of: Pass) -> None:
        """A pass after which its micro-batch failed; it may be run again."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        why = "is attached to a model of this process, and can be neither copied nor pickled: attach one to the copy"
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

    def _begin_step(
        self,
        sequences: Listing[Any],
        arguments: tuple[Any, ...],
        layout: Mapping[str, Any],
        weight_version: int | None,
        step: Any,
    ) -> BegunStep:
        if self._steps is None:
            return NO_STEP
        try:
            samples = self._expected(sequences, arguments, layout)
        except Exception as error:
            self._steps.stay_away(error)
            raise
        return self._steps.begin(samples, weight_version, self._fingerprint, step)

    def _expected(
        self, sequences: Listing[Any], arguments: tuple[Any, ...], layout: Mapping[str, Any]
    ) -> list[FetchSequence]:
        if layout:
            self._described(sequences, arguments, layout)
        return expected(sequences, *self._given(sequences, arguments, layout))

    def _described(self, sequences: Listing[Any], arguments: tuple[Any, ...], layout: Mapping[str, Any]) -> MicroBatch:
        micro_batch = described(sequences, *self._given(sequences, arguments, layout))
        if layout and self._steps is not None:  # A plan says whether its fields are such as a plan takes.
            self._plan(0, micro_batch.layout)
        return micro_batch

    def prefetch(self, micro_batches: Listing[Mapping[str, Any]], *, next_step: bool = False) -> None:
        """Announces micro-batches, each with the arguments that `micro_batch` will get for it: threads read their rows
        while the trainer computes.

        next_step: for the step after this one

        InvalidArgumentError naming what `micro_batch` would not take.
        """
        if self._steps is None:
            return
        announced = []
        for arguments in micro_batches:
            if not isinstance(arguments, Mapping):
                raise invalid("micro_batches", f"{reprlib.repr(arguments)} is not the arguments of a micro_batch")
            if "sequences" not in arguments:
                names = ", ".join(map(str, arguments)) or "no arguments"
                raise invalid("sequences", f"must be among the arguments of the micro_batch, got {names}")
            others = ("sequences", *self._NAMES, *self._OF_PASSES)
            layout = {name: value for name, value in arguments.items() if name not in others}
            known = tuple(arguments.get(name) for name in self._NAMES)
            announced.append(self._described(arguments["sequences"], known, layout))
        chunks = [chunk.number for chunk in self._chunks if chunk.parts]
        self._steps.prefetch(announced, lambda layout: [self._plan(chunk, layout) for chunk in chunks], next_step)

    @contextlib.contextmanager
    def _opened(
        self, sequences: Listing[Any], arguments: tuple[Any, ...], layout: Mapping[str, Any], *passes: Any
    ) -> Iterator[None]:
        """passes: forward_only and what follows it in `Open`"""
        if self._open is not None:
            raise unmet("micro_batch", "one is open already")
        if self._mode == "disabled":
            yield
            return
        self._open = opened = Open(self._described(sequences, arguments, layout), *passes)
        try:
            yield
        except BaseException:
            for chunk, of in opened.begun:
                if chunk.passes.give_up(of):
                    self._gave_up(chunk, of)
                self._fetching.give_up(of.key)
            raise
        finally:
            self._open = None

    def _enter(self, chunk: Chunk, opened: Open, index: int, gradients: bool) -> None:
        """A chunk is called in a micro_batch: a pass of it begins."""
        forward_only = not gradients if opened.forward_only is None else opened.forward_only
        key = PassKey(self._step, index, chunk.number)
        if chunk.records is None:
            plan = self._plan(chunk.number, opened.described.layout)
            begun = self._fetching.read(key, opened.described, plan, forward_only)
        else:
            whole = functools.partial(self._plan_arguments, chunk.number)
            begun = self._fetching.record(key, opened.described, chunk.records, forward_only, opened.record, whole)
        try:
            chunk.passes.begin(begun)
        except BaseException:
            self._buffers.give(begun.buffer)
            raise
        chunk.last_index = index
        opened.begun.append((chunk, begun))

    def _plan(self, chunk: int, layout: Mapping[str, Any]) -> Plan:
        return self._plans.of(chunk, layout)

    @property
    def last_step(self) -> BegunStep:
        """What the last begin_step decided, whoever called it (`megatron.replayed` does): of its `dropped` samples the
        loss is to be masked under missing="drop". Of no samples if none has begun, or the last one has failed."""
        return NO_STEP if self._steps is None else self._steps.last

    def stay_away(self, wrong: Exception) -> None:
        """Instead of begin_step, of a rank that cannot say what the step has: the others, which are in begin_step,
        raise FailedPreconditionError naming this rank, and do not wait until the deadline.

        wrong: why
        """
        if self._steps is not None:
            self._steps.stay_away(wrong)

    def end_step(self) -> None:
        """After the last backward pass of a step, Megatron's forward_backward_func. FailedPreconditionError naming a
        pass whose backward part never ran; nothing of it reaches the next step. FallbackLimitError if no begin_step
        told it before."""
        self._step += 1
        self._restart()
        left = [key for chunk in self._chunks for key in chunk.passes.drop_all()]
        self._fetching.settle()
        self._contract.end_pass()
        self._watch.end_step()
        if left and self._steps is not None:
            self._steps.forget_pass()
        check_all_finished(left)
        if self._steps is not None:
            self._steps.end_pass()

    def abandon_step(self) -> None:
        """Instead of end_step, where an exception has ended the passes of a step before their time: gives them up, as
        `micro_batch` does with its own, counts nothing of what they fetched, and complains of nothing. The next step
        begins as after any other. Mode R2: what they have recorded is forgotten, by the writer as well, but for what a
        pass has replayed since."""
        for chunk in self._chunks:
            chunk.passes.drop_all()
        self._fetching.give_up()
        self._watch.forget()
        if self._steps is not None:
            self._steps.forget_pass()
        self.end_step()

    def release_records(self) -> None:
        """Mode R2: forgets what was recorded. Call it after the last training pass that replays a rollout.

        Records stay until then, however many steps end, as only the caller knows how many epochs replay them; what is
        recorded again under the same sample takes the place of what was there. They are in the memory of the host: rows
        of this rank x its MoE layers x K bytes (twice that for more than 256 experts), which `metrics` tells as
        record_bytes. Without this call they grow with every rollout that has samples of other names.
        """
        for records in self._records():
            records.release()

    def _records(self) -> list[Records]:
        return [chunk.records for chunk in self._chunks if chunk.records is not None]

    def detach(self) -> None:
        """The model as it was. FailedPreconditionError, nothing being changed, while a pass waits for its backward
        part; end_step gives such passes up.

        A backward part that comes after this, over a graph that was kept, is rejected (FailedPreconditionError) where
        routers were recomputed in it before, or where its pass was given up: they would choose live. What cannot be
        told is live without a word: a first backward part that has not reached the checkpoints that the second one
        reaches, and a checkpoint around the call of the model as a whole.
        """
        for chunk in self._chunks:
            chunk.passes.check_none_in_flight()
        self._remove()
        self._mode = "disabled"
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def metrics(self, *, reduce: Collective | None = None) -> dict[str, float]:
        """Since the last call: the keys of `routing_replay_trainer.metrics.KEYS` that there is something to say of; of
        this rank, or of all ranks of `reduce`, which call this together."""
        counters = Counters() if self._steps is None else self._steps.take_counters()
        for counted in (self._tally, self._watch, self._contract):
            counted.count_into(counters)
        if self._mode == "R2":
            counters.count("record_bytes", sum(records.bytes for records in self._records()))
        return counters.report(reduce)

    @property
    def buffer_bytes(self) -> int:
        """Held for index buffers, in use or free."""
        return self._buffers.bytes

    @property
    def kept(self) -> int:
        """Passes that wait for the rest of their forward or backward part; 0 between steps."""
        return sum(chunk.passes.in_flight for chunk in self._chunks)
