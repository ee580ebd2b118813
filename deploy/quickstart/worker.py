"""A rollout worker: appends the experts that an engine chose, turn by turn, and seals the sample with the last turn."""

import base64
import io
from multiprocessing.synchronize import Barrier

import numpy as np
from numpy.typing import NDArray
from routing_replay import Client, Payload
from scenario import WORKERS, Play


def engine_gives(form: str, ids: NDArray[np.uint16]) -> NDArray[np.int32] | Payload:
    """Rows in the form in which an engine or its server gives them. `append` accepts all of these forms."""
    wide = ids.astype("<i4")
    if form == "RAW int32":
        return wide
    if form == "BASE64 int32":
        return Payload(base64.b64encode(wide.tobytes()), encoding="BASE64", dtype="I32", shape=ids.shape)
    file = io.BytesIO()
    np.save(file, ids.astype(np.uint8 if ids.max() < 256 else np.uint16))
    if form == "NPY":
        return Payload(file.getvalue(), encoding="NPY")
    return Payload(base64.b64encode(file.getvalue()), encoding="BASE64_NPY")


def work(play: Play, worker: int, barrier: Barrier) -> dict[str, int]:
    samples = play.samples[worker::WORKERS]
    engine = {
        (sample.id, turn): engine_gives(sample.form, sample.delivered(*turn))
        for sample in samples
        for turn in sample.turns
    }
    with Client() as client:
        barrier.wait()
        run = client.run(play.run, play.geometry)
        appender = run.appender()  # Appends are queued and sent in the background.
        for number in (0, 1):
            for sample in [each for each in samples if number < len(each.turns)]:
                begin, end = turn = sample.turns[number]
                appender.append(
                    sample.id,
                    engine[sample.id, turn],
                    row_start=run.stat(sample.id).committed_rows if begin else 0,
                    unrecorded=sample.lost_in(*turn),
                    tokens=sample.tokens[:end],  # A trainer with other tokens does not get these rows.
                    num_tokens=len(sample.tokens) if end == len(sample.ids) else None,  # Seals the sample.
                    group=1,
                    weight_version=17,
                )
            appender.flush()  # Waits, and raises the errors of rejected appends.
        sent = appender.metrics()["payload_bytes"]
        barrier.wait()
    ids = [sample.delivered(0, len(sample.ids)) for sample in samples]
    return {
        "samples": len(samples),
        "rows": sum(len(sample.ids) for sample in samples),
        "recorded_rows": sum(len(rows) for rows in ids),
        "engine_bytes": sum(len(one.data) if isinstance(one, Payload) else one.nbytes for one in engine.values()),
        "server_in_bytes": sent,
        "recorded_ids": sum(rows.size for rows in ids),
    }
