"""Drives what is written as steps, in an event loop."""

from __future__ import annotations

from routing_replay._checkpoint import Steps, T


async def drive(steps: Steps[T]) -> T:
    """As routing_replay._checkpoint.drive; an error, a cancellation too, goes to the step that waited."""
    answer, error = None, None
    while True:
        try:
            asked = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        answer, error = None, None
        try:
            answer = await asked
        except BaseException as raised:
            error = raised
