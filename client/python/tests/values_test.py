"""What needs no server: geometries, errors, endpoints, the package itself."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

import routing_replay as rr
from routing_replay import _messages, errors


class GeometryTest(unittest.TestCase):
    def test_uniform(self) -> None:
        geometry = rr.Geometry.uniform(48, 128, 8)
        self.assertEqual(geometry, rr.Geometry(num_layers=48, num_experts=np.int64(128), top_k=8))
        self.assertEqual(geometry.moe_layers, tuple(range(48)))
        self.assertEqual((geometry.num_experts, geometry.top_k), ((128,) * 48, (8,) * 48))
        self.assertEqual((geometry.dtype, geometry.raw_row_bytes), (np.uint8, 384))
        self.assertEqual(geometry.block_bytes(256), 256 * 384)
        self.assertEqual(geometry.block_bytes(256, "PACKED"), 256 * 384 * 7 // 8)
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
            made = [rr.Geometry.from_hf_config(form) for form in (_MODEL_CONFIG, Config(), path, str(path), folder)]
        geometry = rr.Geometry(61, 256, 8, range(3, 61))
        for other in made:
            self.assertEqual(other, geometry)
            self.assertEqual(other.routing, made[0].routing)
        self.assertIsNone(geometry.routing)

    def test_routing(self) -> None:
        geometry = rr.Geometry.from_hf_config(_MODEL_CONFIG)
        routing = rr.ModelRouting(
            model_type="deepseek_v3",
            score_function="sigmoid",
            renormalized=True,
            scaling_factor=2.5,
            group_limit=rr.GroupLimit(8, 4, 2),
            expert_bias="to_score",
            mtp_layers=1,
        )
        self.assertEqual(geometry.routing, routing)
        assert geometry.routing is not None
        self.assertEqual(geometry.routing.sources["num_experts"], "n_routed_experts")
        copy = pickle.loads(pickle.dumps(geometry))
        self.assertEqual((copy, copy.routing), (geometry, routing))

    def test_megatron(self) -> None:
        class Config:
            num_layers = 0

        config = Config()
        config.__dict__.update(num_layers=61, num_moe_experts=256, moe_router_topk=8, moe_layer_freq="[0]*3+[1]*58")
        config.__dict__.update(params_dtype=np.float32, moe_router_score_function="sigmoid", init_method=print)
        self.assertEqual(rr.Geometry.from_megatron_config(config), rr.Geometry.from_hf_config(_MODEL_CONFIG))
        fields = {"num_layers": 4, "num_moe_experts": 8, "moe_router_topk": 2, "moe_layer_freq": [0, 1, 0, 1]}
        self.assertEqual(rr.Geometry.from_megatron_config(fields), rr.Geometry(4, 8, 2, [1, 3]))

    def test_refusals(self) -> None:
        with self.assertRaisesRegex(rr.InvalidArgumentError, "no routed experts"):
            rr.Geometry.from_hf_config({"model_type": "llama", "num_hidden_layers": 4})
        with self.assertRaisesRegex(rr.InvalidArgumentError, "num_experts_per_tok"):
            rr.Geometry.from_hf_config({"model_type": "mixtral", "num_hidden_layers": 4, "num_local_experts": 8})
        with self.assertRaises(rr.InvalidArgumentError):
            rr.Geometry.from_megatron_config({"num_layers": 4})
        with self.assertRaises(FileNotFoundError):
            rr.Geometry.from_hf_config("/nowhere/config.json")


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
        error = rr.InvalidArgumentError("bad", reason="ID_RANGE", row=3, layer=4, missing_rows=[[1, 2]])
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual(type(copy), type(error))
        self.assertEqual((copy.reason, copy.row, copy.layer, copy.missing_rows), ("ID_RANGE", 3, 4, [(1, 2)]))
        self.assertEqual(str(copy), "INVALID_ARGUMENT (ID_RANGE): bad")


class EndpointTest(unittest.TestCase):
    def test_bad_ones_are_refused_at_once(self) -> None:
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


class CoreTest(unittest.TestCase):
    def test_token_check(self) -> None:
        check = rr.token_check([1, 2, 3])
        self.assertEqual(check, rr.TokenCheck(3, rr.token_check(np.array([1, 2, 3], np.int64)).crc32c))
        self.assertEqual(rr.token_check([]), rr.TokenCheck(0, 0))

    def test_handles(self) -> None:
        self.assertGreaterEqual(rr.sample_handle("math-7/0"), 0)
        with self.assertRaises(rr.InvalidArgumentError):
            rr.sample_handle("with space")

    def test_no_generated_code_in_the_default_pool(self) -> None:
        from google.protobuf import descriptor_pool

        self.assertIsNotNone(_messages.SealRequest(num_tokens=3).SerializeToString())
        with self.assertRaises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName("routing_replay.v1.SealRequest")

    def test_calls_give_up_the_gil(self) -> None:
        geometry = rr.Geometry.uniform(64, 256, 8)
        rows = np.tile(np.arange(8, dtype=np.int32), (20000, 64, 1))
        from routing_replay import _append, _core

        core = _core.Run({"run": "r", "geometry": json.loads(geometry.to_json())})
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
        _append.make_plan(core, True, "s", rows)
        during = ticks - before
        done.set()
        thread.join()
        self.assertGreater(during, 0)

    def test_a_missing_library_is_named(self) -> None:
        environment = {**os.environ, "ROUTING_REPLAY_LIBRARY_DIR": "/nowhere"}
        command = [sys.executable, "-c", "import routing_replay"]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertIn("librouting_replay.so is neither in", finished.stderr)

    def test_what_is_queued_at_exit_is_told(self) -> None:
        code = """
import routing_replay as rr, routing_replay.appender as module
module._EXIT_TIMEOUT = 0.2
from routing_replay import _core
from routing_replay._transport import Transport
core = _core.Run({"run": "r", "geometry": {"num_layers": 1, "num_experts": 8, "top_k": 1}})
appender = rr.Appender(Transport("127.0.0.1:9", False, 1), "r", core)
appender.append("s", [[[1]], [[2]]])
"""
        finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("1 appends have no outcome yet", finished.stderr)


if __name__ == "__main__":
    unittest.main()
