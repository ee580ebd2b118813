"""How the passes of a replay come by their rows. Needs torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._passes import Pass
from routing_replay_trainer._records import Records
from routing_replay_trainer._steps import Steps
from routing_replay_trainer._tally import Tally
from routing_replay_trainer._watch import Watch
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
    """

    steps: Steps | None
    missing: Missing
    use: str
    buffers: Any  # Buffers or DeviceBuffers.
    tally: Tally
    watch: Watch | None = None
    contract: Contract | None = None

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
        self.tally.batch(batch)
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
        write: Callable[[NDArray[np.uint8]], None] | None = None,
    ) -> Pass:
        """A pass of mode R2.

        record: whether it records or replays; if absent, it records if it is forward-only
        write: called with the index buffer when it has recorded
        """
        plan = records.plan(described.layout)
        number = self.buffers.take(plan)
        kept = self.buffers.tensors(number, plan)
        try:
            if forward_only if record is None else record:
                read = self.buffers.reader(number, plan)

                def keep() -> None:
                    records.keep(plan, described, read)
                    if write is not None:
                        write(read())

                batch = records.empty(plan, self.buffers.empty(number, plan))
                return Pass(key, batch, number, "record", forward_only, keep=keep, kept=kept)
            fetch = functools.partial(self.buffers.fetch, number)
            batch = records.fetch(plan, described, self.missing, fetch)
        except BaseException:
            self.buffers.give(number)
            raise
        self.tally.batch(batch)
        return Pass(key, batch, number, "replay", forward_only, kept=kept)
