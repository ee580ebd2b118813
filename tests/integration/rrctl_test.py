"""Runs the built rrctl as people and scripts do: on a terminal and through pipes.

Usage: rrctl_test.py SERVER RRCTL
"""

import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
from pathlib import Path

SERVER, RRCTL = sys.argv[1:3]
PATIENCE = 60  # Seconds that the test waits for anything; a passing test needs far less.


def npy(rows, layers, k, ids):
    """Returns the bytes of an .npy file with int32 ids [rows, layers, k] in C order."""
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({rows}, {layers}, {k}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(ids)}i", *ids)


def expert(row, layer, slot):
    return (7 * row + 3 * layer + slot) % 128


def rows_file(rows, layers, k):
    return npy(rows, layers, k, [expert(r, i, s) for r in range(rows) for i in range(layers) for s in range(k)])


reserved = []


def reserve_address():
    """Returns an address with a free port. The port stays reserved while this program runs, so a killed server can be
    started again on it."""
    reserved.append(socket.socket())
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        reserved[-1].setsockopt(socket.SOL_SOCKET, option, 1)
    reserved[-1].bind(("127.0.0.1", 0))
    return f"127.0.0.1:{reserved[-1].getsockname()[1]}"


class Server:
    def __init__(self, *flags):
        self.directory = tempfile.mkdtemp()
        file = Path(self.directory, "endpoint")
        flags = flags or ("--listen", reserve_address())
        self.process = subprocess.Popen([SERVER, "--endpoint-file", str(file), *flags])
        deadline = time.monotonic() + PATIENCE
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.endpoint = file.read_text().strip()

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory)


class Terminal:
    """A process that runs on its own pseudo-terminal."""

    def __init__(self, *words, rows=24, columns=200, **environment):
        env = os.environ | environment
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(words[0], words, env)
        self.text = ""

    def read(self, deadline):
        ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:  # The process has closed the terminal.
            data = b""
        self.text += data.decode().replace("\r\n", "\n")
        return bool(data)

    def end(self):
        """Waits for the process to end. Returns its output and exit code."""
        while self.read(time.monotonic() + PATIENCE):
            pass
        os.close(self.master)
        return self.text, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class RrctlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        os.environ["ROUTING_REPLAY_ENDPOINT"] = cls.server.endpoint
        cls.addClassCleanup(cls.server.stop)

    def run_rrctl(self, *words, code=0, stdin=None, **options):
        done = subprocess.run(
            [RRCTL, *words], check=False, input=stdin, capture_output=True, timeout=PATIENCE, **options
        )
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done.stdout.decode() if code == 0 else done.stderr.decode()

    def json(self, *words, **options):
        return json.loads(self.run_rrctl(*words, **options))

    def put(self, run, sample, rows, layers=2, k=4, *words):
        return self.json("put", run, sample, "-", "--experts", "128", *words, stdin=rows_file(rows, layers, k))

    def drop_at_end(self, run):
        self.addCleanup(self.run_rrctl, "rm", run, "--all")


