"""A plug-in of SGLang for these tests, loaded by its processes. It replaces code that SGLang's packages have only for
GPUs.

For speculation it uses SGLang's own Triton kernels for Intel's GPUs, which Triton interprets on the CPU
(TRITON_INTERPRET=1). For the hierarchical cache it uses a simple copy by indices.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

PLUGINS = "sglang.srt.plugins"


def plug_in() -> None:
    absent = types.ModuleType("sgl_kernel.speculative")
    absent.reconstruct_indices_from_tree_mask = None  # type: ignore[attr-defined]
    stand_ins = {"sgl_kernel": types.ModuleType("sgl_kernel"), "sgl_kernel.speculative": absent}
    sys.modules.update(stand_ins)
    importlib.import_module("sglang.kernels.ops.speculative.reconstruct_tree")
    for name in stand_ins:
        del sys.modules[name]
    for name in ("reconstruct_tree", "spec_tree", "cache_locs"):
        importlib.import_module(f"sglang.kernels.ops.speculative.{name}")._is_xpu = True
    importlib.import_module("sglang.srt.mem_cache.pool_host.mha").transfer_kv_direct = copy


def copy(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
