"""A worker that appends and reads, and logs every call and every answer.

    clients.py CONFIG NUMBER GENERATION TRANSPORT [audit]

CONFIG is a JSON file that history.py writes. With `audit` the worker reads what all workers have written and exits;
otherwise it works until SIGTERM. The seed, the worker's number and n determine its n-th step, except that the samples
of other workers that it uses depend on their progress.

The log has a JSON line per call, {"id", "at", "do", …}, before it is made, and one per answer, {"of", "at", "code", …}.
Times are those of CLOCK_MONOTONIC, which all processes of a machine share. Instead of rows the log has their source and
digests.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import routing_replay as rr
import rows
from routing_replay.errors import RoutingReplayError

GEOMETRY = rr.Geometry(num_layers=rows.LAYERS, num_experts=rows.EXPERTS, top_k=rows.TOP_K)
RUN = "main"
CALL_TIMEOUT = 5.0
FLUSH_TIMEOUT = 30.0
KEPT = 60  # A worker releases its older samples, so that about this many are left.
AUDITED = 400  # How many samples of each generation of a worker the audit reads: the last ones.


class Log:
    """Writes lines. Thread-safe. A line is one call of write, so a killed process leaves complete lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._ids = itertools.count(1)

    def write(self, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"at": time.monotonic(), **fields}) + "\n").encode())

    def call(self, do: str, **fields: Any) -> int:
        number = next(self._ids)
        self.write(id=number, do=do, **fields)
        return number

    def failed(self, of: int, error: Exception) -> None:
        """The code of an error. For an exception of another library the class name is the code, which the checker does
        not accept as typed."""
        fields: dict[str, Any] = {"code": type(error).__name__, "message": str(error)[:300]}
        if isinstance(error, RoutingReplayError):
            fields |= {"code": error.code, "reason": error.reason}
            fields |= {"committed": error.committed_rows, "revision": error.revision}
        self.write(of=of, **fields)


class LoggedAppender:
    """An appender that logs its outcomes as answers to the calls."""

    def __init__(self, log: Log, run: rr.Run, worker: Worker) -> None:
        self._log, self._worker = log, worker
        self._lock = threading.Lock()
        self._calls: dict[int, int] = {}  # By sequence number.
        # Outcomes by sequence number. They arrived before the call of append returned that number.
        self._early: dict[int, rr.AppendOutcome] = {}
        self._appender = run.appender(on_full="raise", append_timeout=15, on_outcome=self._ended)

    def append(self, run: str, sample: str, attempt: int, variant: int, span: tuple[int, int], seal: bool) -> None:
        begin, end = span
        ids = rows.routes((run, sample, attempt, variant), begin, end)
        tokens = rows.tokens(run, sample, attempt, begin, end)
        call = self._log.call("append", run=run, sample=sample, attempt=attempt, variant=variant, rows=span, seal=seal)
        try:
            sequence = self._appender.append(sample, ids, row_start=begin, tokens=tokens, attempt=attempt, seal=seal)
        except Exception as error:
            self._log.failed(call, error)
            return
        with self._lock:
            outcome = self._early.pop(sequence, None)
            if outcome is None:
                self._calls[sequence] = call
        if outcome is not None:
            self._answer(call, outcome)

    def _ended(self, outcome: rr.AppendOutcome) -> None:
        with self._lock:
            call = self._calls.pop(outcome.sequence, None)
            if call is None:
                self._early[outcome.sequence] = outcome
        if call is not None:
            self._answer(call, outcome)

    def _answer(self, call: int, outcome: rr.AppendOutcome) -> None:
        if outcome.error is not None:
            self._log.failed(call, outcome.error)
            self._worker.learn(outcome.error)
            return
        self._log.write(
            of=call,
            code="OK",
            committed=outcome.committed_rows,
            revision=outcome.revision,
            num_tokens=outcome.committed_rows + 1 if outcome.sealed else None,
            conflicting=outcome.conflicting_rows,
        )

    def flush(self) -> None:
        try:
            self._appender.flush(FLUSH_TIMEOUT)
        except RoutingReplayError as error:
            self._worker.learn(error)

    def close(self) -> None:
        self._appender.close(FLUSH_TIMEOUT)


