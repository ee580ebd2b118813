"""The steps of a replay and the passes in them: what begin_step decides, what is read ahead, how passes come by their
rows, and what is counted. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._values import INT64, integer
from routing_replay_trainer.agreed import AgreedSteps, BegunStep
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.fetch import Batch, FetchSequence, Missing, RowSource, Source, Staged
from routing_replay_trainer.metrics import Counters
from routing_replay_trainer.on_policy import UNKNOWN, Contract
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.step import StepSource

if TYPE_CHECKING:  # It needs torch.
    from routing_replay_trainer._tally import Tally
import functools
from dataclasses import dataclass, field

from routing_replay_trainer._passes import Pass, PassKey
from routing_replay_trainer._watch import Watch
from routing_replay_trainer.records import Records, RecordWriter

NO_STEP = BegunStep((), 0, 0, {}, (), (), None)


class Steps:
    """source: as it was given; one of this package is read through a StepSource, which holds nothing of rows that are
    in memory anyway
    binds: as AgreedSteps has it
    """

    def __init__(
        self,
        source: Source,
        missing: Missing,
        collective: Collective | None,
        max_fallback_fraction: float,
        deadline: float,
        cache_bytes: int,
        contract: Contract,
        binds: bool = True,
    ) -> None:
        self._made: StepSource | None = None
        self._reads_ahead = isinstance(source, StepSource)
        if isinstance(source, RowSource):
            kept = 0 if source.keeps_rows else cache_bytes
            self._reads_ahead = kept > 0
            source = self._made = StepSource(source, cache_bytes=kept, deadline=deadline)
        self._step: Any = None
        self.last = NO_STEP  # What the last `begin` decided.
        self.source = source
        self._agreed = AgreedSteps(
            source,
            missing=missing,
            collective=collective,
            max_fallback_fraction=max_fallback_fraction,
            deadline=deadline,
            binds=binds,
        )
        if hasattr(source, "stage"):
            self.stage = self._stage
        self._contract = contract
        self._counters = Counters()

    @property
    def geometry(self) -> Any:
        """The run's, where the source says it."""
        return getattr(self.source, "geometry", None)

    def begin(
        self,
        expected: Callable[[], list[FetchSequence]],
        weight_version: int | None,
        geometry: int = 0,
        step: Any = None,
    ) -> BegunStep:
        """expected: says what is expected of the step's samples
        geometry: fingerprint, which the ranks compare; 0 if not known
        step: the one before goes on if that had the same name; None: it does not
        """
        self.last = NO_STEP
        try:
            version = _version(weight_version)
            samples = expected()
        except Exception as error:
            self._agreed.stay_away(error)
            raise
        if isinstance(self.source, StepSource):
            self.source.begin_step(goes_on=step is not None and step == self._step)
        self._step = step
        begun = self._agreed.begin(samples, version, geometry)
        self._contract.begin_step(version)
        self._contract.take(self._agreed.weights)
        self._counters.count("step_samples", len(begun.decisions))
        self._counters.count("step_fallback_samples", len(begun.live))
        self._counters.count("step_dropped_samples", len(begun.dropped))
        self.last = begun
        return begun

    def stay_away(self, wrong: Exception) -> None:
        """Instead of `begin`, of a rank that cannot say what the step has: the others raise that it cannot take part,
        and do not wait for it."""
        self.last = NO_STEP
        self._agreed.stay_away(wrong)

    def fetch(
        self,
        plan: Plan,
        *,
        sequences: Listing[FetchSequence],
        missing: Missing = "strict",
        out: NDArray[np.uint8] | None = None,
    ) -> Batch:
        """As `Source.fetch`, as the ranks agreed. Its batch is to be told to `saw`."""
        return self.source.fetch(plan, sequences=self._agreed.apply(sequences), missing=missing, out=out)

    def saw(self, batch: Batch) -> None:
        """What a fetch, or what was staged, has come to."""
        self._agreed.saw(batch)

    def end_pass(self) -> None:
        """After the passes of a schedule: FallbackLimitError if too much of what they fetched fell back, and
        begin_step could not tell before."""
        self._agreed.end_pass()

    def forget_pass(self) -> None:
        """The same after a schedule that has failed."""
        self._agreed.forget_pass()

    def _stage(self, plan: Plan, *, sequences: Listing[FetchSequence], missing: Missing = "strict") -> Staged:
        """The same for a device to realign, of a source that can."""
        return self.source.stage(plan, sequences=self._agreed.apply(sequences), missing=missing)

    def prefetch(
        self,
        micro_batches: Listing[MicroBatch],
        plans: Callable[[Mapping[str, Any]], Listing[Plan]],
        next_step: bool,
    ) -> None:
        """plans: of one micro-batch, per chunk of the model. Nothing to do where rows are in memory or not kept."""
        if not self._reads_ahead:
            return
        for described in micro_batches:
            announced = [(plan, described.fetch) for plan in plans(described.layout)]
            self.source.prefetch(announced, next_step=next_step)

    def take_counters(self) -> Counters:
        """What was counted since the last call."""
        counters, self._counters = self._counters, Counters()
        if isinstance(self.source, StepSource):
            said = self.source.counts()
            counters.count("fetch_wait_s", said["wait_s"])
            counters.count("fetch_timeouts", said["timeouts"])
            counters.ratio("prefetch_hit_rate", said["hits"], said["hits"] + said["misses"])
            counters.count("fetched_bytes", said["bytes_read"])
            counters.count("cache_bytes", said["bytes"])
            counters.count("cache_evictions", said["evictions"])
        return counters

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _version(said: int | None) -> int | None:
    """As programs that know none may say -1, as they do of rows."""
    version = None if said is None else integer(said, "weight_version", (UNKNOWN, INT64[1]))
    return None if version == UNKNOWN else version


