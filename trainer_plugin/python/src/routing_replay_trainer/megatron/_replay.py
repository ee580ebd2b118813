"""Replay of a live Megatron model."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from typing import Any, Literal

import torch

from routing_replay_trainer import errors, ops
from routing_replay_trainer._values import INT32, integer, invalid
from routing_replay_trainer.fetch import Batch, Missing, Source
from routing_replay_trainer.megatron import _fused, _micro_batch, _modules, _native
from routing_replay_trainer.megatron._binding import Binding
from routing_replay_trainer.megatron._device_buffers import buffers_for
from routing_replay_trainer.megatron._passes import ChunkPasses, Pass, new_lock
from routing_replay_trainer.megatron._records import Records
from routing_replay_trainer.plan import Plan
from routing_replay_trainer.targets import PassKey, ReplayTargets

Mode = Literal["disabled", "shadow", "R2", "R3"]
_MODES = ("disabled", "shadow", "R2", "R3")
_INJECTIONS = {"native": _native, "fused": _fused}


def attach(
    model_chunks: Any,
    config: Any = None,
    *,
    source: Source | None = None,
    mode: Mode = "R3",
    inject: Literal["native", "fused"] = "native",
    missing: Missing = "strict",
    ranks: Mapping[str, int] | None = None,
) -> Replay:
    """Binds the routers of a model to what will be replayed in them.

    model_chunks: the rank's model chunks in order of their virtual stages, as forward_backward_func takes them (one
        model or a list), wrapped or not. Only this model's routers are touched: a reference or a critic that is not
        attached routes live, whether it was built before, after, or is a copy of this one
    config: its TransformerConfig; that of the first chunk if absent
    source: where rows come from; needed in the modes R3 and shadow
    mode: "R3" replays the rollout's routes; "R2" records the choice of this model's own forward-only pass and replays
        it in the training pass, each rank its own layers and rows, without transport; "shadow" fetches, aligns and
        compares, and changes nothing; "disabled" touches nothing
    inject: "native" tells Megatron's own RouterReplay, per call, which ids to take; "fused" replaces the routing call
        by our operator, which needs no RouterReplay (moe_enable_routing_replay may be off, moe_router_fusion on)
    missing: of a sample that cannot be replayed: "strict" raises, "live" leaves the sequence to live routing
    ranks: {"pp", "cp", "tp"} of this process; as Megatron's parallel_state says if absent

    Raises InvalidArgumentError where the model's layers are not those of the configuration, and FailedPreconditionError
    naming a router or an option that would ignore the replay.
    """
    chunks = list(model_chunks) if isinstance(model_chunks, (list, tuple, torch.nn.ModuleList)) else [model_chunks]
    if mode not in _MODES:
        raise invalid("mode", f"{mode!r} is none of {', '.join(_MODES)}")
    if inject not in _INJECTIONS:
        raise invalid("inject", f"{inject!r} is none of {', '.join(_INJECTIONS)}")
    if mode in ("R3", "shadow") and source is None:
        raise invalid("source", f"mode {mode} needs one")
    return Replay(chunks, config, source, mode, inject, missing, ranks)


class Replay:
    """What `attach` gives. Used by the thread that runs the schedule; recompute may come from the autograd engine's."""

    def __init__(
        self,
        chunks: Listing[Any],
        config: Any,
        source: Source | None,
        mode: Mode,
        inject: str,
        missing: Missing,
        ranks: Mapping[str, int] | None,
    ) -> None:
        self._config = getattr(_modules.unwrap(chunks[0]), "config", None) if config is None else config
        self._source = source
        self._mode = mode
        self._missing: Missing = missing
        self._ranks = dict(_modules.parallel_ranks() if ranks is None else ranks)
        self._ep_size: int = getattr(self._config, "expert_model_parallel_size", 1) or 1
        self._injection = _INJECTIONS[inject]
        self._targets = ReplayTargets()
        self._buffers: Any = buffers_for(_modules.unwrap(chunks[0]))
        self._step = 0
        self._open: _Open | None = None
        self._chunks: list[_Chunk] = []
        self._bindings: dict[int, Binding] = {}
        self._counters = {"replayed_rows": 0, "unrecorded_rows": 0, "pad_rows": 0, "fallback_sequences": 0}
        self._overlap: dict[int, torch.Tensor] = {}
        self._top_k: dict[int, int] = {}
        if mode != "disabled":
            self._bind(chunks, inject)

    def _bind(self, chunks: Listing[Any], inject: str) -> None:
        lock = new_lock()
        native: list[int] = []
        model = []
        found = [_modules.live_routers(chunk) for chunk in chunks]
        for chunk, routers in zip(chunks, found, strict=True):
            native += _modules.check(chunk, routers, inject)
            model.append(
                {
                    "layer_numbers": [router.layer + 1 for router in routers if not router.is_mtp],
                    "mtp_layer_numbers": [router.layer + 1 for router in routers if router.is_mtp],
                }
            )
        self._model, self._native_layers = model, native
        for number, (chunk, routers) in enumerate(zip(chunks, found, strict=True)):
            passes = ChunkPasses(number, self._targets, self._buffers, lock)
            live = [router for router in routers if not router.is_mtp and router.layer not in native]
            bindings = [Binding(r.module, r.name, r.layer, passes, self._seen) for r in live]
            self._bindings |= {binding.layer: binding for binding in bindings}
            self._chunks.append(
                _Chunk(self, number, _modules.unwrap(chunk), passes, bindings, [r.layer_module for r in live])
            )
        empty = {"format": "THD", "sequences": [], "cu_seqlens_padded": [0], "total_rows": 0, "partition": "contiguous"}
        for chunk in self._chunks:
            layers = self._plan(chunk.number, empty).layers  # Compares the model with its configuration.
            if self._mode == "R2" and layers:
                chunk.records = Records(self._config.num_layers, layers, self._ranks, self._ep_size)
        for chunk in self._chunks:
            chunk.install(self._injection)

    @contextlib.contextmanager
    def micro_batch(
        self,
        sequences: Listing[Any],
        *,
        tokens: Any = None,
        packed_seq_params: Any = None,
        lengths: Any = None,
        index: int | None = None,
        forward_only: bool | None = None,
        record: bool | None = None,
        **layout: Any,
    ) -> Iterator[None]:
        """Around the call of the model in forward_step.

        sequences: sample ids, in the order in which the micro-batch holds them; `Sequence` where one is cut off
        tokens: their token ids before any slicing for context parallelism, which are compared with those that the
            rows were recorded for: a list of arrays, a packed stream, or a rectangle [b, s]. Not compared if absent
        packed_seq_params: Megatron's, for packed sequences. Without it the micro-batch is a rectangle [b, s] (BSHD)
            of the shape of `tokens`
        lengths: tokens of each sequence where they are not those of cu_seqlens_q, of the list, or s
        index: of the micro-batch in the schedule; what Megatron told its layers (current_microbatch) if absent, and
            the two must agree
        forward_only: no backward pass follows (log-probabilities, evaluation). If absent: gradients are off
        record: mode R2: whether this pass records or replays; if absent, it records if it is forward-only
        layout: further fields of `micro_batch` of a plan, which go before what is derived: format, partition, padding,
            total_rows, target_rows, …

        The plan is made when a model chunk is called, for its layers. A call of the model outside of this routes live.
        """
        if self._open is not None:
            raise errors.FailedPreconditionError("micro_batch: one is open already", code_name="FAILED_PRECONDITION")
        if self._mode == "disabled":
            yield
            return
        parallel = {
            "cp_size": getattr(self._config, "context_parallel_size", 1),
            "tp_size": getattr(self._config, "tensor_model_parallel_size", 1),
            "sequence_parallel": bool(getattr(self._config, "sequence_parallel", False)),
        }
        described = _micro_batch.describe(sequences, tokens, packed_seq_params, lengths, parallel, layout)
        self._open = _Open(described, index, forward_only, record)
        try:
            yield
        finally:
            self._open = None

    def end_step(self) -> None:
        """After forward_backward_func. FailedPreconditionError naming a pass whose backward part never ran; nothing of
        it reaches the next step."""
        step, self._step = self._step, self._step + 1
        for chunk in self._chunks:
            chunk.passes.drop_all()
            chunk.last_index = -1
        self._targets.end_step(step)

    def release_records(self) -> None:
        """Mode R2: forgets what was recorded, after the training passes that replay it. What is recorded again under
        the same sample is replaced in any case."""
        for chunk in self._chunks:
            if chunk.records is not None:
                chunk.records.release()

    def detach(self) -> None:
        """The model as it was."""
        for chunk in self._chunks:
            chunk.remove(self._injection)
        self._chunks = []
        self._mode = "disabled"

    def metrics(self) -> dict[str, float]:
        """Since the last call, of this rank:

        routing_replay/replayed_rows, unrecorded_rows, pad_rows, fallback_sequences
        routing_replay/replayed_fraction: of rows that are no pads
        routing_replay/clamped_ids, zero_probabilities (inject "fused"): ids that no expert has, 0 unless a buffer is
            broken, and replayed experts whose probability came out as 0, which some dispatchers lose
        routing_replay/overlap/layer_NN (mode shadow): mean share of replayed experts among the live choice
        routing_replay/no_overlap_fraction (mode shadow): rows that have no expert in common
        """
        said: dict[str, float] = {f"routing_replay/{key}": float(value) for key, value in self._counters.items()}
        real = self._counters["replayed_rows"] + self._counters["unrecorded_rows"]
        said["routing_replay/replayed_fraction"] = self._counters["replayed_rows"] / real if real else 0.0
        counted = [binding.counted.read() for binding in self._bindings.values()]
        for name in ("clamped_ids", "zero_probabilities"):
            said[f"routing_replay/{name}"] = float(sum(counters[name] for counters in counted))
        counts = {
            layer: dict(zip(ops.COMPARED, tensor.tolist(), strict=True)) for layer, tensor in self._overlap.items()
        }
        for layer, count in sorted(counts.items()):
            slots = count["rows"] * self._top_k[layer]
            said[f"routing_replay/overlap/layer_{layer:02}"] = count["common_ids"] / slots if slots else 0.0
        compared = sum(count["rows"] for count in counts.values())
        if compared:
            disjoint = sum(count["disjoint_rows"] for count in counts.values())
            said["routing_replay/no_overlap_fraction"] = disjoint / compared
        self._counters = dict.fromkeys(self._counters, 0)
        self._overlap.clear()
        return said

    @property
    def buffer_bytes(self) -> int:
        """Held for index buffers, in use or free."""
        return self._buffers.bytes

    @property
    def kept(self) -> int:
        """Entries that wait for their router or its recompute; 0 between steps."""
        return len(self._targets)

    def _plan(self, chunk: int, micro_batch: Mapping[str, Any]) -> Plan:
        config = _modules.config_json(self._config)
        return Plan(
            None,
            micro_batch,
            megatron=config,
            rank=self._ranks | {"chunk": chunk, "model": self._model},
            native_layers=self._native_layers or None,
            ep_size=self._ep_size,
        )

    def _begin(self, chunk: _Chunk) -> None:
        """A chunk is called."""
        entered = self._open
        if entered is None or not chunk.replays:
            return
        index = chunk.index(entered.index)
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

    def _pass(self, chunk: _Chunk, entered: _Open, key: PassKey, forward_only: bool) -> Pass:
        """What the chunk replays, compares or records into."""
        records, described = chunk.records, entered.described
        plan = self._plan(chunk.number, described.layout) if records is None else records.plan(described.layout)
        number = self._buffers.take(plan)
        fetch = functools.partial(self._buffers.fetch, number)
        use = "compare" if self._mode == "shadow" else "replay"
        keep = None
        try:
            if records is None:
                batch = fetch(self._source, plan, sequences=described.fetch, missing=self._missing)
            elif forward_only if entered.record is None else entered.record:
                use, batch = "record", records.empty(plan, self._buffers.empty(number, plan))
                keep = functools.partial(records.keep, plan, described, self._buffers.reader(number, plan))
            else:
                batch = records.fetch(plan, described, self._missing, fetch)
        except BaseException:
            self._buffers.give(number)
            raise
        if use != "record":
            self._count(batch)
        return Pass(key, batch, number, use, forward_only, keep, self._buffers.tensors(number, plan))

    def _count(self, batch: Batch) -> None:
        for name in self._counters:
            self._counters[name] += getattr(batch, name)

    def _seen(self, answer: Any, layer: int, chosen: torch.Tensor) -> None:
        """The live choice of a layer, where it is not replayed: R2 keeps it; shadow counts how much of what would be
        replayed it has."""
        binding = self._bindings[layer]
        if answer.of.use == "record":
            binding.ids(answer, chosen.device).copy_(chosen)
            return
        ids, states = binding.ids(answer, chosen.device), binding.states(answer, chosen.device)
        self._top_k[layer] = chosen.shape[1]
        counts = ops.compare(chosen, ids, states)
        self._overlap[layer] = counts + self._overlap.get(layer, 0)


