"""Prints results of routing-replay-bench, producer.py and peers.sh as Markdown tables.

    figures_table.py [--readme FILE] RESULTS.json...

--readme: also writes the tables between the two marks of FILE
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"

HEAD = "| figure | median [least..most] | beside | ratio inside a round |\n|---|---|---|---|"

# Titles and the patterns of their figures. A figure belongs to the first pattern that matches its name.
TABLES = (
    ("The allocator's settings: without them, beside with them", r".*\.untuned(\..*)?"),
    ("The standard hand-off, Python at both ends beside C++", r"handoff\.python\..*"),
    ("The standard hand-off, C++ at both ends", r"handoff\..*"),
    ("The server, one client", r"serve\..*"),
    ("The stores, beside the engines that they are built on", r"store\..*"),
    ("Rollout workers of Python beside the C++ client, GB/s of ids", r"producer\..*"),
    ("Bytes beside the ids, in per cent of the ids", r"wire\.overhead\..*"),
    ("Codecs, one core, one sample of 4096 tokens", r"wire\..*"),
    ("How costs grow with samples, bytes, layers and ranks", r"scale\..*"),
    ("Replay plans, one core, one rank of a micro-batch of 2^20 tokens", r"plan\..*"),
)


def number(value: float) -> str:
    """Prints three significant digits."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}".rstrip(".")


def spread(median: float, low: float, high: float) -> str:
    return number(median) if low == high else f"{number(median)} [{number(low)}..{number(high)}]"


def row(figure: dict[str, Any]) -> str:
    cells = [f"`{figure['name']}`", f"{spread(figure['median'], figure['min'], figure['max'])} {figure['unit']}"]
    if figure["ratio"] is None:
        return "| " + " | ".join([*cells, "", ""]) + " |"
    cells.append(f"{figure['floor_name']}: {number(figure['floor'])} {figure['unit']}")
    cells.append(spread(figure["ratio"], figure["ratio_min"], figure["ratio_max"]))
    return "| " + " | ".join(cells) + " |"


def bench_tables(results: list[dict[str, Any]]) -> Iterator[str]:
    """Of several figures with the same name, the first counts."""
    first = {figure["name"]: figure for result in reversed(results) for figure in result["figures"]}
    left = [first[name] for name in dict.fromkeys(figure["name"] for result in results for figure in result["figures"])]
    tables = {}
    for title, pattern in TABLES:
        tables[title] = [figure for figure in left if re.fullmatch(pattern, figure["name"])]
        left = [figure for figure in left if figure not in tables[title]]
    host = results[0]["host"]
    network = "own" if host["own_network"] else "the host's"
    yield (
        f"{host['cores']} x {host['cpu']}, Linux {host['kernel']}, {network} network, {host['congestion_control']}; "
        f"{host['repetitions']} rounds.\n"
    )
    for title in [TABLES[2][0], TABLES[1][0], *(title for title, _ in TABLES[3:]), TABLES[0][0]]:
        if tables[title]:
            rows = "\n".join(row(figure) for figure in tables[title])
            yield f"### {title}\n\n{HEAD}\n{rows}\n"


def peers_table(result: dict[str, Any]) -> Iterator[str]:
    """Yields the tables of the peers' benchmark. Their floor is plain TCP, which that benchmark calls path 7b."""
    runs = {name: rounds for name, rounds in result["runs"].items() if rounds}
    floor = next(rounds for name, rounds in runs.items() if name.startswith("7b "))
    meta = result["meta"]
    yield (
        f"### The standard hand-off beside the peers' ways\n\nPython {meta['python']}, {meta['congestion_control']}, "
        f"{len(floor)} rounds, GLIBC_TUNABLES `{meta['glibc_tunables']}`.\n\n"
        "| way | wall s | CPU s | wall over plain TCP |\n|---|---|---|---|\n"
    )
    for name, rounds in runs.items():
        ratios = [one["wall"] / base["wall"] for one, base in zip(rounds, floor, strict=True)]
        columns = [[one["wall"] for one in rounds], [one["cpu"] for one in rounds], ratios]
        cells = [spread(statistics.median(values), min(values), max(values)) for values in columns]
        yield f"| {name} | " + " | ".join(cells) + " |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", type=Path)
    parser.add_argument("results", nargs="+", type=Path)
    arguments = parser.parse_args()
    results = [json.loads(path.read_text()) for path in arguments.results]
    parts = list(bench_tables([result for result in results if "figures" in result]))
    for result in results:
        if "runs" in result:
            parts.append("".join(peers_table(result)))
    text = "\n".join(parts)
    print(text)
    if arguments.readme:
        before, rest = arguments.readme.read_text().split(BEGIN)
        arguments.readme.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
