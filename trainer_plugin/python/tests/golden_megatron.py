"""Compares the installed megatron-core, with the plugin attached to it, with a golden file of Megatron's own objects.

The golden runner calls golden_megatron.py FILE. The answer is one line of JSON per case: {"verdict": "passed" |
"failed" | "needs", "name", "words"}. If something is not installed, it is only one line {"needs": WHAT}.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

try:
    import megatron_models as models
    import numpy as np
    import torch
    from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(json.dumps({"needs": "megatron-core", "words": str(error)}))
    sys.exit(0)

import routing_replay_trainer as trainer
from routing_replay_trainer import megatron

NEEDS_MAIN = "megatron-core after 0.19 (a padding mask beside the expert bias)"


class Difference(Exception):
    """Describes the expected value and the actual one."""


class Needs(Exception):
    """This version of megatron-core lacks something that the case needs."""


def number(value: Any) -> float:
    return float(value)  # Also "nan", "inf" and "-inf".


def check(what: str, ours: Any, expected: Any) -> None:
    if ours != expected:
        raise Difference(f"{what} is {ours}, expected {expected}")


def check_close(what: str, ours: torch.Tensor, expected: Any, tolerance: float) -> None:
    theirs = np.vectorize(number, otypes=[np.float64])(np.array(expected, object))
    if ours.dtype == torch.float32:
        theirs = theirs.astype(np.float32).astype(np.float64)  # Written as the shortest decimal that gives it back.
    values = ours.detach().double().numpy()
    check(f"the shape of {what}", values.shape, theirs.shape)
    away = ~((np.abs(values - theirs) <= tolerance) | (~np.isfinite(theirs) & ~np.isfinite(values)))
    if away.any():
        at = tuple(int(i) for i in np.argwhere(away)[0])
        raise Difference(f"{what}{list(at)} is {values[at]}, expected {theirs[at]} within {tolerance}")


def experts(routing_map: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in routing_map]


def tensor(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def routing_map_of(rows: list[list[int]], num_experts: int) -> torch.Tensor:
    routed = torch.zeros(len(rows), num_experts, dtype=torch.bool)
    for row, ids in zip(routed, rows, strict=True):
        row[ids] = True
    return routed


# Cases of the kind router_forward, and the whole forward in router_parts: a model of one router, with the plugin
# attached.


class OneLayer(nn.Module):
    """A model with one router. Its forward calls `run(router, *arguments)`."""

    def __init__(self, config: Any, run: Callable[..., Any]) -> None:
        super().__init__()
        self.config, self._run = config, run
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList([nn.Module()])
        self.decoder.layers[0].router = models.TopKRouter(config, models.GROUPS)
        self.decoder.layers[0].router.set_layer_number(1)
        self.router = [self.decoder.layers[0].router]  # In a list, so that torch registers the module only once.

    def forward(self, *arguments: Any) -> Any:
        return self._run(self.router[0], *arguments)


def one_layer(given: dict[str, Any], num_experts: int, run: Callable[..., Any], **changes: Any) -> OneLayer:
    config = models.make_config(
        num_layers=1,
        num_moe_experts=num_experts,
        moe_router_topk=given["topk"],
        moe_router_score_function=given["score_function"],
        moe_router_topk_scaling_factor=given["scaling_factor"],
        moe_router_pre_softmax=given.get("use_pre_softmax", False),
    )
    bias = given["expert_bias"]
    for name, value in {"moe_router_enable_expert_bias": bias is not None, **changes}.items():
        setattr(config, name, value)
    model = OneLayer(config, run)
    if bias is not None:
        model.router[0].expert_bias.copy_(tensor(bias))
    return model


@contextlib.contextmanager
def replayed(model: OneLayer, given: dict[str, Any], inject: str, call: Callable[[], Any]) -> Iterator[Any]:
    """The result of `call` while the plugin replays the indices; rows are s-major. The plugin stays attached until the
    context ends, so the backward pass must be inside."""
    length, batch = given["seq_length"], given["batch_size"]
    ids = np.array(given["replay_indices"], np.int32).reshape(length, batch, 1, given["topk"])
    geometry = {"num_layers": 1, "num_experts": model.config.num_moe_experts, "top_k": given["topk"]}
    source = trainer.LocalSource(geometry)
    for place in range(batch):
        source.add(str(place), ids[:, place])
    # "strict" rejects a capacity factor, because Megatron then drops experts after the router.
    missing = "strict" if model.config.moe_expert_capacity_factor is None else "live"
    replay = megatron.attach(model, source=source, inject=inject, ranks={}, missing=missing)
    try:
        shape = {"format": "BSHD", "batch_size": batch, "padded_length": length}
        parts = [megatron.Sequence(str(place), rows=length) for place in range(batch)]
        with replay.micro_batch(parts, lengths=[length] * batch, index=0, **shape):
            outputs = call()
        yield outputs
    finally:
        replay.abandon_step()  # Some cases have no backward pass.
        replay.detach()


def router_forward(case: dict[str, Any]) -> None:
    given = case["input"]
    num_experts = len(given["logits"][0])
    changes = {
        "moe_router_load_balancing_type": given["load_balancing_type"],
        "moe_aux_loss_coeff": given["aux_loss_coeff"],
        "moe_z_loss_coeff": given["z_loss_coeff"],
        "moe_router_num_groups": given["num_groups"],
        "moe_router_group_topk": given["group_topk"],
        "moe_expert_capacity_factor": given["capacity_factor"],
        "moe_token_drop_policy": given["drop_policy"],
        "moe_pad_expert_input_to_capacity": given["pad_to_capacity"],
        "calculate_per_token_loss": given["calculate_per_token_loss"],
    }
    shape = given["seq_length"], given["batch_size"], num_experts
    mask = None if given["padding_mask"] is None else torch.tensor(given["padding_mask"], dtype=torch.bool)

    def run(router: Any, logits: torch.Tensor) -> Any:
        try:
            return router.routing(logits.view(shape), padding_mask=mask)
        except RuntimeError:
            if mask is not None and given["expert_bias"] is not None:
                raise Needs(NEEDS_MAIN) from None
            raise

    for action, inject in (("replay", "native"), ("replay", "fused"), ("live", "native")):
        with contextlib.ExitStack() as attached:
            model = one_layer(given, num_experts, run, **changes)
            model.train(given["training"])
            tracker = get_moe_metrics_tracker()
            tracker._metrics.clear()
            logits = tensor(given["logits"]).requires_grad_(given["grad_enabled"])
            with torch.set_grad_enabled(given["grad_enabled"]):
                if action == "replay":
                    probs, routing_map = attached.enter_context(
                        replayed(model, given, inject, lambda model=model, x=logits: model(x))
                    )
                else:
                    replay = model.router[0].router_replay
                    replay.set_router_replay_action(models.RouterReplayAction.RECORD)
                    probs, routing_map = model(logits)
            expected, tolerances = case["expect"][action], case["tol"].get(action, {})
            name = f"{action} ({inject})"
            if action == "live":
                recorded = replay.get_recorded_indices()
                ordered = given["grad_enabled"]  # Without gradients Megatron leaves the order of slots open.
                theirs = torch.tensor(expected["recorded_indices"])
                pair = (recorded, theirs) if ordered else (recorded.sort(1).values, theirs.sort(1).values)
                check(f"{name}: recorded", pair[0].tolist(), pair[1].tolist())
            check(f"{name}: routing_map", experts(routing_map), expected["routing_map"])
            check_close(f"{name}: probs", probs, expected["probs"], tolerances.get("probs", 1e-6))
            if "grad_logits" in expected:
                (probs * tensor(given["grad_probs"])).sum().backward()
                check_close(f"{name}: grad_logits", logits.grad, expected["grad_logits"], tolerances["grad"])
            if "local_tokens_per_expert" in expected:
                counted = model.router[0].local_tokens_per_expert.tolist()
                check(f"{name}: local_tokens_per_expert", counted, expected["local_tokens_per_expert"])
            logged = {key: entry.values.sum() for key, entry in tracker._metrics.items()}
            check(f"{name}: logged", sorted(logged), sorted(expected["logged"]))
            for key, value in logged.items():
                check_close(f"{name}: {key}", value, expected["logged"][key], tolerances.get("logged", 1e-5))


def router_parts(case: dict[str, Any]) -> None:
    PARTS[case["input"]["function"]](case["input"], case["expect"], case["tol"])


def aux_scores(given: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    mask = None if given["padding_mask"] is None else torch.tensor(given["padding_mask"], dtype=torch.bool)
    routing_map, scores = models.moe_utils.compute_routing_scores_for_aux_loss(
        tensor(given["logits"]), given["topk"], given["score_function"], padding_mask=mask
    )
    check("routing_map", experts(routing_map), expected["routing_map"])
    check_close("scores", scores, expected["scores"], tolerance)


def token_dropping(given: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    probs = tensor(given["probs"])
    rows, num_experts = probs.shape
    routing_map = routing_map_of(given["routing_map"], num_experts)
    check("tokens_per_expert_before", routing_map.sum(0).tolist(), expected["tokens_per_expert_before"])
    capacity = models.moe_utils.get_capacity(rows * given["topk"], num_experts, given["capacity_factor"])
    check("capacity", capacity, expected["capacity"])
    kept_probs, kept = models.moe_utils.apply_router_token_dropping(
        probs,
        routing_map,
        router_topk=given["topk"],
        capacity_factor=given["capacity_factor"],
        drop_policy=given["drop_policy"],
        pad_to_capacity=given["pad_to_capacity"],
    )
    check("tokens_per_expert_after", kept.sum(0).tolist(), expected["tokens_per_expert_after"])
    if "probs" in expected:
        check_close("probs", kept_probs, expected["probs"], tolerance)
    if "routing_map" in expected:
        check("routing_map", experts(kept), expected["routing_map"])


def map_padding(given: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    routing_map = routing_map_of(given["routing_map"], given["num_experts"])
    padded = models.moe_utils.pad_routing_map(routing_map, given["pad_multiple"])
    check("routing_map", experts(padded), expected["routing_map"])
    check("tokens_per_expert", padded.sum(0).tolist(), expected["tokens_per_expert"])


def gating(given: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    dtype = getattr(torch, given["input_dtype"])
    logits = models.moe_utils.router_gating_linear(
        tensor(given["hidden"], dtype), tensor(given["weight"], dtype), None, getattr(torch, given["router_dtype"])
    )
    check("logits_dtype", str(logits.dtype), f"torch.{expected['logits_dtype']}")
    check_close("logits", logits, expected["logits"], tolerance)


def whole_forward(given: dict[str, Any], expected: dict[str, Any], tolerances: dict[str, float]) -> None:
    dtype = getattr(torch, given["input_dtype"])
    weight = tensor(given["weight"], dtype)
    shape = given["seq_length"], given["batch_size"], weight.shape[1]
    for inject in ("native", "fused"):
        model = one_layer(
            given,
            len(weight),
            lambda router, hidden: router(hidden),
            hidden_size=weight.shape[1],
            params_dtype=dtype,
            moe_router_dtype=None if given["router_dtype"] in (None, "default") else given["router_dtype"],
        )
        router = model.router[0]
        router.weight.data.copy_(weight)
        hidden = tensor(given["hidden"], dtype).view(shape).requires_grad_()
        with replayed(model, given, inject, lambda model=model, hidden=hidden: model(hidden)) as (probs, routing_map):
            (probs * tensor(given["grad_probs"], probs.dtype)).sum().backward()
        check(f"{inject}: probs_dtype", str(probs.dtype), f"torch.{expected['probs_dtype']}")
        check(f"{inject}: routing_map", experts(routing_map), expected["routing_map"])
        check_close(f"{inject}: probs", probs, expected["probs"], tolerances["probs"])
        rows = hidden.grad.view(-1, shape[2])
        check_close(f"{inject}: grad_hidden", rows, expected["grad_hidden"], tolerances["grad_hidden"])
        check_close(f"{inject}: grad_weight", router.weight.grad, expected["grad_weight"], tolerances["grad_weight"])


PARTS: dict[str, Callable[..., None]] = {
    "compute_routing_scores_for_aux_loss": aux_scores,
    "apply_router_token_dropping": token_dropping,
    "pad_routing_map": map_padding,
    "router_gating_linear": gating,
    "TopKRouter.forward": whole_forward,
}


# Cases of the kind replay_traces: the states of Megatron's RouterReplay, with the plugin attached to each instance and
# no micro-batch open.


class Trace:
    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._named: dict[str, torch.Tensor] = {
            name: torch.tensor(ids, dtype=torch.int64) for name, ids in given["tensors"].items()
        }
        self._logits = {name: tensor(rows) for name, rows in given["logits"].items()}
        self._buffers: dict[str, torch.Tensor] = {}
        self._outputs: dict[Any, torch.Tensor] = {}
        self._asked: list[dict[str, Any]] = []
        self._instances: list[Any] = []
        self._attached: list[Any] = []
        models.RouterReplay.clear_global_router_replay_instances()
        for _ in range(given["instances"]):
            self.new({})

    def detach(self) -> None:
        for replay in self._attached:
            replay.detach()

    def result(self, op: dict[str, Any]) -> dict[str, Any]:
        """The error or result of one op, in the format of the file."""
        said: dict[str, Any] = {}
        try:
            said = getattr(self, op["op"])(op) or {}
            said["raises"] = None
        except Exception as error:
            said["raises"] = type(error).__name__
        if op["op"] == "backward":
            said["recomputed_with"] = list(self._asked)
        said["registered"] = len(models.RouterReplay.global_router_replay_instances)
        said["state"] = [self._state(instance) for instance in self._instances]
        return said

    def new(self, op: dict[str, Any]) -> None:
        config = types.SimpleNamespace(
            num_layers=1, num_moe_experts=self._given["num_experts"], moe_router_topk=self._given["topk"]
        )
        model = OneLayer.__new__(OneLayer)
        nn.Module.__init__(model)
        model.config = config
        model.router = [TracedRouter(config)]
        model.gate = model.router[0]
        geometry = {"num_layers": 1, "num_experts": config.num_moe_experts, "top_k": config.moe_router_topk}
        self._attached.append(megatron.attach(model, source=trainer.LocalSource(geometry), ranks={}))
        self._instances.append(model.router[0].router_replay)

    def _call(self, instance: int, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return models.moe_utils.topk_routing_with_score_function(
            logits, self._given["topk"], router_replay=self._instances[instance], dense_output=True
        )

    def call(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"used": self._call(op["instance"], self._logits[op["logits"]])[1].tolist()}

    def forward(self, op: dict[str, Any]) -> dict[str, Any]:
        def run(logits: torch.Tensor) -> torch.Tensor:
            total = logits.new_zeros(())
            for instance in op["instances"]:
                probs, ids = self._call(instance, logits)
                self._asked.append({"instance": instance, "indices": ids.tolist()})
                total = total + probs.square().sum()
            return total

        self._asked.clear()
        logits = self._logits[op["logits"]].clone().requires_grad_()
        self._outputs[op["microbatch"]] = checkpoint(run, logits, use_reentrant=True)
        return {"used": list(self._asked)}

    def backward(self, op: dict[str, Any]) -> None:
        self._asked.clear()
        self._outputs.pop(op["microbatch"]).backward()

    def set_target(self, op: dict[str, Any]) -> None:
        self._instances[op["instance"]].set_target_indices(self._named[op["tensor"]])

    def set_replay_data(self, op: dict[str, Any]) -> None:
        models.RouterReplay.set_replay_data([self._named[name] for name in op["tensors"]])

    def set_action(self, op: dict[str, Any]) -> None:
        self._instances[op["instance"]].set_router_replay_action(models.RouterReplayAction(op["action"]))

    def clear_action(self, op: dict[str, Any]) -> None:
        self._instances[op["instance"]].clear_router_replay_action()

    def clear(self, op: dict[str, Any]) -> None:
        self._instances[op["instance"]].clear_indices()

    def set_global_action(self, op: dict[str, Any]) -> None:
        models.RouterReplay.set_global_router_replay_action(models.RouterReplayAction(op["action"]))

    def clear_global_action(self, op: dict[str, Any]) -> None:
        models.RouterReplay.clear_global_router_replay_action()

    def clear_global(self, op: dict[str, Any]) -> None:
        models.RouterReplay.clear_global_indices()

    def clear_instances(self, op: dict[str, Any]) -> None:
        models.RouterReplay.clear_global_router_replay_instances()

    def get_recorded_data(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"recorded": [self._name(ids) for ids in models.RouterReplay.get_recorded_data()]}

    def set_global_static_buffers(self, op: dict[str, Any]) -> None:
        shape = op["rows"], op["layers"], self._given["topk"]
        buffer = torch.full(shape, -7, dtype=getattr(torch, op["dtype"]))
        models.RouterReplay.set_global_static_buffers(buffer)
        self._buffers[op["buffer"]] = buffer

    def clear_global_static_buffers(self, op: dict[str, Any]) -> None:
        models.RouterReplay.clear_global_static_buffers()

    def read_buffer(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"buffer": self._buffers[op["buffer"]].tolist()}

    def _state(self, instance: Any) -> dict[str, Any]:
        action = instance.router_replay_action
        return {
            "action": None if action is None else action.value,
            "target": self._name(instance.target_topk_idx),
            "backward_fifo": [self._name(ids) for ids in instance.replay_backward_list],
            "recorded": self._name(instance.recorded_topk_idx),
        }

    def _name(self, ids: torch.Tensor | None) -> Any:
        if ids is None:
            return None
        for name, known in self._named.items():
            if ids is known:
                return name
        for name, buffer in self._buffers.items():
            if ids.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr():
                return f"view of {name}[:{len(ids)}]"
        return {"indices": ids.tolist()}


class TracedRouter(nn.Module):
    """The part of a router that the plugin attaches to."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.layer_number, self.router_replay = config, 1, models.RouterReplay()

    def routing(self) -> None: ...

    def gating(self) -> None: ...


