"""The recipe for Hugging Face models of the trainer plugin's README, executed with stand-ins, and what the README says
of both faces. Those for frameworks run with these (tests/peers).

What the recipe says of its micro-batches is planned and fetched for real, and the model looks whose rows are open when
it is called.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import recipes
import routing_replay

import routing_replay_trainer as trainer
from routing_replay_trainer import collective, hf, megatron
from routing_replay_trainer._attached import Options
from routing_replay_trainer._micro_batch import described, expected, of_hf, of_megatron
from routing_replay_trainer.megatron._schedule import micro_batch_index

ROOT = Path(__file__).parents[2]
FACE = ROOT / "python/src/routing_replay_trainer"
GEOMETRY = {"num_layers": 2, "num_experts": 256, "top_k": 2}
LENGTHS = {"a": 9, "b": 5, "c": 12, "d": 7}  # Tokens of each sample.
SAMPLES = list(LENGTHS)
STEP = [["a", "b"], ["c", "d"]]  # Two micro-batches.


def tokens_of(name: str) -> Any:
    return np.arange(LENGTHS[name]) + 100 * SAMPLES.index(name)


def source(*names: str) -> trainer.LocalSource:
    """Ids say whose row they are: the sample's number, and 100 and the row. Under the names that the rollout gave."""
    rows = trainer.LocalSource(GEOMETRY)
    for number, (name, sample) in enumerate(zip(names, SAMPLES, strict=True)):
        count = LENGTHS[sample] - 1
        ids = np.stack([np.full(count, number), 100 + np.arange(count)], axis=1)
        rows.add(name, np.repeat(ids[:, None], 2, axis=1).astype(np.int32), tokens=tokens_of(sample))
    return rows


class Replay:
    """That of a face, without a model: the batch of an open micro-batch is `open`."""

    def __init__(self, model: Any, face: str, options: dict[str, Any]) -> None:
        self.model, self.options, self._face = model, options, face
        self._source = options["source"]
        self.open: trainer.Batch | None = None
        self.log: list[str] = []
        self.begun: list[Any] = []

    def begin_step(
        self,
        sequences: Any,
        *,
        tokens: Any = None,
        lengths: Any = None,
        weight_version: int | None = None,
        step: Any = None,
    ) -> None:
        found = self._source.inspect(expected(sequences, tokens, lengths, {}))
        assert all(one["status"] == "OK" for one in found), found
        self.begun, self.version, self.told = list(sequences), weight_version, tokens
        self.log.append("begin")

    def prefetch(self, micro_batches: Any, *, next_step: bool = False) -> None:
        self.announced = [one["sequences"] for one in micro_batches]

    @contextlib.contextmanager
    def micro_batch(self, sequences: Any, **said: Any) -> Iterator[None]:
        names = ("tokens", "packed_seq_params", "lengths")
        index, in_schedule = said.pop("index", None), said.pop("schedule", True)
        said.pop("forward_only", None)
        if self._face == "megatron":
            models = self.model if isinstance(self.model, list) else [self.model]
            micro_batch_index(0, [model.current_microbatch for model in models] if in_schedule else [], index)
        if self._face == "hf":
            given = of_hf(len(sequences), said["tokens"], said["attention_mask"])
        else:
            known = {name: said.pop(name, None) for name in names}
            given = of_megatron(**known, layout=said, parallel={"cp_size": 1, "tp_size": 1})
        one = described(sequences, *given)
        assert self.open is None
        self.open = self._source.fetch(trainer.plan(GEOMETRY, one.layout), sequences=one.fetch)
        self.log.append("micro_batch")
        yield
        self.open = None

    def end_step(self) -> None:
        self.log.append("end")

    def abandon_step(self) -> None:
        self.log.append("abandoned")

    def metrics(self, *, reduce: Any = None) -> dict[str, float]:
        self.reduced = reduce
        return {"routing_replay/replayed_fraction": 1.0}


class Model:
    """What it is called with is what is open, of which it keeps whose rows these are."""

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.seen: list[list[str]] = []
        self.current_microbatch: int | None = None  # What a schedule tells, and leaves behind.

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        batch = None if self.replay is None else self.replay.open
        names: list[str] = []
        if batch is not None:
            ids = batch.indices[0][batch.states == trainer.REPLAYED]
            names = [SAMPLES[number] for number in dict.fromkeys(ids[:, 0].tolist())]
            for number in set(ids[:, 0].tolist()):
                rows = ids[ids[:, 0] == number, 1] - 100
                assert rows.tolist() == list(range(LENGTHS[SAMPLES[number]] - 1))
        self.seen.append(names)
        return types.SimpleNamespace(loss=self, logits=self)

    def backward(self) -> None: ...


