"""The framework's own R3 compared with ours: the same rollout through both must give the same experts at the routers
and the same gradients."""

from __future__ import annotations

import asyncio
import functools
import types
import unittest
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import sides

sides.setup()
import ray  # noqa: E402
import routing_replay as rr  # noqa: E402
import torch  # noqa: E402
from common.ranks import on_ranks  # noqa: E402
from gpt import Layout  # noqa: E402

rollouts, actors = sides.part("ray.rollout"), sides.part("backends.megatron_utils.actor")
models, sglang_rollout = sides.part("backends.megatron_utils.model"), sides.part("rollout.sglang_rollout")
Sample = sides.part("utils.types").Sample


ROLES: dict[str, dict[str, Any]] = {
    "actor": {},
    "critic": {"advantage_estimator": "ppo", "use_critic": True, "value_clip": 0.2, "num_critic_only_steps": 1},
}
Change = Callable[[np.ndarray], np.ndarray]  # A function that changes the rows [T - 1, layers, K] of an answer.


def rollout(args: Any, change: Change | None) -> list[Any]:
    """Returns samples as the framework's own generate leaves them. One of them contains the answer of a tool.

    change: changes the rows that the engine reports
    """

    async def post(url: str, payload: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        engine = types.SimpleNamespace(asked=[], answered=[], version=1, silent=())
        answer = sides.Engine.generate(engine, payload)
        if change and "routed_experts" in answer["meta_info"]:
            tokens = [*payload["input_ids"], *(item[1] for item in answer["meta_info"]["output_token_logprobs"])]
            answer["meta_info"]["routed_experts"] = sides.packed(change(sides.routes(tokens, 1)))
        return answer

    async def generated() -> list[Any]:
        samples = []
        for index in range(6):
            prompt = [2 + index, *range(10, 13 + index)]
            sample = Sample(index=index, prompt=" ".join(map(str, prompt)), tokens=prompt, reward=float(index % 2))
            sample.rollout_id = index
            turns = 2 if index == 1 else 1
            for turn in range(turns):
                sample.status = Sample.Status.PENDING
                params = {"max_new_tokens": 32}
                sample = await sides.own.generate(args, sample, params)
                if turn + 1 < turns:
                    sides.own.add_of_tool(args, sample, [7, 8])
            samples.append(await sides.own.ended(args, sample))
        if args.custom_megatron_init_path:
            # The samples of an evaluation are numbered from 0, too.
            judged = Sample(index=0, prompt="2 3 4", tokens=[2, 3, 4])
            judged = await sides.own.generate(args, judged, {"max_new_tokens": 32})
            judged = await sides.own.ended(args, judged, evaluation=True)
            assert judged.rollout_routed_experts is None and not judged.metadata
        return samples

    tokenizer = types.SimpleNamespace(encode=lambda text, **_: [int(word) for word in text.split()])
    state = types.SimpleNamespace(tokenizer=tokenizer, processor=None)
    with (
        mock.patch.object(sglang_rollout, "post", post),
        mock.patch.object(sglang_rollout, "GenerateState", lambda _: state),
    ):
        return asyncio.run(generated())


def train_data(args: Any, samples: list[Any], layout: Layout) -> list[Any]:
    manager = object.__new__(rollouts.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_convert_samples_to_train_data_func = manager.custom_reward_post_process_func = None
    parallel = {"dp_size": 1, "cp_size": layout.cp, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    manager.set_train_parallel_config(parallel)
    with mock.patch.object(ray, "put", lambda value: value):
        return sides.own.split(manager, manager._convert_samples_to_train_data(samples))


def step(
    layout: Layout,
    recompute: str,
    by: str,
    *,
    change: Change | None = None,
    filler: Any = None,
    role: str = "actor",
    spoil: Callable[[Any], None] = lambda actor: None,
) -> tuple[Any, list[Any]]:
    """Trains on one rollout. Returns what the actor has seen (gradients and choices of routers), and the tokens of the
    samples.

    by: who replays: "itself" (the framework's own R3), "us" (our lines) or "nobody"
    spoil: applied to the actor before it trains
    """
    flags = {"use_rollout_routing_replay": True, "use_routing_replay": True} if by == "itself" else {}
    args = sides.args_of(context_parallel_size=layout.cp, sequence_parallel=layout.tp > 1, **flags, **ROLES[role])
    sides.own.replays(by == "itself")
    layout.start()
    if by == "us":
        sides.with_lines(args)
    made: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        samples = rollout(args, change)
        whole = [sample.tokens for sample in samples]
        if by == "us":
            assert all(sample.rollout_routed_experts.shape == (1,) for sample in samples)
        made = [(train_data(args, samples, layout), whole)]
    torch.distributed.broadcast_object_list(made)
    data, tokens = made[0]
    with mock.patch.object(ray, "get", lambda value: value):
        actor = object.__new__(actors.MegatronTrainRayActor)
        sides.prepare(actor, args, layout, recompute, filler, role)
        spoil(actor)
        actor.train(0, data)
    trainer = sides.integration().trainer if by == "us" else None
    if trainer is not None and trainer._replay is not None:  # As before the first pass.
        trainer._replay.detach()
        trainer._module("backends.megatron_utils.model").get_forward_backward_func = trainer._original
        trainer._replay = None
    return actor.seen, tokens


def largest(ours: Any, theirs: Any) -> float:
    """Returns the largest difference between the two sides' gradients."""
    assert len(ours.gradients) == len(theirs.gradients) == 2
    steps = zip(ours.gradients, theirs.gradients, strict=True)
    return max((a[name] - b[name]).abs().max().item() for a, b in steps for name in a)


def differing(one: Any, other: Any) -> dict[int, list[torch.Tensor]]:
    """Returns for each layer and call which rows have different experts on the two sides."""
    return {
        layer: [(a != b).any(1) for a, b in zip(one.calls.maps[layer], maps, strict=True)]
        for layer, maps in other.calls.maps.items()
    }


def body(layout: Layout, recompute: str) -> dict[str, Any]:
    """Makes the same step with the framework's own R3 and with ours, and compares them. Counts rows over all layers,
    calls and ranks."""
    theirs, tokens = step(layout, recompute, "itself")
    ours, _ = step(layout, recompute, "us")
    moved, _ = step(layout, recompute, "us", change=lambda rows: np.roll(rows, 1, axis=0))
    # This finds out which rows have a route: those for which the framework's own R3 chooses other experts if the engine
    # reports other ones. The last row of a sample and padding have none.
    others, _ = step(layout, recompute, "itself", change=lambda rows: (rows + 1) % sides.EXPERTS)
    routed = differing(others, theirs)
    filled, _ = step(layout, recompute, "itself", filler=(ours.calls, routed))

    def count(rows: Any) -> int:
        pairs = [zip(rows[layer], calls, strict=True) for layer, calls in routed.items()]
        return sum(int((one & has_route).sum()) for calls in pairs for one, has_route in calls)

    mine: list[Any] = [sides.counted(ours.calls), sides.counted(theirs.calls), count(routed)]
    mine += [count(differing(ours, theirs)), count(differing(moved, theirs))]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    of_ours, of_theirs = (sum((one[i] for one in every), start=Counter()) for i in (0, 1))
    with_route, different, shifted = (sum(one[i] for one in every) for i in (2, 3, 4))
    told = sides.recorded(tokens, times=2 if recompute == "none" else 3)
    return {
        "told": told.total(),
        "missing": ((told - of_ours).total(), (told - of_theirs).total()),
        "routed": with_route,
        "routeless": of_theirs.total() - with_route,
        "different": different,
        "shifted": shifted,
        "as they are": largest(ours, theirs),
        "filled": largest(ours, filled),
    }


def critic(recompute: str) -> tuple[int, int]:
    """Trains a critic with our lines, and one without any replay. Returns how many of their rows have different
    experts, and the number of all rows."""
    (ours, _), (nobodys, _) = (step(Layout(), recompute, by, role="critic") for by in ("us", "nobody"))
    rows = [row for calls in differing(ours, nobodys).values() for call in calls for row in call.tolist()]
    return sum(rows), len(rows)


def without_samples(actor: Any) -> None:
    run = rr.Client().run("here/grpo-42")
    run.release([state.handle for state in run.list()])


def with_fusion(actor: Any) -> None:
    actor.model[0].module.config.moe_router_fusion = True


class DifferentialTest(unittest.TestCase):
    def test_beside_its_own(self) -> None:
        with rr.local_server():
            for layout, recompute in (
                (Layout(), "none"),
                (Layout(), "full"),
                (Layout(cp=2), "moe"),
                (Layout(pp=2), "full"),
                (Layout(tp=2), "moe"),
            ):
                with self.subTest(layout=layout, recompute=recompute):
                    said = on_ranks(layout.cp * layout.pp * layout.tp, body, layout, recompute)
                    for one in said:
                        self.assertEqual(one["missing"], (0, 0))
                        self.assertEqual((one["routed"], one["different"]), (one["told"], 0))
                        self.assertGreater(one["shifted"], one["told"] // 2)  # The check must detect late routes.
                        self.assertEqual(one["filled"], 0.0)
                        self.assertLess(one["as they are"], 1e-6)
                    apart, filled = (max(one[name] for one in said) for name in ("as they are", "filled"))
                    print(
                        f"{layout}, recompute {recompute}: {one['told']} rows and layers with a route, in which both "
                        f"have the same experts; gradients {apart:.3g} apart as they are, {filled} with our experts "
                        f"in the {one['routeless']} rows and layers that have no route"
                    )

    def test_a_critic_routes_live(self) -> None:
        with rr.local_server():
            ((different, rows),) = on_ranks(1, critic, "full")
        self.assertEqual(different, 0)
        self.assertGreater(rows, 0)
        print(f"critic: the experts of a critic without replay in {rows} rows and layers")

    def test_rejections(self) -> None:
        for spoil, why in ((without_samples, "FallbackLimitError"), (with_fusion, "FailedPreconditionError")):
            with self.subTest(why), rr.local_server(), self.assertRaisesRegex(AssertionError, why):
                on_ranks(1, functools.partial(step, spoil=spoil), Layout(), "none", "us")


if __name__ == "__main__":
    unittest.main()
