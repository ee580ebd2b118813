"""Rollout routing replay, the trainer's side.

`routing_replay_trainer.megatron` and `routing_replay_trainer.hf` attach a replay to a model, and need torch. This
module has their building blocks, for the CPU:

    plan = routing_replay_trainer.plan(geometry, micro_batch, rank={"pp": 1, "cp": 0}, split={"pipeline_size": 2})
    batch = ServiceSource(run).fetch(plan, missing="live")        # or LocalSource(geometry): arrays of your own
    out = router_replay_forward(router, logits, batch.indices[0], batch.states)

A plan says which layers and rows a rank replays, a source provides exactly those, and router replay computes the
probabilities of the replayed experts from the live logits. Needs numpy and the package `routing-replay`:
`ServiceSource` takes one of its runs, and the errors of this module are those of `routing_replay.errors`.

Objects of this module own memory of the native library but no thread, connection or lock, so they keep working in the
child after os.fork. Exceptions: what `megatron.attach` and `hf.attach` return, and a source with a run of
`routing_replay.aio`. Only objects whose documentation says so may be shared between threads. Native calls release the
GIL.
"""

from routing_replay_trainer._core import VERSION
from routing_replay_trainer._micro_batch import Sequence
from routing_replay_trainer.doctor import doctor
from routing_replay_trainer.fetch import (
    LIVE,
    PAD,
    REPLAYED,
    UNRECORDED,
    Batch,
    DirectorySource,
    FetchSequence,
    LocalSource,
    ServiceSource,
    Source,
)
from routing_replay_trainer.plan import Layer, LocalRows, Plan, plan
from routing_replay_trainer.records import merge_records
from routing_replay_trainer.router import Forward, Router, router_replay_forward

__version__: str = VERSION
__all__ = (
    "LIVE",
    "PAD",
    "REPLAYED",
    "UNRECORDED",
    "Batch",
    "DirectorySource",
    "FetchSequence",
    "Forward",
    "Layer",
    "LocalRows",
    "LocalSource",
    "Plan",
    "Router",
    "Sequence",
    "ServiceSource",
    "Source",
    "doctor",
    "merge_records",
    "plan",
    "router_replay_forward",
)
