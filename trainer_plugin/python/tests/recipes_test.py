"""Which recipes the README of the trainer plugin has (tests/peers runs them), and whether its tables are complete."""

from __future__ import annotations

import ast
import re
import unittest
from pathlib import Path

import recipes

from routing_replay_trainer._attached import Options

ROOT = Path(__file__).parents[2]
FACE = ROOT / "python/src/routing_replay_trainer"


def face_of(name: str) -> ast.Module:
    """Returns the code that both interfaces share, followed by that of the interface with this name. Parsed and not
    imported, because the modules that it imports, such as Megatron, may be missing here."""
    common, own = (ast.parse(path.read_text()) for path in (FACE / "_attached.py", FACE / name / "_replay.py"))
    return ast.Module([*common.body, *own.body], [])


class RecipesTest(unittest.TestCase):
    def test_all_are_here(self) -> None:
        headings = [
            "Hugging Face and FSDP",
            "Megatron-LM",
            "Rows in Mooncake",
            "Rows that your framework carries itself",
        ]
        self.assertEqual(sorted(recipes.blocks()), headings)

    def test_the_readme_names_what_the_faces_take(self) -> None:
        """The tables have each option and argument, and no others."""
        # The sections from "On a GPU" on are left out, because those on frameworks have tables of the frameworks'
        # options.
        of_faces = recipes.README.read_text().split("## On a GPU")[0]
        tables = re.findall(r"^\| (`.*?) \|", of_faces, re.MULTILINE)
        rows = {name for row in tables for name in re.findall(r"`(\w+)`", row)}
        taken, methods = {*Options.__dataclass_fields__}, set()
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


if __name__ == "__main__":
    unittest.main()
