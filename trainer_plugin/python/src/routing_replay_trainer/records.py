"""R2 (replay of the trainer's own choice): what ranks record. A rank can replay its own layers and rows without the
service (`Records`). The records of all ranks of a model replica can be merged into whole rows of samples
(`merge_records`), and sent to the service with producer = trainer (`RecordWriter`). Does not need torch.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routing_replay import _native, errors

from routing_replay_trainer import _core
from routing_replay_trainer._core import LIBRARY, invalid, token_ids, unmet
from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._passes import PassKey
from routing_replay_trainer.collective import Alone, Collective
from routing_replay_trainer.fetch import REPLAYED, Batch, FetchSequence, LocalSource
from routing_replay_trainer.plan import Layer, Plan, geometry_of


def merge_records(records: Sequence[tuple[Plan, NDArray[np.uint8]]]) -> list[NDArray[Any]]:
    """Merges the records of all ranks. Returns for each sequence of the micro-batch its ids [T - 1, MoE layers, K] of
    dtype uint8 or uint16.

    records: for each chunk of each rank, in any order, the plan and the index buffer [plan.buffer_bytes] with what was
        recorded. All plans must be of one micro-batch, which has only whole samples, and have the whole model's
        geometry. Together they must have all of its layers

    If several ranks have the same row, their ids must be equal. Raises FailedPreconditionError naming sample, row and
    layer if no rank has a row, or two ranks differ in it. FailedPreconditionError is also raised if layers differ in K,
    because rows then have no common shape. Raises InvalidArgumentError for records that are not of one micro-batch.
    """
    plans = (ctypes.c_void_p * len(records))(*(plan.pointer for plan, _ in records))
    kept = [np.ascontiguousarray(buffer, np.uint8) for _, buffer in records]
    buffers = (ctypes.c_void_p * len(records))(*(buffer.ctypes.data for buffer in kept))
    sizes = (ctypes.c_size_t * len(records))(*(buffer.size for buffer in kept))
    layers = {layer.layer: (layer.top_k, layer.dtype) for plan, _ in records for layer in plan.layers}
    shapes = [layers[layer] for layer in sorted(layers)]

    def read(merged: _core.Merged) -> list[NDArray[Any]]:
        if len({top_k for top_k, _ in shapes}) > 1:
            raise unmet("merge", "layers differ in K")
        return [_rows(one, shapes) for one in merged]

    return _native.give(LIBRARY.rrt_merge_records, _core.Merged, read, plans, buffers, sizes, len(records))


def _rows(merged: _core.MergedSequence, shapes: list[tuple[int, np.dtype[Any]]]) -> NDArray[Any]:
    """Returns a copy of a sequence's ids, [rows, layers, K]."""
    rows = merged.rows
    planes = np.frombuffer(ctypes.string_at(merged.planes, merged.size), np.uint8)
    layers, offset = [], 0
    for top_k, dtype in shapes:
        size = rows * top_k * dtype.itemsize
        layers.append(planes[offset : offset + size].view(dtype).reshape(rows, top_k))
        offset += size
    return np.stack(layers, axis=1)


