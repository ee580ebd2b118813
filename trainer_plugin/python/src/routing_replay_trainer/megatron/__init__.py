"""Router replay in Megatron-Core. Needs torch; does not import megatron-core.

The trainer plugin's README has a whole example. If a framework calls the schedule itself, wrap the schedule with
`replayed`, which does the same as that example.
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
    """Imports torch only when a name that needs it is used."""
    if name not in ("Replay", "attach"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from routing_replay_trainer.megatron import _replay

    return getattr(_replay, name)
