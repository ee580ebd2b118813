"""The Megatron interface without torch: stand-ins of Megatron's modules, layouts read from the model's call, and which
pass a router's call belongs to in schedules of all kinds."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import types
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer import _core
from routing_replay_trainer._attached import Options
from routing_replay_trainer._buffers import Buffers, Slots
from routing_replay_trainer._micro_batch import (
    MicroBatch,
    described,
    expected,
    lengths_and_tokens,
    lengths_by,
    of_megatron,
)
from routing_replay_trainer._passes import ChunkPasses, Pass, PassKey
from routing_replay_trainer.agreed import Steps
from routing_replay_trainer.megatron import Sequence, replayed
from routing_replay_trainer.megatron import _modules as modules
from routing_replay_trainer.megatron._call import read_call
from routing_replay_trainer.metrics import Contract
from routing_replay_trainer.step import StepSource


class Module:
    """The part of torch.nn.Module that walking over a model needs."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        yield prefix, self
        for name, part in vars(self).items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(part, Module):
                yield from part.named_modules(path)
            elif isinstance(part, list):
                for place, item in enumerate(part):
                    if isinstance(item, Module):
                        yield from item.named_modules(f"{path}.{place}")


class Router(Module):
    def routing(self) -> None: ...

    def gating(self) -> None: ...


def router(layer_number: int | None, **changes: Any) -> Router:
    config = types.SimpleNamespace(moe_router_fusion=False)
    parts = {"layer_number": layer_number, "config": config, "router_replay": object(), "routing_type": "none"}
    return Router(**(parts | changes))


def layer(number: int, **changes: Any) -> Module:
    return Module(layer_number=number, mlp=Module(router=router(number, **changes)))


def model(*layers: Module, mtp: list[Module] | None = None, **config: Any) -> Module:
    parts = {} if mtp is None else {"mtp": Module(layers=mtp)}
    return Module(config=types.SimpleNamespace(**config), decoder=Module(layers=list(layers)), **parts)


class ModulesTest(unittest.TestCase):
    def test_routers_of_the_live_model(self) -> None:
        dense = Module(layer_number=1, mlp=Module())
        unnumbered = layer(4)
        unnumbered.mlp.router.layer_number = None  # The number of the layer is used instead.
        mtp = Module(layer_number=1, mtp_model_layer=layer(1))
        chunk = model(dense, layer(3), unnumbered, mtp=[mtp])
        found = modules.live_routers(Module(module=Module(module=chunk)))
        self.assertEqual([(r.layer, r.is_mtp) for r in found], [(2, False), (3, False), (0, True)])
        self.assertEqual(found[0].name, "decoder.layers.1.mlp.router")
        self.assertIs(found[0].layer_module, chunk.decoder.layers[1])
        self.assertTrue(modules.live_routers(model(layer(1, is_mtp_layer=True)))[0].is_mtp)
        lost = model(Module(mlp=Module(router=router(None))))
        with self.assertRaisesRegex(errors.FailedPreconditionError, "decoder.layers.0.mlp.router.*layer_number"):
            modules.live_routers(lost)

    def test_what_would_ignore_a_replay_is_rejected_by_name(self) -> None:
        fused = types.SimpleNamespace(moe_router_fusion=True)
        for changes, config, words, native_only in (
            ({"config": fused}, {}, "moe_router_fusion", True),
            ({"router_replay": None}, {}, "moe_enable_routing_replay.*enable_routing_replay", True),
            ({"routing_type": "sinkhorn"}, {}, "sinkhorn", False),
            ({"routing_type": ["aux_loss", "quantile_balancing"]}, {}, "quantile_balancing", False),
            ({}, {"overlap_moe_expert_parallel_comm": True}, "overlap_moe_expert_parallel_comm", False),
            ({}, {"mlp_chunks_for_training": 2}, "mlp_chunks_for_training", False),
            ({}, {"cuda_graph_impl": "local", "cuda_graph_scope": ["moe_router"]}, "cuda_graph_impl", False),
        ):
            chunk = model(layer(1, **changes), **config)
            routers = modules.live_routers(chunk)
            with self.subTest(words):
                with self.assertRaisesRegex(errors.FailedPreconditionError, words):
                    modules.check(chunk, routers, "native")
                if native_only:
                    self.assertEqual(modules.check(chunk, routers, "fused"), [])
                else:
                    self.assertRaises(errors.FailedPreconditionError, modules.check, chunk, routers, "fused")
        # The MTP block needs no RouterReplay, as it is not replayed; nor do layers that choose by hash.
        chunk = model(layer(1), layer(2, tid2eid=object(), router_replay=None), mtp=[layer(1, router_replay=None)])
        self.assertEqual(modules.check(chunk, modules.live_routers(chunk), "native"), [1])
        attention_graphs = model(layer(1), cuda_graph_impl="transformer_engine", cuda_graph_scope=["attn"])
        self.assertEqual(modules.check(attention_graphs, modules.live_routers(attention_graphs), "native"), [])

    def test_configurations(self) -> None:
        config = types.SimpleNamespace(
            num_layers=4,
            moe_layer_freq=[0, 1, 1, 1],
            pipeline_model_parallel_layout=types.SimpleNamespace(input_data="Et|ttt|L"),
            init_method=lambda: None,
            params_dtype=object(),
            timers=None,
        )
        said = modules.config_json(config)
        self.assertEqual(said["pipeline_model_parallel_layout"], "Et|ttt|L")
        self.assertEqual(sorted(said), ["moe_layer_freq", "num_layers", "pipeline_model_parallel_layout", "timers"])


