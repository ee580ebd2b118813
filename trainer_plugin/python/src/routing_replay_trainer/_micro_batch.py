"""Converts a trainer's micro-batch, in terms of Megatron or Hugging Face, to the description of a plan and to what a
fetch expects of the samples. Does not need torch.

    described(["a", "b"], *of_megatron(tokens, packed_seq_params))
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from routing_replay._values import integer

from routing_replay_trainer._core import invalid, plain
from routing_replay_trainer.fetch import FetchSequence

PACKED = (  # Fields of Megatron's PackedSeqParams.
    "qkv_format",
    "cu_seqlens_q",
    "cu_seqlens_q_padded",
    "total_tokens",
    "tokens_per_sample",
    "local_cp_size",
)
_LIVE = FetchSequence("", live=True)  # Used for sequences that belong to no sample.


@dataclass(frozen=True)
class Sequence:
    """A part of a sample: a whole sequence of the micro-batch, or one piece of a sequence that is a list of pieces.

    sample: id or handle; None or handle 0 for tokens that belong to no sample and route live
    start: position in the sample of the first token
    rows: number of rows to replay from `start` on. If absent: the number of tokens minus one, because the last token of
        a sample has no row
    tokens: number of tokens. If absent: rows + 1 for a piece with `rows` that is not the last, else all that are left
    """

    sample: str | int | None
    start: int = 0
    rows: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class MicroBatch:
    """layout: the argument `micro_batch` of `Plan`
    fetch: what is expected of each sequence; if any sequence has pieces, one entry per piece
    """

    layout: dict[str, Any]
    fetch: list[FetchSequence]

    @property
    def named(self) -> list[FetchSequence]:
        return [fetch for fetch in self.fetch if not fetch.live]


class Given(NamedTuple):
    """The arguments of `micro_batch`, for Megatron or Hugging Face, in the common form that `described` and `expected`
    take.

    tokens, lengths: as `micro_batch` takes them
    layout: the argument `micro_batch` of `Plan`, without its sequences, but with `cu_seqlens`: the boundaries of a
        packed stream, padding left out. Further documents or rows, after those of `sequences`, belong to no sample
    documents: number of tokens of each document, or row of a rectangle, if the layout does not say it
    first: for each row of a rectangle, the column of the first token; empty if all are 0
    told: number of tokens of each sequence as given to `begin_step`, None if unknown; used only if neither `lengths`
        nor `tokens` are given
    """

    tokens: Any
    lengths: Any
    layout: Mapping[str, Any]
    documents: list[int] | None = None
    first: Listing[int] = ()
    told: Listing[int | None] = ()


def described(sequences: Listing[Any], *arguments: Any) -> MicroBatch:
    """Makes a `MicroBatch`. sequences: for each a sample id or handle, None or 0 if it routes live, a `Sequence`, or a
    list of these if it is packed from several pieces; arguments: the fields of `Given`
    """
    given = Given(*arguments)
    parts = _parts(sequences)
    layout, counts, ids, behind = _measured(len(parts), given)
    if counts is None:
        raise _no_lengths()
    layout.pop("cu_seqlens", None)
    ids = [*(ids or [None] * len(parts)), *([None] * len(behind))]
    parts, counts = [*parts, *([[None]] * len(behind))], [*counts, *behind]
    whole = not any(isinstance(piece, Sequence) for part in parts for piece in part)
    layout["sequences"], fetch = [], []
    for part, count, tokens in zip(parts, counts, ids, strict=True):
        sequence, fetched = _sequence(part, count, tokens, whole)
        layout["sequences"].append(sequence)
        fetch += fetched
    for sequence, column in zip(layout["sequences"], given.first, strict=False):
        if column > 0:
            sequence["first_row"] = int(column)
    return MicroBatch(layout, fetch)


def expected(sequences: Listing[Any], *arguments: Any) -> list[FetchSequence]:
    """Returns what a fetch will expect of each sample of a step. If the length of any sequence is unknown, only the
    rows of pieces are expected. Arguments as for `described`."""
    parts = _parts(sequences)
    counts, ids = lengths_and_tokens(sequences, *arguments)
    if counts is None:
        return [_named(piece) for part in parts for piece in part]
    out = []
    for part, count, tokens in zip(parts, counts, ids or [None] * len(parts), strict=True):
        out += _sequence(part, count, tokens, True)[1]
    return out


def lengths_and_tokens(sequences: Listing[Any], *arguments: Any) -> tuple[list[int] | None, list[Any] | None]:
    """Returns two lists with one entry per sequence: its number of tokens, and its token ids. None instead of a list
    that is unknown."""
    return _measured(len(_parts(sequences)), Given(*arguments))[1:3]


def _measured(sequences: int, given: Given) -> tuple[dict[str, Any], list[int] | None, list[Any] | None, list[int]]:
    """Returns the layout; for each sequence the number of tokens and the token ids, as far as known; and the number of
    tokens of each document for which no sample was named."""
    layout = dict(given.layout)
    documents = _documents(layout) if given.documents is None else given.documents
    behind = _behind(sequences, documents, layout)
    counts = _lengths(sequences, given, documents)
    if counts is None and given.tokens is not None:
        raise _no_lengths()
    ids = None if given.tokens is None or counts is None else _tokens(given.tokens, counts, layout)
    return layout, counts, ids, behind


def _no_lengths() -> Exception:
    return invalid("lengths", "must be given: tokens and boundaries do not determine them", "LENGTH")


def of_step(tokens: Any, lengths: Any) -> Given:
    """See `begin_step` for the arguments."""
    return Given(tokens, lengths, _shape_of(tokens))


def _shape_of(tokens: Any) -> dict[str, Any]:
    if getattr(tokens, "ndim", 0) != 2:
        return {}
    return {"format": "BSHD", "batch_size": int(tokens.shape[0]), "padded_length": int(tokens.shape[1])}


def of_megatron(
    tokens: Any = None,
    packed_seq_params: Any = None,
    lengths: Any = None,
    layout: Mapping[str, Any] = types.MappingProxyType({}),
    parallel: Mapping[str, Any] = types.MappingProxyType({}),
    called: Mapping[str, Any] = types.MappingProxyType({}),
    mask: Any = None,
    told: Listing[int | None] = (),
) -> Given:
    """See `megatron.Replay.micro_batch` for the arguments.

    parallel: fields of the layout that follow from the model's parallelism
    called: fields that the call of the model gives; they override what was announced
    mask: for a rectangle, [b, s], nonzero at tokens
    """
    known = dict(parallel)
    if is_packed(packed_seq_params):
        known |= packed_layout(packed_seq_params)
    elif "format" not in layout and "padding" not in layout:
        known |= _shape_of(tokens)
    known |= {**layout, **called}
    if "padding" not in layout and "partition" not in layout:
        # Megatron-Core cuts each document, or each row of a rectangle, into 2 * cp_size parts.
        known["partition"] = "zigzag_per_document" if known.get("format") == "THD" else "zigzag_per_sequence"
    counts, first = (None, ()) if mask is None else _tokens_of_rows(mask)
    if known.get("cu_seqlens") != known.get("cu_seqlens_padded"):
        told = ()  # The real boundaries, which leave out padding, give the number of tokens.
    return Given(tokens, lengths, known, None if counts is None else counts.tolist(), first, told)


def is_packed(params: Any) -> bool:
    return params is not None and getattr(params, "qkv_format", "thd") in (None, "thd")


def packed_layout(params: Any) -> dict[str, Any]:
    """Reads Megatron's PackedSeqParams. Without cu_seqlens_q_padded, cu_seqlens_q also describes the padded stream."""
    real = plain(host(params.cu_seqlens_q), "packed_seq_params.cu_seqlens_q")
    padded = getattr(params, "cu_seqlens_q_padded", None)
    stream = real if padded is None else plain(host(padded), "packed_seq_params.cu_seqlens_q_padded")
    layout: dict[str, Any] = {"format": "THD", "cu_seqlens": real, "cu_seqlens_padded": stream}
    layout["total_rows"] = stream[-1]
    for field, name in (("total_rows", "total_tokens"), ("tokens_per_sample",) * 2, ("local_cp_size",) * 2):
        value = getattr(params, name, None)
        if value is not None:
            layout[field] = integer(value, f"packed_seq_params.{name}")
    # If context parallelism cuts the stream, NeMo-RL's total_tokens is only the number of tokens on this rank.
    layout["total_rows"] = max(stream[-1], layout["total_rows"])
    return layout


