"""Runs the client in one process with other libraries that contain gRPC, protobuf or Abseil: in both import orders and
scopes."""

import itertools
import os
import subprocess
import sys
import unittest
from importlib import metadata
from pathlib import Path

from support import Server

LIVE = Path(__file__).with_name("live.py")
NEIGHBOURS = sys.argv[1:]
PACKAGE = {"flight": "pyarrow"}


class NeighboursTest(unittest.TestCase):
    def test_at_work_together(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        environment = os.environ | {"ROUTING_REPLAY_ENDPOINT": server.endpoint}
        for name, order, scope in itertools.product(NEIGHBOURS, ("first", "second"), ("local", "global")):
            with self.subTest(name=name, version=metadata.version(PACKAGE.get(name, name)), order=order, scope=scope):
                ended = subprocess.run(
                    [sys.executable, LIVE, name, order, scope],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=300,
                )
                self.assertEqual((ended.returncode, ended.stdout.splitlines()[-1:]), (0, ["ok"]), ended.stdout[-3000:])
                print(name, metadata.version(PACKAGE.get(name, name)), order, scope, "ok", flush=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
