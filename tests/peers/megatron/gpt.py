"""Small GPTModels of Megatron-Core (local specification), and the choices of their routers in a schedule: on a GPU if
torch sees one, otherwise on the CPU.

Token ids are unique in a step, and the experts of a token are `routes[token]`. So the rows of a rank's routers show
which tokens Megatron gave to the rank.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import on_cpu

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state as mpu
    from megatron.core import tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
        get_gpt_mtp_block_spec,
    )
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.router_replay import RouterReplayAction
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import (
        MoETransformerLayer,
        TransformerLayer,
        TransformerLayerSubmodules,
    )
    from megatron.core.utils import get_batch_on_this_cp_rank

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    on_cpu.install_megatron()

EXPERTS, TOP_K, HIDDEN, HEADS, VOCABULARY = 8, 2, 16, 4, 640
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "moe": {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


@dataclass(frozen=True)
class Layout:
    """The parallelism of a model: the number of ranks that share a layer (tp), a sequence (cp), the experts (ep) or the
    model (pp), and the chunks of each rank (vpp)."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def etp(self) -> int:
        """The number of ranks that share each expert. Ranks either hold different experts (ep) or a part of every
        expert, not both, because gloo cannot gather parts of unequal size."""
        return self.tp if self.ep == 1 else 1

    def start(self) -> None:
        mpu.destroy_model_parallel()
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            virtual_pipeline_model_parallel_size=self.vpp if self.vpp > 1 else None,
            context_parallel_size=self.cp,
            expert_model_parallel_size=self.ep,
            expert_tensor_parallel_size=self.etp,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(5, force_reset_rng=True)

    def config(self, **options: Any) -> TransformerConfig:
        """Returns Megatron's configuration for this layout; `options` replace its fields. Only the first layer is
        dense."""
        layers = 2 * self.pp * self.vpp
        options = {
            "num_layers": layers,
            "moe_layer_freq": [0] + [1] * (layers - 1),
            "hidden_size": HIDDEN,
            "ffn_hidden_size": 2 * HIDDEN,
            "num_attention_heads": HEADS,
            "num_moe_experts": EXPERTS,
            "moe_router_topk": TOP_K,
            "moe_enable_routing_replay": True,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "add_bias_linear": False,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "use_cpu_initialization": DEVICE == "cpu",
            "gradient_accumulation_fusion": False,
            "bias_dropout_fusion": False,
            "persist_layer_norm": False,
            "params_dtype": torch.float32,
            "pipeline_dtype": torch.float32,
            "deallocate_pipeline_outputs": True,
            "tensor_model_parallel_size": self.tp,
            "sequence_parallel": self.tp > 1,
            "pipeline_model_parallel_size": self.pp,
            "virtual_pipeline_model_parallel_size": self.vpp if self.vpp > 1 else None,
            # Megatron requires this for an interleaved schedule of two pipeline stages.
            "overlap_p2p_comm": self.vpp > 1,
            "batch_p2p_comm": self.vpp == 1,
            "context_parallel_size": self.cp,
            "expert_model_parallel_size": self.ep,
            "expert_tensor_parallel_size": self.etp,
        } | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TransformerConfig(**options)

    def model(self, config: TransformerConfig, *, packed: bool = False, **options: Any) -> list[GPTModel]:
        """Returns the chunks of this rank. Each call gives them the same weights.

        options: arguments of GPTModel
        """
        seed()
        chunks = []
        for stage in range(self.vpp):
            virtual = stage if self.vpp > 1 else None
            block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=virtual)
            for layer in block.layer_specs:
                if packed or self.cp > 1:
                    layer.submodules.self_attention.submodules.core_attention = Attention
                if self.tp > 1:
                    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
            if self.tp > 1:
                block.layer_norm = Norm
            mtp = None
            if config.mtp_num_layers:
                mtp = get_gpt_mtp_block_spec(config, block, use_transformer_engine=False)
            chunk = GPTModel(
                config,
                block,
                VOCABULARY,
                512,
                pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual),
                post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual),
                mtp_block_spec=mtp,
                vp_stage=virtual,
                **options,
            )
            chunk.model_type = ModelType.encoder_or_decoder
            chunks.append(chunk.to(DEVICE))
        return chunks