class Records:
    """The records of one model chunk, with only the rows of this rank.

    layers: the chunk's layers, taken from a plan with the whole model's geometry
    ranks: {"cp", "tp"} of this process
    """

    def __init__(self, num_layers: int, layers: tuple[Layer, ...], ranks: Mapping[str, int], ep_size: int) -> None:
        self._geometry = geometry_of(num_layers, layers)
        self._rank = {name: ranks[name] for name in ("cp", "tp") if name in ranks}
        self._ep_size = ep_size
        self._row_bytes = sum(layer.top_k * layer.dtype.itemsize for layer in layers)
        self.release()

    @property
    def bytes(self) -> int:
        """Size of all recorded ids, in bytes."""
        return self._row_bytes * sum(self._rows.values())

    def plan(self, layout: Mapping[str, Any]) -> Plan:
        layout = dict(layout)
        own = {"cp": layout.pop("cp_rank")} if "cp_rank" in layout else {}
        return Plan(self._geometry, layout, rank=self._rank | own, ep_size=self._ep_size)

    def empty(self, plan: Plan, indices: Sequence[NDArray[Any]]) -> Batch:
        """Makes a batch into which routers record."""
        rows = plan.described["row_map"]
        return Batch(plan, indices, plan.local_rows().state, rows["replayed"], rows["unrecorded"], rows["pads"], 0, ())

    def check(self, described: MicroBatch) -> None:
        """Called before a pass records. Raises what `recorded` raises, and InvalidArgumentError for a sample that is in
        the micro-batch twice, or that another micro-batch has recorded since the last `settle`: both sequences would
        replay the ids that were recorded last."""
        names = set()
        for _, fetch in recorded(described, 2):
            earlier = self._open.get(fetch.sample)
            if fetch.sample in names or (earlier is not None and earlier[1] is not described):
                raise invalid(
                    "sequences",
                    f"sample {fetch.sample} is recorded twice: give each sequence a sample of its own, also if several "
                    "complete one prompt. To record a sample again, first end or abandon the step that recorded it",
                    sample=fetch.sample,
                )
            names.add(fetch.sample)

    def keep(self, key: PassKey, plan: Plan, described: MicroBatch, ids: NDArray[np.uint8]) -> None:
        """Stores what a pass has recorded; replaces earlier records of the samples."""
        local = plan.local_rows()
        rows = np.bincount(local.sequence[local.state == REPLAYED], minlength=len(described.layout["sequences"]))
        for sequence, fetch in recorded(described, 2):
            self.source.record(plan, sequence, ids, tokens=fetch.tokens)
            self._rows[fetch.sample] = int(rows[sequence])
            self._open[fetch.sample] = key, described

    def forget(self) -> set[PassKey]:
        """Discards what passes have recorded since the last `settle`; returns the keys of these passes."""
        for sample in self._open:
            self.source.remove(sample)
            del self._rows[sample]
        passes = {key for key, _ in self._open.values()}
        self._open.clear()
        return passes

    def settle(self) -> None:
        """Protects the records that exist when this is called: a later `forget` does not discard them."""
        self._open.clear()

    def release(self) -> None:
        self.source = LocalSource(self._geometry)  # Holds the recorded ids.
        self._rows: dict[str | int, int] = {}  # Number of rows of each sample that this rank has recorded.
        # For each sample recorded since the last `settle`: the pass and the micro-batch that recorded it.
        self._open: dict[str | int, tuple[PassKey, MicroBatch]] = {}


def check_own(batch: Batch) -> None:
    """Raises FailedPreconditionError if other ranks have recorded some of the rows of a batch, which happens if the
    recording and the replaying pass are split over ranks in different ways."""
    lost = batch.plan.described["row_map"]["replayed"] - batch.replayed_rows
    if lost > 0:
        raise unmet(
            "micro_batch",
            f"{lost} of {batch.plan.rows} rows were recorded by other ranks: R2 without the service needs the same "
            "packing and parallel layout in the passes that record and replay",
        )


def recorded(described: MicroBatch, least: int) -> list[tuple[int, FetchSequence]]:
    """Returns for each sample with at least `least` tokens its index in the layout's sequences, and its FetchSequence.
    Raises InvalidArgumentError naming a sample that the micro-batch gives only in part or by handle."""
    for fetch in described.named:
        if fetch.num_tokens is None or not isinstance(fetch.sample, str):
            raise invalid(
                "sequences",
                f"mode R2 records whole samples by id, but sample {fetch.sample} is given in part, or by handle",
                sample=fetch.sample,
            )
    sequences = enumerate(described.layout["sequences"])
    numbers = [number for number, one in sequences if one["tokens"] >= least and not one.get("live")]
    samples = [fetch for fetch in described.named if (fetch.num_tokens or 0) >= least]
    return list(zip(numbers, samples, strict=True))


_NOBODY = np.iinfo(np.int64).min


@dataclass(frozen=True)
class _Record:
    """The record of one chunk in one micro-batch. plan: arguments of a plan with the whole model's geometry; ids: the
    index buffer of this plan; samples: as `recorded` returns them"""

    plan: Mapping[str, Any]
    ids: NDArray[np.uint8]
    samples: list[tuple[int, FetchSequence]]