def of_hf(
    sequences: int,
    tokens: Any = None,
    attention_mask: Any = None,
    position_ids: Any = None,
    lengths: Any = None,
    **layout: Any,
) -> Given:
    """See `hf.Replay.micro_batch` for the arguments. sequences: the number of sequences"""
    if attention_mask is not None:
        given = _masked(sequences, tokens, host(attention_mask), lengths)
    elif position_ids is not None:
        given = Given(tokens, lengths, _stream(_restarts(host(position_ids))))
    else:
        given = Given(tokens, lengths, _ROWS | _shape_of(tokens) if getattr(tokens, "ndim", 0) == 2 else {})
    return given._replace(layout=given.layout | layout)


def _stream(boundaries: list[int]) -> dict[str, Any]:
    """Returns the layout of a packed stream."""
    return {
        "format": "THD",
        "partition": "contiguous",
        "cu_seqlens": boundaries,
        "cu_seqlens_padded": boundaries,
        "total_rows": boundaries[-1],
    }


def _restarts(position_ids: Any) -> list[int]:
    """Finds the boundaries of documents: a document begins at each position id 0, as in the varlen attention of
    transformers."""
    if position_ids.ndim > 2 or (position_ids.ndim == 2 and len(position_ids) != 1):
        raise invalid(
            "position_ids", f"shape {position_ids.shape} is not a packed stream: give attention_mask", "SHAPE"
        )
    stream = position_ids.reshape(-1)
    starts = np.flatnonzero(stream == 0)
    if stream.size and (not starts.size or starts[0] != 0):
        raise invalid("position_ids", "must start at 0: give the position ids of the whole stream, before it is cut")
    return [*starts.tolist(), int(stream.size)]


