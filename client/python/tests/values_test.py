"""Tests that need no server: geometries, errors, endpoints, the package itself."""

from __future__ import annotations

import collections
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from typing import Any

import numpy as np
from support import Server, ServerTest

import routing_replay as rr
from routing_replay import aio, errors


class GeometryTest(unittest.TestCase):
    def test_uniform(self) -> None:
        geometry = rr.Geometry(48, 128, 8)
        self.assertEqual(geometry, rr.Geometry(num_layers=48, num_experts=np.int64(128), top_k=8))
        self.assertEqual(geometry.moe_layers, tuple(range(48)))
        self.assertEqual((geometry.num_experts, geometry.top_k), ((128,) * 48, (8,) * 48))
        self.assertEqual(geometry.dtype, np.uint8)
        self.assertIn("48 MoE layers", repr(geometry))

    def test_per_layer(self) -> None:
        geometry = rr.Geometry(5, np.array([8, 300]), [1, 4], moe_layers=np.array([1, 3]))
        self.assertEqual((geometry.max_top_k, geometry.dtype), (4, np.uint16))
        self.assertNotEqual(geometry, rr.Geometry(5, 300, 4, [1, 3]))
        self.assertEqual(rr.Geometry.from_json(geometry.to_json()), geometry)
        self.assertEqual(pickle.loads(pickle.dumps(geometry)), geometry)
        self.assertEqual(len({geometry, rr.Geometry.from_json(geometry.to_json())}), 1)

    def test_bad_ones(self) -> None:
        for arguments in ((0, 8, 2), (2, 8, 9), (2, 70000, 2), (2, "8", 2), (2, 8, 2, [1, 0]), (2, 8, 2, [])):
            with self.assertRaises(rr.InvalidArgumentError, msg=str(arguments)):
                rr.Geometry(*arguments)  # type: ignore[arg-type]


_MODEL_CONFIG = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "time_step_limit": [0.0, float("inf")],
}


class ModelConfigTest(unittest.TestCase):
    def test_every_form_is_the_same(self) -> None:
        class Config:
            def to_dict(self) -> dict[str, object]:
                return _MODEL_CONFIG | {"dtype": np.float32}

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "config.json")
            path.write_text(json.dumps(_MODEL_CONFIG))
            nested = {"model_type": "wrapped", "text_config": types.MappingProxyType(_MODEL_CONFIG)}
            mappings = (types.MappingProxyType(_MODEL_CONFIG), collections.UserDict(_MODEL_CONFIG), nested)
            forms = (_MODEL_CONFIG, Config(), path, str(path), folder, *mappings)
            made = [rr.Geometry.from_hf_config(form) for form in forms]
        geometry = rr.Geometry(61, 256, 8, range(3, 61))
        for other in made:
            self.assertEqual(other, geometry)

    def test_megatron(self) -> None:
        class Config:
            num_layers = 0

        config = Config()
        config.__dict__.update(num_layers=61, num_moe_experts=256, moe_router_topk=8, moe_layer_freq=[0] * 3 + [1] * 58)
        config.__dict__.update(params_dtype=np.float32, moe_router_score_function="sigmoid", init_method=print)
        self.assertEqual(rr.Geometry.from_megatron_config(config), rr.Geometry.from_hf_config(_MODEL_CONFIG))
        fields = {"num_layers": 4, "num_moe_experts": 8, "moe_router_topk": 2, "moe_layer_freq": [0, 1, 0, 1]}
        self.assertEqual(rr.Geometry.from_megatron_config(fields), rr.Geometry(4, 8, 2, [1, 3]))

    def test_rejections(self) -> None:
        with self.assertRaisesRegex(rr.InvalidArgumentError, "no routed experts"):
            rr.Geometry.from_hf_config({"model_type": "llama", "num_hidden_layers": 4})
        with self.assertRaisesRegex(rr.InvalidArgumentError, "num_experts_per_tok"):
            rr.Geometry.from_hf_config({"model_type": "mixtral", "num_hidden_layers": 4, "num_local_experts": 8})
        with self.assertRaises(rr.InvalidArgumentError):
            rr.Geometry.from_megatron_config({"num_layers": 4})