def describe(sequences: Any, **given: Any) -> MicroBatch:
    known = {name: given.pop(name, None) for name in ("tokens", "packed_seq_params", "lengths")}
    return described(sequences, *of_megatron(**known, layout=given, parallel={"cp_size": 2}))


class Gpt:
    """The part of GPTModel that its call needs."""

    pre_process = True

    def forward(
        self,
        input_ids: Any,
        position_ids: Any,
        attention_mask: Any,
        decoder_input: Any = None,
        packed_seq_params: Any = None,
        *,
        padding_mask: Any = None,
    ) -> None: ...


class OnDevice:
    """A tensor that cannot be read without waiting for its device."""

    device = types.SimpleNamespace(type="cuda")

    def __init__(self, array: Any) -> None:
        self._array, self.ndim, self.shape, self.reads = array, array.ndim, array.shape, 0

    def detach(self) -> OnDevice:
        return self

    def cpu(self) -> Any:
        self.reads += 1
        return types.SimpleNamespace(numpy=lambda: self._array)


class CallTest(unittest.TestCase):
    """The layout that a model's call gives, in all stages and forms."""

    PARALLEL = types.MappingProxyType({"cp_size": 2, "tp_size": 2, "sequence_parallel": True})

    def call(self, model: Any, *arguments: Any, **keywords: Any) -> Any:
        return read_call(model, arguments, keywords, self.PARALLEL)

    def later(self, hidden: Any) -> Gpt:
        model = Gpt()
        model.pre_process, model.decoder = False, types.SimpleNamespace(input_tensor=hidden)
        return model

    def test_rectangles(self) -> None:
        ids, hidden = np.zeros((3, 8), np.int64), np.zeros((4, 3, 16))
        for call in (
            self.call(Gpt(), ids, None, None),
            self.call(Gpt(), input_ids=ids, position_ids=None, attention_mask=np.zeros((3, 1, 8, 8))),
            self.call(Gpt(), None, None, None, decoder_input=hidden),
            self.call(self.later(hidden), None, None, None),
            self.call(self.later(hidden), ids[:1], None, None),
        ):
            self.assertEqual(call.rows, 12)
            self.assertEqual(call.layout, {"format": "BSHD", "batch_size": 3, "padded_length": 16})
            self.assertEqual(call.read(), {"called": call.layout, "mask": None})

    def test_masks_say_where_sequences_end(self) -> None:
        mask = np.arange(16) < np.array([[16], [5], [9]])
        ids = np.zeros((3, 8), np.int64)
        for said in ({"attention_mask": mask}, {"attention_mask": None, "padding_mask": ~mask}):
            call = self.call(Gpt(), ids, None, **said)
            one = described(["a", "b"], *of_megatron(parallel=self.PARALLEL, **call.read()))
            self.assertEqual([sequence["tokens"] for sequence in one.layout["sequences"]], [16, 5, 9])
            self.assertEqual(len(one.named), 2)
        cut = self.call(Gpt(), ids, None, mask[:, :8])  # This rank's slice does not show the tokens of the other ranks.
        self.assertIsNone(cut.mask)

    def test_packed(self) -> None:
        packed = types.SimpleNamespace(qkv_format="thd", cu_seqlens_q=np.array([0, 8, 24]), cu_seqlens_q_padded=None)
        for call, rows in (
            (self.call(Gpt(), np.zeros((1, 16)), None, None, packed_seq_params=packed), 32),
            (self.call(self.later(np.zeros((8, 1, 4))), None, None, None, packed_seq_params=packed), 32),
            (self.call(Gpt(), None, None, None, None, packed), 24),
        ):
            self.assertTrue(call.on_host)
            one = of_megatron(parallel=self.PARALLEL, **call.read())
            self.assertEqual((one.layout["total_rows"], one.layout["cu_seqlens_padded"]), (rows, [0, 8, 24]))
        self.assertIsNone(call.rows)
        other = types.SimpleNamespace(qkv_format="sbhd")
        call = self.call(Gpt(), np.zeros((2, 4)), None, None, packed_seq_params=other)
        self.assertEqual(call.layout["format"], "BSHD")

    def test_groups_of_its_own(self) -> None:
        group = types.SimpleNamespace(rank=lambda: 3)
        packed = types.SimpleNamespace(cu_seqlens_q=np.array([0, 32]), local_cp_size=4, cp_group=group)
        call = self.call(Gpt(), np.zeros((1, 8)), None, None, packed_seq_params=packed)
        self.assertEqual(call.layout, {"local_cp_size": 4, "cp_rank": 3, "total_rows": 32})

    def test_nothing(self) -> None:
        class Other:
            def forward(self, hidden: Any) -> None: ...

        call = self.call(Other(), np.zeros((4, 1, 8)))
        self.assertEqual((call.rows, call.layout, call.packed), (None, {}, None))

    def test_what_is_on_a_device_is_left_there(self) -> None:
        ends = OnDevice(np.array([0, 16]))
        packed = types.SimpleNamespace(cu_seqlens_q=ends, cu_seqlens_q_padded=None)
        call = self.call(Gpt(), OnDevice(np.zeros((1, 8))), None, None, packed_seq_params=packed)
        self.assertEqual((call.on_host, call.rows, ends.reads), (False, 4, 0))
        self.assertEqual(call.read()["called"]["cu_seqlens"], [0, 16])
        self.assertEqual(ends.reads, 1)

    def test_lengths_that_begin_step_was_told(self) -> None:
        """They are used if the boundaries include padding, and ignored if the real boundaries are given as well."""
        padded = {"format": "THD", "cu_seqlens": [0, 8, 16], "cu_seqlens_padded": [0, 8, 16], "total_rows": 16}
        real = padded | {"cu_seqlens": [0, 7, 12]}
        for called, told, counts in (
            (padded, [5, None], [5, 8]),
            (padded, [], [8, 8]),
            (real, [5, None], [7, 5]),
            ({}, [5, None], None),
            ({}, [5, 6], [5, 6]),
        ):
            given = of_megatron(called=called, told=told)
            self.assertEqual(expected_counts(["a", "b"], given), counts)
        handles = np.array([3, 0])
        self.assertEqual(lengths_by(handles, {3: 9}.get), [9, None])
        pieces = [[Sequence("a", rows=2, tokens=3), Sequence(None, tokens=4)], [Sequence("a"), "b"]]
        self.assertEqual(lengths_by(pieces, {}.get), [7, None])

    def test_documents_behind_the_sequences_are_padding_where_a_policy_says_how_it_pads(self) -> None:
        called = {"format": "THD", "cu_seqlens": [0, 8, 16], "cu_seqlens_padded": [0, 8, 16], "total_rows": 16}
        for layout, sequences in (({}, 2), ({"padding": {"policy": "slime"}}, 1)):
            one = described(["a"], *of_megatron(lengths=[5], layout=layout, called=called))
            self.assertEqual(len(one.layout["sequences"]), sequences)


