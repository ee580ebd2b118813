"""The recipes of the trainer plugin's README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def blocks() -> dict[str, str]:
    """The Python code of each section, by heading."""
    sections = re.split(r"^## (.*)$", README.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(sections[::2], sections[1::2], strict=True):
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found[heading] = code
    return found


def lines(heading: str) -> list[str]:
    """Returns the options with which a section says to start a framework. They are its block that is not Python."""
    section = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^    (\S.*)$", section.split("```python")[0], re.MULTILINE)


def run(heading: str, **names: Any) -> dict[str, Any]:
    """Runs a block and returns the names that it defines. names: those that it can use"""
    space: dict[str, Any] = {"__name__": "recipe", **names}
    exec(compile(blocks()[heading], heading, "exec"), space)
    return space