def face_of(name: str) -> ast.Module:
    """The code of a face, which may need what is not here, behind that of what both have in common."""
    common, own = (ast.parse(path.read_text()) for path in (FACE / "_attached.py", FACE / name / "_replay.py"))
    return ast.Module([*common.body, *own.body], [])


class RecipesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.model = Model()
        self.attached: list[Replay] = []
        self.patch_modules({"torch": types.ModuleType("torch")})
        for where, name, value in (
            (routing_replay, "Client", lambda: types.SimpleNamespace(run=lambda run, wait: run)),
            (trainer, "ServiceSource", lambda run: self.rows),
            (collective, "TorchCollective", list),
            (megatron, "attach", lambda model, **options: self.attach("megatron", model, options)),
            (hf, "attach", lambda model, **options: self.attach("hf", model, options)),
        ):
            patch = mock.patch.object(where, name, value, create=True)
            patch.start()
            self.addCleanup(patch.stop)
        self.names = [f"key-{name}" for name in SAMPLES]
        self.rows = source(*self.names)

    def patch_modules(self, modules: dict[str, Any]) -> None:
        patch = mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)

    def attach(self, face: str, model: Any, options: dict[str, Any]) -> Replay:
        replay = Replay(model, face, options)
        self.attached.append(replay)
        self.model.replay = replay
        return replay

    def recipe(self, heading: str, **names: Any) -> dict[str, Any]:
        return recipes.run(heading, **names)

    def test_all_are_here(self) -> None:
        frameworks = ["Hugging Face and FSDP", "Megatron-LM"]
        self.assertEqual(sorted(recipes.blocks()), frameworks)

    def test_the_stand_ins_take_what_the_faces_take(self) -> None:
        for face, methods in (
            ("megatron", ("begin_step", "prefetch", "end_step", "abandon_step")),
            ("hf", ("begin_step", "end_step", "abandon_step")),
        ):
            tree = face_of(face)
            real = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            for name in methods:
                arguments = real[name].args
                names = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
                taken = list(inspect.signature(getattr(Replay, name)).parameters)
                self.assertEqual(taken, names)

    def test_the_readme_names_what_the_faces_take(self) -> None:
        """Each option and argument is in its tables, and nothing else is."""
        of_faces = recipes.README.read_text().split("## On a GPU")[0]  # Those of frameworks have tables of their own.
        tables = re.findall(r"^\| (`.*?) \|", of_faces, re.MULTILINE)
        rows = {name for row in tables for name in re.findall(r"`(\w+)`", row)}
        taken, methods = {"padding_documents", *Options.__dataclass_fields__}, set()
        for face in ("megatron", "hf"):
            tree = face_of(face)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name in ("attach", "begin_step", "micro_batch"):
                    first = {"self", "model", "model_chunks", "sequences"}
                    taken |= {one.arg for one in (*node.args.args, *node.args.kwonlyargs)} - first
            for replay in tree.body:
                if isinstance(replay, ast.ClassDef) and replay.name in ("Attached", "Replay"):
                    methods |= {one.name for one in replay.body if isinstance(one, ast.FunctionDef)}
        self.assertEqual(rows, taken)
        calls = set(re.findall(r"\breplay\.(\w+)\b(?!\()", recipes.README.read_text().split("## Megatron-LM")[0]))
        calls |= set(re.findall(r"\breplay\.(\w+)\(", recipes.README.read_text()))
        self.assertLessEqual(calls, methods)
        shown = {name for name in methods if not name.startswith("_")} - {"kept"}
        self.assertEqual(shown - calls, set())

    def test_hugging_face(self) -> None:
        recipe = self.recipe("Hugging Face and FSDP")
        batches = []
        for samples in STEP:
            longest = max(LENGTHS[name] for name in samples)
            rows = np.array([np.pad(tokens_of(name), (0, longest - LENGTHS[name])) for name in samples])
            mask = np.array([[1] * LENGTHS[name] + [0] * (longest - LENGTHS[name]) for name in samples])
            names = [f"key-{name}" for name in samples]
            batches.append({"input_ids": rows, "attention_mask": mask, "sample_ids": names})
        optimizer = types.SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
        logged: list[Any] = []
        recipe["train"](self.model, optimizer, [batches], lambda logits, batch: logits, logged.append)
        self.assertEqual(self.model.seen, STEP)
        self.assertEqual(self.attached[0].log, ["begin", "micro_batch", "micro_batch", "end"])
        self.assertEqual(len(logged), 1)
        self.assertEqual((self.attached[0].version, self.attached[0].reduced), (0, None))
        told = [own.tolist() for own in self.attached[0].told]  # As micro_batch tells them.
        self.assertEqual(told, [tokens_of(name).tolist() for name in SAMPLES])


if __name__ == "__main__":
    unittest.main()
