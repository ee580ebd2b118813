"""From the arguments of `read` to a request of the core, and from its result to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from routing_replay import _core, _values
from routing_replay.types import SampleLike, SampleRead, SampleRows, TokenCheck, WeightSpan


def make_reader(
    run: _core.Run,
    samples: Iterable[SampleLike],
    layers: Sequence[int] | None,
    producer: str,
    wait: bool,
    only_begun: bool = False,
) -> _core.Reader:
    """InvalidArgumentError naming what is wrong, and a layer that carries no routes."""
    if isinstance(samples, (str, SampleRead)) or not isinstance(samples, Iterable):
        raise _values.invalid("samples", f"{samples!r} is not a list of samples")
    request: dict[str, Any] = {
        "producer": _values.text(producer, "producer"),
        "wait": bool(wait),
        "samples": [_sample(sample, f"samples[{i}]") for i, sample in enumerate(samples)],
    }
    if only_begun:
        request["only_begun"] = True
    if layers is not None:
        request["layers"] = _values.integers(layers, "layers")
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
                content_id=record.get("content_id", 0),
                unrecorded=tuple((begin, end) for begin, end in record["unrecorded"]),
                weights=tuple(WeightSpan(*span) for span in record["weights"]),
            )
        )
    return out


def _sample(sample: SampleLike, path: str) -> dict[str, Any]:
    if isinstance(sample, str):
        return {"sample": _values.text(sample, path)}
    if not isinstance(sample, SampleRead):
        return {"handle": _values.integer(sample, path)}
    asked: dict[str, Any] = {}
    rows = _values.row_ranges(sample.rows, f"{path}.rows")
    if rows:
        asked["rows"] = rows
    if sample.token_checks:
        asked["token_checks"] = [_check(check, f"{path}.token_checks") for check in sample.token_checks]
    if sample.sample is not None:
        asked["sample"] = _values.text(sample.sample, f"{path}.sample")
    for key in ("handle", "num_tokens", "min_weight_version", "max_weight_version"):
        value = getattr(sample, key)
        if value is not None:
            asked[key] = _values.integer(value, f"{path}.{key}")
    return asked


def _check(check: TokenCheck, field: str) -> list[int]:
    if not isinstance(check, TokenCheck):
        raise _values.invalid(field, f"{check!r} is not a TokenCheck")
    return [_values.integer(check.rows, field), _values.integer(check.crc32c, field, _values.UINT32)]