def expected_counts(sequences: Any, given: Any) -> Any:
    return lengths_and_tokens(sequences, *given)[0]


def told(sequence: trainer.FetchSequence) -> tuple[Any, ...]:
    """Returns what a source is asked for a sequence."""
    made = _core.Sequence()
    sequence._fill(made, 1)
    check = (made.check_rows, made.check_crc) if made.has_token_check else None
    num_tokens = made.num_tokens if made.has_num_tokens else None
    return (made.sample or b"").decode(), made.handle, num_tokens, check, made.has_content_id, made.live


class MicroBatchTest(unittest.TestCase):
    def test_packed(self) -> None:
        params = types.SimpleNamespace(
            qkv_format="thd", cu_seqlens_q=np.array([0, 3, 8]), cu_seqlens_q_padded=np.array([0, 4, 12])
        )
        stream = np.arange(100, 112)
        said = describe(["a", "b"], packed_seq_params=params, tokens=stream.reshape(1, -1))
        self.assertEqual(
            said.layout,
            {
                "cp_size": 2,
                "format": "THD",
                "cu_seqlens_padded": [0, 4, 12],
                "total_rows": 12,
                "partition": "zigzag_per_document",
                "sequences": [{"sample": "a", "tokens": 3}, {"sample": "b", "tokens": 5}],
            },
        )
        self.assertEqual([list(f.tokens) for f in said.fetch], [[100, 101, 102], [104, 105, 106, 107, 108]])
        self.assertEqual([f.num_tokens for f in said.fetch], [3, 5])
        # A document without a sample follows, and the sequence has fewer tokens than its document.
        params.cu_seqlens_q_padded, params.total_tokens, params.tokens_per_sample = None, 16, 8
        said = describe(["a"], packed_seq_params=params, lengths=[2])
        live = {"sample": "", "tokens": 5, "live": True}
        self.assertEqual(said.layout["sequences"], [{"sample": "a", "tokens": 2}, live])
        self.assertEqual((said.layout["total_rows"], said.layout["tokens_per_sample"]), (16, 8))
        params.total_tokens = 4  # This total counts only the rows of this rank.
        self.assertEqual(describe(["a", "b"], packed_seq_params=params).layout["total_rows"], 8)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "tokens"):
            describe(["a", "b"], packed_seq_params=params, tokens=stream[:6])

    def test_a_step_expects_what_its_micro_batches_do(self) -> None:
        """begin_step and micro_batch derive the same lengths and tokens, in whichever form these are given."""
        params = types.SimpleNamespace(
            qkv_format="thd", cu_seqlens_q=np.array([0, 3, 8]), cu_seqlens_q_padded=np.array([0, 4, 12])
        )
        lists = [np.arange(3), np.arange(5)]
        for given in (
            {"tokens": np.arange(12), "packed_seq_params": params},
            {"tokens": np.arange(12).reshape(1, -1), "packed_seq_params": params, "lengths": [2, 5]},
            {"packed_seq_params": params},
            {"tokens": np.arange(10).reshape(2, 5)},
            {"tokens": np.arange(10).reshape(2, 5), "lengths": [1, 4]},
            {"tokens": lists},
            {"tokens": lists, "padding": {"policy": "verl"}},
            {"lengths": [3, 4]},
        ):
            with self.subTest(given):
                known = {name: given.get(name) for name in ("tokens", "packed_seq_params", "lengths")}
                layout = {name: value for name, value in given.items() if name not in known}
                found = expected(["a", 7], *of_megatron(**known, layout=layout))
                self.assertEqual([told(one) for one in found], [told(one) for one in describe(["a", 7], **given).fetch])
        nothing = expected(["a", trainer.megatron.Sequence("b", rows=3)], None, None, {})
        self.assertEqual(nothing, [trainer.FetchSequence("a"), trainer.FetchSequence("b", rows=3)])
        for field, wrong in (
            ("tokens", {"tokens": lists}),
            ("tokens", {"tokens": np.arange(5).reshape(1, 5), "lengths": [1, 2, 3]}),
            ("tokens", {"tokens": np.arange(5), "lengths": [1, 2, 3]}),
            ("lengths", {"tokens": np.arange(5)}),
            ("lengths", {"lengths": [1, 2]}),
            ("lengths", {"lengths": [1, 2, 3.5]}),
        ):
            with self.subTest(wrong), self.assertRaises(errors.InvalidArgumentError) as caught:
                known = {name: wrong.get(name) for name in ("tokens", "packed_seq_params", "lengths")}
                layout = {name: value for name, value in wrong.items() if name not in known}
                expected(["a", "b", "c"], *of_megatron(**known, layout=layout))
            self.assertEqual(caught.exception.field, field)

    def test_documents_that_nobody_has_named(self) -> None:
        """Their rows route live: filler experts would train real tokens wrongly."""
        geometry = {"num_layers": 2, "num_experts": 64, "top_k": 1}
        source = trainer.LocalSource(geometry)
        source.add("a", np.arange(4).reshape(2, 2, 1), tokens=np.zeros(3, np.int64))
        params = types.SimpleNamespace(
            qkv_format="thd", cu_seqlens_q=np.array([0, 3, 3, 8, 10, 10]), cu_seqlens_q_padded=None
        )
        rectangle = {"tokens": np.zeros((4, 3), np.int64), "lengths": [3], "row_order": "batch_major"}
        for given, rest in (({"packed_seq_params": params}, 7), (rectangle, 9)):
            with self.subTest(given=given):
                said = describe(["a"], **given, cp_size=1)
                steps = Steps(StepSource(source, cache_bytes=0), "strict")
                for begin in (False, True):
                    if begin:
                        steps.begin(expected(["a"], None, [3], {}))
                    plan = trainer.plan(geometry, said.layout)
                    batch = steps.source.fetch(plan, sequences=steps.apply(said.fetch))
                    self.assertEqual(batch.fallback_sequences, 0)
                    self.assertEqual(batch.states.tolist()[:3], [trainer.REPLAYED] * 2 + [trainer.UNRECORDED])
                    self.assertEqual(batch.states.tolist()[3:], [trainer.LIVE] * rest)

    def test_rectangles_and_lists(self) -> None:
        rectangle = np.arange(12).reshape(2, 6)
        said = describe(["a", "b"], tokens=rectangle, lengths=np.array([6, 4]))
        self.assertEqual((said.layout["batch_size"], said.layout["padded_length"]), (2, 6))
        self.assertEqual(said.layout["partition"], "zigzag_per_sequence")
        self.assertEqual(list(said.fetch[1].tokens), [6, 7, 8, 9])
        said = describe(["a", "b"], tokens=[rectangle[0], rectangle[1, :3]], padding={"policy": "verl"})
        self.assertEqual([s["tokens"] for s in said.layout["sequences"]], [6, 3])
        self.assertNotIn("partition", said.layout)

    def test_pieces(self) -> None:
        parts = [
            Sequence("a", rows=4),
            "b",
            [Sequence("a", rows=2), Sequence("c", start=7, rows=3, tokens=3), Sequence(5)],
        ]
        tokens = [np.arange(5), np.arange(3), np.arange(10)]
        said = describe(parts, tokens=tokens, padding={})
        self.assertEqual(
            said.layout["sequences"],
            [
                {"tokens": 5, "pieces": [{"sample": "a", "tokens": 5, "start": 0, "rows": 4}]},
                {"sample": "b", "tokens": 3},
                {
                    "tokens": 10,
                    "pieces": [
                        {"sample": "a", "tokens": 3, "start": 0, "rows": 2},
                        {"sample": "c", "tokens": 3, "start": 7, "rows": 3},
                        {"sample": "", "tokens": 4, "start": 0, "rows": 3},
                    ],
                },
            ],
        )
        self.assertEqual([f.sample for f in said.fetch], ["a", "b", "a", "c", 5])
        self.assertEqual([f.num_tokens for f in said.fetch], [None, 3, None, None, None])
        checked = [None if f.tokens is None else list(f.tokens) for f in said.fetch]
        self.assertEqual(checked, [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2], None, [6, 7, 8, 9]])

    def test_pieces_replay_the_rows_of_their_samples(self) -> None:
        geometry = {"num_layers": 2, "num_experts": 64, "top_k": 1}
        source = trainer.LocalSource(geometry)
        for sample, first in (("a", 0), ("c", 30)):
            rows = np.arange(first, first + 12).reshape(12, 1, 1).repeat(2, 1)
            source.add(sample, rows.astype(np.int32), tokens=np.arange(13))
        parts = [[Sequence("a", rows=2), Sequence("c", start=7, rows=3, tokens=3), Sequence("c")], "a"]
        tokens = [np.array([0, 1, 2, 7, 8, 9, 0, 1, 2, 3]), np.arange(13)]
        said = describe(parts, tokens=tokens, format="THD", cu_seqlens_padded=[0, 10, 23], total_rows=23, cp_size=1)
        batch = source.fetch(trainer.plan(geometry, said.layout), sequences=said.fetch)
        replayed = batch.states == trainer.REPLAYED
        expected = [0, 1, None, 37, 38, 39, 30, 31, 32, None, *range(12), None]
        self.assertEqual(
            [int(i) if r else None for i, r in zip(batch.indices[1][:, 0], replayed, strict=True)], expected
        )
        other = describe(parts, tokens=[tokens[0] + 1, tokens[1]], padding={}).fetch
        with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_MISMATCH"):
            source.fetch(trainer.plan(geometry, said.layout), sequences=other)

    def test_the_name_of_one_sample_is_no_list(self) -> None:
        for ask in (
            lambda name: describe(name, lengths=[3, 3], padding={}),
            lambda name: expected(name, None, [3, 3], {}),
        ):
            self.assertEqual(len(getattr(said := ask(["ab", "cd"]), "fetch", said)), 2)
            with self.assertRaisesRegex(errors.InvalidArgumentError, "sequences: 'ab' must be a list of samples"):
                ask("ab")

    def test_lengths_that_nothing_says(self) -> None:
        for given in ({}, {"lengths": [1, 2]}, {"lengths": [1.5]}):
            with self.subTest(given), self.assertRaises(errors.InvalidArgumentError):
                describe(["a"], **given)


