"""Expert ids that are the same on every machine, and their bytes in the forms in which they go over the wire.

Written from proto/FORMAT.md and the comments of the protocol alone, so that what is recorded does not depend on the
code that it is to check.
"""

from __future__ import annotations

import base64
import math
import struct

import numpy as np

_TABLE = []
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE.append(_value)


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def ids(rows: int, layers: int, experts: int, top_k: int, salt: int = 0, first_row: int = 0) -> np.ndarray:
    """[rows, layers, top_k] of int64; those of one row and layer are all different."""
    row = np.arange(first_row, first_row + rows).reshape(-1, 1, 1)
    layer = np.arange(layers).reshape(1, -1, 1)
    slot = np.arange(top_k).reshape(1, 1, -1)
    return (row * 7 + layer * 11 + slot * (experts // top_k) + salt + row * row * 3) % experts


def tokens(count: int, salt: int = 0) -> np.ndarray:
    return (np.arange(count, dtype=np.uint32) * 31 + salt) % 50000


def token_bytes(ids_of_tokens: np.ndarray) -> bytes:
    return ids_of_tokens.astype("<u4").tobytes()


def npy(array: np.ndarray) -> bytes:
    """NumPy's format 1.0, spelled out, as what numpy.save writes may change."""
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.tobytes()


def zstd(data: bytes) -> bytes:
    """One frame with its content size and one raw block."""
    assert len(data) < 1 << 17
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return bytes.fromhex("28b52ffd") + b"\xa0" + struct.pack("<I", len(data)) + block + data


def base64_of(data: bytes) -> bytes:
    return base64.b64encode(data)


def plane(of_layer: np.ndarray, experts: int, packed: bool) -> bytes:
    """The bytes of one layer's ids [rows, K] in a block."""
    if not packed:
        return of_layer.astype("<u1" if experts <= 256 else "<u2").tobytes()
    bits = max(1, math.ceil(math.log2(experts)))
    value = 0
    for index, each in enumerate(of_layer.reshape(-1).tolist()):
        value |= each << index * bits
    return value.to_bytes((of_layer.size * bits + 7) // 8, "little")
