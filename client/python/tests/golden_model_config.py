"""Golden files of model configurations, for the golden runner: golden_model_config.py FILE.

FILE is geometry_*, whose cases test the geometry made from a config.json, or moe_pattern*, whose cases test which
layers Megatron's moe_layer_freq makes MoE layers. Prints one line of JSON per case: {"verdict": "passed" | "failed",
"name", "words"}, where "words" says why a case failed. If something is not installed, prints one line {"needs": WHAT}.
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
    import routing_replay as rr
except ImportError as error:
    print(json.dumps({"needs": "numpy and librouting_replay.so", "words": str(error)}))
    sys.exit(0)

Case = dict[str, Any]
ZSTD = ctypes.util.find_library("zstd")


def read(path: Path) -> bytes:
    """Returns the content of a file. A .zst file is decompressed with libzstd."""
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
    """Describes the expected value and the actual one."""


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
    for name, ours in observed(model).items():
        check(name, ours, expect[name])
    hashed = expect["hash_layers"]
    if hashed != expect["moe_layers"]:
        captured = rr.Geometry.from_hf_config(case["input"]["config"], hash_layers=False)
        check("hash_layers", [layer for layer in model.moe_layers if layer not in captured.moe_layers], hashed)


def observed(model: rr.Geometry) -> Case:
    return {
        "num_layers": model.num_layers,
        "moe_layers": list(model.moe_layers),
        "top_k": one_or_many(list(model.top_k)),
        "id_count": one_or_many(list(model.num_experts)),
    }


def one_or_many(values: list[int]) -> int | list[int]:
    """Returns one number if all values are equal, else the list: the golden files write them in this way."""
    return values[0] if len(set(values)) == 1 else values


def moe_pattern(case: Case) -> None:
    """Compares the pattern of the whole model. Golden files also say which layers each pipeline stage has: the
    runner, which is a C++ program, checks that itself."""
    given, expect = case["input"], case["expect"]
    fields = {"num_layers": given["num_layers"], "num_moe_experts": 8, "moe_router_topk": 2}
    try:
        model = rr.Geometry.from_megatron_config(fields | {"moe_layer_freq": given["moe_layer_freq"]})
    except rr.InvalidArgumentError as error:
        if expect["raises"] is None and (any(expect["pattern"]) or "no routed experts" not in error.message):
            raise Difference(f"rejected: {error.message}") from None
        return
    if expect["raises"] is not None:
        raise Difference("accepted, expected an error")
    check("the pattern", [int(layer in model.moe_layers) for layer in range(model.num_layers)], expect["pattern"])


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
