"""Tests our adapters with the classes and functions of vLLM and SGLang that they rely on, taken from unpacked wheels.
The engines as a whole are not imported, because they need several GB: only some modules are imported, with empty
packages above them, and some definitions are compiled from the source."""

from __future__ import annotations
import __future__

import ast
import asyncio
import base64
import dataclasses
import importlib
import inspect
import io
import itertools
import os
import sys
import time
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "client/python/tests"))
import routing_replay as rr
from routing_replay.engines import attach, sglang
from routing_replay.engines.attach import _sglang, _vllm
from support import ServerTest, random_routes

SGLANG = Path(os.environ["RR_SGLANG"], "sglang")
VLLMS = [Path(name, "vllm") for name in os.environ["RR_VLLM"].split(":")]
GEOMETRY = rr.Geometry(num_layers=3, num_experts=64, top_k=4)
PROMPT, ANSWER = [11, 12, 13, 14, 15], [21, 22, 23]
ROUTES = random_routes(np.random.default_rng(29), len(PROMPT + ANSWER) - 1, 3, 64, 4)


def definitions(file: Path, *path: str) -> dict[str, ast.stmt]:
    """Returns the parsed functions and classes of a source file, by name, or those of a class in it."""
    body = ast.parse(file.read_text()).body
    for name in path:
        [body] = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name: node for node in body if isinstance(node, kinds)}


def taken(file: Path, names: tuple[str, ...], *path: str, **scope: Any) -> SimpleNamespace:
    """Compiles only these definitions of a source file, with `scope` as their globals, and returns them."""
    found = definitions(file, *path)
    module = ast.Module([found[name] for name in names], [])
    scope |= {"__name__": __name__, "Any": Any, "Optional": Optional}
    flags = __future__.annotations.compiler_flag
    exec(compile(module, file, "exec", flags, dont_inherit=True), scope)
    return SimpleNamespace(**{name: scope[name] for name in names})


def with_packages(*names: str, **root: Any) -> Any:
    """Returns a patch that puts empty packages in place of SGLang's own. Modules below them are still imported from the
    wheel, without the code of the packages."""
    modules = {}
    for name in names:
        modules[name] = types.ModuleType(name)
        modules[name].__path__ = [str(SGLANG.parent / name.replace(".", "/"))]
    vars(modules["sglang"]).update(root)
    return mock.patch.dict(sys.modules, modules)


class PeerTest(ServerTest):
    def setUp(self) -> None:
        self.client = rr.Client(self.server.endpoint)
        self.addCleanup(self.client.close)
        self.run_ = self.client.run(self.run_name, GEOMETRY)

    def stored(self, sample: str) -> None:
        rows = self.run_.read_one(sample)
        self.assertEqual((rows.status, rows.num_tokens), ("OK", len(PROMPT + ANSWER)), rows.message)
        np.testing.assert_array_equal(rows.rows, ROUTES)


