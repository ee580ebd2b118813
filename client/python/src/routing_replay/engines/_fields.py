"""Fields of responses, whether they are objects or dicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_replay.errors import InvalidArgumentError
from routing_replay.types import WeightSpan, token_ids


def invalid(field: str, what: str, reason: str = "FIELD") -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {what}", reason=reason, field=field)


def get(holder: Any, *names: str) -> Any:
    """The first of the fields that is there and not None."""
    for name in names:
        value = holder.get(name, None) if isinstance(holder, Mapping) else getattr(holder, name, None)
        if value is not None:
            return value
    return None


def has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, Mapping) else hasattr(holder, name)


def item(holder: Any, name: str, index: int) -> Any:
    """holder.name[index], which must be there."""
    values = get(holder, name)
    if not isinstance(values, Sequence) or not 0 <= index < len(values):
        count = len(values) if isinstance(values, Sequence) else "no"
        raise invalid(name, f"no item {index}: the response has {count}")
    return values[index]


def ids(values: Any, field: str) -> np.ndarray | None:
    """Token ids as uint32, perhaps none; None stays None."""
    if values is None:
        return None
    return token_ids(values, field) if len(values) else np.empty(0, np.uint32)


def engine_name(name: str) -> str:
    """With the version of the package if this process has it loaded."""
    version = getattr(sys.modules.get(name), "__version__", None)
    return f"{name} {version}" if isinstance(version, str) else name


def join(prompt: np.ndarray | None, output: np.ndarray | None) -> np.ndarray | None:
    """All tokens, or None if they are not all known."""
    if prompt is None or output is None or not prompt.size + output.size:
        return None
    return np.concatenate([prompt, output])


def weight_span(begin: int, end: int, version: Any, versions: Mapping[str, int] | None) -> WeightSpan:
    """Of an engine's version: an integer, a text of decimals, or a text that `versions` may know."""
    if isinstance(version, str):
        number = (versions or {}).get(version)
        if number is None:
            number = int(version) if version.isascii() and version.isdigit() and len(version) < 19 else -1
        return WeightSpan(begin, end, number, version)
    return WeightSpan(begin, end, int(version))


def output_weights(
    spans: Any, prompt_tokens: int, row_start: int, versions: Mapping[str, int] | None
) -> tuple[WeightSpan, ...]:
    """Spans {version, start, end} of output tokens as spans of rows.

    Output token j was sampled by the forward pass of position prompt_tokens - 1 + j. Rows before the first span are of
    its version.
    """
    found: list[WeightSpan] = []
    for span in spans or ():
        begin, end = (prompt_tokens - 1 + int(get(span, name) or 0) for name in ("start", "end"))
        if not found:
            begin = min(begin, row_start)
        if begin < end:
            found.append(weight_span(max(0, begin), end, get(span, "version"), versions))
    return tuple(found)


def refuse_shared(response: Any, choice: Any, place: Any, field: str) -> None:
    """What stands in the response itself belongs to none of several choices."""
    choices = get(response, "choices")
    count = len(choices) if isinstance(choices, Sequence) else 1
    if place is response and place is not choice and count > 1:
        raise invalid(field, f"stands in the response, which has {count} choices: whose is it?")
