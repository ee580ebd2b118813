"""What the README says to its command line, where the command line and the engines' start are the framework's own."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
import tempfile
import unittest
from pathlib import Path

import recipes
import sides

sides.setup()
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

arguments, sglang_arguments = sides.part("utils.arguments"), sides.part("backends.sglang_utils.arguments")
SglangConfig = sides.part("backends.sglang_utils.sglang_config").SglangConfig

CONFIG = """
sglang:
  - name: actor
    server_groups:
      - worker_type: regular
        num_gpus: 1
        num_gpus_per_engine: 1
        overrides: {enable_return_routed_experts: true}
"""


@dataclasses.dataclass
class ServerArgs:
    """Of SGLang's those that are looked at."""

    model_path: str = ""
    enable_return_routed_experts: bool = False


class ContractTest(unittest.TestCase):
    def setUp(self) -> None:
        """miles has slime's options, and its own."""
        sections = [recipes.README.read_text().split(f"\n## {name}\n")[1] for name in ("slime", sides.own.NAME)]
        self.section, self.its = (one.split("\n## ")[0] for one in sections)

    def test_options(self) -> None:
        """It has them; Megatron makes its own of the fields of its configuration."""
        said = re.findall(r"^    (--[a-z-]+)", self.section, re.MULTILINE)
        self.assertEqual(len(said), 6)
        known = inspect.getsource(arguments) + inspect.getsource(sglang_arguments)
        fields = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(TransformerConfig)}
        for option in said:
            self.assertTrue(f'"{option}"' in known or option in fields, option)
        for option in re.findall(r"`(--[a-z-]+)[ `]", self.section + self.its):
            self.assertIn(f'"{option}"', known)

    def test_engines_report_their_choice(self) -> None:
        """By --sglang-config alone: the option itself is none of its command line."""
        self.assertIn("`--sglang-config` (`overrides: {enable_return_routed_experts: true}`", self.section)
        self.assertIn('"enable_return_routed_experts"', inspect.getsource(sglang_arguments))  # Skipped there.
        sys.modules["sglang.srt.server_args"].ServerArgs = ServerArgs
        path = Path(sglang_arguments.__file__).with_name("sglang_engine.py")
        spec = importlib.util.spec_from_file_location("its_engine", path)
        engine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(engine)
        args = sides.args_of(
            sglang_pp_size=1, num_gpus_per_node=1, rollout_num_gpus_per_engine=1, seed=1, hf_checkpoint="model"
        )
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(CONFIG)
            file.flush()
            (group,) = SglangConfig.from_yaml(file.name).models[0].server_groups
        for overrides, reports in ((None, None), (group.overrides, True)):
            said, _ = engine._compute_server_args(args, 0, "", 1, "host", 2, base_gpu_id=0, sglang_overrides=overrides)
            self.assertEqual(said.get("enable_return_routed_experts"), reports)


if __name__ == "__main__":
    unittest.main()
