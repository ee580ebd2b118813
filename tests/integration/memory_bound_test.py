"""Calls that cost their caller little and could cost the server much: the server's memory must stay far below what they
would take without limits, and other clients must be served meanwhile.

Usage: memory_bound_test.py SERVER DESCRIPTORS [CLASS]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from concurrent import futures
from pathlib import Path

try:
    import grpc
    from google.protobuf import message as _message  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from messages import SERVICE, Messages

SERVER = sys.argv[1]
M = Messages.read(Path(sys.argv[2]))
MIB = 1 << 20
PATIENCE = 120  # Seconds that the test waits for anything; a passing test needs far less.
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
LISTEN = ["--listen", "127.0.0.1:0", "--operations-listen", "127.0.0.1:0"]
RANGES = 4096  # Ranges of unrecorded rows that `put_ranges` puts by default.


class MemoryBoundTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        file = Path(directory, "endpoint")
        self.server = subprocess.Popen(
            [SERVER, "--memory-budget", "512MiB", "--endpoint-file", file, *LISTEN],
            stdout=self.enterContext(open(Path(directory, "said"), "wb")),
            stderr=subprocess.STDOUT,
        )
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.wait_for(file.exists)
        self.endpoint = file.read_text().strip()
        said = Path(directory, "said")
        self.wait_for(lambda: re.search(r"http://[\d.:]+", said.read_text()))
        self.operations = re.search(r"http://[\d.:]+", said.read_text())[0]
        self.channel = self.connect()
        self.others = self.connect()  # A separate client that shares no run with the attackers.
        self.open_run("others")
        self.put("others", "one")
        self.start = self.resident()

    def connect(self) -> grpc.Channel:
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(self.endpoint, options=options)
        self.addCleanup(channel.close)
        return channel

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, "it took too long")
            time.sleep(0.02)

    def call(self, method, request, channel=None, timeout=PATIENCE):
        send = (channel or self.channel).unary_unary(
            SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=M.answer(method).FromString,
        )
        return send(request, timeout=timeout)

    def rejected(self, method, request) -> grpc.RpcError:
        with self.assertRaises(grpc.RpcError) as caught:
            self.call(method, request)
        return caught.exception

    def open_run(self, run: str, **options) -> None:
        request = M.OpenRunRequest(run=run, options=M.RunOptions(codec=1, **options))
        request.geometry.num_layers = 1
        request.geometry.moe_layer_ids.append(0)
        request.geometry.num_experts.append(4)
        request.geometry.top_k.append(1)
        self.call("OpenRun", request)

    def put(self, run: str, sample: str, row: int = 0, rows: int = 1, unrecorded=(), **fields) -> None:
        """Puts rows whose recorded ids are all expert 1."""
        request = M.AppendRequest(run=run)
        append = request.append
        append.sample, append.row_start, append.rows = sample, row, rows
        for name, value in fields.items():
            setattr(append, name, value)
        recorded = rows
        for begin, end in unrecorded:
            append.unrecorded.add(begin=begin, end=end)
            recorded -= end - begin
        if recorded:
            append.tensor.encoding = M.TensorPayload.RAW
            append.tensor.dtype = M.TensorPayload.U8
            append.tensor.shape.extend([recorded, 1, 1])
            request.payload = b"\1" * recorded
        return self.call("Put", request)

    def put_ranges(self, run: str, sample: str, row: int = 0, ranges: int = RANGES) -> None:
        """Puts 2 * ranges rows, of which every second one is unrecorded, starting with the first: so there are as many
        ranges as possible."""
        holes = [(row + 2 * i, row + 2 * i + 1) for i in range(ranges)]
        return self.put(run, sample, row, 2 * ranges, holes)

    def resident(self) -> int:
        for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is gone")

    def highest(self) -> int:
        """Returns the peak of the server's resident memory so far, in bytes."""
        for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is gone")

    def check(self, before: int, mebibytes: int) -> None:
        grown = self.highest() - before
        print(f"{self.id().split('.')[-1]}: grew by {grown / MIB:.0f} MiB, bound {mebibytes} MiB", file=sys.stderr)
        self.assertLess(grown, mebibytes * MIB)
        self.others_are_served()

    def others_are_served(self) -> None:
        found = self.call("Stat", M.StatRequest(run="others", samples=["one"]), self.others).found
        self.assertEqual(found[0].committed_rows, 1)
        self.assertEqual(
            [each.sample for each in self.call("List", M.ListRequest(run="others"), self.others).samples], ["one"]
        )
        read = self.others.unary_stream(
            SERVICE + "Read",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=M.ReadResponse.FromString,
        )
        answers = list(read(M.ReadRequest(run="others", samples=[M.SampleRead(sample="one")]), timeout=PATIENCE))
        self.assertEqual(b"".join(answer.payload for answer in answers), b"\1")

    def at_once(self, count: int, ask) -> list:
        """Calls ask(0), …, ask(count - 1) at the same time. Returns for each the answer, or the status code if it was
        rejected."""

        def one(index):
            try:
                return ask(index)
            except grpc.RpcError as error:
                return error.code()

        with futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    def test_stat_of_one_sample_again_and_again(self) -> None:
        self.open_run("r")
        self.put_ranges("r", "a")
        before = self.resident()
        answer = self.call("Stat", M.StatRequest(run="r", samples=["a", "b"] * 4000))
        self.check(before, 200)
        self.assertEqual([len(state.unrecorded) for state in answer.found], [RANGES])

    def test_stat_of_samples_of_which_much_is_known(self) -> None:
        self.open_run("r")
        names = [f"s{i:03}" for i in range(200)]
        for name in names:
            self.put_ranges("r", name)
        before = self.resident()
        rejected = self.rejected("Stat", M.StatRequest(run="r", samples=names))
        self.assertEqual(rejected.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("split the request", rejected.details())
        some = self.at_once(
            16, lambda i: self.call("Stat", M.StatRequest(run="r", samples=names[10 * i : 10 * i + 10]))
        )
        answers = [each for each in some if each != grpc.StatusCode.RESOURCE_EXHAUSTED]
        self.assertTrue(answers)
        for answer in answers:
            self.assertEqual([len(state.unrecorded) for state in answer.found], [RANGES] * 10)
        self.check(before, 200)

    def test_requests_that_are_small_and_long(self) -> None:
        self.open_run("r")
        before = self.resident()
        many = [
            ("Stat", M.StatRequest(run="r", samples=["a"] * 1_300_000)),
            ("Stat", M.StatRequest(run="r", handles=range(350_000))),
            ("Stat", M.StatRequest(run="r", samples=[f"n{i}" for i in range(16_385)])),
            ("Release", M.ReleaseRequest(run="r", samples=["a"] * 1_300_000)),
        ]
        codes = self.at_once(8, lambda i: self.call(*many[i % 4]))
        self.check(before, 200)
        self.assertEqual(codes, [grpc.StatusCode.RESOURCE_EXHAUSTED] * 8)
        answer = self.call("Stat", M.StatRequest(run="r", samples=[f"n{i}" for i in range(16_384)]))
        self.assertEqual(len(answer.found), 0)

    def test_list(self) -> None:
        self.open_run("r")
        names = [f"s{i:03}" for i in range(300)]
        for name in names:
            self.put_ranges("r", name)
        before = self.resident()

        sizes = []

        def everything(_) -> list[str]:
            found, token = [], ""
            while True:
                page = self.call("List", M.ListRequest(run="r", page_token=token))
                sizes.append(page.ByteSize())
                found += [state.sample for state in page.samples]
                token = page.next_page_token
                if not token:
                    return found

        lists = self.at_once(8, everything)
        self.check(before, 200)
        for found in [everything(0), *lists]:
            if found != grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.assertEqual(found, names)
        self.assertLess(max(sizes), 4 * MIB)

    def test_what_is_known_of_a_sample_has_a_limit(self) -> None:
        self.open_run("r")
        self.put_ranges("r", "holes", ranges=65536)
        with self.assertRaises(grpc.RpcError) as caught:
            self.put_ranges("r", "holes", row=131072, ranges=1)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.put("r", "holes", row=131072).committed_rows, 131073)
        for version in range(4096):
            self.put("r", "versions", row=version, weight_version=version)
        with self.assertRaises(grpc.RpcError) as caught:
            self.put("r", "versions", row=4096, weight_version=4096)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.put("r", "versions", row=4096, weight_version=4095).committed_rows, 4097)

    def test_reads_whose_clients_take_nothing(self) -> None:
        self.open_run("r")
        self.put_ranges("r", "a", ranges=65536)
        before = self.resident()
        read = self.channel.unary_stream(
            SERVICE + "Read",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=M.ReadResponse.FromString,
        )
        calls = [read(M.ReadRequest(run="r", samples=[M.SampleRead(sample="a")])) for _ in range(120)]
        for call in calls:
            self.addCleanup(call.cancel)
        # Waits until the server has counted all reads. Nobody receives the answers, so each call that was not rejected
        # keeps its answer in memory.
        self.wait_for(lambda: self.metric("routing_replay_reads_total") >= 120)
        self.others_are_served()
        self.check(before, 450)

    def test_memory_is_given_back(self) -> None:
        self.open_run("r", block_rows=4096)
        rows = 1 << 20
        for i in range(300):
            self.put("r", f"s{i}", rows=rows)
        self.assertGreater(self.resident(), self.start + 250 * MIB)
        self.call("DropRun", M.DropRunRequest(run="r"))
        self.wait_for(lambda: self.resident() < self.start + 100 * MIB)
        self.others_are_served()

    def test_credit_of_clients_that_go_is_given_back(self) -> None:
        self.open_run("r")
        append = self.channel.stream_stream(
            SERVICE + "Append", request_serializer=lambda message: message.SerializeToString()
        )
        for _ in range(100):
            requests = (M.AppendRequest(run="r", want_bytes=1 << 18) for _ in range(50))
            append(requests).cancel()
        self.others_are_served()
        self.wait_for(lambda: self.metric("routing_replay_memory_credit_bytes") == 0)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.operations}/metrics", timeout=PATIENCE) as page:
            (value,) = re.findall(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(value)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