LAYERS = {0: [0, 1], 1: [4, 5]}  # Layers of the rank's two chunks.
ROWS = 5


def plan_of(chunk: int) -> trainer.Plan:
    geometry = {"num_layers": 6, "moe_layers": LAYERS[chunk], "num_experts": 64, "top_k": 2}
    sequences = [{"sample": "s", "tokens": ROWS}]
    return trainer.plan(
        geometry,
        {
            "format": "THD",
            "sequences": sequences,
            "cu_seqlens_padded": [0, ROWS],
            "total_rows": ROWS,
            "partition": "contiguous",
        },
    )


class SlotsTest(unittest.TestCase):
    def test_waste_is_under_one_percent(self) -> None:
        """Compares the memory held with the most bytes of ids in flight at one time. Order and sizes are those of an
        interleaved 1F1B schedule whose micro-batches fill a budget of tokens."""
        choose = random.Random(5)
        slots = Slots(bytearray)
        flying: list[tuple[int, int]] = []
        addresses: list[set[int]] = []
        needed = 0
        for _ in range(4):
            taken = set()
            for number in range(32):  # Up to 11 passes in flight, then one backward part for each forward part.
                size = choose.randrange(9_950, 10_001) * 8 * 58  # Tokens, K, layers.
                flying.append((slots.take(size), size))
                taken.add(id(slots[flying[-1][0]]))
                needed = max(needed, sum(size for _, size in flying))
                if number >= 10:
                    slots.give(flying.pop(choose.randrange(len(flying)))[0])
            while flying:
                slots.give(flying.pop()[0])
            addresses.append(taken)
        self.assertLess(slots.bytes, 1.01 * needed)
        self.assertEqual(addresses[-1], addresses[-2])  # The same memory, step after step.

    def test_index_buffers_have_no_gaps(self) -> None:
        for chunk in LAYERS:
            plan = plan_of(chunk)
            ids = sum(plan.rows * layer.top_k * layer.dtype.itemsize for layer in plan.layers)
            self.assertEqual(plan.buffer_bytes, ids)


