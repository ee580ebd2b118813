"""CUDA code is loaded only when a tensor of a GPU is used: a host without CUDA never loads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LIBRARIES = Path(os.environ["ROUTING_REPLAY_LIBRARY_DIR"])
KERNELS = "librouting_replay_trainer_cuda.so"

# Does on the CPU what a trainer does, then prints which CUDA libraries the process has loaded.
ON_THE_CPU = """
import numpy as np, routing_replay_trainer as trainer
from routing_replay_trainer import _core
geometry = {"num_layers": 2, "num_experts": 16, "top_k": 2}
source = trainer.LocalSource(geometry)
ids = np.tile(np.arange(2, dtype=np.int32), (7, 2, 1))
source.add("a", ids, num_tokens=8)
batch = {"format": "THD", "sequences": [{"sample": "a", "tokens": 8}], "cu_seqlens_padded": [0, 8], "total_rows": 8}
replay = source.fetch(trainer.plan(geometry, batch | {"partition": "contiguous"}))
assert (replay.indices[0][:7] == ids[:, 0]).all()
assert _core.cuda_library.cache_info().misses == 0
"""
ASKED = """
from routing_replay import errors
from routing_replay_trainer import _core
try:
    _core.cuda_library(0)
    print("runs")
except errors.FailedPreconditionError as error:
    print(error.field)
    print(error)
"""
MAPPED = """
names = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "cuda" in line or "nvidia" in line}
print("mapped:", *sorted(names))
"""


def run(code: str, libraries: Path = LIBRARIES) -> list[str]:
    environment = {**os.environ, "ROUTING_REPLAY_LIBRARY_DIR": str(libraries)}
    done = subprocess.run(
        [sys.executable, "-c", code + MAPPED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class LazyCudaTest(unittest.TestCase):
    def test_work_on_the_cpu_loads_nothing_of_cuda(self) -> None:
        self.assertEqual(run(ON_THE_CPU), ["mapped:"])

    def test_the_kernels_come_when_they_are_asked_for(self) -> None:
        if not (LIBRARIES / KERNELS).exists():
            self.skipTest("this build has no CUDA kernels: there was no nvcc")
        said = run(ASKED)
        self.assertIn(said[0], ("runs", "cuda.driver", "cuda.device", "cuda.architecture"))
        self.assertIn(KERNELS, said[-1])

    def test_a_package_that_was_built_without_nvcc_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(LIBRARIES / "librouting_replay.so", directory)
            self.assertEqual(run(ON_THE_CPU, Path(directory)), ["mapped:"])
            field, message, mapped = run(ASKED, Path(directory))
        self.assertEqual((field, mapped), ("cuda.library", "mapped:"))
        self.assertIn("nvcc", message)


if __name__ == "__main__":
    unittest.main()
