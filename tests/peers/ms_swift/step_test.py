"""ms-swift's own training with the README's two lines: MegatronGRPOTrainer.train_step on two ranks over two rollouts,
from the answers of its vLLM server to the optimizer, with answers whose routes are missing, and an evaluation."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any

import numpy as np
import routing_replay as rr
import sides
from common.ranks import on_ranks
from gpt import Layout

LAYOUT, ROLES = Layout(tp=2), ("actor", "reference")
LOST, SHORT = 1, 4  # The numbers of two answers: for LOST the engine returns no routes, for SHORT all but the last row.


def watched(trainer: Any) -> list[dict[str, Any]]:
    """Returns a list that gets an entry for each rollout: what is in its batches, and what is in the service before the
    trainer trains on them."""
    rollouts, build = [], trainer._build_rollout_buffer

    def built(data_iterator: Any) -> Any:
        made = build(data_iterator)
        batches = [batch for step in made for batch in step]
        said = [batch["grpo_batch"].routes for batch in batches]
        rollouts.append(
            {
                "routes": [key for batch in batches for key in batch if "rout" in key],
                "handles": [handle for one in said for handle in one["sequences"]],
                "tokens": [tokens for one in said for tokens in one["tokens"]],
                "there": {
                    sample.handle: [span.version for span in sample.weights]
                    for sample in rr.Client().run(sides.RUN).list()
                },
            }
        )
        return made

    trainer._build_rollout_buffer = built
    return rollouts


def chosen(trainer: Any) -> dict[str, Counter]:
    """Counts the choices of each model's routers since the last call, and forgets them."""
    found = {}
    for role in ROLES:
        maps = getattr(trainer.seen, role).maps
        found[role] = sides.counted({layer: [one.numpy() for one in calls] for layer, calls in maps.items()})
        maps.clear()
    return found


def train() -> Any:
    """Makes two rollouts, and two training steps on each. Between the two steps of the first there is an evaluation
    with a rollout of its own, which is started as in trainer.evaluate."""
    sides.with_lines()
    server = sides.Server(lost=(LOST,), short=(SHORT,))
    trainer = sides.trainer_of(LAYOUT, "full", server)
    score, carried = trainer._score_completions, []

    def scored(samples: Any) -> Any:
        carried.extend(sample.routed_experts for sample in samples)
        return score(samples)

    trainer._score_completions = scored
    rollouts, prompts, [model] = watched(trainer), sides.prompts(2), trainer.wrapped_models
    results = []

    def step() -> None:
        results.append(trainer.train_step(prompts))
        trainer.state.iteration += 1  # ms-swift's own run_train_step does this, too.

    step()
    first = chosen(trainer)
    model.eval()
    trainer._replace_data_iterator(prompts)
    model.train()
    chosen(trainer)
    step()
    found = [{role: counts + first[role] for role, counts in chosen(trainer).items()}]
    step()
    step()
    found.append(chosen(trainer))
    assert all(successful for _, _, successful in results)
    assert all(routes is None for routes in carried)
    return rollouts, found, server.answered, server.synced


class StepTest(unittest.TestCase):
    def test_two_rollouts(self) -> None:
        with rr.local_server():
            ranks = on_ranks(LAYOUT.tp, train)
            self.check(ranks)

    def check(self, ranks: list[Any]) -> None:
        answered, synced = ranks[-1][2:]
        evaluated = sides.SAMPLES // 2
        self.assertEqual(len(answered), 2 * sides.SAMPLES + evaluated)
        # The engine got new weights before each of the three rollouts (the second is the evaluation).
        self.assertEqual(synced, 3)
        for rollouts, *_ in ranks:  # All ranks of the replica have the same batches.
            self.assertEqual([len(one["handles"]) for one in rollouts], [sides.SAMPLES, evaluated, sides.SAMPLES])
            self.assertEqual([one["routes"] for one in rollouts], [[], [], []])
            self.assertEqual([tokens for one in rollouts for tokens in one["tokens"]], answered)
            for one, other in zip(rollouts, ranks[0][0], strict=True):
                self.assertEqual(one["handles"], other["handles"])
        first, evaluation, second = ranks[0][0]
        self.assertEqual([i for i, handle in enumerate(first["handles"]) if handle == 0], [LOST, SHORT])
        before = {*first["handles"], *evaluation["handles"]} - {0}
        self.assertEqual(set(evaluation["there"]), before)
        self.assertEqual(set(second["there"]), {*second["handles"]})  # Earlier samples are released.
        for one, version in ((first, 0), (evaluation, 1), (second, 2)):
            self.assertEqual([one["there"][handle] for handle in {*one["handles"]} - {0}][:1], [[version]])
        tokens = [one for i, one in enumerate(answered[: sides.SAMPLES]) if i not in (LOST, SHORT)]
        for number, recorded in enumerate((tokens, answered[-sides.SAMPLES :])):
            told = sides.recorded(recorded, times=1)
            seen = {role: sum((rank[1][number][role] for rank in ranks), start=Counter()) for role in ROLES}
            thrice = Counter({row: 3 * count for row, count in told.items()})  # Log-probabilities, forward, recompute.
            self.assertEqual((thrice - seen["actor"]).total(), 0)
            self.assertGreater((told - seen["reference"]).total(), told.total() // 4)  # It routes live.
            print(f"rollout {number}: {told.total()} rows and layers as recorded in each pass", flush=True)

    def test_rows_in_the_service(self) -> None:
        """The rows in the service must be the engine's routes, stored with the tokens of each sample."""
        with rr.local_server():
            [(handles, answered)] = on_ranks(1, rectangles)
            run = rr.Client().run(sides.RUN)
            for handle, tokens in zip(handles, answered, strict=True):
                stored = run.read_one(handle)
                self.assertEqual((stored.status, stored.num_tokens), ("OK", len(tokens)))
                np.testing.assert_array_equal(np.sort(stored.rows), np.sort(sides.routes(tokens)[:, 1:]))


def rectangles() -> Any:
    """Makes one step on one rank with batches that are not packed. As with LoRA, reference and teacher are the actor
    itself with its adapter off; here it has no adapter."""
    sides.with_lines()
    server = sides.Server()
    said = {"padding_free": False, "_teacher_use_disable_adapter": True}
    trainer = sides.trainer_of(Layout(), "none", server, **said)
    trainer.args.tuner_type, trainer.peft_models = "lora", []
    rollouts = watched(trainer)
    trainer.train_step(sides.prompts(2))
    told, maps = sides.recorded(server.answered, times=1), trainer.seen.actor.maps
    # Each micro-batch passes through the model as reference, as teacher and as actor. Only the actor replays.
    for first, live in ((0, True), (1, True), (2, False)):
        seen = sides.counted({layer: [one.numpy() for one in calls[first:12:3]] for layer, calls in maps.items()})
        missing = (told - seen).total()
        assert missing > told.total() // 4 if live else missing == 0, (first, missing, told.total())
    return rollouts[0]["handles"], server.answered


if __name__ == "__main__":
    unittest.main()
