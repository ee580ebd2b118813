"""Compares answers of two servers to the same requests, field by field.

RULES is the one place that says what may differ between releases. Everything else must be equal. Both sides are read
with the descriptors of the recorded version, so that fields which came later are skipped, as its clients skip them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Values of no meaning but to be the same or another; those of one side stand for those of the other, one for one.
RENAMED = "renamed"
# Depends on time, memory layout or the words chosen; only whether it is there.
ANYTHING = "anything"
# Everything that was there is there; more may have come.
SUPERSET = "superset"
# A limit, which only grows.
AT_LEAST = "at least"

RULES = {
    "SampleState.content_id": RENAMED,
    "SampleState.idle_ms": ANYTHING,
    "SampleState.stored_bytes": ANYTHING,
    "SampleRecord.content_id": RENAMED,
    "SampleRecord.message": ANYTHING,
    "AppendAck.content_id": RENAMED,
    "Status.message": ANYTHING,
    "ErrorDetail.retry_after_ms": ANYTHING,
    "ErrorDetail.server_version": ANYTHING,
    "OpenRunResponse.server_version": ANYTHING,
    "OpenRunResponse.features": SUPERSET,
    "OpenRunResponse.max_message_bytes": AT_LEAST,
    "OpenRunResponse.max_payload_bytes": AT_LEAST,
    "OpenRunResponse.endpoint": ANYTHING,
    "OpenRunResponse.life": RENAMED,
    "ListResponse.life": RENAMED,
    "RunState.stored_bytes": ANYTHING,
    "ReleaseResponse.bytes": ANYTHING,
    "DropRunResponse.bytes": ANYTHING,
    "ServerInfo.version": ANYTHING,
    "ServerInfo.features": SUPERSET,
    "ServerInfo.budget_bytes": ANYTHING,
    "ServerInfo.stored_bytes": ANYTHING,
    "ServerInfo.reserved_bytes": ANYTHING,
    "ServerInfo.uptime_ms": ANYTHING,
    "ServerInfo.time_ms": ANYTHING,
    "ServerInfo.max_message_bytes": AT_LEAST,
    "ServerInfo.max_payload_bytes": AT_LEAST,
    "ServerInfo.counters": SUPERSET,  # By name; how much is counted where may change.
}


class Names:
    """Which value of the recorded side stands for which of the other, both ways."""

    def __init__(self) -> None:
        self.to_now: dict[int, int] = {}
        self._to_recorded: dict[int, int] = {}

    def same(self, recorded: int, now: int) -> bool:
        return self.to_now.setdefault(recorded, now) == now and self._to_recorded.setdefault(now, recorded) == recorded

    def in_request(self, request: bytes) -> bytes:
        """The recorded request with the names of today: fixed64 fields, wherever they stand."""
        for recorded, now in self.to_now.items():
            if recorded:
                request = request.replace(recorded.to_bytes(8, "little"), now.to_bytes(8, "little"))
        return request


def differences(recorded: Any, now: Any, names: Names, path: str = "") -> Iterator[str]:
    """One line for each field in which two messages of the same class differ beyond RULES."""
    for field in recorded.DESCRIPTOR.fields:
        here = f"{path}.{field.name}" if path else field.name
        before, after = getattr(recorded, field.name), getattr(now, field.name)
        if field.label != field.LABEL_REPEATED and _has_presence(field):
            if recorded.HasField(field.name) != now.HasField(field.name):
                yield f"{here}: there {recorded.HasField(field.name)}, now {now.HasField(field.name)}"
                continue
            if not recorded.HasField(field.name):
                continue
        rule = RULES.get(f"{recorded.DESCRIPTOR.name}.{field.name}")
        if rule == ANYTHING:
            if bool(before) and not bool(after) and isinstance(before, str):
                yield f"{here}: empty now"
        elif rule == RENAMED:
            if not names.same(before, after):
                yield f"{here}: {before} is another one than before, and now is not, or the other way round"
        elif rule == SUPERSET:
            if not set(before) <= set(after):
                yield f"{here}: {sorted(set(before) - set(after))} are gone"
        elif rule == AT_LEAST:
            if after < before:
                yield f"{here}: was {before}, is {after}"
        elif field.message_type is not None and field.label == field.LABEL_REPEATED:
            if len(before) != len(after):
                yield f"{here}: {len(before)} entries, now {len(after)}"
            for index, (one, other) in enumerate(zip(before, after, strict=False)):
                yield from differences(one, other, names, f"{here}[{index}]")
        elif field.message_type is not None:
            yield from differences(before, after, names, here)
        elif before != after:
            yield f"{here}: was {before!r}, is {after!r}"


def _has_presence(field: Any) -> bool:
    return field.message_type is not None or field.containing_oneof is not None


def read_outcome(answers: list[Any]) -> tuple[list[Any], list[tuple[int, ...]], bytes]:
    """Records, cuts and all bytes of a read: into how many messages and pieces it goes is the server's choice."""
    records, cuts, payload = [], [], b""
    for answer in answers:
        records += answer.records
        payload += answer.payload
        for piece in answer.pieces:
            for index, crc32c in enumerate(piece.cut_crc32c):
                place = (piece.sample_index, piece.layer_begin + index, piece.row_begin, piece.rows)
                cuts.append((*place, piece.codec, piece.bit_offset, crc32c))
    return records, cuts, payload
