"""Cases that every model accepted by hf.attach must pass: run over stand-ins (hf_standin_test) and over transformers'
own models (hf_test), on a GPU if torch sees one, otherwise on the CPU."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import unittest
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from routing_replay import errors
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import routing_replay_trainer as trainer
from routing_replay_trainer import hf

EXPERTS, TOP_K, VOCABULARY = 8, 2, 64
LENGTHS = (7, 4)

if torch.cuda.is_available():  # Results are compared bit by bit, so sums must be in a fixed order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device("cuda")


class Choices(TorchFunctionMode):
    """The slow reference. A call of torch.topk for K of E experts returns the ids of the next entry of `forced`. Where
    an entry is negative, it returns the ids that topk has chosen. `chosen` keeps the results of all calls. After the
    last entry of `forced`, the first one is used again."""

    def __init__(self, forced: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.forced = forced
        self.chosen: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = func(*args, **(kwargs or {}))
        if func is not torch.topk or args[0].shape[-1] != EXPERTS or values[1].shape[-1] != TOP_K:
            return values
        ids = values[1]
        if self.forced is not None:
            forced = self.forced[len(self.chosen) % len(self.forced)]
            ids = torch.where(forced < 0, ids, forced)
        self.chosen.append(ids)
        return args[0].gather(-1, ids), ids


class Rollout:
    """Two samples in one micro-batch, a layout, and recorded ids.

    call: the arguments of the model's call
    said: the arguments of micro_batch
    forced: per MoE layer the ids [rows, K] that each row must take, -1 where it must choose live
    """

    def __init__(
        self, layers: list[int], layout: str, seed: int = 0, recorded: list[torch.Tensor] | None = None
    ) -> None:
        random = np.random.default_rng(seed)
        self.layers, self.layout, self.samples = layers, layout, [f"a{seed}", f"b{seed}"]
        self.tokens = [random.integers(1, VOCABULARY, length) for length in LENGTHS]
        width = max(LENGTHS) + 1
        if layout == "packed":
            places = [np.arange(7), np.arange(7, 11)]
            positions = torch.tensor([[*range(7), *range(4)]])
            stream = torch.tensor(np.concatenate(self.tokens)).unsqueeze(0)
            self.call = {"input_ids": stream, "position_ids": positions}
            self.said = {"tokens": stream, "position_ids": positions}
        else:
            first = [0, 0] if layout == "right" else [width - length for length in LENGTHS]
            places = [
                row * width + begin + np.arange(n) for row, (begin, n) in enumerate(zip(first, LENGTHS, strict=True))
            ]
            stream, mask = np.zeros(2 * width, np.int64), np.zeros(2 * width, np.int64)
            stream[np.concatenate(places)], mask[np.concatenate(places)] = np.concatenate(self.tokens), 1
            ids, mask = torch.tensor(stream).view(2, width), torch.tensor(mask).view(2, width)
            self.call = {"input_ids": ids, "attention_mask": mask}
            self.said = {"tokens": ids, "attention_mask": mask}
        self.places = [torch.tensor(place) for place in places]
        rows = self.call["input_ids"].numel()
        if recorded is None:
            recorded = [torch.tensor(random.random((rows, EXPERTS)).argsort(1)[:, :TOP_K].copy()) for _ in layers]
        self.forced = [torch.full((rows, TOP_K), -1) for _ in layers]
        for forced, ids in zip(self.forced, recorded, strict=True):
            for place in self.places:
                forced[place[:-1]] = ids[place[:-1]]

    @property
    def geometry(self) -> dict[str, Any]:
        return {"num_layers": 3, "num_experts": EXPERTS, "top_k": TOP_K, "moe_layers": self.layers}

    def source(self, *others: Rollout) -> trainer.LocalSource:
        source = trainer.LocalSource(self.geometry)
        for rollout in (self, *others):
            rollout.add_to(source)
        return source

    def add_to(self, source: trainer.LocalSource) -> None:
        for sample, tokens, place in zip(self.samples, self.tokens, self.places, strict=True):
            rows = torch.stack([ids[place[:-1]] for ids in self.forced], 1).cpu().numpy()
            source.add(sample, rows, tokens=tokens, num_tokens=len(tokens), layers=self.layers)


def loss_of(model: Any, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Calls the model. Returns the logits of real tokens, and a loss: the mean of their squares."""
    logits = model(**call).logits
    mask = call.get("attention_mask", torch.ones_like(call["input_ids"]))
    logits = logits[mask.bool()]
    return logits, logits.float().square().mean()


