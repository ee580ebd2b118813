"""Reads from a service, by routing_replay's calls."""

from __future__ import annotations

from typing import Any

from routing_replay import _native
from routing_replay._calls import Operation
from routing_replay.errors import FailedPreconditionError, InvalidArgumentError

from routing_replay_trainer import errors

_ENDLESS = 1e9  # Seconds. A call takes no infinity.

_native.declare(rrt_fetch_read="ppp", rrt_inspect_read="ppp")


def read(function: str, reading: Any, run: Any, seconds: float) -> None:
    """Blocks until it has come into `reading` (its `pointer`), for at most so many seconds. Raises what the service
    and its connection raise, and this package's errors for arguments that are wrong and for a sample that cannot be
    replayed."""
    native = run.native
    operation = Operation(
        getattr(_native.lib, function),
        (reading.pointer, native.pointer),
        (),
        lambda: None,
        timeout=min(max(seconds, 0.0), _ENDLESS),
        kept=(reading, native),
    )
    try:
        operation.wait()
    except InvalidArgumentError as error:
        raise errors.InvalidArgumentError(error.message, **error._detail) from None
    except FailedPreconditionError as error:
        if error.sample is None:
            raise
        raise errors.FailedPreconditionError(error.message, **error._detail) from None
