"""A method that chooses experts, with its own top-k replaced. No torch.

Scores, normalisation, scale, bias, types and gradients stay the model's own code, of whatever version: of the whole
method one call is changed, torch.topk(scores, self.top_k, …) to self._routing_replay_choice(scores, self.top_k, …).
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

ATTRIBUTE = "_routing_replay_choice"


class Unknown(Exception):
    """Why a method is none that chooses experts as a known one does."""


@functools.cache
def rewritten(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a class, as a function of the same globals, defaults and decorators. One per method, whatever the
    number of layers: torch.compile compiles it once."""
    function = inspect.unwrap(method)
    code = getattr(function, "__code__", None)
    if code is None:
        raise Unknown("is no Python function")
    if code.co_freevars:
        raise Unknown(f"refers to {', '.join(code.co_freevars)} of the scope around it")
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise Unknown("has no source to look at") from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or not definition.args.args:
        raise Unknown("is no method")
    replaced = _Replace(definition.args.args[0].arg)
    replaced.visit(definition)
    if replaced.count != 1:
        raise Unknown(f"calls torch.topk for {replaced.owner}.top_k experts {replaced.count} times, not once")
    ast.increment_lineno(tree, first - 1)
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec"), function.__globals__, names)
    return names[definition.name]


class _Replace(ast.NodeTransformer):
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if self._is_torch_topk(node.func) and self._is_top_k(node):
            self.count += 1
            owner = ast.Name(self.owner, ast.Load())
            node.func = ast.copy_location(ast.Attribute(owner, ATTRIBUTE, ast.Load()), node.func)
        return node

    def _is_torch_topk(self, function: ast.expr) -> bool:
        return (
            isinstance(function, ast.Attribute)
            and function.attr == "topk"
            and isinstance(function.value, ast.Name)
            and function.value.id == "torch"
        )

    def _is_top_k(self, call: ast.Call) -> bool:
        given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "k")]
        return any(
            isinstance(k, ast.Attribute)
            and k.attr == "top_k"
            and isinstance(k.value, ast.Name)
            and k.value.id == self.owner
            for k in given
        )
