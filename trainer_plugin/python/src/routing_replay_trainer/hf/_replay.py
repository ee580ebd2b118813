"""Replay of a live Hugging Face model."""

from __future__ import annotations

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import Any

import torch
from routing_replay._values import INT32, integer

from routing_replay_trainer._attached import Attached, Chunk, Options
from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._core import unmet
from routing_replay_trainer._device_buffers import buffers_for
from routing_replay_trainer._hooks import Binding, PassHooks, Tally, in_backward
from routing_replay_trainer._micro_batch import Given, of_hf
from routing_replay_trainer._passes import ChunkPasses
from routing_replay_trainer.hf import _modules
from routing_replay_trainer.hf._modules import ATTRIBUTE, LiveRouter
from routing_replay_trainer.plan import geometry_of
from routing_replay_trainer.records import Records


def attach(
    model: Any,
    *,
    ranks: Mapping[str, int] | None = None,
    cp_size: int = 1,
    **options: Any,
) -> Replay:
    """Attaches a replay to the routers of a model.

    model: a transformers model with one decoder of MoE layers, before or after it is wrapped by FSDP, FSDP2, DDP, PEFT
        or torch.compile. Routers of other models are not changed, not even those of a copy of this one
    cp_size: number of processes over which each sequence is split in contiguous pieces (Ulysses); 1 if it is not split
    ranks: {"cp": rank of this process among the cp_size processes}; None if cp_size is 1
    options: those of `Options`. Padding chooses live; in a micro-batch with padding, the last tokens of sequences do so
        too, whatever last_row says. agree must consist of the cp_size processes that share a sequence

    Raises InvalidArgumentError for an option that is wrong or that the mode does not use. Raises
    FailedPreconditionError if a module chooses its experts in an unknown way (`hf/_modules.py`).
    """
    made = Options(**options)
    made.check_agreement(integer(cp_size, "cp_size", (1, INT32[1])), "cp_size")
    return Replay(model, made, dict(ranks or {}), cp_size)


class Replay(Attached):
    """What `attach` returns. Use it in the thread that runs the model. Its hooks also run in threads of the autograd
    engine, if checkpoints recompute there.
    """

    _AT_ONCE = True

    def __init__(self, model: Any, options: Options, ranks: Mapping[str, int], cp_size: int) -> None:
        super().__init__(options, Buffers() if options.mode == "disabled" else buffers_for(model), Tally())
        self._ranks, self._cp_size = ranks, cp_size
        if options.mode != "disabled":
            self._bind(model)

    def _bind(self, model: Any) -> None:
        found = _modules.decoder(model)
        self._geometry = geometry_of(found.num_layers, found.routers)
        chunk = Chunk(0, ChunkPasses(0, self._buffers, self._lock))
        plan = self._plan(0, self._described([], {"position_ids": []}).layout)  # A plan without rows.
        self._fingerprint = plan.described["geometry_fingerprint"]
        if self._mode == "R2":
            chunk.records = Records(found.num_layers, plan.layers, self._ranks, 1)
        for router in found.routers:
            binding = Binding(router.module, router.name, router.layer, chunk.passes, self._tally, in_backward)
            chunk.parts.append(Chooser(router, binding))
        chunk.parts.append(PassHooks(found.module, chunk.passes, self._begin))
        self._chunks.append(chunk)
        self._install()

    def micro_batch(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        lengths: Any = None,
        forward_only: bool | None = None,
        **layout: Any,
    ) -> contextlib.AbstractContextManager[None]:
        """Context manager around the call of the model. Describe the whole micro-batch, as it is before sequence
        parallelism splits it, in one of these forms:

        a rectangle [b, s]: tokens, attention_mask [b, s] of 0 and 1, or both; padding on the left needs the mask;
        a packed stream, [1, total] or [total]: position_ids that are 0 where a document begins.

        sequences, tokens, forward_only: as in `megatron.Replay.micro_batch`
        lengths: number of tokens of each sequence; needed only if documents or a rectangle without a mask have padding
        layout: further fields of a plan's `micro_batch`, which override the derived ones

        The context may be closed before backward, because the rows of a pass are kept for recompute until its backward
        part has ended. But if one checkpoint surrounds the whole model, backward calls the model again: then keep the
        context open until backward has ended, or backward raises FailedPreconditionError.

        A call of the model outside of this context routes live; inside, each call is a pass of its own. After an
        exception inside, call `abandon_step`. Only the choice of experts changes: an auxiliary loss that transformers
        computes from the routers' logits uses the live choice.
        """
        said = {
            "tokens": tokens,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "lengths": lengths,
        }
        return self._opened(sequences, said | layout, forward_only=forward_only)

    def _given(self, sequences: Listing[Any], **said: Any) -> Given:
        return of_hf(len(sequences), **{"cp_size": self._cp_size} | said)

    def _plan_arguments(self, chunk: int, layout: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "geometry": self._geometry,
            "micro_batch": {"last_row_filler": self._last_row_filler} | dict(layout),
            "rank": self._ranks,
        }

    def _begin(self, arguments: Any, keywords: Any) -> None:
        """Called when the decoder is called. Begins a pass if a micro_batch context is open."""
        (chunk,) = self._chunks
        if in_backward():
            if chunk.passes.backward_pass is not None:
                return
            if self._open is None and chunk.last_index >= 0:
                raise unmet("micro_batch", "the context is closed, but backward calls the model again: close it later")
        if self._open is not None:
            described = self._open.described
            assert described is not None
            self._enter(chunk, self._open, described, chunk.last_index + 1, torch.is_grad_enabled())


