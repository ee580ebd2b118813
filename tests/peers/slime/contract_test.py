"""What the README says to its command line, where the command line and the engines' start are the framework's own."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import inspect
import re
import sys
import unittest
from pathlib import Path

import recipes
import sides
from routing_replay import errors

sides.setup()
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

arguments, sglang_arguments = sides.part("utils.arguments"), sides.part("backends.sglang_utils.arguments")


@dataclasses.dataclass
class ServerArgs:
    """Of SGLang's those that are looked at."""

    model_path: str = ""
    enable_return_routed_experts: bool = False


class ContractTest(unittest.TestCase):
    def test_options(self) -> None:
        """It has them."""
        said = [line.split()[0] for line in recipes.lines(sides.own.NAME)]
        self.assertEqual(len(said), 3)
        known = inspect.getsource(arguments)
        section = recipes.README.read_text().split(f"\n## {sides.own.NAME}\n")[1].split("\n## ")[0]
        fields = {field.name for field in dataclasses.fields(TransformerConfig)}  # Megatron makes options of these.
        for option in (*said, *re.findall(r"`(--[a-z-]+)[ `]", section)):
            self.assertTrue(f'"{option}"' in known or option[2:].replace("-", "_") in fields, option)
        self.assertIn("moe_enable_routing_replay", fields)

    def test_engines_report_their_choice(self) -> None:
        sys.modules["sglang.srt.server_args"].ServerArgs = ServerArgs
        path = Path(sglang_arguments.__file__).with_name("sglang_engine.py")
        spec = importlib.util.spec_from_file_location("its_engine", path)
        engine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(engine)
        args = sides.args_of(
            sglang_pp_size=1, num_gpus_per_node=1, rollout_num_gpus_per_engine=1, seed=1, hf_checkpoint="model"
        )
        for reports in (None, True):
            said, _ = engine._compute_server_args(args, 0, "", 1, "host", 2, base_gpu_id=0)
            self.assertEqual(said.get("enable_return_routed_experts"), reports)
            sides.with_lines(args)

    def test_a_line_that_is_missing(self) -> None:
        """Says which one, before a model is built or a sample is kept."""
        integration = sides.integration()
        _, publishing, init = (line.split()[0] for line in recipes.lines(sides.own.NAME))
        for option in ("--use-rollout-routing-replay", publishing):
            args = sides.with_lines(sides.args_of())
            setattr(args, option[2:].replace("-", "_"), None)
            with self.assertRaisesRegex(errors.FailedPreconditionError, f"start with `{option}"):
                integration.replay(args)
        args = sides.with_lines(sides.args_of())
        args.custom_megatron_init_path = None
        with self.assertRaisesRegex(errors.FailedPreconditionError, f"start with `{init} .*replay`"):
            asyncio.run(integration.rollout.opened(args))


if __name__ == "__main__":
    unittest.main()
