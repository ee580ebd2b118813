"""Says to a server of today what was said to one of a recorded version, in the recorded order."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from differences import Names, differences, read_outcome
from messages import SERVICE, Messages
from proxy import OPTIONS, details_of, headers
from wire_log import Call, Event

PATIENCE = 60.0  # Seconds for an answer; no test waits for this in vain.


@contextlib.contextmanager
def server(build: Path, *flags: str) -> Iterator[str]:
    """A server of the build on a free port: its endpoint. It ends as after SIGTERM, with everything stored."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "endpoint")
        command = [build / "bin/routing-replay-server", "--listen", "127.0.0.1:0", "--endpoint-file", file, *flags]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + PATIENCE
            while not file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no server: {process.stderr.read() if process.poll() is not None else 'slow'}")
                time.sleep(0.01)
            yield file.read_text().strip()
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE)
            process.kill()


@contextlib.contextmanager
def server_of(build: Path, scenario: Any, part: str) -> Iterator[str]:
    """A server as a part of a scenario wants it."""
    with tempfile.TemporaryDirectory() as directory:
        flags = []
        if part == "guarded":
            file = Path(directory, "tokens.yaml")
            file.write_text(scenario.TOKEN_FILE)
            flags = ["--token-file", str(file)]
        with server(build, *flags) as endpoint:
            yield endpoint


def load_scenario(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("scenario", folder / "scenario.py")
    assert spec is not None and spec.loader is not None
    scenario = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scenario)
    return scenario


class Requests:
    """What a stream sends, as it is put in."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue()

    def put(self, request: bytes) -> None:
        self._queue.put(request)

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Requests:
        return self

    def __next__(self) -> bytes:
        request = self._queue.get(timeout=PATIENCE)
        if request is None:
            raise StopIteration
        return request


class _Live:
    """A call under way: what came back so far."""

    def __init__(self, channel: grpc.Channel, method: str, authorization: str) -> None:
        self.method = method
        self.answers: list[bytes] = []
        self.code, self.details = 0, b""
        self._requests = Requests()
        self._changed = threading.Condition()
        self._ended = False
        # Over the wire a call with one request is a stream with one.
        self._call = channel.stream_stream(SERVICE + method)(
            self._requests, timeout=PATIENCE, metadata=headers(authorization)
        )
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def send(self, request: bytes) -> None:
        self._requests.put(request)

    def close(self) -> None:
        self._requests.close()

    def cancel(self) -> None:
        self._call.cancel()

    def wait(self, enough: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended or enough(self.answers), PATIENCE):
                raise TimeoutError(f"{self.method}: {len(self.answers)} answers, and no more come")

    def join(self) -> None:
        self.wait(lambda answers: False)
        self._requests.close()
        self._thread.join()

    def _receive(self) -> None:
        try:
            for answer in self._call:
                with self._changed:
                    self.answers.append(answer)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.code, self.details = error.code().value[0], details_of(error)
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Replay:
    """The recorded calls beside those of today."""

    def __init__(self, messages: Messages, endpoint: str) -> None:
        self._messages = messages
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)
        self._names = Names()
        self._recorded: dict[int, Call] = {}
        self._live: dict[int, _Live] = {}
        self.differences: list[str] = []
        self.calls = 0

    def play(self, events: list[Event]) -> None:
        for event in events:
            if event.event == "open":
                self._recorded[event.call] = Call(event.call, event.method)
                self._live[event.call] = _Live(self._channel, event.method, event.authorization)
            recorded, live = self._recorded[event.call], self._live[event.call]
            recorded.add(event)
            if event.event == "send":
                live.send(self._names.in_request(event.bytes))
            elif event.event == "close":
                live.close()
            elif event.event == "cancel":
                live.cancel()
            elif event.event == "receive" and recorded.method == "Append":
                live.wait(functools.partial(self._reached, self._progress(recorded.answers)))
            elif event.event == "end":
                live.join()
                self._compare(recorded, live)
                self.calls += 1
        self._channel.close()

    def _reached(self, then: int, answers: list[bytes]) -> bool:
        return self._progress(answers) >= then

    def _progress(self, answers: list[bytes]) -> int:
        """Acks so far: how they and credit share messages is the server's choice."""
        read = [self._messages.AppendResponse.FromString(each) for each in answers]
        granted = any(each.HasField("credit") for each in read)
        return sum(each.HasField("ack") for each in read) * 2 + granted

    def _compare(self, recorded: Call, live: _Live) -> None:
        where = f"call {recorded.number} {recorded.method}"
        ended = (recorded.code, bool(recorded.details)), (live.code, bool(live.details))
        if ended[0] != ended[1] and not recorded.cancelled:
            self.differences.append(f"{where}: ended with {recorded.code}, now with {live.code}")
            return
        if recorded.details and not recorded.cancelled:
            before, now = (self._messages.error_detail(each.details) for each in (recorded, live))
            self.differences += [f"{where} {each}" for each in differences(before, now, self._names, "error")]
        read = self._messages.answer(recorded.method).FromString
        before, now = ([read(each) for each in side.answers] for side in (recorded, live))
        if recorded.method == "Append":
            before, now = ([each.ack for each in side if each.HasField("ack")] for side in (before, now))
        if recorded.method == "Read":
            (before, *cuts), (now, *cuts_now) = read_outcome(before), read_outcome(now)
            if cuts != cuts_now:
                self.differences.append(f"{where}: other cuts or other bytes")
        if len(before) != len(now):
            self.differences.append(f"{where}: {len(before)} answers, now {len(now)}")
        for index, (one, other) in enumerate(zip(before, now, strict=False)):
            self.differences += [f"{where} {each}" for each in differences(one, other, self._names, f"[{index}]")]