class ErrorTest(unittest.TestCase):
    def test_every_code_has_a_class(self) -> None:
        kinds = errors.RoutingReplayError.__subclasses__()
        self.assertEqual(len({kind.code for kind in kinds}), 16)
        for kind in kinds:
            error = errors.from_detail({"code": 1, "code_name": kind.code, "message": "m"})
            self.assertIs(type(error), kind)
            self.assertEqual(error.code, kind.code)
        self.assertIs(type(errors.from_detail({"code_name": "NEW", "message": "m"})), rr.UnknownError)

    def test_pickle(self) -> None:
        error = rr.InvalidArgumentError("bad", reason="ID_RANGE", row=3, layer=4)
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual(type(copy), type(error))
        self.assertEqual((copy.reason, copy.row, copy.layer), ("ID_RANGE", 3, 4))
        self.assertEqual(str(copy), "INVALID_ARGUMENT (ID_RANGE): bad")


class EndpointTest(unittest.TestCase):
    def test_bad_ones_are_rejected_at_once(self) -> None:
        for endpoint in ("server", "a:b:c", ":1", "file:", "server:0"):
            with self.assertRaises(rr.InvalidArgumentError, msg=endpoint):
                rr.Client(endpoint)
        os.environ.pop("ROUTING_REPLAY_ENDPOINT", None)
        with self.assertRaises(rr.InvalidArgumentError):
            rr.Client()
        os.environ["ROUTING_REPLAY_ENDPOINT"] = "server:7400"
        self.addCleanup(os.environ.pop, "ROUTING_REPLAY_ENDPOINT")
        rr.Client().close()

    def test_a_file_is_waited_for(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "endpoint")
            client = rr.Client(f"file:{path}", call_timeout=0.2)
            with self.assertRaises(rr.DeadlineExceededError):
                client.server_info()
            client = rr.Client(f"file:{path}", call_timeout=2)
            writer = threading.Timer(0.2, lambda: path.write_text("127.0.0.1:9\n"))
            writer.start()
            with self.assertRaises(rr.UnavailableError):
                client.server_info()
            writer.join()


