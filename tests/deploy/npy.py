"""Writes a file of expert ids without NumPy."""

import struct
from pathlib import Path

EXPERTS, TOP_K = 128, 8


def write(path: Path, rows: int, layers: int) -> None:
    """Writes an array int32 [rows][layers][TOP_K] whose ids are distinct within each row and layer."""
    ids = [(row + layer * 5 + k * 3) % EXPERTS for row in range(rows) for layer in range(layers) for k in range(TOP_K)]
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({rows}, {layers}, {TOP_K}), }}".ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    path.write_bytes(start + struct.pack(f"<{len(ids)}i", *ids))
