"""Draws pictures as SVG, and describes the machine for their captions."""

from __future__ import annotations

import bisect
import datetime
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

_COLOURS = ("#8a9bb0", "#d1603d", "#3d7ea6", "#5b8c5a")
_INK, _FAINT = "#24292f", "#8c959f"
_WIDTH = 860


def machine() -> str:
    """A line about the machine, for below a table."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} x {name}, {datetime.date.today().isoformat()}, load {os.getloadavg()[0]:.1f}."


def _text(x: float, y: float, words: str, size: int = 13, anchor: str = "start", colour: str = _INK) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_FAINT}" stroke-width="1"/>'


def _whole(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" font-family="sans-serif">'
    return "\n".join([head, _box(0, 0, _WIDTH, height, "#ffffff"), *parts, "</svg>"]) + "\n"


def bars(title: str, panels: Sequence[tuple[str, Iterable[str], Sequence[tuple[str, Sequence[float]]]]]) -> str:
    """Draws panels of horizontal bars. All bars of a panel are divided into the same pieces.

    panels: per panel, its headline, the names of the pieces, and the bars; a bar has a name and a length per piece
    """
    left, room = 90, _WIDTH - 90 - 90
    made, y = [_text(20, 30, title, 16)], 62.0
    for headline, names, rows in panels:
        made.append(_text(20, y, headline))
        x = float(left)
        for colour, name in zip(_COLOURS, names, strict=False):
            made += [_box(x, y + 10, 11, 11, colour), _text(x + 16, y + 20, name, 12)]
            x += 30 + 7 * len(name)
        y += 32
        longest = max(sum(lengths) for _, lengths in rows)
        for name, lengths in rows:
            made.append(_text(left - 10, y + 16, name, 13, "end"))
            x = float(left)
            for colour, length in zip(_COLOURS, lengths, strict=False):
                made.append(_box(x, y, length / longest * room, 22, colour))
                x += length / longest * room
            made.append(_text(x + 6, y + 16, f"{sum(lengths):.3g}"))
            y += 30
        y += 24
    return _whole(y, made)


def shares(title: str, below: str, abscissa: str, ordinate: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Draws for each curve the share of values above x; x has a logarithmic axis from 1e-4 to 10."""
    left, right, top, bottom = 70.0, _WIDTH - 30.0, 112.0, 392.0
    first, last = -4, 1

    def at(x: float, share: float) -> tuple[float, float]:
        place = (math.log10(x) - first) / (last - first)
        return left + place * (right - left), bottom - share * (bottom - top)

    made = [_text(20, 30, title, 16), _text(20, 52, below, 12, colour=_FAINT)]
    for power in range(first, last + 1):
        x, _ = at(10.0**power, 0)
        made += [_line(x, top, x, bottom), _text(x, bottom + 18, f"{10.0**power:g}", 12, "middle")]
    for percent in range(0, 101, 25):
        _, y = at(1, percent / 100)
        made += [_line(left, y, right, y), _text(left - 8, y + 4, f"{percent} %", 12, "end")]
    made += [
        _text((left + right) / 2, bottom + 40, abscissa, 13, "middle"),
        _text(20, top - 12, ordinate, 12, colour=_FAINT),
    ]
    for number, (name, values) in enumerate(curves.items()):
        colour, ordered = _COLOURS[number], sorted(values)
        points = []
        for step in range(201):
            x = 10 ** (first + (last - first) * step / 200)
            points.append("{:.1f},{:.1f}".format(*at(x, 1 - bisect.bisect_right(ordered, x) / len(ordered))))
        made.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2.5" points="{" ".join(points)}"/>')
        x = left + number * (right - left) / len(curves)
        made += [_box(x, 65, 11, 11, colour), _text(x + 16, 75, name)]
    return _whole(bottom + 60, made)
