"""Replay of a live Megatron model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from typing import Any, Literal

import torch
from routing_replay import errors

from routing_replay_trainer import _attached
from routing_replay_trainer._attached import Attached, announced
from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._device_buffers import buffers_for
from routing_replay_trainer._hooks import Binding, PassHooks, is_hooked
from routing_replay_trainer._passes import ChunkPasses, Pass, PassKey, ReplayTargets, new_lock
from routing_replay_trainer._steps import NO_STEP, Fetching, Steps
from routing_replay_trainer._tally import Tally
from routing_replay_trainer._values import INT32, integer, invalid
from routing_replay_trainer._watch import Watch, Watched
from routing_replay_trainer.agreed import BegunStep
from routing_replay_trainer.collective import Collective
from routing_replay_trainer.fetch import FetchSequence, Missing, Source
from routing_replay_trainer.megatron import _fused, _micro_batch, _modules, _native
from routing_replay_trainer.megatron._schedule import micro_batch_index
from routing_replay_trainer.on_policy import Contract, OnPolicy
from routing_replay_trainer.plan import MegatronLayers, Plan, Plans
from routing_replay_trainer.records import Records, RecordWriter

Mode = Literal["disabled", "shadow", "R2", "R3"]
_OF_PASSES = ("index", "schedule", "forward_only", "record")  # Arguments that say nothing of rows.
_SAID = ("tokens", "packed_seq_params", "lengths")  # In the order of _describe.
_LAST_ROWS = ("filler", "live")
_INJECTIONS = {"native": _native, "fused": _fused}


def attach(
    model_chunks: Any,
    config: Any = None,
    *,
    source: Source | None = None,
    mode: Mode = "R3",
    inject: Literal["native", "fused"] = "native",
    missing: Missing = "strict",
    last_row: Literal["filler", "live"] = "filler",
    ranks: Mapping[str, int] | None = None,
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

    model_chunks: the rank's model chunks in order of their virtual stages, as forward_backward_func takes them (one
        model or a list), wrapped or not. Only this model's routers are touched: a reference or a critic that is not
        attached routes live, whether it was built before, after, or is a copy of this one
    config: its TransformerConfig; that of the first chunk if absent
    source: where rows come from; needed in the modes R3 and shadow
    mode: "R3" replays the rollout's routes; "R2" records the choice of this model's own forward-only pass and replays
        it in the training pass, each rank its own layers and rows, without transport (`release_records` says what
        that holds); "shadow" fetches, aligns and compares, and changes nothing: samples that are missing are counted,
        whatever `missing` and max_fallback_fraction say; "disabled" touches nothing
    inject: "native" tells Megatron's own RouterReplay, per call, which ids to take; "fused" replaces the routing call
        by our operator, which needs no RouterReplay (moe_enable_routing_replay may be off, moe_router_fusion on)
    missing: of a sample that cannot be replayed: "strict" raises, "live" leaves the sequence to live routing, "drop"
        does as well, and begin_step names it for the caller to leave it out of the loss
    last_row: of a sequence whose last token alone has no route, as that of a whole sample: "filler" gives that token
        experts spread over the ranks, like padding, as nothing that a loss over next tokens reads depends on it, and
        no router chooses where all other rows are recorded; "live" lets it choose, for losses over all tokens. Where
        the sample falls back it chooses in any case
    ranks: {"pp", "cp", "tp"} of this process; as Megatron's parallel_state says if absent
    agree: the ranks of the model replica (routing_replay_trainer.collective), which decide together in begin_step.
        Only replicas of one rank (tensor x context x pipeline ranks of the configuration), the other modes, and
        missing="strict" need none
    max_fallback_fraction: of a step's samples; FallbackLimitError if more cannot be replayed
    fetch_deadline: seconds that a step may wait for its rows in all; where no begin_step says what a step is, that
        each fetch (of one model chunk and micro-batch) may wait
    cache_bytes: for slices that are read ahead, or that later passes of the step read again; none for a LocalSource
    watch: of which micro-batches the live choice is compared with the replayed one, for the metrics: the "first" of
        each step and model chunk, "all", or none ("off"). Mode shadow compares all
    alarm_no_overlap: where in the first micro-batch of a step more rows than this share have no expert in common with
        their record, and drift of the weights is not the likely cause, one warning per cause (of the logger
        "routing_replay_trainer") names sample, layer and the nearest known mistake. None: never
    on_policy: "strict" refuses samples with rows of several weight versions; "lax", or None, reports them
    writer: mode R2: keeps what is recorded for the service, beside, until its `write` or `release`

    Raises InvalidArgumentError for an option that is none or that the mode does not use, and
    where the model's layers are not those of the configuration, and FailedPreconditionError
    naming a router or an option that would ignore the replay, or that another replay is attached to.
    """
    chunks = list(model_chunks) if isinstance(model_chunks, (list, tuple, torch.nn.ModuleList)) else [model_chunks]
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
    if inject not in _INJECTIONS:
        raise invalid("inject", f"{inject!r} is none of {', '.join(_INJECTIONS)}")
    if last_row not in _LAST_ROWS:
        raise invalid("last_row", f"{last_row!r} is none of {', '.join(_LAST_ROWS)}")
    config = getattr(_modules.unwrap(chunks[0]), "config", None) if config is None else config
    _attached.check_agreement(mode, missing, agree, *_modules.replica(config))
    if mode == "shadow":
        missing, max_fallback_fraction = "live", 1.0  # It stops no training: what cannot be compared is counted.
    if mode != "disabled":
        _modules.check_dropping(config, missing == "strict")
    watched, contract = Watch(source, "all" if mode == "shadow" else watch, alarm_no_overlap), Contract(on_policy)
    steps = None
    if mode in ("R3", "shadow"):
        binds = mode == "R3"
        steps = Steps(source, missing, agree, max_fallback_fraction, fetch_deadline, cache_bytes, contract, binds)
    return Replay(chunks, config, steps, mode, inject, missing, last_row, ranks, watched, contract, writer)


