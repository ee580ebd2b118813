"""The Python client and rrctl against a server with TLS and tokens; certificates are made by the openssl program.

Usage: python_client_test.py SERVER RRCTL
"""

import asyncio
import concurrent.futures as futures
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SERVER, RRCTL = sys.argv[1:3]
if shutil.which("openssl") is None:
    print("skipped: there is no openssl program")
    sys.exit(77)

import numpy as np  # noqa: E402
import routing_replay as rr  # noqa: E402
from routing_replay import aio, errors  # noqa: E402

PATIENCE = 60  # Seconds; a passing test needs far less.
GEOMETRY = rr.Geometry(num_layers=1, num_experts=4, top_k=1)
ROWS = np.array([3, 1, 2], np.uint8).reshape(3, 1, 1)


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class Authority:
    def __init__(self, directory):
        self.directory = directory
        self.cacert = str(directory / "ca.crt")
        self.key = str(directory / "ca.key")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *new_key, "-keyout", self.key, "-out", self.cacert, "-days", "1", "-subj", "/CN=test")
        self.new_key = new_key

    def issue(self, name, alternative):
        """Paths of a certificate and its key."""
        certificate, key, request, extensions = (
            str(self.directory / f"{name}.{suffix}") for suffix in ("crt", "key", "csr", "ext")
        )
        Path(extensions).write_text(f"subjectAltName={alternative}\n")
        openssl("req", "-new", *self.new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", self.cacert, "-CAkey", self.key, "-CAcreateserial", "-days", "1",
                "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key


def replace(path, text):
    new = Path(f"{path}.new")
    new.write_text(text)
    new.rename(path)


def entry(token, scopes=("put", "read", "admin"), runs=("",)):
    hashed = hashlib.sha256(token.encode()).hexdigest()
    return {"name": "test", "sha256": hashed, "runs": list(runs), "scopes": list(scopes)}


class Guarded(unittest.TestCase):
    """One server with mutual TLS and tokens for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.directory = Path(cls.scratch.name)
        cls.authority = Authority(cls.directory)
        certificate, key = cls.authority.issue("server", "DNS:localhost,IP:127.0.0.1")
        cls.cert, cls.key = cls.authority.issue("worker", "URI:spiffe://example.org/worker")
        cls.tokens = str(cls.directory / "tokens.json")
        cls.token_file = str(cls.directory / "token")
        cls.set_tokens("known")
        replace(cls.token_file, "known\n")
        tls = ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", cls.authority.cacert]
        cls.servers = [cls.start(*tls), cls.start(*tls)]
        cls.endpoint = cls.servers[0][1]
        cls.security = {"cacert": cls.authority.cacert, "cert": cls.cert, "key": cls.key, "token_file": cls.token_file}

    @classmethod
    def start(cls, *flags):
        file = Path(tempfile.mkdtemp(dir=cls.directory), "endpoint")
        listen = ["--listen", "127.0.0.1:0", "--endpoint-file", str(file), "--token-file", cls.tokens]
        process = subprocess.Popen([SERVER, *listen, *flags], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return process, file.read_text().strip()

    @classmethod
    def tearDownClass(cls):
        for process, _ in cls.servers:
            process.kill()
            process.wait()
        cls.scratch.cleanup()

    @classmethod
    def set_tokens(cls, *tokens):
        replace(cls.tokens, json.dumps([entry(token) for token in tokens]))

    def tearDown(self):
        self.set_tokens("known")
        replace(self.token_file, "known\n")

    def assert_round_trip(self, run, sample):
        run.append(sample, ROWS, seal=True)
        run.flush(PATIENCE)
        np.testing.assert_array_equal(run.read([sample])[0].rows.reshape(3), [3, 1, 2])


class ClientTest(Guarded):
    def test_one_server_a_list_and_shards(self):
        both = ",".join(endpoint for _, endpoint in self.servers)
        for number, endpoint in enumerate((self.endpoint, f"{self.endpoint},127.0.0.1:1", f"shard:{both}")):
            with rr.Client(endpoint, **self.security) as client:
                run = client.run(f"run-{number}", GEOMETRY)
                for i in range(4):
                    self.assert_round_trip(run, f"sample-{i}")
                run.truncate("sample-0", 0)
                run.drop()

    def test_the_environment(self):
        variables = {f"ROUTING_REPLAY_{name.upper()}": value for name, value in self.security.items()}
        os.environ.update(variables)
        try:
            with rr.Client(self.endpoint) as client:
                self.assertEqual(client.server_info().version, rr.__version__)
            # The environment's TLS settings do not apply to a local server.
            os.environ["ROUTING_REPLAY_SERVER"] = SERVER
            with rr.local_server(), rr.Client() as client:
                self.assert_round_trip(client.run("local", GEOMETRY), "sample")
            self.assertEqual(os.environ["ROUTING_REPLAY_CACERT"], self.security["cacert"])
        finally:
            for name in variables:
                del os.environ[name]

    def test_rejections(self):
        stranger = {**self.security, "cert": None, "key": None}
        with (
            rr.Client(self.endpoint, **stranger, call_timeout=0.5) as client,
            self.assertRaises(errors.UnavailableError),
        ):
            client.server_info()
        replace(self.token_file, "unknown\n")
        with rr.Client(self.endpoint, **self.security) as client, self.assertRaises(errors.UnauthenticatedError):
            client.server_info()
        for endpoint in ["10.0.0.1:7400", *["127.0.0.1:1,10.0.0.1:7400"] * 10]:
            with (
                self.assertRaises(errors.InvalidArgumentError) as caught,
                rr.Client(endpoint, token_file=self.token_file) as client,
            ):
                client.server_info()
            self.assertEqual(caught.exception.field, "token_file")
        with self.assertRaises(errors.InvalidArgumentError):
            rr.Client(self.endpoint, cert=self.cert)
        empty = self.directory / "empty"
        empty.write_text("")
        with (
            self.assertRaises(errors.InvalidArgumentError) as caught,
            rr.Client(self.endpoint, **{**self.security, "cacert": empty}) as client,
        ):
            client.server_info()
        self.assertEqual(caught.exception.field, "cacert")

    def test_tokens_change_under_an_open_stream(self):
        with rr.Client(self.endpoint, **self.security) as client:
            run = client.run("rotating", GEOMETRY)
            for i in range(4):
                self.assert_round_trip(run, f"before-{i}")
                self.set_tokens(f"token-{i}")
                replace(self.token_file, f"token-{i}\n")
                self.assert_round_trip(run, f"after-{i}")
                run.truncate(f"after-{i}", 0)
            run.drop()

    def test_tokens_change_while_a_read_waits(self):
        both = ",".join(endpoint for _, endpoint in self.servers)
        for number, endpoint in enumerate((self.endpoint, f"shard:{both}")):
            with rr.Client(endpoint, **self.security) as client, futures.ThreadPoolExecutor() as pool:
                run = client.run(f"read-rotating-{number}", GEOMETRY)
                names = [f"sample-{n}" for n in range(4)]
                for name in names[:3]:
                    run.append(name, ROWS, seal=True)
                run.flush(PATIENCE)
                run.put(names[3], ROWS[:1])
                waiting = pool.submit(run.read, names, wait=True, timeout=PATIENCE)
                time.sleep(0.3)  # Gives the read time to wait with the present token.
                self.set_tokens(f"read-{number}")
                replace(self.token_file, f"read-{number}\n")
                run.put(names[3], ROWS[1:], row_start=1, seal=True)
                for one in waiting.result(PATIENCE):
                    np.testing.assert_array_equal(one.rows.reshape(3), [3, 1, 2])
                run.drop()

    def test_asyncio(self):
        async def talk():
            async with aio.Client(self.endpoint, **self.security) as client:
                run = await client.run("asyncio", GEOMETRY)
                for i in range(3):
                    await run.append(f"sample-{i}", ROWS, seal=True)
                    await run.flush(PATIENCE)
                    self.set_tokens(f"async-{i}")
                    replace(self.token_file, f"async-{i}\n")
                    rows = (await run.read([f"sample-{i}"]))[0]
                    np.testing.assert_array_equal(rows.rows.reshape(3), [3, 1, 2])
                await run.drop()

        asyncio.run(talk())


class RrctlTest(Guarded):
    def rrctl(self, *words, code=0):
        done = subprocess.run([RRCTL, "--endpoint", self.endpoint, *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout or done.stderr

    def test_flags(self):
        flags = ["--cacert", self.authority.cacert, "--cert", self.cert, "--key", self.key]
        self.assertIn("UNAUTHENTICATED", self.rrctl(*flags, "ls", code=1))
        self.assertEqual(json.loads(self.rrctl(*flags, "--token-file", self.token_file, "ls")), [])
        self.rrctl("--token-file", self.token_file, "--timeout", "1", "status", code=3)

    def test_a_token_that_rrctl_made_opens_the_server(self):
        secret = self.directory / "made"
        made = json.loads(self.rrctl("token", "made", "--run", "m-", "--scope", "put,read", "--out", str(secret)))
        replace(self.tokens, made["entry"] + "\n")
        with rr.Client(self.endpoint, **{**self.security, "token_file": secret}) as client:
            self.assert_round_trip(client.run("m-1", GEOMETRY), "sample")
            with self.assertRaises(errors.NotFoundError):
                client.run("n-1", GEOMETRY)
            with self.assertRaises(errors.PermissionDeniedError):
                client.run("m-1").drop()
        self.set_tokens("known")
        with rr.Client(self.endpoint, **self.security) as client:
            client.run("m-1").drop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