class PassesTest(unittest.TestCase):
    """Every id is 8 * micro-batch + layer, so that a wrong answer is noticed."""

    def setUp(self) -> None:
        self.buffers = Buffers()
        lock = threading.RLock()
        self.chunks = [ChunkPasses(chunk, self.buffers, lock) for chunk in LAYERS]
        self.plans = [plan_of(chunk) for chunk in LAYERS]

    def begin(self, step: int, index: int, chunk: int, *, forward_only: bool = False) -> Pass:
        plan = self.plans[chunk]
        number = self.buffers.take(plan)
        indices = self.buffers.empty(number, plan)
        for layer, ids in zip(plan.layers, indices, strict=True):
            ids[:] = 8 * index + layer.layer
        batch = trainer.Batch(plan, indices, np.zeros(ROWS, np.uint8), ROWS, 0, 0, 0, ())
        entered = Pass(PassKey(step, index, chunk), batch, number, "replay", forward_only)
        self.chunks[chunk].begin(entered)
        return entered

    def ask_all(self, index: int, chunk: int, *, recompute: bool = False) -> None:
        for layer in LAYERS[chunk]:
            answer = self.chunks[chunk].ask(layer, recompute=recompute)
            self.assertEqual(answer.recompute, recompute)
            self.assertTrue((answer.of.batch.indices[answer.slot] == 8 * index + layer).all(), (index, chunk, layer))

    def step(self, step: int, order: list[tuple[str, int, int]], recompute: bool) -> int:
        passes, most = {}, 0
        for kind, index, chunk in order:
            if kind == "forward":
                passes[index, chunk] = self.begin(step, index, chunk)
                self.ask_all(index, chunk)
                self.assertIs(self.chunks[chunk].end_forward(), passes[index, chunk])
            else:
                of = passes.pop((index, chunk))
                self.chunks[chunk].backward_pass = of
                if recompute:
                    self.ask_all(index, chunk, recompute=True)
                self.chunks[chunk].end_backward(of)
            most = max(most, self.buffers.slots.bytes)
        for chunk in self.chunks:
            self.assertEqual(chunk.drop_all(), [])
        return most

    def test_random_orders(self) -> None:
        """Any order in which backward follows forward: 1F1B, interleaved, and orders that no schedule uses."""
        for seed in range(50):
            choose = random.Random(seed)
            pairs = [(index, chunk) for index in range(6) for chunk in LAYERS]
            choose.shuffle(pairs)
            order, flying = [], []
            while pairs or flying:
                if pairs and (not flying or choose.random() < 0.5):
                    flying.append(pairs.pop())
                    order.append(("forward", *flying[-1]))
                else:
                    order.append(("backward", *flying.pop(choose.randrange(len(flying)))))
            held = self.step(seed, order, recompute=bool(seed % 2))
            self.assertLessEqual(held, 12 * self.plans[0].buffer_bytes)

    def test_what_does_not_fit_the_pass_names_it(self) -> None:
        of = self.begin(1, 2, 0)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "2 of step 1, chunk 0 has begun already"):
            self.begin(1, 2, 0)
        with self.assertRaisesRegex(
            errors.FailedPreconditionError, "micro-batch 2 of step 1, chunk 0 has no ids for layer 5"
        ) as caught:
            self.chunks[0].ask(5, recompute=False)
        self.assertEqual((caught.exception.field, caught.exception.layer), ("targets", 5))
        self.chunks[0].ask(0, recompute=False)
        self.chunks[0].backward_pass = of
        self.chunks[0].ask(0, recompute=True)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "layer 1 before its forward pass"):
            self.chunks[0].ask(1, recompute=True)
        self.assertEqual(self.chunks[0].drop_all(), [of.key])
        self.assertEqual(self.chunks[0].in_flight, 0)

    def test_outside_of_a_pass_nothing_replays(self) -> None:
        self.assertIsNone(self.chunks[0].ask(0, recompute=False))
        self.assertIsNone(self.chunks[0].ask(0, recompute=True))
        of = self.begin(0, 0, 0)
        self.ask_all(0, 0)
        self.chunks[0].end_forward()
        self.assertIsNone(self.chunks[0].ask(0, recompute=False))
        with self.assertRaisesRegex(errors.FailedPreconditionError, "recomputed"):
            self.chunks[0].ask(0, recompute=True)
        self.chunks[0].backward_pass = of
        self.chunks[0].end_backward(of)
        self.chunks[0].end_backward(of)  # The backward pass of a second output.
        self.assertEqual(self.chunks[0].in_flight, 0)

    def test_a_pass_that_is_over_is_not_recomputed(self) -> None:
        """A recompute after the end of the pass is an error: its routers would choose live, so that gradients would be
        computed for other experts than those of the forward pass."""
        ended, dropped = self.begin(3, 0, 0), self.begin(3, 1, 1)
        for index, chunk in ((0, 0), (1, 1)):
            self.ask_all(index, chunk)
            self.chunks[chunk].end_forward()
        self.chunks[0].backward_pass = ended
        self.chunks[0].end_backward(ended)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "detach: micro-batch 1 of step 3"):
            self.chunks[1].check_none_in_flight()
        self.chunks[0].check_none_in_flight()
        self.chunks[1].drop_all()
        self.chunks[1].check_none_in_flight()
        for of, layer in ((ended, 0), (dropped, 4)):
            chunk = self.chunks[of.key.chunk]
            chunk.backward_pass = of  # Without recompute this is not an error: the saved values are right.
            chunk.end_backward(of)
            chunk.backward_pass = of
            with self.assertRaisesRegex(errors.FailedPreconditionError, f"micro-batch {of.key.micro_batch} of step 3"):
                chunk.ask(layer, recompute=True)
            chunk.backward_pass = None
            self.assertIsNone(chunk.ask(layer, recompute=False))

    def test_forward_only(self) -> None:
        for index in range(4):
            self.begin(0, index, 0, forward_only=True)
            self.ask_all(index, 0)
            self.chunks[0].end_forward()
            self.assertEqual(self.chunks[0].in_flight, 0)
        self.assertEqual(self.buffers.slots.bytes, self.plans[0].buffer_bytes)

    def test_a_router_that_does_not_ask(self) -> None:
        for forward_only in (True, False):
            self.begin(0, 0, 0, forward_only=forward_only)
            self.chunks[0].ask(0, recompute=False)
            with self.assertRaisesRegex(errors.FailedPreconditionError, "never asked") as caught:
                self.chunks[0].end_forward()
            self.assertEqual(caught.exception.layer, 1)
            self.assertEqual(self.chunks[0].in_flight, 0)

    def test_a_router_that_asks_twice(self) -> None:
        self.begin(0, 0, 0)
        self.chunks[0].ask(0, recompute=False)
        with self.assertRaisesRegex(errors.FailedPreconditionError, "asked for its ids before"):
            self.chunks[0].ask(0, recompute=False)
        self.chunks[0].abandon()
        self.assertEqual(self.chunks[0].in_flight, 0)