_ROWS = {"partition": "contiguous_per_sequence", "row_order": "batch_major"}  # A batch of Hugging Face.


def _masked(sequences: int, tokens: Any, mask: Any, lengths: Any) -> Given:
    """Returns the arguments that describe a rectangle which is padded on the left or on the right."""
    counts, first = _tokens_of_rows(mask)
    documents, counts = counts.tolist(), counts[:sequences]
    if lengths is not None and plain(host(lengths), "lengths") != counts.tolist():
        raise invalid("lengths", f"{plain(host(lengths), 'lengths')}, but the mask has {counts.tolist()}", "LENGTH")
    if getattr(tokens, "ndim", 0) == 2:
        if tuple(tokens.shape) != mask.shape:
            raise invalid("attention_mask", f"shape {mask.shape}, but that of tokens is {tuple(tokens.shape)}", "SHAPE")
        rows = zip(host(tokens), first, counts, strict=False)
        tokens = [ids[begin : begin + count] for ids, begin, count in rows]
    return Given(tokens, counts, _ROWS | _shape_of(mask), documents, first=first)


def _tokens_of_rows(mask: Any) -> tuple[Any, Any]:
    """Returns for each row [b] of a mask the number of tokens and the column of the first token."""
    if mask.ndim != 2 or mask.shape[1] == 0:
        raise invalid("attention_mask", f"shape {mask.shape} is not (b, s)", "SHAPE")
    real = mask != 0
    counts, first = real.sum(axis=1), real.argmax(axis=1)
    for index, (row, count, begin) in enumerate(zip(real, counts, first, strict=True)):
        if not row[begin : begin + count].all():
            column = begin + int(row[begin:].argmin())
            raise invalid(f"attention_mask[{index}]", f"has padding at column {column} between tokens", "SHAPE")
    return counts, first


