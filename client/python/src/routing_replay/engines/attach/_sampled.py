"""The token ids of one completion of SGLang, put together from the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Sampled:
    """Events have all ids so far, or those that are new: which, is told by completion_tokens alone, that counts all.

    ids: all of them; None where no event had any
    known: False where the counts fit neither reading, or both, or are missing: then nothing is said of the ids
    whole: whether `ids` are as many as the engine counts. An engine may cut a stop off
    """

    def __init__(self) -> None:
        self.ids: list[int] | None = None
        self.known = True
        self.whole = True
        self._new_alone: bool | None = None  # Once it is told: by an event after the first one with ids.

    def add(self, ids: Sequence[int] | None, count: int | None, ending: Any) -> None:
        """The next event. count: completion_tokens; ending: finish_reason, None before the last event."""
        ids = None if ids is None else list(ids)
        if not ids and (count is None or count == len(self.ids or ())):
            self.ids = ids if self.ids is None else self.ids  # Nothing is new.
        elif not self.ids:
            self._begin(ids, count, ending)
        elif ids is None or count is None:
            self.known = False
        else:
            self._go_on(self.ids, ids, count, ending)

    def _begin(self, ids: list[int] | None, count: int | None, ending: Any) -> None:
        self.ids = ids
        self.whole = ids is None or count is None or count == len(ids)
        self.known = self.known and (self.whole or ending is not None)

    def _go_on(self, before: list[int], ids: list[int], count: int, ending: Any) -> None:
        has_all = len(ids) == count and ids[: len(before)] == before
        new_alone = len(before) + len(ids) == count
        if self._new_alone is None and new_alone and _may_be_all_but_a_stop(before, ids, ending):
            self.known = False
        if not (has_all or new_alone) or self._new_alone not in (None, new_alone):
            self.known = False
        self._new_alone = new_alone
        if new_alone:
            before += ids
        else:
            self.ids = ids


def kind_of(ending: Any) -> Any:
    """What a finish_reason says: "stop", "length" or "abort"."""
    return ending.get("type") if isinstance(ending, Mapping) else ending


def _may_be_all_but_a_stop(before: list[int], ids: list[int], ending: Any) -> bool:
    """Whether the ids of a last event may be all so far, less a stop that was cut off them."""
    matched = ending.get("matched") if isinstance(ending, Mapping) else None
    if kind_of(ending) != "stop" or (isinstance(matched, int) and ids[-1:] == [matched]):
        return False
    common = min(len(before), len(ids))
    return ids[:common] == before[:common]
