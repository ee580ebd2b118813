"""What a Hugging Face trainer says of a micro-batch. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import Any

import numpy as np

from routing_replay_trainer._micro_batch import MicroBatch, described, expected, host
from routing_replay_trainer._values import invalid, plain
from routing_replay_trainer.fetch import FetchSequence

_BY = "tokens, attention_mask, position_ids or cu_seqlens"


@dataclass(frozen=True)
class _Told:
    """tokens, lengths, documents, layout: as `_micro_batch.described` takes them
    first: of each row of a rectangle, the column of its first token; empty where that is 0
    """

    tokens: Any
    lengths: Any
    layout: dict[str, Any]
    documents: list[int] | None = None
    first: Listing[int] = ()


def describe(
    sequences: Listing[Any],
    tokens: Any,
    attention_mask: Any,
    position_ids: Any,
    cu_seqlens: Any,
    lengths: Any,
    cp_size: int,
    layout: Mapping[str, Any],
) -> MicroBatch:
    """See `Replay.micro_batch` for the arguments."""
    told = _told(len(sequences), tokens, attention_mask, position_ids, cu_seqlens, lengths)
    said = {"cp_size": cp_size} | told.layout | layout
    out = described(sequences, told.tokens, told.lengths, said, told.documents, _BY)
    for sequence, begin in zip(out.layout["sequences"], told.first, strict=False):
        if begin > 0:
            sequence["first_row"] = int(begin)
    return out


def expect(
    sequences: Listing[Any],
    tokens: Any,
    attention_mask: Any,
    position_ids: Any,
    cu_seqlens: Any,
    lengths: Any,
    layout: Mapping[str, Any],
) -> list[FetchSequence]:
    """What the same arguments, of a step, let a fetch expect of its samples."""
    told = _told(len(sequences), tokens, attention_mask, position_ids, cu_seqlens, lengths)
    return expected(sequences, told.tokens, told.lengths, told.layout | layout, told.documents, _BY)


def _told(sequences: int, tokens: Any, attention_mask: Any, position_ids: Any, cu_seqlens: Any, lengths: Any) -> _Told:
    if cu_seqlens is not None:
        return _Told(tokens, lengths, _packed(cu_seqlens, tokens))
    if attention_mask is not None:
        return _masked(sequences, tokens, host(attention_mask), lengths)
    if position_ids is not None:
        return _Told(tokens, lengths, _packed(_restarts(host(position_ids)), tokens))
    return _Told(tokens, lengths, _rectangle(*tokens.shape) if getattr(tokens, "ndim", 0) == 2 else {})


def _packed(cu_seqlens: Any, tokens: Any) -> dict[str, Any]:
    """Rows of the stream behind the last boundary are a document of padding."""
    real = plain(host(cu_seqlens), "cu_seqlens")
    total = real[-1] if isinstance(tokens, (list, tuple, type(None))) else host(tokens).size
    stream = [*real, total] if total > real[-1] else real
    return {
        "format": "THD",
        "partition": "contiguous",
        "cu_seqlens": real,
        "cu_seqlens_padded": stream,
        "total_rows": stream[-1],
    }


def _restarts(position_ids: Any) -> list[int]:
    """Boundaries of documents: a position of 0 begins one, as transformers reads them for its varlen attention."""
    if position_ids.ndim > 2 or (position_ids.ndim == 2 and len(position_ids) != 1):
        raise invalid("position_ids", f"shape {position_ids.shape} is no packed stream: give attention_mask", "SHAPE")
    stream = position_ids.reshape(-1)
    starts = np.flatnonzero(stream == 0)
    if stream.size and (not starts.size or starts[0] != 0):
        raise invalid("position_ids", "does not start at 0: give those of the whole stream, before it is cut")
    return [*starts.tolist(), int(stream.size)]


def _rectangle(batch_size: int, padded_length: int) -> dict[str, Any]:
    return {
        "format": "BSHD",
        "partition": "contiguous_per_sequence",
        "row_order": "batch_major",
        "batch_size": int(batch_size),
        "padded_length": int(padded_length),
    }


def _masked(sequences: int, tokens: Any, mask: Any, lengths: Any) -> _Told:
    """A rectangle, padded left or right."""
    if mask.ndim != 2 or mask.shape[1] == 0:
        raise invalid("attention_mask", f"shape {mask.shape} is not (b, s)", "SHAPE")
    real = mask != 0
    counts, first = real.sum(axis=1), real.argmax(axis=1)
    for index, (row, count, begin) in enumerate(zip(real, counts, first, strict=True)):
        if not row[begin : begin + count].all():
            column = begin + int(row[begin:].argmin())
            raise invalid(f"attention_mask[{index}]", f"has padding at column {column} between tokens", "SHAPE")
    documents, counts = counts.tolist(), counts[:sequences]
    if lengths is not None and plain(host(lengths), "lengths") != counts.tolist():
        raise invalid("lengths", f"{plain(host(lengths), 'lengths')}, and the mask has {counts.tolist()}", "LENGTH")
    if getattr(tokens, "ndim", 0) == 2:
        if tuple(tokens.shape) != mask.shape:
            raise invalid("attention_mask", f"shape {mask.shape}, and that of tokens is {tuple(tokens.shape)}", "SHAPE")
        rows = zip(host(tokens), first, counts, strict=False)
        tokens = [ids[begin : begin + count] for ids, begin, count in rows]
    return _Told(tokens, counts, _rectangle(*mask.shape), documents, first)
