"""Makes one append or one read when a line arrives on standard input, and prints a JSON list of the Python functions
that ran during it. journeys_test.py traces the same call with a debugger.

Usage: one_call.py append|read

The first call of a process also connects, opens a stream and opens the run, so one append and one read are made before
the traced call. The client uses gRPC, not the direct path; both send the same messages.
"""

import json
import os
import sys
import threading

import numpy as np
import routing_replay as rr
import routing_replay_trainer as rt

IDS = np.random.default_rng(0).random((99, 4, 64)).argsort(axis=2)[:, :, :8].astype(np.int32)
BATCH = {
    "format": "THD",
    "sequences": [{"sample": "first", "tokens": 100}],
    "cu_seqlens_padded": [0, 104],
    "total_rows": 104,
    "partition": "zigzag_per_document",
    "cp_size": 2,
}


def main(kind):
    os.environ["ROUTING_REPLAY_TRANSPORT"] = "grpc"
    run = rr.Client().run("journeys", rr.Geometry(num_layers=4, num_experts=64, top_k=8))
    source = rt.ServiceSource(run)

    def append(sample):
        run.append(sample, IDS, tokens=range(100), seal=True)
        run.flush()

    def read():
        plan = rt.plan(run.geometry, BATCH, rank={"pp": 1, "cp": 0}, split={"pipeline_size": 2})
        ids = source.fetch(plan).indices[0][:26]
        assert (ids == IDS[:26, 2]).all()

    append("first")
    read()
    called = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "/python/src/" in code.co_filename:
            called[code.co_filename, code.co_name] = None

    print("ready", flush=True)
    sys.stdin.readline()
    threading.setprofile(note)
    sys.setprofile(note)
    append("second") if kind == "append" else read()
    sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps(list(called)), flush=True)
    sys.stdin.readline()


main(sys.argv[1])
