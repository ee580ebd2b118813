"""Puts a replay around the forward steps of a schedule that a framework calls. Does not need torch."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from routing_replay_trainer._core import invalid
from routing_replay_trainer._micro_batch import expected, lengths_and_tokens, of_megatron, on_host
from routing_replay_trainer.collective import Collective, share

_TAKEN = ("forward_step_func", "data_iterator", "num_microbatches")


def replayed(
    replay: Any,
    forward_backward_func: Callable[..., Any],
    describe: Callable[[Any], Mapping[str, Any] | None],
    *,
    peek: Callable[[Any, int], Any] | None = None,
    ranks: Collective | None = None,
) -> Callable[..., Any]:
    """Wraps Megatron's forward_backward_func so that every forward step runs inside `Replay.micro_batch`. Each call of
    the result begins a step with all samples, announces all micro-batches so that threads can prefetch, and ends the
    step. If the previous step had all samples of this call, that step continues: for example, training passes continue
    the step of the log-probability pass.

    replay: the result of `attach`
    describe: function that is called before the schedule, once with each batch of `next(data_iterator)`. It returns the
        arguments of `Replay.micro_batch` for the batch, or None if the batch shall route live (for example that of a
        reference model). It may remove from the batch items that the framework does not know
    peek: needed if data iterators are not Python iterators, or are None on some ranks: peek(data_iterator, n) returns
        the batch that is n batches after the next one
    ranks: a collective of the replica's ranks; needed if some of them have no data iterator. Such a rank gets what
        `describe` returns on another rank, with lengths, without tokens. num_microbatches must be the same on all ranks

    forward_only=True of the schedule is passed to `micro_batch`, unless `describe` sets it. If the iterators give no
    batches, or fewer than num_microbatches, InvalidArgumentError is raised before anything runs, and the other ranks of
    the replica are told that this rank cannot take part (`Replay.stay_away`). If the schedule raises an exception, the
    step is given up (`Replay.abandon_step`) and the exception is passed on.
    """

    def run(*positional: Any, **schedule: Any) -> Any:
        if positional or not set(_TAKEN) <= schedule.keys():
            raise invalid("forward_backward_func", f"takes only keyword arguments, and needs {', '.join(_TAKEN)}")
        forward_step_func, data_iterator, num_microbatches = (schedule[name] for name in _TAKEN)
        listed = isinstance(data_iterator, (list, tuple))
        iterators = list(data_iterator) if listed else [data_iterator]
        only = {"forward_only": True} if schedule.get("forward_only") else {}
        try:
            described = None
            if ranks is None or all(hasattr(iterator, "__next__") for iterator in iterators):
                batches, iterators = _batches(iterators, num_microbatches, peek)
                # A copy to the host inside a forward step would wait for all work queued on the device.
                described = [None if batch is None else only | on_host(batch) for batch in map(describe, batches)]
            if ranks is not None:
                shared = share(ranks, None if described is None else list(map(_without_tokens, described)))
                described = shared if described is None else described
            assert described is not None
            replays = [batch for batch in described if batch is not None]
            begun = _step(replays)
            begun["step"] = _name(replay, begun["sequences"])
        except Exception as error:
            replay.stay_away(error)
            raise
        places: Counter[tuple[int, int]] = Counter()  # Number of micro-batches that each model chunk has begun.

        def forward_step(iterator: Any, model: Any, *more: Any) -> Any:
            chunk = id(iterator), id(model)
            batch = described[places[chunk]]
            places[chunk] += 1
            if batch is None:
                return forward_step_func(iterator, model, *more)
            with replay.micro_batch(**batch):
                return forward_step_func(iterator, model, *more)

        schedule |= {"forward_step_func": forward_step, "data_iterator": iterators if listed else iterators[0]}
        if not replays:
            return forward_backward_func(**schedule)
        replay.begin_step(**begun)
        try:
            replay.prefetch(replays)
            result = forward_backward_func(**schedule)
        except BaseException:
            replay.abandon_step()
            raise
        replay.end_step()
        return result

    return run


def micro_batch_index(chunk: int, scheduled: Iterable[int | None], given: int | None) -> int:
    """Returns the index of the micro-batch that a chunk runs. Raises InvalidArgumentError if indices differ.

    scheduled: the index that the schedule passed to each layer of the chunk; None if it passed none
    given: the index from the caller; None leaves it to the schedule
    """
    known = {number for number in scheduled if number is not None and number >= 0}  # Layers start with -1.
    if len(known) > 1:
        raise invalid("index", f"the layers of chunk {chunk} were passed different micro-batches: {sorted(known)}")
    if given is None and not known:
        raise invalid("index", f"not given, and no schedule has passed it to the layers of chunk {chunk}: give index")
    index = known.pop() if known else given
    if given is not None and given != index:
        raise invalid(
            "index",
            f"{given}, but the schedule runs micro-batch {index} (if there is no schedule, pass schedule=False)",
        )
    return index


def _batches(iterators: list[Any], count: int, peek: Callable[[Any, int], Any] | None) -> tuple[list[Any], list[Any]]:
    """Returns the next batches of the first iterator, and iterators for the schedule that will return the same
    batches."""
    if peek is not None:
        return [peek(iterators[0], place) for place in range(count)], iterators
    if not iterators or any(not hasattr(iterator, "__next__") for iterator in iterators):
        kinds = ", ".join(type(iterator).__name__ for iterator in iterators)
        raise invalid(
            "data_iterator",
            f"{kinds or 'none'} gives no batches to describe: every rank and model chunk needs a Python iterator "
            "here; otherwise give `peek`",
        )
    held = [_next(iterator, count) for iterator in iterators]
    if len(held[0]) < count:
        raise invalid("data_iterator", f"gives {len(held[0])} batches, and num_microbatches is {count}")
    return held[0], [iter(batches) for batches in held]


def _next(iterator: Iterator[Any], count: int) -> list[Any]:
    batches = []
    with contextlib.suppress(StopIteration):
        for _ in range(count):
            batches.append(next(iterator))  # A for loop would need __iter__, which RerunDataIterator lacks.
    return batches


_BEGUN: weakref.WeakKeyDictionary[Any, tuple[object, set[Any]]] = weakref.WeakKeyDictionary()


def _name(replay: Any, sequences: list[Any]) -> object:
    """Returns the argument `step` of begin_step: the previous one if that step had all samples of these sequences, so
    that it continues; else a new one."""
    samples = {fetch.sample for fetch in expected(sequences, None, None, {}) if not fetch.live}
    name, before = _BEGUN.get(replay, (None, set()))
    if name is None or not samples <= before:
        name = object()
        _BEGUN[replay] = name, samples
    return name


def _step(micro_batches: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns arguments of begin_step for all micro-batches: their sequences, and lengths and tokens if known."""
    step: dict[str, Any] = {"sequences": [sequence for batch in micro_batches for sequence in batch["sequences"]]}
    known = [_known(**batch) for batch in micro_batches]
    if all(lengths is not None for lengths, _ in known):
        step["lengths"] = [length for lengths, _ in known for length in lengths]
        tokens = [ids for lengths, listed in known for ids in (listed or [None] * len(lengths))]
        if any(ids is not None for ids in tokens):
            step["tokens"] = tokens
    return step


def _without_tokens(batch: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    return {name: value for name, value in batch.items() if name != "tokens"} | {"lengths": _known(**batch)[0]}


def _known(
    sequences: Any, tokens: Any = None, packed_seq_params: Any = None, lengths: Any = None, **layout: Any
) -> tuple[list[int] | None, list[Any] | None]:
    return lengths_and_tokens(sequences, *of_megatron(tokens, packed_seq_params, lengths, layout))