class SglangTest(PeerTest):
    def setUp(self) -> None:
        super().setUp()
        openai = "sglang.srt.entrypoints.openai"
        packages = ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.utils", "sglang.srt.entrypoints", openai)
        stubs = with_packages(*packages, __version__=os.environ["RR_SGLANG_VERSION"])
        stubs.start()
        self.addCleanup(stubs.stop)
        sys.modules["sglang.utils"] = types.ModuleType("sglang.utils")
        sys.modules["sglang.utils"].convert_json_schema_to_str = str  # type: ignore[attr-defined]
        self.protocol = importlib.import_module(f"{openai}.protocol")
        self.hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        processes = [f"process_{name}_from_ret" for name in ("hidden_states", "routed_experts", "spec_tokens_details")]
        processes += ["process_cached_tokens_details_from_ret", "cached_tokens_details_from_dict"]
        self.scope = vars(self.protocol) | vars(
            taken(SGLANG / "srt/entrypoints/openai/utils.py", tuple(processes), **vars(self.protocol))
        )
        self.scope |= vars(importlib.import_module("sglang.srt.utils.weight_versions"))
        self.scope |= vars(importlib.import_module(f"{openai}.usage_processor"))
        self.scope |= {"get_serving": lambda: SimpleNamespace(enable_cache_report=False)}

    def output(self, **meta: Any) -> dict[str, Any]:
        """Returns an answer in the form that SGLang's generate_request yields."""
        counts = {"prompt_tokens": len(PROMPT), "completion_tokens": len(ANSWER), "cached_tokens": 0}
        meta = {"id": "q", "finish_reason": {"type": "length", "length": 3}, "weight_version": "7", **counts, **meta}
        meta["routed_experts"] = sglang_text(ROUTES)
        return {"text": "…", "output_ids": ANSWER, "prompt_token_ids": PROMPT, "meta_info": meta}

    def answers(self, outputs: list[dict[str, Any]], **asked: Any) -> Iterator[dict[str, Any]]:
        """Yields what the server's two OpenAI routes, for chats and for completions, return for these outputs."""
        options = {"model": "m", "return_routed_experts": True, "n": len(outputs), **asked}
        chat = self.protocol.ChatCompletionRequest(messages=[{"role": "user", "content": "?"}], **options)
        folder = SGLANG / "srt/entrypoints/openai"
        path, name = folder / "serving_chat.py", "_build_chat_response"
        build = vars(taken(path, (name,), "OpenAIServingChat", **self.scope))[name]
        yield build(Face(), chat, outputs, 0).model_dump(mode="json")
        options.pop("return_output_ids_in_sglext", None)
        completion = self.protocol.CompletionRequest(prompt="?", **options)
        path, name = folder / "serving_completions.py", "_build_completion_response"
        build = vars(taken(path, (name,), "OpenAIServingCompletion", **self.scope))[name]
        yield build(Face(), completion, outputs, 0).model_dump(mode="json")

    def test_the_plug_in_behind_the_real_hooks_and_models(self) -> None:
        class TokenizerManager:
            async def generate_request(self, request: Any, raw: Any = None) -> Any:
                yield parent.output()

        parent = self
        name = "sglang.srt.managers.tokenizer_manager"
        sys.modules["sglang.srt.managers"] = managers = types.ModuleType("sglang.srt.managers")
        sys.modules[name] = managers.tokenizer_manager = types.ModuleType(name)  # type: ignore[attr-defined]
        sys.modules[name].TokenizerManager = TokenizerManager  # type: ignore[attr-defined]
        asked = SimpleNamespace(rid="q", input_ids=PROMPT, return_routed_experts=True, routed_experts_start_len=0)
        names = {"ROUTING_REPLAY_RUN": self.run_name, "ROUTING_REPLAY_ENDPOINT": self.server.endpoint}
        with mock.patch.dict(os.environ, names):
            attach.sglang_plugin()
            self.hooks.HookRegistry.apply_hooks()
            [(_, hook, _)] = self.hooks.HookRegistry._hooks[_sglang.HOOKED]

            async def play() -> Any:
                hook.begin()
                deadline = time.monotonic() + 60
                while hook.attachment is None and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                outputs = [output async for output in TokenizerManager().generate_request(asked)]
                await asyncio.to_thread(hook.attachment.flush)
                return outputs

            outputs = asyncio.run(play())
        self.addCleanup(hook.attachment.detach)
        self.stored("q")
        for answer in self.answers(outputs):
            self.assertIn('"sample": "q"', answer["sglext"]["routed_experts"])

    def test_the_models_take_no_object(self) -> None:
        with self.assertRaisesRegex(ValueError, "valid string"):
            self.protocol.SglExt(routed_experts={"handle": {}})

    def test_a_chat_answer_tells_its_tokens_and_weights(self) -> None:
        spans = [{"version": "7", "start": 0, "end": len(ANSWER)}]
        asked = [{"return_token_ids": True}, {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}]
        for number, options in enumerate(asked):
            for answer in itertools.islice(self.answers([self.output(weight_versions=spans)], **options), 2 - number):
                recorded = sglang.rows(answer, GEOMETRY)
                self.assertEqual(recorded.tokens.tolist(), PROMPT + ANSWER)
                self.assertEqual([span.version for span in recorded.weights], [7])
        for answer in self.answers([self.output(), self.output()]):
            with self.assertRaisesRegex(rr.InvalidArgumentError, "must be in a choice"):
                sglang.rows(answer, GEOMETRY, 0)

    def test_rows_of_another_cache_are_unrecorded(self) -> None:
        file = SGLANG / "srt/managers/scheduler_components/output_streamer.py"
        told = taken(file, ("get_cached_tokens_details",), "SchedulerOutputStreamer").get_cached_tokens_details
        streamer = SimpleNamespace(enable_hicache_storage=lambda: True, _get_storage_backend_type=lambda: "file")
        for host, storage, missing in ((0, 0, 0), (1, 0, 3), (0, 1, 3)):
            counts = {"cached_tokens_device": 2, "cached_tokens_host": host, "cached_tokens_storage": storage}
            output = self.output(cached_tokens_details=told(streamer, SimpleNamespace(**counts)))
            self.assertEqual(sglang.rows(output, GEOMETRY, prompt_token_ids=PROMPT).missing_rows, missing)
            for answer in self.answers([output], return_cached_tokens_details=True):
                self.assertEqual(sglang.rows(answer, GEOMETRY).missing_rows, missing)

    def test_rows_are_read_where_an_answer_has_ended(self) -> None:
        """SGLang's source reads rows only where a request has finished. So only the last event of a stream has rows,
        and they are those of the last computation."""
        tree = ast.parse((SGLANG / "srt/managers/scheduler_components/batch_result_processor.py").read_text())
        reads = lambda part: {node for node in ast.walk(part) if is_reading(node)}  # noqa: E731
        ended = [node for node in ast.walk(tree) if isinstance(node, ast.If) and is_end(node)]
        found = set().union(*(reads(part) for node in ended for part in node.body))
        self.assertEqual((len(found), reads(tree)), (2, found))

    def test_the_servers_arguments(self) -> None:
        fields = {
            node.target.id
            for file in (SGLANG / "srt/arg_groups/fields").glob("*.py")
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        self.assertLessEqual({*_sglang.HIERARCHIES, _sglang.DELTAS[0], "disaggregation_mode"}, fields)


def is_reading(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "self._maybe_collect_routed_experts"


def is_end(node: ast.If) -> bool:
    return ast.unparse(node.test) == "req.finished()"


class Face:
    """Takes the place of SGLang's server where it builds an answer; it has no parsers and no templates."""

    chat_encoding_spec = reasoning_parser = None

    def __getattr__(self, name: str) -> Any:
        returns = {"_should_return_input_ids": "return_input_ids_in_sglext"}
        returns["_should_return_output_ids"] = "return_output_ids_in_sglext"
        if name in returns:
            return lambda request: getattr(request, returns[name])
        if name in ("_decode_response", "_settle_response_template_stop"):
            return lambda *_: "…"
        return (lambda *_: (None, None)) if name == "_get_parsed_response_fields" else lambda *_: None


def sglang_text(rows: np.ndarray) -> str:
    return base64.b64encode(rows.astype("<i4").tobytes()).decode()


class Core:
    """Acts like vLLM's LLMEngine, but answers at once."""

    def __init__(self, outputs: SimpleNamespace) -> None:
        self._outputs = outputs
        self._waiting: list[Any] = []

    def add_request(self, request_id: str, prompt: Any, params: Any, **_: Any) -> str:
        fields = {"text": "…", "token_ids": ANSWER, "cumulative_logprob": None, "logprobs": None, "index": 0}
        rows = ROUTES[params.routed_experts_prompt_start :].astype(np.uint8)
        choice = self._outputs.CompletionOutput(**fields, routed_experts=rows, finish_reason="length")
        self._waiting.append(self._outputs.RequestOutput(request_id, "?", PROMPT, None, [choice], True))
        return f"{request_id}-0a1b2c3d"

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[Any]:
        self._waiting, done = [], self._waiting
        return done[::-1]


class SamplingParams:
    output_kind = None

    def __init__(self, routed_experts_prompt_start: int = 0) -> None:
        self.routed_experts_prompt_start = routed_experts_prompt_start


def of_each_release(test: Callable[..., None]) -> Callable[..., None]:
    def run(self: Any) -> None:
        for vllm in VLLMS:
            with self.subTest(vllm=vllm.parent.name):
                test(self, vllm, vllm.parent.name.replace("=", "-"))

    return run


class VllmTest(PeerTest):
    def llm(self, vllm: Path) -> Any:
        """Returns an LLM whose methods are vLLM's own, from those that users call down to the calls of LLMEngine, which
        `Core` replaces."""
        scope: dict[str, Any] = {"dataclass": dataclasses.dataclass, "np": np}
        self.outputs = taken(vllm / "outputs.py", ("CompletionOutput", "RequestOutput"), **scope)
        scope |= vars(self.outputs) | {"PoolingRequestOutput": type(None), "SamplingParams": SamplingParams}
        scope |= {"maybe_tqdm": lambda items, **_: items, "prompt_to_seq": list, "conversation_to_seq": list}
        scope |= {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=2), "Sequence": list, "overload": lambda _: _}
        files = ("common/offline.py", "OfflineInferenceMixin"), ("llm.py", "LLM")
        methods: dict[str, Any] = {}
        for file, kind in files:
            path = vllm / "entrypoints" / file
            names = tuple(name for name in definitions(path, kind) if name not in ("__init__", "_make_config"))
            methods |= vars(taken(path, names, kind, **scope))
        methods = {name: method for name, method in methods.items() if inspect.isfunction(method)}
        methods |= {
            name: lambda self, prompt, *_, **__: prompt for name in ("_preprocess_cmpl_one", "_preprocess_chat_one")
        }
        methods["_resolve_mm_lora"] = lambda *_: None
        llm = type("LLM", (), methods)()
        llm.model_config = SimpleNamespace(runner_type="generate")
        llm.request_counter = itertools.count()
        llm.llm_engine = Core(self.outputs)
        return llm

    @of_each_release
    def test_an_llms_own_methods(self, vllm: Path, release: str) -> None:
        llm, plain = self.llm(vllm), SamplingParams()
        name = lambda output, index: f"{release}/{output.request_id}"  # noqa: E731
        with attach.vllm(llm, self.run_, sample=name) as attachment:
            llm.generate(["a", "b"], plain, use_tqdm=False)
            llm.chat([["c"]], plain, use_tqdm=False)
            llm.enqueue(["d"], plain, use_tqdm=False)
            llm.enqueue_chat([["e"]], plain, use_tqdm=False)
            llm.wait_for_completion(use_tqdm=False)
            llm.enqueue(["f"], plain, use_tqdm=False)
            self.assertEqual(len(llm.generate(["g"], plain, use_tqdm=False)), 2)
            attachment.flush()
            self.assertEqual(attachment.metrics()["not_recorded"], 0)
        for request in range(7):
            self.stored(f"{release}/{request}")

    @of_each_release
    def test_the_servers_encode_what_is_left(self, vllm: Path, release: str) -> None:
        scope = {"np": np, "io": io, "pybase64": base64}
        encode = taken(vllm / "utils/serial_utils.py", ("numpy2base64",), **scope).numpy2base64
        llm = self.llm(vllm)
        with attach.vllm(llm, self.run_, sample=lambda *_: release) as attachment:
            [[choice]] = [output.outputs for output in llm.generate(["a"], SamplingParams(), use_tqdm=False)]
            attachment.flush()
        self.assertIn(f'"sample": "{release}"', choice.routing_replay)
        with self.assertRaises(ValueError):
            encode({"handle": {}})
        for file in ("chat_completion/serving.py", "completion/serving.py"):
            tree = ast.parse((vllm / "entrypoints/openai" / file).read_text())
            [node] = [node for node in ast.walk(tree) if is_encoding(node)]
            self.assertIsNone(eval(ast.unparse(node.value), {"numpy2base64": encode, "output": choice}))

    @of_each_release
    def test_the_plug_in_behind_the_servers_own_lines(self, vllm: Path, release: str) -> None:
        generate = definitions(vllm / "v1/engine/async_llm.py", "AsyncLLM")["generate"]
        self.assertTrue(any(isinstance(node, ast.Yield) for node in ast.walk(generate)))
        self.assertEqual([argument.arg for argument in generate.args.args[:3]], ["self", "prompt", "sampling_params"])
        scope = {"np": np, "io": io, "pybase64": base64}
        texts = taken(vllm / "utils/serial_utils.py", ("numpy2base64",), **scope)
        serving = SimpleNamespace(numpy2base64=texts.numpy2base64)
        engine = SimpleNamespace(AsyncLLM=type("AsyncLLM", (), {"generate": None}))
        modules = {"vllm.v1.engine.async_llm": engine, "vllm.utils.serial_utils": texts, "serving": serving}
        with (
            mock.patch.dict(sys.modules, modules),  # type: ignore[arg-type]
            mock.patch.dict(os.environ, {"ROUTING_REPLAY_RUN": self.run_name}),
        ):
            attach.vllm_plugin()
        encode, found = serving.numpy2base64, 0
        for file in ("openai/chat_completion", "openai/completion", "scale_out/token_in_token_out"):
            for node in ast.walk(ast.parse((vllm / "entrypoints" / file / "serving.py").read_text())):
                if is_encoding(node):
                    for rows, text in (("{}", "{}"), (ROUTES, texts.numpy2base64(ROUTES)), (None, None)):
                        scope = {"numpy2base64": encode, "output": SimpleNamespace(routed_experts=rows)}
                        self.assertEqual(eval(ast.unparse(node.value), scope), text)
                    found += 1
        self.assertEqual(found, 4)

    @of_each_release
    def test_each_method_that_runs_the_engine_is_known(self, vllm: Path, release: str) -> None:
        pooling = {"encode", "embed", "classify", "score"}
        calls: dict[str, set[str]] = {}
        for file in (vllm / "entrypoints").rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and (node.name == "LLM" or "Offline" in node.name):
                    calls |= {name: called(part) for name, part in definitions(file, node.name).items()}
        runs = {"_run_engine"}
        while more := {name for name, inner in calls.items() if inner & runs} - runs:
            runs |= more
        known = set(_vllm._Offline().around(type("Llm", (), dict.fromkeys(calls))))
        self.assertLessEqual({"generate", "chat", "wait_for_completion", "beam_search"}, runs)
        self.assertLessEqual({name for name in runs if not name.startswith("_")} - pooling, known)


def is_encoding(node: ast.AST) -> bool:
    """Returns whether this statement encodes the rows of an output for an answer."""
    return isinstance(node, ast.Assign) and "numpy2base64(output.routed_experts)" in ast.unparse(node.value)


def called(part: ast.AST) -> set[str]:
    """Returns the names of the methods that a method calls on its own object (self)."""
    return {
        node.func.attr
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }


if __name__ == "__main__":
    unittest.main()
