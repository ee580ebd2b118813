"""Router replay in Megatron-Core. Needs torch; does not import megatron-core.

replay = megatron.attach(model_chunks, source=ServiceSource(run), missing="live", agree=ranks)

def forward_step(data_iterator, model):
    batch = next(data_iterator)
    with replay.micro_batch(batch.samples):
        output = model(batch.tokens, batch.position_ids, None, packed_seq_params=batch.packed_seq_params)
    return output, loss_func

replay.begin_step(samples, tokens=tokens, weight_version=version)
forward_backward_func(forward_step_func=forward_step, …)
replay.end_step()
log(replay.metrics(reduce=ranks))

Where a framework calls the schedule itself, `replayed` does the same around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing_replay_trainer._micro_batch import Sequence
from routing_replay_trainer.megatron._schedule import replayed
from routing_replay_trainer.records import RecordWriter

if TYPE_CHECKING:
    from routing_replay_trainer.megatron._replay import Replay, attach

__all__ = ("RecordWriter", "Replay", "Sequence", "attach", "replayed")


def __getattr__(name: str) -> Any:
    """Loads names that need torch on demand."""
    if name not in ("Replay", "attach"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from routing_replay_trainer.megatron import _replay

    return getattr(_replay, name)
