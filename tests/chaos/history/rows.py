"""The rows and tokens that workers append, which are derived from names alone, and their digests.

A source is an attempt at a sample and a variant of its routes; it determines all rows. Variants of one attempt have the
same tokens. Appends end at multiples of CELL rows, so the rows of a cell come from one append.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from zlib import crc32

import numpy as np

LAYERS, EXPERTS, TOP_K = 4, 64, 4
CELL = 8
MAX_CELLS = 10  # The most cells of a sample.

Source = tuple[str, str, int, int]  # Run, sample, attempt, variant.


def number(*words: object) -> int:
    """A 64-bit hash of the words."""
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little")


def length(sample: str) -> int:
    """The rows of a complete sample."""
    return CELL * (1 + number(sample) % MAX_CELLS)


def _mixed(key: int, begin: int, end: int) -> np.ndarray:
    mixed = np.arange(begin, end, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(29))


def routes(source: Source, begin: int, end: int) -> np.ndarray:
    """ids [rows, layers, K], uint8. Ids of a row and layer are distinct because the step between them is odd."""
    mixed = _mixed(number(*source), begin * LAYERS, end * LAYERS)[:, None]
    ids = mixed % EXPERTS + np.arange(TOP_K, dtype=np.uint64) * ((mixed >> np.uint64(8)) % EXPERTS | np.uint64(1))
    return (ids % EXPERTS).astype(np.uint8).reshape(end - begin, LAYERS, TOP_K)


def tokens(run: str, sample: str, attempt: int, begin: int, end: int) -> np.ndarray:
    return (_mixed(number(run, sample, attempt), begin, end) >> np.uint64(40)).astype(np.uint32)


def pieces(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows [begin, end), split at the ends of cells."""
    while begin < end:
        to = min(end, (begin // CELL + 1) * CELL)
        yield begin, to
        begin = to


def digest(ids: np.ndarray) -> str:
    """The checksum of each layer of ids [rows, layers, K], concatenated."""
    return "".join(f"{crc32(np.ascontiguousarray(ids[:, layer])):08x}" for layer in range(ids.shape[1]))


def digests(ids: np.ndarray, begin: int) -> list[str]:
    """Digests of the cells of rows from `begin` on."""
    return [digest(ids[first - begin : end - begin]) for first, end in pieces(begin, begin + len(ids))]


@functools.lru_cache(maxsize=1 << 17)
def expected(source: Source, begin: int, end: int, layers: tuple[int, ...]) -> str:
    return digest(routes(source, begin, end)[:, layers])
