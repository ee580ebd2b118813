"""Traces one append and one read with a debugger, and compares the path with the tables of ARCHITECTURE.md.

Usage: journeys_test.py BUILD [append|read]   (with a name: prints the path, function by function)

gdb sets a breakpoint on every function of the client library and of the server during the call; Python traces its own
functions. Each row of a table must name a file that the call entered and a function that it called there. Each file
that the call entered must have a row, or be in the table "Words that all steps use". Inlined functions and templates in
headers are not seen.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1]).resolve()
SERVER = BUILD / "bin/routing-replay-server"
LIBRARY = (BUILD / "lib/librouting_replay.so").resolve()
# The numbers of rows that the tables have now. They may become smaller, but not larger.
MOST_ROOMS = {"append": 17, "read": 21}
SERVED_IN = "server/service/"  # A thread that enters a source file in this folder serves a call.
PATIENCE = 60


def symbols(file):
    """Returns [address, kind, name] of each symbol that an object file or a program defines."""
    out = subprocess.run(["nm", "--defined-only", file], capture_output=True, text=True, check=True).stdout
    return [line.split(" ", 2) for line in out.splitlines()]


def demangled(names):
    out = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return out.splitlines()


def compiled():
    """Returns each object file of what is shipped, with the source files that it was compiled from: those that the file
    of a unity build includes, or the one of its name."""
    for folder in ("proto", "client", "server", "trainer_plugin"):
        for file in (BUILD / folder).rglob("*.o"):
            unity = file.with_suffix("")
            if unity.parent.name == "Unity":
                names = [Path(name).resolve() for name in re.findall(r'^#include "(.*)"$', unity.read_text(), re.M)]
                names = [str(name.relative_to(ROOT)) for name in names if BUILD not in name.parents]
            else:
                names = [re.sub(r"/CMakeFiles/[^/]*\.dir", "", str(file.relative_to(BUILD))).removesuffix(".o")]
            names = [name for name in names if name.endswith(".cc") and not name.endswith("_test.cc")]
            if names and "/generated/" not in names[0]:
                yield file, names


def defines(text, function):
    """True if a source file defines the function with this demangled name."""
    function = re.split(r"[(<\[]|::\{", function.replace("(anonymous namespace)::", ""))[0]
    function = re.escape(re.sub(r"\b[a-z_]+::", "", function))
    owner, _, name = function.rpartition("::")
    if re.search(rf"^(?![\s/#])(.*[^\w:]|.*\b[a-z_]+::)?{function}\(", text, re.M):
        return True
    inside = owner and re.search(rf"^ *(class|struct) (\w+::)*{owner.split('::')[-1]}\b[^;{{]*{{$", text, re.M)
    return bool(inside and re.search(rf"\b{name}\(", text[inside.end() :]))


def sources():
    """Maps the name of each function that only one source file defines to this file."""
    owners = defaultdict(set)
    for file, names in compiled():
        functions = [name for _, kind, name in symbols(file) if kind in "tT"]
        functions = [name for name in functions if ".cold" not in name and "_GLOBAL__sub_I" not in name]
        texts = {name: (ROOT / name).read_text() for name in names if len(names) > 1}
        for symbol, function in zip(functions, demangled(functions), strict=True):
            if function.startswith("std::"):  # A copy that the compiler made for one caller.
                continue
            owners[symbol].update(name for name in names if len(names) == 1 or defines(texts[name], function))
    return {name: next(iter(files)) for name, files in owners.items() if len(files) == 1}


class Follower:
    """A gdb that is attached to a process."""

    def __init__(self, pid, binary, served_in, owners, scratch):
        self._pid = pid
        self._hits = scratch / f"{pid}.hits"
        ready, plan, log = (scratch / f"{pid}.{name}" for name in ("ready", "plan", "log"))
        functions = [(int(at, 16), name, owners[name]) for at, _, name in symbols(binary) if name in owners]
        plan.write_text(
            json.dumps(
                {
                    "binary": str(binary),
                    "served_in": served_in,
                    "functions": functions,
                    "ready": str(ready),
                    "hits": str(self._hits),
                }
            )
        )
        script = Path(__file__).with_name("breakpoints.py")
        with open(log, "w") as out:
            self._gdb = subprocess.Popen(
                ["gdb", "-q", "-batch", "-nx", "-p", str(pid), "-x", script],
                env=os.environ | {"JOURNEY_PLAN": str(plan)}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        wait_for(ready, self._gdb, log)

    def end(self):
        """Ends the trace. Returns the functions that were called, as [thread, name, file]."""
        os.kill(self._pid, signal.SIGUSR2)
        self._gdb.wait(PATIENCE)
        hits = json.loads(self._hits.read_text())
        names = demangled([name for _, name, _ in hits])
        return [(thread, name, file) for (thread, _, file), name in zip(hits, names, strict=True)]


def wait_for(file, process, log):
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(log.read_text())
        time.sleep(0.01)


def walk(kind):
    """Traces one call. Returns the functions that it passes through, as (file, function), each for Python, the library
    and the server."""
    owners = sources()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        endpoint, log = scratch / "endpoint", scratch / "server.log"
        with open(log, "w") as out:
            server = subprocess.Popen([SERVER, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint], stderr=out)
        try:
            wait_for(endpoint, server, log)
            paths = [str(ROOT / folder / "python/src") for folder in ("client", "trainer_plugin")]
            environment = os.environ | {
                "ROUTING_REPLAY_ENDPOINT": endpoint.read_text().strip(),
                "ROUTING_REPLAY_LIBRARY_DIR": str(LIBRARY.parent),
                "PYTHONPATH": ":".join(paths),
            }
            with subprocess.Popen(
                [sys.executable, Path(__file__).with_name("one_call.py"), kind],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            ) as client:  # fmt: skip
                assert client.stdout.readline() == "ready\n"
                followers = [
                    Follower(process.pid, binary, served_in, owners, scratch)
                    for process, binary, served_in in ((client, LIBRARY, ""), (server, SERVER, SERVED_IN))
                ]
                client.stdin.write("go\n")
                client.stdin.flush()
                python = json.loads(client.stdout.readline())
                library, served = (follower.end() for follower in followers)
        finally:
            server.kill()
            server.wait()
    # Other work that the server does at the same time, such as health checks, runs in other threads, which are left
    # out.
    threads = {thread for thread, _, file in served if file.startswith(SERVED_IN)}
    return {
        "Python": [(str(Path(file).relative_to(ROOT)), name) for file, name in python],
        "library": [(file, name) for _, name, file in library],
        "server": [(file, name) for thread, name, file in served if thread in threads],
    }


def page(name):
    """Returns the part of ARCHITECTURE.md between `<!-- NAME -->` and `<!-- end -->`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return text.split(f"<!-- {name} -->", 1)[1].split("<!-- end -->", 1)[0]


