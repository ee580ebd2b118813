"""Lets a project that uses "cuda" run on the CPU: its tensors are created there, and waiting for a device does nothing.
Only the environment of a test is changed, not our plug-in, which gets a model on the CPU."""

from __future__ import annotations

import contextlib
import os
from typing import Any

# torch.compile would compile functions for a GPU; with this, they run uncompiled.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _device(of: Any) -> Any:
    if isinstance(of, (str, torch.device)):
        return CPU if torch.device(of).type == "cuda" else of
    return of


class OnCpu(TorchFunctionMode):
    """Makes functions that get a CUDA device use the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _device(args[1]), *args[2:])
        if "device" in kwargs:
            kwargs["device"] = _device(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


class Queue:
    """Takes the place of a CUDA stream or event. It never waits, because on the CPU all work is already done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def record_event(self, event: Any = None) -> Queue:
        return Queue()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def install() -> None:
    """Makes torch use the CPU in place of "cuda", for the rest of the process and in its forks. Call it after the
    project is imported. OnCpu applies to one thread, so every other thread must call `OnCpu().__enter__()` itself."""
    nothing = lambda *_, **__: None  # noqa: E731
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    for name in ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, nothing)
    cuda.get_device_name = lambda *_, **__: "CPU"
    cuda.mem_get_info = lambda *_, **__: (1, 1)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.Stream = cuda.Event = Queue
    cuda.current_stream = cuda.default_stream = Queue
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *_, **__: torch.get_rng_state()
        module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    OnCpu().__enter__()


def install_megatron() -> None:
    """Calls `install`, and replaces two functions of Megatron-Core. The first sets the random state of a device. The
    second turns the dispatcher's token counts into numpy arrays. Megatron's own does this only for tensors on a device,
    and gloo rejects tensors as counts."""
    install()
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    def read(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    token_dispatcher.maybe_move_tensor_to_cpu = read