def seed() -> None:
    """Gives the next model the same weights as all others."""
    torch.manual_seed(11)
    if DEVICE == "cuda":  # There Megatron draws weights from generators of its own.
        tensor_parallel.model_parallel_cuda_manual_seed(5, force_reset_rng=True)


def hybrid(config: TransformerConfig, pattern: str) -> Any:
    """Returns a HybridModel of attention and MoE layers. It is built from the parts of GPTModel's local specification,
    because Megatron's own specification of a HybridModel, and its final norm, require Transformer Engine. Megatron-Core
    has HybridModel only from 0.18 on."""
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
    from megatron.core.models.hybrid.hybrid_model import HybridModel

    seed()
    local = get_gpt_layer_local_spec(num_experts=config.num_moe_experts).submodules
    attention = TransformerLayerSubmodules(
        input_layernorm=local.input_layernorm,
        self_attention=local.self_attention,
        self_attn_bda=local.self_attn_bda,
    )
    moe = TransformerLayerSubmodules(pre_mlp_layernorm=local.pre_mlp_layernorm, mlp=local.mlp, mlp_bda=local.mlp_bda)
    layers = HybridStackSubmodules(
        attention_layer=ModuleSpec(module=TransformerLayer, submodules=attention),
        moe_layer=ModuleSpec(module=MoETransformerLayer, submodules=moe),
    )
    with mock.patch.object(hybrid_block, "TENorm", Norm):
        model = HybridModel(
            config,
            ModuleSpec(module=HybridStack, submodules=layers),
            VOCABULARY,
            512,
            hybrid_layer_pattern=pattern,
            position_embedding_type="learned_absolute",
        )
    model.model_type = ModelType.encoder_or_decoder
    return model.to(DEVICE)


class Norm(torch.nn.Module):
    """Replaces Megatron's own norm, which rejects sequence parallelism without Apex and Transformer Engine."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class Attention(torch.nn.Module):
    """An attention in which each token attends to itself and to earlier tokens of its document on this rank. Without
    Transformer Engine, Megatron's own rejects packed sequences and context parallelism."""

    def __init__(self, config: TransformerConfig, *_: Any, **__: Any) -> None:
        super().__init__()
        self.size = config.context_parallel_size

    def forward(
        self, query: Any, key: Any, value: Any, mask: Any, packed_seq_params: Any = None, **_: Any
    ) -> torch.Tensor:
        if packed_seq_params is None:  # query, key and value are [s, b, heads, size] or, if packed, [t, heads, size].
            inputs = [x.permute(1, 2, 0, 3) for x in (query, key, value)]
            said = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
            return said.permute(2, 0, 1, 3).flatten(2)
        ends = packed_seq_params.cu_seqlens_q_padded
        ends = (packed_seq_params.cu_seqlens_q if ends is None else ends) // self.size
        documents = torch.bucketize(torch.arange(len(query), device=query.device), ends[1:], right=True)
        own = (documents[:, None] == documents[None]).tril()
        inputs = [x.transpose(0, 1) for x in (query, key, value)]
        said = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=own)
        return said.transpose(0, 1).reshape(len(query), 1, -1)


