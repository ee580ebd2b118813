"""The Hugging Face interface without torch: which modules choose experts, and the arguments of micro_batch."""

from __future__ import annotations

import types
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np
from routing_replay import errors

import routing_replay_trainer as trainer
from routing_replay_trainer._micro_batch import described, of_hf
from routing_replay_trainer.hf import Sequence
from routing_replay_trainer.hf import _modules as modules
from routing_replay_trainer.hf._modules import ATTRIBUTE, Unknown, rewritten

torch = types.SimpleNamespace(topk=lambda *arguments, **options: "live")


class Module:
    """The part of torch.nn.Module that walking over a model needs."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        yield prefix, self
        for name, part in vars(self).items():
            if isinstance(part, Module):
                yield from part.named_modules(f"{prefix}.{name}" if prefix else name)


class Wrapper(Module):
    """Like the wrappers of FSDP and torch.compile: passes attributes on to what it wraps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_orig_mod"], name)


class Layers(Module):
    def __init__(self, *layers: Module) -> None:
        super().__init__(**{str(i): layer for i, layer in enumerate(layers)})

    def __len__(self) -> int:
        return len(vars(self))


class MixtralTopKRouter(Module):
    num_experts, top_k = 8, 2

    def forward(self, hidden_states: Any) -> Any:
        return torch.topk(hidden_states, self.top_k, dim=-1)


class MixtralSparseMoeBlock(Module):
    def forward(self, hidden_states: Any) -> Any:
        return self.gate(hidden_states)


class FSDPMixtralSparseMoeBlock(MixtralSparseMoeBlock):
    """Like a class that FSDP2 derives."""


class Unseen(Module):
    """A class whose name is not known."""

    def forward(self, hidden_states: Any) -> Any:
        return self.gate(hidden_states)


class TwoChoices(Unseen):
    top_k = 2

    def forward(self, hidden_states: Any) -> Any:
        return torch.topk(self.gate(hidden_states), self.top_k)


class GptOssMLP(Module):
    def forward(self, hidden_states: Any) -> Any:
        return self.router(hidden_states)


class TwoRouters(MixtralTopKRouter):
    def forward(self, hidden_states: Any) -> Any:
        return torch.topk(hidden_states, self.top_k), torch.topk(hidden_states, k=self.top_k)


class ScopedRouter(MixtralTopKRouter):
    def forward(self, hidden_states: Any) -> Any:
        assert __class__ is ScopedRouter
        return torch.topk(hidden_states, self.top_k)


def block(router: type[Module] = MixtralTopKRouter, kind: type[Module] = MixtralSparseMoeBlock) -> Module:
    return Module(mlp=kind(gate=router(), experts=Module()))


def model(*layers: Module, **parts: Any) -> Module:
    return Module(model=Module(layers=Layers(*layers)), **parts)


