"""Every line that the server writes must be JSON, whatever happens, and the server must exit when asked.

Usage: server_log_test.py SERVER
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from urllib.request import Request, urlopen

SERVER = Path(sys.argv.pop()).resolve()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class ServerLogTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def start(self, *flags, **options):
        command = [SERVER, "--listen", "127.0.0.1:0", *map(str, flags)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server

    def events(self, server):
        return [json.loads(line)["event"] for line in server.stderr.read().splitlines()]

    def test_it_waits_for_redis_and_says_so(self):
        # Runs both servers at the same time to save time: each attempt to reach Redis takes 5 s, also during a
        # shutdown.
        later, asked_to_end = free_port(), free_port()
        operations = f"127.0.0.1:{free_port()}"
        goes_on = self.start("--store", f"redis://127.0.0.1:{later}")
        ends = self.start("--store", f"redis://127.0.0.1:{asked_to_end}", "--operations-listen", operations)
        for server in (goes_on, ends):
            first = json.loads(server.stderr.readline())
            self.assertEqual((first["level"], first["event"]), ("warning", "warning"))
            self.assertIn("waiting for Redis", first["message"])
        with self.subTest("and its metrics say that it is not ready"):
            metrics = urlopen(f"http://{operations}/metrics", timeout=60).read().decode()
            for line in ("routing_replay_ready 0", "routing_replay_build_info{", "process_open_fds "):
                self.assertIn(f"\n{line}", metrics)
        ends.send_signal(signal.SIGTERM)
        with self.subTest("and starts when Redis does"):
            redis = shutil.which("redis-server") or shutil.which("redis-check-rdb")  # Both names are the same program.
            if redis is None:
                self.skipTest("there is no redis-server (Debian: redis-tools)")
            command = ["redis-server", "--port", str(later), "--save", "", "--dir", self.directory]
            store = subprocess.Popen(command, executable=redis, stdout=subprocess.DEVNULL)
            self.addCleanup(store.wait)
            self.addCleanup(store.kill)
            self.assertEqual(json.loads(goes_on.stderr.readline())["event"], "started")
        with self.subTest("and ends on SIGTERM while it waits"):
            self.assertEqual(ends.wait(60), 0)
            self.assertEqual(self.events(ends), ["stopped"])

    def test_what_grpc_says_has_the_form_of_the_log(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl (Debian: openssl)")
        certificate, key = self.directory / "tls.crt", self.directory / "tls.key"
        made = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
        ]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        endpoint = self.directory / "endpoint"
        server = self.start("--tls-cert", certificate, "--tls-key", key, "--endpoint-file", endpoint)
        while not endpoint.exists():
            self.assertIsNone(server.poll())
            time.sleep(0.01)
        host, _, port = endpoint.read_text().strip().rpartition(":")
        for _ in range(20):  # Connects like a port scan.
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"hello\n")
                while stranger.recv(1024):
                    pass
        server.terminate()
        server.wait()
        events = self.events(server)
        self.assertEqual(events[0], "started")
        self.assertIn("grpc", events)
        self.assertLess(events.count("grpc"), 20)
        self.assertEqual(events[-1], "stopped")

    def test_a_log_that_nobody_reads_holds_nobody_up(self):
        operations, endpoint = f"127.0.0.1:{free_port()}", self.directory / "endpoint"
        server = self.start("--operations-listen", operations, "--endpoint-file", endpoint, pipesize=4096)
        while not endpoint.exists():
            self.assertIsNone(server.poll())
            time.sleep(0.01)
        # The server logs at least 100 bytes for each of these 200 requests: together five times what the pipe can hold.
        for level in ("info", "warning") * 100:
            body, headers = json.dumps({"level": level}).encode(), {"Content-Type": "application/json"}
            urlopen(Request(f"http://{operations}/api/v1/log-level", body, headers), timeout=60).read()
        self.assertIn(b"routing_replay_ready 1", urlopen(f"http://{operations}/metrics", timeout=60).read())
        server.terminate()
        self.assertEqual(server.wait(60), 0)

    def test_an_address_that_is_taken_is_told_in_json(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            server = self.start("--health-listen", f"127.0.0.1:{holder.getsockname()[1]}")
            self.assertEqual(server.wait(60), 3)
            self.assertEqual(self.events(server)[-1], "exit")


if __name__ == "__main__":
    unittest.main()
