"""Runs every example of client/README.md: Python, C++ and the rrctl session.

Usage: client_readme_test.py SERVER RRCTL CPP_EXAMPLES
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration" / "engines"))
import fake_engines  # noqa: E402
import routing_replay  # noqa: E402

SERVER, RRCTL, CPP = sys.argv[1:4]
README = (ROOT / "client" / "README.md").read_text()
PATIENCE = 120  # Seconds that the test waits for anything; a passing test needs far less.


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


class ClientReadmeTest(unittest.TestCase):
    def setUp(self):
        os.environ["ROUTING_REPLAY_SERVER"] = SERVER
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        server = self.enterContext(routing_replay.local_server())
        self.environment = os.environ | {"ROUTING_REPLAY_ENDPOINT": server.endpoint}

    def run_here(self, *words, **environment):
        environment = self.environment | environment
        done = subprocess.run(
            words,
            check=False,
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        self.assertEqual(done.returncode, 0, f"{words[-1]}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_python(self):
        vllm, sglang = (self.enterContext(fake_engines.FakeVllm()), self.enterContext(fake_engines.FakeSglang()))
        config = Path(self.directory, "config.json")
        config.write_text(json.dumps(fake_engines.CONFIG))
        around = {"MODEL_CONFIG": str(config), "VLLM_URL": vllm.url, "SGLANG_URL": sglang.url}
        self.assertGreaterEqual(len(blocks("python")), 4)
        for block in blocks("python"):
            run = re.search(r'\.run\("([\w-]+)"', block)
            self.run_here(sys.executable, "-c", block, **around)
            if run:  # The run is dropped because other examples may use the name.
                self.run_here(RRCTL, "rm", run.group(1), "--all")

    def test_cpp(self):
        source = (Path(__file__).parent / "client_readme.cc").read_text()
        self.assertGreaterEqual(len(blocks("cpp")), 2)
        for block in blocks("cpp"):
            self.assertIn(block, source)
        self.run_here(CPP)

    def test_the_session_of_rrctl(self):
        script = "\n".join(["set -euo pipefail", *blocks("sh")])
        self.assertGreaterEqual(len(blocks("sh")), 5)
        path = f"{Path(RRCTL).parent}:{Path(sys.executable).parent}:{self.environment['PATH']}"
        # LD_PRELOAD, with a sanitizer's runtime, is only for Python: bash has its own malloc and crashes with it.
        shown = self.run_here("bash", "-c", script, PATH=path, LD_PRELOAD="")
        self.assertIn('"verdict":"ok"', shown)
        self.assertIn("['step1/1']", shown)
        self.assertTrue(Path(self.directory, "report.html").read_text().startswith("<!doctype html>"))
        self.assertEqual(self.run_here(RRCTL, "ls"), "[]\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
