"""What a Megatron trainer says of a micro-batch. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listing
from typing import Any

from routing_replay_trainer._micro_batch import MicroBatch, described, expected, host, told
from routing_replay_trainer._values import integer, invalid, plain
from routing_replay_trainer.fetch import FetchSequence


def describe(
    sequences: Listing[Any],
    tokens: Any,
    packed_seq_params: Any,
    lengths: Any,
    parallel: Mapping[str, Any],
    layout: Mapping[str, Any],
) -> MicroBatch:
    """See `Replay.micro_batch` for the arguments."""
    return described(sequences, tokens, lengths, _layout(tokens, packed_seq_params, parallel, layout))


def expect(
    sequences: Listing[Any], tokens: Any, packed_seq_params: Any, lengths: Any, layout: Mapping[str, Any]
) -> list[FetchSequence]:
    """What the same arguments, of a step, let a fetch expect of its samples."""
    return expected(sequences, tokens, lengths, _layout(tokens, packed_seq_params, {}, layout))


def lengths_and_tokens(
    sequences: Listing[Any], tokens: Any = None, packed_seq_params: Any = None, lengths: Any = None, **layout: Any
) -> tuple[list[int] | None, list[Any] | None]:
    """What the same arguments tell of each sequence."""
    return told(sequences, tokens, lengths, _layout(tokens, packed_seq_params, {}, layout))


def check_group(packed_seq_params: Any, layout: Mapping[str, Any], cp_size: int) -> None:
    """InvalidArgumentError where a micro-batch is cut over other ranks than the model's configuration says."""
    padding = layout.get("padding")
    said = (
        getattr(packed_seq_params, "local_cp_size", None),
        layout.get("local_cp_size"),
        padding.get("local_cp_size") if isinstance(padding, Mapping) else None,
    )
    for size in said:
        if size is not None and size != cp_size:
            raise invalid(
                "local_cp_size",
                f"{size}, and context_parallel_size is {cp_size}: a micro-batch with process groups of its own "
                "(dynamic or hybrid context parallelism) cannot fall back to live routing, as the ranks of `agree`, "
                "which decide that together, are the same for all: attach with missing='strict'",
            )


def _layout(
    tokens: Any, packed_seq_params: Any, parallel: Mapping[str, Any], layout: Mapping[str, Any]
) -> dict[str, Any]:
    said = dict(parallel)
    if packed_seq_params is not None and getattr(packed_seq_params, "qkv_format", "thd") in (None, "thd"):
        said |= _packed(packed_seq_params)
    elif "format" not in layout and "padding" not in layout and getattr(tokens, "ndim", 0) == 2:
        said |= {"format": "BSHD", "batch_size": int(tokens.shape[0]), "padded_length": int(tokens.shape[1])}
    if "padding" not in layout:
        # Of Megatron-Core: each document, or each row of a rectangle, is cut into 2 C parts.
        said["partition"] = "zigzag_per_document" if said.get("format") == "THD" else "zigzag_per_sequence"
    return said | layout


def _packed(params: Any) -> dict[str, Any]:
    """Megatron's PackedSeqParams. Without padded boundaries of their own the real ones are those of the stream."""
    real = plain(host(params.cu_seqlens_q), "packed_seq_params.cu_seqlens_q")
    padded = getattr(params, "cu_seqlens_q_padded", None)
    stream = real if padded is None else plain(host(padded), "packed_seq_params.cu_seqlens_q_padded")
    said: dict[str, Any] = {"format": "THD", "cu_seqlens": real, "cu_seqlens_padded": stream}
    total = getattr(params, "total_tokens", None)
    said["total_rows"] = stream[-1]
    if total is not None:  # NeMo-RL says those of this rank, where context parallelism cuts the stream.
        said["total_rows"] = max(stream[-1], integer(total, "packed_seq_params.total_tokens"))
    per_sample = getattr(params, "tokens_per_sample", None)
    if per_sample is not None:
        said["tokens_per_sample"] = integer(per_sample, "packed_seq_params.tokens_per_sample")
    local = getattr(params, "local_cp_size", None)
    if local is not None:
        said["local_cp_size"] = integer(local, "packed_seq_params.local_cp_size")
    return said
