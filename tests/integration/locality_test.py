"""Each of three rollout workers has a server on its own host, and every client gets the address of only one server. The
bytes of a row must cross the network only once.

    locality_test.py RRCTL        # or "work" or "train" instead of RRCTL: the test starts its processes so

Addresses of the loopback interface stand for hosts. Workers and trainer are separate processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
import unittest.mock
import urllib.request

import numpy as np
import routing_replay as rr
import routing_replay_trainer as rt
from routing_replay_trainer.integrations import _shared

sys.path.insert(0, os.environ["ROUTING_REPLAY_CLIENT_TESTS"])
from support import Server, random_routes, reserve_address

RRCTL = sys.argv.pop(1)
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
RUN, SAMPLES, ROWS = "locality", 6, 40
GEOMETRY = rr.Geometry(num_layers=4, num_experts=128, top_k=4)  # One byte per id.
BYTES = SAMPLES * ROWS * 4 * 4  # Bytes of one worker.


def routes(host: str) -> list[np.ndarray]:
    rng = np.random.default_rng(HOSTS.index(host))
    return [random_routes(rng, ROWS, 4, 128, 4) for _ in range(SAMPLES)]


def work() -> None:
    """Acts as a rollout worker: appends its samples, by `put` and `append` in turn, and prints their handles."""
    with rr.Client() as client:
        run = client.run(RUN, GEOMETRY)
        for i, rows in enumerate(routes(os.environ["ROUTING_REPLAY_PLACE"])):
            name = f"{run.place}math-{i}"
            put = run.put if i % 2 else run.append
            put(name, rows, group=0, seal=True)
        run.flush()
        print(json.dumps([run.handle(f"{run.place}math-{i}") for i in range(SAMPLES)]))


def train(column: list[int]) -> None:
    """Acts as a trainer rank: fetches the samples of these handles, and prints the ids."""
    sequences = [{"tokens": ROWS + 1} for _ in column]
    ends = [(ROWS + 1) * i for i in range(len(column) + 1)]
    batch = {"format": "THD", "sequences": sequences, "cu_seqlens_padded": ends, "total_rows": ends[-1]}
    with rr.Client() as client:
        run = client.run(RUN)
        plan = rt.plan(GEOMETRY, batch | {"partition": "contiguous"})
        replay = rt.ServiceSource(run).fetch(plan, sequences=[rt.FetchSequence(handle) for handle in column])
        print(json.dumps([layer.tolist() for layer in replay.indices]))


class LocalityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        port = reserve_address().rpartition(":")[2]
        cls.members = [f"{host}:{port}" for host in HOSTS]
        cls.operations = [f"{host}:{reserve_address().rpartition(':')[2]}" for host in HOSTS]
        for member, operations in zip(cls.members, cls.operations, strict=True):
            flags = ("--advertise", "shard:" + ",".join(cls.members), "--operations-listen", operations)
            cls.addClassCleanup(Server(*flags, listen=member).stop)
        cls.column, cls.received = [], []
        for member in cls.members:
            cls.column += cls.process("work", member)
            cls.received.append(cls.moved("routing_replay_ingest_bytes_total"))

    @classmethod
    def process(cls, role: str, member: str, *words: str) -> object:
        """Runs "work" or "train" as a process on the host of the server `member`. Returns what it prints."""
        environment = {"ROUTING_REPLAY_ENDPOINT": member, "ROUTING_REPLAY_PLACE": member.partition(":")[0]}
        command = [sys.executable, __file__, role, *words]
        done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    @classmethod
    def moved(cls, name: str) -> list[int]:
        """Returns the value of this counter on each server."""
        texts = [urllib.request.urlopen(f"http://{each}/metrics").read().decode() for each in cls.operations]
        return [
            int(float(line.split()[1])) for text in texts for line in text.splitlines() if line.startswith(name + " ")
        ]

    def rrctl(self, member: str, *words: str) -> list[dict]:
        command = [RRCTL, "--endpoint", member, "-w", "json", *words]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def test_bytes_cross_the_network_once(self) -> None:
        # A worker's bytes go only to the server on its own host.
        self.assertEqual(self.received, [[BYTES, 0, 0], [BYTES, BYTES, 0], [BYTES, BYTES, BYTES]])
        self.assertEqual([handle >> 56 for handle in self.column], [1] * SAMPLES + [2] * SAMPLES + [3] * SAMPLES)
        # From there they go to the rank that needs the rows. The rank gets only the address of the second server.
        indices = self.process("train", self.members[1], json.dumps(self.column))
        self.assertEqual(self.moved("routing_replay_egress_bytes_total"), [BYTES] * 3)
        step = [rows for host in HOSTS for rows in routes(host)]
        for layer in range(4):
            ids = np.array(indices[layer]).reshape(len(step), ROWS + 1, 4)[:, :ROWS]
            np.testing.assert_array_equal(ids, [rows[:, layer] for rows in step])

    def test_rrctl_needs_one_address(self) -> None:
        for member in self.members:
            held = {line["server"]: line["samples"] for line in self.rrctl(member, "status")}
            self.assertEqual(held, dict.fromkeys(self.members, SAMPLES))
            self.assertEqual(len(self.rrctl(member, "ls", RUN)), 3 * SAMPLES)
            self.assertEqual([run["samples"] for run in self.rrctl(member, "ls")], [3 * SAMPLES])
            checked = self.rrctl(member, "doctor")["checks"]
            self.assertEqual({check["server"] for check in checked}, set(self.members))

    def test_who_states_the_list_or_has_no_server_beside_it(self) -> None:
        for endpoint in ("shard:" + ",".join(self.members), self.members[2]):
            # All three addresses are of this machine, so no server is the nearest one.
            with rr.Client(endpoint) as client:
                run = client.run(RUN, GEOMETRY)
                self.assertEqual((run.place, run.places), ("", [f"{host}:" for host in HOSTS]))
                self.assertEqual(len(run.list()), 3 * SAMPLES)
        with rr.Client(f"shard:{self.members[0]},203.0.113.1:7400") as client, self.assertRaises(rr.RoutingReplayError):
            client.run(RUN)

    def test_a_framework_releases_names_of_all_places(self) -> None:
        with rr.Client(self.members[0]) as client:
            run, rows = client.run("released", GEOMETRY), routes(HOSTS[0])[0]
            for place in ("", *run.places):
                for name in ("math-0", "math-1", "math-2"):
                    run.put(f"{place}{name}", rows, seal=True)
            with unittest.mock.patch.object(_shared, "open_run", return_value=run):
                _shared.release("released", _shared.anywhere("released", ["math-0", "math-2"]))
            self.assertEqual({state.sample for state in run.list()}, {f"{place}math-1" for place in ("", *run.places)})
            run.drop()


if __name__ == "__main__":
    if RRCTL == "work":
        work()
    elif RRCTL == "train":
        train(json.loads(sys.argv[1]))
    else:
        unittest.main()
