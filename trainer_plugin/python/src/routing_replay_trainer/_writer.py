"""R2 with transport: what all ranks recorded goes to the service, with producer = trainer. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer._appends import Appends, failed_precondition
from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._records import check_whole, with_tokens
from routing_replay_trainer._values import invalid, plain, token_ids
from routing_replay_trainer.collective import Collective, LocalGroup, all_gather_any_size
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.records import merge_records
from routing_replay_trainer.targets import PassKey

_NOBODY = np.iinfo(np.int64).min
_Batch = tuple[int, int]  # Step and micro-batch.


class _Sample(NamedTuple):
    """sequence: of the micro-batch; tokens: uint32, if they are known"""

    sequence: int
    name: str
    num_tokens: int
    tokens: bytes | None


@dataclass(frozen=True)
class _Record:
    """Of one chunk and micro-batch. plan: arguments of the plan, of the whole model's geometry; ids: its index
    buffer"""

    plan: dict[str, Any]
    ids: bytes
    samples: list[_Sample]


@dataclass
class _Kept:
    """Of one micro-batch. chunks: its records; written: samples that a `write` has appended already, on the rank that
    appends"""

    chunks: dict[int, _Record] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    @property
    def samples(self) -> list[_Sample]:
        return next(iter(self.chunks.values())).samples


class RecordWriter:
    """Appends what the ranks of a model replica recorded, as whole rows of its samples.

        writer = megatron.RecordWriter(collective, run)        # or hf.RecordWriter
        replay = megatron.attach(model, config, mode="R2", writer=writer)
        …                                               # the recording pass
        writer.write(group=step, weight_version=version)

    collective: all ranks of the model replica (tensor, context and pipeline parallel; in hf, those that share a
        sequence); None where a rank has all of its rows and layers
    run: routing_replay.Run; needed on the lowest rank that has routers: the others may leave it out
    """

    def __init__(self, collective: Collective | None, run: Any = None) -> None:
        self._collective: Collective = LocalGroup(1)[0] if collective is None else collective
        self._run = run
        self._kept: dict[_Batch, _Kept] = {}

    def check(self, described: MicroBatch) -> None:
        """Before a pass records: InvalidArgumentError naming a sequence that is no whole sample with an id."""
        for _ in _samples(described):
            pass

    def keep(self, key: PassKey, plan: Mapping[str, Any], described: MicroBatch, ids: NDArray[np.uint8]) -> None:
        """A pass has recorded. Raises as `check`."""
        record = _Record(plain(plan, "plan"), ids.tobytes(), list(_samples(described)))
        self._kept.setdefault((key.step, key.micro_batch), _Kept()).chunks[key.chunk] = record

    def forget(self, key: PassKey) -> None:
        """A pass that has recorded was given up."""
        kept = self._kept.get((key.step, key.micro_batch), _Kept())
        kept.chunks.pop(key.chunk, None)
        if not kept.chunks:
            self._kept.pop((key.step, key.micro_batch), None)

    def release(self) -> None:
        """Forgets what was recorded."""
        self._kept.clear()

    def write(self, *, deadline: float = 600.0, **options: Any) -> list[str]:
        """Appends and seals all samples that were recorded since the last time, and forgets their records. All ranks
        call it, after the same passes. Of a sample that was recorded again the later record counts; passes that were
        given up (by an exception in `micro_batch`, or `abandon_step`) have none.

        deadline: seconds for all of it
        options: of Run.append: group, weight_version, weight_label, revision, restart, … Without restart the rows that
            the service has of a sample stay, and others of it are an error (CONFLICTING_ROWS)

        Returns the samples, on the rank that has appended them; nothing on the others. Raises there the first thing
        that was wrong with an append or the records (FailedPreconditionError naming sample, row and layer that no rank
        has, or that two have differently), after all ranks are through and all other samples appended, and
        FailedPreconditionError on the others. Then, and where the ranks have recorded different numbers of
        micro-batches, what was not appended stays for the next `write`, or `release`. DeadlineExceededError where a
        rank does not come.
        """
        end = time.monotonic() + deadline
        counting = self._counting()
        batches, writer = self._prepare(len(counting), end)
        appends = Appends(self._run, f"rank {writer}, which appends,")
        for number in range(batches):
            kept, samples = counting[number][1:] if counting else (_Kept(), [])
            parts = all_gather_any_size(self._collective, _pack(kept.chunks.values()), end - time.monotonic())
            if writer == self._collective.rank:
                with appends.going_on():
                    self._append(parts, [one for one in samples if one.name not in kept.written], appends, options)
        appends.finish(end - time.monotonic())
        written = appends.written
        for _, kept, _ in counting:
            kept.written.update(written)
        open_ = [any(one.name not in kept.written for one in samples) for _, kept, samples in counting]
        said = np.array([bool(appends.failures), *(open_ if writer == self._collective.rank else [False] * batches)])
        failed, *stays = self._collective.all_reduce_max(said.astype(np.int64), end - time.monotonic()).tolist()
        self._kept = {batch: kept for (batch, kept, _), stay in zip(counting, stays, strict=False) if stay}
        if appends.failures:
            raise appends.failures[0]
        if failed:
            raise failed_precondition(f"rank {writer} could not append; it says why")
        return written

    def _prepare(self, count: int, end: float) -> tuple[int, int]:
        """How many micro-batches the ranks have, and the lowest rank that has any."""
        said = [count, ~count, ~self._collective.rank] if count else [_NOBODY] * 3
        most, least, writer = self._collective.all_reduce_max(np.array(said, np.int64), end - time.monotonic()).tolist()
        if most == _NOBODY:
            return 0, 0
        if most != ~least:
            raise failed_precondition(f"one rank has recorded {~least} micro-batches, another {most}")
        return most, ~writer

    def _counting(self) -> list[tuple[_Batch, _Kept, list[_Sample]]]:
        """The micro-batches in order, and which of their samples no later one has recorded again; those of which none
        is left are no part of it."""
        counting, later = [], set()
        for batch, kept in sorted(self._kept.items(), reverse=True):
            samples = [sample for sample in kept.samples if sample.name not in later]
            later.update(sample.name for sample in samples)
            if samples:
                counting.append((batch, kept, samples))
        return counting[::-1]

    def _append(self, parts: list[bytes], samples: list[_Sample], appends: Appends, options: Mapping[str, Any]) -> None:
        if not samples:
            return
        merged = merge_records([record for part in parts for record in _unpack(part)])
        for sample in samples:
            rows = merged[sample.sequence]
            ids = np.frombuffer(sample.tokens or b"", np.uint32)[: len(rows)]
            said = {"tokens": ids if len(ids) else None, "num_tokens": sample.num_tokens, "producer": "trainer"}
            with appends.going_on():
                appends.add(sample.name, rows, **said, **options)


def _samples(described: MicroBatch) -> Iterable[_Sample]:
    check_whole(described)
    for sequence, fetch in with_tokens(described, 1):
        if not isinstance(fetch.sample, str):
            raise invalid(
                "sequences",
                f"a writer appends samples under their ids, which handle {fetch.sample} does not tell: name samples by "
                "id in the pass that records, or attach without a writer",
            )
        tokens = None if fetch.tokens is None else token_ids(fetch.tokens, fetch.sample).tobytes()
        yield _Sample(sequence, fetch.sample, fetch.num_tokens or 0, tokens)


def _pack(records: Iterable[_Record]) -> bytes:
    """Their descriptions as a line of JSON, then their ids."""
    listed = list(records)
    said = json.dumps([{"plan": record.plan, "size": len(record.ids)} for record in listed])
    return b"\n".join([said.encode(), b"".join(record.ids for record in listed)])


def _unpack(part: bytes) -> Iterable[tuple[Plan, NDArray[np.uint8]]]:
    said, _, ids = part.partition(b"\n")
    offset = 0
    for record in json.loads(said):
        yield Plan(**{"geometry": None} | record["plan"]), np.frombuffer(ids, np.uint8, record["size"], offset)
        offset += record["size"]