class CommandsTest(RrctlTest):
    def test_a_sample_from_put_to_rm(self):
        self.drop_at_end("life")
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            file.write(rows_file(3, 2, 4))
            file.flush()
            put = self.json("put", "life", "a/0", file.name, "--experts", "128", "--group", "7")
        self.assertEqual((put["rows"], put["sealed"]), (3, False))
        put = self.json("put", "life", "a/0", "-", "--seal", stdin=rows_file(2, 2, 4))
        self.assertEqual((put["rows"], put["sealed"]), (5, True))
        self.drop_at_end("model")
        geometry = ["--experts", "64", "--layers", "1,3"]
        self.json("put", "model", "s", "-", *geometry, stdin=rows_file(2, 2, 4))
        geometry = self.json("stat", "model")["geometry"]
        self.assertEqual(geometry, {"num_layers": 4, "moe_layers": [1, 3], "num_experts": 64, "top_k": 4})
        (sample,) = self.json("ls", "life")
        self.assertEqual((sample["sample"], sample["group"], sample["tokens"]), ("a/0", 7, 6))
        (stat,) = self.json("stat", "life", "a/0")
        self.assertEqual(stat["weights"], [{"rows": [0, 5], "version": None, "label": ""}])
        self.assertEqual(stat["engine"], "rrctl")
        self.assertEqual(self.json("stat", "life")["rows"], 5)
        self.assertIn("life", [run["run"] for run in self.json("ls")])
        rows = self.json("get", "life", "a/0", "--layer", "1", "--rows", "2:4")
        self.assertEqual(
            rows, [{"row": r, "layer": 1, "experts": [expert(n, 1, s) for s in range(4)]} for r, n in ((2, 2), (3, 0))]
        )
        self.assertEqual(self.json("rm", "life", "a/0")["samples"], 1)
        self.assertEqual(self.json("rm", "life", "a/0", "nosuch")["samples"], 0)
        self.assertEqual(self.json("ls", "life"), [])

    def test_samples_of_the_trainer_are_apart(self):
        self.drop_at_end("r2")
        self.put("r2", "s", 3, 2, 4, "--trainer")
        self.assertEqual(self.json("ls", "r2"), [])
        self.assertEqual(len(self.json("ls", "r2", "--trainer")), 1)
        self.assertEqual(len(self.json("get", "r2", "s", "--trainer")), 6)

    def test_a_run_moves_through_a_directory(self):
        self.drop_at_end("from")
        self.drop_at_end("to")
        for i in range(3):
            self.put("from", f"s/{i}", 5 + i, 2, 4, "--group", str(i), "--seal")
        self.put("from", "open", 4)
        with tempfile.TemporaryDirectory() as parent:
            earlier, directory = str(Path(parent, "earlier")), str(Path(parent, "checkpoint"))
            done = self.json("export", "from", earlier, "--group", "0:2")
            self.assertEqual((done["samples"], done["written"], done["unsealed"]), (2, 2, 1))
            self.assertIn("rrctl: NOT_FOUND: /proc/x", self.run_rrctl("export", "from", "/proc/x", code=1))
            self.assertIn("rrctl: ALREADY_EXISTS", self.run_rrctl("export", "from", earlier, code=1))
            done = self.json("export", "from", directory, "--previous", earlier)
            self.assertEqual((done["samples"], done["written"], done["written_bytes"]), (3, 1, 7 * 2 * 4))
            done = self.json("import", directory, "to")
            self.assertEqual((done["run"], done["samples"], done["appended"]), ("to", 3, 3))
            self.assertEqual(self.json("import", directory, "to")["appended"], 0)
            for i in range(3):
                self.assertEqual(self.json("get", "to", f"s/{i}"), self.json("get", "from", f"s/{i}"))
            self.json("rm", "to", "s/1")
            self.put("to", "s/1", 7, 2, 4, "--seal")
            error = self.run_rrctl("import", directory, "to", code=1)
            self.assertTrue(error.startswith("rrctl: ALREADY_EXISTS (CONFLICTING_ROWS): sample s/1: "), error)
            no_server = os.environ | {"ROUTING_REPLAY_ENDPOINT": "127.0.0.1:1"}
            verified = self.json("verify", directory, env=no_server)
            self.assertEqual((verified["directory"], verified["samples"], verified["rows"]), (directory, 3, 18))
            self.assertIn("NOT_COMMITTED", self.run_rrctl("verify", "./nosuch", env=no_server, code=1))
            file = Path(directory, "00000000.npy")
            for end in (b"\x7f", b"\xff"):
                file.write_bytes(file.read_bytes()[:-1] + end)
                found = subprocess.run([RRCTL, "verify", directory], env=no_server, capture_output=True, check=False)
                self.assertEqual((found.returncode, found.stderr), (1, b""))
                self.assertEqual([damage["sample"] for damage in json.loads(found.stdout)["damaged"]], ["s/0"])
            error = self.run_rrctl("import", directory, "other", code=1)
            self.assertIn("DATA_LOSS (CHECKSUM)", error)
            self.drop_at_end("other")
            Path(directory, "index.json").unlink()
            self.assertIn("NOT_COMMITTED", self.run_rrctl("import", directory, code=1))
        verified = self.json("verify", "from")
        self.assertEqual(verified, {"run": "from", "samples": 4, "rows": 22, "read_bytes": 22 * 8, "damaged": []})

    def test_a_big_sample_is_shown_in_bounded_memory(self):
        self.drop_at_end("big")
        layers, k = 48, 8
        portion = rows_file(1000, layers, k)
        self.json("put", "big", "s", "-", "--experts", "128", stdin=portion)
        for _ in range(9):
            self.json("put", "big", "s", "-", stdin=portion)
        process = subprocess.Popen([RRCTL, "get", "big", "s"], stdout=subprocess.PIPE, text=True)
        lines, received = 0, 0
        for line in process.stdout:
            received += len(line)
            if line.startswith("{"):
                row = json.loads(line.rstrip(",\n"))
                self.assertEqual((row["row"], row["layer"]), divmod(lines, layers))
                self.assertEqual(row["experts"][0], expert(row["row"] % 1000, row["layer"], 0))
                lines += 1
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        self.assertEqual((status, lines), (0, 10 * 1000 * layers))
        self.assertGreater(received, 25e6)
        if "RR_MEMORY_IS_OF_A_SANITIZER" not in os.environ:
            self.assertLess(usage.ru_maxrss, 150e3, "KiB")

    def test_a_reader_that_goes_away_is_no_failure(self):
        self.drop_at_end("gone")
        self.json("put", "gone", "s", "-", "--experts", "128", stdin=rows_file(3000, 8, 8))
        for ignored in (False, True):  # The result must be the same whether or not the caller of rrctl ignores SIGPIPE.
            process = subprocess.Popen(
                [RRCTL, "get", "gone", "s"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                restore_signals=False,
                preexec_fn=lambda to=ignored: signal.signal(signal.SIGPIPE, signal.SIG_IGN if to else signal.SIG_DFL),
            )
            self.assertEqual(process.stdout.readline(), b"[\n")
            process.stdout.close()
            with process.stderr:
                self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.wait(PATIENCE), -signal.SIGPIPE)
        # An error of writing other than a closed pipe is a failure: /dev/full is always full.
        with open("/dev/full", "w") as full:
            done = subprocess.run([RRCTL, "ls"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write to standard output", done.stderr)

    def test_plan_reads_standard_input(self):
        self.assertIn("rrctl: INVALID_ARGUMENT", self.run_rrctl("plan", stdin=b"{", code=1))


class ShardTest(unittest.TestCase):
    def rrctl(self, *words, code=0, **options):
        words = [RRCTL, "--endpoint", self.endpoint, "--timeout", "2", "-w", "json", *words]
        done = subprocess.run(words, check=False, capture_output=True, timeout=PATIENCE, **options)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        if code == 3:
            self.assertRegex(done.stderr.decode(), r"(?m)^rrctl: UNAVAILABLE: \d of \d servers cannot be reached: ")
        return json.loads(done.stdout)

    def test_several_servers_as_one(self):
        servers = [Server() for _ in range(3)]
        self.addCleanup(lambda: [server.stop() for server in servers])
        self.endpoint = "shard:" + ",".join(server.endpoint for server in servers)
        for i in range(12):
            self.rrctl("put", "run", f"s{i}", "-", "--experts", "128", "--seal", input=rows_file(5, 2, 4))
        self.assertEqual({row["sample"] for row in self.rrctl("ls", "run")}, {f"s{i}" for i in range(12)})
        self.assertEqual(len(self.rrctl("get", "run", "s7")), 10)
        (run,) = self.rrctl("ls")
        self.assertEqual((run["samples"], run["rows"]), (12, 60))
        self.assertEqual(len(self.rrctl("stat", "run")["shard_fingerprint"]), 16)
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.rrctl("export", "run", str(Path(directory, "out")))["samples"], 12)
        lines = self.rrctl("status")
        self.assertEqual([line["server"] for line in lines], sorted(server.endpoint for server in servers))
        self.assertEqual({line["state"] for line in lines}, {"serving"})
        self.assertEqual(sum(line["samples"] for line in lines), 12)
        self.assertEqual(self.rrctl("rm", "run", "s0", "s1", "s2")["samples"], 3)
        servers[1].process.kill()
        servers[1].process.wait()
        states = {line["server"]: line["state"] for line in self.rrctl("status", code=3)}
        self.assertEqual(states.pop(servers[1].endpoint), "unreachable")
        self.assertEqual(set(states.values()), {"serving"})
        self.endpoint = "shard:127.0.0.1:1,127.0.0.1:2"
        self.assertEqual({line["state"] for line in self.rrctl("status", code=3)}, {"unreachable"})


class LayoutTest(RrctlTest):
    """Layouts of a micro-batch of two packed samples, on two pipeline, two context-parallel and two tensor-parallel
    ranks."""

    def description(self, **more):
        sequences = [{"sample": "a", "tokens": 13}, {"sample": "b", "tokens": 16}]
        batch = {"format": "THD", "sequences": sequences, "cu_seqlens_padded": [0, 16, 32], "total_rows": 32}
        batch |= {"partition": "zigzag_per_document", "cp_size": 2, "tp_size": 2, "sequence_parallel": True}
        geometry = {"num_layers": 4, "num_experts": 128, "top_k": 2}
        whole = {"geometry": geometry, "split": {"pipeline_size": 2}, "micro_batch": batch, "rank": {"pp": 1, "cp": 1}}
        return json.dumps(whole | more).encode()

    def test_plan(self):
        plan = json.loads(self.run_rrctl("plan", stdin=self.description()))
        self.assertEqual([layer["layer"] for layer in plan["layers"]], [2, 3])
        self.assertEqual(plan["slices"], [{"sequence": 0, "sample": "a", "rows": [[4, 12]]}])

    def test_diagnose_ids_of_a_run(self):
        self.drop_at_end("layouts")

        def ids(sample, row, layer):
            return [(31 * sample + 3 * row + 17 * layer) % 64, 64 + (row + 32 * sample) % 64]

        for sample, (name, rows) in enumerate([("a", 12), ("b", 15)]):
            flat = [i for row in range(rows) for layer in range(4) for i in ids(sample, row, layer)]
            self.run_rrctl("put", "layouts", name, "-", "--experts", "128", stdin=npy(rows, 4, 2, flat))
        # These ids contain two mistakes for `diagnose` to find: context rank 1 has contiguous rows instead of its
        # zigzag rows, and they are of the first pipeline stage's layers instead of the second's.
        flat = [i for row in range(8) for layer in (0, 1) for i in ids(1, row, layer)]
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            Path(file.name).write_bytes(npy(8, 2, 2, flat))
            words = ["diagnose", "layouts", "--ids", file.name]
            rows, layers = json.loads(self.run_rrctl(*words, stdin=self.description()))
            self.assertEqual((rows["mistakes"][0], rows["exact"]), ("partition_contiguous", True))
            self.assertIn("layers_of_pp_rank_0", layers["mistakes"])
            other = self.description(geometry={"num_layers": 4, "num_experts": 64, "top_k": 2})
            self.assertIn("[field=geometry]", self.run_rrctl(*words, stdin=other, code=1))


class DiffTest(RrctlTest):
    def test_differences_are_exit_code_1(self):
        self.drop_at_end("diff")
        ids = [0, 1, 2, 3, 4, 5, 6, 7]
        for sample, last in (("a", [4, 5, 6, 7]), ("b", [4, 5, 6, 7]), ("c", [7, 6, 5, 4]), ("d", [4, 5, 6, 9])):
            words = ["put", "diff", sample, "-", "--experts", "128"]
            self.json(*words, stdin=npy(2, 2, 4, ids + ids[:4] + last))
        self.assertTrue(self.json("diff", "diff:a", "diff:b")["equal"])
        for sample, what, order, other in (("c", "order", 1, 0), ("d", "experts", 0, 1)):
            done = subprocess.run(
                [RRCTL, "diff", "diff:a", f"diff:{sample}"], check=False, capture_output=True, timeout=PATIENCE
            )
            self.assertEqual((done.returncode, done.stderr), (1, b""))
            found = json.loads(done.stdout)
            first = found["first"]
            self.assertEqual((first["row"], first["layer"], first["what"]), (1, 1, what))
            self.assertEqual((found["order_only"], found["other_experts"]), (order, other))
        text = subprocess.run(
            [RRCTL, "-w", "table", "diff", "diff:a", "diff:d"], check=False, capture_output=True, timeout=PATIENCE
        ).stdout.decode()
        self.assertRegex(text, r"(?s)first\n  row +1\n  layer +1\n  what +experts\n  a +4, 5, 6, 7\n  b +4, 5, 6, 9\n")

    def test_trouble_is_no_difference(self):
        self.drop_at_end("trouble")
        self.put("trouble", "a", 3)
        error = self.run_rrctl("diff", "trouble:a", code=4)
        self.assertRegex(error, r"^rrctl: NOT_FOUND \(NO_SAMPLE\): .*\(R2\) \[field=producer sample=a\]\n$")
        self.assertIn("NO_SAMPLE", self.run_rrctl("diff", "trouble:a", "trouble:x", code=4))
        self.assertIn("NO_RUN", self.run_rrctl("diff", "nosuch:a", "trouble:a", code=4))
        self.run_rrctl("--endpoint", "127.0.0.1:1", "--timeout", "1", "diff", "r:a", "r:b", code=3)

    def test_names_that_are_none_are_no_question_to_a_server(self):
        for words in ([":", ":"], ["", ""], ["r:a", "b"], ["a:"], [":a"], ["r:a", "r:b c"]):
            error = self.run_rrctl("--endpoint", "127.0.0.1:1", "--timeout", "1", "diff", *words, code=2)
            self.assertRegex(error, r"^rrctl: INVALID_ARGUMENT \(FIELD\): [AB]: ")


CHECKS = ["name", "connect", "tls", "service", "version", "transport"]


class DoctorTest(RrctlTest):
    def doctor(self, *words, code=0):
        words = [RRCTL, *words, "doctor"] if "--endpoint" in words else [RRCTL, "doctor", *words]
        done = subprocess.run(words, check=False, capture_output=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stderr), (code, b""))
        return json.loads(done.stdout)

    def checks(self, *words, **options):
        return {check["check"]: check for check in self.doctor(*words, **options)["checks"]}

    def test_a_server_that_is_well(self):
        report = self.doctor()
        self.assertEqual(report["verdict"], "ok")
        self.assertEqual([check["check"] for check in report["checks"]], CHECKS)
        checks = {check["check"]: check for check in report["checks"]}
        self.assertIn("plaintext", checks["tls"]["what"])
        self.assertEqual(self.json("ls"), [])

    def test_things_that_are_broken(self):
        with tempfile.TemporaryDirectory() as directory:
            for endpoint, last, word in (
                ("127.0.0.1:1", "connect", "refused"),
                ("nonesuch.invalid:7400", "name", "has no address"),
                (f"unix:{directory}/none", "connect", "No such file"),
            ):
                report = self.doctor("--endpoint", endpoint, code=1)
                self.assertEqual(report["verdict"], "fail")
                self.assertEqual(report["checks"][-1]["check"], last)
                self.assertIn(word, report["checks"][-1]["what"])
                self.assertTrue(report["checks"][-1]["fix"])
        self.assertIn("field=endpoint", self.run_rrctl("--endpoint", "nowhere", "doctor", code=2))

    def test_a_port_that_does_not_answer(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                self.addCleanup(one.close)
                one.setblocking(False)
                one.connect_ex(address)
            time.sleep(0.1)
            words = ["--endpoint", f"127.0.0.1:{address[1]}", "--timeout", "1"]
            connect = self.checks(*words, code=1)["connect"]
            self.assertIn("firewall", connect["fix"])

    def test_something_else_that_listens(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(8)

            def answer():
                with contextlib.suppress(OSError):
                    while True:
                        one, _ = listener.accept()
                        one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        one.close()

            threading.Thread(target=answer, daemon=True).start()
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
            report = self.doctor("--endpoint", endpoint, "--timeout", "1", code=1)
            self.assertEqual(report["checks"][-1]["check"], "service")
            self.assertEqual(report["checks"][-1]["verdict"], "fail")
            listener.shutdown(socket.SHUT_RDWR)

    def test_every_server_of_a_list(self):
        other = Server()
        self.addCleanup(other.stop)
        endpoint = f"shard:{self.server.endpoint},{other.endpoint}"
        report = self.doctor("--endpoint", endpoint)
        self.assertEqual(sum(check["check"] == "connect" for check in report["checks"]), 2)
        text = self.run_rrctl("-w", "table", "--endpoint", endpoint, "doctor")
        self.assertRegex(text, r"(?m)^127\.0\.0\.1:\d+ +connect +ok +127\.0\.0\.1:\d+ in ")


class FailureTest(RrctlTest):
    def test_the_environment_stands_for_flags(self):
        environment = os.environ | {"ROUTING_REPLAY_WRITE_OUT": "table", "ROUTING_REPLAY_TIMEOUT": "7"}
        self.assertTrue(self.run_rrctl("status", env=environment).startswith("version "))
        self.assertTrue(self.run_rrctl("-w", "json", "status", env=environment).startswith("{"))
        environment["ROUTING_REPLAY_TIMEOUT"] = "soon"
        self.assertIn("--timeout", self.run_rrctl("status", env=environment, code=2))

    def test_exit_codes_and_messages(self):
        self.drop_at_end("fail")
        self.put("fail", "s", 3)
        missing = self.run_rrctl("stat", "fail", "x", code=1)
        self.assertRegex(missing, r"^rrctl: NOT_FOUND \(NO_SAMPLE\): .*x.* \[sample=x\]\n$")
        bad = npy(1, 2, 4, [0, 1, 2, 3, 0, 1, 2, 128])
        rejected = self.run_rrctl("put", "fail", "s", "-", stdin=bad, code=1)
        self.assertRegex(rejected, r"^rrctl: INVALID_ARGUMENT \(ID_RANGE\): .* \[.*layer=1 row=3 .*\]\n$")
        self.assertIn("layer=9", self.run_rrctl("get", "fail", "s", "--layer", "9", code=1))
        for words in (
            ["nothing"],
            ["stat"],
            ["stat", "--nothing", "r"],
            ["get", "r", "s", "--rows", "2:1"],
            ["-w", "xml", "ls"],
            ["rm", "r"],
            ["rm", "r", "s", "--all"],
            [],
        ):
            error = self.run_rrctl(*words, code=2)
            self.assertRegex(error, r"^rrctl: INVALID_ARGUMENT: .*\(see rrctl --help\)\n$", words)
        for words, wrong in ((["stats", "fail"], "stats"), (["stat", "fail", "--trainr"], "--trainr")):
            self.assertIn(f"argument '{wrong}' (see rrctl --help)", self.run_rrctl(*words, code=2))

    def test_help_lists_commands_by_their_first_line(self):
        commands = self.run_rrctl("--help").split("Subcommands:\n")[1].split("\n\n")[0].splitlines()
        self.assertIn("verify", {line.split()[0] for line in commands})
        for line in commands:
            self.assertRegex(line, r"^  [a-z]+ +\S")
        self.assertIn("needs no server", self.run_rrctl("verify", "--help"))

    def test_an_address_that_is_none(self):
        self.assertIn("field=endpoint", self.run_rrctl("--endpoint", "localhost", "status", code=2))
        without = {k: v for k, v in os.environ.items() if k != "ROUTING_REPLAY_ENDPOINT"}
        self.assertIn("ROUTING_REPLAY_ENDPOINT", self.run_rrctl("status", code=2, env=without))
        description = {"geometry": {"num_layers": 1, "num_experts": 4, "top_k": 1}}
        self.assertNotIn(
            "ENDPOINT", self.run_rrctl("plan", stdin=json.dumps(description).encode(), code=1, env=without)
        )

    def test_files_of_tls_and_tokens_that_are_none(self):
        for flags in (["--token-file"], ["--cacert"], ["--key", __file__, "--cert"], ["--cert", __file__, "--key"]):
            error = self.run_rrctl(*flags, "/nonesuch", "status", code=2)
            self.assertRegex(error, r"^rrctl: INVALID_ARGUMENT \(FIELD\): .*/nonesuch")

    def test_grants_of_tokens_that_are_none(self):
        error = self.run_rrctl("token", "x", "--run", "a b", "--scope", "put", code=2)
        self.assertRegex(error, r"^rrctl: INVALID_ARGUMENT \(FIELD\): --run: ")

    def test_a_server_that_is_not_there(self):
        message = self.run_rrctl("--endpoint", "127.0.0.1:1", "--timeout", "1", "status", code=3)
        self.assertRegex(message, r"^rrctl: (UNAVAILABLE|DEADLINE_EXCEEDED): .*\n$")

    def test_output_that_is_not_taken(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([RRCTL, "ls"], check=False, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write", done.stderr)


class TerminalTest(RrctlTest):
    def show(self, *words, **options):
        return Terminal(RRCTL, *words, **options).end()

    def test_tables_only_on_a_terminal(self):
        self.drop_at_end("tty")
        self.put("tty", "s", 300)
        text, code = self.show("ls", "tty")
        self.assertEqual(code, 0)
        self.assertRegex(text, r"^sample .* stored +idle *\ns .* 4\.\d KiB +(\d+ ms|\d+\.\d s)\n$")
        self.assertTrue(self.show("-w", "json", "ls", "tty")[0].startswith("[{"))
        self.assertTrue(self.run_rrctl("-w", "table", "ls", "tty").startswith("sample "))
        text, code = self.show("stat", "tty", "x")
        self.assertEqual(code, 1)
        self.assertTrue(text.startswith("rrctl: NOT_FOUND"), text)

    def test_verify_shows_a_summary(self):
        self.drop_at_end("whole")
        self.put("whole", "s", 300)
        text, code = self.show("verify", "whole")
        self.assertEqual(code, 0)
        self.assertIn("read     2.3 KiB\ndamaged  0\n", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