_NOBODY = 0
_CHOOSERS: weakref.WeakValueDictionary[int, Chooser] = weakref.WeakValueDictionary()


class Choice:
    """Replaces torch.topk in a method that chooses experts: returns the scores of the chosen experts, and their ids [N,
    K]. In a copy of a model, this has no replay and works like torch.topk.

    The layer is identified by a tensor and not by a number, so that torch.compile compiles the code once for all
    layers.
    """

    def __init__(self, number: int = _NOBODY) -> None:
        self.handle = torch.tensor(number, device="cpu")

    def __call__(
        self, scores: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.ops.routing_replay.choose_experts(scores.detach(), self.handle, k, sorted)
        return scores.gather(-1, ids), ids

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice, ()


@dataclass(eq=False)
class Chooser:
    """Chooses the experts in place of `router`. number: identifies this object in _CHOOSERS"""

    router: LiveRouter
    binding: Binding
    number: int = field(default_factory=itertools.count(_NOBODY + 1).__next__)

    def install(self) -> None:
        _CHOOSERS[self.number] = self
        module = self.router.module
        setattr(module, ATTRIBUTE, Choice(self.number))
        setattr(module, self.router.method, types.MethodType(self.router.replacement, module))

    def remove(self) -> None:
        _CHOOSERS.pop(self.number, None)
        for name in (ATTRIBUTE, self.router.method):
            vars(self.router.module).pop(name, None)

    def choose(self, scores: torch.Tensor, top_k: int, live: Callable[[], torch.Tensor]) -> torch.Tensor:
        answer = self.binding.ask(tuple(scores.shape), top_k)
        if answer is None:
            return live()
        if answer.of.use == "replay":
            return self.binding.replayed(answer, scores.device, live, live_pads=True)
        chosen = live()
        self.binding.chose(answer, chosen)
        return chosen.clone()  # The model gets a copy, because compiled code writes into the result.


@torch.library.custom_op("routing_replay::choose_experts", mutates_args=())
def _choose(scores: torch.Tensor, handle: torch.Tensor, top_k: int, sorted: bool) -> torch.Tensor:
    """Chooses the experts for one call. This is a custom operator, so that torch.compile keeps it in the graph and
    every call looks up its own ids."""

    def live() -> torch.Tensor:
        return torch.topk(scores, top_k, dim=-1, sorted=sorted).indices

    chooser = _CHOOSERS.get(int(handle))
    return live() if chooser is None else chooser.choose(scores, top_k, live)


@_choose.register_fake
def _(scores: torch.Tensor, handle: torch.Tensor, top_k: int, sorted: bool) -> torch.Tensor:
    return scores.new_empty((*scores.shape[:-1], top_k), dtype=torch.int64)