@dataclass
class MicroBatch:
    """One micro-batch: a rectangle [b, s] of sequences, or a packed stream [1, t] of documents.

    samples, lengths: the sample of each sequence, and the number of its tokens that the sequence has
    cut: sequences are only the first tokens of their samples, so that the last token of a sequence has a route, too
    tokens: the token ids; zeros where the documents of a stream are padded to `multiple`
    """

    samples: list[str]
    lengths: list[int]
    cut: bool
    tokens: torch.Tensor
    packed: PackedSeqParams | None
    documents: list[np.ndarray]

    def said(self, trainer: Any) -> dict[str, Any]:
        """Returns the arguments for our `micro_batch`: only the sequences. It reads everything else from the call of
        the model."""
        if not self.cut:
            return {"sequences": self.samples}
        pairs = zip(self.samples, self.lengths, strict=True)
        return {"sequences": [trainer.megatron.Sequence(s, 0, n, n) for s, n in pairs]}

    def on_this_rank(self) -> torch.Tensor:
        """Returns the tokens [b, s] or [1, t] that this rank's forward_step passes to the model: its part of each
        sequence. Megatron's own function cuts rectangles. For streams it needs Transformer Engine, so they are cut
        here: rank r gets the parts r and 2 CP - 1 - r of each document."""
        size, rank = mpu.get_context_parallel_world_size(), mpu.get_context_parallel_rank()
        if self.packed is None:
            batch = {"tokens": self.tokens, "cu_seqlens": None}
            return get_batch_on_this_cp_rank(batch, False, mpu.get_context_parallel_group())["tokens"]
        parts = []
        for start, end in itertools.pairwise(self.packed.cu_seqlens_q_padded.tolist()):
            chunks = self.tokens[:, start:end].chunk(2 * size, dim=1)
            parts += [chunks[rank], chunks[2 * size - 1 - rank]] if size > 1 else [*chunks]
        return torch.cat(parts, 1)

    def at_routers(self, sequence_parallel: bool) -> torch.Tensor:
        """Returns the token id of each row that this rank's routers get: [rows], on the CPU."""
        tokens = self.on_this_rank().transpose(0, 1).contiguous()
        if sequence_parallel:
            tokens = tensor_parallel.scatter_to_sequence_parallel_region(tokens)
        return tokens.reshape(-1).cpu()


class Rollout:
    """The samples of one training step of one replica, with the experts that an engine might have chosen for them:
    random ones."""

    def __init__(self, trainer: Any, config: TransformerConfig, *, cut: bool, packed: bool, multiple: int) -> None:
        replica = mpu.get_data_parallel_rank()
        random = np.random.default_rng(100 + replica)
        self.experts = config.num_moe_experts
        self.moe = [layer for layer, moe in enumerate(config.moe_layer_freq) if moe]
        chosen = random.random((VOCABULARY, len(self.moe), self.experts)).argpartition(TOP_K - 1, axis=2)
        self.routes = chosen[..., :TOP_K]  # [token, MoE layer, K]
        geometry = {"num_layers": config.num_layers, "moe_layers": self.moe}
        self.geometry = geometry | {"num_experts": self.experts, "top_k": TOP_K}
        self.source = trainer.LocalSource(self.geometry)
        self.recorded = np.zeros(VOCABULARY, bool)
        unused = iter((random.permutation(VOCABULARY - 1) + 1).tolist())
        self.samples: dict[str, np.ndarray] = {}
        self.micro_batches = []
        for index, lengths in enumerate(PACKED if packed else ((16, 16),) * 4):
            names, documents, padded = [], [], []
            for place, length in enumerate(lengths):
                name = f"{replica}/{index}/{place}"
                tokens = np.array([next(unused) for _ in range(length + cut)])
                self.recorded[tokens[:-1]] = True
                self.source.add(name, self.routes[tokens[:-1]].astype(np.int32), tokens=tokens)
                self.samples[name] = tokens
                names.append(name)
                documents.append(tokens[:length])
                padded.append(np.pad(tokens[:length], (0, -length % multiple)))
            said = None
            if packed:
                ends, filled = ([0, *np.cumsum([*map(len, some)])] for some in (documents, padded))
                said = PackedSeqParams(
                    qkv_format="thd",
                    cu_seqlens_q=torch.tensor(ends, device=DEVICE),
                    cu_seqlens_kv=torch.tensor(ends, device=DEVICE),
                    cu_seqlens_q_padded=torch.tensor(filled, device=DEVICE),
                    cu_seqlens_kv_padded=torch.tensor(filled, device=DEVICE),
                )
            tokens = np.concatenate(padded)[None] if packed else np.stack(documents)
            stream = torch.tensor(tokens, device=DEVICE)
            self.micro_batches.append(MicroBatch(names, list(lengths), cut, stream, said, documents))

    def shifted(self, trainer: Any) -> Any:
        """Returns a source with the same routes, but each one row late, to show that the checks detect this."""
        source = trainer.LocalSource(self.geometry)
        for name, tokens in self.samples.items():
            source.add(name, np.roll(self.routes[tokens[:-1]], 1, axis=0).astype(np.int32), tokens=tokens)
        return source