@dataclass(frozen=True)
class Fetching:
    """steps: between the trainer and its source; None in mode R2
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
        number = self.buffers.take(plan)
        try:
            batch = self.buffers.fetch(number, self.steps, plan, sequences=described.fetch, missing=self.missing)
            self.steps.saw(batch)
            if self.contract is not None:
                # As begin_step: versions of samples that route live are no matter of the policy.
                self.contract.take([one for one in batch.sequences if one["status"] == "OK"])
        except BaseException:
            self.buffers.give(number)
            raise
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
        number = self.buffers.take(plan)
        kept = self.buffers.tensors(number, plan)
        try:
            if records_now:
                read = self.buffers.reader(number, plan)

                def keep() -> None:
                    self._open.append((records, key))
                    records.keep(key, plan, described, read)
                    if self.writer is not None:
                        self.writer.keep(key, whole(described.named_layout), described, read())

                batch = records.empty(plan, self.buffers.empty(number, plan))
                return Pass(key, batch, number, "record", forward_only, keep=keep, kept=kept)
            self._settle(records)
            fetch = functools.partial(self.buffers.fetch, number)
            batch = records.fetch(plan, described, self.missing, fetch)
        except BaseException:
            self.buffers.give(number)
            raise
        self.tally.batch(key, batch)
        return Pass(key, batch, number, "replay", forward_only, kept=kept)

    def give_up(self, key: PassKey | None = None) -> None:
        """What a pass has recorded or counted, or all that is not settled, is of a micro-batch or a step that has
        failed."""
        self.tally.forget(key)
        for of in [of for of in self._open if key is None or of[1] == key]:
            self._open.remove(of)
            of[0].forget(of[1])
            if self.writer is not None:
                self.writer.forget(of[1])

    def settle(self) -> None:
        """What was recorded and counted so far stays, whatever fails later."""
        self.tally.settle()
        for records, _ in list(self._open):
            self._settle(records)

    def _settle(self, records: Records) -> None:
        records.settle()
        self._open[:] = [of for of in self._open if of[0] is not records]
