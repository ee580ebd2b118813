"""How the passes of a replay come by their rows. Needs torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._passes import Pass
from routing_replay_trainer._records import Records
from routing_replay_trainer._steps import Steps
from routing_replay_trainer._tally import Tally
from routing_replay_trainer._watch import Watch
from routing_replay_trainer._writer import RecordWriter
from routing_replay_trainer.fetch import Missing
from routing_replay_trainer.on_policy import Contract
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.targets import PassKey


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
