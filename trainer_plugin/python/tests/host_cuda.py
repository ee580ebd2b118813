"""A fake GPU: a model that says cuda:0, on a host whose streams do everything at once, and no kernels."""

from __future__ import annotations

import contextlib
import unittest
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from routing_replay_trainer import _core, _device_buffers


class OnHost(TorchFunctionMode):
    """Memory that is requested on a GPU, or pinned, is allocated on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class Stream:
    """Stands in for a stream of a GPU, and also for an event. Everything has happened already."""

    cuda_stream = 0

    def __init__(self, *arguments: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self) -> Stream:
        return self

    def does_nothing(self, *arguments: Any) -> None:
        pass

    record = synchronize = wait_event = wait_stream = does_nothing


class NoKernels(unittest.TestCase):
    """Runs tests with models whose parameters say that they are on a GPU without kernels."""

    def setUp(self) -> None:
        super().setUp()
        for module, name, stand_in in (
            (_device_buffers, "device_of", lambda module: torch.device("cuda", 0)),
            (_core, "kernels", lambda device: None),
            (torch.cuda, "Stream", Stream),
            (torch.cuda, "Event", Stream),
            (torch.cuda, "stream", contextlib.nullcontext),
            (torch.cuda, "current_stream", Stream),
            (torch.Tensor, "record_stream", lambda tensor, stream: None),
        ):
            patch = mock.patch.object(module, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        mode = OnHost()
        mode.__enter__()
        self.addCleanup(mode.__exit__, None, None, None)
