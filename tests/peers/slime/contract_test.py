"""Parses the README's lines with the framework's own parse_args, which includes SGLang's options. Tests what the
framework, its engines, its Megatron and our code make of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import inspect
import io
import logging
import re
import sys
import unittest
from argparse import Namespace
from typing import Any
from unittest import mock

import recipes
import sides
from common import stand_ins
from routing_replay import Geometry, errors
from routing_replay_trainer.integrations import _slime

logging.disable(logging.WARNING)
stand_ins.install("wandb")
sides.own.setup()
arguments, engine = sides.part("utils.arguments"), sides.part("backends.sglang_utils.sglang_engine")
training = importlib.import_module("megatron.training.arguments")
LINES = recipes.lines(sides.own.NAME)
MODEL = f"""
    --num-layers {sides.LAYERS} --moe-layer-freq [0]+[1]*{sides.LAYERS - 1} --num-experts {sides.EXPERTS}
    --moe-router-topk {sides.TOP_K} --moe-ffn-hidden-size 32 --hidden-size 16 --ffn-hidden-size 32
    --num-attention-heads 4 --vocab-size {sides.VOCABULARY} --seq-length 64 --max-position-embeddings 64
    --qkv-format thd --use-dynamic-batch-size --max-tokens-per-gpu 40 --micro-batch-size 1 --global-batch-size 6
    --rollout-batch-size 6 --num-rollout 2 --rollout-num-gpus 1 --actor-num-gpus-per-node 1
    --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-rope-fusion
    --prompt-data none --wandb-project here --wandb-group grpo-42
"""


def parsed(lines: list[str]) -> Namespace:
    words = " ".join([MODEL, *lines]).split()
    with mock.patch.object(sys, "argv", ["train.py", *words]), contextlib.redirect_stdout(io.StringIO()):
        return arguments.parse_args()


def changed(before: Namespace, after: Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(after).items() if vars(before).get(name) != value}


class ContractTest(unittest.TestCase):
    def test_its_parser(self) -> None:
        """What parse_args makes of the README's lines must be equal to the arguments with which the other tests run
        rollout and trainer."""
        self.assertEqual(len(LINES), 3)
        made = changed(parsed([]), parsed(LINES))
        self.assertEqual(made, changed(sides.args_of(), sides.with_lines(sides.args_of())))
        print(f"{sides.own.NAME}'s parse_args: {made}")

    def test_options_that_the_readme_names(self) -> None:
        section = recipes.README.read_text().split(f"\n## {sides.own.NAME}\n")[1].split("\n## ")[0]
        named = set(re.findall(r"`(--[a-z-]+)[ `]", section))
        known = vars(parsed(LINES))
        self.assertEqual({option for option in named if option[2:].replace("-", "_") not in known}, set())

    def test_engines_report_their_choice(self) -> None:
        known = inspect.signature(engine.ServerArgs).parameters
        self.assertIn("enable_return_routed_experts", known)
        # The framework expects a dataclass, which SGLang's arguments are no longer since 0.5.23.
        with mock.patch.object(engine, "ServerArgs", dataclasses.make_dataclass("ServerArgs", known)):
            for lines, reports in (([], None), (LINES, True)):
                said, _ = engine._compute_server_args(parsed(lines), 0, "", 1, "host", 2, base_gpu_id=0)
                self.assertEqual(said.get("enable_return_routed_experts"), reports)

    def test_its_trainer(self) -> None:
        """With the README's lines, the framework's own replay is off, and its Megatron builds routers with
        RouterReplay."""
        args = parsed(LINES)
        sides.part("utils.misc").load_function(args.custom_megatron_init_path)(args)
        self.assertFalse(args.use_routing_replay or args.use_rollout_routing_replay)
        self.assertTrue(training.core_transformer_config_from_args(args).moe_enable_routing_replay)
        moe = range(1, sides.LAYERS)
        wanted = Geometry(num_layers=sides.LAYERS, num_experts=sides.EXPERTS, top_k=sides.TOP_K, moe_layers=moe)
        self.assertEqual(Geometry.from_megatron_config(args), wanted)
        for hook in ("before_log_prob", "before_train_step"):
            path = getattr(args, f"custom_megatron_{hook}_hook_path")
            self.assertIs(sides.part("utils.misc").load_function(path), getattr(sides.integration(), hook))

    def test_a_line_that_is_missing(self) -> None:
        """The error must name the missing line, before a model is built or a sample is stored."""
        *of_trainer, init = LINES
        for line in of_trainer:
            args = parsed([other for other in LINES if other is not line])
            with self.assertRaisesRegex(errors.FailedPreconditionError, re.escape(f"start with `{line}`")):
                sides.integration().replay(args)
        with self.assertRaisesRegex(errors.FailedPreconditionError, re.escape(f"start with `{init}`")):
            asyncio.run(sides.integration().rollout.opened(parsed(of_trainer)))

    def test_the_name_of_the_run(self) -> None:
        tensorboard = ["--tb-project-name there", "--tb-experiment-name grpo-43"]
        args = parsed([*LINES, *tensorboard])
        self.assertEqual(_slime._run_name(args), "here/grpo-42")
        args.wandb_project = args.wandb_group = None
        self.assertEqual(_slime._run_name(args), "there/grpo-43")
        args.tb_project_name = args.tb_experiment_name = None
        with self.assertRaisesRegex(errors.FailedPreconditionError, "ROUTING_REPLAY_TRAINING_RUN"):
            asyncio.run(sides.integration().rollout.opened(args))


if __name__ == "__main__":
    unittest.main()
