"""The Hugging Face interface over stand-ins of transformers' MoE blocks. Tests without torch are in hf_face_test."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import sys
import unittest
from typing import Any

SKIPPED = 77  # CTest's status for a skipped test.
try:
    import hf_standins
    import torch
    from hf_cases import Rollout, loss_of, moe_layers, new_model, over
    from hf_r2_cases import RecordCases
    from routing_replay import errors

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
        """Compiles the whole model, including hooks, with checkpointed layers."""
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

    def test_no_process_of_a_sequence_decides_alone(self) -> None:
        model = new_model(hf_standins.MODELS["GptOssMLP"])
        rollout = Rollout(moe_layers(model), "packed")
        for missing in ("live", "drop"):
            with self.assertRaisesRegex(errors.InvalidArgumentError, "agree: .* all 2 ranks") as caught:
                hf.attach(model, source=rollout.source(), missing=missing, ranks={"cp": 0}, cp_size=2)
            self.assertEqual(caught.exception.field, "agree")


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """All test classes but `Cases` itself, which has no models."""
    return loader.loadTestsFromTestCase(StandinTest)


if __name__ == "__main__":
    unittest.main()
