"""The options that both faces' attach takes, checked before anything is touched. No torch."""

from __future__ import annotations

import numbers
from typing import Any

from routing_replay_trainer._values import INT64, integer, invalid, seconds

MODES = ("disabled", "shadow", "R2", "R3")
_MISSING = ("strict", "live", "drop")


def check(
    *,
    mode: Any,
    source: Any,
    missing: Any,
    agree: Any,
    max_fallback_fraction: Any,
    fetch_deadline: Any,
    cache_bytes: Any,
    alarm_no_overlap: Any,
    on_policy: Any,
    writer: Any = None,
) -> None:
    """InvalidArgumentError naming an option that is none, or that the mode would ignore."""
    if mode not in MODES:
        raise invalid("mode", f"{mode!r} is none of {', '.join(MODES)}")
    if missing not in _MISSING:
        raise invalid("missing", f"{missing!r} is none of {', '.join(_MISSING)}")
    if mode in ("R3", "shadow") and source is None:
        raise invalid("source", f"mode {mode} needs one")
    _check_has("source", source, ("fetch", "inspect"))
    _check_has("agree", agree, ("rank", "size"))
    _check_number("max_fallback_fraction", max_fallback_fraction, 1)
    seconds(fetch_deadline, "fetch_deadline")
    if alarm_no_overlap is not None:
        _check_number("alarm_no_overlap", alarm_no_overlap, 1)
    integer(cache_bytes, "cache_bytes", (0, INT64[1]))
    ignored = {"R2": {"source": source, "agree": agree, "on_policy": on_policy}, "disabled": {}}
    for name, value in ignored.get(mode, {"writer": writer}).items():
        if value is not None:
            raise invalid(name, f"mode {mode} does not use it")


def check_agreement(mode: Any, missing: Any, agree: Any, replica: int, sizes: str) -> None:
    """InvalidArgumentError where a rank would fall back, and the others of its replica would not know of it.

    replica: ranks that share the samples of a step
    sizes: whose product that is
    """
    if mode != "R3" or missing == "strict" or replica <= 1:
        return
    has = "there is none" if agree is None else f"it has {agree.size} ranks"
    if agree is None or agree.size != replica:
        raise invalid(
            "agree",
            f"{has}, and with missing={missing!r} all {replica} ranks ({sizes}) of a sample must decide together "
            "what falls back: give the collective of these ranks, or missing='strict'",
        )


def _check_has(name: str, value: Any, members: tuple[str, ...]) -> None:
    for member in members:
        if value is not None and not hasattr(value, member):
            raise invalid(name, f"{value!r} has no {member}")


def _check_number(name: str, value: Any, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= most:
        raise invalid(name, f"{value!r} is not a number in 0 … {most}")