class _Open:
    """A micro_batch context."""

    def __init__(
        self, described: _micro_batch.MicroBatch, index: int | None, forward_only: bool | None, record: bool | None
    ) -> None:
        self.described = described
        self.record = record
        self.index = None if index is None else integer(index, "index", (0, INT32[1]))
        self.forward_only = forward_only


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
        self._replay = replay
        self.number = number
        self._module = module
        self.passes = passes
        self._bindings = bindings
        self._layer_modules = layer_modules
        self._hooks: list[Any] = []
        self.last_index = -1
        self.records: Records | None = None

    @property
    def replays(self) -> bool:
        """False of a chunk without routers to replay in."""
        return bool(self._bindings)

    def install(self, injection: Any) -> None:
        for binding in self._bindings:
            injection.install(binding)
        _CHUNKS[self._module] = self
        self._hooks = [
            self._module.register_forward_pre_hook(_before),
            self._module.register_forward_hook(_after, always_call=True),
        ]

    def remove(self, injection: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        _CHUNKS.pop(self._module, None)
        for binding in self._bindings:
            injection.remove(binding)
        self.passes.drop_all()

    def index(self, said: int | None) -> int:
        """Of the micro-batch: what the schedule told the chunk's layers, asserted where the caller says it too."""
        told = {getattr(module, "current_microbatch", None) for module in self._layer_modules} - {None}
        if len(told) > 1:
            raise invalid(
                "index", f"the layers of chunk {self.number} are told different micro-batches: {sorted(told)}"
            )
        if not told and said is None:
            raise invalid("index", f"not given, and nothing has told the layers of chunk {self.number}")
        index = said if not told else told.pop()
        if said is not None and said != index:
            raise invalid("index", f"{said}, but the schedule runs micro-batch {index}")
        return index

    def before(self) -> None:
        self._replay._begin(self)

    def after(self, output: Any) -> None:
        if self.passes.forward_pass is None:
            return
        if output is None:  # The call raised.
            self.passes.abandon()
            return
        ended = self.passes.end_forward()
        if ended.keep is not None:
            ended.keep()
        if ended.forward_only:
            return
        outputs = [tensor for tensor in _tensors(output) if tensor.requires_grad]
        if not outputs:
            self.passes.end_backward(ended)
        for tensor in outputs:
            tensor.register_hook(lambda _, of=ended: self._backward(of))

    def _backward(self, of: Pass) -> None:
        """The gradient of the output is there. The engine calls back when it is through with what it was called for."""
        self.passes.begin_backward(of)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.passes.end_backward(of))


# By identity: a copy of a model has the hooks too, and is not in here.
_CHUNKS: weakref.WeakKeyDictionary[Any, _Chunk] = weakref.WeakKeyDictionary()


def _before(module: Any, arguments: Any) -> None:
    if module in _CHUNKS:
        _CHUNKS[module].before()


def _after(module: Any, arguments: Any, output: Any) -> None:
    if module in _CHUNKS:
        _CHUNKS[module].after(output)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