def rooms(kind):
    """Returns (number, file, function) of each row of a journey's table. The number is the room: the step of the
    journey."""
    return re.findall(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", page(f"journey: {kind}"), re.M)


def obstacle():
    """Returns why this machine cannot run the test, or None if it can."""
    if shutil.which("gdb") is None:
        return "there is no gdb"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() != 0 and scope.exists() and scope.read_text().strip() != "0":
        return f"gdb may not attach to programs: {scope} is not 0"
    return None


class JourneyTest(unittest.TestCase):
    def check(self, kind):
        called = [place for process in walk(kind).values() for place in process]
        rows = rooms(kind)
        words = tuple(re.findall(r"`([^`]+)`", page("words")))
        entered = {file for file, _ in called}
        listed = {file for _, file, _ in rows}
        self.assertEqual(sorted(file for file in entered - listed if not file.startswith(words)), [], "have no row")
        self.assertEqual(sorted(listed - entered), [], "were not entered")
        for _, file, function in rows:
            names = [name for place, name in called if place == file]
            self.assertTrue(any(function in name for name in names), f"{file}: {function} is not among {names}")
        self.assertLessEqual(len({room for room, _, _ in rows}), MOST_ROOMS[kind])

    def test_files_are_there(self):
        named = re.findall(r"`([a-z_]+/[\w/.-]*)`", (ROOT / "ARCHITECTURE.md").read_text())
        tops = ["", *(f"{top}/" for top in ("proto", "client", "server", "trainer_plugin"))]
        self.assertEqual([name for name in named if not any((ROOT / (top + name)).exists() for top in tops)], [])

    def test_append(self):
        self.check("append")

    def test_read(self):
        self.check("read")


if why := obstacle():
    print(f"skipped: {why}")
    sys.exit(77)
if len(sys.argv) > 2:
    for process, places in walk(sys.argv[2]).items():
        print(process)
        by_file = defaultdict(list)
        for file, name in places:
            by_file[file].append(name)
        for file, names in by_file.items():
            print(f"  {file}: {', '.join(names)}")
else:
    unittest.main(argv=sys.argv[:1])
