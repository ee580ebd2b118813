"""The bytes of calls in the order in which they went over the wire, as a file.

A line of JSON per event, xz around all. `call` numbers the calls; `event` is one of
    open     with `method`, and the header `authorization` where there was one
    send     a request's `bytes`
    close    no more requests
    cancel   the client went away; how the call ended says nothing then
    receive  an answer's `bytes`
    end      with `code`, and the `details` of a failed call
Bytes are base64.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import lzma
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Event:
    call: int
    event: str
    method: str = ""
    bytes: bytes = b""
    code: int = 0
    details: bytes = b""
    authorization: str = ""


@dataclasses.dataclass
class Call:
    """One call, its events put together."""

    number: int
    method: str
    requests: list[bytes] = dataclasses.field(default_factory=list)
    answers: list[bytes] = dataclasses.field(default_factory=list)
    answers_after: list[int] = dataclasses.field(default_factory=list)  # Per answer, requests that had gone before it.
    code: int = 0
    details: bytes = b""
    cancelled: bool = False

    def add(self, event: Event) -> None:
        if event.event == "send":
            self.requests.append(event.bytes)
        elif event.event == "receive":
            self.answers.append(event.bytes)
            self.answers_after.append(len(self.requests))
        elif event.event == "cancel":
            self.cancelled = True
        elif event.event == "end":
            self.code, self.details = event.code, event.details


def calls(events: list[Event]) -> list[Call]:
    found: dict[int, Call] = {}
    for event in events:
        if event.event == "open":
            found[event.call] = Call(event.call, event.method)
        found[event.call].add(event)
    return list(found.values())


def write(path: Path, events: list[Event]) -> None:
    lines = []
    for event in events:
        fields = {name: value for name, value in dataclasses.asdict(event).items() if value or name == "call"}
        for name in ("bytes", "details"):
            if name in fields:
                fields[name] = base64.b64encode(fields[name]).decode()
        lines.append(json.dumps(fields, separators=(",", ":")) + "\n")
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9))


def read(path: Path) -> list[Event]:
    events = []
    for line in lzma.decompress(path.read_bytes()).decode().splitlines():
        fields = json.loads(line)
        for name in ("bytes", "details"):
            if name in fields:
                fields[name] = base64.b64decode(fields[name])
        events.append(Event(**fields))
    return events