class ModulesTest(unittest.TestCase):
    def test_routers_of_the_live_model(self) -> None:
        dense = Module(mlp=Module())
        wrapped = block(kind=FSDPMixtralSparseMoeBlock)
        wrapped.mlp = Wrapper(_orig_mod=wrapped.mlp)
        mtp = Module(layers=Layers(Module(mlp=Module(experts=Module()))))
        found = modules.decoder(model(dense, block(), wrapped, mtp=mtp))
        self.assertEqual(found.num_layers, 3)
        self.assertEqual([(r.layer, r.method) for r in found.routers], [(1, "forward"), (2, "forward")])
        self.assertEqual([r.name for r in found.routers], ["model.layers.1.mlp", "model.layers.2.mlp._orig_mod"])
        self.assertEqual([(r.num_experts, r.top_k) for r in found.routers], [(8, 2), (8, 2)])

    def test_what_is_not_known_is_rejected_by_name(self) -> None:
        patched = block()
        patched.mlp.forward = lambda hidden_states: hidden_states
        strange = Module(mlp=Module(gate=MixtralTopKRouter(), experts=Module()))
        for layers, words in (
            ([block(), block(TwoRouters)], "layers.1.mlp: Mixtral.*TwoRouters.forward.*2 times"),
            ([block(ScopedRouter)], "ScopedRouter.forward refers to __class__"),
            ([strange], "layers.0.mlp: the forward of Module does not ask its gate"),
            ([Module(mlp=Module(experts=Module()))], "layers.0.mlp: Module has experts, but no gate or router"),
            ([block(kind=TwoChoices)], "Router.forward and TwoChoices.forward each choose experts in TwoChoices"),
            ([patched], "layers.0.mlp: forward of this MixtralSparseMoeBlock has been replaced"),
            ([Module(mlp=GptOssMLP(experts=Module()))], "GptOssMLP has experts, but no gate or router"),
            ([Module(mlp=Module())], "no MoE layer"),
        ):
            with self.subTest(words), self.assertRaisesRegex(errors.FailedPreconditionError, words):
                modules.decoder(model(*layers))
        two = Module(thinker=model(block()), talker=model(block()))
        with self.assertRaisesRegex(errors.FailedPreconditionError, "talker.model and thinker.model"):
            modules.decoder(two)
        self.assertEqual(len(modules.decoder(two.thinker).routers), 1)

    def test_a_block_of_another_name(self) -> None:
        found = modules.decoder(model(block(kind=Unseen), block(kind=Unseen)))
        self.assertEqual([(type(r.module), r.layer) for r in found.routers], [(MixtralTopKRouter, i) for i in (0, 1)])

    def test_one_call_is_changed(self) -> None:
        function = rewritten(MixtralTopKRouter.forward)
        self.assertIs(rewritten(MixtralTopKRouter.forward), function)
        router = MixtralTopKRouter()
        self.assertEqual(router.forward("scores"), "live")
        setattr(router, ATTRIBUTE, lambda *arguments, **options: (arguments, options))
        self.assertEqual(function(router, "scores"), (("scores", 2), {"dim": -1}))
        self.assertIs(function.__globals__, MixtralTopKRouter.forward.__globals__)
        self.assertEqual(function.__code__.co_firstlineno, MixtralTopKRouter.forward.__code__.co_firstlineno)
        for method in (len, eval("lambda self: torch.topk(self, self.top_k)")):
            self.assertRaises(Unknown, rewritten, method)


def describe(sequences: Any, cp_size: int = 1, **given: Any) -> Any:
    names = ("tokens", "attention_mask", "position_ids", "lengths")
    arguments = {name: given.pop(name, None) for name in names}
    return described(sequences, *of_hf(len(sequences), **arguments, **{"cp_size": cp_size} | given))


