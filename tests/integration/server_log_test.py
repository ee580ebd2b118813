"""Every line that the server writes is JSON, whatever goes wrong, and it ends when it is asked to.

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

    def start(self, *flags):
        command = [SERVER, "--listen", "127.0.0.1:0", *map(str, flags)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server

    def events(self, server):
        return [json.loads(line)["event"] for line in server.stderr.read().splitlines()]

    def test_it_waits_for_redis_says_so_and_ends_when_it_is_asked_to(self):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            operations = f"127.0.0.1:{free_port()}"
            store = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
            server = self.start("--store", store, "--operations-listen", operations)
            first = json.loads(server.stderr.readline())
            self.assertEqual((first["level"], first["event"]), ("warning", "warning"))
            self.assertIn("waiting for Redis", first["message"])
            metrics = urlopen(f"http://{operations}/metrics", timeout=60).read().decode()
            for line in ("routing_replay_ready 0", "routing_replay_build_info{", "process_open_fds "):
                self.assertIn(f"\n{line}", metrics)
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(60), 0)
            self.assertEqual(self.events(server), ["stopped"])

    def test_it_waits_for_a_redis_that_comes_later(self):
        redis = shutil.which("redis-server") or shutil.which("redis-check-rdb")  # One program under two names.
        if redis is None:
            self.skipTest("there is no redis-server (Debian: redis-tools)")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        server = self.start("--store", f"redis://127.0.0.1:{port}")
        self.assertIn("waiting for Redis", server.stderr.readline())
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", self.directory]
        store = subprocess.Popen(command, executable=redis, stdout=subprocess.DEVNULL)
        self.addCleanup(store.wait)
        self.addCleanup(store.kill)
        self.assertEqual(json.loads(server.stderr.readline())["event"], "started")

    def test_what_grpc_says_has_the_form_of_the_log(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl (Debian: openssl)")
        certificate, key = self.directory / "tls.crt", self.directory / "tls.key"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        endpoint = self.directory / "endpoint"
        server = self.start("--tls-cert", certificate, "--tls-key", key, "--endpoint-file", endpoint)
        while not endpoint.exists():
            self.assertIsNone(server.poll())
            time.sleep(0.01)
        host, _, port = endpoint.read_text().strip().rpartition(":")
        for _ in range(20):  # As a scan of ports does.
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
        server = self.start("--operations-listen", operations, "--endpoint-file", endpoint)
        while not endpoint.exists():
            self.assertIsNone(server.poll())
            time.sleep(0.01)
        # Each makes a line of 100 bytes at least: far more than a pipe takes.
        for level in ("info", "warning") * 1000:
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
