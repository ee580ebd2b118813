"""gRPC calls as bytes: recorded between a client and a server, and replayed to either."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.so_reuseport", 0)]
ASKED, ANSWERED = "asked", "answered"
Event = tuple[str, bytes]  # ASKED or ANSWERED, and the message. A call lists its events in the order of time.


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, behave: Any) -> None:
        self._behave = behave

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        def call(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            return self._behave(details.method, method, messages, context)

        return grpc.stream_stream_rpc_method_handler(call)  # Serves calls of every kind.


class _Between:
    """A server of raw bytes on a free port."""

    def __init__(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[_Handler(self._behave)], options=OPTIONS)
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Any:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(1).wait()

    def _behave(self, path: str, method: str, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        raise NotImplementedError


class Recorder(_Between):
    """Forwards every call to a server, and keeps requests and answers."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)

    def _behave(self, path: str, method: str, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        events: list[Event] = []
        self.calls.append({"method": method, "events": events})

        def asked() -> Iterator[bytes]:
            for message in messages:
                events.append((ASKED, message))
                yield message

        try:
            for message in self._channel.stream_stream(path)(asked()):
                events.append((ANSWERED, message))
                yield message
        except grpc.RpcError as error:
            # A client cancels its stream of appends at its end, when all of them are acknowledged.
            assert error.code() == grpc.StatusCode.CANCELLED, error

    def write(self, path: Path) -> None:
        lines = []
        for call in self.calls:
            events = [(kind, base64.b64encode(message).decode()) for kind, message in call["events"]]
            lines.append(json.dumps({"method": call["method"], "events": events}))
        path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    for call in calls:
        call["events"] = [(kind, base64.b64decode(message)) for kind, message in call["events"]]
    return calls


class OldServer(_Between):
    """A server that gives recorded answers. The n-th call of a method gets the answers of that method's n-th recorded
    call. If there are more calls than were recorded, they get the answers of the last one."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._calls = calls
        self._next: dict[str, int] = {}

    def _behave(self, path: str, method: str, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._lock:
            known = [call for call in self._calls if call["method"] == method]
            index = self._next.get(method, 0)
            self._next[method] = index + 1
        if not known:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"nothing is recorded of {method}")
        for kind, message in known[min(index, len(known) - 1)]["events"]:
            if kind == ANSWERED:
                yield message
            else:
                next(messages, None)
        for _ in messages:  # Waits until the client ends the call.
            pass


def ask_again(endpoint: str, call: dict[str, Any], service: str) -> list[bytes]:
    """Repeats a recorded call of a client: sends its messages, and waits for an answer wherever the client got one.
    Returns the answers. Raises grpc.RpcError."""
    answers: list[bytes] = []
    more = threading.Semaphore(0)

    def asked() -> Iterator[bytes]:
        for kind, message in call["events"]:
            if kind == ASKED:
                yield message
            elif not more.acquire(timeout=20):
                return

    with grpc.insecure_channel(endpoint, options=OPTIONS) as channel:
        for message in channel.stream_stream(f"{service}{call['method']}")(asked(), timeout=60):
            answers.append(message)
            more.release()
    return answers
