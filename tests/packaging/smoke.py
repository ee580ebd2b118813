"""Appends rows with the installed Python packages, and checks that the trainer package reads them back bit for bit."""

import numpy as np
import routing_replay as rr
import routing_replay_trainer as rt

with rr.local_server():
    run = rr.Client().run("smoke", rr.Geometry(num_layers=4, num_experts=64, top_k=8))
    ids = np.random.default_rng(7).random((99, 4, 64)).argsort(axis=2)[:, :, :8]
    run.append("a/0", ids, seal=True)
    run.flush()
    assert (run.read_one("a/0").rows == ids).all()
    batch = {"format": "THD", "sequences": [{"sample": "a/0", "tokens": 100}], "cu_seqlens_padded": [0, 104]}
    batch |= {"total_rows": 104, "partition": "zigzag_per_document", "cp_size": 2}
    plan = rt.plan(run.geometry, batch, rank={"pp": 1, "cp": 0}, split={"pipeline_size": 2})
    replay = rt.ServiceSource(run).fetch(plan)
    assert (replay.indices[0][:26] == ids[:26, 2]).all()
    assert rr.__version__ == rt.__version__
print("smoke: PASSED")