def lengths_by(sequences: Listing[Any], of_sample: Callable[[str | int], int | None]) -> list[int | None]:
    """Returns the number of tokens of each sequence, None if unknown. For a whole sample, the number comes from
    `of_sample`; for pieces, it is the sum of their `tokens`."""
    lengths: list[int | None] = []
    for part in _parts(sequences):
        known = [piece.tokens if isinstance(piece, Sequence) else None for piece in part]
        if len(part) == 1 and isinstance(part[0], (str, int)):
            known = [of_sample(part[0])]
        lengths.append(None if None in known else sum(known))
    return lengths


def _parts(sequences: Listing[Any]) -> list[Any]:
    """Returns the list of pieces of each sequence; a whole sample is one piece."""
    if isinstance(sequences, (str, bytes)):
        raise invalid("sequences", f"{sequences!r} must be a list of samples")
    if hasattr(sequences, "ndim"):  # A tensor or an array of handles.
        handles = host(sequences)
        if handles.ndim != 1:
            raise invalid("sequences", f"shape {handles.shape} is not (b,)", "SHAPE")
        sequences = handles.tolist()
    return [[_piece(one) for one in (part if isinstance(part, (list, tuple)) else [part])] for part in sequences]


def _piece(sample: Any) -> Any:
    """Converts an element of a handle tensor to an integer, and handle 0 to None. Other samples stay as they are."""
    if isinstance(sample, Sequence):
        return sample if isinstance(sample.sample, str) else replace(sample, sample=_piece(sample.sample))
    sample = host(sample).item() if hasattr(sample, "ndim") and sample.ndim == 0 else sample
    return None if isinstance(sample, int) and sample == 0 else sample


def _sequence(part: Listing[Any], count: int, ids: Any, whole: bool) -> tuple[dict[str, Any], list[FetchSequence]]:
    """Converts a sequence, a list of pieces, to its entry in the layout's "sequences" and to what a fetch needs of its
    samples. whole: if False (for a plan with pieces), a whole sample without tokens has nothing to fetch"""
    if len(part) == 1 and not isinstance(part[0], Sequence):
        fetched = _LIVE if part[0] is None else FetchSequence(part[0], count, ids if count else None)
        sequence = {"sample": _name(part[0]), "tokens": count} | ({"live": True} if part[0] is None else {})
        return sequence, [fetched] if whole or count > 0 else []
    pieces: list[dict[str, Any]] = []
    fetch, offset = [], 0
    for place, piece in enumerate(part):
        piece = piece if isinstance(piece, Sequence) else Sequence(piece)
        tokens = piece.tokens
        if tokens is None:
            tokens = count - offset if place == len(part) - 1 or piece.rows is None else piece.rows + 1
        if piece.sample is None:
            pieces.append({"sample": "", "tokens": tokens, "live": True})
            fetch.append(_LIVE)
            offset += tokens
            continue
        rows = tokens - 1 if piece.rows is None else piece.rows
        pieces.append({"sample": _name(piece.sample), "tokens": tokens, "start": piece.start, "rows": rows})
        # A token check starts at the first token of a sample, so pieces that start later cannot be checked.
        known = ids[offset : offset + rows + 1] if ids is not None and piece.start == 0 else None
        known = known if known is not None and len(known) else None
        needed = integer(piece.start, "start", sample=piece.sample) + integer(rows, "rows", sample=piece.sample)
        fetch.append(FetchSequence(piece.sample, None, known, rows=needed))
        offset += tokens
    return {"tokens": count, "pieces": pieces}, fetch


def _named(piece: Any) -> FetchSequence:
    """Returns what a fetch expects of the sample of a piece if the lengths of the sequences are unknown."""
    if piece is None or getattr(piece, "sample", "") is None:
        return _LIVE
    if not isinstance(piece, Sequence):
        return FetchSequence(piece)
    rows = piece.tokens - 1 if piece.rows is None and piece.tokens is not None else piece.rows
    return FetchSequence(piece.sample, rows=None if rows is None else piece.start + rows)


