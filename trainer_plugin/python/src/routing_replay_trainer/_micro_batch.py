"""What a trainer says of a micro-batch → the description of a plan, and what a fetch expects. No torch."""

from __future__ import annotations

import types
from collections.abc import Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routing_replay_trainer._values import INT32, integer, invalid, plain
from routing_replay_trainer.fetch import FetchSequence

PACKED = (  # Fields of Megatron's PackedSeqParams.
    "qkv_format",
    "cu_seqlens_q",
    "cu_seqlens_q_padded",
    "total_tokens",
    "tokens_per_sample",
    "local_cp_size",
)
_BY = "packed_seq_params or tokens"
_LIVE = FetchSequence("", live=True)  # Of no sample.


@dataclass(frozen=True)
class Sequence:
    """A part of a sample as a sequence of the micro-batch, or in a list of such as a piece of one.

    sample: id or handle; None, or handle 0, of tokens that are of no sample and route live
    start: the sample's token that it begins with
    rows: how many rows from there on to replay; one fewer than its tokens if absent, as the last token of a sample has
        no row
    tokens: how many tokens it has; if absent, one more than its rows, or what is left of the sequence
    """

    sample: str | int | None
    start: int = 0
    rows: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class MicroBatch:
    """layout: `micro_batch` of a plan
    fetch: one entry per sequence
    unnamed: how many of the last sequences are documents that nobody has named: they route live, as their entries say
    """

    layout: dict[str, Any]
    fetch: list[FetchSequence]
    unnamed: int = 0

    @property
    def named(self) -> list[FetchSequence]:
        return [one for one in self.fetch if not one.live]

    @property
    def named_layout(self) -> dict[str, Any]:
        """Its rows are the same, but those of unnamed documents, which are padding in it."""
        sequences = self.layout["sequences"]
        return self.layout | {"sequences": sequences[: len(sequences) - self.unnamed]}


def described(
    sequences: Listing[Any],
    tokens: Any,
    lengths: Any,
    layout: Mapping[str, Any],
    documents: Any = None,
    by: str = _BY,
) -> MicroBatch:
    """Sequences, as a trainer lists them, in a layout.

    sequences: sample ids, handles, None or 0 of what routes live, `Sequence`, or lists of such pieces
    tokens, lengths: as `micro_batch` of a face takes them
    layout: `micro_batch` of a plan, without its sequences; cu_seqlens: the real boundaries of a packed stream;
        padding_documents: how many of the last documents, or rows of a rectangle, are padding. Others behind the
        sequences are taken for real ones that nobody has named, and route live: on filler they would train wrongly
    documents: tokens of each document or row where layout does not say them
    by: arguments of the face that could say lengths
    """
    parts = _parts(sequences)
    said = dict(layout)
    unnamed = _unnamed(len(parts), _documents(said) if documents is None else documents, said)
    counts = _lengths(len(parts), lengths, tokens, said, by)
    said.pop("cu_seqlens", None)
    ids = [None] * len(parts) if tokens is None else _tokens(tokens, counts, said)
    whole = not unnamed and not any(isinstance(piece, Sequence) for part in parts for piece in part)
    said["sequences"], fetch = [], []
    for part, count, own in zip(parts, counts, ids, strict=True):
        sequence, fetched = _sequence(part, count, own, whole)
        said["sequences"].append(sequence)
        fetch += fetched
    for count in unnamed:
        piece = {"sample": "", "tokens": count, "start": 0, "rows": 0}
        said["sequences"].append({"tokens": count, "pieces": [piece]} if count else {"sample": "", "tokens": 0})
        fetch += [_LIVE] if count else []
    return MicroBatch(said, fetch, len(unnamed))


