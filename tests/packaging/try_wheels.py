"""Installs wheels into an empty virtual environment and runs the READMEs' Python examples with nothing else.

    try_wheels.py --wheels DIR [--with PACKAGE==VERSION …] [--kernels]

Tests the Python interpreter that runs it. Each example runs in a process of its own, and again in a forked child of a
process that already ran it. Then the client tests that depend most on the interpreter run: those of the extension,
forks and exits. Needs a package index; exit status 77 if none can be reached. --with: packages to install beside the
wheels, for example grpcio and another major version of protobuf. --kernels: the wheel must also hold the CUDA kernels.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READMES = (ROOT / "README.md", ROOT / "client/README.md")
ENGINES = ROOT / "tests" / "integration" / "engines"
CLIENT_TESTS = ROOT / "client" / "python" / "tests"
PACKAGES = ("routing_replay", "routing_replay_server")
SKIPPED = 77
# A program that runs a command and provides what an example needs: a server, and stand-ins for engines that answer over
# HTTP.
AROUND = """
import json, os, subprocess, sys, routing_replay
sys.path.insert(0, sys.argv[1])
import fake_engines
with open("config.json", "w") as file:
    json.dump(fake_engines.CONFIG, file)
with routing_replay.local_server(), fake_engines.FakeVllm() as vllm, fake_engines.FakeSglang() as sglang:
    os.environ.update(MODEL_CONFIG=file.name, VLLM_URL=vllm.url, SGLANG_URL=sglang.url)
    subprocess.run(sys.argv[2:], check=True)
"""
# A program that runs the given code, and then forks and runs it again in the child.
TWICE = """
import os, signal, sys
code = compile(sys.argv[1], "README", "exec")
exec(code, {"__name__": "__main__"})
sys.stdout.flush()
child = os.fork()
if child == 0:
    signal.alarm(120)
    exec(code, {"__name__": "__main__"})
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(f"the child ended with {status}" if status else 0)
"""
# Importing both packages must load none of these modules: the packages must work without them.
ALONE = """
import sys, routing_replay, routing_replay_trainer
assert not {"grpc", "google.protobuf", "torch"} & set(sys.modules)
"""
# Checks that the kernels are in the wheel. Without a driver for the GPU, they must load, too, and the error must not
# name the library of the kernels as what is missing.
KERNELS = """
from routing_replay import errors
from routing_replay_trainer import _core
try:
    _core.cuda_library(0)
    print("kernels: they run here")
except errors.FailedPreconditionError as error:
    assert error.field != "cuda.library", error
    print("kernels:", error)
"""


def snippets() -> list[str]:
    text = "\n".join(readme.read_text() for readme in READMES)
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


class Environment:
    """A virtual environment that inherits no Python settings of the caller."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        self._bin = directory / "bin"
        hidden = ("PYTHON", "ROUTING_REPLAY", "VIRTUAL_ENV", "RR_", "LD_PRELOAD")
        self._variables = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        self._variables["PATH"] = f"{self._bin}:{self._variables['PATH']}"

    def pip(self, *arguments: object) -> int:
        command = [self._bin / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
        return subprocess.run(command, env=self._variables, check=False).returncode

    def run(self, *command: str) -> str:
        """Runs a command in an empty folder and returns its output."""
        with tempfile.TemporaryDirectory() as directory:
            program = [str(self._bin / command[0]), *command[1:]]
            done = subprocess.run(
                program, env=self._variables, cwd=directory, stdout=subprocess.PIPE, text=True, timeout=300, check=False
            )
        if done.returncode:
            sys.exit(f"{' '.join(command)[:60]!r} ended with {done.returncode}")
        return done.stdout


def play(environment: Environment) -> None:
    blocks = snippets()
    assert len(blocks) >= 3, f"{READMES} have only {len(blocks)} blocks of Python"
    for number, block in enumerate(blocks, 1):
        environment.run("python", "-c", AROUND, str(ENGINES), "python", "-c", block)
        environment.run("python", "-c", AROUND, str(ENGINES), "python", "-c", TWICE, block)
        print(f"block {number} of {len(blocks)}: ran, and again after fork", flush=True)


# A program that runs a test file, which can import the modules in its own folder.
RUN_TEST = """
import os, runpy, sys
os.environ["ROUTING_REPLAY_SERVER"], file = sys.argv[1:]
sys.path.insert(0, os.path.dirname(file))
sys.argv = [file]
runpy.run_path(file, run_name="__main__")
"""


def run_client_tests(environment: Environment) -> None:
    where = "import routing_replay_server as s; print(s.program('routing-replay-server'))"
    server = environment.run("python", "-c", where).strip()
    for name in ("append_extension_test.py", "end_test.py", "fork_test.py"):
        environment.run("python", "-W", "ignore", "-c", RUN_TEST, server, str(CLIENT_TESTS / name))
        print(f"{name}: passed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--with", dest="beside", action="append", default=[], metavar="PACKAGE==VERSION")
    parser.add_argument("--kernels", action="store_true")
    options = parser.parse_args()
    wheels = [next(options.wheels.glob(f"{package}-*.whl")) for package in PACKAGES]
    with tempfile.TemporaryDirectory(prefix="try-wheels-") as directory:
        environment = Environment(Path(directory))
        if environment.pip("download", "--no-deps", "--dest", directory, "packaging"):
            print("no package index can be reached")
            return SKIPPED
        if environment.pip("install", *wheels, *options.beside):
            sys.exit("pip install failed")
        environment.run("python", "-c", ALONE)
        if options.kernels:
            print(environment.run("python", "-c", KERNELS).strip(), flush=True)
        print(
            environment.run("routing-replay-server", "--version").strip(), environment.run("rrctl", "--version").strip()
        )
        versions = "import sys, numpy; print('Python', sys.version.split()[0], 'numpy', numpy.__version__)"
        print(environment.run("python", "-c", versions).strip(), flush=True)
        play(environment)
        run_client_tests(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