class Replay(Attached):
    """What `attach` gives. Used by the thread that runs the schedule; recompute may come from the autograd engine's."""

    def __init__(
        self,
        chunks: Listing[Any],
        config: Any,
        steps: Steps | None,
        mode: Mode,
        inject: str,
        missing: Missing,
        last_row: str,
        ranks: Mapping[str, int] | None,
        watch: Watch,
        contract: Contract,
        writer: RecordWriter | None = None,
    ) -> None:
        self._config = config
        self._steps = steps
        self._mode = mode
        self._falls_back = mode == "R3" and missing != "strict"
        self._ranks = dict(_modules.parallel_ranks() if ranks is None else ranks)
        self._ep_size: int = getattr(self._config, "expert_model_parallel_size", 1) or 1
        self._parallel: Mapping[str, Any] = {
            "cp_size": getattr(self._config, "context_parallel_size", 1),
            "tp_size": getattr(self._config, "tensor_model_parallel_size", 1),
            "sequence_parallel": bool(getattr(self._config, "sequence_parallel", False)),
            "last_row_filler": last_row == "filler",
        }
        self._plans = Plans(lambda chunk, said: Plan(**self._plan_arguments(chunk, said)))
        self._injection = _INJECTIONS[inject]
        self._targets = ReplayTargets()
        self._buffers: Any = Buffers() if mode == "disabled" else buffers_for(_modules.unwrap(chunks[0]))
        self._geometry = 0
        self._run_geometry: Any = None
        self._open: _Open | None = None
        self._chunks: list[_Chunk] = []
        self._tally = Tally()
        self._watch = watch
        self._contract = contract
        use = "compare" if mode == "shadow" else "replay"
        self._fetching = Fetching(steps, missing, use, self._buffers, self._tally, watch, contract, writer)
        if mode != "disabled":
            self._bind(chunks, inject)

    def _bind(self, chunks: Listing[Any], inject: str) -> None:
        lock = new_lock()
        native: list[int] = []
        model = []
        found = [_modules.live_routers(chunk) for chunk in chunks]
        for chunk, routers in zip(chunks, found, strict=True):
            _check_free(_modules.unwrap(chunk), routers)
            native += _modules.check(chunk, routers, inject)
            model.append(
                {
                    "layer_numbers": [router.layer + 1 for router in routers if not router.is_mtp],
                    "mtp_layer_numbers": [router.layer + 1 for router in routers if router.is_mtp],
                }
            )
        self._model, self._native_layers = model, native
        self._layers = MegatronLayers.of(_modules.config_json(self._config, _modules.unwrap(chunks[0])))
        if native or getattr(self._config, "moe_n_hash_layers", None):  # A run may be without them.
            self._run_geometry = None if self._steps is None else self._steps.geometry
        for number, (chunk, routers) in enumerate(zip(chunks, found, strict=True)):
            passes = ChunkPasses(number, self._targets, self._buffers, lock)
            live = [router for router in routers if not router.is_mtp and router.layer not in native]
            bindings = [Binding(r.module, r.name, r.layer, passes, self._tally, _modules.is_recompute) for r in live]
            self._chunks.append(
                _Chunk(self, number, _modules.unwrap(chunk), passes, bindings, [r.layer_module for r in live])
            )
        empty = {"format": "THD", "sequences": [], "cu_seqlens_padded": [0], "total_rows": 0, "partition": "contiguous"}
        empty |= self._parallel
        for chunk in self._chunks:
            plan = self._plan(chunk.number, empty)  # Compares the model with its configuration.
            layers, self._geometry = plan.layers, plan.geometry_fingerprint
            if self._mode == "R2" and layers:
                chunk.records = Records(self._config.num_layers, layers, self._ranks, self._ep_size)
        try:
            for chunk in self._chunks:
                chunk.install(self._injection)
        except BaseException:
            for chunk in self._chunks:
                chunk.remove(self._injection)
            raise

    def begin_step(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        packed_seq_params: Any = None,
        lengths: Any = None,
        weight_version: int | None = None,
        step: Any = None,
        **layout: Any,
    ) -> BegunStep:
        """Before the passes of a step, and before the schedule: all ranks of the replica call it together.

        sequences: all that the replica trains on in this step, in the same order on all ranks, as `micro_batch` takes
            them
        tokens, packed_seq_params, lengths, layout: of all of them together, as `micro_batch` takes them of its own:
            token ids as a list of arrays, a packed stream or a rectangle, which are compared with those that the rows
            were recorded for, and how many there are. Without any of them nothing is compared before the passes are
        weight_version: that the trainer has now, for metrics; -1 or None if it knows none
        step: any name. With that of the step before, that one goes on: it is decided anew, and what was read for it
            stays, as for the log-probability pass and the training passes of one rollout, each begun by itself

        Asks the source once about every sample, and lets the ranks decide which of them replay; `micro_batch` keeps to
        that for all passes of the step: a sample that has changed since is an error on the rank that finds it. Waits no
        longer than `fetch_deadline`. Raises FailedPreconditionError under missing="strict", FallbackLimitError, what
        `collective.agree` raises. A step lasts until the next one begins.
        """
        if self._steps is None:
            return NO_STEP

        def expected() -> list[FetchSequence]:
            self._check_group(packed_seq_params, layout)
            if layout:  # Its fields must be such as micro_batch takes.
                self._plan(0, self._describe(sequences, tokens, packed_seq_params, lengths, layout).layout)
            return _micro_batch.expect(sequences, tokens, packed_seq_params, lengths, layout)

        return self._steps.begin(expected, weight_version, self._geometry, step)

    def _check_groups(self, micro_batches: Listing[Mapping[str, Any]]) -> None:
        """Before begin_step: InvalidArgumentError naming local_cp_size where one of the micro-batches, each with the
        arguments of its `micro_batch`, has context-parallel groups of its own, unless missing="strict"."""
        for said in micro_batches:
            self._check_group(said.get("packed_seq_params"), said)

    def prefetch(self, micro_batches: Listing[Mapping[str, Any]], *, next_step: bool = False) -> None:
        """Announces micro-batches, each with the arguments that `micro_batch` will get for it (sequences, tokens,
        packed_seq_params, lengths, layout fields): threads read their rows while the trainer computes.

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
                self._plan(0, described[-1].layout)
        chunks = [chunk.number for chunk in self._chunks if chunk.replays]
        self._steps.prefetch(described, lambda layout: [self._plan(chunk, layout) for chunk in chunks], next_step)

    @contextlib.contextmanager
    def micro_batch(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        packed_seq_params: Any = None,
        lengths: Any = None,
        index: int | None = None,
        schedule: bool = True,
        forward_only: bool | None = None,
        record: bool | None = None,
        **layout: Any,
    ) -> Iterator[None]:
        """Around the call of the model in forward_step.

        sequences: sample ids or handles, in the order in which the micro-batch holds them; `Sequence` where one is cut
            off; None, or handle 0, of one that is of no sample (padding, a failed rollout) and is to route live
        tokens: their token ids before any slicing for context parallelism, which are compared with those that the
            rows were recorded for: a list of arrays, a packed stream, or a rectangle [b, s]. Not compared if absent
        packed_seq_params: Megatron's, for packed sequences. Without it the micro-batch is a rectangle [b, s] (BSHD)
            of the shape of `tokens`
        lengths: tokens of each sequence where they are not those of cu_seqlens_q, of the list, or s
        index: of the micro-batch in the schedule; what Megatron told its layers (current_microbatch) if absent, and
            the two must agree
        schedule: False where the caller runs the model outside of any schedule: what Megatron told the layers is of a
            schedule that is over, and `index` alone counts
        forward_only: no backward pass follows (log-probabilities, evaluation). If absent: gradients are off
        record: mode R2: whether this pass records or replays; if absent, it records if it is forward-only. No sample
            is recorded twice before a pass replays it or its step ends (InvalidArgumentError)
        layout: further fields of `micro_batch` of a plan, which go before what is derived: format, partition, padding,
            total_rows, target_rows, …; and padding_documents: how many of the last documents of the stream, or rows of
            the rectangle, are padding

        Documents behind those of `sequences` route live, as if somebody had forgotten to name their samples, unless
        padding_documents says that they are padding, which goes to filler experts.

        The plan is made when a model chunk is called, for its layers. A call of the model outside of this routes live.
        An exception in here gives up the passes that were begun in here, with what they have recorded.
        """
        if self._open is not None:
            raise errors.FailedPreconditionError("micro_batch: one is open already", code_name="FAILED_PRECONDITION")
        if self._mode == "disabled":
            yield
            return
        described = self._describe(sequences, tokens, packed_seq_params, lengths, layout)
        self._open = opened = _Open(described, index, forward_only, record, schedule)
        try:
            yield
        except BaseException:
            for chunk, of in opened.begun:
                chunk.give_up(of)
                self._fetching.give_up(of.key)
            raise
        finally:
            self._open = None

    def _chunk_passes(self) -> list[ChunkPasses]:
        return [chunk.passes for chunk in self._chunks]

    def _records_held(self) -> list[Records]:
        return [chunk.records for chunk in self._chunks if chunk.records is not None]

    def _restart(self) -> None:
        for chunk in self._chunks:
            chunk.last_index = -1

    def _remove(self) -> None:
        for chunk in self._chunks:
            chunk.remove(self._injection)
        self._chunks = []

    def _describe(
        self, sequences: Listing[Any], tokens: Any, packed_seq_params: Any, lengths: Any, layout: Mapping[str, Any]
    ) -> _micro_batch.MicroBatch:
        self._check_group(packed_seq_params, layout)
        return _micro_batch.describe(sequences, tokens, packed_seq_params, lengths, self._parallel, layout)

    def _check_group(self, packed_seq_params: Any, layout: Mapping[str, Any]) -> None:
        if self._falls_back:
            _micro_batch.check_group(packed_seq_params, layout, self._parallel["cp_size"])

    def _plan(self, chunk: int, micro_batch: Mapping[str, Any]) -> Plan:
        return self._plans.of(chunk, micro_batch)

    def _plan_arguments(self, chunk: int, micro_batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "micro_batch": micro_batch,
            "megatron": self._layers,
            "geometry": self._run_geometry,
            "rank": self._ranks | {"chunk": chunk, "model": self._model},
            "native_layers": self._native_layers or None,
            "ep_size": self._ep_size,
        }

    def _begin(self, chunk: _Chunk) -> None:
        """A chunk is called."""
        entered = self._open
        if entered is None or not chunk.replays:
            return
        index = chunk.index(entered)
        if any(one is chunk and chunk.passes.is_in_flight(of) for one, of in entered.begun):
            raise errors.FailedPreconditionError(
                f"micro_batch: the model is called a second time in micro-batch {index}, and the first call waits for "
                "its backward part: give each call a micro_batch and an index of its own",
                code_name="FAILED_PRECONDITION",
                field="micro_batch",
            )
        if index <= chunk.last_index:
            self.end_step()
        forward_only = not torch.is_grad_enabled() if entered.forward_only is None else entered.forward_only
        key = PassKey(self._step, index, chunk.number)
        begun = self._pass(chunk, entered, key, forward_only)
        try:
            chunk.passes.begin(begun, [layer.layer for layer in begun.batch.plan.layers])
        except BaseException:
            self._buffers.give(begun.buffer)
            raise
        chunk.last_index = index
        entered.begun.append((chunk, begun))

    def _pass(self, chunk: _Chunk, entered: _Open, key: PassKey, forward_only: bool) -> Pass:
        """What the chunk replays, compares or records into."""
        described = entered.described
        if chunk.records is None:
            return self._fetching.read(key, described, self._plan(chunk.number, described.layout), forward_only)
        whole = functools.partial(self._plan_arguments, chunk.number)
        return self._fetching.record(key, described, chunk.records, forward_only, entered.record, whole)


def _check_free(chunk: Any, routers: Listing[_modules.LiveRouter]) -> None:
    """FailedPreconditionError if another replay is attached: of two, each would end the other's steps."""
    if is_hooked(chunk):
        raise _modules.refusal("model_chunks", "a replay is attached to this model already: detach it before")
    for router in routers:
        if any(injection.is_bound(router.module) for injection in _INJECTIONS.values()):
            raise _modules.refusal(router.name, "a replay is attached to this router already: detach it before")


