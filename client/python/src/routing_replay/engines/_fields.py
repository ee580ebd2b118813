"""Fields of responses, whether they are objects or dicts."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routing_replay import _payloads, _values
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


def item(holder: Any, name: str, index: Any) -> Any:
    """The one of holder.name that says it has this index, or, where they say nothing, has this place."""
    number = _values.integer(index, "index", _values.NATURAL)
    values = get(holder, name)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, memoryview)):
        raise invalid(name, f"no item {number}: the response has none")
    said = [get(value, "index") for value in values]
    numbers = list(range(len(values))) if any(own is None for own in said) else said
    found = [value for value, own in zip(values, numbers, strict=True) if _plain(own) == number]
    if len(found) != 1:
        raise invalid(name, f"{len(found) or 'no'} item {number}: the response has those of {numbers}")
    return found[0]


def ids(values: Any, field: str) -> np.ndarray | None:
    """Token ids as uint32, perhaps none; None stays None."""
    if values is None:
        return None
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0:
        raise invalid(field, f"a {type(values).__name__} is not a list of token ids")
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


@dataclass(frozen=True)
class Tokens:
    """The tokens of a sample, as far as a response tells of them.

    prompt, output: ids, or None
    prompt_tokens: how many the response says the model saw: more than the ids where media in the prompt were expanded
    output_tokens: how many were sampled
    all_output: whether that is all of them for sure: not those of a stream's last event, nor a count alone
    """

    prompt: np.ndarray | None
    output: np.ndarray | None
    prompt_tokens: int
    output_tokens: int
    all_output: bool = True

    @property
    def ids(self) -> np.ndarray | None:
        """All of them, or None if they are not all known, one per position."""
        return join(self.prompt, self.output)

    def fitting(self, rows: int | None, start: int) -> Tokens:
        """With the count of prompt tokens that so many rows from `start` on have: that of the ids, or, where it alone
        fits, or where there are no rows, the larger one that the response says; then ids and positions do not go
        together and the ids are left out."""
        if self.prompt is None:
            return self
        expanded = self.prompt_tokens > self.prompt.size
        if expanded and (rows is None or rows == max(0, self.prompt_tokens + self.output_tokens - 1 - start)):
            return replace(self, prompt=None)
        return replace(self, prompt_tokens=self.prompt.size)


def count(value: Any, field: str) -> int:
    """Of tokens, as a response says it."""
    return _values.integer(value, field, _values.NATURAL)


def output_weights(
    spans: Any, counted: Tokens, row_start: int, versions: Mapping[str, int] | None
) -> tuple[WeightSpan, ...]:
    """Weights of rows from spans {version, start, end} of output tokens."""
    if spans is None:
        return ()
    if isinstance(spans, (str, bytes, memoryview, Mapping)) or not isinstance(spans, Sequence):
        raise invalid("weight_versions", "is not a list")
    if versions is not None and not isinstance(versions, Mapping):
        raise invalid("versions", f"a {type(versions).__name__} is no mapping")
    numbers = {str(name): _number(number) for name, number in (versions or {}).items()}
    said = [_version_span(span, numbers, f"weight_versions[{i}]") for i, span in enumerate(spans)]
    counts = counted.prompt_tokens, counted.output_tokens, row_start
    rows = [WeightSpan(*span) for span in _payloads.output_weights(said, *counts)]
    return tuple(replace(span, version=numbers.get(span.label, span.version)) for span in rows)


def _version_span(span: Any, numbers: Mapping[str, Any], field: str) -> tuple[int, int, int, str]:
    begin, end = (_values.integer(get(span, name), f"{field}.{name}") for name in ("start", "end"))
    version = get(span, "version")
    if isinstance(version, str):
        return begin, end, _values.integer(numbers.get(version, -1), f"{field}.version"), version
    return begin, end, _values.integer(version, f"{field}.version", _values.NATURAL), ""


def _plain(value: Any) -> Any:
    """A scalar as Python's own; what is none is no number."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def _number(value: Any) -> Any:
    """Of a weight version; -1 is unknown."""
    number = _plain(value)
    return _values.integer(number, "versions", (-1, 2**63 - 1)) if type(number) is int else number


def choice_count(response: Any) -> int:
    """1 where a response is its own choice."""
    choices = get(response, "choices")
    return len(choices) if isinstance(choices, Sequence) else 1


def refuse_shared(response: Any, choice: Any, place: Any, field: str) -> None:
    """What stands in the response itself belongs to none of several choices."""
    count = choice_count(response)
    if place is response and place is not choice and count > 1:
        raise invalid(field, f"stands in the response, which has {count} choices: whose is it?")
