"""Replay of a live Hugging Face model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from routing_replay import errors

from routing_replay_trainer import _attached
from routing_replay_trainer._attached import Attached, announced
from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._device_buffers import buffers_for
from routing_replay_trainer._hooks import Binding, PassHooks, in_backward
from routing_replay_trainer._micro_batch import MicroBatch
from routing_replay_trainer._passes import ChunkPasses, Pass, PassKey, ReplayTargets, new_lock
from routing_replay_trainer._steps import NO_STEP, Fetching, Steps
from routing_replay_trainer._tally import Tally
from routing_replay_trainer._values import INT32, integer, invalid
from routing_replay_trainer._watch import Watch, Watched
from routing_replay_trainer.agreed import BegunStep
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.fetch import FetchSequence, Missing, Source
from routing_replay_trainer.hf import _micro_batch, _modules
from routing_replay_trainer.hf._choice import Chooser
from routing_replay_trainer.on_policy import Contract, OnPolicy
from routing_replay_trainer.plan import Plan, Plans
from routing_replay_trainer.records import Records, RecordWriter

Mode = Literal["disabled", "shadow", "R2", "R3"]
_PADS = ("live", "filler")
_LAST_ROWS = ("filler", "live")
_OF_PASSES = ("forward_only", "record")  # Arguments that say nothing of rows.
_SAID = ("tokens", "attention_mask", "position_ids", "cu_seqlens", "lengths")  # In the order of _describe.


def attach(
    model: Any,
    config: Any = None,
    *,
    source: Source | None = None,
    mode: Mode = "R3",
    missing: Missing = "strict",
    pads: Literal["live", "filler"] = "live",
    last_row: Literal["filler", "live"] = "filler",
    ranks: Mapping[str, int] | None = None,
    cp_size: int = 1,
    ep_size: int = 1,
    agree: Collective | None = None,
    max_fallback_fraction: float = 0.05,
    fetch_deadline: float = 120.0,
    cache_bytes: int = 1 << 30,
    watch: Watched = "first",
    alarm_no_overlap: float | None = 0.01,
    on_policy: OnPolicy | None = None,
    writer: RecordWriter | None = None,
) -> Replay:
    """Binds the routers of a model to what will be replayed in them.

    model: a transformers model with one decoder of MoE layers, before or after it is wrapped by FSDP, FSDP2, DDP, PEFT
        or torch.compile. Only this model's routers are touched: a reference or a critic that is not attached routes
        live, whether it was built before, after, or is a copy of this one
    config: its PretrainedConfig, which the live model is compared with; that of the model if absent
    source: where rows come from; needed in the modes R3 and shadow
    mode: "R3" replays the rollout's routes; "R2" records the choice of this model's own forward-only pass and replays
        it in the training pass, each rank its own rows, without transport (`release_records` says what that holds);
        "shadow" fetches, aligns and compares, and changes nothing: samples that are missing are counted, whatever
        `missing` and max_fallback_fraction say; "disabled" touches nothing
    missing: of a sample that cannot be replayed: "strict" raises, "live" leaves the sequence to live routing, "drop"
        does as well, and begin_step names it for the caller to leave it out of the loss
    pads: rows of padding choose live, as without replay, or take filler spread over experts
    last_row: as `megatron.attach` has it; where padding of the micro-batch chooses live, last tokens do as well
    ranks: {"cp"} of this process where sequences are cut, and
    cp_size: over how many, in contiguous pieces (Ulysses and the like)
    ep_size: size of the expert-parallel group, which filler is spread over
    agree: the cp_size processes that share a sequence, which decide together in begin_step. Only cp_size = 1, the
        other modes, and missing="strict" need none
    max_fallback_fraction, fetch_deadline, cache_bytes, watch, alarm_no_overlap, on_policy: as `megatron.attach`
    writer: mode R2: keeps what is recorded for the service, beside, until its `write` or `release`

    Raises InvalidArgumentError for an option that is none or that the mode does not use, and
    where the model is not what the configuration says, and FailedPreconditionError naming
    a module that chooses its experts in no known way: without one function that calls torch.topk for self.top_k
    experts, once, or a block whose forward somebody has replaced.
    """
    _attached.check(
        mode=mode,
        source=source,
        missing=missing,
        agree=agree,
        max_fallback_fraction=max_fallback_fraction,
        fetch_deadline=fetch_deadline,
        cache_bytes=cache_bytes,
        alarm_no_overlap=alarm_no_overlap,
        on_policy=on_policy,
        writer=writer,
    )
    for name, said, known in (("pads", pads, _PADS), ("last_row", last_row, _LAST_ROWS)):
        if said not in known:
            raise invalid(name, f"{said!r} is none of {', '.join(known)}")
    _attached.check_agreement(mode, missing, agree, integer(cp_size, "cp_size", (1, INT32[1])), "cp_size")
    if mode == "shadow":
        missing, max_fallback_fraction = "live", 1.0  # It stops no training: what cannot be compared is counted.
    watched, contract = Watch(source, "all" if mode == "shadow" else watch, alarm_no_overlap), Contract(on_policy)
    steps = None
    if mode in ("R3", "shadow"):
        binds = mode == "R3"
        steps = Steps(source, missing, agree, max_fallback_fraction, fetch_deadline, cache_bytes, contract, binds)
    placed = _Placed(dict(ranks or {}), cp_size, ep_size)
    return Replay(model, config, steps, mode, missing, (pads, last_row), placed, watched, contract, writer)


@dataclass(frozen=True)
class _Placed:
    """This process among those that share a model or a sequence."""

    ranks: Mapping[str, int]
    cp_size: int
    ep_size: int


@dataclass(frozen=True)
class _Open:
    """A micro_batch context."""

    described: MicroBatch
    forward_only: bool | None
    record: bool | None
    begun: list[Pass] = field(default_factory=list)


class Replay(Attached):
    """What `attach` gives. Used by the thread that runs the model; recompute may come from the autograd engine's."""

    def __init__(
        self,
        model: Any,
        config: Any,
        steps: Steps | None,
        mode: Mode,
        missing: Missing,
        filler: tuple[str, str],
        placed: _Placed,
        watch: Watch,
        contract: Contract,
        writer: RecordWriter | None = None,
    ) -> None:
        self._steps = steps
        self._mode = mode
        pads, last_row = filler
        self._live_pads, self._last_row_filler = pads == "live", last_row == "filler"
        self._placed = placed
        self._plans = Plans(lambda _, said: Plan(**self._plan_arguments(said)))
        self._targets = ReplayTargets()
        self._buffers: Any = Buffers() if mode == "disabled" else buffers_for(model)
        self._passes = ChunkPasses(0, self._targets, self._buffers, new_lock())
        self._tally = Tally()
        self._watch = watch
        self._contract = contract
        use = "compare" if mode == "shadow" else "replay"
        self._fetching = Fetching(steps, missing, use, self._buffers, self._tally, watch, contract, writer)
        self._index = 0
        self._open: _Open | None = None
        self._choosers: list[Chooser] = []
        self._records: Records | None = None
        if mode != "disabled":
            self._bind(model, config)

    def _bind(self, model: Any, config: Any) -> None:
        found = _modules.decoder(model)
        _modules.check_config(getattr(model, "config", None) if config is None else config, found)
        self._geometry = _modules.geometry(found)
        plan = self._plan(self._describe([], None, None, None, [0], None, {}).layout)  # Of no rows.
        self._fingerprint = plan.geometry_fingerprint
        if self._mode == "R2":
            self._records = Records(found.num_layers, plan.layers, self._placed.ranks, self._placed.ep_size)
        self._layers = [router.layer for router in found.routers]
        self._hooks = PassHooks(found.module, self._passes, self._begin)
        for router in found.routers:
            binding = Binding(router.module, router.name, router.layer, self._passes, self._tally, in_backward)
            self._choosers.append(Chooser(router, binding, live_pads=self._live_pads))
        for chooser in self._choosers:
            chooser.install()
        self._hooks.install()

    def begin_step(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cu_seqlens: Any = None,
        lengths: Any = None,
        weight_version: int | None = None,
        step: Any = None,
        **layout: Any,
    ) -> BegunStep:
        """Before the passes of a step; the processes of `agree` call it together.

        tokens, attention_mask, position_ids, cu_seqlens, lengths, layout: of all sequences of the step together, as
            `micro_batch` takes them of its own. Without any of them nothing is compared before the passes are

        Other arguments, result and errors are those of `megatron.Replay.begin_step`.
        """
        if self._steps is None:
            return NO_STEP
        said = (sequences, tokens, attention_mask, position_ids, cu_seqlens, lengths)

        def expected() -> list[FetchSequence]:
            if layout:  # Its fields must be such as micro_batch takes.
                self._plan(self._describe(*said, layout).layout)
            return _micro_batch.expect(*said, layout)

        return self._steps.begin(expected, weight_version, self._fingerprint, step)

    def prefetch(self, micro_batches: Listing[Mapping[str, Any]], *, next_step: bool = False) -> None:
        """Announces micro-batches, each with the arguments that `micro_batch` will get for it: threads read their rows
        while the trainer computes.

        next_step: for the step after this one

        InvalidArgumentError naming what `micro_batch` would not take.
        """
        if self._steps is None:
            return
        described = []
        for said in micro_batches:
            sequences, told, layout = announced(said, _SAID, _OF_PASSES)
            described.append(self._describe(sequences, *told, layout))
            if layout:  # Its fields must be such as micro_batch takes.
                self._plan(described[-1].layout)
        self._steps.prefetch(described, lambda layout: [self._plan(layout)], next_step)

    @contextlib.contextmanager
    def micro_batch(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cu_seqlens: Any = None,
        lengths: Any = None,
        forward_only: bool | None = None,
        record: bool | None = None,
        **layout: Any,
    ) -> Iterator[None]:
        """Around the call of the model. What the model is given must be of the whole micro-batch here, before it is cut
        for sequence parallelism; it is one of

        a rectangle [b, s], padded left or right: tokens, or attention_mask [b, s] of 0 and 1, or both;
        a packed stream, [1, total] or [total]: cu_seqlens [n + 1] of the varlen attention, or position_ids that are 0
            where a document begins.

        Documents, or rows with tokens, behind those of `sequences` choose live, as if somebody had forgotten to name
        their samples, unless padding_documents says that they are padding, which `pads` is about.

        sequences: sample ids or handles, in the order in which the micro-batch holds them; `Sequence` where one is cut
            off; None, or handle 0, of one that is of no sample (padding, a failed rollout) and is to route live
        tokens: the token ids, which are compared with those that the rows were recorded for; also a list of arrays.
            Not compared if absent
        lengths: tokens of each sequence where they are fewer than the documents', or than s without a mask
        forward_only: no backward pass follows (log-probabilities, evaluation). If absent: gradients are off
        record: mode R2: whether this pass records or replays; if absent, it records if it is forward-only. No sample
            is recorded twice before a pass replays it or its step ends (InvalidArgumentError)
        layout: further fields of `micro_batch` of a plan, which go before what is derived; and padding_documents: how
            many of the last documents, or rows of the rectangle, are padding

        Activation checkpointing of layers or of parts of them recomputes with the same rows, whichever function does
        it: the rows of a pass are kept until its backward part has ended, so the context may be closed before backward
        as well as around it. Where one checkpoint is around the model as a whole, backward calls the model anew: keep
        the context open around backward then (a closed one is refused).

        A call of the model outside of this routes live, and inside of it each call is a pass of its own. An exception
        in here gives up those that were begun in here, with what they have recorded. Nothing but the choice changes: an
        auxiliary loss that transformers computes from the routers' logits goes by the live one.
        """
        if self._open is not None:
            raise _error("micro_batch: one is open already")
        if self._mode == "disabled":
            yield
            return
        described = self._describe(sequences, tokens, attention_mask, position_ids, cu_seqlens, lengths, layout)
        self._open = opened = _Open(described, forward_only, record)
        try:
            yield
        except BaseException:
            for of in opened.begun:
                self._passes.give_up(of)
                self._fetching.give_up(of.key)
            raise
        finally:
            self._open = None

    def _chunk_passes(self) -> list[ChunkPasses]:
        return [self._passes]

    def _records_held(self) -> list[Records]:
        return [] if self._records is None else [self._records]

    def _restart(self) -> None:
        self._index = 0

    def _remove(self) -> None:
        if self._mode != "disabled":
            self._hooks.remove()
        for chooser in self._choosers:
            chooser.remove()
        self._passes.drop_all()
        self._choosers = []

    def _describe(
        self,
        sequences: Listing[Any],
        tokens: Any,
        attention_mask: Any,
        position_ids: Any,
        cu_seqlens: Any,
        lengths: Any,
        layout: Mapping[str, Any],
    ) -> MicroBatch:
        return _micro_batch.describe(
            sequences, tokens, attention_mask, position_ids, cu_seqlens, lengths, self._placed.cp_size, layout
        )

    def _plan(self, micro_batch: Mapping[str, Any]) -> Plan:
        return self._plans.of(0, micro_batch)

    def _plan_arguments(self, micro_batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "geometry": self._geometry,
            "micro_batch": {"last_row_filler": self._last_row_filler} | dict(micro_batch),
            "rank": self._placed.ranks,
            "ep_size": self._placed.ep_size,
        }

    def _begin(self) -> None:
        """The decoder is called."""
        entered, recompute = self._open, in_backward()
        if recompute and self._passes.backward_pass is not None:
            return
        if entered is None:
            if recompute and self._index > 0:
                raise _error("micro_batch: backward calls the whole model again, and the context is closed")
            return
        forward_only = not torch.is_grad_enabled() if entered.forward_only is None else entered.forward_only
        key = PassKey(self._step, integer(self._index, "index", INT32), 0)
        begun = self._pass(entered, key, forward_only)
        try:
            self._passes.begin(begun, self._layers)
        except BaseException:
            self._buffers.give(begun.buffer)
            raise
        self._index += 1
        entered.begun.append(begun)

    def _pass(self, entered: _Open, key: PassKey, forward_only: bool) -> Pass:
        described = entered.described
        if self._records is not None:
            return self._fetching.record(
                key, described, self._records, forward_only, entered.record, self._plan_arguments
            )
        return self._fetching.read(key, described, self._plan(described.layout), forward_only)


def _error(message: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(message, code_name="FAILED_PRECONDITION", field="micro_batch")
