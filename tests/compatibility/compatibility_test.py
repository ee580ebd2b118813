"""This version must read what earlier versions have written. Each folder of recorded/ is of one version (record.py).

Usage: compatibility_test.py BUILD

calls.jsonl     calls of a client and answers of a server over gRPC. The calls are replayed to this server, and the
                answers to this client
rocksdb.tar.xz  the folder of a RocksDB store
exported        exported runs
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    import numpy as np  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BUILD = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client/python/src"), str(ROOT / "tests/integration")]
os.environ |= {"ROUTING_REPLAY_LIBRARY_DIR": str(BUILD / "lib"), "ROUTING_REPLAY_TRANSPORT": "grpc"}

import calls  # noqa: E402
import routing_replay as rr  # noqa: E402
import scene  # noqa: E402
from messages import SERVICE, Messages  # noqa: E402

SERVER = BUILD / "bin/routing-replay-server"
RECORDED = sorted(Path(__file__).with_name("recorded").iterdir())


class CompatibilityTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="compatibility-test-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def check(self, endpoint):
        with rr.Client(endpoint) as client:
            scene.check(client)

    def test_there_are_recordings(self):
        self.assertTrue(RECORDED)

    def test_this_server_answers_an_earlier_client(self):
        messages = Messages.read(BUILD / "lib/routing_replay.binpb")

        def payloads(answers):
            return b"".join(messages.ReadResponse.FromString(answer).payload for answer in answers)

        for recorded in RECORDED:
            with self.subTest(recorded.name), scene.Server(SERVER, self.directory) as endpoint:
                reads = 0
                for call in calls.read(recorded / "calls.jsonl"):
                    answers = calls.ask_again(endpoint, call, SERVICE)
                    before = [message for kind, message in call["events"] if kind == calls.ANSWERED]
                    if call["method"] == "Read":
                        reads += 1
                        self.assertEqual(payloads(answers), payloads(before))
                    self.assertEqual(bool(answers), bool(before), call["method"])
                self.assertEqual(reads, 8)
                self.check(endpoint)

    def test_this_client_reads_and_writes_with_an_earlier_server(self):
        for recorded in RECORDED:
            server = calls.OldServer(calls.read(recorded / "calls.jsonl"))
            with self.subTest(recorded.name), server, rr.Client(server.endpoint) as client:
                scene.write(client)
                scene.check(client)

    def test_a_store_of_rocksdb_is_opened(self):
        for recorded in RECORDED:
            with self.subTest(recorded.name), tarfile.open(recorded / "rocksdb.tar.xz") as archive:
                archive.extractall(self.directory / recorded.name)
                store = self.directory / recorded.name / "store"
                with scene.Server(SERVER, self.directory, "--store", f"rocksdb:{store}") as endpoint:
                    self.check(endpoint)

    def test_exported_runs_are_imported(self):
        for recorded in RECORDED:
            with self.subTest(recorded.name), scene.Server(SERVER, self.directory) as endpoint:
                for run in scene.GEOMETRIES:
                    command = [BUILD / "bin/rrctl", "--endpoint", endpoint, "import", recorded / "exported" / run]
                    subprocess.run(command, check=True, capture_output=True)
                self.check(endpoint)


if __name__ == "__main__":
    unittest.main()
