"""What a replay attaches to a model: hooks that begin a pass before each call of a module and end the pass's forward
part after the call, a binding that gives each router its ids, and counters, which stay on the device until they are
read. Needs torch.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from routing_replay_trainer import ops
from routing_replay_trainer._core import invalid, unmet
from routing_replay_trainer._passes import Answer, ChunkPasses, Pass
from routing_replay_trainer.fetch import LIVE, REPLAYED, UNRECORDED, Batch
from routing_replay_trainer.metrics import Counters, layer_key


@dataclass(eq=False)
class PassHooks:
    """module: a model chunk, or another module that contains all routers that ask `passes`
    begin: called before each call of the module, with the arguments of the call; begins a pass in `passes`, or does
        nothing, so that the call routes live
    """

    module: Any
    passes: ChunkPasses
    begin: Callable[[Any, Any], None]

    def install(self) -> None:
        if _before in self.module._forward_pre_hooks.values():
            raise unmet("model", "is a copy of an attached model and has its hooks: attach after the copy is made")
        self._handles = [
            self.module.register_forward_pre_hook(_before, with_kwargs=True),
            self.module.register_forward_hook(_after, always_call=True),
        ]
        HOOKED[self.module] = self

    def remove(self) -> None:
        if HOOKED.get(self.module) is self:
            for handle in self._handles:
                handle.remove()
            del HOOKED[self.module]

    def before(self, arguments: Any, keywords: Any) -> None:
        if not in_backward():
            self.passes.backward_pass = None  # If a backward part has not ended by now, it has failed.
        self.begin(arguments, keywords)

    def after(self, output: Any) -> None:
        if self.passes.forward_pass is None:
            return
        if output is None:  # The call raised an exception.
            self.passes.abandon()
            return
        ended = self.passes.end_forward()
        if ended.keep is not None:
            ended.keep()
        if ended.forward_only:
            return
        leaves = torch.utils._pytree.tree_leaves(output)
        outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            self.passes.end_backward(ended)
        for tensor in outputs:
            tensor.register_hook(lambda _, of=ended: self._backward(of))
            if tensor._is_view() and tensor._base.requires_grad:
                # If a loss changes a view in place, hooks on the view are lost, but not those on its base.
                tensor._base.register_hook(lambda _, of=ended: self._backward(of))
        if in_backward():  # Recomputed by a checkpoint: perhaps no gradient of this output arrives to end the pass.
            self._end_with_backward(ended)

    def _backward(self, of: Pass) -> None:
        """Called when the gradient of an output arrives: begins the backward part of the pass, which ends when the
        autograd engine has finished the whole backward call."""
        if HOOKED.get(self.module) is not self:
            why = "its replay has been detached since, and routers that are recomputed would choose live"
            raise unmet("targets", f"{of.key}: {why}. Run backward before detach")
        self.passes.backward_pass = of
        self._end_with_backward(of)

    def _end_with_backward(self, of: Pass) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.passes.end_backward(of))


def in_backward() -> bool:
    """True if the autograd engine is the caller, which means that forward code is being recomputed."""
    return torch._C._current_graph_task_id() != -1


# The modules of attached models. A copy of such a model has the hooks, too, but its modules are not among these keys,
# so its hooks do nothing.
HOOKED: weakref.WeakKeyDictionary[Any, PassHooks] = weakref.WeakKeyDictionary()


@torch.compiler.disable
def _before(module: Any, arguments: Any, keywords: Any) -> None:
    if module in HOOKED:
        HOOKED[module].before(arguments, keywords)


@torch.compiler.disable
def _after(module: Any, arguments: Any, output: Any) -> None:
    if module in HOOKED:
        HOOKED[module].after(output)


_MOST = 512  # Tally adds up the counters of router calls on the device when it holds this many.
_COUNTED = ("replayed_rows", "unrecorded_rows", "live_rows", "pad_rows", "fallback_sequences")  # Fields of a batch.


class Tally:
    """Counts since the last `count_into`. Counts of router calls stay on the device until then."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()  # By the name in _COUNTED, and "sequences".
        self._overlap: dict[int, tuple[int, torch.Tensor]] = {}
        self._repeated: dict[int, torch.Tensor] = {}
        self._calls: list[torch.Tensor] = []

    def batch(self, batch: Batch) -> None:
        counts = {name: getattr(batch, name) for name in _COUNTED}
        self._rows.update(counts | {"sequences": len(batch.sequences)})

    def overlap(self, layer: int, counts: torch.Tensor, top_k: int) -> None:
        """counts: the result of `ops.compare` for one call of the layer's router"""
        before = self._overlap.get(layer)
        self._overlap[layer] = top_k, counts if before is None else counts + before[1]

    def called(self, counters: torch.Tensor) -> None:
        """Keeps the counters of one router call (`ops.Replayed.counters`). Does not wait for the device, and launches a
        kernel only when there are _MOST of them to add up."""
        self._calls.append(counters)
        if len(self._calls) == _MOST:
            self._calls = [torch.stack(self._calls).sum(0)]

    def repeat(self, layer: int, rows: torch.Tensor) -> None:
        """Adds to the count of rows whose choice differed in a recompute. rows: the number, as a tensor [] on the
        device"""
        self._repeated[layer] = rows + self._repeated.get(layer, 0)

    def count_into(self, counters: Counters) -> None:
        """Adds the counts to `counters`, under keys of the metrics table, and sets them to zero."""
        for name in _COUNTED:
            counters.count(name, self._rows[name])
        rows = {name: self._rows[f"{name}_rows"] for name in ("replayed", "unrecorded", "live")}
        for name, count in rows.items():
            counters.ratio(f"{name}_fraction", count, sum(rows.values()))
        counters.ratio("fallback_fraction", self._rows["fallback_sequences"], self._rows["sequences"])
        for layer, (top_k, tensor) in self._overlap.items():
            rows, different, disjoint, common = tensor.tolist()
            counters.ratio(layer_key("overlap", layer), common, rows * top_k)
            counters.count(layer_key("live_mismatch", layer), different)
            counters.ratio("no_overlap_fraction", disjoint, rows)
        for layer, differing in self._repeated.items():
            counters.count(layer_key("recompute_mismatch", layer), differing.item())
        if self._calls:
            total = torch.stack(self._calls).sum(0)
            counters.count("clamped_ids", total[ops.COUNTERS.index("clamped_ids")].item())
        self._calls.clear()
        self._rows.clear()
        self._overlap.clear()
        self._repeated.clear()


