"""Finds the pass, and so the micro-batch, to which a router call belongs. Does not need torch.

A pass begins when a model chunk is called inside `micro_batch`, and its forward part ends with that call. Its backward
part begins when the gradient of the chunk's output arrives, and ends when the autograd engine's backward call ends. A
router of the chunk that is called during the backward part is being recomputed, whichever checkpoint function is used.
Forward and recompute of a layer read the same slot of the pass's index buffer, even if other passes run between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from routing_replay_trainer._core import unmet
from routing_replay_trainer.fetch import Batch


class PassKey(NamedTuple):
    """A micro-batch in a model chunk of the rank.

    step: number of steps that the replay had ended before
    micro_batch: index of the micro-batch in the step (Megatron's current_microbatch)
    chunk: number of the chunk (Megatron's vp_stage); 0 without virtual stages
    """

    step: int
    micro_batch: int
    chunk: int

    def __str__(self) -> str:
        return f"micro-batch {self.micro_batch} of step {self.step}, chunk {self.chunk}"


@dataclass(eq=False)
class Pass:
    """key: micro-batch and chunk; buffer: number of the pass's index buffer
    batch: ids and states of the chunk's layers
    use: "replay", "record" or "compare"
    forward_only: no backward part follows
    watch: collects the live choices of the routers in the forward part; None if the pass is not watched
    keep: called when the forward part ends; stores what the pass has recorded
    kept: tensors that are needed until the pass ends, such as the ids of each layer on the model's device
    asked: layers whose router has asked for ids in the forward part
    """

    key: PassKey
    batch: Batch
    buffer: int
    use: str
    forward_only: bool
    watch: Any = None
    keep: Callable[[], None] | None = None
    kept: dict[Any, Any] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slots = {layer.layer: slot for slot, layer in enumerate(self.batch.plan.layers)}


@dataclass(frozen=True)
class Answer:
    """Which ids a router call uses: those at index `slot` in the batch of pass `of`. recompute: True in a recompute"""

    of: Pass
    slot: int
    recompute: bool


class ChunkPasses:
    """The passes of one model chunk. All chunks of a model share `buffers` and `lock`."""

    def __init__(self, chunk: int, buffers: Any, lock: Any) -> None:
        self._chunk = chunk
        self._buffers = buffers
        self._lock = lock
        self.forward_pass: Pass | None = None
        # The pass whose backward part runs. In a second backward over the same graph, this pass has ended before, and
        # none of its routers may be recomputed.
        self.backward_pass: Pass | None = None
        self._flying: dict[PassKey, Pass] = {}

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def is_in_flight(self, of: Pass) -> bool:
        return self._flying.get(of.key) is of

    def begin(self, entered: Pass) -> None:
        with self._lock:
            if entered.key in self._flying:
                raise _error(f"the pass of {entered.key} has begun already, and has not ended")
            self._flying[entered.key] = entered
            self.forward_pass = entered
            self.backward_pass = None  # It may be left over from a pass whose backward part failed.

    def ask(self, layer: int, *, recompute: bool) -> Answer | None:
        """Returns which ids the router of a layer uses; None if its call belongs to no pass, and so routes live. Raises
        FailedPreconditionError if the call is a recompute for a pass that has ended, because the router would choose
        live, and the gradients would be those of other experts.

        recompute: True if Megatron or the autograd engine says that the call is a recompute
        """
        with self._lock:
            again = self.backward_pass
            of = self.forward_pass if again is None else again
            if of is None:
                if recompute and self._flying:
                    raise _error(
                        f"layer {layer} is recomputed, but no output of chunk {self._chunk} has received a gradient"
                    )
                return None
            if again and not self.is_in_flight(of):
                raise _error(
                    f"layer {layer} is recomputed for {of.key}, whose rows are gone: its backward part has run "
                    "before, or its step has ended. Run backward once, before end_step"
                )
            if layer not in of.slots:
                raise _error(f"the plan of {of.key} has no ids for layer {layer}", layer)
            if again and layer not in of.asked:
                raise _error(f"recompute of {of.key}, layer {layer} before its forward pass", layer)
            if not again and layer in of.asked:
                raise _error(
                    f"the router of {of.key}, layer {layer} asked for its ids before, in the same forward part", layer
                )
            of.asked.add(layer)
            return Answer(of, of.slots[layer], again is not None)

    def end_forward(self) -> Pass:
        """Ends the forward part of the pass and returns the pass. If a router did not ask for its ids, discards the
        pass and raises FailedPreconditionError."""
        with self._lock:
            ended, self.forward_pass = self.forward_pass, None
            assert ended is not None
            silent = next((layer for layer in ended.slots if layer not in ended.asked), None)
            if ended.forward_only or silent is not None:
                self._drop(ended)
            if silent is not None:
                raise _error(f"the router of {ended.key}, layer {silent} never asked for its ids", silent)
            return ended

    def abandon(self) -> None:
        """Discards the pass whose forward part is running, because that part has failed."""
        with self._lock:
            ended, self.forward_pass = self.forward_pass, None
            if ended is not None:
                self._drop(ended)

    def drop_all(self) -> list[PassKey]:
        """Ends all passes, and returns the keys of those whose forward or backward part has not ended."""
        with self._lock:
            self.forward_pass = self.backward_pass = None
            return [of.key for of in list(self._flying.values()) if self._drop(of)]

    def end_backward(self, of: Pass) -> None:
        with self._lock:
            self.backward_pass = None
            self._drop(of)

    def check_none_in_flight(self) -> None:
        """Raises FailedPreconditionError naming a pass that waits for its backward part, if there is one."""
        with self._lock:
            for key in self._flying:
                raise _error(
                    f"detach: {key} waits for its backward part, which would choose live after detach. First run it, "
                    "or call end_step"
                )

    def _drop(self, of: Pass) -> bool:
        """Ends a pass and gives its buffer back. Returns False, and does nothing, if the pass has ended before."""
        if not self.is_in_flight(of):
            return False
        del self._flying[of.key]
        self._buffers.give(of.buffer)
        of.kept.clear()
        return True


def _error(why: str, layer: int | None = None) -> Exception:
    return unmet("targets", why, layer=layer)
