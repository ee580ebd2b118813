"""The framework's step over Ray with the README's three lines: RolloutManager.generate and MegatronTrainRayActor.train
on two ranks, twice. One answer is aborted in the first rollout and continued in the second, and each rollout has an
answer without routes."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import ray
import routing_replay as rr
import sides

RANKS = 2
RUN = "here/grpo-42"  # wandb's project and group.


class StepTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(rr.local_server())
        sides.checkpoint(self.folder / "model")
        self.engine = sides.Engine()
        self.addCleanup(self.engine.close)
        ray.init(
            "local", num_cpus=8, num_gpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        self.addCleanup(ray.shutdown)

    def args(self, **others: Any) -> sides.Args:
        prompts = self.folder / "prompts.jsonl"
        # The first rollout has seven answers (0 to 6), the second has six new ones (7 to 12). Answers 3 and 9 wait
        # until they are aborted. Answers 1 and 8 have no routes.
        firsts = [1 if index in (3, 9) else 2 + index for index in range(16)]
        self.engine.silent = {firsts[1], firsts[8]}
        prompts.write_text(
            "".join(json.dumps({"text": f"t{i} t{20 + i} t{40 + n}"}) + "\n" for n, i in enumerate(firsts))
        )
        return sides.with_lines(
            sides.args_of(
                hf_checkpoint=str(self.folder / "model"),
                prompt_data=str(prompts),
                input_key="text",
                metadata_key="metadata",
                rollout_seed=1,
                rollout_global_dataset=True,
                data_source_path=f"{sides.own.NAME}.rollout.data_source.RolloutDataSourceWithBuffer",
                rollout_function_path=f"{sides.own.NAME}.rollout.sglang_rollout.generate_rollout",
                eval_function_path=f"{sides.own.NAME}.rollout.sglang_rollout.generate_rollout",
                custom_rm_path="sides.reward",
                rollout_max_response_len=32,
                rollout_top_k=-1,
                over_sampling_batch_size=7,
                partial_rollout=True,
                sglang_router_ip=self.engine.host,
                sglang_router_port=self.engine.port,
                sglang_server_concurrency=16,
                rollout_num_engines=1,
                context_parallel_size=RANKS,
                distributed_backend="gloo",
                distributed_timeout_minutes=10,
                num_gpus_per_node=RANKS,
                custom_megatron_before_log_prob_hook_path="trainer.before_log_prob",
                custom_megatron_before_train_step_hook_path="trainer.before_train_step",
                **others,
            )
        )

    def routes(self, tokens: list[int]) -> np.ndarray:
        """Returns the experts that the engine chose for each row of these tokens when it computed the row for the first
        time. An answer that was aborted and continued has rows of two weight versions."""
        rows = np.zeros((0, sides.LAYERS, sides.TOP_K), np.int64)
        for answer, version in self.engine.answered:
            if answer == tokens[: len(answer)] and len(answer) - 1 > len(rows):
                rows = np.concatenate([rows, sides.routes(answer, version)[len(rows) :]])
        return rows

    def test_two_rollouts(self) -> None:
        self.play(self.args(), ["", "step 0", "step 1"])

    def test_one_step_without_log_probabilities(self) -> None:
        """With use_rollout_logprobs, the log-probabilities come with the answers. The actor then makes no pass for
        them, and our code first sees a rollout when its training begins."""
        self.play(self.args(use_rollout_logprobs=True, global_batch_size=6), ["step 0"])

    def play(self, args: sides.Args, passes: list[str]) -> None:
        import trainer as actors

        passes = [*(f"{other}_" for other in sides.own.OTHERS), *passes]
        manager = ray.remote(actors.Manager).options(num_cpus=1).remote(args)
        Trainer = ray.remote(actors.Trainer).options(num_cpus=1, num_gpus=1)
        first = Trainer.remote(RANKS, 0, None, None)
        trainers = [first, Trainer.remote(RANKS, 1, *ray.get(first.get_master_addr_and_port.remote()))]
        ray.get([one.init.remote(args) for one in trainers])
        parallel = {"dp_size": 1, "cp_size": RANKS, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        ray.get(manager.set_train_parallel_config.remote(parallel))
        before: list[int] = []
        for rollout in range(2):
            self.engine.version = 1 + rollout
            self.engine.aborted.clear()
            (box,) = ray.get(manager.generate.remote(rollout))
            data = ray.get(box.inner)
            handles = self.check_data(data)
            run = rr.Client().run(RUN)
            by_handle = {state.handle: state for state in run.list()}
            told: sides.Counter = sides.Counter()
            parts = 0
            for tokens, handle in zip(data["tokens"], handles, strict=True):
                if not handle:
                    continue
                tokens, stored = np.asarray(tokens).tolist(), run.read_one(handle)
                rows = self.routes(tokens)[:, 1:]
                self.assertEqual((stored.status, stored.num_tokens), ("OK", len(tokens)))
                versions = [version for answer, version in self.engine.answered if answer == tokens[: len(answer)]]
                self.assertEqual([span.version for span in by_handle[handle].weights], versions)
                np.testing.assert_array_equal(np.sort(stored.rows), np.sort(rows))
                newer = sides.routes(tokens, self.engine.version)[:, 1:]
                parts += not np.array_equal(rows, newer)
                for row in rows:
                    told.update((layer + 1, tuple(sorted(ids.tolist()))) for layer, ids in enumerate(row))
            # Only the second rollout has a continued answer, which keeps rows of the older weights.
            self.assertEqual(parts, rollout)
            ray.get([one.train.remote(rollout, [box]) for one in trainers])
            self.assertEqual([ray.get(one.hooked.remote()) for one in trainers], [passes] * RANKS)
            self.check_passes([ray.get(one.look.remote()) for one in trainers], told, "" in passes)
            there = {sample.handle for sample in run.list()}
            self.assertLessEqual(set(handles) - {0}, there)
            self.assertFalse(set(before) & there)
            before = handles
            routes = sum((len(tokens) - 1) * sides.LAYERS * sides.TOP_K * 4 for tokens in data["tokens"])
            carried, held = 8 * len(handles), rr.Client().server_info().stored_bytes
            print(f"{carried} bytes of handles instead of {routes} bytes of routes; the service holds {held} bytes")
            print(f"rollout {rollout}: {told.total()} rows and layers as recorded in each pass")
        self.assertTrue(all(said.get("return_routed_experts") for said in self.engine.asked))

    def check_data(self, data: dict[str, Any]) -> list[int]:
        """Handles replace the routes."""
        handles = data["rollout_routed_experts"]
        self.assertEqual(
            [(tuple(one.shape), str(one.dtype)) for one in handles], [((1,), sides.own.TYPE_OF_HANDLES)] * 6
        )
        said = [int(one[0]) for one in handles]
        self.assertEqual((len(set(said)), said.count(0)), (6, 1))
        return said

    def check_passes(self, found: list[dict[str, Any]], told: Any, log_probabilities: bool) -> None:
        others = {f"{other}_": 1 for other in sides.own.OTHERS}
        replayed = {"training": 2} | ({"log-probabilities": 1} if log_probabilities else {})  # Forward and recompute.
        self.assertEqual(set(found[0]), {*others, *replayed})
        for name, times in (others | replayed).items():
            seen = sum((one[name] for one in found), start=sides.Counter())
            wanted = sides.Counter({row: count * times for row, count in told.items()})
            missing = (wanted - seen).total()
            if name in others:
                self.assertGreater(missing, wanted.total() // 4)  # They route live.
            else:
                self.assertEqual(missing, 0, name)


if __name__ == "__main__":
    unittest.main()