class MicroBatchTest(unittest.TestCase):
    def test_rectangles(self) -> None:
        tokens = np.arange(10, 22).reshape(2, 6)
        left, right = np.array([[0, 0, 1, 1, 1, 1], [1] * 6]), np.array([[1, 1, 1, 0, 0, 0], [1] * 6])
        for mask, first, lengths in ((left, 2, [4, 6]), (right, 0, [3, 6])):
            said = describe(["a", "b"], tokens=tokens, attention_mask=mask)
            sequences = said.layout.pop("sequences")
            self.assertEqual(
                said.layout,
                {
                    "format": "BSHD",
                    "partition": "contiguous_per_sequence",
                    "row_order": "batch_major",
                    "batch_size": 2,
                    "padded_length": 6,
                    "cp_size": 1,
                },
            )
            self.assertEqual([s.get("first_row", 0) for s in sequences], [first, 0])
            self.assertEqual([s["tokens"] for s in sequences], lengths)
            self.assertEqual(list(said.fetch[0].tokens), list(range(10 + first, 10 + first + lengths[0])))
        alone = describe(["a", "b"], attention_mask=left)
        self.assertEqual([f.tokens for f in alone.fetch], [None, None])
        unmasked = describe(["a", "b"], tokens=tokens, lengths=[3, 6])
        self.assertEqual([len(f.tokens) for f in unmasked.fetch], [3, 6])
        for options, words in (
            ({"attention_mask": np.array([[1, 0, 1]])}, r"attention_mask\[0\]: has padding at column 1 between"),
            ({"attention_mask": np.ones((1, 1, 3, 3))}, r"\(1, 1, 3, 3\)"),
            ({"attention_mask": left, "tokens": tokens[:, 1:]}, r"\(2, 6\)"),
            ({"attention_mask": left, "lengths": [3, 6]}, "lengths"),
            (
                {},
                "lengths: must be given: tokens and boundaries do not determine them",
            ),
        ):
            with self.subTest(words), self.assertRaisesRegex(errors.InvalidArgumentError, words):
                describe(["a", "b"], **options)

    def test_packed(self) -> None:
        stream = np.arange(10)
        positions = np.array([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1]])
        packed = describe(["a", "b"], tokens=stream, position_ids=positions, cp_size=2)
        self.assertEqual(
            {key: packed.layout[key] for key in ("format", "partition", "cu_seqlens_padded", "total_rows", "cp_size")},
            {
                "format": "THD",
                "partition": "contiguous",
                "cu_seqlens_padded": [0, 3, 8, 10],
                "total_rows": 10,
                "cp_size": 2,
            },
        )
        self.assertEqual([s["tokens"] for s in packed.layout["sequences"]], [3, 5, 2])
        self.assertEqual([f.live for f in packed.fetch], [False, False, True])
        pieces = describe([[Sequence("a", rows=1), "b"]], position_ids=np.arange(5), tokens=np.arange(5))
        self.assertEqual([p["rows"] for p in pieces.layout["sequences"][0]["pieces"]], [1, 2])
        for positions, words in ((np.array([1, 2, 0]), "start at 0"), (np.zeros((2, 3)), r"\(2, 3\)")):
            with self.subTest(words), self.assertRaisesRegex(errors.InvalidArgumentError, words):
                describe(["a"], position_ids=positions)

    def test_rows_of_each_layout(self) -> None:
        """Compares each row that a rank's router sees with a simple calculation: an id encodes sample and row."""
        geometry = {"num_layers": 2, "num_experts": 64, "top_k": 1}
        source = trainer.LocalSource(geometry)
        for place, (sample, tokens) in enumerate((("a", 4), ("b", 6))):
            source.add(sample, np.arange(10 * place, 10 * place + tokens - 1).repeat(2).reshape(-1, 2, 1))
        left = np.array([[0, 0, 1, 1, 1, 1], [1] * 6])
        third = np.array([*left, [0, 0, 0, 0, 1, 1]])
        a, b = [0, 1, 2, -1], [10, 11, 12, 13, 14, -1]
        packed = {"position_ids": [*range(4), *range(6), 0, 1], "tokens": np.zeros(12, np.int64)}
        for given, cp_size, expected in (
            ({"attention_mask": left}, 1, [[-2, -2, *a, *b]]),
            ({"attention_mask": left[:, ::-1]}, 1, [[*a, -2, -2, *b]]),
            ({"attention_mask": left}, 2, [[-2, -2, 0, 10, 11, 12], [1, 2, -1, 13, 14, -1]]),
            ({"attention_mask": third}, 1, [[-2, -2, *a, *b, *[-2] * 4, -3, -3]]),
            (packed, 2, [[*a, 10, 11], [12, 13, 14, -1, -3, -3]]),
        ):
            for rank in range(cp_size):
                said = describe(["a", "b"], cp_size, **given)
                # No tokens are compared.
                fetch = [trainer.FetchSequence(one.sample, live=one.live) for one in said.fetch]
                batch = source.fetch(trainer.plan(geometry, said.layout, rank={"cp": rank}), sequences=fetch)
                seen = np.where(batch.states == trainer.REPLAYED, batch.indices[1][:, 0], -np.int64(batch.states))
                self.assertEqual(seen.tolist(), expected[rank])


if __name__ == "__main__":
    unittest.main()
