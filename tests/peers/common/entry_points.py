"""Makes entry points, through which engines find plug-ins, without installing the package."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tomllib

from common.support import ROOT


def install(folder: str, package: str, points: dict[str, dict[str, str]]) -> None:
    """Writes a package's entry points {group: {name: value}} into a folder on Python's path, as pip does when it
    installs the package."""
    metadata = Path(folder, f"{package.replace('-', '_')}-0.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in of.items()) for group, of in points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


@contextlib.contextmanager
def plugged(run: str) -> Iterator[dict[str, str]]:
    """Yields the environment variables for a server of an engine that loads this project's plug-in and records to
    `run`."""
    project = tomllib.loads((ROOT / "client/python/pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        install(folder, project["name"], project["entry-points"])
        yield {"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}", "ROUTING_REPLAY_RUN": run}
