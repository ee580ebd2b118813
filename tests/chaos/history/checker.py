"""Decides from the logs alone whether a store has kept its promises (server/store/README.md).

For each sample, observations are compared in real time: an observation that began after another one had ended must not
contradict it, unless the store's table permits it. Kinds of violations:

  wrong rows       a read returned rows that no append has sent at this position, or rows of two attempts together
  not a prefix     a read of a whole sample returned other rows than [0, committed)
  lost             fewer rows, no sample, or no seal, although more had been acknowledged or read before
  stale            an older revision than had been acknowledged or read, or an accepted append of an old attempt
  double write     two writes were both first for the same cell of the same revision
  past the seal    a sealed sample has another number of rows
  resurrected      a released sample exists again, although nothing was appended to it afterwards
  untyped          an error with an undocumented code or reason
  memory           the peak of the server's resident memory is above the stated bound
  server           the server ended by itself

Between two *breaks* nothing may be lost. Breaks are the release of a sample, the drop of its run, and the losses that
history.py logs: "all" if a memory store loses its server, "tail" if Redis fails over, which may return a sample to an
earlier state. Bytes are checked across breaks, too.
"""

from __future__ import annotations

import bisect
import collections
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import rows

# Permitted reasons by code. Workers send no invalid requests, so INVALID_ARGUMENT is not permitted.
TYPED: dict[str, set[str | None]] = {
    "OK": {None},
    "FAILED_PRECONDITION": {"GAP", "OLD_REVISION", "SEALED", "NOT_COMMITTED"},
    "ALREADY_EXISTS": {"OTHER_TOKENS"},
    "RESOURCE_EXHAUSTED": {"OVER_BUDGET", None},
    "NOT_FOUND": {"NO_RUN", "NO_SAMPLE"},
    "UNAVAILABLE": {"DRAINING", None},
    "DEADLINE_EXCEEDED": {None},
    "UNAUTHENTICATED": {None},
    "CANCELLED": {None},
    "ABORTED": {None},
}
# After these codes it is not known whether, or when, the server carries out the request.
UNKNOWN = {None, "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "UNAUTHENTICATED"}
STATUSES = {"OK", "STATE", "NOT_FOUND", "NOT_READY", "OUT_OF_RANGE", "UNAVAILABLE"}


@dataclass(slots=True)
class Call:
    do: str
    asked: dict[str, Any]
    begin: float
    end: float = inf  # Time of the answer.
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str | None:
        return self.answer.get("code")

    @property
    def ok(self) -> bool:
        return self.code == "OK"

    @property
    def settled(self) -> float:
        """The time from which on the call can have no further effect. It is infinite if the outcome is unknown."""
        return inf if self.code in UNKNOWN else self.end

    def __str__(self) -> str:
        return f"{self.do} {self.asked} -> {self.answer}"


@dataclass(slots=True)
class Break:
    """A span of time in which a sample was released or dropped, or in which the store may have lost changes. What was
    known before it is not certain after it."""

    begin: float
    end: float
    tail: bool = False


@dataclass(slots=True)
class Known:
    """What is certain about a sample since the last break."""

    exists: bool = False
    revision: int = -1
    committed: int = 0
    num_tokens: int | None = None
    attempt: int = -1  # The latest acknowledged one.
    attempts: dict[int, int] = field(default_factory=dict)  # Attempt by revision.
    cells: dict[tuple[int, int], int] = field(default_factory=dict)  # Variant by revision and first row.


class History:
    """The log of one seed."""

    def __init__(self, lines: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """lines: pairs of a file's name and one of its lines; the lines of a file must be in the order of the file"""
        self.samples: dict[tuple[str, str], list[Call]] = collections.defaultdict(list)
        self.calls: list[Call] = []
        self.losses: list[Break] = []
        self.facts: list[dict[str, Any]] = []  # Facts about the server that the driver logged.
        self.operations = 0
        self._open: dict[tuple[str, int], Call] = {}
        for file, line in lines:
            self._add(file, line)
        for call in self.calls:
            for sample in call.asked.get("samples") or [call.asked.get("sample")]:
                self.samples[call.asked.get("run", ""), sample].append(call)

    def _add(self, file: str, line: dict[str, Any]) -> None:
        if "id" in line:
            call = Call(line["do"], line, line["at"])
            self.calls.append(call)
            self._open[file, line["id"]] = call
            self.operations += len(line.get("samples", "1"))
        elif "of" in line:
            call = self._open.pop((file, line["of"]))
            call.end, call.answer = line["at"], line
        elif "loss" in line:
            self.losses.append(Break(line["from"], line["at"], line["loss"] == "tail"))
        else:
            self.facts.append(line)


def check(history: History) -> list[str]:
    """Violations; empty if there are none."""
    found = [*_facts(history), *_types(history)]
    drops = collections.defaultdict(list)
    for call in history.calls:
        if call.do == "drop":
            drops[call.asked["run"]].append(call)
    for (run, sample), calls in history.samples.items():
        if sample is not None:
            found += _Sample(run, sample, calls, drops[run], history.losses).check()
    return found


def _facts(history: History) -> Iterable[str]:
    for fact in history.facts:
        if fact.get("memory", 0) > fact.get("bound", inf):
            yield f"memory: {fact['memory']} bytes were resident, the bound is {fact['bound']}"
        if "ended" in fact:
            yield f"server: it ended by itself with status {fact['ended']}"


def _types(history: History) -> Iterable[str]:
    for call in history.calls:
        status = call.answer.get("status", "OK")
        if call.answer and call.answer.get("reason") not in TYPED.get(call.code or "", ()):
            yield f"untyped: {call}"
        elif status not in STATUSES:
            yield f"lost: status {status}: {call}"


class _Sample:
    def __init__(self, run: str, sample: str, calls: list[Call], drops: list[Call], losses: list[Break]) -> None:
        self._run, self._sample = run, sample
        self._calls = sorted(calls, key=lambda call: call.begin)
        self._appends = [call for call in self._calls if call.do == "append"]
        self._releases = [call for call in [*self._calls, *drops] if call.do in ("release", "drop")]
        gone = [Break(call.begin, call.settled) for call in self._releases]
        self._breaks = sorted([*losses, *gone], key=lambda each: each.begin)
        self._begins = [each.begin for each in self._breaks]
        self._ends = sorted(each.end for each in self._breaks)
        self._tails = [each for each in losses if each.tail]
        self._known: dict[int, Known] = collections.defaultdict(Known)  # By number of earlier breaks.
        self._variants: dict[int, dict[int, int]] = {}  # Variants of a read's cells, by id() of the call.
        self._attempt_of: dict[int, int] = {}  # By id() of a read's call.
        self.found: list[str] = []

    def check(self) -> list[str]:
        if not self._appends:
            if any(call.answer.get("committed") for call in self._calls):
                self._say("wrong rows", "rows of a sample that nobody appended", self._calls[0])
            return self.found
        for call in self._calls:
            if call.do == "read" and call.answer.get("digests") is not None:
                self._bytes(call)
        learned = sorted((call for call in self._calls if call.answer), key=lambda call: call.end)
        next_one = 0
        for call in self._calls:
            while next_one < len(learned) and learned[next_one].end < call.begin:
                self._learn(learned[next_one])
                next_one += 1
            if call.answer:
                self._judge(call)
        for call in learned[next_one:]:
            self._learn(call)
        return self.found

    def _say(self, what: str, why: str, call: Call) -> None:
        self.found.append(f"{what}: {self._run} {self._sample}: {why}: {call}")

    def _since(self, call: Call) -> Known | None:
        """What is known since the last break before the call. None if the call overlaps a break, because nothing is
        certain then."""
        ended = bisect.bisect_left(self._ends, call.begin)
        return self._known[ended] if bisect.bisect_right(self._begins, call.end) == ended else None

    # Bytes.

    def _bytes(self, call: Call) -> None:
        asked, answer = call.asked, call.answer
        ranges = [tuple(span) for span in answer["ranges"]]
        whole = (0, answer["committed"])
        span = tuple(asked["rows"]) if asked.get("rows") else whole
        if ranges != ([span] if span[0] < span[1] else []) or span[1] > answer["committed"]:
            self._say("not a prefix", f"rows {ranges} instead of {span}", call)
            return
        pieces = list(rows.pieces(*span))
        if len(pieces) != len(answer["digests"]):
            self._say("not a prefix", "more or fewer rows than the answer names", call)
            return
        attempts: set[int] | None = None
        variants: dict[int, int] = {}
        for (begin, end), digest in zip(pieces, answer["digests"], strict=True):
            sources = self._sources(begin, end, tuple(answer["layers"]), digest, call.end)
            mine = {attempt for attempt, _ in sources}
            attempts = mine if attempts is None else attempts & mine
            if not attempts:
                why = "no append has sent these" if not mine else "two attempts are mixed"
                self._say("wrong rows", f"rows {begin} to {end}: {why}", call)
                return
            if len(sources) == 1:
                variants[begin - begin % rows.CELL] = sources[0][1]
        if attempts and len(attempts) == 1:
            self._attempt_of[id(call)] = attempts.pop()
            self._variants[id(call)] = variants

    def _sources(
        self, begin: int, end: int, layers: tuple[int, ...], digest: str, before: float
    ) -> list[tuple[int, int]]:
        """Returns (attempt, variant) of each append that may have written rows [begin, end). Such an append was sent
        before the time `before`, covers these rows and those before them in their cell, and has this digest."""
        first = begin - begin % rows.CELL
        sent = {
            (call.asked["attempt"], call.asked["variant"])
            for call in self._appends
            if call.begin < before and call.asked["rows"][0] <= first and call.asked["rows"][1] >= end
        }
        return [
            (attempt, variant)
            for attempt, variant in sorted(sent)
            if rows.expected((self._run, self._sample, attempt, variant), begin, end, layers) == digest
        ]

    # Order.

    def _learn(self, call: Call) -> None:
        known, answer = self._since(call), call.answer
        if known is None or not call.ok or answer.get("revision") is None or answer.get("status") == "NOT_FOUND":
            return
        if call.do in ("release", "drop") or answer.get("status") == "UNAVAILABLE":
            return
        revision = answer["revision"]
        if revision > known.revision:
            known.revision, known.committed, known.num_tokens = revision, 0, None
        if revision == known.revision:
            known.exists = True
            known.committed = max(known.committed, answer["committed"])
            known.num_tokens = known.num_tokens or answer.get("num_tokens")
        attempt = call.asked.get("attempt", self._attempt_of.get(id(call)))
        if attempt is None:
            return
        known.attempt = max(known.attempt, attempt)
        if known.attempts.setdefault(revision, attempt) != attempt:
            self._say("double write", f"revision {revision} is of attempt {known.attempts[revision]}, too", call)
        self._first_writes(known, revision, call)

    def _first_writes(self, known: Known, revision: int, call: Call) -> None:
        variants = self._variants.get(id(call), {})
        if call.do == "append" and call.answer.get("conflicting") == 0:
            begin, end = call.asked["rows"]
            first = -(-begin // rows.CELL) * rows.CELL
            variants = dict.fromkeys(range(first, end, rows.CELL), call.asked["variant"])
        for cell, variant in variants.items():
            if known.cells.setdefault((revision, cell), variant) != variant:
                why = f"rows from {cell} on were first written with variant {known.cells[revision, cell]}"
                self._say("double write", why, call)
                return

    def _judge(self, call: Call) -> None:
        answer = call.answer
        if call.do in ("release", "drop"):
            return
        committed, revision, status = (answer.get(name) for name in ("committed", "revision", "status"))
        gone = status == "NOT_FOUND" or call.code == "NOT_FOUND"
        known = self._since(call)
        if known is not None and known.exists and gone:
            self._say("lost", f"there were {known.committed} rows of revision {known.revision}", call)
        if not gone and (call.ok or call.do == "append") and status != "UNAVAILABLE":
            self._resurrected(call, committed)
        if gone or committed is None or revision is None:
            return
        # A gap in an attempt that has not begun says nothing about the previous attempt.
        if known is not None and known.exists and (call.ok or call.asked.get("attempt", 0) <= known.attempt):
            self._order(known, call, committed, revision)
        if call.do == "append" and call.ok:
            self._taken(known, call, committed)
        if committed > max((each.asked["rows"][1] for each in self._appends if each.begin < call.end), default=0):
            self._say("wrong rows", "more are committed than anybody has appended", call)
        num_tokens = answer.get("num_tokens")
        if num_tokens is not None and committed != num_tokens - 1:
            self._say("past the seal", f"{committed} rows of {num_tokens} tokens", call)

    def _order(self, known: Known, call: Call, committed: int, revision: int) -> None:
        if revision < known.revision:
            self._say("stale", f"revision {known.revision} was known before", call)
        elif revision > known.revision:
            return
        elif committed < known.committed:
            self._say("lost", f"{known.committed} rows were known before", call)
        elif known.num_tokens is not None and committed != known.num_tokens - 1:
            self._say("past the seal", f"it was sealed with {known.num_tokens} tokens", call)
        elif call.ok and known.num_tokens is not None and call.answer.get("num_tokens") is None:
            self._say("lost", f"the seal with {known.num_tokens} tokens", call)

    def _taken(self, known: Known | None, call: Call, committed: int) -> None:
        if committed < call.asked["rows"][1]:
            self._say("lost", "its own rows are not in the count that it was answered", call)
        if known is not None and call.asked["attempt"] < known.attempt:
            self._say("stale", f"attempt {known.attempt} had been acknowledged before", call)

    def _resurrected(self, call: Call, committed: int | None) -> None:
        if not committed:
            return
        for release in self._releases:
            over = release.ok and release.end < call.begin
            if (
                over
                and all(append.settled < release.begin for append in self._appends)
                and not any(tail.end > release.begin for tail in self._tails)
            ):
                self._say("resurrected", "it was released, and nothing was appended since", call)
                return


def read_logs(directory: Path) -> History:
    """Reads all *.jsonl files. The last line of a killed process may be incomplete."""

    def lines() -> Iterable[tuple[str, dict[str, Any]]]:
        for file in sorted(directory.glob("*.jsonl")):
            for text in file.read_text().split("\n"):
                if text.endswith("}"):
                    yield file.name, json.loads(text)

    return History(lines())
