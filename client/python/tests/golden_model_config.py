"""Golden files of model configurations, for the golden runner: golden_model_config.py FILE.

geometry_*: geometry and routers of a config.json; moe_pattern: which layers Megatron's moe_layer_freq makes MoE layers.
One line of JSON per case: {"verdict": "passed" | "failed", "name", "words"}. Or one line {"needs": WHAT}.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

try:
    import numpy as np

    import routing_replay as rr
except ImportError as error:
    print(json.dumps({"needs": "numpy and librouting_replay.so", "words": str(error)}))
    sys.exit(0)

Case = dict[str, Any]
ZSTD = ctypes.util.find_library("zstd")


def read(path: Path) -> bytes:
    """What is in a file, perhaps compressed, by the library that the server is built with."""
    data = path.read_bytes()
    if path.suffix != ".zst":
        return data
    library = ctypes.CDLL(ZSTD)
    library.ZSTD_getFrameContentSize.restype = ctypes.c_uint64
    library.ZSTD_decompress.restype = ctypes.c_size_t
    size = library.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
    if size >= 1 << 32:
        raise ValueError(f"{path} does not say its size")
    out = ctypes.create_string_buffer(size)
    found = library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    if found != size:
        raise ValueError(f"{path} is damaged")
    return out.raw


class Difference(Exception):
    """What a case expects and what there is, in words."""


def check(what: str, ours: Any, expected: Any) -> None:
    close = all(type(value) in (int, float) for value in (ours, expected)) and abs(ours - expected) < 1e-5
    if ours != expected and not close:
        raise Difference(f"{what} is {json.dumps(ours)}, expected {json.dumps(expected)}")


def geometry(case: Case) -> None:
    expect = case["expect"]
    try:
        model = rr.Geometry.from_hf_config(case["input"]["config"])
    except rr.InvalidArgumentError as error:
        if expect.get("error"):
            if expect.get("reason", "") not in error.message:
                raise Difference(f'rejected with "{error.message}", expected "{expect["reason"]}"') from None
        elif not any(place.get("may_refuse") for place in (case, expect, case["input"])):
            raise Difference(f"rejected: {error.message}") from None
        return
    if expect.get("error"):
        raise Difference(f"accepted as {model!r}, expected an error")
    assert model.routing is not None
    for name, ours in observed(model, model.routing).items():
        check(name, ours, expect[name])
    compare_routing(model, model.routing, expect["routing"])


def observed(model: rr.Geometry, routing: rr.ModelRouting) -> Case:
    experts = [count - routing.zero_experts for count in model.num_experts]
    return {
        "num_layers": model.num_layers,
        "moe_layers": list(model.moe_layers),
        "num_experts": one_or_many(experts),
        "top_k": one_or_many(list(model.top_k)),
        "zero_experts": routing.zero_experts,
        "id_count": one_or_many(list(model.num_experts)),
        "hash_layers": list(routing.hash_layers),
        "routers_per_layer": routing.routers_per_layer,
        "mtp_layers": routing.mtp_layers,
    }


def one_or_many(values: list[int]) -> int | list[int]:
    """As the files write it."""
    return values[0] if len(set(values)) == 1 else values


def compare_routing(model: rr.Geometry, routing: rr.ModelRouting, expect: Case) -> None:
    """The files tell what random rows showed: a limit that hardly ever drops a chosen expert was not seen."""
    bias, limit = routing.expert_bias, routing.group_limit
    best = None if limit is None else "max" if limit.best_summed == 1 else f"top{limit.best_summed}_sum"
    ours = {
        "score_function": routing.score_function,
        "renormalized": routing.renormalized,
        "scaling_factor": routing.scaling_factor,
        "expert_bias": None if bias is None else bias != "none",
        "bias_added_to": None if bias in (None, "none") else bias.removeprefix("to_"),
        "shared_experts": None if routing.shared_experts is None else routing.shared_experts > 0,
        "n_group": None if limit is None else limit.groups,
        "topk_group": None if limit is None else limit.kept,
        "group_score": best,
    }
    for name, expected in expect.items():
        if name not in ours:
            raise Difference(f'a routing fact "{name}" is not known')
        if ours[name] is None:
            continue
        of_group = name in ("n_group", "topk_group", "group_score")
        if expected is None and (not of_group or limit is None or share_limited(model, limit) < 0.05):
            continue
        check(f"routing.{name}", ours[name], expected)


def share_limited(model: rr.Geometry, limit: rr.GroupLimit) -> float:
    """The share of random rows whose choice the limit changes."""
    experts, top_k = model.num_experts[0], model.top_k[0]
    scores = 1 / (1 + np.exp(-np.random.default_rng(1).normal(size=(2000, experts))))
    groups = np.sort(scores.reshape(2000, limit.groups, -1))[..., -limit.best_summed :].sum(-1)
    dropped = np.argsort(-groups)[:, limit.kept :]
    chosen = np.argsort(-scores)[:, :top_k] // (experts // limit.groups)
    return float(np.mean([np.isin(of, out).any() for of, out in zip(chosen, dropped, strict=True)]))


def moe_pattern(case: Case) -> None:
    """The runner itself compares what each pipeline stage builds of the pattern."""
    given, expect = case["input"], case["expect"]
    fields = {"num_layers": given["num_layers"], "num_moe_experts": 8, "moe_router_topk": 2}
    frequency = given["moe_layer_freq"]
    try:
        model = rr.Geometry.from_megatron_config(fields | {"moe_layer_freq": frequency})
    except rr.InvalidArgumentError as error:
        if expect["raises"] is None and (any(expect["pattern"]) or "no routed experts" not in error.message):
            raise Difference(f"rejected: {error.message}") from None
        return
    if expect["raises"] is not None:
        raise Difference("accepted, expected an error")
    check("the pattern", [int(layer in model.moe_layers) for layer in range(model.num_layers)], expect["pattern"])
    if rr.Geometry.from_megatron_config(fields | {"moe_layer_freq": str(frequency)}) != model:
        raise Difference("as the command line's text it is read otherwise")


def run(kind: Callable[[Case], None], case: Case) -> Case:
    try:
        kind(case)
        return {"verdict": "passed"}
    except Difference as difference:
        return {"verdict": "failed", "words": str(difference)}
    except Exception as error:
        return {"verdict": "failed", "words": f"{type(error).__name__}: {error}"}


def main(path: Path) -> None:
    kind = moe_pattern if path.name.startswith("moe_pattern") else geometry
    for case in json.loads(read(path))["cases"]:
        print(json.dumps({"name": str(case.get("name", "")), "words": "", **run(kind, case)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
