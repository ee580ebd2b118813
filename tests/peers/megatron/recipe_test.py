"""Runs the README's recipe for Megatron-LM as printed, with Megatron-Core's own models and a server."""

from __future__ import annotations

import contextlib
import functools
import unittest
from typing import Any

import gpt
import recipes
import routing_replay as rr
import steps
import torch
from common.ranks import on_ranks
from gpt import Layout


class ByHand:
    """Takes the place of our replay, which `attach` returns, in the recipe. It sets Megatron's own RouterReplay."""

    def __init__(self, chunk: Any, ids: Any) -> None:
        self._chunk, self._around, self._index = chunk, gpt.told_by_hand([chunk], ids), -1

    def micro_batch(self, *_: Any, **__: Any) -> Any:
        self._index += 1
        return self._around(self._index, self._chunk, None)

    def begin_step(self, *_: Any, **__: Any) -> None: ...

    def end_step(self) -> None: ...

    def metrics(self, reduce: Any) -> dict[str, float]:
        return {}


def train(
    step: steps.Step, chunk: Any, replay: Any, recipe: dict[str, Any], *, fails: bool = False
) -> tuple[Any, dict[str, float]]:
    """Makes one training step with the recipe, and with the functions that a user of the recipe writes."""
    batches = step.rollout.micro_batches

    def iterator() -> Any:
        for batch in batches:
            own = batch.on_this_rank()
            yield {
                "samples": batch.samples,
                "tokens": own,
                "position_ids": torch.arange(own.shape[1]).expand_as(own),
                "packed_seq_params": batch.packed,
            }

    def loss_func(logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        if fails:
            raise RuntimeError("no memory")
        logits.div_(0.7)  # Frameworks apply their temperature in this way: in place, possibly on a view.
        return logits.float().square().mean(), {}

    return recipe["train_step"](
        replay,
        functools.partial(recipe["forward_step"], replay, loss_func),
        [sample for batch in batches for sample in batch.samples],
        [tokens for batch in batches for tokens in batch.documents],
        data_iterator=iterator(),
        model=chunk,
        num_microbatches=len(batches),
        seq_length=16,
        micro_batch_size=2,
        forward_only=False,
    )


def work(layout: Layout, packed: bool, recompute: str) -> int:
    recipe = recipes.run("Megatron-LM")
    step = steps.Step(layout, packed=packed, recompute=recompute)
    rollout = step.rollout
    if torch.distributed.get_rank() == 0:
        with rr.Client() as client:
            run = client.run("grpo-42", rr.Geometry(**rollout.geometry))
            for sample, tokens in rollout.samples.items():
                rows = rollout.routes[tokens[:-1]].astype("int32")
                run.put(sample, rows, tokens=tokens[:-1], num_tokens=len(tokens))
    replay = recipe["attach"](step.chunks)  # On other ranks than 0, this waits until rank 0 has created the run.
    torch.distributed.barrier()
    if layout.pp == 1:  # With pipeline stages, some ranks would wait for those that have failed.
        with steps.CHECK.assertRaisesRegex(RuntimeError, "no memory"):
            train(step, step.chunks[0], replay, recipe, fails=True)
        step.calls.maps.clear()
    _, metrics = train(step, step.chunks[0], replay, recipe)
    steps.CHECK.assertEqual(metrics["routing_replay/fallback_fraction"], 0)
    ids = step.ids(step.as_recorded())
    replay.detach()
    peer = step.peer()
    train(step, peer[0], ByHand(peer[0], ids), recipe)
    step.compare_gradients(gpt.gradients(peer))
    return step.rows


class RecipeTest(unittest.TestCase):
    def test_as_it_is_printed(self) -> None:
        for layout, packed, recompute in (
            (Layout(tp=2, pp=2), True, "moe"),
            (Layout(tp=2, cp=2), False, "full"),
        ):
            with self.subTest(str(layout)), contextlib.ExitStack() as stack:
                stack.enter_context(rr.local_server())
                self.assertGreater(min(on_ranks(4, work, layout, packed, recompute)), 0)


if __name__ == "__main__":
    unittest.main()
