"""Fields of responses, whether they are objects or dicts."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_replay import _core
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


def output_weights(
    spans: Any, prompt_tokens: int, output_tokens: int, row_start: int, versions: Mapping[str, int] | None
) -> tuple[WeightSpan, ...]:
    """Weights of rows from spans {version, start, end} of output tokens."""
    if spans is None:
        return ()
    if isinstance(spans, (str, bytes, Mapping)) or not isinstance(spans, Sequence):
        raise invalid("weight_versions", "is not a list")
    claim = {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "row_start": row_start,
        "spans": [{name: _plain(get(span, name)) for name in ("version", "start", "end")} for span in spans],
        "numbers": {str(name): _plain(number) for name, number in (versions or {}).items()},
    }
    return tuple(WeightSpan(*span) for span in _core.output_weights(claim))


def _plain(value: Any) -> Any:
    """A scalar as JSON can say it; what it cannot say is refused as no number."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    return operator.index(value) if hasattr(value, "__index__") else None


def refuse_shared(response: Any, choice: Any, place: Any, field: str) -> None:
    """What stands in the response itself belongs to none of several choices."""
    choices = get(response, "choices")
    count = len(choices) if isinstance(choices, Sequence) else 1
    if place is response and place is not choice and count > 1:
        raise invalid(field, f"stands in the response, which has {count} choices: whose is it?")