def new_model(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make().train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def over(*layouts: str) -> Callable[..., Any]:
    """Makes a test (self, model, rollout) run once for each model of the class and each layout."""

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def each(self: Any) -> None:
            for name in self.models:
                for layout in layouts:
                    with self.subTest(model=name, layout=layout):
                        model = new_model(self.models[name])
                        test(self, model, Rollout(moe_layers(model), layout))

        return each

    return decorated


class Cases(unittest.TestCase):
    """models: functions that each make a model of three layers, by name
    graphs: number of graphs that torch.compile makes of all MoE blocks of a model; None if unknown
    """

    models: ClassVar[dict[str, Callable[[], Any]]] = {}
    graphs: ClassVar[int | None] = None

    @contextlib.contextmanager
    def attached(self, model: Any, rollout: Rollout | None, **options: Any) -> Iterator[Any]:
        """Attaches a replay in which the last row of a sample routes live, as in `by_hand`."""
        source = None if rollout is None else rollout.source()
        replay = hf.attach(model, source=source, **({"last_row": "live"} | options))
        try:
            yield replay
        finally:
            replay.detach()

    def assert_same(self, model: Any, out: torch.Tensor, peer: Any, expected: torch.Tensor) -> None:
        self.assertTrue(torch.equal(out, expected))
        theirs = dict(peer.named_parameters())
        for name, ours in model.named_parameters():
            if ours.grad is None:
                self.assertIsNone(theirs[name].grad, name)
            else:
                self.assertTrue(torch.equal(ours.grad, theirs[name].grad), name)

    def by_hand(self, peer: Any, rollout: Rollout) -> torch.Tensor:
        with Choices(rollout.forced):
            out, loss = loss_of(peer, rollout.call)
            loss.backward()
        return out

    @over("right", "left", "packed")
    def test_the_own_choice(self, model: Any, rollout: Rollout) -> None:
        """A replay of the model's own choice gives the model's result, bit for bit."""
        peer = copy.deepcopy(model)
        with Choices() as live:
            expected, loss = loss_of(peer, rollout.call)
        loss.backward()
        own = Rollout(rollout.layers, rollout.layout, recorded=live.chosen)
        with self.attached(model, own) as replay:
            with replay.micro_batch(own.samples, **own.said):
                out, loss = loss_of(model, own.call)
            loss.backward()
            self.assert_same(model, out, peer, expected)
            self.assertEqual(replay.kept, 0)

    @over("right", "left", "packed")
    def test_given_experts(self, model: Any, rollout: Rollout) -> None:
        """Routers take exactly the recorded experts, with the weights that the model gives them, in forward and
        backward."""
        peer = copy.deepcopy(model)
        expected = self.by_hand(peer, rollout)
        with self.attached(model, rollout) as replay, Choices() as used:
            with replay.micro_batch(rollout.samples, **rollout.said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
        self.assert_same(model, out, peer, expected)
        self.assertEqual(used.chosen, [])  # The replayed method calls our function instead of torch.topk.

    @over("right", "packed")
    def test_checkpointed_layers(self, model: Any, rollout: Rollout) -> None:
        expected = self.by_hand(peer := copy.deepcopy(model), rollout)
        for reentrant in (False, True):
            ours = copy.deepcopy(model)
            ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            with self.attached(ours, rollout) as replay:
                for around in (False, True):
                    ours.zero_grad()
                    with contextlib.ExitStack() as stack:
                        with replay.micro_batch(rollout.samples, **rollout.said):
                            out, loss = loss_of(ours, rollout.call)
                            if around:
                                loss.backward()
                        if not around:
                            self.assertGreater(replay.kept, 0)
                            stack.callback(loss.backward)
                    self.assert_same(ours, out, peer, expected)
                    self.assertEqual(replay.kept, 0)
                replay.end_step()

    @over("right")
    def test_a_checkpoint_around_the_model(self, model: Any, rollout: Rollout) -> None:
        expected = self.by_hand(peer := copy.deepcopy(model), rollout)
        start = torch.zeros((), requires_grad=True)

        def run(reentrant: bool) -> torch.Tensor:
            return checkpoint(lambda _: loss_of(model, rollout.call)[0], start, use_reentrant=reentrant)

        with self.attached(model, rollout) as replay:
            for reentrant in (False, True):
                model.zero_grad()
                with replay.micro_batch(rollout.samples, **rollout.said):
                    out = run(reentrant)
                    out.float().square().mean().backward()
                self.assert_same(model, out, peer, expected)
                self.assertEqual(replay.kept, 0)
            for reentrant in (False, True):
                with replay.micro_batch(rollout.samples, **rollout.said):
                    out = run(reentrant)
                with self.assertRaisesRegex(errors.FailedPreconditionError, "context is closed"):
                    out.float().square().mean().backward()
            with self.assertRaisesRegex(errors.FailedPreconditionError, "waits for its backward part"):
                replay.detach()
            with self.assertRaises(errors.FailedPreconditionError):
                replay.end_step()

    @over("right")
    def test_a_backward_part_that_comes_again(self, model: Any, rollout: Rollout) -> None:
        """A second backward part over the same graph, or one after the end of the step, is an error: the routers that
        it recomputes would choose live."""
        peer = copy.deepcopy(model)
        for reentrant in (False, True):
            ours = copy.deepcopy(model)
            ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            with self.attached(ours, rollout) as replay:
                with replay.micro_batch(rollout.samples, **rollout.said):
                    loss = loss_of(ours, rollout.call)[1]
                loss.backward(retain_graph=True)
                with self.assertRaisesRegex(errors.FailedPreconditionError, "micro-batch 0 of step 0"):
                    loss.backward()
                with replay.micro_batch(rollout.samples, **rollout.said):
                    loss = loss_of(ours, rollout.call)[1]
                with self.assertRaisesRegex(
                    errors.FailedPreconditionError, "never ran|not finished.*must be forward_only"
                ):
                    replay.end_step()
                with self.assertRaisesRegex(errors.FailedPreconditionError, "micro-batch 1 of step 0"):
                    loss.backward()
                # Nothing of the failed step is left: outside of a micro-batch the model routes live.
                self.assertTrue(torch.equal(loss_of(ours, rollout.call)[0], loss_of(peer, rollout.call)[0]))

    @over("right", "left", "packed")
    def test_a_step_is_begun_with_the_tokens_of_its_sequences(self, model: Any, rollout: Rollout) -> None:
        with self.attached(model, rollout) as replay:
            lengths = [len(ids) for ids in rollout.tokens]
            for said in ({"tokens": rollout.tokens}, {"lengths": lengths}, {}):
                self.assertEqual(replay.begin_step(rollout.samples, **said).replayed, 2)
                with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                    loss_of(model, rollout.call)
                replay.end_step()
            with self.assertRaisesRegex(errors.FailedPreconditionError, "TOKENS_MISMATCH"):
                replay.begin_step(rollout.samples, tokens=[ids + 1 for ids in rollout.tokens])
            with self.assertRaisesRegex(errors.FailedPreconditionError, "LENGTH_MISMATCH"):
                replay.begin_step(rollout.samples, lengths=[count + 1 for count in lengths])
            for said in ({"nonsense": 3}, {"padding": {"policy": "nobody"}}):
                with self.assertRaises(errors.InvalidArgumentError) as caught:
                    replay.prefetch([{"sequences": rollout.samples, **rollout.said, **said}])
                self.assertTrue(caught.exception.field.startswith("micro_batch."))

    @over("right")
    def test_a_backward_part_after_detach(self, model: Any, rollout: Rollout) -> None:
        """A backward part after detach is an error, because it may recompute routers, which would choose live."""
        for reentrant in (None, False, True):
            for again in (False, True):
                with self.subTest(reentrant=reentrant, again=again):
                    ours = copy.deepcopy(model)
                    if reentrant is not None:
                        said = {"use_reentrant": reentrant}
                        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs=said)
                    replay = hf.attach(ours, source=rollout.source())
                    with replay.micro_batch(rollout.samples, **rollout.said):
                        loss = loss_of(ours, rollout.call)[1]
                    loss.backward(retain_graph=True)
                    replay.end_step()
                    with replay.micro_batch(rollout.samples, **rollout.said):
                        given_up = loss_of(ours, rollout.call)[1]
                    replay.abandon_step()
                    replay.detach()
                    if again:
                        replay = hf.attach(ours, source=rollout.source())
                    with self.assertRaisesRegex(errors.FailedPreconditionError, "step 0, .* has been detached"):
                        loss.backward()
                    with self.assertRaisesRegex(errors.FailedPreconditionError, "step 1, .* has been detached"):
                        given_up.backward()
                    # The model itself still works.
                    if again:
                        with replay.micro_batch(rollout.samples, **rollout.said):
                            loss = loss_of(ours, rollout.call)[1]
                        loss.backward()
                        replay.end_step()
                        replay.detach()
                    loss_of(ours, rollout.call)[1].backward()

    @over("right")
    def test_a_replay_is_not_copied(self, model: Any, rollout: Rollout) -> None:
        with self.attached(model, rollout) as replay:
            for take in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy({"of": [one]})):
                with self.assertRaisesRegex(errors.FailedPreconditionError, "neither copied nor pickled"):
                    take(replay)
            copied = copy.deepcopy(model)
            self.assertTrue(torch.equal(loss_of(copied, rollout.call)[0], loss_of(model, rollout.call)[0]))

    @over("right")
    def test_what_is_announced_wrongly_is_named(self, model: Any, rollout: Rollout) -> None:
        with self.attached(model, rollout) as replay:
            replay.begin_step(rollout.samples)
            for field, wrong in (
                ("micro_batch.samples", {"sequences": rollout.samples, "samples": 3, **rollout.said}),
                ("lengths", {"sequences": rollout.samples}),
                ("sequences", rollout.said),
                ("sequences", rollout.samples),
            ):
                with self.assertRaises(errors.InvalidArgumentError) as caught:
                    replay.prefetch([wrong])
                self.assertEqual(caught.exception.field, field)

    @over("right")
    def test_a_step_that_is_abandoned(self, model: Any, rollout: Rollout) -> None:
        """Passes without a backward part, in a step whose loss has failed. Their samples are missing, which must not
        affect the next step."""
        expected = self.by_hand(peer := copy.deepcopy(model), rollout)
        with self.attached(model, rollout, missing="live", max_fallback_fraction=0.5) as replay:
            for _ in range(2):
                with replay.micro_batch(["none", "neither"], **rollout.said):
                    loss_of(model, rollout.call)
            self.assertGreater(replay.kept, 0)
            replay.abandon_step()
            self.assertEqual(replay.kept, 0)
            with (
                self.assertRaisesRegex(RuntimeError, "no memory"),
                replay.micro_batch(["none", "neither"], **rollout.said),
                torch.no_grad(),
            ):
                loss_of(model, rollout.call)
                raise RuntimeError("no memory")
            replay.abandon_step()
            with replay.micro_batch(rollout.samples, **rollout.said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
            replay.end_step()
            self.assert_same(model, out, peer, expected)
            metrics = replay.metrics()
            self.assertEqual(metrics["routing_replay/fallback_sequences"], 3 * 2)
            self.assertEqual(metrics["routing_replay/replayed_rows"], sum(LENGTHS) - len(LENGTHS))

    @over("right")
    def test_micro_batches_in_flight(self, model: Any, rollout: Rollout) -> None:
        """Accumulates gradients of two micro-batches. Both forward passes come first, followed by one backward call for
        both, or by one for each."""
        other = Rollout(rollout.layers, "right", seed=1)
        expected = copy.deepcopy(model)
        for one in (rollout, other):
            self.by_hand(expected, one)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        replay = hf.attach(model, source=rollout.source(other))
        for together in (False, True):
            model.zero_grad()
            losses = []
            for one in (rollout, other):
                with replay.micro_batch(one.samples, **one.said):
                    losses.append(loss_of(model, one.call)[1])
            if together:
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward()
            replay.end_step()
            for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
                if theirs.grad is not None:
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7, msg=name)
        replay.detach()

    @over("right")
    def test_compiled_blocks(self, model: Any, rollout: Rollout) -> None:
        """Every call looks up its ids: a graph does not keep the ids that it was compiled with, and layers share a
        graph."""
        torch._dynamo.reset()
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

        peer, other = copy.deepcopy(model), Rollout(rollout.layers, "right", seed=1)
        replay = hf.attach(model, source=rollout.source(other))
        for layer in rollout.layers:
            block_of(decoder_of(model).layers[layer]).compile(backend=backend)
        for one in (rollout, other):
            for each in (model, peer):
                each.zero_grad()
            expected = self.by_hand(peer, one)
            with replay.micro_batch(one.samples, **one.said):
                out, loss = loss_of(model, one.call)
            loss.backward()
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
            self.assert_gradients_close(model, peer)
        self.assertGreaterEqual(len(graphs), 1)
        if self.graphs is not None:
            self.assertEqual(len(graphs), self.graphs)
        replay.detach()

    def assert_gradients_close(self, model: Any, peer: Any) -> None:
        theirs = dict(peer.named_parameters())
        for name, ours in model.named_parameters():
            if theirs[name].grad is not None:
                torch.testing.assert_close(ours.grad, theirs[name].grad, rtol=1e-5, atol=1e-6, msg=name)

    @over("right")
    def test_other_models_are_untouched(self, model: Any, rollout: Rollout) -> None:
        before = copy.deepcopy(model)
        with self.attached(model, rollout) as replay:
            copied = copy.deepcopy(model)
            with Choices() as live:
                alone = loss_of(before, rollout.call)[0]
            self.assertEqual(len(live.chosen), len(rollout.layers))
            for other in (before, copied):
                with replay.micro_batch(rollout.samples, **rollout.said):
                    self.assertTrue(torch.equal(loss_of(other, rollout.call)[0], alone))
            with self.assertRaisesRegex(errors.FailedPreconditionError, "attached to this .* already"):
                hf.attach(model, source=rollout.source())
            with self.attached(before, rollout) as second:
                for called, entered, replayed in (
                    (model, second, False),
                    (before, second, True),
                    (before, replay, False),
                ):
                    with entered.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                        self.assertEqual(torch.equal(loss_of(called, rollout.call)[0], alone), not replayed)
            # Outside of a micro-batch, the attached model chooses live, too.
            self.assertTrue(torch.equal(loss_of(model, rollout.call)[0], alone))
        self.assertTrue(torch.equal(loss_of(model, rollout.call)[0], alone))
        for module in model.modules():
            self.assertFalse({name for name in vars(module) if name == "forward" or "replay" in name})

    @over("right")
    def test_a_copy_of_an_attached_model_is_rejected(self, model: Any, rollout: Rollout) -> None:
        with self.attached(model, rollout), self.assertRaisesRegex(errors.FailedPreconditionError, "is a copy"):
            hf.attach(copy.deepcopy(model), source=rollout.source())

    @over("right")
    def test_shadow_changes_nothing(self, model: Any, rollout: Rollout) -> None:
        with Choices() as live:
            alone = loss_of(model, rollout.call)[0]
        with self.attached(model, rollout, mode="shadow") as replay:
            with replay.micro_batch(rollout.samples, **rollout.said), torch.no_grad():
                self.assertTrue(torch.equal(loss_of(model, rollout.call)[0], alone))
            metrics = replay.metrics()
        for layer, forced, chosen in zip(rollout.layers, rollout.forced, live.chosen, strict=True):
            known = forced[:, 0] >= 0
            common = (forced[known].unsqueeze(2) == chosen[known].unsqueeze(1)).any(2).float().mean().item()
            self.assertAlmostEqual(metrics[f"routing_replay/overlap/layer_{layer:02}"], common, places=6)
        self.assertEqual(metrics["routing_replay/replayed_rows"], sum(LENGTHS) - len(LENGTHS))
        with self.attached(model, rollout, mode="shadow", missing="strict", max_fallback_fraction=0.0) as replay:
            for begin in (False, True):
                if begin:
                    replay.begin_step(["none", rollout.samples[1]])
                with replay.micro_batch(["none", rollout.samples[1]], **rollout.said), torch.no_grad():
                    self.assertTrue(torch.equal(loss_of(model, rollout.call)[0], alone))
                replay.end_step()
            self.assertEqual(replay.metrics()["routing_replay/fallback_fraction"], 0.5)

    @over("right")
    def test_a_step_with_a_sample_that_is_missing(self, model: Any, rollout: Rollout) -> None:
        """begin_step decides that the missing sample falls back. Its rows then route live, and everything is
        counted."""
        peer = copy.deepcopy(model)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        said = rollout.said | {"sequences": [rollout.samples[0], "none"]}
        with self.attached(model, rollout, missing="live", max_fallback_fraction=0.6, watch="all") as replay:
            begun = replay.begin_step(said["sequences"], tokens=rollout.tokens)
            replay.prefetch([said])
            self.assertEqual(list(begun.live), ["none"])
            with replay.micro_batch(**said):
                out, loss = loss_of(model, rollout.call)
            loss.backward()
            replay.end_step()
            metrics = replay.metrics()
        for forced in rollout.forced:
            forced[rollout.places[1]] = -1
        self.assert_same(model, out, peer, self.by_hand(peer, rollout))
        self.assertEqual(metrics["routing_replay/fallback_fraction"], 0.5)
        self.assertEqual(metrics["routing_replay/replayed_rows"], LENGTHS[0] - 1)
        for layer in rollout.layers:
            self.assertEqual(metrics[f"routing_replay/recompute_mismatch/layer_{layer:02}"], 0)
            self.assertLess(metrics[f"routing_replay/overlap/layer_{layer:02}"], 1)
        with (
            self.attached(model, rollout, missing="live", max_fallback_fraction=0.4) as replay,
            self.assertRaises(errors.FallbackLimitError),
        ):
            replay.begin_step(said["sequences"])

    @over("right")
    def test_what_does_not_fit_is_rejected(self, model: Any, rollout: Rollout) -> None:
        mask = rollout.said["attention_mask"]
        short = {"input_ids": rollout.call["input_ids"][:, :5]}
        other = {"tokens": rollout.said["tokens"] + 1, "attention_mask": mask}
        with self.attached(model, rollout) as replay:
            for call, said, samples, error, words in (
                (short, rollout.said, rollout.samples, errors.InvalidArgumentError, "routes 10"),
                (rollout.call, rollout.said, ["a0", "none"], errors.FailedPreconditionError, "NOT_FOUND"),
                (rollout.call, other, rollout.samples, errors.FailedPreconditionError, "TOKENS"),
            ):
                with self.subTest(words), torch.no_grad():
                    with self.assertRaisesRegex(error, words), replay.micro_batch(samples, **said):
                        loss_of(model, call)
                    self.assertEqual(replay.kept, 0)
            with (
                self.assertRaisesRegex(RuntimeError, "no memory"),
                replay.micro_batch(rollout.samples, **rollout.said),
            ):
                loss_of(model, rollout.call)
                raise RuntimeError("no memory")
            replay.abandon_step()
            with replay.micro_batch(rollout.samples, **rollout.said):
                loss_of(model, rollout.call)
            with self.assertRaisesRegex(errors.FailedPreconditionError, "micro-batch"):
                replay.end_step()
            self.assertEqual(replay.kept, 0)
            with replay.micro_batch(rollout.samples, **rollout.said):
                _, loss = loss_of(model, rollout.call)
            loss.backward()
            replay.end_step()
        wide = trainer.LocalSource(rollout.geometry | {"num_experts": EXPERTS * 2})
        rows = np.full((LENGTHS[0] - 1, len(rollout.layers), TOP_K), 9, np.int64)
        rows[:, :, 1] = 15
        wide.add(rollout.samples[0], rows, layers=rollout.layers)
        replay = hf.attach(model, source=wide)
        with self.assertRaises(errors.RoutingReplayError), replay.micro_batch(rollout.samples, **rollout.said):
            loss_of(model, rollout.call)
        replay.detach()

    @over("packed")
    def test_pieces_of_a_packed_stream_cut_over_ranks(self, model: Any, rollout: Rollout) -> None:
        """Sequence-parallel ranks hold contiguous pieces: each row gets its ids on the rank that has it."""
        stream = torch.cat([rollout.call["input_ids"], torch.zeros(1, 1, dtype=torch.int64)], 1)
        pad = torch.full((1, TOP_K), -1)
        for rank in range(2):
            piece = slice(rank * 6, rank * 6 + 6)
            forced = [torch.cat([ids, pad])[piece] for ids in rollout.forced]
            call = {"input_ids": stream[:, piece]}
            with Choices(forced), torch.no_grad():
                expected = model(**call).logits
            with (
                self.attached(model, rollout, ranks={"cp": rank}, cp_size=2) as replay,
                replay.micro_batch(rollout.samples, tokens=stream, position_ids=[*range(7), *range(4), 0]),
                torch.no_grad(),
            ):
                self.assertTrue(torch.equal(model(**call).logits, expected))

    def test_registrations(self) -> None:
        scores = torch.randn(5, EXPERTS)
        op = torch.ops.routing_replay.choose_experts.default
        torch.library.opcheck(op, (scores, torch.tensor(0), TOP_K, True))
        self.assertTrue(torch.equal(op(scores, torch.tensor(0), TOP_K, True), scores.topk(TOP_K).indices))


def decoder_of(model: Any) -> Any:
    return model.model


def block_of(layer: Any) -> Any:
    """Returns the block of a layer that holds its experts. In Mixtral of transformers 4 it has another name."""
    return layer.block_sparse_moe if hasattr(layer, "block_sparse_moe") else layer.mlp


def moe_layers(model: Any) -> list[int]:
    return [i for i, layer in enumerate(decoder_of(model).layers) if hasattr(block_of(layer), "experts")]
