"""Replay of a live Megatron model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from collections.abc import Sequence as Listing
from typing import Any, Literal

import torch
from routing_replay._values import INT32, integer

from routing_replay_trainer._attached import Attached, Chunk, Open, Options
from routing_replay_trainer._buffers import Buffers
from routing_replay_trainer._core import LOG, check_choice, invalid, unmet
from routing_replay_trainer._device_buffers import buffers_for
from routing_replay_trainer._hooks import HOOKED, Binding, PassHooks, Tally
from routing_replay_trainer._micro_batch import Given, MicroBatch, described, lengths_by, of_megatron
from routing_replay_trainer._passes import ChunkPasses
from routing_replay_trainer.megatron import _modules
from routing_replay_trainer.megatron._call import Call, read_call
from routing_replay_trainer.megatron._inject import INJECTIONS, is_bound
from routing_replay_trainer.megatron._schedule import micro_batch_index
from routing_replay_trainer.plan import MegatronLayers
from routing_replay_trainer.records import Records

_EMPTY = {"format": "THD", "sequences": [], "cu_seqlens_padded": [0], "total_rows": 0, "partition": "contiguous"}


def attach(
    model_chunks: Any,
    config: Any = None,
    *,
    inject: Literal["native", "fused"] = "native",
    ranks: Mapping[str, int] | None = None,
    **options: Any,
) -> Replay:
    """Attaches a replay to the routers of a model.

    model_chunks: the rank's model chunks in order of their virtual stages, as forward_backward_func takes them (one
        model or a list), wrapped or not. Routers of other models are not changed, not even those of a copy of this one
    config: the model's TransformerConfig; by default that of the first chunk
    inject: "native": Megatron's own RouterReplay gets the ids; "fused": our operator routes (see `_inject.py`)
    ranks: {"pp", "cp", "tp"} of this process; by default from Megatron's parallel_state
    options: those of `Options`

    Raises InvalidArgumentError if an option is wrong or not used in the mode, or if the model's layers are not those of
    the configuration. Raises FailedPreconditionError if a router or an option would ignore the replay (the error names
    it), or if another replay is attached already.
    """
    chunks = list(model_chunks) if isinstance(model_chunks, (list, tuple, torch.nn.ModuleList)) else [model_chunks]
    check_choice("inject", inject, tuple(INJECTIONS))
    return Replay(chunks, config, Options(**options), inject, ranks)


class Replay(Attached):
    """What `attach` returns. Use it in the thread that runs the schedule. Its hooks also run in threads of the autograd
    engine, if checkpoints recompute there.
    """

    _AT_ONCE = False

    def __init__(
        self, chunks: Listing[Any], config: Any, options: Options, inject: str, ranks: Mapping[str, int] | None
    ) -> None:
        models = [_modules.unwrap(chunk) for chunk in chunks]
        config = getattr(models[0], "config", None) if config is None else config
        options.check_agreement(*_modules.replica(config))
        disabled = options.mode == "disabled"
        super().__init__(options, Buffers() if disabled else buffers_for(models[0]), Tally())
        self._falls_back = options.mode == "R3" and options.missing != "strict"
        self._warned: set[str] = set()
        self._ranks = dict(_modules.parallel_ranks() if ranks is None else ranks)
        self._ep_size: int = getattr(config, "expert_model_parallel_size", 1) or 1
        self._parallel: Mapping[str, Any] = {
            "cp_size": getattr(config, "context_parallel_size", 1),
            "tp_size": getattr(config, "tensor_model_parallel_size", 1),
            "sequence_parallel": bool(getattr(config, "sequence_parallel", False)),
            "last_row_filler": self._last_row_filler,
        }
        if not disabled:
            _modules.check_dropping(config, options.missing_or_live == "strict")
            self._bind(models, config, inject)

    def _bind(self, models: Listing[Any], config: Any, inject: str) -> None:
        native: list[int] = []
        numbers = []
        found = [_modules.live_routers(model) for model in models]
        for model, routers in zip(models, found, strict=True):
            _check_free(model, routers)
            native += _modules.check(model, routers, inject)
            numbers.append({"layer_numbers": [router.layer + 1 for router in routers if not router.is_mtp]})
        self._model, self._native_layers = numbers, native
        self._layers = MegatronLayers.of(_modules.config_json(config, models[0]))
        self._geometry = self._layers.geometry
        self._run_geometry: Any = None
        if self._steps is not None and (native or getattr(config, "moe_n_hash_layers", None)):
            self._run_geometry = self._steps.source.geometry  # The run may lack native and hash layers.
        self._layer_modules: list[list[Any]] = []
        for number, (model, routers) in enumerate(zip(models, found, strict=True)):
            chunk = Chunk(number, ChunkPasses(number, self._buffers, self._lock))
            live = [router for router in routers if not router.is_mtp and router.layer not in native]
            for router in live:
                where = (router.module, router.name, router.layer)
                binding = Binding(*where, chunk.passes, self._tally, _modules.is_recompute)
                chunk.parts.append(INJECTIONS[inject](binding))
            if live:
                chunk.parts.append(PassHooks(model, chunk.passes, functools.partial(self._begin, chunk, model)))
            self._chunks.append(chunk)
            self._layer_modules.append([router.layer_module for router in live])
        for chunk in self._chunks:
            plan = self._plan(chunk.number, _EMPTY | self._parallel)  # Compares the model with its configuration.
            self._fingerprint = plan.described["geometry_fingerprint"]
            if self._mode == "R2" and plan.layers:
                chunk.records = Records(config.num_layers, plan.layers, self._ranks, self._ep_size)
        self._install()

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
        **layout: Any,
    ) -> contextlib.AbstractContextManager[None]:
        """Context manager around the call of the model in forward_step. The layout of the micro-batch is read from that
        call (`_call.py`).

        sequences: sample ids or handles, in the order of the micro-batch; a `Sequence` for a part of a sample; None or
            handle 0 for a sequence that belongs to no sample (padding, a failed rollout) and shall route live
        lengths: number of tokens of each sequence. By default from the first of these that tells it: a list `tokens`;
            cu_seqlens_q, if its padded variant differs; begin_step, if `tokens` is absent; cu_seqlens_q or a mask
            [b, s]; the padded length s
        index: index of the micro-batch in the schedule; by default the one that Megatron has told its layers
            (current_microbatch). If both are known, they must agree
        schedule: False if the caller runs the model outside of any schedule: then only `index` counts, because
            current_microbatch is left over from an earlier schedule
        forward_only: True if no backward pass follows (log-probabilities, evaluation). By default True if gradients are
            off. In mode R2 such a pass records, and others replay. Until a pass has replayed or the step has ended,
            recording a sample a second time is an InvalidArgumentError

        The following are needed only for `prefetch`, which cannot read a call of the model. In `micro_batch` the call's
        layout overrides theirs, unless the call has its boundaries on the device and both have equally many rows:

        tokens: token ids before any slicing for context parallelism, as a list of arrays, a packed stream, or a
            rectangle [b, s]. They are compared with the tokens for which the rows were recorded
        packed_seq_params: Megatron's PackedSeqParams
        layout: fields of a plan's `micro_batch`, such as padding (the policy that predicts the layout) and partition
            (if context parallelism does not slice as Megatron does). Without a policy, documents of the stream, or
            rows of the rectangle, after those of `sequences` route live

        The plan for the layers of a model chunk is made when the chunk is called. A call of the model outside of this
        context routes live. After an exception inside, call `abandon_step`.
        """
        said = {"tokens": tokens, "packed_seq_params": packed_seq_params, "lengths": lengths, **layout}
        index = None if index is None else integer(index, "index", (0, INT32[1]))
        return self._opened(sequences, said, forward_only=forward_only, index=index, schedule=schedule)

    def _given(
        self,
        sequences: Listing[Any],
        tokens: Any = None,
        packed_seq_params: Any = None,
        lengths: Any = None,
        called: Mapping[str, Any] | None = None,
        **layout: Any,
    ) -> Given:
        """called: the result of `Call.read`; None if the model has not been called"""
        told = () if self._steps is None else lengths_by(sequences, self._steps.told)
        given = of_megatron(tokens, packed_seq_params, lengths, layout, self._parallel, told=told, **called or {})
        size, cp_size = given.layout.get("local_cp_size"), self._parallel["cp_size"]
        if self._falls_back and size not in (None, cp_size):
            raise invalid(
                "local_cp_size",
                f"{size}, and context_parallel_size is {cp_size}: a micro-batch with process groups of its own "
                "(dynamic or hybrid context parallelism) cannot fall back to live routing, because the ranks of "
                "`agree`, which decide that together, are the same for all micro-batches. Attach with missing='strict'",
            )
        return given

    def _guessed(self, sequences: Listing[Any], said: dict[str, Any]) -> dict[str, Any] | None:
        """Adds defaults to the arguments of an announced micro_batch: Megatron's own padding, and the lengths given to
        begin_step. Returns None if a length is unknown."""
        if said.get("lengths") is None and said.get("tokens") is None and said.get("packed_seq_params") is None:
            assert self._steps is not None
            said = said | {"lengths": lengths_by(sequences, self._steps.told)}
            if None in said["lengths"]:
                return None
        shaped = said.get("packed_seq_params") is not None or getattr(said.get("tokens"), "ndim", 0) == 2
        return said if shaped or {"padding", "format"} & said.keys() else said | {"padding": {"policy": "megatron"}}

    def _of_call(self, chunk: Chunk, opened: Open, call: Call) -> MicroBatch:
        """Returns the micro-batch as this call describes it. If reading the call would wait for the device, uses the
        layout that the arguments of `micro_batch` give instead, provided that the number of rows agrees."""
        announced = {"packed_seq_params", "padding", "format"} & {k for k, v in opened.said.items() if v is not None}

        def describe(called: Mapping[str, Any]) -> MicroBatch:
            return described(opened.sequences, *self._given(opened.sequences, called=called, **opened.said))

        if not call.on_host and announced:
            one = describe({})
            if call.rows in (None, self._plan(chunk.number, one.layout).rows):
                return one
        one = describe(call.read())
        for what in self._plan(chunk.number, one.layout).described["warnings"]:
            if what not in self._warned:
                self._warned.add(what)
                LOG.warning("router replay: %s", what)
        return one

    def _plan_arguments(self, chunk: int, layout: Mapping[str, Any]) -> dict[str, Any]:
        layout = dict(layout)
        own = {"cp": layout.pop("cp_rank")} if "cp_rank" in layout else {}
        return {
            "micro_batch": layout,
            "megatron": self._layers,
            "geometry": self._run_geometry,
            "rank": self._ranks | {"chunk": chunk, "model": self._model} | own,
            "native_layers": self._native_layers or None,
            "ep_size": self._ep_size,
        }

    def _begin(self, chunk: Chunk, model: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Called when a chunk is called. Begins a pass if a micro_batch context is open."""
        opened = self._open
        if opened is None:
            return
        layers = self._layer_modules[chunk.number] if opened.schedule else []
        scheduled = [getattr(module, "current_microbatch", None) for module in layers]
        index = micro_batch_index(chunk.number, scheduled, opened.index)
        if any(begun is chunk and chunk.passes.is_in_flight(of) for begun, of in opened.begun):
            raise unmet(
                "micro_batch",
                f"the model is called a second time in micro-batch {index}, while the first call still waits for its "
                "backward part: give each call a micro_batch and an index of its own",
            )
        if index <= chunk.last_index:
            self.end_step()
        one = self._of_call(chunk, opened, read_call(model, arguments, keywords, self._parallel))
        self._enter(chunk, opened, one, index, torch.is_grad_enabled())


def _check_free(model: Any, routers: Listing[_modules.LiveRouter]) -> None:
    """Raises FailedPreconditionError if another replay is attached, because two replays would end each other's
    steps."""
    if model in HOOKED:
        raise unmet("model_chunks", "a replay is attached to this model already: detach it before")
    for router in routers:
        if is_bound(router.module):
            raise unmet(router.name, "a replay is attached to this router already: detach it before")
