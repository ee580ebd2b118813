"""An append does not wait for the answer to the one before: many appends cost few round trips."""

from __future__ import annotations

import queue
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from support import ServerTest, random_routes

from routing_replay import Client, Geometry

SAMPLES = 1000
QUIET = 0.3  # A client that has sent nothing for this many seconds is assumed to wait for answers.


class HoldingProxy(grpc.GenericRpcHandler):
    """A proxy in front of a server, which counts round trips. It holds the answers of a stream back until the client
    waits for them, then passes on all that have arrived: this counts as one round trip."""

    def __init__(self, endpoint: str) -> None:
        self.round_trips = 0
        self._channel = grpc.insecure_channel(endpoint)
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(self,))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None)
        self._channel.close()

    def service(self, details: Any) -> Any:
        method = details.method
        if method.endswith("/Append"):
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: self._hold(method, requests))
        call = self._channel.unary_unary(method)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: call(request, timeout=30))

    def _hold(self, method: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        newest = [time.monotonic()]
        answers: queue.Queue[bytes | None] = queue.Queue()

        def note() -> Iterator[bytes]:
            for request in requests:
                newest[0] = time.monotonic()
                yield request

        def collect() -> None:
            try:
                for answer in self._channel.stream_stream(method)(note()):
                    answers.put(answer)
            finally:
                answers.put(None)

        threading.Thread(target=collect, daemon=True).start()
        while (answer := answers.get()) is not None:
            while (rest := newest[0] + QUIET - time.monotonic()) > 0:
                time.sleep(rest)
            self.round_trips += 1
            yield answer
            while not answers.empty():
                if (answer := answers.get()) is None:
                    return
                yield answer


class PipeliningTest(ServerTest):
    def test_a_thousand_small_samples_cost_few_round_trips(self) -> None:
        proxy = HoldingProxy(self.server.endpoint)
        self.addCleanup(proxy.stop)
        routes = random_routes(np.random.default_rng(5), 20, 4, 32, 4)
        with Client(proxy.endpoint) as client:
            run = client.run(self.run_name, Geometry(num_layers=4, num_experts=32, top_k=4))
            for i in range(SAMPLES):
                run.append(f"s/{i}", routes, tokens=np.arange(20) + i, seal=True)
            run.flush()
            self.assertEqual(run.metrics()["acknowledged"], SAMPLES)
            self.assertLess(proxy.round_trips, 10)
            self.assertTrue(run.stat(f"s/{SAMPLES - 1}").sealed)


if __name__ == "__main__":
    unittest.main()
