"""R2: what a rank records of its own layers and rows, and replays without transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer import errors
from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._values import invalid
from routing_replay_trainer.fetch import REPLAYED, Batch, FetchSequence, LocalSource, Missing
from routing_replay_trainer.plan import Layer, Plan
from routing_replay_trainer.targets import PassKey


class Records:
    """Of one model chunk: a source that holds the rows of this rank alone.

    layers: of the chunk, as a plan of the whole model has them
    ranks: {"cp", "tp"} of this process
    """

    def __init__(self, num_layers: int, layers: tuple[Layer, ...], ranks: Mapping[str, int], ep_size: int) -> None:
        self._geometry = {
            "num_layers": num_layers,
            "moe_layers": [layer.layer for layer in layers],
            "num_experts": [layer.num_experts for layer in layers],
            "top_k": [layer.top_k for layer in layers],
        }
        self._rank = {name: ranks[name] for name in ("cp", "tp") if name in ranks}
        self._rank["model"] = [{"layer_numbers": [layer.layer + 1 for layer in layers]}]
        self._ep_size = ep_size
        self._row_bytes = sum(layer.top_k * layer.dtype.itemsize for layer in layers)
        self.release()

    @property
    def bytes(self) -> int:
        """Of the ids of this rank's rows."""
        return self._row_bytes * sum(self._rows.values())

    def plan(self, layout: Mapping[str, Any]) -> Plan:
        return Plan(self._geometry, layout, rank=self._rank, ep_size=self._ep_size)

    def empty(self, plan: Plan, indices: Sequence[NDArray[Any]]) -> Batch:
        """For routers to record into."""
        rows = plan.row_map
        return Batch(plan, indices, plan.local_rows().state, rows["replayed"], rows["unrecorded"], rows["pads"], 0, ())

    def check(self, described: MicroBatch) -> None:
        """Before a pass records: InvalidArgumentError naming a sample of which a part is recorded, or by handle where
        others are by id; or that comes twice, in the micro-batch or in those recorded since the last `settle`: it would
        replay the choice of one of the two sequences in both."""
        check_whole(described)
        names = set()
        for _, fetch in with_tokens(described, 2):
            self._check_kind(fetch.sample)
            earlier = self._open.get(_name(fetch.sample))
            if fetch.sample in names or (earlier is not None and earlier[1] is not described):
                raise invalid(
                    "sequences",
                    f"sample {fetch.sample} is recorded twice in one pass: give each sequence a sample of its own (of "
                    "completions of one prompt, too). To record it again, end or abandon the step that recorded it",
                    sample=fetch.sample,
                )
            names.add(fetch.sample)

    def keep(self, key: PassKey, plan: Plan, described: MicroBatch, read: Callable[[], NDArray[np.uint8]]) -> None:
        """What a pass has recorded, in the place of what the samples had before."""
        memory = read()
        recorded = with_tokens(described, 2)
        by_handle = any(not isinstance(fetch.sample, str) for _, fetch in recorded)
        if described.unnamed or by_handle:
            sequences = list(described.named_layout["sequences"])
            for sequence, fetch in recorded:
                sequences[sequence] = sequences[sequence] | {"sample": _name(fetch.sample)}
            plan = self.plan(described.named_layout | {"sequences": sequences})
        local = plan.local_rows()
        rows = np.bincount(local.sequence[local.state == REPLAYED], minlength=len(described.layout["sequences"]))
        for sequence, fetch in recorded:
            name = _name(fetch.sample)
            self._source.record(plan, sequence, memory, tokens=fetch.tokens)
            self._by_handle = by_handle
            self._rows[name] = int(rows[sequence])
            self._open[name] = key, described

    def forget(self, key: PassKey) -> None:
        """A pass that has recorded was given up; nothing to do where `settle` was called since."""
        for sample in [sample for sample, of in self._open.items() if of[0] == key]:
            self._source.remove(sample)
            del self._open[sample], self._rows[sample]

    def settle(self) -> None:
        """What was recorded is there to be replayed."""
        self._open.clear()

    def fetch(self, plan: Plan, described: MicroBatch, missing: Missing, fetch: Callable[..., Batch]) -> Batch:
        """fetch: of the buffer, given the source

        FailedPreconditionError, unless `missing` is "live", for rows that other ranks have recorded: the passes that
        record and replay are cut in different ways then. InvalidArgumentError naming a sample that is asked for by id
        where handles were recorded."""
        batch = fetch(self._source, plan, sequences=[self._asked(one) for one in described.fetch], missing=missing)
        lost = plan.row_map["replayed"] - batch.replayed_rows
        if lost > 0 and missing == "strict":
            raise errors.FailedPreconditionError(
                f"micro_batch: {lost} of {plan.rows} rows were recorded by other ranks: R2 without transport needs the "
                "same packing and parallel layout in the passes that record and replay",
                code_name="FAILED_PRECONDITION",
                field="micro_batch",
            )
        return batch

    def release(self) -> None:
        self._source = LocalSource(self._geometry)
        self._by_handle = False  # What is recorded.
        self._rows: dict[str, int] = {}  # Of each sample.
        # By which pass it was recorded, and as part of what, until nobody gives that up.
        self._open: dict[str, tuple[PassKey, MicroBatch]] = {}

    def _asked(self, fetch: FetchSequence) -> FetchSequence:
        if not self._by_handle or fetch.live or (fetch.num_tokens is not None and fetch.num_tokens < 2):
            return fetch
        if isinstance(fetch.sample, str):
            self._check_kind(fetch.sample)
        name = _name(fetch.sample)
        return replace(fetch, sample=name) if name in self._rows else fetch

    def _check_kind(self, sample: str | int) -> None:
        if self._rows and isinstance(sample, str) == self._by_handle:
            known, own = ("handle", "id") if self._by_handle else ("id", "handle")
            raise invalid(
                "sequences",
                f"sample {sample} is named by {own}, and what mode R2 has recorded is by {known}: name all in one way, "
                "or call release_records before",
                sample=sample,
            )


def _name(sample: str | int) -> str:
    """An id, also of a sample that is known by its handle alone."""
    return sample if isinstance(sample, str) else f"handle/{int(sample)}"


def check_whole(described: MicroBatch) -> None:
    """InvalidArgumentError naming a sample of which the micro-batch has a part."""
    for fetch in described.named:
        if fetch.num_tokens is None:
            raise invalid(
                "sequences",
                f"of sample {fetch.sample} there is a part (a Sequence), and mode R2 records whole samples",
                sample=fetch.sample,
            )


def with_tokens(described: MicroBatch, least: int) -> list[tuple[int, FetchSequence]]:
    """Number in the layout and sample of each named sequence of so many tokens or more, all being whole samples."""
    sequences = enumerate(described.named_layout["sequences"])
    numbers = [number for number, one in sequences if one["tokens"] >= least and not one.get("live")]
    fetched = [fetch for fetch in described.named if fetch.num_tokens is not None and fetch.num_tokens >= least]
    return list(zip(numbers, fetched, strict=True))
