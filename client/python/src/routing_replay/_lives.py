"""Which making of a run is meant: Python objects over the C core."""

from __future__ import annotations

from routing_replay._core import _lib, _make


class Lives:
    """rr_lives: which making of a run is meant, by server. A life of 0 is not known. Thread-safe."""

    __slots__ = ("pointer",)

    def __init__(self, servers: int = 1) -> None:
        self.pointer: int | None = None
        self.pointer = _make(_lib.rr_lives_new, servers)

    def __del__(self) -> None:
        _lib.rr_lives_free(self.pointer)

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
