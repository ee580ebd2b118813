"""Router replay in Hugging Face models, with or without FSDP. Needs torch; does not import transformers.

The trainer plugin's README has a whole example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing_replay_trainer._micro_batch import Sequence
from routing_replay_trainer.records import RecordWriter

if TYPE_CHECKING:
    from routing_replay_trainer.hf._replay import Replay, attach

__all__ = ("RecordWriter", "Replay", "Sequence", "attach")


def __getattr__(name: str) -> Any:
    """Imports torch only when a name that needs it is used."""
    if name not in ("Replay", "attach"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from routing_replay_trainer.hf import _replay

    return getattr(_replay, name)
