"""Reads rows from files and appends them to a store."""

from __future__ import annotations

import io
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import ServerTest, random_routes

import routing_replay as rr
from routing_replay import files

GEOMETRY = rr.Geometry(num_layers=3, num_experts=32, top_k=4)
ROWS = random_routes(np.random.default_rng(1), 100, 3, 32, 4).astype(np.uint8)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def safetensors(**arrays: np.ndarray) -> bytes:
    names = {"uint8": "U8", "int32": "I32", "float32": "F32"}
    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


class FilesTest(ServerTest):
    def setUp(self) -> None:
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        self.store = client.run(self.run_name, GEOMETRY)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def test_rows(self) -> None:
        path = self.directory / "rows.npy"
        path.write_bytes(npy(ROWS))
        both = safetensors(routed_experts=ROWS.astype(np.int32), loss=np.zeros(3, np.float32))
        for i, source in enumerate((path, str(path), npy(ROWS), both, bytearray(both))):
            recorded = files.rows(source)
            self.store.append(f"a/{i}", recorded, seal=True)
            self.store.put(f"b/{i}", recorded, seal=True)
        self.store.flush()
        for sample in [f"{kind}/{i}" for kind in "ab" for i in range(5)]:
            np.testing.assert_array_equal(self.store.read_one(sample).rows, ROWS)

    def test_trace(self) -> None:
        lengths = [40, 1, 59]
        (self.directory / "trace.npy").write_bytes(npy(ROWS))
        (self.directory / "index.json").write_text(json.dumps({"trace": {"seq_lens": lengths}}))
        index = json.dumps({"seq_lens": lengths}).encode()
        for kind, found in (
            ("a", files.trace(self.directory / "trace.npy")),
            ("b", files.trace(safetensors(x=ROWS), index)),
        ):
            for number, recorded in enumerate(found):
                self.store.append(f"{kind}/{number}", recorded, seal=True)
        self.store.flush()
        for kind in "ab":
            begin = 0
            for number, length in enumerate(lengths):
                got = self.store.read_one(f"{kind}/{number}")
                self.assertEqual(got.num_tokens, length + 1)
                np.testing.assert_array_equal(got.rows, ROWS[begin : begin + length])
                begin += length

    def test_a_file_that_is_cut_while_it_is_open(self) -> None:
        path = self.directory / "rows.npy"
        path.write_bytes(npy(np.concatenate([ROWS] * 40)))
        recorded = files.rows(path)
        with path.open("r+b") as file:
            file.truncate(200)
        for append in (self.store.append, self.store.put):
            with self.assertRaises(rr.InvalidArgumentError) as caught:
                append("s", recorded)
            self.assertEqual((caught.exception.reason, caught.exception.field), ("LENGTH", "payload"))

    def test_rejections(self) -> None:
        two = safetensors(a=ROWS, b=ROWS, c=np.zeros(3, np.float32))
        with self.assertRaises(rr.NotFoundError) as caught:
            files.rows(two)
        self.assertIn("a U8[100, 3, 4]", str(caught.exception))
        files.rows(two, tensor="b")
        for bad, reason in ((b"", "ENCODING"), (two[:-1], "LENGTH"), (npy(ROWS.astype(">u2")), "DTYPE")):
            with self.assertRaises(rr.InvalidArgumentError) as rejected:
                files.rows(bad)
            self.assertEqual(rejected.exception.reason, reason)
        with self.assertRaises(rr.InvalidArgumentError) as rejected:
            files.trace(npy(ROWS), b'{"seq_lens": [99]}')
        self.assertEqual(rejected.exception.reason, "ROW_COUNT")
        with self.assertRaises(rr.NotFoundError):
            files.trace(npy(ROWS), b"{}", name="x")
        with self.assertRaises(OSError):
            files.rows(self.directory / "nothing.npy")


if __name__ == "__main__":
    unittest.main()
