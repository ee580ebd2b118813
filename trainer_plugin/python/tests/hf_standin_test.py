"""The Hugging Face face over stand-ins of the MoE blocks of transformers. What needs no torch is in hf_face_test."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import sys
import types
import unittest
from typing import Any
from unittest import mock

import recipes

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import hf_standins
    import torch
    import torch.distributed as dist
    from hf_cases import Choices, Rollout, loss_of, moe_layers, new_model, over
    from hf_r2_cases import RecordCases
    from torch.distributed.fsdp import fully_shard

    import routing_replay_trainer as trainer
    from routing_replay_trainer import hf
    from routing_replay_trainer.hf._replay import Choice
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with torch")
    sys.exit(SKIPPED)


class StandinTest(RecordCases):
    models = hf_standins.MODELS
    graphs = 1

    @over("right")
    def test_a_compiled_model(self, model: Any, rollout: Rollout) -> None:
        """As a whole, hooks included, with layers that are checkpointed."""
        torch._dynamo.reset()
        peer, other = copy.deepcopy(model), Rollout(rollout.layers, "right", seed=1)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        replay = hf.attach(model, source=rollout.source(other))
        compiled = torch.compile(model, backend="aot_eager")
        for one in (rollout, other):
            for each in (model, peer):
                each.zero_grad()
            expected = self.by_hand(peer, one)
            with replay.micro_batch(one.samples, **one.said):
                out, loss = loss_of(compiled, one.call)
            loss.backward()
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
            self.assert_gradients_close(model, peer)
            self.assertEqual(replay.kept, 0)
        replay.detach()

    @over("right")
    def test_the_doctor(self, model: Any, rollout: Rollout) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertTrue(trainer.doctor(model, rollout.call | {"labels": None}))
        self.assertRegex(printed.getvalue(), "routers: .* of transformers: .*\n.*\nshadow pass: .*, at least 100.0% ")
        live = loss_of(model, rollout.call)[0]
        self.assertTrue(torch.equal(loss_of(copy.deepcopy(model), rollout.call)[0], live))

    def test_a_copy_of_the_code_chooses_live_in_a_pickle(self) -> None:
        choice = Choice(3)
        self.assertEqual([int(c.handle) for c in (copy.deepcopy(choice), pickle.loads(pickle.dumps(choice)))], [0, 0])


class RecipeTest(unittest.TestCase):
    """The recipe of the README, with gloo in one process."""

    def setUp(self) -> None:
        self.source: Any = None
        client = types.ModuleType("routing_replay")
        client.Client = lambda: types.SimpleNamespace(run=lambda name, wait: name)  # type: ignore[attr-defined]
        with (
            mock.patch.dict(sys.modules, {"routing_replay": client}),
            mock.patch.object(trainer, "ServiceSource", lambda run: self.source),
        ):
            self.recipe = recipes.run("Hugging Face and FSDP")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def test_train(self) -> None:
        model = new_model(hf_standins.MODELS["Qwen3MoeSparseMoeBlock"])
        rollouts = [Rollout(moe_layers(model), "right", seed=seed) for seed in range(2)]
        peer, logged, seen = copy.deepcopy(model), [], []
        batches = [r.call | {"sample_ids": r.samples} for r in rollouts]

        def loss(logits: torch.Tensor, batch: Any) -> torch.Tensor:
            seen.append(logits.detach())
            return logits[batch["attention_mask"].bool()].square().mean()

        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.source = rollouts[0].source(rollouts[1])
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.recipe["train"](model, optimizer, [batches, batches], loss, logged.append)
        for logits, rollout in zip(seen, rollouts * 2, strict=True):
            with Choices(rollout.forced):
                expected = loss_of(peer, rollout.call)[0]
            torch.testing.assert_close(logits[rollout.call["attention_mask"].bool()], expected)
        self.assertEqual([said["routing_replay/replayed_fraction"] for said in logged], [1.0] * 2)

    def test_no_process_of_a_sequence_decides_alone(self) -> None:
        model = new_model(hf_standins.MODELS["GptOssMLP"])
        rollout = Rollout(moe_layers(model), "packed")
        for missing in ("live", "drop"):
            with self.assertRaisesRegex(trainer.InvalidArgumentError, "agree: .* all 2 ranks") as caught:
                hf.attach(model, source=rollout.source(), missing=missing, ranks={"cp": 0}, cp_size=2)
            self.assertEqual(caught.exception.field, "agree")

    def test_packed_forward(self) -> None:
        model = new_model(hf_standins.MODELS["GptOssMLP"])
        rollout = Rollout(moe_layers(model), "packed")
        zero = torch.zeros(1, 1, dtype=torch.int64)
        ids, positions = (torch.cat([rollout.call[key], zero], 1) for key in ("input_ids", "position_ids"))
        with Choices(rollout.forced), torch.no_grad():
            expected = model(rollout.call["input_ids"]).logits
        for rank in range(2):
            options = {"ranks": {"cp": rank}, "cp_size": 2, "last_row": "live"}
            replay = hf.attach(model, source=rollout.source(), **options)

            def cut(stream: torch.Tensor, rank: int = rank) -> torch.Tensor:
                return stream.chunk(2, 1)[rank]

            with torch.no_grad():
                logits = self.recipe["packed_forward"](replay, model, rollout.samples, ids, positions, cut)
            torch.testing.assert_close(logits[:, : 6 - rank], cut(expected)[:, : 6 - rank])
            replay.detach()


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Without `Cases` itself, which has no models."""
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (StandinTest, RecipeTest)))


if __name__ == "__main__":
    unittest.main()
