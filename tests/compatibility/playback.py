"""A server that knows nothing but the answers of a recorded one.

It gives to each call the answers of the next recorded call of the same method about the same run and sample; when those
are used up, of the last one. On a stream the answers that came after the n-th request come after the n-th.
"""

from __future__ import annotations

import threading
from typing import Any

import proxy
from messages import Messages
from wire_log import Call


class Playback:
    def __init__(self, messages: Messages, recorded: list[Call]) -> None:
        self._messages = messages
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, ...], list[Call]] = {}
        for call in recorded:
            if call.requests:
                self._calls.setdefault(self._key(call.method, call.requests[0]), []).append(call)
        self.unknown: list[str] = []  # Calls that were not recorded.
        self._server, self.endpoint = proxy.serve(self._answer)

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _key(self, method: str, request: bytes) -> tuple[str, ...]:
        asked = self._messages.request(method).FromString(request)
        sample = getattr(asked, "sample", "") or getattr(getattr(asked, "append", None), "sample", "")
        named = [getattr(each, "sample", each) for each in getattr(asked, "samples", ())]
        return (method, getattr(asked, "run", ""), sample, *named)

    def _next(self, method: str, request: bytes) -> Call | None:
        key = self._key(method, request)
        with self._lock:
            left = self._calls.get(key)
            if not left:
                self.unknown.append(" ".join(key))
                return None
            return left.pop(0) if len(left) > 1 else left[0]

    def _answer(self, method: str, requests: Any, context: Any) -> Any:
        call = None
        for sent, request in enumerate(requests, 1):
            call = call or self._next(method, request)
            if call is None:
                proxy.fail(context, 12, f"{method}: no such call was recorded", b"")
                return
            for answer, after in zip(call.answers, call.answers_after, strict=True):
                if after == sent:
                    yield answer
        if call is not None and call.code and not call.cancelled:
            proxy.fail(context, call.code, "as recorded", call.details)
