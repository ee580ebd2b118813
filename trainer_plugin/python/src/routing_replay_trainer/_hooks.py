"""The hooks on a module whose calls are the forward parts of passes. Needs torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from routing_replay_trainer._passes import ChunkPasses, Pass


class PassHooks:
    """module: a model chunk, or whatever holds all routers that ask `passes`
    begin: called before the module is; begins a pass in `passes`, or leaves the call live
    """

    def __init__(self, module: Any, passes: ChunkPasses, begin: Callable[[], None]) -> None:
        self._module = module
        self._passes = passes
        self._begin = begin
        self._handles: list[Any] = []
        self._removed = False

    def install(self) -> None:
        _remove_copied(self._module)
        _HOOKED[self._module] = self
        self._handles = [
            self._module.register_forward_pre_hook(_before),
            self._module.register_forward_hook(_after, always_call=True),
        ]

    def remove(self) -> None:
        self._removed = True
        for handle in self._handles:
            handle.remove()
        if _HOOKED.get(self._module) is self:
            del _HOOKED[self._module]

    def before(self) -> None:
        if not in_backward():
            self._passes.leave_backward()
        self._begin()

    def after(self, output: Any) -> None:
        if self._passes.forward_pass is None:
            return
        if output is None:  # The call raised.
            self._passes.abandon()
            return
        ended = self._passes.end_forward()
        if ended.keep is not None:
            ended.keep()
        if ended.forward_only:
            return
        outputs = [tensor for tensor in _tensors(output) if tensor.requires_grad]
        if not outputs:
            self._passes.end_backward(ended)
        for tensor in outputs:
            tensor.register_hook(lambda _, of=ended: self._backward(of))
            if tensor._is_view() and tensor._base.requires_grad:
                # A loss that changes a view in place takes the hooks off it, but not off what it is a view of.
                tensor._base.register_hook(lambda _, of=ended: self._backward(of))
        if in_backward():  # A checkpoint around the module: whether this output gets a gradient is not known.
            self._end_with_backward(ended)

    def _backward(self, of: Pass) -> None:
        """The gradient of the output is there. The engine calls back when it is through with what it was called for."""
        if self._removed:
            self._passes.check_after_detach(of)
            return
        self._passes.begin_backward(of)
        self._end_with_backward(of)

    def _end_with_backward(self, of: Pass) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._passes.end_backward(of))


def in_backward() -> bool:
    """Whether the autograd engine is what calls: forward code that runs then is recomputed."""
    return torch._C._current_graph_task_id() != -1


# By identity: a copy of a model has the hooks too, and is not in here.
_HOOKED: weakref.WeakKeyDictionary[Any, PassHooks] = weakref.WeakKeyDictionary()


def is_hooked(module: Any) -> bool:
    """Whether an attached replay has its hooks on it."""
    return module in _HOOKED


@torch.compiler.disable
def _before(module: Any, arguments: Any) -> None:
    if module in _HOOKED:
        _HOOKED[module].before()


@torch.compiler.disable
def _after(module: Any, arguments: Any, output: Any) -> None:
    if module in _HOOKED:
        _HOOKED[module].after(output)


def _remove_copied(module: Any) -> None:
    """The hooks that came with a copy of an attached model, which would begin each pass a second time."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [number for number, hook in hooks.items() if hook in (_before, _after)]:
            del hooks[number]
            module._forward_hooks_always_called.pop(number, None)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
