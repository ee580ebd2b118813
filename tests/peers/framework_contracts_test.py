"""What the recipe for SkyRL takes from it, in its own source. It is not imported: that wants a GPU.

What a recipe imports, asks a module for, or derives from must be there; fields and options that it goes by, too.
"""

from __future__ import annotations

import ast
import os
import unittest
from collections.abc import Iterator
from pathlib import Path

import recipes

FUNCTION = ast.FunctionDef, ast.AsyncFunctionDef
SCHEDULE = {"forward_step_func", "data_iterator", "model", "num_microbatches"}


class Source:
    def __init__(self, root: str, package: str) -> None:
        self.root, self.package = Path(root), package

    def module(self, name: str) -> ast.Module | None:
        path = self.root / name.replace(".", "/")
        files = (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists())
        return next((ast.parse(file.read_text()) for file in files), None)

    def definition(self, module: str, *path: str) -> ast.AST:
        """Of a class, a function, or one within."""
        found: ast.AST | None = self.module(module)
        for name in path:
            assert found is not None, module
            kinds = (*FUNCTION, ast.ClassDef)
            [found] = [one for one in ast.walk(found) if isinstance(one, kinds) and one.name == name]
        assert found is not None, module
        return found

    def lacks(self, recipe: str) -> list[str]:
        """What a recipe imports, asks a module for or derives from, and the source does not have."""
        tree, modules, classes, missing = ast.parse(recipe), {}, {}, []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == self.package:
                for each in node.names:
                    whole, own = f"{node.module}.{each.name}", self.module(str(node.module))
                    if self.module(whole):
                        modules[each.asname or each.name] = whole
                    elif own and each.name in names(own):
                        classes[each.asname or each.name] = str(node.module), each.name
                    else:
                        missing.append(whole)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                whole = self.module(modules[node.value.id])
                if not whole or node.attr not in names(whole):
                    missing.append(f"{modules[node.value.id]}.{node.attr}")
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id in classes:
                        has = attributes(self.definition(*classes[base.id]))
                        missing += [f"{base.id}.{name}" for name in sorted(of_super(node) - has)]
        return missing


def names(module: ast.Module) -> set[str]:
    """That are there once a module is imported."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def attributes(kind: ast.AST) -> set[str]:
    """Methods and fields of a class, and what its methods give to self."""
    assert isinstance(kind, ast.ClassDef)
    found = {node.name for node in kind.body if isinstance(node, FUNCTION)}
    annotated = [node.target for node in kind.body if isinstance(node, ast.AnnAssign)]
    found |= {target.id for target in annotated if isinstance(target, ast.Name)}
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found |= {node.attr} if node.value.id == "self" else set()
    return found


def of_super(kind: ast.ClassDef) -> set[str]:
    """Methods that a class asks `super()` for."""
    found = set()
    for node in ast.walk(kind):
        asked = node.value.func if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) else None
        if isinstance(asked, ast.Name) and asked.id == "super":
            found.add(node.attr)
    return found


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == name:
                yield node


def keys(tree: ast.AST, name: str) -> set[str]:
    """That are read of what has this name, by brackets or by pop."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found |= {str(node.slice.value)} if ast.unparse(node.value) == name else set()
    for call in calls(tree, "pop"):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name:
            found.add(ast.literal_eval(call.args[0]))
    return found


class ContractTest(unittest.TestCase):
    def one_schedule(self, function: ast.AST) -> ast.Call:
        """The schedule is asked for where it is called, by its name in the module, and told by keywords."""
        self.assertEqual(len(list(calls(function, "get_forward_backward_func"))), 1)
        [call] = calls(function, "forward_backward_func")
        self.assertEqual(call.args, [])
        self.assertLessEqual(SCHEDULE, {str(keyword.arg) for keyword in call.keywords})
        return call


class SkyrlTest(ContractTest):
    WORKERS = "skyrl.backends.skyrl_train.workers.megatron"

    def setUp(self) -> None:
        self.source, self.recipe = Source(os.environ["RR_SKYRL"], "skyrl"), recipes.blocks()["SkyRL"]
        self.wrapper = self.source.definition(f"{self.WORKERS}.megatron_model_wrapper", "MegatronModelWrapper")

    def test_names(self) -> None:
        self.assertEqual(self.source.lacks(self.recipe), [])
        gone = self.recipe.replace("megatron_model_wrapper", "model_wrapper")
        self.assertEqual(self.source.lacks(gone), [f"{self.WORKERS}.model_wrapper"])
        gone = self.recipe.replace("get_forward_backward_func", "get_schedule")
        self.assertEqual({name.rsplit(".", 1)[1] for name in self.source.lacks(gone)}, {"get_schedule"})

    def test_passes_of_the_wrapper(self) -> None:
        self.assertLessEqual({"actor_module", "remove_microbatch_padding"}, attributes(self.wrapper))
        passes = [self.source.definition(f"{self.WORKERS}.megatron_model_wrapper", "MegatronModelWrapper", name)
                  for name in ("forward", "forward_backward_mini_batch")]  # fmt: skip
        self.assertEqual(len(list(calls(self.wrapper, "get_forward_backward_func"))), len(passes))
        for each in passes:
            call = self.one_schedule(each)
            [model] = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "model"]
            self.assertEqual(model, "self.actor_module")
            [step] = [one for one in ast.walk(each) if isinstance(one, FUNCTION) and one.name == "forward_step"]
            self.assertLessEqual({"rollout_expert_indices", "sequences", "attention_mask"}, keys(step, "batch"))
            [popped] = [one for one in calls(step, "pop") if ast.literal_eval(one.args[0]) == "rollout_expert_indices"]
            self.assertEqual(ast.unparse(popped.args[1]), "None")  # What the recipe takes out may be missing.

    def test_what_carries_handles(self) -> None:
        """The worker gives the column to the wrapper under the option that the recipe names, whatever is in it."""
        worker = self.source.module(f"{self.WORKERS}.megatron_worker")
        assert worker
        carried = [
            ast.unparse(value)
            for node in ast.walk(worker)
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == "rollout_expert_indices"
        ]
        self.assertTrue(carried)
        self.assertEqual(set(carried), {"rollout_expert_indices if self.enable_router_replay else None"})
        section = recipes.README.read_text().split("\n## SkyRL\n")[1].split("\n## ")[0]
        for option, kind in (
            ("generator.inference_engine.enable_return_routed_experts", "InferenceEngineConfig"),
            ("trainer.policy.megatron_config.moe_enable_routing_replay", "MegatronConfig"),
        ):
            self.assertIn(f"`{option}=true`", section)
            has = attributes(self.source.definition("skyrl.train.config.config", kind))
            self.assertIn(option.rsplit(".", 1)[1], has)


if __name__ == "__main__":
    unittest.main()