# The lengths of the documents of each micro-batch. They are long enough that every rank has rows with a route;
# otherwise two micro-batches could have equal maps.
PACKED = ((5, 19, 12), (36,), (13, 3, 27), (14, 24))


class Calls:
    """Keeps the routing map of every call of this rank's routers, in forward passes and in recompute, on the CPU."""

    def __init__(self, chunks: list[GPTModel]) -> None:
        self.maps: dict[int, list[torch.Tensor]] = {}  # By decoder layer.
        self.mtp: list[torch.Tensor] = []
        for router in routers(chunks):
            router.register_forward_hook(self._keep)

    def _keep(self, router: TopKRouter, _: Any, output: Any) -> None:
        # Routers of Megatron-Core before 0.18 do not have this attribute.
        is_mtp = getattr(router, "is_mtp_layer", False)
        to = self.mtp if is_mtp else self.maps.setdefault(router.layer_number - 1, [])
        to.append(output[1].detach().to("cpu", copy=True))


def routers(chunks: list[GPTModel]) -> list[TopKRouter]:
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, MoELayer)]
    return [layer.router for layer in layers]


def dense(rollout: Rollout, tokens: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the routing map [rows, E] of the engine's choice for these tokens, and a mask [rows] of the tokens that
    have a route."""
    ids = torch.tensor(rollout.routes[tokens.numpy(), rollout.moe.index(layer)])
    told = torch.zeros(len(tokens), rollout.experts, dtype=torch.bool).scatter_(1, ids, True)
    return told, torch.tensor(rollout.recorded[tokens.numpy()])


def step(
    chunks: list[GPTModel],
    rollout: Rollout,
    around: Any = None,
    *,
    wrapped: Any = None,
    forward_only: bool = False,
    has_data: bool = True,
) -> list[float]:
    """Runs Megatron's schedule over the micro-batches of a rollout and returns the losses.

    has_data: whether this rank has a data iterator; without one its model gets no tokens
    around: function of (number of the micro-batch in this chunk, chunk, micro-batch) that returns a context for the
    call of the model
    wrapped: changes the schedule, as `megatron.replayed` does
    """
    numbers = {id(chunk): 0 for chunk in chunks}
    losses = []

    def loss_func(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        loss = output.float().mean()
        losses.append(loss.item())
        return loss, {"loss": loss.detach()}

    def forward_step(iterator: Iterator[MicroBatch], model: GPTModel) -> tuple[torch.Tensor, Any]:
        if iterator is None:
            return model(None, None, None), loss_func
        batch = next(iterator)
        index = numbers[id(model)]
        numbers[id(model)] += 1
        tokens = batch.on_this_rank()
        positions = torch.arange(tokens.shape[1], device=DEVICE).expand_as(tokens)
        with contextlib.nullcontext() if around is None else around(index, model, batch):
            output = model(tokens, positions, None, labels=tokens, packed_seq_params=batch.packed)
        return output, loss_func

    schedule = get_forward_backward_func()
    data = [iter(rollout.micro_batches) if has_data else None for _ in chunks]
    (schedule if wrapped is None else wrapped(schedule))(
        forward_step_func=forward_step,
        data_iterator=data if len(chunks) > 1 else data[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(rollout.micro_batches),
        seq_length=16,
        micro_batch_size=2,
        forward_only=forward_only,
    )
    return losses


def told_by_hand(chunks: list[GPTModel], ids: dict[tuple[int, int], torch.Tensor]) -> Any:
    """Returns an `around` for `step` that sets Megatron's own RouterReplay by hand: to ids[layer, micro-batch], which
    are [rows, K]."""

    @contextlib.contextmanager
    def around(index: int, model: GPTModel, _: Any) -> Iterator[None]:
        own = [router for router in routers([model]) if not router.is_mtp_layer]
        for router in own:
            router.router_replay.set_target_indices(ids[router.layer_number - 1, index].to(DEVICE))
            router.router_replay.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        yield
        for router in own:
            router.router_replay.clear_router_replay_action()
            router.router_replay.clear_indices()

    return around


def gradients(chunks: list[GPTModel]) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": one.grad.clone()
        for number, chunk in enumerate(chunks)
        for name, one in chunk.named_parameters()
        if one.grad is not None
    }
