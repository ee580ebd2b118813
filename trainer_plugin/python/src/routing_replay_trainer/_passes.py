"""Which pass of which micro-batch a router call belongs to. No torch.

A pass begins when a model chunk is called inside `micro_batch`, and its forward part ends with that call. Its backward
part begins when the gradient of the chunk's output is there, and ends with the call of the autograd engine: whatever
router of the chunk is called in between is recomputed, whichever checkpoint function does it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from routing_replay_trainer import errors
from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._watch import Watch
from routing_replay_trainer.fetch import Batch
from routing_replay_trainer.targets import PassKey, ReplayTargets


@dataclass(eq=False)
class Pass:
    """key: whose it is
    batch: ids and states of the chunk's layers, in a buffer of that number
    use: "replay", "record" or "compare"
    forward_only: no backward part follows
    watch: wants its routers' live choices, and what its recompute chooses; None if it is not watched
    keep: what to do with what it has recorded
    kept: what injections keep beside, for as long as the pass lasts
    recomputed: a router has been asked again, as it will be in every backward part over the same graph
    ended: with its backward part, which was run to its end
    """

    key: PassKey
    batch: Batch
    buffer: int
    use: str
    forward_only: bool
    watch: Watch | None = None
    keep: Callable[[], None] | None = None
    kept: dict[Any, Any] = field(default_factory=dict)
    recomputed: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Answer:
    """For one router call: the pass, the slot of its layer, and whether this is the forward code run again."""

    of: Pass
    slot: int
    recompute: bool


class ChunkPasses:
    """The passes of one model chunk. All share `targets` and `buffers`, under `lock`."""

    def __init__(self, chunk: int, targets: ReplayTargets, buffers: Buffers, lock: Any) -> None:
        self._chunk = chunk
        self._targets = targets
        self._buffers = buffers
        self._lock = lock
        self._forward: Pass | None = None
        self._backward: Pass | None = None
        self._flying: dict[PassKey, Pass] = {}

    @property
    def forward_pass(self) -> Pass | None:
        return self._forward

    @property
    def backward_pass(self) -> Pass | None:
        return self._backward

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def is_in_flight(self, of: Pass) -> bool:
        with self._lock:
            return self._flying.get(of.key) is of

    def begin(self, entered: Pass, layers: Sequence[int]) -> None:
        with self._lock:
            self._targets.add(entered.key, layers, entered.buffer, forward_only=entered.forward_only)
            self._flying[entered.key] = entered
            self._forward = entered
            self._backward = None  # Of a pass whose backward part failed: nobody has ended it.

    def ask(self, layer: int, *, recompute: bool) -> Answer | None:
        """For the router of a layer; none where the call belongs to no pass that replays. FailedPreconditionError where
        it is run again for a pass whose rows are gone: it would choose live, and the gradients would be those of other
        experts.

        recompute: Megatron says that this is one
        """
        with self._lock:
            if self._backward is not None:
                self._check_in_flight(self._backward, layer)
                self._backward.recomputed = True
                target = self._targets.recompute(self._backward.key, layer)
                return Answer(self._backward, target.slot, True)
            if recompute and self._forward is None and self._flying:
                raise _error(
                    f"layer {layer} is recomputed, and the output of no pass of chunk {self._chunk} has a gradient"
                )
            if self._forward is None:
                return None
            target = self._targets.forward(self._forward.key, layer)
            return Answer(self._forward, target.slot, False)

    def end_forward(self) -> Pass:
        """The pass whose forward part ends. FailedPreconditionError, the pass being gone, if a router did not ask."""
        with self._lock:
            ended, self._forward = self._forward, None
            assert ended is not None
            try:
                self._targets.end_forward(ended.key)
            except errors.ReplayError:
                self._drop(ended)
                raise
            if ended.forward_only:
                self._drop(ended)
            return ended

    def abandon(self) -> None:
        """The forward part failed."""
        with self._lock:
            ended, self._forward = self._forward, None
            if ended is not None and self._drop(ended):
                self._forget(ended)

    def give_up(self, of: Pass) -> bool:
        """Nobody will run the rest of a pass. False if it was over."""
        with self._lock:
            if self._forward is of:
                self._forward = None
            if self._backward is of:
                self._backward = None
            was_in_flight = self._drop(of)
            if was_in_flight:
                self._forget(of)
            return was_in_flight

    def give_up_all(self) -> None:
        """Nobody will run the rest of any pass."""
        with self._lock:
            for of in list(self._flying.values()):
                self.give_up(of)
            self._forward = self._backward = None

    def begin_backward(self, of: Pass) -> None:
        """Also of a pass that is over, for which only what was saved may be used."""
        with self._lock:
            self._backward = of

    def leave_backward(self) -> None:
        """The chunk is called, and not by a backward part: whichever there was has failed without an end."""
        with self._lock:
            self._backward = None

    def end_backward(self, of: Pass) -> None:
        with self._lock:
            self._backward = None
            if self._drop(of):
                of.ended = True
                self._targets.finish(of.key)

    def check_after_detach(self, of: Pass) -> None:
        """FailedPreconditionError, before a backward part of a replay that is detached, where routers are known to be
        recomputed in it, or where it is not known because none was run before."""
        if of.recomputed or not of.ended:
            raise _error(
                f"micro-batch {of.key.micro_batch} of step {of.key.step}, chunk {self._chunk}, is of a replay that has "
                "been detached since: routers that backward recomputes would choose live. Run backward before detach"
            )

    def _check_in_flight(self, of: Pass, layer: int) -> None:
        if self._flying.get(of.key) is not of:
            raise _error(
                f"layer {layer} is recomputed for micro-batch {of.key.micro_batch} of step {of.key.step}, chunk "
                f"{self._chunk}, whose rows are gone: its backward part has run before, or its step has ended. Run "
                "backward once, before end_step"
            )

    def _drop(self, of: Pass) -> bool:
        """Gives its buffer back, once."""
        if self._flying.get(of.key) is not of:
            return False
        del self._flying[of.key]
        self._buffers.give(of.buffer)
        of.kept.clear()
        return True

    def _forget(self, of: Pass) -> None:
        # Its routers need not all have asked: that is why it is forgotten.
        with contextlib.suppress(errors.ReplayError):
            self._targets.finish(of.key)

    def check_none_in_flight(self) -> None:
        """FailedPreconditionError naming a pass that waits for its backward part."""
        with self._lock:
            for key in self._flying:
                raise _error(
                    f"detach: micro-batch {key.micro_batch} of step {key.step}, chunk {key.chunk}, waits for its "
                    "backward part, which would choose live. Run it, or call end_step, before"
                )

    def drop_all(self) -> None:
        with self._lock:
            self._forward = self._backward = None
            for of in list(self._flying.values()):
                self._drop(of)


def _error(message: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(f"targets: {message}", code_name="FAILED_PRECONDITION", field="targets")


def new_lock() -> Any:
    return threading.RLock()
