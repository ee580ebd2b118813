"""From the arguments of `read` to a request of the core, and from its result to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from routing_replay import _core
from routing_replay.errors import InvalidArgumentError
from routing_replay.types import SampleLike, SampleRead, SampleRows, WeightSpan


def make_reader(
    run: _core.Run, samples: Iterable[SampleLike], layers: Sequence[int] | None, producer: str, wait: bool
) -> _core.Reader:
    """InvalidArgumentError naming a layer that carries no routes."""
    for field, value in (("samples", samples), ("layers", layers)):
        if isinstance(value, str):
            raise InvalidArgumentError(f"{field}: a list is needed, not {value!r}", reason="FIELD", field=field)
    request: dict[str, Any] = {"producer": producer, "wait": wait, "samples": [_sample(s) for s in samples]}
    if layers is not None:
        request["layers"] = [int(layer) for layer in layers]
    return _core.Reader(run, request)


def rows_from(reader: _core.Reader) -> list[SampleRows]:
    result = reader.result()
    layers = tuple(result["layers"])
    out = []
    for index, record in enumerate(result["samples"]):
        ranges = tuple((begin, end) for begin, end in record["rows"])
        rows = None
        if record["status"] == "OK":
            shape = (len(layers), sum(end - begin for begin, end in ranges), result["top_k"])
            rows = reader.take_ids(index, shape, result["id_bytes"]).transpose(1, 0, 2)
        out.append(
            SampleRows(
                index=index,
                status=record["status"],
                message=record["message"],
                rows=rows,
                row_ranges=ranges,
                layers=layers,
                committed_rows=record["committed_rows"],
                num_tokens=record.get("num_tokens"),
                revision=record["revision"],
                content_id=record["content_id"],
                unrecorded=tuple((begin, end) for begin, end in record["unrecorded"]),
                weights=tuple(WeightSpan(*span) for span in record["weights"]),
            )
        )
    return out


def _sample(sample: SampleLike) -> dict[str, Any]:
    if isinstance(sample, str):
        return {"sample": sample}
    if not isinstance(sample, SampleRead):
        return {"handle": int(sample)}
    asked: dict[str, Any] = {}
    if sample.rows:
        asked["rows"] = [[int(begin), int(end)] for begin, end in sample.rows]
    if sample.token_checks:
        asked["token_checks"] = [[check.rows, check.crc32c] for check in sample.token_checks]
    for key in ("sample", "handle", "num_tokens", "min_weight_version", "max_weight_version"):
        value = getattr(sample, key)
        if value is not None:
            asked[key] = value if key == "sample" else int(value)
    return asked