def _name(sample: str | int | None) -> Any:
    return sample if isinstance(sample, str) else ""


def _lengths(sequences: int, given: Given, documents: list[int]) -> list[int] | None:
    """Returns the number of tokens of each sequence; None if unknown."""
    lengths, tokens, layout = given.lengths, given.tokens, given.layout
    if isinstance(tokens, (list, tuple)):
        if len(tokens) != sequences:
            raise invalid("tokens", f"has {len(tokens)} entries, but there are {sequences} sequences", "LENGTH")
        if lengths is None and all(ids is not None for ids in tokens):
            lengths = [len(ids) for ids in tokens]
    if lengths is None and (documents or "cu_seqlens" in layout):
        lengths = documents[:sequences]
    elif lengths is None and layout.get("format") == "BSHD":
        lengths = [layout["padded_length"]] * sequences
    if given.lengths is None and tokens is None and any(count is not None for count in given.told):
        known = [None] * sequences if lengths is None else lengths
        lengths = [own if told is None else told for told, own in zip(given.told, known, strict=True)]
        lengths = None if None in lengths else lengths
    if lengths is None:
        return None
    counts = [integer(count, "lengths") for count in plain(host(lengths), "lengths")]
    if len(counts) != sequences:
        raise invalid("lengths", f"has {len(counts)} entries, but there are {sequences} sequences", "LENGTH")
    return counts


def _documents(layout: Mapping[str, Any]) -> list[int]:
    """Returns the number of tokens of each document of a packed stream, or of each row of a rectangle; empty if
    unknown."""
    if "cu_seqlens" in layout:
        return np.diff(layout["cu_seqlens"]).tolist()
    if layout.get("format") == "BSHD" and "batch_size" in layout:
        return [layout["padded_length"]] * layout["batch_size"]
    return []


def _behind(sequences: int, documents: Listing[int], layout: Mapping[str, Any]) -> list[int]:
    """Returns the number of tokens of each document after the first `sequences` ones, without empty ones at the end."""
    if "padding" in layout:  # Then the padding policy adds these documents itself.
        return []
    behind = [int(count) for count in documents[sequences:]]
    while behind and behind[-1] == 0:
        behind.pop()
    return behind


def _tokens(tokens: Any, counts: list[int], layout: Mapping[str, Any]) -> list[Any]:
    """Returns the token ids of each sequence. tokens: a list of arrays, a rectangle [b, s], or a packed stream [total]
    or [1, total]"""
    if isinstance(tokens, (list, tuple)):
        return [None if ids is None else host(ids)[:count] for ids, count in zip(tokens, counts, strict=True)]
    ids = host(tokens)
    if layout.get("format") == "THD":
        starts, stream = layout["cu_seqlens_padded"], ids.reshape(-1)
        if stream.size < starts[-1]:
            raise invalid(
                "tokens", f"must be the {starts[-1]} ids of the stream before it is cut, got {stream.size}", "LENGTH"
            )
        return [stream[start : start + count] for start, count in zip(starts, counts, strict=False)]
    if ids.ndim != 2 or len(ids) < len(counts):
        raise invalid("tokens", f"shape {ids.shape} is not ({len(counts)}, s)", "SHAPE")
    return [row[:count] for row, count in zip(ids, counts, strict=False)]


def host(values: Any) -> Any:
    """Converts a torch tensor, or anything that numpy takes, to a numpy array in host memory."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def on_host(value: Any) -> Any:
    """Returns an argument of `micro_batch`, or all of its arguments, with every tensor replaced by a copy on the host.
    Later code then needs no further copies."""
    if hasattr(value, "detach"):
        return host(value)
    if isinstance(value, Sequence):
        return replace(value, sample=on_host(value.sample))
    if isinstance(value, Mapping):
        return {name: on_host(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], int)):
        return [on_host(item) for item in value]
    if hasattr(value, "cu_seqlens_q"):
        return types.SimpleNamespace(**{name: on_host(getattr(value, name, None)) for name in PACKED})
    return value