def expected(
    sequences: Listing[Any],
    tokens: Any,
    lengths: Any,
    layout: Mapping[str, Any],
    documents: Any = None,
    by: str = _BY,
) -> list[FetchSequence]:
    """What a fetch will expect of each sample of a step. Arguments as `described` takes them; of sequences of which
    nothing is told, nothing is expected."""
    parts = _parts(sequences)
    counts, ids = told(sequences, tokens, lengths, layout, documents, by)
    if counts is None:
        return [_named(piece) for part in parts for piece in part]
    said = []
    for part, count, own in zip(parts, counts, ids or [None] * len(parts), strict=True):
        said += _sequence(part, count, own, True)[1]
    return said


def told(
    sequences: Listing[Any],
    tokens: Any,
    lengths: Any,
    layout: Mapping[str, Any],
    documents: Any = None,
    by: str = _BY,
) -> tuple[list[int] | None, list[Any] | None]:
    """Of each sequence how many tokens it has, and their ids; None where nothing says it."""
    count = len(_parts(sequences))
    said = dict(layout)
    _unnamed(count, _documents(said) if documents is None else documents, said)
    if lengths is None and tokens is None and not _documents(said):
        return None, None
    counts = _lengths(count, lengths, tokens, said, by)
    return counts, None if tokens is None else _tokens(tokens, counts, said)


def _parts(sequences: Listing[Any]) -> list[Any]:
    """Of each sequence its pieces."""
    if isinstance(sequences, (str, bytes)):
        raise invalid("sequences", f"{sequences!r} is one sample, and not a list of them")
    if hasattr(sequences, "ndim"):  # Handles.
        handles = host(sequences)
        if handles.ndim != 1:
            raise invalid("sequences", f"shape {handles.shape} is not (b,)", "SHAPE")
        sequences = handles.tolist()
    return [[_piece(one) for one in (part if isinstance(part, (list, tuple)) else [part])] for part in sequences]


def _piece(said: Any) -> Any:
    """Elements of tensors, of which each is another one, as the handles that they are; handle 0 as None."""
    if isinstance(said, Sequence):
        return said if isinstance(said.sample, str) else replace(said, sample=_piece(said.sample))
    said = host(said).item() if hasattr(said, "ndim") and said.ndim == 0 else said
    return None if isinstance(said, int) and said == 0 else said


def _sequence(part: Listing[Any], count: int, ids: Any, whole: bool) -> tuple[dict[str, Any], list[FetchSequence]]:
    """As a plan has it, and what is fetched for it. whole: as every other of the micro-batch, it is one sample."""
    if len(part) == 1 and not isinstance(part[0], Sequence):
        one = _LIVE if part[0] is None else FetchSequence(part[0], count, ids if count else None)
        said = {"sample": _name(part[0]), "tokens": count} | ({"live": True} if part[0] is None else {})
        return said, [one] if whole or count > 0 else []
    pieces: list[dict[str, Any]] = []
    fetch, offset = [], 0
    for place, piece in enumerate(part):
        piece = piece if isinstance(piece, Sequence) else Sequence(piece)
        own = piece.tokens
        if own is None:
            own = count - offset if place == len(part) - 1 or piece.rows is None else piece.rows + 1
        if piece.sample is None:
            pieces.append({"sample": "", "tokens": own, "live": True})
            fetch.append(_LIVE)
            offset += own
            continue
        rows = own - 1 if piece.rows is None else piece.rows
        pieces.append({"sample": _name(piece.sample), "tokens": own, "start": piece.start, "rows": rows})
        # Tokens are checked from the sample's first one on.
        known = ids[offset : offset + rows + 1] if ids is not None and piece.start == 0 else None
        known = known if known is not None and len(known) else None
        needed = integer(piece.start, "start", sample=piece.sample) + integer(rows, "rows", sample=piece.sample)
        fetch.append(FetchSequence(piece.sample, None, known, rows=needed))
        offset += own
    return {"tokens": count, "pieces": pieces}, fetch


def _named(piece: Any) -> FetchSequence:
    """Of which nothing but the piece is told."""
    if piece is None or getattr(piece, "sample", "") is None:
        return _LIVE
    if not isinstance(piece, Sequence):
        return FetchSequence(piece)
    rows = piece.tokens - 1 if piece.rows is None and piece.tokens is not None else piece.rows
    return FetchSequence(piece.sample, rows=None if rows is None else piece.start + rows)


