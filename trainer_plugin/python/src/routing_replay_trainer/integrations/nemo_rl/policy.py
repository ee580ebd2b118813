"""The policy's worker. It replays in the passes in which NeMo-RL's own replay would: log-probabilities and training."""

from __future__ import annotations

from typing import Any

from routing_replay_trainer import Sequence
from routing_replay_trainer.integrations import _shared

with _shared.importing("NeMo-RL and Megatron-Core"):
    import ray
    from nemo_rl.models.megatron import train
    from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
    from nemo_rl.models.policy.workers import megatron_policy_worker as worker

_forward_backward, _schedule = worker.megatron_forward_backward, train.get_forward_backward_func
replay: Any = None


def megatron_forward_backward(*, model: Any, use_router_replay: bool = False, **options: Any) -> Any:
    global replay
    schedule = _schedule()
    if use_router_replay:
        if replay is None:
            replay = _shared.attach(model, _shared.open_run(_shared.run_name()))
        schedule = _shared.replayed(replay, schedule, _describe)
    train.get_forward_backward_func = lambda: schedule
    return _forward_backward(model=model, **options)


def _describe(micro: Any) -> dict[str, Any]:
    """Returns the arguments of `micro_batch`. micro: a ProcessedMicrobatch of NeMo-RL"""
    data, packed = micro.data_dict, micro.packed_seq_params
    tokens, lengths = data["input_ids"].cpu(), data["input_lengths"].tolist()
    columns = data["routed_experts"][..., 0, 0].tolist()
    sequences = [_sequence(column[:length]) for column, length in zip(columns, lengths, strict=True)]
    if packed is not None:
        tokens = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
    return {"sequences": sequences, "tokens": tokens, "lengths": lengths, "packed_seq_params": packed}


def _sequence(column: list[int]) -> list[Sequence] | None:
    """Returns the pieces of a sequence; None if all of it routes live. The sample has a row for each token up to the
    end of the last answer, except the answer's last token. Text of the environment after the answer routes live."""
    handle, recorded = column[0], column.count(column[0])
    if handle in (0, -1):  # There were no rows, or no answer.
        return None
    behind = [Sequence(None, tokens=len(column) - recorded)] if recorded < len(column) else []
    return [Sequence(handle, rows=recorded - 1, tokens=recorded), *behind]


class Worker(worker.MegatronPolicyWorkerImpl):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        said = (config.get("router_replay") or {}).get("enabled", False)
        _shared.need(said, "policy.router_replay.enabled", said, "++policy.router_replay.enabled=true")
        super().__init__(config, *args, **kwargs)


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))
class MegatronPolicyWorker(Worker):
    pass


worker.megatron_forward_backward = megatron_forward_backward
