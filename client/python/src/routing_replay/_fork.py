"""What is said when the process is forked.

gRPC lives through a fork only if no call is going on, and its own handler runs Python in the child before the
interpreter is ready for that. So what makes calls in the background registers here, to rest before and to go on after.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from typing import Protocol

# Seconds for which no other thread asks for the GIL once the forking thread holds it: gRPC's handler in the child would
# wait for ever for the thread that had asked.
_UNDISTURBED = 0.3


class Forked(Protocol):
    """Methods of what registers: called in the thread that forks."""

    def _before_fork(self) -> None: ...

    def _after_fork_in_parent(self) -> None: ...

    def _after_fork_in_child(self) -> None: ...


_registered: weakref.WeakSet[Forked] = weakref.WeakSet()
_switch_interval: float | None = None
_installed = False


def register(forked: Forked) -> None:
    """Until it is garbage."""
    _registered.add(forked)


def note_channel() -> None:
    """Said after a channel was made: what is registered then runs before gRPC's own handler, which stops all calls and
    which gRPC registers with its first channel (handlers run last-registered-first)."""
    global _installed
    if not _installed:
        _installed = True
        os.register_at_fork(before=_before)


def _before() -> None:
    global _switch_interval
    for forked in list(_registered):
        forked._before_fork()
    _switch_interval = sys.getswitchinterval()
    # Whoever waits for the GIL asks for it when it was not passed on for one interval. Taking it anew here starts the
    # interval of every waiting thread anew.
    sys.setswitchinterval(max(_switch_interval, _UNDISTURBED))
    time.sleep(2 * _switch_interval)


def _restore_interval() -> None:
    global _switch_interval
    if _switch_interval is not None:
        sys.setswitchinterval(_switch_interval)
        _switch_interval = None


def _after_in_parent() -> None:
    _restore_interval()
    for forked in list(_registered):
        forked._after_fork_in_parent()


def _after_in_child() -> None:
    _restore_interval()
    for forked in list(_registered):
        forked._after_fork_in_child()


os.register_at_fork(after_in_parent=_after_in_parent, after_in_child=_after_in_child)
