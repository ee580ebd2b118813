"""The results of all seeds, and the page that summarizes them. Run as a program, it writes the page again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
PAGE = HERE.parent / "RESULTS.md"
COLUMNS = "store, transport, seeds, dates, commits, CPUs, minutes, operations, actions, memory of the bound, violations"
BEGIN = f"""# Results of the history checker

Made by `tests/run.sh --chaos DURATION`, which adds to it: [history/](history) says what is done and what is judged. An
operation is an append, or one sample of a read, a stat, a seal or a release; an action is one of the nemesis. Each seed
is a history of its own; `history/results.jsonl` has them all.

| {COLUMNS.replace(", ", " | ")} |
{"|---" * len(COLUMNS.split(", "))}|
"""


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"


def _ends(values: list[Any]) -> str:
    """Returns "FIRST to LAST" for the first and the last value, or one value if they are equal."""
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def add(result: dict[str, Any]) -> None:
    """Adds results to the file, and writes the page."""
    commit = _said("git", "rev-parse", "--short=8", "HEAD")
    line = {"commit": commit, "cpu": _cpu(), **result, "violations": len(result["violations"])}
    with open(RESULTS, "a") as file:
        file.write(json.dumps(line) + "\n")
    write_page()


def write_page() -> None:
    by_store: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in map(json.loads, RESULTS.read_text().splitlines() if RESULTS.exists() else ()):
        by_store.setdefault((each["store"], each["transport"]), []).append(each)
    text, kinds = BEGIN, ""
    for (store, transport), found in sorted(by_store.items()):
        actions: Counter[str] = Counter()
        for each in found:
            actions.update(each["actions"])
        memory = max(found, key=lambda each: each["memory"] / each["bound"])
        columns = [
            store,
            transport,
            _ends([each["seed"] for each in found]),
            _ends(sorted(each["date"] for each in found)),
            _ends([each["commit"] for each in found]),
            ", ".join(sorted({each["cpu"] for each in found})),
            f"{sum(each['seconds'] for each in found) / 60:.0f}",
            f"{sum(each['operations'] for each in found):,}",
            f"{sum(actions.values()):,}",
            f"{memory['memory'] >> 20} of {memory['bound'] >> 20} MiB",
            f"{sum(each['violations'] for each in found)}",
        ]
        text += f"| {' | '.join(columns)} |\n"
        kinds += (
            f"| {store} | {transport} | {', '.join(f'{name} {count}' for name, count in sorted(actions.items()))} |\n"
        )
    more = (
        f"\n| store | transport | actions |\n|---|---|---|\n{kinds}"
        if kinds
        else "\nNo history has been recorded yet.\n"
    )
    PAGE.write_text(text + more)


if __name__ == "__main__":
    write_page()