def as_sets(value: Any) -> Any:
    """Sorts the ids of each row, because Megatron does not define their order if gradients are off."""
    if isinstance(value, dict):
        return {key: as_sets(item) for key, item in value.items()}
    if isinstance(value, list):
        rows = [as_sets(item) for item in value]
        return sorted(rows) if rows and all(isinstance(item, int) for item in rows) else rows
    return value


def replay_traces(case: dict[str, Any]) -> None:
    trace = Trace(case["input"])
    try:
        for place, (op, expected) in enumerate(zip(case["input"]["ops"], case["expect"]["results"], strict=True)):
            ours = trace.result(op)
            recorded = any(isinstance(state["recorded"], dict) for state in expected["state"])
            if op["op"] in ("forward", "backward", "get_recorded_data") or recorded:
                ours, expected = as_sets(ours), as_sets(expected)
            check(f"op {place}, {op['op']}: result", ours, expected)
    finally:
        trace.detach()


KINDS = {"replay_traces": replay_traces, "router_forward": router_forward, "router_parts": router_parts}


def run(kind: Callable[[dict[str, Any]], None], case: dict[str, Any]) -> dict[str, str]:
    try:
        # Megatron allocates the buffers of its routers on the current device.
        with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"):
            kind(case)
        return {"verdict": "passed"}
    except Needs as needs:
        return {"verdict": "needs", "words": str(needs)}
    except Difference as difference:
        return {"verdict": "failed", "words": str(difference)}
    except Exception as error:
        return {"verdict": "failed", "words": f"{type(error).__name__}: {error}"}


def load(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".zst":
        text = subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout
        return json.loads(text)["cases"]
    return json.loads(path.read_text())["cases"]


def main(path: Path) -> None:
    kind = KINDS[path.name.split(".")[0]]
    for case in load(path):
        print(json.dumps({"name": str(case.get("name", "")), "words": "", **run(kind, case)}), flush=True)


if __name__ == "__main__":
    # Megatron reduces its auxiliary losses over a group, here of this process alone.
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    main(Path(sys.argv[1]))