@dataclass(eq=False)
class Binding:
    """Connects a router with the passes of its chunk. module: the router
    name, layer: the router's path in the model, and the id of its layer
    passes: the passes of the router's chunk
    tally: counts the results of comparisons
    is_recompute: returns True if the router call in progress is a recompute
    """

    module: Any
    name: str
    layer: int
    passes: ChunkPasses
    tally: Tally
    is_recompute: Callable[[], bool]

    def ask(self, shape: tuple[int, ...], top_k: int) -> Answer | None:
        """Returns which ids this call uses; None if it belongs to no pass, and so routes live. shape: (N, E) of the
        router's scores. Raises InvalidArgumentError naming the router if the plan has another N, E or K, because
        Megatron's RouterReplay would silently accept ids with fewer rows or with another K."""
        answer = self.passes.ask(self.layer, recompute=self.is_recompute())
        if answer is None:
            return None
        layer = answer.of.batch.plan.layers[answer.slot]
        wanted = (answer.of.batch.plan.rows, layer.num_experts, layer.top_k)
        if (*shape, top_k) != wanted:
            raise invalid(
                "micro_batch",
                f"{self.name} routes {shape[0]} rows over {shape[1]} experts, {top_k} each, but the plan of "
                f"micro-batch {answer.of.key.micro_batch} has {wanted[0]} rows over {wanted[1]} experts, "
                f"{wanted[2]} each",
                "SHAPE",
            )
        return answer

    def ids(self, answer: Answer, device: Any) -> torch.Tensor:
        """Returns the compact ids [N, K] of the layer, on the device."""
        key = ("ids", answer.slot, device)
        return self._on(answer, key, lambda batch: batch.indices[answer.slot])

    def states(self, answer: Answer, device: Any) -> torch.Tensor:
        """Returns the row states [N] uint8 of the pass, on the device."""
        return self._on(answer, ("states", device), lambda batch: batch.states)

    def _on(self, answer: Answer, key: Any, of: Callable[[Batch], Any]) -> torch.Tensor:
        kept = answer.of.kept
        if key not in kept:
            kept[key] = torch.from_numpy(of(answer.of.batch)).to(key[-1], non_blocking=True)
        return kept[key]

    def replayed(
        self, answer: Answer, device: Any, live: Callable[[], torch.Tensor], *, live_pads: bool = False
    ) -> torch.Tensor:
        """Returns [N, K] int64: the recorded ids; for UNRECORDED and LIVE rows the choice that `live` makes.

        live_pads: if True and the micro-batch has padding, PAD rows choose live, too; else they take filler ids
        """
        batch, ids, wants_live = answer.of.batch, self.ids(answer, device).long(), self.wants_live(answer)
        # Both padding and last tokens with filler ids are in state PAD, but the plan's "pads" counts only padding.
        live_pads = live_pads and batch.plan.described["row_map"]["pads"] > 0
        has_live = live_pads or batch.unrecorded_rows + batch.live_rows > 0
        if has_live or wants_live:
            with torch.no_grad():
                chosen = live()
        if has_live:
            states = self.states(answer, device)
            alive = states != REPLAYED if live_pads else (states == UNRECORDED) | (states == LIVE)
            ids = torch.where(alive.unsqueeze(1), chosen, ids)
        if wants_live:
            self.seen(answer, chosen)
        self.used(answer, ids)
        return ids

    def chose(self, answer: Answer, chosen: torch.Tensor) -> None:
        """Call this in a pass that records or compares. chosen: the router's own choice [N, K], which it also uses"""
        self.seen(answer, chosen)
        self.used(answer, chosen)

    def seen(self, answer: Answer, chosen: torch.Tensor) -> None:
        """Call this with the live choice [N, K]. A pass that records stores the choice. Other passes count how much
        of it agrees with the ids that they replay (or would replay, in mode shadow). For a recompute, nothing is stored
        or counted, because that was done in the forward part."""
        if answer.recompute:
            return
        if answer.of.use == "record":
            self.ids(answer, chosen.device).copy_(chosen)
            return
        ids, states = self.ids(answer, chosen.device), self.states(answer, chosen.device)
        counts = ops.compare(chosen, ids, states)
        self.tally.overlap(self.layer, counts, chosen.shape[1])
        if answer.of.watch is not None:
            answer.of.watch.saw(answer.of.key.chunk, answer.of.batch, answer.slot, chosen, ids, counts)

    def called(self, answer: Answer, counters: torch.Tensor) -> None:
        """Adds the counters of a call of our operator, unless the call is a recompute."""
        if not answer.recompute:
            self.tally.called(counters)

    def wants_live(self, answer: Answer) -> bool:
        """True if a pass that replays also needs the live choice, to compare it with the record."""
        return answer.of.watch is not None and not answer.recompute

    def used(self, answer: Answer, chosen: torch.Tensor) -> None:
        """Call this with the choice [N, K] that the router uses. A recompute must use the choice of the forward pass,
        because otherwise gradients would not match the activations. In a watched pass, rows that differ are counted.
        Choices are compared as sets, because torch.topk's order depends on whether gradients are needed."""
        if answer.of.watch is None or answer.of.forward_only:
            return
        # Compared as int16, because torch cannot compare uint16; the bits of equal ids are equal.
        narrow = torch.uint8 if answer.of.batch.plan.layers[answer.slot].num_experts <= 256 else torch.int16
        choice, key = chosen.to(narrow).sort(1).values, ("used", answer.slot)
        if not answer.recompute:
            answer.of.kept[key] = choice
        elif key in answer.of.kept:
            self.tally.repeat(self.layer, (choice != answer.of.kept[key]).any(1).sum())
