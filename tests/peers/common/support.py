"""The rows of the README's support table: what has passed with which version of another project.

A test calls `passed` after its last assertion, which adds a row under build/peers/passed. `python3 -m common.support`
(from tests/peers; at the end of `tests/run.sh --peers`) replaces tests/peers/passed.txt, which is committed, by these
rows; tests/support/support_table.py generates the table from it. If passed.txt has a row that this time no test has
shown, with any version, the command fails, names the row and writes nothing.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
PASSED = ROOT / "tests/peers/passed.txt"


def _folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("RR_PEERS_PASSED", ROOT / "build/peers/passed"))


def passed(project: str, version: str, what: str, changed: str = "nothing") -> None:
    """Records that this process has just shown `what` (a few words for the table) with `version` of `project`.

    changed: what the test changed or replaced in the project, e.g. "one line about pinned memory".
    """
    row = "\t".join((project, version, what, changed))
    assert row.count("\t") == 3 and "\n" not in row, f"a field must have no tab and no line end, got {row!r}"
    name = re.sub(r"[^a-z0-9.]+", "-", f"{project} {version} {what}".lower()).strip("-")[:200]
    _folder().mkdir(parents=True, exist_ok=True)
    (_folder() / name).write_text(row + "\n")


def main() -> None:
    if sys.argv[1:]:
        passed(*sys.argv[1:])
        return
    rows = [file.read_text() for file in _folder().glob("*")]
    lacking = _shown(PASSED.read_text().splitlines()) - _shown(rows)
    if lacking:
        sys.exit(
            f"{PASSED} says more than passed this time: {'; '.join(sorted(lacking))}. Nothing is written: run these, "
            "too, or delete their rows."
        )
    PASSED.write_text("".join(sorted(rows, key=str.lower)))
    print(PASSED.read_text(), end="")


def _shown(rows: list[str]) -> set[str]:
    return {": ".join(row.split("\t")[::2][:2]) for row in rows}


if __name__ == "__main__":
    main()
