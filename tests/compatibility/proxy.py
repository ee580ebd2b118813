"""Stands between clients and a server and writes down every byte of every call."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import grpc
from messages import SERVICE
from wire_log import Event

OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
STREAMS = {"Append": (True, True), "Read": (False, True)}  # Of requests, of answers; all others: neither.
DETAILS = "grpc-status-details-bin"


def details_of(error: grpc.RpcError) -> bytes:
    return dict(error.trailing_metadata() or ()).get(DETAILS, b"")


def headers(authorization: str) -> list[tuple[str, str]]:
    return [("authorization", authorization)] if authorization else []


def serve(behaviour: Any) -> tuple[grpc.Server, str]:
    """A server on a free port of the loopback interface.

    behaviour(method, requests, context): an iterator of answers
    """
    server = grpc.server(futures.ThreadPoolExecutor(32), (_Handler(behaviour),), options=OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def fail(context: Any, code: int, message: str, details: bytes) -> None:
    if details:
        context.set_trailing_metadata(((DETAILS, details),))
    context.abort(next(each for each in grpc.StatusCode if each.value[0] == code), message)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, behaviour: Any) -> None:
        self._behaviour = behaviour

    def service(self, details: Any) -> Any:
        method = details.method.removeprefix(SERVICE)
        many_in, many_out = STREAMS.get(method, (False, False))

        def answers(requests: Any, context: Any) -> Any:
            return self._behaviour(method, requests if many_in else iter((requests,)), context)

        if many_in:
            return grpc.stream_stream_rpc_method_handler(answers)
        if many_out:
            return grpc.unary_stream_rpc_method_handler(answers)

        def whole(request: Any, context: Any) -> Any:
            (answer,) = answers(request, context)  # To its end: how the call ended is said after the answer.
            return answer

        return grpc.unary_unary_rpc_method_handler(whole)


class Proxy:
    def __init__(self, endpoint: str) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._calls = 0
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)
        self._server, self.endpoint = serve(self._forward)

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def _log(self, *fields: Any, **more: Any) -> None:
        with self._lock:
            self.events.append(Event(*fields, **more))

    def _forward(self, method: str, requests: Any, context: Any) -> Any:
        with self._lock:
            call = self._calls
            self._calls += 1
            authorization = dict(context.invocation_metadata()).get("authorization", "")
            self.events.append(Event(call, "open", method, authorization=authorization))

        def logged() -> Any:
            try:
                for request in requests:
                    self._log(call, "send", bytes=request)
                    yield request
            except Exception:  # grpc raises one without a name when the client goes away.
                self._log(call, "cancel")
                raise
            self._log(call, "close")

        path = SERVICE + method
        upstream = self._channel.stream_stream(path)(logged(), timeout=60, metadata=headers(authorization))
        try:
            for answer in upstream:
                self._log(call, "receive", bytes=answer)
                yield answer
        except grpc.RpcError as error:
            code, details = error.code().value[0], details_of(error)
            self._log(call, "end", code=code, details=details)
            fail(context, code, error.details(), details)
        self._log(call, "end")
