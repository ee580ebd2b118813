"""R2 with transport: what all ranks recorded goes to the service, with producer = trainer. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_replay_trainer import errors
from routing_replay_trainer._micro_batch import MicroBatch, Sequence
from routing_replay_trainer._values import invalid, plain, token_ids
from routing_replay_trainer.collective import Collective, LocalGroup, all_gather_any_size
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.records import merge_records
from routing_replay_trainer.targets import PassKey

_NOBODY = np.iinfo(np.int64).min


@dataclass(frozen=True)
class _Record:
    """Of one chunk and micro-batch. plan: arguments of the plan, of the whole model's geometry; ids: its index buffer;
    samples: (id, number of tokens, token ids or None)"""

    plan: dict[str, Any]
    ids: bytes
    samples: list[tuple[str, int, bytes | None]]


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
        self._kept: dict[tuple[int, int], dict[int, _Record]] = {}  # By step and micro-batch, by chunk.

    def keep(self, key: PassKey, plan: Mapping[str, Any], described: MicroBatch, ids: NDArray[np.uint8]) -> None:
        """A pass has recorded. InvalidArgumentError for sequences that are not samples with a name."""
        record = _Record(plain(plan, "plan"), ids.tobytes(), list(_samples(described)))
        self._kept.setdefault((key.step, key.micro_batch), {})[key.chunk] = record

    def release(self) -> None:
        """Forgets what was recorded."""
        self._kept.clear()

    def write(self, *, deadline: float = 600.0, **options: Any) -> list[str]:
        """Appends and seals all samples that were recorded since the last time, and forgets their records. All ranks
        call it, after the same passes.

        deadline: seconds for all of it
        options: of Run.append: group, weight_version, weight_label, revision, restart, …

        Returns the samples, on the rank that has appended them; nothing on the others. Raises there what was wrong with
        an append or the records (FailedPreconditionError naming sample, row and layer that no rank has, or that two
        have differently), after all ranks are through, and FailedPreconditionError on the others. DeadlineExceededError
        where a rank does not come.
        """
        end = time.monotonic() + deadline
        kept, self._kept = [self._kept[key] for key in sorted(self._kept)], {}
        batches, writer = self._prepare(len(kept), end)
        written: list[str] = []
        failure: Exception | None = None
        for number in range(batches):
            own = kept[number] if kept else {}
            parts = all_gather_any_size(self._collective, _pack(own.values()), end - time.monotonic())
            if writer != self._collective.rank or failure is not None:
                continue
            try:
                written += self._append(parts, own, options)
            except Exception as error:  # The other ranks go on to gather.
                failure = error
        if written and failure is None:
            try:
                self._run.flush(max(0.0, end - time.monotonic()))
            except Exception as error:
                failure = error
        self._end(writer, failure, end)
        return written

    def _prepare(self, count: int, end: float) -> tuple[int, int]:
        """How many micro-batches the ranks have, and the lowest rank that has any."""
        said = [count, ~count, ~self._collective.rank] if count else [_NOBODY] * 3
        most, least, writer = self._collective.all_reduce_max(np.array(said, np.int64), end - time.monotonic()).tolist()
        if most == _NOBODY:
            return 0, 0
        if most != ~least:
            raise _failed(f"one rank has recorded {~least} micro-batches, another {most}")
        return most, ~writer

    def _append(self, parts: list[bytes], own: Mapping[int, _Record], options: Mapping[str, Any]) -> list[str]:
        if self._run is None:
            raise _failed(f"rank {self._collective.rank}, which appends, has no run")
        samples = next(iter(own.values())).samples
        merged = merge_records([record for part in parts for record in _unpack(part)])
        for (sample, num_tokens, tokens), rows in zip(samples, merged, strict=True):
            ids = None if tokens is None else np.frombuffer(tokens, np.uint32)[: len(rows)]
            self._run.append(sample, rows, tokens=ids, num_tokens=num_tokens, producer="trainer", **options)
        return [sample for sample, *_ in samples]

    def _end(self, writer: int, failure: Exception | None, end: float) -> None:
        """All ranks learn whether it went well."""
        failed = self._collective.all_reduce_max(np.array([failure is not None], np.int64), end - time.monotonic())
        if failure is not None:
            raise failure
        if failed[0]:
            raise _failed(f"rank {writer} could not append; it says why")


def _samples(described: MicroBatch) -> Iterable[tuple[str, int, bytes | None]]:
    if any("pieces" in sequence for sequence in described.named_layout["sequences"]):
        raise invalid("sequences", f"a {Sequence.__name__} is a part of a sample, and only whole samples are written")
    for fetch in described.named:
        if not isinstance(fetch.sample, str):
            raise invalid("sequences", f"the sample with handle {fetch.sample} is written under its id alone")
        tokens = None if fetch.tokens is None else token_ids(fetch.tokens, fetch.sample).tobytes()
        yield fetch.sample, fetch.num_tokens or 0, tokens


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


def _failed(what: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(f"write: {what}", code_name="FAILED_PRECONDITION", field="write")
