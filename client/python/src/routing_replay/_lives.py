"""Which making of a run is meant: Python objects over the C core."""

from __future__ import annotations

from routing_replay._core import _Handle, _lib, _make


class Lives(_Handle):
    """rr_lives: which making of a run is meant, by server. A life of 0 is not known. Thread-safe."""

    __slots__ = ()
    _free = _lib.rr_lives_free

    def __init__(self, servers: int = 1) -> None:
        self.pointer = None
        self.pointer = _make(_lib.rr_lives_new, servers)

    def open(self, server: int, life: int) -> None:
        """The run was opened on a server."""
        _lib.rr_lives_open(self.pointer, server, life)

    def check(self, server: int, run: str, life: int) -> None:
        """DataLossError if an answer is of a run that was made again since it was opened."""
        name = run.encode()
        _lib.rr_lives_check(self.pointer, server, name, len(name), life)

    def whole(self) -> int:
        """One number for all servers; 0 while one is not known."""
        return _lib.rr_lives_whole(self.pointer)