class _Open:
    """A micro_batch context."""

    def __init__(
        self,
        described: _micro_batch.MicroBatch,
        index: int | None,
        forward_only: bool | None,
        record: bool | None,
        schedule: bool,
    ) -> None:
        self.described = described
        self.record = record
        self.schedule = schedule
        self.index = None if index is None else integer(index, "index", (0, INT32[1]))
        self.forward_only = forward_only
        self.begun: list[tuple[_Chunk, Pass]] = []


class _Chunk:
    """A model chunk and the hooks on it."""

    def __init__(
        self,
        replay: Replay,
        number: int,
        module: Any,
        passes: ChunkPasses,
        bindings: list[Binding],
        layer_modules: list[Any],
    ) -> None:
        self.number = number
        self.passes = passes
        self._bindings = bindings
        self._layer_modules = layer_modules
        self._hooks = PassHooks(module, passes, lambda: replay._begin(self))
        self.last_index = -1
        self.records: Records | None = None

    @property
    def replays(self) -> bool:
        """False of a chunk without routers to replay in."""
        return bool(self._bindings)

    def install(self, injection: Any) -> None:
        for binding in self._bindings:
            injection.install(binding)
        self._hooks.install()

    def remove(self, injection: Any) -> None:
        self._hooks.remove()
        for binding in self._bindings:
            injection.remove(binding)
        self.passes.drop_all()

    def give_up(self, of: Pass) -> None:
        """A pass after which its micro-batch failed; it may be run again."""
        if self.passes.give_up(of):
            self.last_index = min(self.last_index, of.key.micro_batch - 1)

    def index(self, entered: _Open) -> int:
        told = [getattr(module, "current_microbatch", None) for module in self._layer_modules]
        return micro_batch_index(self.number, told if entered.schedule else [], entered.index)
