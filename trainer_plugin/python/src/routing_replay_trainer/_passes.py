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
from typing import Any, NamedTuple

from routing_replay import errors

from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._watch import Watch
from routing_replay_trainer.fetch import Batch


class PassKey(NamedTuple):
    """A micro-batch in a model chunk of the rank.

    step: which call of the schedule
    micro_batch: Megatron's current_microbatch
    chunk: its vp_stage, 0 without virtual stages
    """

    step: int
    micro_batch: int
    chunk: int

    def __str__(self) -> str:
        return f"step {self.step}, micro-batch {self.micro_batch}, virtual stage {self.chunk}"


class Target(NamedTuple):
    """An index buffer, by the number it was added with, and the layer's slot in it."""

    buffer: int
    slot: int


@dataclass
class _Kept:
    """Of a pass: slots of its layers, and those whose router has asked in the forward part."""

    buffer: int
    slots: dict[int, int]
    forward_only: bool
    asked: set[int] = field(default_factory=set)


class ReplayTargets:
    """Index buffers by (step, micro-batch, chunk, layer), in no order: forward and recompute of a layer read the same
    entry, whatever passes come between. What is not there is an error that names the key; an error changes nothing but
    what its function says. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: dict[PassKey, _Kept] = {}

    def add(self, key: PassKey, layers: Sequence[int], buffer: int, *, forward_only: bool = False) -> None:
        """The layers (global decoder layer ids) of a pass, at slots 0, 1, … of a buffer."""
        with self._lock:
            if key in self._passes:
                raise _target_error(errors.AlreadyExistsError, f"ids are kept for {key} already")
            if layers or not forward_only:  # A forward pass without MoE layers asks for nothing.
                slots = {layer: slot for slot, layer in enumerate(layers)}
                self._passes[key] = _Kept(buffer, slots, forward_only)

    def forward(self, key: PassKey, layer: int) -> Target:
        """For the one router call of a layer in the forward pass."""
        with self._lock:
            kept = self._of(key, layer)
            if layer in kept.asked:
                what = f"the router of {key}, layer {layer} asked for its ids before in the forward pass"
                raise _target_error(errors.FailedPreconditionError, what, layer)
            target = Target(kept.buffer, kept.slots[layer])
            kept.asked.add(layer)
            if kept.forward_only:
                del kept.slots[layer]
                if not kept.slots:
                    del self._passes[key]
            return target

    def recompute(self, key: PassKey, layer: int) -> Target:
        """The same, as often as the backward pass asks."""
        with self._lock:
            kept = self._of(key, layer)
            if layer not in kept.asked:
                what = f"recompute of {key}, layer {layer} before its forward pass"
                raise _target_error(errors.FailedPreconditionError, what, layer)
            return Target(kept.buffer, kept.slots[layer])

    def end_forward(self, key: PassKey) -> None:
        """Raises FailedPreconditionError, the pass being gone, if a router did not ask for its ids."""
        with self._lock:
            if key in self._passes:
                try:
                    self._check_asked(key)
                except errors.FailedPreconditionError:
                    del self._passes[key]
                    raise

    def finish(self, key: PassKey) -> None:
        """After the backward pass: its buffer is free."""
        with self._lock:
            if key not in self._passes:
                raise _target_error(errors.NotFoundError, f"no ids are kept for {key}")
            try:
                self._check_asked(key)
            finally:
                del self._passes[key]

    def end_step(self, step: int) -> None:
        """Raises FailedPreconditionError naming the first pass that was not finished; the whole step is gone then."""
        with self._lock:
            left = sorted(key for key in self._passes if key.step == step)
            if not left:
                return
            try:
                self._check_asked(left[0])
            finally:
                for key in left:
                    del self._passes[key]
        what = (
            f"{len(left)} passes were not finished, the first one {left[0]}: no backward part of it has run. A pass "
            "that has none must be forward_only"
        )
        raise _target_error(errors.FailedPreconditionError, what)

    def __len__(self) -> int:
        """Entries: passes times layers."""
        with self._lock:
            return sum(len(kept.slots) for kept in self._passes.values())

    def _of(self, key: PassKey, layer: int) -> _Kept:
        kept = self._passes.get(key)
        if kept is None or layer not in kept.slots:
            nor = "" if kept is not None else ", nor for any layer of that pass"
            raise _target_error(errors.NotFoundError, f"no ids are kept for {key}, layer {layer}{nor}", layer)
        return kept

    def _check_asked(self, key: PassKey) -> None:
        kept = self._passes[key]
        for layer in kept.slots:
            if layer not in kept.asked:
                what = f"the router of {key}, layer {layer} never asked for its ids"
                raise _target_error(errors.FailedPreconditionError, what, layer)


def _target_error(kind: type[errors.RoutingReplayError], what: str, layer: int | None = None) -> Exception:
    return kind(f"targets: {what}", reason="FIELD", field="targets", layer=layer)


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
            except errors.RoutingReplayError:
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
        with contextlib.suppress(errors.RoutingReplayError):
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