class OptionsTest(unittest.TestCase):
    def test_options(self) -> None:
        source = trainer.LocalSource({"num_layers": 2, "num_experts": 64, "top_k": 1})
        source.keeps_rows = False  # Like a service's source.
        fine = {
            "mode": "R3",
            "source": source,
            "missing": "strict",
            "agree": None,
            "max_fallback_fraction": 0.05,
            "fetch_deadline": 120,
            "cache_bytes": 0,
            "alarm_no_overlap": None,
            "on_policy": None,
        }
        one = types.SimpleNamespace(rank=0, size=1)
        recording = {"mode": "R2", "source": None}
        for change in (
            {},
            {"mode": "shadow", "agree": one},
            {"fetch_deadline": float("inf")},
            recording,
            recording | {"writer": 1},
            {"mode": "disabled"},
        ):
            Options(**fine | change).steps(Contract())
        for name, change in (
            ("mode", {"mode": "R4"}),
            ("missing", {"missing": "nonsense"}),
            ("agree", {"agree": "x"}),
            ("source", {"source": "str"}),
            ("source", {"source": None}),
            ("cache_bytes", {"cache_bytes": -1}),
            ("fetch_deadline", {"fetch_deadline": -1}),
            ("fetch_deadline", {"fetch_deadline": 0}),
            ("fetch_deadline", {"fetch_deadline": float("nan")}),
            ("max_fallback_fraction", {"max_fallback_fraction": 5}),
            ("alarm_no_overlap", {"alarm_no_overlap": "1%"}),
            ("writer", {"writer": 1}),
            ("source", {"mode": "R2"}),
            ("agree", recording | {"agree": one}),
            ("on_policy", recording | {"on_policy": "strict"}),
        ):
            with self.subTest(change), self.assertRaises(errors.InvalidArgumentError) as caught:
                Options(**fine | change).steps(Contract())
            self.assertEqual(caught.exception.field, name)

    def test_no_rank_of_a_replica_decides_alone(self) -> None:
        config = types.SimpleNamespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=3)
        replica, sizes = modules.replica(config)
        self.assertEqual((replica, modules.replica(None)[0]), (6, 1))
        groups = {size: types.SimpleNamespace(rank=0, size=size) for size in (1, 2, 6)}
        source = trainer.LocalSource({"num_layers": 2, "num_experts": 64, "top_k": 1})

        def check(mode: Any, missing: Any, agree: Any, replica: int) -> None:
            reads = mode in ("R3", "shadow")
            numbers = {"max_fallback_fraction": 0, "fetch_deadline": 1, "cache_bytes": 0, "alarm_no_overlap": None}
            options = Options(source if reads else None, mode, missing, agree=agree, **numbers)
            options.check_agreement(replica, sizes)

        for mode, missing, agree in (
            *(("R3", missing, groups[6]) for missing in ("strict", "live", "drop")),
            *((mode, "live", None) for mode in ("shadow", "R2", "disabled")),
            ("R3", "strict", None),
            ("R3", "strict", groups[2]),
        ):
            check(mode, missing, agree, replica)
        check("R3", "live", None, 1)
        for missing in ("live", "drop"):
            for agree in (None, groups[1], groups[2]):
                with self.assertRaisesRegex(errors.InvalidArgumentError, f"missing='{missing}' all 6 ranks") as caught:
                    check("R3", missing, agree, replica)
                self.assertEqual(caught.exception.field, "agree")