class ArgumentTest(ServerTest):
    """No value is rounded, wrapped or cut on its way to the library."""

    NO_INTEGERS = (1.5, 1.0, np.float64(2), True, np.True_, "1", None, [1], float("nan"), 2**63, -(2**63) - 1)

    def setUp(self) -> None:
        # Some appends of the tests leave a gap before their rows. They fail, and the client would log each failure.
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run(self.run_name, rr.Geometry(1, 8, 1))

    def rejected(self, field: str, function: Any, *arguments: Any, **options: Any) -> None:
        with self.assertRaises(rr.InvalidArgumentError, msg=f"{field}: {arguments} {options}") as caught:
            function(*arguments, **options)
        self.assertEqual((caught.exception.field, caught.exception.reason), (field, "FIELD"))

    def test_appends(self) -> None:
        rows = np.zeros((2, 1, 1), np.uint8)

        def plan(sample: Any = "s", rows: Any = rows, **options: Any) -> None:
            self.run_.append(sample, rows, **options)

        names = {"num_tokens": "seal_num_tokens", "restart": "restart_nonce"}
        for name in ("row_start", "num_tokens", "group", "weight_version", "revision", "restart"):
            plan(**{name: np.int64(3)}, **({"row_start": 1} if name == "num_tokens" else {}))
            for value in self.NO_INTEGERS:
                # A restart nonce has 64 bits without a sign, so 2**63 is valid. The type is tested first, because newer
                # versions of numpy raise an error if a value of theirs is compared with such a large int.
                if name == "restart" and type(value) is int and value == 2**63:
                    value = 2**64
                if value is not None or name in ("revision", "restart"):
                    self.rejected(f"append.{names.get(name, name)}", plan, **{name: value})
        for value in ([(0.5, 1)], [(0, 1, 2)], [3], 3, "01", [(0, 2**63)]):
            self.rejected("append.unrecorded", plan, unrecorded=value)
        self.rejected("append.rows", plan, rows=None, unrecorded=[(-(2**62), 2**62)] * 3)
        for value in ((0, 1.5), (0,), 2, "01"):
            self.rejected("append.tensor.take", plan, take=value)
        self.rejected("append.tensor.take", plan, rows=None, take=(0, 1))
        for value in ([0.0], [True], [2**31], 5):
            self.rejected("layers", plan, layers=value)
        self.rejected("layers", plan, layers="some")
        for name in ("weight_label", "engine", "producer"):
            for value in (3, b"text", "\ud800"):
                self.rejected(f"append.{name}", plan, **{name: value})
        self.rejected("append.producer", plan, producer="nobody")
        self.rejected("append.sample", plan, sample=b"s")
        for field, value in (("raw_size", 1.5), ("shape", [1.5, 1, 1]), ("encoding", 3), ("dtype", 8)):
            payload = rr.Payload(b"1", **{"dtype": "U8", "shape": (1, 1, 1), field: value})
            self.rejected(f"append.tensor.{field}", plan, rows=payload)
        for data in (None, 5, memoryview(b"1234")[::2]):
            self.rejected("payload", plan, rows=rr.Payload(data, dtype="U8", shape=(2, 1, 1)))  # type: ignore[arg-type]

    def test_reads(self) -> None:
        def read(samples: Any = ("s",), layers: Any = None, producer: Any = "rollout") -> None:
            self.run_.read(samples, layers=layers, producer=producer)

        read(layers=np.array([0]))
        for layers in ([], (), np.empty(0, int), [0.0], [2**31], "0", 0):
            self.rejected("layers", read, layers=layers)
        for samples in ("s", 3, rr.SampleRead("s")):
            self.rejected("samples", read, samples)
        self.rejected("samples[1]", read, ["s", 1.5])
        self.rejected("samples[0].rows", read, [rr.SampleRead("s", rows=[(0, 1.5)])])  # type: ignore[list-item]
        self.rejected("samples[0].num_tokens", read, [rr.SampleRead("s", num_tokens=1.5)])  # type: ignore[arg-type]
        self.rejected("samples[0].handle", read, [rr.SampleRead(handle=2**70)])
        self.rejected("samples[0].token_checks", read, [rr.SampleRead("s", token_checks=[rr.TokenCheck(1, 2**32)])])
        for producer in ("nobody", 1, None):
            self.rejected("producer", read, producer=producer)

    def test_calls(self) -> None:
        run = rr.Client("127.0.0.1:9", call_timeout=1)
        geometry = rr.Geometry(1, 8, 1)
        for name, value in (
            ("ttl", -1),
            ("ttl", float("nan")),
            ("ttl", "1"),
            ("block_rows", 1.5),
            ("block_rows", 2**31),
        ):
            self.rejected(name, run.run, "r", geometry, **{name: value})
        for codec in ("ZIP", "raw", 1):
            self.rejected("codec", run.run, "r", geometry, codec=codec)
        self.rejected("run", run.run, 5)
        for value in (1.5, True, 2**63):
            self.rejected("rows", self.run_.truncate, "s", value)
            self.rejected("expected_revision", self.run_.truncate, "s", 1, expected_revision=value)
            self.rejected("groups", self.run_.release_groups, 0, value)
        for producer in ("nobody", None, 1, []):
            self.rejected("producer", self.run_.stat, "s", producer=producer)
        for samples in ("s", 5, [b"s"]):
            self.rejected("samples", self.run_.stat_many, samples)

    def test_times_and_sizes(self) -> None:
        for value in (-1, -0.5, float("nan"), True, "1", [1], 1j):
            self.rejected("call_timeout", rr.Client, "127.0.0.1:9", call_timeout=value)
            self.rejected("call_timeout", aio.Client, "127.0.0.1:9", call_timeout=value)
            for name in ("queue_timeout", "append_timeout"):
                self.rejected(name, self.run_.appender, **{name: value})
            appender = self.run_.appender()
            self.rejected("timeout", appender.flush, value)
            self.rejected("timeout", appender.close, value)
            self.rejected("timeout", self.client.close, value)
            appender.close()
        for value in (-1, 1.5, 2**63, "1"):
            self.rejected("max_queued_bytes", self.run_.appender, max_queued_bytes=value)
        for on_full in ("wait", 1, []):
            self.rejected("on_full", self.run_.appender, on_full=on_full)
        server = Server()
        self.addCleanup(server.stop)
        client = rr.Client(server.endpoint)
        run = client.run("r", rr.Geometry(1, 8, 1))
        server.stop()
        endless = run.appender(queue_timeout=math.inf, append_timeout=math.inf)
        endless.append("s", [[[1]]])
        with self.assertRaises(rr.DeadlineExceededError):
            endless.flush(0.05)
        endless.close(0)
        client.close(math.inf)

    def test_geometries(self) -> None:
        self.rejected("geometry.num_layers", rr.Geometry, 2.5, 8, 1)
        self.rejected("geometry.num_layers", rr.Geometry, 2**32, 8, 1)
        self.rejected("geometry.num_experts", rr.Geometry, 2, [8, 8.5], 1)
        self.rejected("geometry.top_k", rr.Geometry, 2, 8, True)
        self.rejected("geometry.moe_layers", rr.Geometry, 2, 8, 1, [0, 1.5])
        self.assertEqual(rr.Geometry(2, np.array(8), 1), rr.Geometry(2, 8, 1))


