"""NeMo-RL's step through the service with the README's line: its rollout, its batch, the passes of its `Policy`, and
the release."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import routing_replay as rr
import sides
from common.ranks import on_ranks
from gpt import Layout
from routing_replay_trainer.integrations import _shared
from routing_replay_trainer.integrations.nemo_rl import driver  # noqa: F401  Makes NeMo-RL release trained samples.

BAD, UNANSWERED, TWO_TURNS, LOST = 2, 3, 1, 5
CHECK = unittest.TestCase()


def check_batch(data: Any, answers: list[list[int]]) -> list[int]:
    """Checks that the batch has handles in place of routes: each token that the engine has processed has the handle of
    its sample, and later tokens have 0. Returns the handle of each sample."""
    column = data["routed_experts"]
    CHECK.assertEqual((tuple(column.shape), str(column.dtype)), ((*data["input_ids"].shape, 1, 1), "torch.int64"))
    columns = column[:, :, 0, 0].tolist()
    for index, (own, answer, length) in enumerate(zip(columns, answers, data["input_lengths"].tolist(), strict=True)):
        none = {BAD: 0, UNANSWERED: -1}.get(index)
        if none is None:
            CHECK.assertEqual(own, [own[0]] * len(answer) + [0] * (len(own) - len(answer)))
            CHECK.assertEqual(length, len(answer) + 3)  # Tokens of the environment.
        else:
            CHECK.assertEqual(own[0], none)
    handles = [own[0] for own in columns]
    CHECK.assertEqual(len(set(handles) - {0, -1}), 6)
    return handles


def check_lost(run: Any) -> None:
    """A sample whose rows could not be appended must still get a handle, for which the service has no rows, so that the
    trainer counts it as a fallback."""
    request = sides.Engine().answer([20, 10, 11])
    away = mock.patch.object(rr.Run, "put", side_effect=rr.errors.UnavailableError("away"))
    # Without this, the next attempt would be made only after a minute.
    soon = mock.patch.object(_shared, "_not_before", 0.0)
    with soon, away as put, CHECK.assertLogs("routing_replay_trainer", "ERROR"):
        handles = [sides.of_rollout._put(request, 0) for _ in range(2)]
        put.assert_called_once()
    for handle in handles:
        CHECK.assertNotEqual(handle, 0)
        CHECK.assertEqual(run.read_one(handle).status, "NOT_FOUND")


def body() -> Any:
    layout = Layout()
    layout.start()
    sides.install(True)
    sides.of_rollout._open()
    [run] = sides.of_rollout._opened
    check_lost(run)
    os.environ["ROUTING_REPLAY_MAX_FALLBACK"] = "0.5"  # Batches are small.
    config = sides.config_of(layout, True)
    for step in range(2):
        data, answers = sides.rollout(config, bad=True)
        handles = check_batch(data, answers)
        good = [index for index in range(8) if index not in (BAD, UNANSWERED)]
        for index in good:
            stored = run.read_one(handles[index])
            CHECK.assertEqual((stored.status, stored.num_tokens), ("OK", len(answers[index])))
            np.testing.assert_array_equal(stored.rows, sides.routes(answers[index])[:, 1:])
        before = {one.handle for one in run.list()} - set(handles)
        # The service also has the first turn of sample 1, which is a part of its second turn, and a turn that is in no
        # batch.
        CHECK.assertEqual(len(before), 2)
        sides.rollout(config)  # A validation.
        run.release([handles[LOST]])
        good.remove(LOST)
        policy = sides.policy_of(config, layout, "full")
        said = sides.passes(policy, data)
        for name, times in (("log-probabilities", 1), ("training", 2)):  # Forward and recompute.
            told = sides.recorded([answers[index] for index in good], times)
            CHECK.assertEqual((told - sides.counted(said[name])).total(), 0, name)
            other = sides.recorded([[token + 1 for token in answers[index]] for index in good], times)
            CHECK.assertGreater((other - sides.counted(said[name])).total(), told.total() // 20)
        replay = sides.of_trainer.replay
        metrics = {name.partition("/")[2]: value for name, value in replay.metrics().items()}
        CHECK.assertEqual(metrics["replayed_rows"], 2 * sum(len(answers[index]) - 1 for index in good))
        CHECK.assertGreater(metrics["step_fallback_samples"], 0)
        replay.detach()
        sides.of_trainer.replay = None
        CHECK.assertEqual(run.list(), [])
        print(f"step {step}: {told.total() // 2} rows and layers as recorded in each pass")
    check_shadow(layout, config)


def check_shadow(layout: Layout, config: Any) -> None:
    """In shadow mode, routers choose by themselves, and metrics compare their choice with the record."""
    os.environ["ROUTING_REPLAY_MODE"] = "shadow"
    data, answers = sides.rollout(config)
    said = sides.passes(sides.policy_of(config, layout, "none"), data)
    told, metrics = sides.recorded(answers), sides.of_trainer.replay.metrics()
    CHECK.assertGreater((told - sides.counted(said["training"])).total(), told.total() // 4)
    for layer in sides.MOE:  # These counts cover every row of the record.
        CHECK.assertGreater(
            metrics[f"routing_replay/live_mismatch/layer_{layer:02}"], told.total() // sides.LAYERS // 2
        )
        CHECK.assertLess(metrics[f"routing_replay/overlap/layer_{layer:02}"], 0.5)
    del os.environ["ROUTING_REPLAY_MODE"]


class StepTest(unittest.TestCase):
    def test_two_steps(self) -> None:
        with tempfile.TemporaryDirectory() as folder, rr.local_server():
            sides.checkpoint(Path(folder))
            on_ranks(1, body)


if __name__ == "__main__":
    unittest.main()
