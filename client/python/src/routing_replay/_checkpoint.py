"""Runs to directories and back. The rules are all in the core; here is only who asks, reads and appends.

Both are written once, as steps for a run of any kind: what is yielded is what its method gave, the answer itself or, in
an event loop, something to await. Whoever drives them (`drive` here and in routing_replay.aio.steps) sends the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from routing_replay import _calls, _core, _read, _values
from routing_replay.errors import AlreadyExistsError
from routing_replay.types import (
    AppendOutcome,
    CheckpointOutcome,
    CheckpointProgress,
    Producer,
    ReleaseOutcome,
    RestoreOutcome,
    SampleLike,
    SampleRead,
)

if TYPE_CHECKING:
    from routing_replay import aio
    from routing_replay.run import Run

    AnyRun = Run | aio.Run

T = TypeVar("T")
Steps = Generator[Any, Any, T]
OnProgress = Callable[[CheckpointProgress], None]
Directory = str | os.PathLike[str]

_DAY = 86400.0


def drive(steps: Steps[T]) -> T:
    """Of a run whose methods give the answer itself."""
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as end:
            return end.value


def export(
    run: AnyRun,
    directory: Directory,
    groups: tuple[int, int] | None,
    producer: Producer,
    drop_missing: bool,
    release_awaiting: bool,
    timeout: float,
    on_progress: OnProgress | None,
) -> Steps[CheckpointOutcome]:
    options: dict[str, Any] = {
        "directory": os.fspath(directory),
        "producer": producer,
        "drop_missing": bool(drop_missing),
        "release_awaiting": bool(release_awaiting),
    }
    _set_groups(options, groups)
    core: _core.Export = yield run._work(partial(_core.Export, run._opened.core, options))
    # Only now: until here another export could have released what the list has.
    states = yield run.list(groups=None if drop_missing else groups, producer=producer)
    yield run._work(partial(core.on_list, _calls.states_for_core(states), run._opened.lives.whole()))
    while True:
        names, progress = yield run._work(core.next)
        if on_progress is not None:
            on_progress(CheckpointProgress(**progress))
        if not names:
            break
        found = yield run.stat_many(names, producer=producer)
        reader = yield from _read_all(run, names, producer, timeout)
        yield run._work(partial(core.on_rows, _calls.states_for_core(found), reader))
    # What was not there any more was released: DataLossError if it was lost with the run.
    yield run.list(groups=(0, 0), producer=producer)
    outcome = yield run._work(core.finish)
    released = yield from _checkpointed(run, outcome.pop("awaited"), outcome.pop("awaited_content_ids"), producer)
    core.raise_unread()
    return CheckpointOutcome(**outcome, released=released.samples)


def source(directory: Directory, groups: tuple[int, int] | None) -> _core.Import:
    options: dict[str, Any] = {"directory": os.fspath(directory)}
    _set_groups(options, groups)
    return _core.Import(options)


def _set_groups(options: dict[str, Any], groups: tuple[int, int] | None) -> None:
    if groups is not None:
        options["groups"] = list(_values.row_ranges([groups], "groups")[0])


def restore(source: _core.Import, run: AnyRun, timeout: float, on_progress: OnProgress | None) -> Steps[RestoreOutcome]:
    contents = source.contents()
    names, producer = contents["samples"], contents["producer"]
    conflicts: list[AppendOutcome] = []

    def on_outcome(outcome: AppendOutcome) -> None:
        if outcome.conflicting_rows:
            conflicts.append(outcome)

    # An append that waits longer than the queue takes would be dropped: rows that are marked as unrecorded.
    appender = run.appender(queue_timeout=_DAY, on_outcome=on_outcome)
    appended = size = index = 0
    try:
        for some in _calls.names_in_calls(names):
            found = yield run.stat_many(some, producer=producer)
            states = {state.sample: state for state in found}
            for name in some:
                there = [states[name]] if name in states else []
                compare = yield run._work(partial(source.begin, index, _calls.states_for_core(there)))
                index += 1
                if compare:
                    asked = SampleRead(name, rows=tuple((begin, end) for begin, end in compare))
                    reader = yield from _read_all(run, [asked], producer, timeout)
                    yield run._work(partial(source.compare, reader))
                plans = 0
                while (taken := (yield run._work(partial(source.take_plan, run._opened.core)))) is not None:
                    plan, plan_bytes = taken
                    yield appender._enqueue(plan, name)
                    size += plan_bytes
                    plans += 1
                appended += plans > 0
                if on_progress is not None:
                    on_progress(CheckpointProgress(index, len(names), size))
        yield appender.flush(_DAY)
    finally:
        yield appender._abandon()  # With an error nobody waits for what is under way.
    if conflicts:
        first = conflicts[0]
        raise AlreadyExistsError(
            f"sample {first.sample}: {first.conflicting_rows} rows were appended by somebody else meanwhile, with other"
            " routes",
            reason="CONFLICTING_ROWS",
            sample=first.sample,
        )
    return RestoreOutcome(run.name, len(names), appended, size)


def _read_all(run: AnyRun, samples: Iterable[SampleLike], producer: Producer, timeout: float) -> Steps[_core.Reader]:
    reader = _read.make_reader(run._opened.core, samples, None, producer, False)
    yield run._read_into(reader, timeout)
    return reader


def _checkpointed(run: AnyRun, samples: list[str], content_ids: list[int], producer: Producer) -> Steps[ReleaseOutcome]:
    ids = iter(content_ids)
    outcomes = []
    for names in _calls.names_in_calls(samples):
        call = _calls.release(run.name, "checkpointed", names, None, producer, list(islice(ids, len(names))))
        outcomes.append((yield run._do(call)))
    return _calls.sum_of(outcomes)