class LibraryTest(ServerTest):
    def open(self, geometry: rr.Geometry) -> rr.Run:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        return client.run(self.run_name, geometry)

    def test_token_check(self) -> None:
        check = rr.token_check([1, 2, 3])
        self.assertEqual(check, rr.TokenCheck(3, rr.token_check(np.array([1, 2, 3], np.int64)).crc32c))

    def test_token_ids_have_one_rule(self) -> None:
        run = self.open(rr.Geometry(1, 8, 1))
        rows = np.zeros((2, 1, 1), np.uint8)
        cases = (
            ([], "LENGTH"),
            (np.empty(0, np.uint32), "LENGTH"),
            ([[1, 2]], "SHAPE"),
            (7, "SHAPE"),
            ([[1], [2, 3]], "SHAPE"),
            ([1.0, 2.0], "DTYPE"),
            ([True, False], "DTYPE"),
            (["a", "b"], "DTYPE"),
            ([1, None], "DTYPE"),
            ([1, -1], "FIELD"),
            (np.array([2**32, 1], np.uint64), "FIELD"),
        )
        for tokens, reason in cases:
            with self.assertRaises(rr.InvalidArgumentError, msg=repr(tokens)) as caught:
                rr.token_check(tokens)
            self.assertEqual((caught.exception.reason, caught.exception.field), (reason, "tokens"), repr(tokens))
            with self.assertRaises(rr.InvalidArgumentError, msg=repr(tokens)) as caught:
                run.append("s", rows, tokens=tokens)
            error = caught.exception
            self.assertEqual((error.reason, error.field, error.sample), (reason, "append.token_ids", "s"))
        wide = np.arange(40, dtype=np.int64)[::-2]
        for tokens in (wide, wide.astype(">i4"), wide.astype(np.uint8), wide.tolist()):
            self.assertEqual(rr.token_check(tokens), rr.token_check(np.ascontiguousarray(wide, np.uint32)))

    def test_handles(self) -> None:
        self.assertGreaterEqual(rr.sample_handle("math-7/0"), 0)
        with self.assertRaises(rr.InvalidArgumentError):
            rr.sample_handle("with space")
        for sample in (7, None, b"s", "\ud800"):
            with self.subTest(sample), self.assertRaises(rr.InvalidArgumentError):
                rr.sample_handle(sample)

    def test_nothing_of_another_package_is_loaded(self) -> None:
        code = """
import sys, routing_replay, routing_replay.aio, routing_replay.engines
print([name for name in sys.modules if name.split(".")[0] in ("grpc", "google", "torch")])
"""
        finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(finished.stdout.strip(), "[]")

    def test_calls_give_up_the_gil(self) -> None:
        geometry = rr.Geometry(64, 256, 8)
        rows = np.tile(np.arange(8, dtype=np.int32), (20000, 64, 1))
        run = self.open(geometry)
        ticks = 0
        done = threading.Event()

        def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                time.sleep(0.0005)

        thread = threading.Thread(target=tick)
        thread.start()
        while ticks == 0:
            time.sleep(0.001)
        before = ticks
        run.append("s", rows)
        during = ticks - before
        done.set()
        thread.join()
        self.assertGreater(during, 0)

    def test_a_missing_library_is_named(self) -> None:
        environment = {**os.environ, "ROUTING_REPLAY_LIBRARY_DIR": "/nowhere"}
        command = [sys.executable, "-c", "import routing_replay"]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertIn("is neither in", finished.stderr)

    def test_what_is_queued_at_exit_is_told(self) -> None:
        code = """
import os, sys, signal
import routing_replay as rr, routing_replay.appender as module
module._EXIT_TIMEOUT = 0.2
run = rr.Client(sys.argv[1]).run("r", rr.Geometry(1, 8, 1))
os.kill(int(sys.argv[2]), signal.SIGKILL)
run.append("s", [[[1]], [[2]]])
"""
        server = Server()
        self.addCleanup(server.stop)
        command = [sys.executable, "-c", code, server.endpoint, str(server.process.pid)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("1 appends have no outcome yet", finished.stderr)


if __name__ == "__main__":
    unittest.main()