class RecordWriter:
    """Appends what the ranks of a model replica recorded, as whole rows of its samples.

        writer = megatron.RecordWriter(collective, run)        # or hf.RecordWriter
        replay = megatron.attach(model, config, mode="R2", writer=writer)
        …                                               # the recording pass
        writer.write(group=step, weight_version=version)

    collective: all ranks of the model replica (tensor, context and pipeline parallel; in hf, those that share a
        sequence); None if this rank has all rows and layers
    run: routing_replay.Run; needed only on the lowest rank that has routers
    """

    def __init__(self, collective: Collective | None, run: Any = None) -> None:
        self._collective: Collective = Alone() if collective is None else collective
        self._run = run
        self._kept: dict[tuple[int, int], dict[int, _Record]] = {}  # By step and micro-batch, then by chunk.

    def keep(self, key: PassKey, plan: Mapping[str, Any], described: MicroBatch, ids: NDArray[np.uint8]) -> None:
        """Adds a copy of what a pass has recorded. Raises what `recorded` raises."""
        samples = []
        for sequence, one in recorded(described, 1):
            tokens = None if one.tokens is None else token_ids(one.tokens, one.sample)
            samples.append((sequence, replace(one, tokens=tokens)))
        record = _Record(plan, ids.copy(), samples)
        self._kept.setdefault((key.step, key.micro_batch), {})[key.chunk] = record

    def forget(self, key: PassKey) -> None:
        """Discards the record of a pass that was given up."""
        kept = self._kept.get((key.step, key.micro_batch), {})
        kept.pop(key.chunk, None)
        if not kept:
            self._kept.pop((key.step, key.micro_batch), None)

    def release(self) -> None:
        """Discards all records."""
        self._kept.clear()

    def write(self, *, deadline: float = 600.0, **options: Any) -> list[str]:
        """Appends and seals all samples that were recorded since the last `write`, and discards their records. All
        ranks must call this after the same passes. Those passes must have recorded each sample once, apart from passes
        that `abandon_step` gave up, whose records are gone.

        deadline: seconds for the whole call
        options: options of Run.put: group, weight_version, weight_label, revision, restart, … Without restart, rows
            that the service already has are not replaced, and new rows that differ are an error (CONFLICTING_ROWS)

        Returns the samples on the rank that has appended them, and an empty list on other ranks. If appending fails, or
        `merge_records` before it, that rank raises the error and appends nothing more, and the other ranks raise
        FailedPreconditionError. All ranks raise FailedPreconditionError if they have recorded different numbers of
        micro-batches. After such errors the records stay, and `write` may be called again: the service recognises rows
        that it already has. Raises DeadlineExceededError if a rank does not take part in time.
        """
        end = time.monotonic() + deadline
        kept = [list(chunks.values()) for _, chunks in sorted(self._kept.items())]
        batches, writer = self._prepare(len(kept), end)
        written: list[str] = []
        failure: Exception | None = None
        for number in range(batches):
            records = kept[number] if kept else []
            own = pickle.dumps([(record.plan, record.ids) for record in records], pickle.HIGHEST_PROTOCOL)
            parts = self._collective.all_gather(own, end - time.monotonic())
            if writer == self._collective.rank and failure is None:
                try:
                    # Part of the time is left for telling the other ranks of a failure.
                    self._append(parts, records[0].samples, written, options, end - min(10.0, deadline / 10))
                except Exception as error:  # Raised below, after the other ranks know of it.
                    failure = error
        failed = np.array([failure is not None], np.int64)
        (some_failed,) = self._collective.all_reduce_max(failed, end - time.monotonic()).tolist()
        if failure is not None:
            raise failure
        if some_failed:
            raise unmet("write", f"rank {writer} could not append; its own error says why")
        self._kept.clear()
        return written

    def _prepare(self, count: int, end: float) -> tuple[int, int]:
        """Returns the number of micro-batches that the ranks have recorded, and the lowest rank that has any."""
        mine = [count, ~count, ~self._collective.rank] if count else [_NOBODY] * 3
        most, least, writer = self._collective.all_reduce_max(np.array(mine, np.int64), end - time.monotonic()).tolist()
        if most == _NOBODY:
            return 0, 0
        if most != ~least:
            raise unmet("write", f"one rank has recorded {~least} micro-batches, another {most}")
        return most, ~writer

    def _append(
        self,
        parts: list[bytes],
        samples: list[tuple[int, FetchSequence]],
        written: list[str],
        options: Mapping[str, Any],
        end: float,
    ) -> None:
        """Appends the samples of a micro-batch, and adds their names to `written`."""
        if self._run is None:
            raise unmet("write", f"rank {self._collective.rank}, which appends, has no run")
        merged = merge_records([(Plan(**plan), ids) for part in parts for plan, ids in pickle.loads(part)])
        for sequence, sample in samples:
            rows, name = merged[sequence], str(sample.sample)
            tokens: Any = sample.tokens if len(rows) else None
            tokens = None if tokens is None else tokens[: len(rows)]
            fields = {"tokens": tokens, "num_tokens": sample.num_tokens, "producer": "trainer"}
            outcome = _patiently(end, functools.partial(self._run.put, name, rows, **fields, **options))
            if others := outcome.conflicting_rows + outcome.late_rows:
                what = (
                    f"sample {name}: the service already has {others} of these rows, with other routes or as "
                    "unrecorded. Give the samples of each rollout names of their own, or write with restart="
                )
                raise unmet("write", what, sample=name, reason="CONFLICTING_ROWS")
            written.append(name)


def _patiently(end: float, put: Callable[[], Any]) -> Any:
    """Retries a put until `end` while the service is unavailable or full."""
    pause = 0.05
    while True:
        try:
            return put()
        except (errors.ResourceExhaustedError, errors.UnavailableError) as error:
            pause = max(pause, (error.retry_after_ms or 0) / 1000)
            if time.monotonic() + pause >= end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
