"""Runs the rollout and the trainer of slime or miles on the CPU: with its arguments, an engine that answers like
SGLang, and its own actor with a small GPTModel."""

from __future__ import annotations

import base64
import importlib
import json
import os
import threading
import types
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from common import stand_ins

own = importlib.import_module(f"{os.environ['PEER_FRAMEWORK']}_own")

LAYERS, EXPERTS, TOP_K, VOCABULARY, PROMPT = 4, 8, 2, 640, 3


def setup() -> None:
    """Puts stand-ins in place of modules that the framework imports and these tests do not use. Must be called in each
    process before the framework is imported."""
    stand_ins.install(*own.STAND_INS)
    own.setup()


def part(name: str) -> Any:
    """Imports a module of the framework."""
    return importlib.import_module(f"{own.NAME}.{name}")


class Args(Namespace):
    """The framework's arguments. An argument that was not given is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def args_of(**others: Any) -> Args:
    said = {
        "num_layers": LAYERS,
        "num_experts": EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_layer_freq": [0] + [1] * (LAYERS - 1),
        "hidden_size": 16,
        "ffn_hidden_size": 32,
        "moe_ffn_hidden_size": 32,
        "num_query_groups": 4,
        "kv_channels": 4,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "padded_vocab_size": VOCABULARY,
        "advantage_estimator": "grpo",
        "loss_type": "policy_loss",
        "rewards_normalization": False,
        "compute_advantages_and_returns": True,
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "entropy_coef": 0.0,
        "kl_coef": 0.0,
        "gamma": 1.0,
        "lambd": 1.0,
        "n_samples_per_prompt": 1,
        "rollout_batch_size": 6,
        "global_batch_size": 3,  # Half of a rollout: two training steps on each rollout.
        "micro_batch_size": 1,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 40,
        "rollout_top_p": 1.0,
        "rollout_temperature": 0.7,
        "log_probs_chunk_size": -1,
        "data_pad_size_multiplier": 8,
        "allgather_cp": False,
        "sequence_parallel": False,
        "seq_length": 64,
        "qkv_format": "thd",
        "rollout_data_transport": "object-store",
        "check_for_nan_in_loss_and_grad": True,
        "calculate_per_token_loss": False,
        "use_rollout_routing_replay": False,
        "use_routing_replay": False,
        "use_distributed_optimizer": False,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "rollout_sample_hook_path": [],
        "wandb_project": "here",
        "wandb_group": "grpo-42",
    }
    return Args(**(said | own.ARGS | others))


def checkpoint(folder: Path) -> None:
    """Writes the part of a checkpoint that the framework reads before training: a tokenizer of the words t0, t1, …"""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def integration() -> Any:
    return importlib.import_module(f"routing_replay_trainer.integrations.{own.NAME}")


def with_lines(args: Args) -> Args:
    """Sets the options in the README's lines, and no others, as the framework's parse_args would. Returns the
    arguments."""
    import recipes

    for line in recipes.lines(own.NAME):
        option, *value = line.split()
        name = option[2:].replace("-", "_")
        known = getattr(args, name)
        setattr(args, name, [*known, *value] if isinstance(known, list) else value[0] if value else True)
    args.use_routing_replay = args.use_rollout_routing_replay  # The framework's parse_args does this, too.
    return args


def routes(tokens: list[int], version: int) -> np.ndarray:
    """Returns the experts [tokens - 1, all layers, K] that an engine with this version of the weights chooses: a fixed
    choice for each token id and layer."""
    table = np.random.default_rng(version).random((VOCABULARY, LAYERS, EXPERTS)).argsort(axis=2)[..., :TOP_K]
    return table[np.array(tokens[:-1])]


async def reward(args: Any, sample: Any) -> Any:
    """Returns the reward of a sample, or a list of rewards for a list of samples."""
    if isinstance(sample, list):
        return [await reward(args, one) for one in sample]
    return float(sample.index % 2)


class Engine:
    """Answers over HTTP like SGLang. The answer to a prompt that begins with token 1 waits until the framework aborts
    the requests, and is then only a part of the whole answer.

    answered: (tokens, version of the weights) of all answers
    silent: first tokens of prompts whose routes are not reported
    """

    def __init__(self) -> None:
        self.version = 1
        self.aborted = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.answered: list[tuple[list[int], int]] = []
        self.silent: set[int] = set()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self.answer({"workers": [{"url": engine.url}], "loads": []})

            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.startswith("/generate"):
                    self.answer(engine.generate(said))
                else:
                    engine.aborted.set()
                    self.answer({})

            def answer(self, said: Any) -> None:
                text = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host, self.port = self._server.server_address[:2]
        self.url = f"http://{self.host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.aborted.set()
        self._server.shutdown()
        self._server.server_close()

    def generate(self, said: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(said)
        prompt = said["input_ids"]
        random = np.random.default_rng(sum(prompt) + len(prompt))
        new = random.integers(10, VOCABULARY, random.integers(4, 9)).tolist()
        finish = "stop"
        if prompt[0] == 1 and len(prompt) == PROMPT:
            self.aborted.wait(60)
            finish = "abort"
        self.answered.append((prompt + new, self.version))
        said = said | {"return_routed_experts": said.get("return_routed_experts") and prompt[0] not in self.silent}
        return {"text": "x" * len(new), "meta_info": meta(prompt + new, len(new), self.version, finish, said)}


def packed(rows: np.ndarray) -> str:
    """Returns the rows in the form in which SGLang sends them: base64 of int32."""
    return base64.b64encode(rows.astype(np.int32).tobytes()).decode()


def meta(tokens: list[int], new: int, version: int, finish: str, said: dict[str, Any]) -> dict[str, Any]:
    answer = {
        "output_token_logprobs": [[-1.0, token, None] for token in tokens[len(tokens) - new :]],
        "weight_version": str(version),
        "finish_reason": {"type": finish},
        "cached_tokens": 0,
        "prompt_tokens": len(tokens) - new,
    }
    if said.get("return_routed_experts"):
        answer["routed_experts"] = packed(routes(tokens, version))
    return answer


def filling(calls: Any, routed: dict[int, list[Any]]) -> Callable[[Any, Any], Any]:
    """Returns a function that changes the ids which the framework's own R3 replays: rows with a route keep their ids,
    and the others get the ids that the routers of `calls` chose.

    routed: for each layer and call, which rows have a route
    """
    import torch

    others = {layer: zip(maps, routed[layer], strict=True) for layer, maps in calls.maps.items()}

    def given(router: Any, ids: Any) -> Any:
        chosen, has_route = next(others[router.layer_number - 1])
        return torch.where(has_route[:, None], ids, chosen.nonzero()[:, 1].view(len(ids), -1))

    return given


def prepare(
    actor: Any, args: Args, layout: Any, recompute: str = "none", filler: Any = None, role: str = "actor"
) -> None:
    """Replaces the `init` of MegatronTrainRayActor, which requires a checkpoint. The actor gets a GPTModel under
    Megatron's own DistributedDataParallel and optimizer. Afterwards, `actor.seen` collects what the tests compare:
    `gradients` of each step, and the choices of the routers as `calls`.

    filler: arguments of `filling`, to change the ids of the framework's own R3; None: they stay as they are
    """
    import gpt
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    part("backends.megatron_utils.model").get_args = lambda: args
    timer = importlib.import_module(own.TIMER).Timer()
    own.start(args)
    if args.custom_megatron_init_path:  # The framework's `initialize.init` does this, too, before a model is built.
        part("utils.misc").load_function(args.custom_megatron_init_path)(args)
    config = layout.config(
        num_layers=args.num_layers,
        moe_layer_freq=args.moe_layer_freq,
        variable_seq_lengths=True,
        moe_enable_routing_replay=bool(args.moe_enable_routing_replay or args.use_routing_replay),
        **gpt.RECOMPUTE[recompute],
    )
    (module,) = layout.model(config, packed=True, position_embedding_type="none")
    if role == "critic":
        value = part("backends.megatron_utils.model_provider").LinearForLastLayer
        module.output_layer = value(input_size=config.hidden_size, output_size=1, config=config)
    calls = gpt.Calls([module])
    if args.use_routing_replay:
        own.replay_itself(gpt.routers([module]), filler and filling(*filler))
    model = [DistributedDataParallel(config, DistributedDataParallelConfig(), module)]
    model[0].role = role  # The framework's `initialize_model_and_optimizer` does this, too.
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=1e-3, clip_grad=0.0), model)
    seen = types.SimpleNamespace(calls=calls, gradients=[])
    step = optimizer.step

    def stepped() -> Any:
        seen.gradients.append({name: one.main_grad.clone() for name, one in module.named_parameters()})
        return step()

    optimizer.step = stepped
    if "train_wait" not in timer.start_time:
        timer.start("train_wait")
    actor.args, actor.role, actor.model, actor.optimizer, actor.seen = args, role, model, optimizer, seen
    actor.opt_param_scheduler = types.SimpleNamespace(step=lambda increment: None, get_lr=lambda group: 0.0)
    actor.weights_backuper = part("utils.tensor_backper").TensorBackuper.create(
        lambda: module.named_parameters(), single_tag=None
    )
    actor.weights_backuper.backup("actor")
    actor._active_model_tag = "actor"
    actor.prof = types.SimpleNamespace(step=lambda rollout_id: None)
    actor.weight_updater = types.SimpleNamespace(pop_metrics=dict)
    path = args.rollout_data_postprocess_path
    actor.rollout_data_postprocess = part("utils.misc").load_function(path) if path else None


def recorded(tokens: list[list[int]], times: int) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows that an engine with version 1 of the weights reported for MoE layers, each
    row `times` times."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for one in tokens:
        for row in routes(one, 1):
            for layer in range(1, LAYERS):
                rows[layer, tuple(sorted(row[layer].tolist()))] += times
    return rows


def counted(calls: Any) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts (layer, experts) over all rows of all calls of routers."""
    rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for layer, maps in calls.maps.items():
        for chosen in maps:
            rows.update((layer, tuple(row.nonzero().flatten().tolist())) for row in chosen)
    return rows
