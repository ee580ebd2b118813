"""Finds the layers of a live model that choose experts, and the code that chooses, in transformers 4.51 to 5.x. Does
not need torch.

Where a block chooses its experts differs by version: in the forward of the block (softmax routers, 4.x), in a method of
the router (DeepSeek-V3 and GLM, 4.x) or of the block (5.0), or in the forward of the router (gpt-oss; all in later
5.x). In all of these, exactly one function calls torch.topk for self.top_k experts, exactly once. `rewritten` finds
this call, or says why it cannot. It changes only this call, torch.topk(scores, self.top_k, …), to
self._routing_replay_choice(scores, self.top_k, …): scores, normalisation, scale, bias, types and gradients stay the
model's own code, of whatever version.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from routing_replay_trainer._core import unmet

ROUTERS = ("gate", "router")  # Attributes of a block that may hold its router (a linear layer or a module of its own).
# Methods of the router and of the block that may choose the experts.
CHOICES = (
    ("router", "get_topk_indices"),
    ("block", "route_tokens_to_experts"),
    ("router", "forward"),
    ("block", "forward"),
)
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")  # Attributes that may hold E.

# Names that FSDP, torch.compile and checkpoint wrappers add to the path of a module.
_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class LiveRouter:
    """module: chooses the experts
    method: the name of the method that chooses
    replacement: the function that replaces the method
    name: path of the block in the model
    layer: index of the block's layer in the decoder's list of layers
    num_experts, top_k: E and K
    """

    module: Any
    method: str
    replacement: Callable[..., Any]
    name: str
    layer: int
    num_experts: int
    top_k: int


@dataclass(frozen=True)
class Decoder:
    """module: contains the layers and runs them when it is called
    num_layers: number of layers, dense ones included
    routers: the routers, in the order of the layers
    """

    module: Any
    num_layers: int
    routers: tuple[LiveRouter, ...]


def decoder(model: Any) -> Decoder:
    """Finds the only decoder with MoE layers in a model. Raises FailedPreconditionError if there is none or more than
    one, or if a module (which the error names) chooses experts in an unknown way."""
    modules = dict(model.named_modules())
    routers: list[LiveRouter] = []
    stacks: set[str] = set()
    for name, block in modules.items():
        above = any(name.startswith(f"{router.name}.") for router in routers)
        if "mtp" in name.split(".") or above or not _has_experts(block):
            continue
        stack, layer = _place(name)
        stacks.add(stack)
        routers.append(_router(block, name, layer))
    if len(stacks) != 1:
        found = " and ".join(sorted(stacks)) if stacks else "no MoE layer"
        raise unmet("model", f"needs exactly one decoder with MoE layers, but {type(model).__name__} has {found}")
    holder = stacks.pop()
    layers = modules[f"{holder}.layers" if holder else "layers"]
    return Decoder(_unwrapped(modules[holder]), len(layers), tuple(sorted(routers, key=lambda r: r.layer)))


def _has_experts(module: Any) -> bool:
    """Returns True if the module itself has experts. A wrapper around a module with experts does not count."""
    if _unwrapped(module) is not module:
        return False
    return getattr(module, "experts", None) is not None and hasattr(module.experts, "named_modules")


def _place(name: str) -> tuple[str, int]:
    """Returns the path of the module that holds the layers, and the index of the layer. For "model.layers.3.mlp", these
    are "model" and 3."""
    parts = name.split(".")
    for i in range(len(parts) - 1):
        if parts[i] == "layers" and parts[i + 1].isdecimal():
            return ".".join(parts[:i]), int(parts[i + 1])
    raise unmet(name, "has experts, but is not in a list `layers`")


def _router(block: Any, name: str, layer: int) -> LiveRouter:
    kind = type(block).__name__
    attribute = next((attribute for attribute in ROUTERS if getattr(block, attribute, None) is not None), None)
    if attribute is None:
        raise unmet(name, f"{kind} has experts, but no {' or '.join(ROUTERS)}")
    owners = {"router": _unwrapped(getattr(block, attribute)), "block": block}
    # Kernel libraries may replace the forward of the class by one that never calls the router, and so never asks for
    # ids.
    forward = inspect.unwrap(getattr(type(block), "forward", None))
    if attribute not in getattr(getattr(forward, "__code__", None), "co_names", ()):
        raise unmet(name, f"the forward of {kind} does not ask its {attribute}")
    reasons: list[str] = []
    found: list[tuple[Any, str, Callable[..., Any]]] = []
    for owner, method in CHOICES:
        module = owners[owner]
        function = getattr(type(module), method, None)
        if function is None:
            continue
        try:
            found.append((module, method, rewritten(function)))
        except Unknown as unknown:
            reasons.append(f"{type(module).__name__}.{method} {unknown}")
    if not found:
        raise unmet(name, f"{kind} has no supported router method: {'; '.join(reasons)}")
    if len(found) > 1:
        several = " and ".join(f"{type(module).__name__}.{method}" for module, method, _ in found)
        raise unmet(name, f"{several} each choose experts in {kind}, and only one may")
    module, method, replacement = found[0]
    _check_own(block, "forward", name, replacement)
    _check_own(module, method, name, replacement)
    return LiveRouter(module, method, replacement, name, layer, *_sizes(module, name))


def _check_own(module: Any, method: str, name: str, replacement: Callable[..., Any]) -> None:
    """Raises FailedPreconditionError if the module has another function in place of its class's method. A bound method
    of the class itself, which transformers sometimes puts there, is accepted."""
    there = vars(module).get(method)
    function = getattr(there, "__func__", None)
    if there is None or function is getattr(type(module), method):
        return
    if function is replacement:
        what = f"a replay is attached to this {type(module).__name__} already, or to the model of which this is a copy"
        raise unmet(name, what)
    raise unmet(name, f"{method} of this {type(module).__name__} has been replaced by {there!r}")


def _sizes(module: Any, name: str) -> tuple[int, int]:
    experts = next((value for key in EXPERTS if (value := getattr(module, key, None)) is not None), None)
    if experts is None:
        raise unmet(name, f"{type(module).__name__} has none of {', '.join(EXPERTS)}")
    return int(experts), int(module.top_k)


def _unwrapped(module: Any) -> Any:
    while (inner := next((w for w in _WRAPPERS if getattr(module, w, None) is not None), None)) is not None:
        module = getattr(module, inner)
    return module


ATTRIBUTE = "_routing_replay_choice"


class Unknown(Exception):
    """A reason why a method does not choose experts in the known way."""


@functools.cache
def rewritten(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the changed method of a class, as a function with the same globals, defaults and decorators. There is one
    such function per method, not one per layer, so that torch.compile compiles it only once."""
    function = inspect.unwrap(method)
    code = getattr(function, "__code__", None)
    if code is None:
        raise Unknown("is not a Python function")
    if code.co_freevars:
        raise Unknown(f"refers to {', '.join(code.co_freevars)} of an enclosing scope")
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise Unknown("has no source to look at") from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or not definition.args.args:
        raise Unknown("is not a method")
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
        given = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "k")]
        if ast.unparse(node.func) == "torch.topk" and f"{self.owner}.top_k" in map(ast.unparse, given):
            self.count += 1
            owner = ast.Name(self.owner, ast.Load())
            node.func = ast.copy_location(ast.Attribute(owner, ATTRIBUTE, ast.Load()), node.func)
        return node
