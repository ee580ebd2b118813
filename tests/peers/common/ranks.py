"""Runs the ranks of one torch.distributed group (gloo). Each rank is a forked process, so that modules are imported
only once, before the fork."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

LIMIT = 600.0  # Seconds within which a rank must return; enough for busy machines.


def on_ranks(world: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls `body(*arguments)` on each of `world` ranks, with torch.distributed initialized and RANK, WORLD_SIZE and
    LOCAL_RANK in the environment. Returns the results; raises AssertionError with the traces of failed ranks."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, world, folder, theirs, body, arguments), daemon=True)
            process.start()
            theirs.close()
            ends.append((process, ours))
        results, wrong = [], []
        for rank, (process, ours) in enumerate(ends):
            said = ("no result", None)
            try:
                # When one rank has failed, the others get only 10 s: they soon fail, too.
                if ours.poll(10.0 if wrong else LIMIT):
                    said = ours.recv()
            except EOFError:
                said = ("ended without a result", None)
            if said[0] is not None:
                wrong.append(f"rank {rank}: {said[0]}")
                process.kill()
            results.append(said[1])
            process.join()
    assert not wrong, "\n".join(wrong)
    return results


def _rank(rank: int, world: int, folder: str, end: Any, body: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        said = (None, body(*arguments))
        torch.distributed.barrier()
    except BaseException:
        said = (traceback.format_exc(), None)
    end.send(said)
    end.close()
    os._exit(0)  # An ordinary exit might hang, because threads of gloo may still wait for a rank that has ended.
