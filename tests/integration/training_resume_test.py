"""A training that is killed between two checkpoints and resumed replays the same rows, bit for bit.

    training_resume_test.py

The trainer is a process of its own: it reads the rows of a step, releases them for a checkpoint to come, and writes a
checkpoint every few steps. It is killed with SIGKILL at points that a seed chooses.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

import routing_replay as rr

sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
from support import Server, random_routes

RUN = "training"
STEPS = 9
SAMPLES = 3
STEPS_PER_CHECKPOINT = 3
GEOMETRY = rr.Geometry(num_layers=4, num_experts=200, top_k=4)


def names(step: int) -> list[str]:
    return [f"{step}/{i}" for i in range(SAMPLES)]


def roll_out(run: rr.Run, steps: range, life: int = 0) -> list[str]:
    """The samples of the steps; the digest of each step."""
    digests = []
    for step in steps:
        rng = np.random.default_rng([life, step])
        digest = hashlib.sha256()
        for name in names(step):
            routes = random_routes(rng, int(rng.integers(1, 700)), 4, 200, 4)
            run.append(name, routes, group=step, weight_version=step, seal=True)
            digest.update(routes.astype(np.uint8).tobytes())
        digests.append(digest.hexdigest())
    run.flush()
    return digests


class Training:
    """What a training keeps on disk: its own checkpoint, what each step replayed, and the run's checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.replayed = directory / "replayed"
        self.state = directory / "state"
        self.samples = directory / "samples"

    def next_step(self) -> int:
        return json.loads(self.state.read_text()) if self.state.exists() else 0

    def steps(self) -> list[tuple[int, str]]:
        if not self.replayed.exists():
            return []
        lines = [line.split() for line in self.replayed.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(int(step), digest) for step, digest in lines]

    def train(self, endpoint: str) -> None:
        with rr.Client(endpoint) as client, self.replayed.open("a") as log:
            run = client.run(RUN)
            for step in range(self.next_step(), STEPS):
                digest = hashlib.sha256()
                for rows in run.read(names(step), wait=True):
                    if not rows.ok:
                        raise RuntimeError(f"step {step}: {rows.status}: {rows.message}")
                    digest.update(rows.rows.astype(np.uint8).tobytes())
                print(step, digest.hexdigest(), file=log, flush=True)
                time.sleep(0.03)  # The step itself.
                run.release_groups(step, step + 1, keep_until_checkpoint=True)
                if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                    # First its own: what the run's checkpoint gives back, this training never asks for again.
                    written = self.state.with_suffix(".new")
                    written.write_text(json.dumps(step + 1))
                    written.replace(self.state)
                    run.checkpoint(self.samples, (0, step + 1))

    def run_until(self, endpoint: str, lines: int, delay: float) -> bool:
        """Kills it `delay` seconds after it has replayed so many steps. False: it came to its end before."""
        command = [sys.executable, __file__, "train", endpoint, str(self.state.parent)]
        trainer = subprocess.Popen(command)
        while trainer.poll() is None and len(self.steps()) < lines:
            time.sleep(0.002)
        time.sleep(delay)
        killed = trainer.poll() is None
        trainer.kill()
        if trainer.wait() != 0 and not killed:
            raise RuntimeError("the trainer failed")
        return killed


class TrainingResumeTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.training = Training(self.directory)

    def serve(self) -> rr.Client:
        self.server = Server()
        self.addCleanup(self.server.stop)
        client = rr.Client(self.server.endpoint)
        self.addCleanup(client.close)
        return client

    def test_killed_anywhere_it_replays_the_same_rows(self) -> None:
        choose = random.Random(1)
        client = self.serve()
        run = client.run(RUN, GEOMETRY)
        expected = roll_out(run, range(STEPS))
        self.assertTrue(self.training.run_until(self.server.endpoint, STEPS_PER_CHECKPOINT - 1, 0))
        while self.training.run_until(
            self.server.endpoint, len(self.training.steps()) + choose.randint(1, 4), choose.random() * 0.02
        ):
            pass
        replayed = self.training.steps()
        self.assertGreater(len(replayed), STEPS, "no step was replayed again")
        self.assertEqual({step for step, _ in replayed}, set(range(STEPS)))
        for step, digest in replayed:
            self.assertEqual(digest, expected[step], f"step {step}")
        self.assertEqual(run.list(), [])

    def test_a_server_that_is_lost_comes_back_from_the_checkpoint(self) -> None:
        client = self.serve()
        expected = roll_out(client.run(RUN, GEOMETRY), range(STEPS))
        self.assertTrue(self.training.run_until(self.server.endpoint, 2 * STEPS_PER_CHECKPOINT + 1, 0))
        next_step = self.training.next_step()
        client.run(RUN).checkpoint(self.training.samples, release_awaiting=False)
        self.server.stop()
        client = self.serve()
        restored = client.restore(self.training.samples)
        self.assertEqual(restored.samples, STEPS * SAMPLES)
        self.assertFalse(self.training.run_until(self.server.endpoint, 10 * STEPS, 0))
        again = [step for step, _ in self.training.steps()][-(STEPS - next_step) :]
        self.assertEqual(again, list(range(next_step, STEPS)))
        for step, digest in self.training.steps():
            self.assertEqual(digest, expected[step], f"step {step}")

    def test_what_is_rolled_out_anew_replaces_what_was_left(self) -> None:
        client = self.serve()
        old = roll_out(client.run(RUN, GEOMETRY), range(STEPS))
        self.assertTrue(self.training.run_until(self.server.endpoint, STEPS_PER_CHECKPOINT + 2, 0))
        next_step = self.training.next_step()
        run = client.run(RUN, GEOMETRY, resume_at=next_step)
        self.assertEqual(run.dropped.samples, (STEPS - next_step) * SAMPLES)
        before = len(self.training.steps())
        new = roll_out(run, range(next_step, STEPS), life=1)
        self.assertFalse(self.training.run_until(self.server.endpoint, 10 * STEPS, 0))
        self.assertEqual(self.training.steps()[before:], list(zip(range(next_step, STEPS), new, strict=True)))
        for step, digest in self.training.steps()[:before]:
            self.assertEqual(digest, old[step], f"step {step}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        Training(Path(sys.argv[3])).train(sys.argv[2])
    else:
        unittest.main()
