"""deploy/slurm/train.sbatch with a stand-in for srun that runs all tasks on this machine.

Usage: slurm_test.py SERVER RRCTL
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

RRCTL, SERVER = (Path(sys.argv.pop()).resolve() for _ in range(2))
HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[1] / "deploy/slurm/train.sbatch"


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as found:
        found.bind(("::", 0))
        return found.getsockname()[1]


class SlurmTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.submit = Path(directory.name)
        programs = self.submit / "bin"
        programs.mkdir()
        shutil.copy(HERE / "srun", programs)
        for program in (SERVER, RRCTL):
            (programs / program.name).symlink_to(program)
        # The script calls hostname for the name by which other nodes reach this one. On a test machine, only
        # "localhost" is sure to resolve.
        (programs / "hostname").write_text("#!/bin/sh\necho localhost\n")
        (programs / "hostname").chmod(0o755)
        self.job = self.submit / "routing-replay-4711"
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_SUBMIT_DIR": str(self.submit),
            "ROUTING_REPLAY_PORT": str(free_port()),
        }

    def start(self, *command: str, **environment: str) -> subprocess.Popen:
        job = subprocess.Popen(
            [SCRIPT, *command],
            env={**self.environment, **environment},
            cwd=self.submit,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.kill)
        return job

    def assert_server_drained(self):
        self.assertFalse((self.job / "endpoint").exists())
        self.assertIn('"event":"stopped"', (self.job / "server.log").read_text())

    def test_every_task_finds_the_server(self):
        job = self.start(
            "sh", "-c", 'rrctl --write-out json status >"status-$SLURM_PROCID" && echo "task $SLURM_PROCID"'
        )
        said, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, said)
        self.assertEqual(sorted(said.split("\n")), ["", "task 0", "task 1"])
        for rank in range(2):
            self.assertIn("memory", (self.submit / f"status-{rank}").read_text())
        self.assert_server_drained()

    def test_a_requeued_job_waits_for_its_own_server(self):
        self.job.mkdir()
        (self.job / "endpoint").write_text("127.0.0.1:1\n")
        job = self.start("sh", "-c", 'rrctl --timeout 5 status && cat "${ROUTING_REPLAY_ENDPOINT#file:}"')
        said, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, said)
        self.assertNotIn("127.0.0.1:1\n", said)

    def test_the_training_s_exit_status_is_the_job_s(self):
        job = self.start("sh", "-c", "exit $((SLURM_PROCID * 3))")
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 3)
        self.assert_server_drained()

    def test_a_server_that_cannot_start_ends_the_job_and_says_why(self):
        job = self.start("touch", "trained", ROUTING_REPLAY_FLAGS="--no-such-flag")
        said, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1)
        self.assertIn("--no-such-flag", said)
        self.assertFalse((self.submit / "trained").exists())

    def test_a_warned_job_lets_the_server_drain(self):
        job = self.start("sh", "-c", "touch started-$SLURM_PROCID; exec sleep 600")
        deadline = time.monotonic() + 60
        while len(list(self.submit.glob("started-*"))) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(60), 143)
        self.assert_server_drained()

    def test_it_needs_a_command(self):
        job = self.start()
        said, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 2)
        self.assertIn("usage", said)


if __name__ == "__main__":
    unittest.main()
