"""The same seeded operations, good and bad, with the C++ client and with the Python client: the same results, the same
bytes, the same errors."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import unittest
from typing import Any

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr

DRIVER = os.environ["ROUTING_REPLAY_CLIENT_OPERATIONS"]
OPERATIONS = int(os.environ.get("ROUTING_REPLAY_PROPERTY_OPERATIONS", "250"))

GEOMETRIES = [
    {"num_layers": 3, "num_experts": 128, "top_k": 8},  # u8, RAW
    {"num_layers": 5, "moe_layers": [1, 2, 4], "num_experts": 384, "top_k": 6},  # u16, PACKED
    {"num_layers": 4, "moe_layers": [0, 3], "num_experts": [16, 300], "top_k": [1, 4]},  # mixed
]


def hexed(data: bytes) -> str:
    return data.hex()


class Cpp:
    """The C++ client behind a pipe."""

    def __init__(self, endpoint: str, run: str) -> None:
        self._process = subprocess.Popen(
            [DRIVER, endpoint, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, operation: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(operation) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.communicate()


class Python:
    """The Python client, told the same."""

    def __init__(self, endpoint: str, run: str) -> None:
        self._client = rr.Client(endpoint)
        self._name = run
        self._outcomes: list[rr.AppendOutcome] = []

    def do(self, operation: dict[str, Any]) -> Any:
        try:
            return getattr(self, "_" + operation["do"])(operation)
        except rr.RoutingReplayError as error:
            return {"error": error_json(error)}

    def stop(self) -> None:
        self._client.close()

    def _open(self, operation: dict[str, Any]) -> Any:
        geometry = rr.Geometry.from_json(operation["geometry"])
        self._run = self._client.run(self._name, geometry, strict=operation["strict"])
        self._appender = self._run.appender(on_outcome=self._outcomes.append)
        return json.loads(self._run.geometry.to_json())

    def _arguments(self, operation: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
        append = dict(operation["append"])
        names = {"seal_num_tokens": "num_tokens", "restart_nonce": "restart"}
        options = {names.get(key, key): value for key, value in append.items()}
        if "prefix" in options:
            options["prefix"] = rr.Prefix(**options["prefix"])
        options["tokens"] = operation["tokens"] or None
        tensor = operation["tensor"]
        if tensor is None:
            return options.pop("sample"), None, options
        basis = {"ALL_LAYERS": "all", "MOE_LAYERS": "moe", "EXPLICIT": tensor.get("layer_ids")}
        options["layers"] = basis.get(tensor.get("layer_basis"))
        fields = {
            key: tensor[key] for key in ("encoding", "compression", "raw_size", "dtype", "shape") if key in tensor
        }
        return options.pop("sample"), rr.Payload(bytes.fromhex(operation["payload"]), **fields), options

    def _append(self, operation: dict[str, Any]) -> Any:
        sample, rows, options = self._arguments(operation)
        self._appender.append(sample, rows, **options)
        try:
            self._appender.flush(60)
        except rr.RoutingReplayError as error:
            self.flushed = error
        return outcome_json(self._outcomes.pop())

    def _put(self, operation: dict[str, Any]) -> Any:
        sample, rows, options = self._arguments(operation)
        return outcome_json(self._run.put(sample, rows, **options))

    def _seal(self, operation: dict[str, Any]) -> Any:
        return state_json(self._run.seal(operation["sample"], operation["num_tokens"], revision=operation["revision"]))

    def _truncate(self, operation: dict[str, Any]) -> Any:
        expected = operation.get("expected_revision")
        return state_json(self._run.truncate(operation["sample"], operation["rows"], expected_revision=expected))

    def _stat(self, operation: dict[str, Any]) -> Any:
        return state_json(self._run.stat(operation["sample"], producer=operation["producer"]))

    def _list(self, operation: dict[str, Any]) -> Any:
        return [state_json(state) for state in self._run.list(producer=operation["producer"])]

    def _read(self, operation: dict[str, Any]) -> Any:
        request = dict(operation["request"])
        samples = []
        for asked in request.pop("samples"):
            checks = [rr.TokenCheck(*check) for check in asked.pop("token_checks", ())]
            samples.append(rr.SampleRead(**asked, token_checks=checks))
        return [self._rows_json(rows) for rows in self._run.read(samples, **request)]

    def _rows_json(self, sample: rr.SampleRows) -> Any:
        geometry = self._run.geometry
        out = {
            "status": sample.status,
            "message": sample.message,
            "committed_rows": sample.committed_rows,
            "revision": sample.revision,
            "unrecorded": [list(rows) for rows in sample.unrecorded],
            "weights": [[w.begin, w.end, w.version, w.label] for w in sample.weights],
            "rows": [list(rows) for rows in sample.row_ranges],
            "ids": ["" for _ in sample.layers],
        }
        if sample.content_id:
            out["content_id"] = sample.content_id
        if sample.num_tokens is not None:
            out["num_tokens"] = sample.num_tokens
        for i, layer in enumerate(sample.layers):
            if sample.rows is not None:
                top_k = geometry.top_k[geometry.moe_layers.index(layer)]
                out["ids"][i] = hexed(sample.rows[:, i, :top_k].astype("<u2").tobytes())
                assert not sample.rows[:, i, top_k:].any()
        return out

    def _release(self, operation: dict[str, Any]) -> Any:
        keep = operation["keep_until_checkpoint"]
        return vars(self._run.release(operation["samples"], keep_until_checkpoint=keep))

    def _release_groups(self, operation: dict[str, Any]) -> Any:
        keep = operation["keep_until_checkpoint"]
        return vars(self._run.release_groups(operation["begin"], operation["end"], keep_until_checkpoint=keep))

    def _drop(self, operation: dict[str, Any]) -> Any:
        return vars(self._run.drop())


def error_json(error: rr.RoutingReplayError) -> dict[str, Any]:
    out = {key: value for key, value in vars(error).items() if value is not None and not key.startswith("_")}
    out["code_name"] = out.pop("code")
    if error.missing_rows:
        out["missing_rows"] = [list(rows) for rows in error.missing_rows]
    return out


def outcome_json(outcome: rr.AppendOutcome) -> dict[str, Any]:
    out = {key: value for key, value in vars(outcome).items() if key not in ("error", "sequence")}
    if outcome.error is not None:
        out["error"] = error_json(outcome.error)
    return out


def state_json(state: rr.SampleState) -> dict[str, Any]:
    out = {key: value for key, value in vars(state).items() if value is not None and key != "idle_ms"}
    out["unrecorded"] = [list(rows) for rows in state.unrecorded]
    out["weights"] = [[w.begin, w.end, w.version, w.label] for w in state.weights]
    out["provenance"] = [list(vars(origin).values()) for origin in state.provenance]
    if state.token_check:
        out["token_check"] = [state.token_check.rows, state.token_check.crc32c]
    return out


class Comparable:
    """Results without what must differ between two runs: names, status numbers, and content ids but for which of them
    are equal."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._contents: dict[int, int] = {}

    def of(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {
                key: self._contents.setdefault(value, len(self._contents)) if key == "content_id" else self.of(value)
                for key, value in result.items()
                if key != "code"
            }
        if isinstance(result, list):
            return [self.of(item) for item in result]
        return result.replace(self._run, "RUN") if isinstance(result, str) else result


class Generator:
    """Random operations over a few samples; what is known of a sample is only used to be right now and then."""

    def __init__(self, seed: int, geometry: rr.Geometry) -> None:
        self._rng = np.random.default_rng(seed)
        self._geometry = geometry
        self._rows: dict[str, int] = {}
        self._revision: dict[str, int] = {}

    def next(self) -> dict[str, Any]:
        kinds = ["append", "put", "read", "seal", "truncate", "stat", "list", "release", "release_groups"]
        weights = [0.4, 0.1, 0.3, 0.04, 0.04, 0.06, 0.03, 0.02, 0.01]
        kind = str(self._rng.choice(kinds, p=weights))
        return {"do": kind, **getattr(self, "_" + kind)()}

    def learn(self, result: Any) -> None:
        """Of an outcome or a state."""
        if isinstance(result, dict) and "committed_rows" in result and "sample" in result:
            self._rows[result["sample"]] = result["committed_rows"]
            self._revision[result["sample"]] = result["revision"]

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _number(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high))

    def _pick(self, values: list[Any]) -> Any:
        return values[self._number(0, len(values))]

    def _sample(self) -> str:
        if self._chance(0.03):
            return self._pick(["", "with space", "x" * 129, "ünicode", "nul\0"])
        return f"s{self._number(0, 6)}"

    def _producer(self) -> str:
        return "trainer" if self._chance(0.1) else "rollout"

    def _ids(self, rows: int) -> np.ndarray:
        g = self._geometry
        ids = np.zeros((rows, len(g.moe_layers), g.max_top_k), np.int32)
        for i, (experts, top_k) in enumerate(zip(g.num_experts, g.top_k, strict=True)):
            ids[:, i : i + 1, :top_k] = random_routes(self._rng, rows, 1, experts, top_k)
        return ids

    def _spoil(self, ids: np.ndarray) -> np.ndarray:
        ids = ids.copy()
        row, layer = self._number(0, ids.shape[0]), self._number(0, ids.shape[1])
        way = self._number(0, 6)
        if way == 0:
            ids[row, layer, 0] = self._pick([-2, self._geometry.num_experts[layer], 65535, 2**31 - 1])
        elif way == 1 and ids.shape[2] > 1:
            ids[row, layer, 1] = ids[row, layer, 0]
        elif way == 2:
            ids[row, layer] = -1
        elif way == 3:
            ids[row] = -1  # Legal: the engine did not deliver it.
        elif way == 4:
            ids[:, layer] = 0
        else:
            ids = ids[:, :, :-1] if self._chance(0.5) else np.concatenate([ids, ids], axis=1)
        return ids

    def _tensor(self, rows: int) -> tuple[dict[str, Any], bytes]:
        ids = self._ids(rows)
        if rows > 0 and self._chance(0.15):
            ids = self._spoil(ids)
        g = self._geometry
        tensor: dict[str, Any] = {}
        if ids.shape[1] == len(g.moe_layers):
            basis = self._pick(["", "MOE_LAYERS", "ALL_LAYERS", "EXPLICIT"])
            if basis == "ALL_LAYERS":
                wide = np.zeros((rows, g.num_layers, ids.shape[2]), ids.dtype)
                wide[:, list(g.moe_layers)] = ids
                ids = wide
            if basis == "EXPLICIT":
                order = self._rng.permutation(len(g.moe_layers))
                ids = ids[:, order]
                tensor["layer_ids"] = [g.moe_layers[i] for i in order]
            if basis:
                tensor["layer_basis"] = basis
        dtype = self._pick(["i4", "i8", "i2"])
        array = np.ascontiguousarray(ids.astype(dtype))
        names = {"i4": "I32", "i8": "I64", "i2": "I16"}
        encoding = self._pick(["RAW", "NPY", "BASE64", "BASE64_NPY"])
        data = array.tobytes()
        if "NPY" in encoding:
            file = io.BytesIO()
            np.save(file, array)
            data = file.getvalue()
        else:
            tensor.update(dtype=names[dtype], shape=list(array.shape))
        if "BASE64" in encoding:
            data = base64.b64encode(data)
        tensor["encoding"] = encoding
        if self._chance(0.05):
            data = self._pick([data[:-1], data + b"\0", b"", data[: len(data) // 2], b"!" + data[1:]])
        if self._chance(0.05):
            wrong = [
                ("dtype", "F32"),
                ("shape", [1, 2]),
                ("shape", [-1, 2, 3]),
                ("compression", "ZSTD"),
                ("encoding", "X"),
            ]
            key, value = self._pick(wrong)
            tensor[key] = value
        return tensor, data

    def _append(self) -> dict[str, Any]:
        sample = self._sample()
        start = self._rows.get(sample, 0)
        if self._chance(0.25):
            start = self._pick([0, max(0, start - 5), start + 3, -1, 2**22 + 1, 2**40])
        rows = self._number(0, 400) if self._chance(0.8) else self._number(0, 4)
        append: dict[str, Any] = {"sample": sample, "producer": self._producer(), "row_start": start}
        recorded = rows
        unrecorded = []
        if rows > 10 and 0 <= start < 2**22 and self._chance(0.2):
            unrecorded = [[start + 2, start + 5], [start + 7, start + 8]]
            recorded = rows - 4
            append["unrecorded"] = unrecorded[::-1] if self._chance(0.1) else unrecorded
        revision = self._revision.get(sample, 0)
        if revision or self._chance(0.03):
            append["revision"] = revision if self._chance(0.9) else self._pick([0, revision + 1, -1])
        if self._chance(0.05):
            append["restart_nonce"] = self._pick([1, 2, 2**64 - 1])
        if self._chance(0.3):
            append["group"] = self._number(-3, 5)
        if self._chance(0.5):
            append["weight_version"] = self._pick([-1, 0, 17, 2**40, -5])
        if self._chance(0.1):
            append["weight_label"] = self._pick(["step-1", "x" * 200])
        if self._chance(0.1):
            append["engine"] = "test 1.0"
        if self._chance(0.1):
            append["seal_num_tokens"] = start + rows + 1 if self._chance(0.8) else self._number(0, 1000)
        if self._chance(0.05):
            append["prefix"] = {"sample": self._sample(), "rows": self._number(0, 300), "revision": 0}
        if self._chance(0.05):
            append["seal"] = True
        operation: dict[str, Any] = {"append": append, "rows": rows, "tensor": None, "payload": ""}
        operation["tokens"] = self._tokens(sample, start, rows)
        if self._chance(0.08):
            if rows > 0:
                append["unrecorded"] = [[start, start + rows]]
            else:
                append.pop("unrecorded", None)
            return operation
        tensor, data = self._tensor(recorded)
        return {**operation, "tensor": tensor, "payload": hexed(data)}

    def _put(self) -> dict[str, Any]:
        while True:
            operation = self._append()
            if operation["tensor"] is not None:
                return operation

    def _tokens(self, sample: str, start: int, rows: int) -> list[int]:
        if self._chance(0.3) or not 0 <= start < 10000:
            return []
        life = 7 if self._chance(0.05) else 1  # Another trajectory now and then.
        history = [(life * 31 + 7 * i) % 50000 for i in range(start + rows)]
        if self._chance(0.05):
            return history[: self._number(0, len(history) + 1)]
        return history if self._chance(0.5) else history[start:]

    def _asked(self) -> dict[str, Any]:
        sample = self._sample()
        asked: dict[str, Any] = {"sample": sample}
        rows = self._rows.get(sample, 0)
        if self._chance(0.1) and sample.startswith("s"):
            asked = {"handle": rr.sample_handle(sample)}
        if self._chance(0.6):
            ends = sorted(self._number(0, rows + 3) for _ in range(2 * self._number(1, 4)))
            ranges = [[begin, end] for begin, end in zip(ends[::2], ends[1::2], strict=True)]
            asked["rows"] = ranges[::-1] if self._chance(0.05) else ranges
        if self._chance(0.1):
            asked["num_tokens"] = rows + 1 if self._chance(0.7) else 3
        if rows > 0 and self._chance(0.1):
            history = [(31 + 7 * i) % 50000 for i in range(rows)]
            asked["token_checks"] = [[rows, rr.token_check(history).crc32c if self._chance(0.8) else 5]]
        if self._chance(0.1):
            asked["min_weight_version"] = self._number(-1, 20)
        if self._chance(0.1):
            asked["max_weight_version"] = self._number(-1, 20)
        return asked

    def _read(self) -> dict[str, Any]:
        request: dict[str, Any] = {"samples": [self._asked() for _ in range(self._number(0, 4))]}
        layers = list(self._geometry.moe_layers)
        if self._chance(0.5):
            request["layers"] = [layer for layer in layers if self._chance(0.6)]
        if self._chance(0.05):
            request["layers"] = self._pick([[99], [-1], layers[::-1], [2**40]])
        request["producer"] = self._producer()
        return {"request": request}

    def _seal(self) -> dict[str, Any]:
        sample = self._sample()
        tokens = self._rows.get(sample, 0) + 1 if self._chance(0.7) else self._number(0, 500)
        return {"sample": sample, "num_tokens": tokens, "revision": self._revision.get(sample, 0)}

    def _truncate(self) -> dict[str, Any]:
        sample = self._sample()
        operation: dict[str, Any] = {"sample": sample, "rows": self._number(0, self._rows.get(sample, 0) + 2)}
        if self._chance(0.5):
            operation["expected_revision"] = self._revision.get(sample, 0)
        return operation

    def _stat(self) -> dict[str, Any]:
        return {"sample": self._sample(), "producer": self._producer()}

    def _list(self) -> dict[str, Any]:
        return {"producer": self._producer()}

    def _release(self) -> dict[str, Any]:
        return {"samples": [self._sample() for _ in range(self._number(1, 3))], **self._keep()}

    def _release_groups(self) -> dict[str, Any]:
        begin = self._number(-3, 5)
        return {"begin": begin, "end": begin + self._number(-1, 3), **self._keep()}

    def _keep(self) -> dict[str, Any]:
        return {"keep_until_checkpoint": self._number(0, 1) == 1}


class PropertyTest(ServerTest):
    def compare(self, seed: int, geometry: dict[str, Any], strict: bool) -> None:
        names = f"cpp-{seed}", f"python-{seed}"
        cpp, python = Cpp(self.server.endpoint, names[0]), Python(self.server.endpoint, names[1])
        self.addCleanup(cpp.stop)
        self.addCleanup(python.stop)
        comparable = Comparable(names[0]), Comparable(names[1])
        generator = Generator(seed, rr.Geometry.from_json(geometry))
        seen: dict[str, int] = {}
        operations = [{"do": "open", "geometry": geometry, "strict": strict}]
        for step in range(OPERATIONS):
            operation = operations.pop() if operations else generator.next()
            one, other = cpp.do(operation), python.do(json.loads(json.dumps(operation)))
            self.assertEqual(
                comparable[0].of(one),
                comparable[1].of(other),
                f"seed {seed}, step {step}: {json.dumps(operation)[:2000]}",
            )
            generator.learn(one)
            if isinstance(one, dict) and "error" in one:
                kind = f"{one['error']['code_name']} {one['error'].get('reason')}"
                seen[kind] = seen.get(kind, 0) + 1
        self.assertGreater(len(seen), 5, seen)
        print(f"seed {seed}: {OPERATIONS} operations, refusals: {seen}")
        self.assertEqual(cpp.do({"do": "drop"}), python.do({"do": "drop"}))

    def test_same_results(self) -> None:
        for seed, geometry in enumerate(GEOMETRIES):
            with self.subTest(seed=seed):
                self.compare(seed, geometry, strict=seed == 1)

    def test_bad_geometries(self) -> None:
        cpp, python = Cpp(self.server.endpoint, "bad"), Python(self.server.endpoint, "bad")
        self.addCleanup(cpp.stop)
        self.addCleanup(python.stop)
        good = GEOMETRIES[0]
        for wrong in (
            {"num_layers": 0},
            {"num_layers": 10**6},
            {"num_experts": 0},
            {"num_experts": 70000},
            {"num_experts": [1, 2]},
            {"num_experts": "8"},
            {"top_k": 0},
            {"top_k": 200},
            {"moe_layers": [2, 1]},
            {"moe_layers": [7]},
            {"moe_layers": []},
            {"unknown": 1},
        ):
            operation = {"do": "open", "geometry": {**good, **wrong}, "strict": False}
            one = cpp.do(operation)
            self.assertEqual(Comparable("bad").of(one), Comparable("bad").of(python.do(operation)))
            self.assertEqual(one["error"]["code_name"], "INVALID_ARGUMENT", one)


if __name__ == "__main__":
    unittest.main()
