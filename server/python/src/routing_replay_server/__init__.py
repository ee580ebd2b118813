"""The programs of routing-replay as a Python package: `routing-replay-server` and `rrctl`.

The programs themselves do not use Python: each command of this package starts its program and is replaced by it (exec).
`program` returns the path of a program, for callers that start it directly.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

__version__ = importlib.metadata.version("routing-replay-server")
_PROGRAMS = ("routing-replay-server", "rrctl")


def program(name: str) -> Path:
    """Returns the path of the program `name`: "routing-replay-server" or "rrctl". ValueError for another name."""
    if name not in _PROGRAMS:
        raise ValueError(f"name must be one of {', '.join(_PROGRAMS)}, got {name!r}")
    return Path(__file__).parent / "_bin" / name


def _run(name: str) -> None:
    path = program(name)
    os.execv(path, [str(path), *sys.argv[1:]])


def _run_server() -> None:
    _run("routing-replay-server")


def _run_rrctl() -> None:
    _run("rrctl")