def _name(sample: str | int | None) -> Any:
    return sample if isinstance(sample, str) else ""


def _lengths(sequences: int, lengths: Any, tokens: Any, said: Mapping[str, Any], by: str) -> list[int]:
    """Tokens of each sequence. by: the arguments that could say it"""
    if isinstance(tokens, (list, tuple)):
        if len(tokens) != sequences:
            raise invalid("tokens", f"{len(tokens)} for {sequences} sequences", "LENGTH")
        if lengths is None and all(own is not None for own in tokens):
            lengths = [len(own) for own in tokens]
    if lengths is None and "cu_seqlens" in said:
        lengths = np.diff(said["cu_seqlens"])[:sequences]
    if lengths is None and said.get("format") == "BSHD":
        lengths = [said["padded_length"]] * sequences
    if lengths is None:
        raise invalid("lengths", f"neither given nor said by {by}", "LENGTH")
    counts = [integer(count, "lengths") for count in plain(host(lengths), "lengths")]
    if len(counts) != sequences:
        raise invalid("lengths", f"{len(counts)} for {sequences} sequences", "LENGTH")
    return counts


def _documents(said: Mapping[str, Any]) -> list[int]:
    """Tokens of each document of a packed stream, or row of a rectangle, as far as they are known."""
    if "cu_seqlens" in said:
        return np.diff(said["cu_seqlens"]).tolist()
    if said.get("format") == "BSHD" and "batch_size" in said:
        return [said["padded_length"]] * said["batch_size"]
    return []


def _unnamed(sequences: int, documents: Listing[int], said: dict[str, Any]) -> list[int]:
    """Tokens of the documents behind those of the sequences that are no padding."""
    behind = [int(count) for count in documents[sequences:]]
    padding = integer(said.pop("padding_documents", 0), "padding_documents", (0, INT32[1]))
    if documents and padding > len(behind):
        raise invalid("padding_documents", f"{padding}, and behind the {sequences} sequences are {len(behind)}")
    behind = behind[: max(0, len(behind) - padding)]
    while behind and behind[-1] == 0:
        behind.pop()
    return behind


def _tokens(tokens: Any, counts: list[int], said: Mapping[str, Any]) -> list[Any]:
    """Of each sequence its ids: from a list of arrays, a rectangle [b, s] or a packed stream [total] or [1, total]."""
    if isinstance(tokens, (list, tuple)):
        return [None if own is None else host(own)[:count] for own, count in zip(tokens, counts, strict=True)]
    ids = host(tokens)
    if said.get("format") == "THD":
        starts, stream = said["cu_seqlens_padded"], ids.reshape(-1)
        if stream.size < starts[-1]:
            raise invalid("tokens", f"{stream.size} are not the {starts[-1]} of the stream before it is cut", "LENGTH")
        return [stream[start : start + count] for start, count in zip(starts, counts, strict=False)]
    if ids.ndim != 2 or len(ids) < len(counts):
        raise invalid("tokens", f"shape {ids.shape} is not ({len(counts)}, s)", "SHAPE")
    return [row[:count] for row, count in zip(ids, counts, strict=False)]


def host(values: Any) -> Any:
    """A tensor of torch as an array; anything else as an array of numpy."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def on_host(said: Any) -> Any:
    """An argument of `micro_batch`, or all of them, without tensors: each is copied, once."""
    if hasattr(said, "detach"):
        return host(said)
    if isinstance(said, Sequence):
        return replace(said, sample=on_host(said.sample))
    if isinstance(said, Mapping):
        return {name: on_host(value) for name, value in said.items()}
    if isinstance(said, (list, tuple)) and not (said and isinstance(said[0], int)):
        return [on_host(value) for value in said]
    if hasattr(said, "cu_seqlens_q"):
        return types.SimpleNamespace(**{name: on_host(getattr(said, name, None)) for name in PACKED})
    return said
