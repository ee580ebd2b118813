"""Checks a model before it is trained with a replay: device, kernels, routers, and one pass in mode shadow."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Literal

from routing_replay import errors

from routing_replay_trainer import _core


def doctor(
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    config: Any = None,
    inject: Literal["native", "fused"] | None = None,
    ranks: Mapping[str, int] | None = None,
) -> bool:
    """Checks whether a replay works with this model: prints a report, and returns True if it does. Needs torch, and
    leaves the model unchanged.

    model: as for `megatron.attach` or `hf.attach`
    inputs: keyword arguments for the model's forward, with `input_ids`; by default 16 tokens of shape [1, 16]
    config, inject, ranks: passed to `attach` if not None. `hf.attach` has no `config` and `inject`

    The last line reports a test of two forward passes. The first, in mode R2, records the experts that the routers
    choose. The second, in mode shadow, compares the routers' choice with this record; 100 % must be the same. The test
    is skipped if the model is split over several ranks.
    """
    import torch

    from routing_replay_trainer import hf, megatron
    from routing_replay_trainer._device_buffers import device_of
    from routing_replay_trainer.megatron import _modules

    options = {"config": config, "inject": inject, "ranks": ranks}
    options = {name: value for name, value in options.items() if value is not None}
    chunks = list(model) if isinstance(model, (list, tuple, torch.nn.ModuleList)) else [model]
    device = device_of(chunks[0]) or torch.device("cpu")
    print(f"routing-replay {_core.VERSION}, torch {torch.__version__}")
    print(f"device: {_device(torch, device)}")
    print(f"kernels: {_kernels(device)}")
    is_megatron = any(_modules.live_routers(chunk) for chunk in chunks)
    attach: Any = megatron.attach if is_megatron else hf.attach
    try:
        replay = attach(model, mode="R2", **options)
    except errors.RoutingReplayError as error:
        print(f"routers: {error}")
        return False
    routers = [part.binding.name for chunk in replay._chunks for part in chunk.parts if hasattr(part, "binding")]
    geometry = replay._geometry
    replay.detach()
    print(f"routers: {len(routers)} of {'Megatron-Core' if is_megatron else 'transformers'}: {_short(routers)}")
    print(f"geometry: {geometry}")
    config = getattr(_modules.unwrap(chunks[0]), "config", None)
    if is_megatron and _modules.replica(config)[0] > 1:
        print(f"shadow pass: none, because the model is split over {_modules.replica(config)[0]} ranks")
        return True
    ids = torch.arange(16, device=device)[None]
    given = dict(inputs or {"input_ids": ids} | ({"position_ids": ids, "attention_mask": None} if is_megatron else {}))
    return _shadow_pass(torch, attach, chunks[0], given, is_megatron, options)


def _shadow_pass(
    torch: Any, attach: Any, model: Any, given: dict[str, Any], is_megatron: bool, options: dict[str, Any]
) -> bool:
    ids = given["input_ids"]
    said = {} if is_megatron else {"attention_mask": given.get("attention_mask", torch.ones_like(ids))}
    samples = [f"doctor/{index}" for index in range(len(ids))]
    trained = model.training
    model.eval()
    replay = None
    try:
        for mode in ("R2", "shadow"):
            replay = attach(model, mode=mode, **options)
            passed = {"index": 0, "schedule": False} if is_megatron else {}
            with torch.no_grad(), replay.micro_batch(samples, **said, **passed, forward_only=True):
                model(**given)
            replay.end_step()
            if mode == "R2":  # The second pass is compared with what this one has recorded.
                (records,) = replay._records()
                options = options | {"source": records.source}
            metrics = replay.metrics()
            replay.detach()
            replay = None
    except errors.RoutingReplayError as error:
        print(f"shadow pass: {error}")
        return False
    finally:
        if replay is not None:
            replay.abandon_step()
            replay.detach()
        model.train(trained)
    overlaps = [value for name, value in metrics.items() if "/overlap/" in name]
    least, rows = min(overlaps, default=0.0), int(metrics["routing_replay/replayed_rows"])
    print(f"shadow pass: {rows} rows, {len(overlaps)} layers, at least {least:.1%} of the record chosen again")
    return least == 1.0


def _device(torch: Any, device: Any) -> str:
    if device.type != "cuda":
        return str(device)
    major, minor = torch.cuda.get_device_capability(device)
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    driver = f"driver of CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return f"{torch.cuda.get_device_name(device)}, sm_{major}{minor}, {driver}"


def _kernels(device: Any) -> str:
    if device.type == "cpu":
        return "none are needed on the CPU"
    try:
        return _core.cuda_library(device.index)._name
    except errors.FailedPreconditionError as error:
        return f"none, torch's operators and the host do their work: {error.message}"


def _short(names: list[str]) -> str:
    return ", ".join(names if len(names) < 5 else [*names[:2], "…", names[-1]])