class Worker:
    def __init__(
        self, config: dict[str, Any], number: int, generation: int, log: Log, stopped: threading.Event
    ) -> None:
        self.log, self.number, self.generation = log, number, generation
        self._seed, self._workers = config["seed"], config["workers"]
        # One row per worker: its generation, and the number of the sample that it works on.
        self._progress = np.memmap(config["progress"], np.int64, "r+", shape=(self._workers, 2))
        through = config["endpoints"][number % len(config["endpoints"])]
        self.client = rr.Client(through, call_timeout=CALL_TIMEOUT, **config["security"])
        self.stopped = stopped
        self._no_run = threading.Event()
        self._run: rr.Run | None = None

    def random(self, *words: object) -> random.Random:
        return random.Random(rows.number(self._seed, self.number, self.generation, *words))

    def learn(self, error: Exception) -> None:
        if getattr(error, "reason", None) == "NO_RUN":
            self._no_run.set()

    def call(self, do: str, function: Any, **fields: Any) -> Any:
        """The result of a call, or None. A failure is logged here; the caller logs the answer, because it knows what it
        means."""
        number = self.log.call(do, **fields)
        try:
            return number, function()
        except Exception as error:
            self.log.failed(number, error)
            self.learn(error)
            return number, None

    def open(self, name: str) -> rr.Run | None:
        """Returns None if the worker was stopped before the run existed."""
        while not self.stopped.is_set():
            call, run = self.call("open", lambda: self.client.run(name, GEOMETRY), run=name)
            if run is not None:
                self.log.write(of=call, code="OK")
                return run
            self.stopped.wait(0.05)
        return None

    # Writes.

    def write(self) -> None:
        self._run = self.open(RUN)
        if self._run is None:
            return
        appenders = [LoggedAppender(self.log, self._run, self) for _ in range(2)]
        for n in itertools.count():
            if self.stopped.is_set():
                break
            self._progress[self.number] = self.generation, n
            if self._no_run.is_set():
                self._no_run.clear()
                self.open(RUN)
            choice = self.random("write", n)
            self._write_sample(appenders, f"w{self.number}.{self.generation}/{n}", choice)
            if choice.random() < 0.25:
                self._write_beside(appenders, choice)
            if n % 4 == 3:
                for appender in appenders:
                    appender.flush()
                self._clean(n, choice)
            if choice.random() < 0.005:
                self._make_and_drop(f"drop/{self.number}.{self.generation}/{n}")
        for appender in appenders:
            appender.close()

    def _write_sample(self, appenders: list[LoggedAppender], sample: str, choice: random.Random) -> None:
        """Appends turn by turn, in up to three attempts; some turns are sent again, longer than needed, or with other
        routes."""
        whole = rows.length(sample)
        main, other = choice.sample(appenders, 2)
        attempts = choice.choices((1, 2, 3), (8, 2, 1))[0]
        for attempt in range(attempts):
            last = attempt == attempts - 1
            row, end = 0, whole if last else choice.randrange(rows.CELL, whole + 1, rows.CELL)
            sealed = choice.random() < 0.7 and last
            while row < end:
                to = min(end, row + rows.CELL * choice.randint(1, 4))
                begin = row if choice.random() < 0.8 else choice.randint(0, row)
                seal = sealed and to == end
                if choice.random() < 0.08:
                    other.append(RUN, sample, attempt, 1, (begin, to), False)
                main.append(RUN, sample, attempt, 0, (begin, to), seal)
                if choice.random() < 0.12:
                    choice.choice(appenders).append(RUN, sample, attempt, 0, (begin, to), seal)
                row = to

    def _write_beside(self, appenders: list[LoggedAppender], choice: random.Random) -> None:
        """Appends to a sample of another worker."""
        other = choice.randrange(self._workers)
        generation, n = (int(number) for number in self._progress[other])
        sample = f"w{other}.{generation}/{max(0, n - choice.choice((0, 0, 0, 1, 5)))}"
        end = choice.randrange(rows.CELL, rows.length(sample) + 1, rows.CELL)
        choice.choice(appenders).append(RUN, sample, 0, choice.randrange(2), (0, end), False)

    def _clean(self, n: int, choice: random.Random) -> None:
        """Seals some unsealed samples, and releases old ones."""
        run = self._run
        name = f"w{self.number}.{self.generation}/"
        sample = f"{name}{n}"
        if choice.random() < 0.3:
            count = rows.length(sample) + 1
            sealing = {"run": RUN, "sample": sample, "num_tokens": count}
            call, outcome = self.call("seal", lambda: run.put(sample, row_start=count - 1, num_tokens=count), **sealing)
            if outcome is not None:
                state = {"committed": outcome.committed_rows, "revision": outcome.revision}
                self.log.write(of=call, code="OK", status="STATE", num_tokens=count, **state)
        if n > KEPT and choice.random() < 0.9:
            names = [f"{name}{i}" for i in range(n - KEPT - 3, n - KEPT + 1)]
            call, released = self.call("release", lambda: run.release(names), run=RUN, samples=names)
            if released is not None:
                self.log.write(of=call, code="OK", released=released.samples)

    def _make_and_drop(self, name: str) -> None:
        run = self.open(name)
        if run is None:
            return
        appender = LoggedAppender(self.log, run, self)
        for i in range(3):
            appender.append(name, f"s{i}", 0, 0, (0, rows.CELL), True)
        appender.flush()
        call, dropped = self.call("drop", run.drop, run=name)
        if dropped is not None:
            self.log.write(of=call, code="OK")
        self._stat(run, name, [f"s{i}" for i in range(3)])
        appender.close()

    # Reads.

    def read(self) -> None:
        run = self.open(RUN)
        for n in itertools.count():
            if run is None or self.stopped.is_set():
                return
            choice = self.random("read", n)
            names = list(dict.fromkeys(self._pick(choice) for _ in range(choice.randint(1, 8))))
            what = choice.random()
            if what < 0.2:
                self._stat(run, RUN, names)
            elif what < 0.25:
                self._read(run, names[:1], choice, wait=True)
            else:
                self._read(run, names, choice if what < 0.6 else None)

    def _pick(self, choice: random.Random) -> str:
        other = choice.randrange(self._workers)
        generation, n = (int(number) for number in self._progress[other])
        return f"w{other}.{generation}/{max(0, n - int(choice.expovariate(0.1)))}"

    def _stat(self, run: rr.Run, name: str, samples: list[str]) -> None:
        calls = [self.log.call("stat", run=name, sample=sample) for sample in samples]
        try:
            found = {state.sample: state for state in run.stat_many(samples)}
        except Exception as error:
            for call in calls:
                self.log.failed(call, error)
            return
        for call, sample in zip(calls, samples, strict=True):
            if sample in found:
                self._state(call, found[sample])
            else:
                self.log.write(of=call, code="OK", status="NOT_FOUND")

    def _state(self, call: int, state: rr.SampleState) -> None:
        self.log.write(
            of=call,
            code="OK",
            status="STATE",
            committed=state.committed_rows,
            revision=state.revision,
            num_tokens=state.num_tokens,
        )

    def _read(self, run: rr.Run, samples: list[str], choice: random.Random | None, wait: bool = False) -> None:
        """Reads whole samples, or with `choice` slices of rows and layers."""
        layers: list[int] | None = None
        spans: list[tuple[int, int] | None] = [None] * len(samples)
        if choice is not None:
            layers = sorted(choice.sample(range(rows.LAYERS), choice.randint(1, rows.LAYERS)))
            ends = [sorted(choice.sample(range(rows.length(sample) + 1), 2)) for sample in samples]
            spans = [(begin, end) for begin, end in ends]
        asked = [rr.SampleRead(name, rows=[span] if span else ()) for name, span in zip(samples, spans, strict=True)]
        calls = [
            self.log.call("read", run=RUN, sample=sample, rows=span, layers=layers, wait=wait)
            for sample, span in zip(samples, spans, strict=True)
        ]
        timeout = 0.3 + 0.7 * choice.random() if wait and choice is not None else CALL_TIMEOUT
        try:
            found = run.read(asked, layers=layers, wait=wait, timeout=timeout)
        except Exception as error:
            for call in calls:
                self.log.failed(call, error)
            return
        for call, read in zip(calls, found, strict=True):
            fields = {"committed": read.committed_rows, "revision": read.revision, "num_tokens": read.num_tokens}
            if read.rows is not None:
                fields |= {"ranges": read.row_ranges, "layers": read.layers, "digests": self._digests(read)}
            self.log.write(of=call, code="OK", status=read.status, **fields)

    def _digests(self, read: rr.SampleRows) -> list[str]:
        made, first = [], 0
        for begin, end in read.row_ranges:
            made += rows.digests(read.rows[first : first + end - begin], begin)
            first += end - begin
        return made

    def audit(self) -> None:
        """Reads the last samples of all workers that still exist."""
        run = self.open(RUN)
        for other in range(self._workers):
            last, n = (int(number) for number in self._progress[other])
            for generation in range(last + 1):
                names = [f"w{other}.{generation}/{i}" for i in range(max(0, n - AUDITED), n + 1)]
                for i in range(0, len(names), 50):
                    self._read(run, names[i : i + 50], None)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    number, generation = int(sys.argv[2]), int(sys.argv[3])
    os.environ["ROUTING_REPLAY_TRANSPORT"] = sys.argv[4]
    name = "audit" if "audit" in sys.argv[5:] else f"worker-{number}.{generation}"
    log = Path(config["logs"], f"{name}.jsonl")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    # The log file shows that SIGTERM is handled from now on.
    worker = Worker(config, number, generation, Log(log), stopped)
    if name == "audit":
        worker.audit()
        return
    reader = threading.Thread(target=worker.read)
    reader.start()
    worker.write()
    reader.join()
    worker.client.close(FLUSH_TIMEOUT)


if __name__ == "__main__":
    main()
