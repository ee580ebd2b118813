"""Exported runs, written by this test as the format describes, against the same rows in memory."""

from __future__ import annotations

import contextlib
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
from routing_replay import errors
from sources_test import Scenario, random_scenario

import routing_replay_trainer as trainer
from routing_replay_trainer.step import StepSource


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write(directory: Path, scenario: Scenario, **changes: Any) -> None:
    geometry = scenario.geometry
    samples: list[dict[str, Any]] = []
    for i, sample in enumerate(scenario.samples):
        if not sample.sent:
            continue
        rows = sample.rows[sample.recorded].astype("u1" if geometry["num_experts"] <= 256 else "<u2")
        file = directory / f"{i}.npy"
        np.save(file, rows)
        data, total = file.read_bytes(), len(sample.tokens)
        check = crc32c(sample.tokens[:-1].astype("<u4").tobytes())
        samples.append(
            {
                "sample": f"s{i}",
                "num_tokens": total,
                "unrecorded": sample.unrecorded,
                "revision": i,
                "content_id": 2**64 - 1 - i,
                "weights": [[0, total - 1, 7 + i, ""]],
                "token_checks": [[total - 1, check]],
                "file": file.name,
                "file_bytes": len(data),
                "crc32c": crc32c(data),
            }
        )
    index = json.dumps({"version": 2, "run": "r", "geometry": geometry, "samples": samples} | changes)
    index = index[:-1] + ",\n"
    (directory / "index.json").write_text(f'{index}"crc32c":"{crc32c(index.encode()):08x}"}}\n')


class DirectoryTest(unittest.TestCase):
    def directory(self) -> Path:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return Path(made.name)

    def test_random_runs(self) -> None:
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        for seed in range(12):
            with self.subTest(seed=seed):
                scenario = random_scenario(np.random.default_rng(seed))
                directory = self.directory()
                write(directory, scenario)
                source, local = trainer.DirectorySource(directory), scenario.local_source()
                self.assertEqual(source.run, "r")
                self.assertEqual(set(source.samples), {f"s{i}" for i, s in enumerate(scenario.samples) if s.sent})
                with contextlib.closing(StepSource(source)) as cached:
                    cached.begin_step()
                    for pp, cp in np.ndindex(scenario.pp, scenario.cp):
                        plan = scenario.plan(pp, cp)
                        expected = local.fetch(plan, sequences=scenario.sequences(), missing="live")
                        for one in (source, cached, cached):
                            batch = one.fetch(plan, sequences=scenario.sequences(), missing="live")
                            np.testing.assert_array_equal(batch.states, expected.states)
                            for ours, theirs in zip(batch.indices, expected.indices, strict=True):
                                np.testing.assert_array_equal(ours, theirs)
                            told = [(s["status"], s["unrecorded"], s["message"]) for s in batch.sequences]
                            self.assertEqual(
                                told, [(s["status"], s["unrecorded"], s["message"]) for s in expected.sequences]
                            )
                for i, record in enumerate(source.inspect(scenario.sequences())):
                    if scenario.samples[i].sent:
                        self.assertEqual(record["content_id"], 2**64 - 1 - i)
                        self.assertEqual(record["weights"][0][2], 7 + i)

    def test_what_the_trainer_recorded(self) -> None:
        scenario = random_scenario(np.random.default_rng(3))
        for sample in scenario.samples:
            sample.sent = True
        directory = self.directory()
        write(directory, scenario, producer="trainer")
        source = trainer.DirectorySource(directory)
        self.assertEqual(source.producer, "trainer")
        self.assertNotIn("NOT_FOUND", [record["status"] for record in source.inspect(scenario.sequences())])
        plan = scenario.plan(0, 0)
        batch = source.fetch(plan, sequences=scenario.sequences(), missing="live")
        expected = scenario.local_source().fetch(plan, sequences=scenario.sequences(), missing="live")
        np.testing.assert_array_equal(batch.states, expected.states)

    def test_other_tokens(self) -> None:
        scenario = random_scenario(np.random.default_rng(3))
        scenario.samples = scenario.samples[:1]
        scenario.samples[0].sent = True
        directory = self.directory()
        write(directory, scenario)
        source = trainer.DirectorySource(directory)
        tokens = scenario.samples[0].tokens.copy()
        said = [trainer.FetchSequence("s0", len(tokens), tokens)]
        self.assertEqual(source.inspect(said)[0]["status"], "OK")
        tokens[0] += 1
        self.assertEqual(
            source.inspect([trainer.FetchSequence("s0", len(tokens), tokens)])[0]["status"], "TOKENS_MISMATCH"
        )

    def test_typed_errors(self) -> None:
        scenario = random_scenario(np.random.default_rng(3))
        for sample in scenario.samples:
            sample.sent = True
        directory = self.directory()
        with self.assertRaises(errors.FailedPreconditionError) as caught:
            trainer.DirectorySource(directory)
        self.assertEqual((caught.exception.reason, caught.exception.field), ("NOT_COMMITTED", "index.json"))
        write(directory, scenario)
        source = trainer.DirectorySource(str(directory))
        file = directory / "0.npy"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with self.assertRaises(errors.DataLossError) as damaged:
            source.fetch(scenario.plan(0, 0), missing="live")
        self.assertEqual((damaged.exception.reason, damaged.exception.sample), ("CHECKSUM", "s0"))
        wider = random_scenario(np.random.default_rng(3))
        wider.geometry |= {"top_k": wider.geometry["top_k"] - 1}
        with self.assertRaises(errors.InvalidArgumentError) as other:
            source.fetch(wider.plan(0, 0), missing="live")
        self.assertEqual(other.exception.reason, "GEOMETRY_MISMATCH")
        write(directory, scenario, version=3)
        with self.assertRaises(errors.FailedPreconditionError) as newer:
            trainer.DirectorySource(directory)
        self.assertEqual(newer.exception.reason, "VERSION_MISMATCH")
        index = directory / "index.json"
        index.write_text(index.read_text().replace('"run": "r"', '"run": "s"'))
        with self.assertRaises(errors.DataLossError):
            trainer.DirectorySource(directory)


if __name__ == "__main__":
    unittest.main()
