"""What the replays of both faces have in common, and the options that both take, checked before anything is touched.
No torch.
"""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from routing_replay import errors

from routing_replay_trainer._passes import ReplayTargets
from routing_replay_trainer._steps import NO_STEP, Steps
from routing_replay_trainer._values import INT64, integer, invalid, seconds
from routing_replay_trainer.agreed import BegunStep
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.metrics import Counters
from routing_replay_trainer.on_policy import Contract

MODES = ("disabled", "shadow", "R2", "R3")
_MISSING = ("strict", "live", "drop")


def check(
    *,
    mode: Any,
    source: Any,
    missing: Any,
    agree: Any,
    max_fallback_fraction: Any,
    fetch_deadline: Any,
    cache_bytes: Any,
    alarm_no_overlap: Any,
    on_policy: Any,
    writer: Any = None,
) -> None:
    """InvalidArgumentError naming an option that is none, or that the mode would ignore."""
    if mode not in MODES:
        raise invalid("mode", f"{mode!r} is none of {', '.join(MODES)}")
    if missing not in _MISSING:
        raise invalid("missing", f"{missing!r} is none of {', '.join(_MISSING)}")
    if mode in ("R3", "shadow") and source is None:
        raise invalid("source", f"mode {mode} needs one")
    _check_has("source", source, ("fetch", "inspect"))
    _check_has("agree", agree, ("rank", "size"))
    _check_number("max_fallback_fraction", max_fallback_fraction, 1)
    seconds(fetch_deadline, "fetch_deadline")
    if alarm_no_overlap is not None:
        _check_number("alarm_no_overlap", alarm_no_overlap, 1)
    integer(cache_bytes, "cache_bytes", (0, INT64[1]))
    ignored = {"R2": {"source": source, "agree": agree, "on_policy": on_policy}, "disabled": {}}
    for name, value in ignored.get(mode, {"writer": writer}).items():
        if value is not None:
            raise invalid(name, f"mode {mode} does not use it")


def check_agreement(mode: Any, missing: Any, agree: Any, replica: int, sizes: str) -> None:
    """InvalidArgumentError where a rank would fall back, and the others of its replica would not know of it.

    replica: ranks that share the samples of a step
    sizes: whose product that is
    """
    if mode != "R3" or missing == "strict" or replica <= 1:
        return
    has = "there is none" if agree is None else f"it has {agree.size} ranks"
    if agree is None or agree.size != replica:
        raise invalid(
            "agree",
            f"{has}, and with missing={missing!r} all {replica} ranks ({sizes}) of a sample must decide together "
            "what falls back: give the collective of these ranks, or missing='strict'",
        )


def _check_has(name: str, value: Any, members: tuple[str, ...]) -> None:
    for member in members:
        if value is not None and not hasattr(value, member):
            raise invalid(name, f"{value!r} has no {member}")


def _check_number(name: str, value: Any, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= most:
        raise invalid(name, f"{value!r} is not a number in 0 … {most}")


if TYPE_CHECKING:  # They need torch.
    from routing_replay_trainer._passes import ChunkPasses
    from routing_replay_trainer._steps import Fetching
    from routing_replay_trainer._tally import Tally
    from routing_replay_trainer._watch import Watch
    from routing_replay_trainer.records import Records


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

    _mode: Any
    _steps: Steps | None
    _targets: ReplayTargets
    _buffers: Any
    _tally: Tally
    _watch: Watch
    _contract: Contract
    _fetching: Fetching
    _step = 0  # Number of the present one.

    def _chunk_passes(self) -> list[ChunkPasses]:
        """Of each chunk of the model."""
        raise NotImplementedError

    def _records_held(self) -> list[Records]:
        """Mode R2: of each chunk of the model that has routers."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Micro-batches are counted from the first one on."""
        raise NotImplementedError

    def _remove(self) -> None:
        """The model as it was."""
        raise NotImplementedError

    @property
    def last_step(self) -> BegunStep:
        """What the last begin_step decided, whoever called it (`megatron.replayed` does): of its `dropped` samples the
        loss is to be masked under missing="drop". Of no samples if none has begun, or the last one was refused."""
        return NO_STEP if self._steps is None else self._steps.last

    def end_step(self) -> None:
        """After the last backward pass of a step, Megatron's forward_backward_func. FailedPreconditionError naming a
        pass whose backward part never ran; nothing of it reaches the next step. FallbackLimitError if no begin_step
        told it before."""
        step, self._step = self._step, self._step + 1
        self._restart()
        for passes in self._chunk_passes():
            passes.drop_all()
        self._fetching.settle()
        self._contract.end_pass()
        self._watch.end_step()
        try:
            self._targets.end_step(step)
        except errors.RoutingReplayError:
            if self._steps is not None:
                self._steps.forget_pass()
            raise
        if self._steps is not None:
            self._steps.end_pass()

    def abandon_step(self) -> None:
        """Instead of end_step, where an exception has ended the passes of a step before their time: gives them up, as
        `micro_batch` does with its own, counts nothing of what they fetched, and complains of nothing. The next step
        begins as after any other. Mode R2: what they have recorded is forgotten, by the writer as well, but for what a
        pass has replayed since."""
        for passes in self._chunk_passes():
            passes.give_up_all()
        self._fetching.give_up()
        self._watch.forget()
        if self._steps is not None:
            self._steps.forget_pass()
        self.end_step()

    def release_records(self) -> None:
        """Mode R2: forgets what was recorded. Call it after the last training pass that replays a rollout.

        Records stay until then, however many steps end, as only the caller knows how many epochs replay them; what is
        recorded again under the same sample takes the place of what was there. They are in the memory of the host: rows
        of this rank x its MoE layers x K bytes (twice that for more than 256 experts), which `metrics` tells as
        record_bytes. Without this call they grow with every rollout that has samples of other names.
        """
        for records in self._records_held():
            records.release()

    def detach(self) -> None:
        """The model as it was. FailedPreconditionError, nothing being changed, while a pass waits for its backward
        part; end_step gives such passes up.

        A backward part that comes after this, over a graph that was kept, is refused (FailedPreconditionError) where
        routers were recomputed in it before, or where its pass was given up: they would choose live. What cannot be
        told is live without a word: a first backward part that has not reached the checkpoints that the second one
        reaches, and a checkpoint around the call of the model as a whole.
        """
        for passes in self._chunk_passes():
            passes.check_none_in_flight()
        self._remove()
        self._mode = "disabled"
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def metrics(self, *, reduce: Collective | None = None) -> dict[str, float]:
        """Since the last call: the keys of `routing_replay_trainer.metrics.KEYS` that there is something to say of; of
        this rank, or of all ranks of `reduce`, which call this together."""
        counters = Counters() if self._steps is None else self._steps.take_counters()
        self._tally.count_into(counters)
        self._watch.count_into(counters)
        self._contract.count_into(counters)
        if self._mode == "R2":
            counters.count("record_bytes", sum(records.bytes for records in self._records_held()))
        return counters.report(reduce)

    @property
    def buffer_bytes(self) -> int:
        """Held for index buffers, in use or free."""
        return self._buffers.bytes

    @property
    def kept(self) -> int:
        """Entries that wait for their router or its recompute; 0 between steps."""
        return len(self._targets)


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
