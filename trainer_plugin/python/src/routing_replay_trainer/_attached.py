"""What the replays of both faces have in common. No torch."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from routing_replay_trainer import errors
from routing_replay_trainer._values import invalid


class Attached:
    """A replay that is attached to a model of this process. It is neither copied nor pickled; the model may be, and the
    copy has none."""

    _steps: Any = None

    def stay_away(self, wrong: Exception) -> None:
        """Instead of begin_step, of a rank that cannot say what the step has: the others, which are in begin_step,
        raise FailedPreconditionError naming this rank, and do not wait until the deadline.

        wrong: why
        """
        if self._steps is not None:
            self._steps.stay_away(wrong)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise errors.FailedPreconditionError(
            "replay: is attached to a model of this process, and can be neither copied nor pickled: attach one to the "
            "copy of the model",
            code_name="FAILED_PRECONDITION",
            field="replay",
        )


def announced(
    said: Any, names: tuple[str, ...], of_passes: tuple[str, ...]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The arguments of a micro_batch, as `prefetch` is told them: its sequences, what `names` say, and its layout, of
    which `of_passes` are no part. InvalidArgumentError naming what is not there."""
    if not isinstance(said, Mapping):
        raise invalid("micro_batches", f"{reprlib.repr(said)} is not the arguments of a micro_batch")
    if "sequences" not in said:
        given = ", ".join(map(str, said))
        raise invalid("sequences", f"is not among the arguments of the micro_batch, which are {given or 'none'}")
    known = ("sequences", *names, *of_passes)
    layout = {name: value for name, value in said.items() if name not in known}
    return said["sequences"], tuple(said.get(name) for name in names), layout
