"""Its own R3 beside ours: the same rollout through both, the same experts at the routers, the same gradients."""

from __future__ import annotations

import asyncio
import types
import unittest
from collections import Counter
from typing import Any
from unittest import mock

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


def rollout(args: Any, moved: int = 0) -> list[Any]:
    """Samples as its generate leaves them; one has a tool's answer within. moved: rows are late by so many."""

    async def post(url: str, payload: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        engine = types.SimpleNamespace(asked=[], answered=[], version=1, silent=())
        answer = sides.Engine.generate(engine, payload)
        if moved and "routed_experts" in answer["meta_info"]:
            tokens = [*payload["input_ids"], *(item[1] for item in answer["meta_info"]["output_token_logprobs"])]
            answer["meta_info"]["routed_experts"] = sides.packed(sides.routes(tokens, 1), moved)
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
            judged = Sample(index=0, prompt="2 3 4", tokens=[2, 3, 4])  # Evaluation counts from 0.
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


def step(layout: Layout, recompute: str, service: bool, moved: int = 0, filler: Any = None) -> tuple[Any, list[Any]]:
    """Training on one rollout: what the actor has seen, and the samples."""
    flags = {} if service else {"use_rollout_routing_replay": True, "use_routing_replay": True}
    args = sides.args_of(context_parallel_size=layout.cp, sequence_parallel=layout.tp > 1, **flags)
    sides.own.replays(not service)
    layout.start()
    if service:
        sides.with_lines(args)
    made: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        samples = rollout(args, moved)
        whole = [sample.tokens for sample in samples]
        if service:
            assert all(sample.rollout_routed_experts.shape == (1,) for sample in samples)
        made = [(train_data(args, samples, layout), whole)]
    torch.distributed.broadcast_object_list(made)
    data, tokens = made[0]
    with mock.patch.object(ray, "get", lambda value: value):
        actor = object.__new__(actors.MegatronTrainRayActor)
        sides.prepare(actor, args, layout, recompute, filler)
        actor.train(0, data)
    if service:
        sides.integration().trainer.detach()
    return actor.seen, tokens


def largest(ours: Any, theirs: Any) -> float:
    """Of all differences of gradients."""
    assert len(ours.gradients) == len(theirs.gradients) == 2
    steps = zip(ours.gradients, theirs.gradients, strict=True)
    return max((a[name] - b[name]).abs().max().item() for a, b in steps for name in a)


def body(layout: Layout, recompute: str) -> Any:
    """Of all ranks together: rows that the record has; those of them that ours and theirs lack; rows that differ
    between both, and between theirs and ours with moved rows; rows without a route. And how far gradients are apart,
    as they are and with the same filler."""
    theirs, tokens = step(layout, recompute, False)
    ours, _ = step(layout, recompute, True)
    moved, _ = step(layout, recompute, True, moved=1)
    # What has no route (last rows and padding) has another filler, which changes how sums are rounded.
    alike, _ = step(layout, recompute, False, filler=ours.calls)

    def differing(one: Any) -> int:
        pairs = (
            (a, b)
            for layer, maps in theirs.calls.maps.items()
            for a, b in zip(one.calls.maps[layer], maps, strict=True)
        )
        return sum(int((a != b).any(1).sum()) for a, b in pairs)

    told = sides.recorded(tokens, times=2 if recompute == "none" else 3)
    mine: list[Any] = [sides.counted(ours.calls), sides.counted(theirs.calls), differing(ours), differing(moved)]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    of_ours, of_theirs = (sum((one[i] for one in every), start=Counter()) for i in (0, 1))
    different, shifted = (sum(one[i] for one in every) for i in (2, 3))
    missing = (told - of_ours).total(), (told - of_theirs).total()
    without = of_theirs.total() - told.total()
    return told.total(), missing, different, shifted, without, largest(ours, theirs), largest(ours, alike)


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
                    for rows, missing, different, shifted, without, apart, alike in said:
                        self.assertEqual(missing, (0, 0))
                        self.assertLessEqual(different, without)
                        self.assertGreater(shifted, rows // 2)  # The check of the check.
                        self.assertEqual(alike, 0.0)
                        self.assertLess(apart, 1e-6)
                    print(f"{layout}, recompute {recompute}: {rows} rows and layers in both, gradients {alike} apart")


if __name__ == "__main__":
    unittest.main()
