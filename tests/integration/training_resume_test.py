"""A training run that is killed between two checkpoints and resumed must replay the same rows, bit for bit.

    training_resume_test.py

The trainer is a process of its own. It reads the rows of each step; every few steps it writes a checkpoint and then
releases the samples that it contains. The test kills it with SIGKILL in each of its phases.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
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
STEPS = 12
SAMPLES = 3
PHASES = ("read", "replayed", "state", "exporting", "exported", "released")
STEPS_PER_CHECKPOINT = 3
# Trainers are forked from a process that has imported all modules, because imports take longer than the training.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__"])
GEOMETRY = rr.Geometry(num_layers=4, num_experts=200, top_k=4)


def names(step: int) -> list[str]:
    return [f"{step}/{i}" for i in range(SAMPLES)]


def roll_out(run: rr.Run, steps: range, life: int = 0) -> list[str]:
    """Appends the samples of the steps. Returns a digest of the rows of each step."""
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
    """A training run, which has these files: the trainer's own state, the digests of replayed steps, and the
    checkpoints of the run's samples."""

    def __init__(self, directory: Path) -> None:
        self.replayed = directory / "replayed"
        self.phase = directory / "phase"
        self.state = directory / "state"
        self.samples = directory / "samples"

    def next_step(self) -> int:
        return json.loads(self.state.read_text()) if self.state.exists() else 0

    def last_samples(self) -> Path | None:
        """Returns the newest complete checkpoint of the run's samples."""
        whole = [path for path in self.samples.glob("*") if path.name.isdecimal()]
        return max(whole, key=lambda path: int(path.name), default=None)

    def steps(self) -> list[tuple[int, str]]:
        if not self.replayed.exists():
            return []
        lines = [line.split() for line in self.replayed.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(int(step), digest) for step, digest in lines]

    def enter(self, step: int, phase: str) -> None:
        """Records the phase, and pauses so that the trainer can be killed in it."""
        written = self.phase.with_suffix(".new")
        written.write_text(f"{step} {phase}")
        written.replace(self.phase)
        time.sleep(0.01)

    def train(self, endpoint: str) -> None:
        with rr.Client(endpoint) as client, self.replayed.open("a") as log:
            run = client.run(RUN)
            for step in range(self.next_step(), STEPS):
                self.enter(step, "read")
                digest = hashlib.sha256()
                for rows in run.read(names(step), wait=True):
                    if not rows.ok:
                        raise RuntimeError(f"step {step}: {rows.status}: {rows.message}")
                    digest.update(rows.rows.astype(np.uint8).tobytes())
                print(step, digest.hexdigest(), file=log, flush=True)
                self.enter(step, "replayed")
                if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                    # The trainer's own state is written first: a trainer that resumes from it never reads the samples
                    # again that are released below.
                    written = self.state.with_suffix(".new")
                    written.write_text(json.dumps(step + 1))
                    written.replace(self.state)
                    self.enter(step, "state")
                    previous = self.last_samples()
                    following = self.samples / str(step + 1)
                    if previous != following:
                        self.enter(step, "exporting")
                        run.checkpoint(following, (0, step + 1), previous=previous)
                    self.enter(step, "exported")
                    run.release_groups(0, step + 1)
                    self.enter(step, "released")

    def run_until(self, endpoint: str, phase: str, step: int) -> bool:
        """Runs the trainer, and kills it when it is in this phase of step `step` or of a later step. Returns False if
        the trainer ended before that."""
        self.phase.unlink(missing_ok=True)
        trainer = PROCESSES.Process(target=self.train, args=(endpoint,))
        trainer.start()
        while trainer.is_alive():
            at = self.phase.read_text().split() if self.phase.exists() else ["-1", ""]
            if int(at[0]) >= step and at[1] == phase:
                break
            time.sleep(0.001)
        killed = trainer.is_alive()
        trainer.kill()
        trainer.join()
        if trainer.exitcode != 0 and not killed:
            raise RuntimeError("the trainer failed")
        return killed

    def run_to_end(self, endpoint: str) -> bool:
        return not self.run_until(endpoint, "never", 0)


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

    def test_killed_in_every_phase_it_replays_the_same_rows(self) -> None:
        client = self.serve()
        run = client.run(RUN, GEOMETRY)
        expected = roll_out(run, range(STEPS))
        for phase in PHASES:
            self.assertTrue(self.training.run_until(self.server.endpoint, phase, 0), phase)
        self.assertTrue(self.training.run_to_end(self.server.endpoint))
        replayed = self.training.steps()
        self.assertGreater(len(replayed), STEPS, "no step was replayed again")
        self.assertEqual({step for step, _ in replayed}, set(range(STEPS)))
        for step, digest in replayed:
            self.assertEqual(digest, expected[step], f"step {step}")
        self.assertEqual(run.list(), [])
        # The checkpoint still has every released sample.
        restored = client.restore(self.training.last_samples(), RUN + "-copy")
        self.assertEqual(restored.samples, STEPS * SAMPLES)

    def test_a_server_that_is_lost(self) -> None:
        client = self.serve()
        run = client.run(RUN, GEOMETRY)
        expected = roll_out(run, range(STEPS))
        digests = self.digests_of(run, range(STEPS_PER_CHECKPOINT))
        self.assertTrue(self.training.run_until(self.server.endpoint, "replayed", STEPS_PER_CHECKPOINT + 1))
        next_step = self.training.next_step()
        self.assertEqual(next_step, STEPS_PER_CHECKPOINT)
        self.server.stop()
        client = self.serve()
        client.restore(self.training.last_samples(), groups=(0, next_step))
        run = client.run(RUN, GEOMETRY, resume_at=next_step)
        self.assertEqual(run.dropped.samples, 0)
        self.assertEqual(self.digests_of(run, range(next_step)), digests)
        # The samples of the steps since the checkpoint were lost with the server, so they are generated again.
        self.assertEqual([rows.status for rows in run.read(names(next_step))], ["NOT_FOUND"] * SAMPLES)
        self.assertEqual(roll_out(run, range(next_step, STEPS)), expected[next_step:])
        self.assertTrue(self.training.run_to_end(self.server.endpoint))
        for step, digest in self.training.steps():
            self.assertEqual(digest, expected[step], f"step {step}")

    def test_what_is_rolled_out_anew_replaces_what_was_left(self) -> None:
        client = self.serve()
        old = roll_out(client.run(RUN, GEOMETRY), range(STEPS))
        self.assertTrue(self.training.run_until(self.server.endpoint, "replayed", STEPS_PER_CHECKPOINT + 1))
        next_step = self.training.next_step()
        run = client.run(RUN, GEOMETRY, resume_at=next_step)
        self.assertEqual(run.dropped.samples, (STEPS - next_step) * SAMPLES)
        before = len(self.training.steps())
        new = roll_out(run, range(next_step, STEPS), life=1)
        self.assertTrue(self.training.run_to_end(self.server.endpoint))
        self.assertEqual(self.training.steps()[before:], list(zip(range(next_step, STEPS), new, strict=True)))
        for step, digest in self.training.steps()[:before]:
            self.assertEqual(digest, old[step], f"step {step}")

    @staticmethod
    def digests_of(run: rr.Run, steps: range) -> list[str]:
        return [
            hashlib.sha256(b"".join(rows.rows.tobytes() for rows in run.read(names(step)))).hexdigest()
            for step in steps
        ]


if __name__ == "__main__":
    unittest.main()