class HandlesTest(unittest.TestCase):
    def test_a_tensor_of_handles(self) -> None:
        """Handles may be an array, or elements of one. Equal elements need not be the same object."""
        handles = np.array([2**62 + 1, -5])
        for said in (handles, list(handles), [np.array(one) for one in handles], [[Sequence(handles[0])], -5]):
            for one, handle in zip(expected(said, None, [3, 4], {}), handles.tolist(), strict=True):
                self.assertEqual((type(one.sample), one.sample), (int, handle))
        with self.assertRaisesRegex(errors.InvalidArgumentError, "sequences: shape"):
            expected(handles.reshape(2, 1), None, None, {})


class ReplayedTest(unittest.TestCase):
    def test_chunks_take_turns(self) -> None:
        """Each virtual stage has its own data iterator. Two of them may be at different micro-batches."""
        said: list[Any] = []

        class Replay:
            @contextlib.contextmanager
            def micro_batch(self, sequences: Any, **options: Any) -> Iterator[None]:
                said.append(sequences)
                yield
                said.append("closed")

            def begin_step(self, *, step: Any, **told: Any) -> None:
                said.append(told)

            def prefetch(self, micro_batches: Any) -> None:
                said.append([one["sequences"] for one in micro_batches])

            def end_step(self) -> None:
                said.append("end")

        def schedule(*, forward_step_func: Any, data_iterator: Any, model: Any, forward_only: bool, **_: Any) -> str:
            for chunk in (0, 0, 1, 0, 1, 1):
                forward_step_func(data_iterator[chunk], model[chunk])
            return "losses"

        def forward_step(iterator: Any, model: Any) -> None:
            said.append((model, next(iterator)["name"]))

        def describe(batch: dict[str, Any]) -> Any:
            name = batch.pop("sample")
            return None if name is None else {"sequences": [name], "lengths": [3]}

        def batches() -> Iterator[dict[str, Any]]:
            return iter([{"name": i, "sample": name} for i, name in enumerate(("a", None, "c", "d"))])

        iterators = [batches(), batches()]
        run = replayed(Replay(), schedule, describe)
        options = {"num_microbatches": 3, "model": "xy", "forward_only": True}
        self.assertEqual(run(forward_step_func=forward_step, data_iterator=iterators, **options), "losses")
        a, c = [["a"], "closed"], [["c"], "closed"]
        expected = [
            {"sequences": ["a", "c"], "lengths": [3, 3]},
            [["a"], ["c"]],
            *(a[0], ("x", 0), a[1]),
            ("x", 1),
            *(a[0], ("y", 0), a[1]),
            *(c[0], ("x", 2), c[1]),
            ("y", 1),
            *(c[0], ("y", 2), c[1]),
            "end",
        ]
        self.assertEqual(said, expected)
        self.assertEqual([next(iterator)["name"] for iterator in iterators], [3, 3])  # Left for the next step.


class ImportTest(unittest.TestCase):
    def test_no_torch(self) -> None:
        """The tests above do not import torch."""
        self.assertNotIn("torch", sys.modules)
        with self.assertRaises(AttributeError):
            trainer.megatron.no_such_name  # noqa: B018


if __name__ == "__main__":
    unittest.main()
