"""routing-replay: carries the expert choices of a Mixture-of-Experts model from the rollout engine to the trainer.

    from routing_replay import Client, Geometry

    run = Client("server:7400").run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
    run.append("step1/0", rows, tokens=tokens, group=1, weight_version=17, seal=True)  # rows: ids [rows, layers, K]
    run.flush()
    back = run.read_one("step1/0", layers=[3, 4]).rows                                 # ids [rows, 2, K]

The asyncio forms are in routing_replay.aio; exceptions in routing_replay.errors.
"""

from routing_replay._native import VERSION as __version__
from routing_replay.appender import Appender
from routing_replay.client import Client
from routing_replay.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    RoutingReplayError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from routing_replay.geometry import Geometry, GroupLimit, ModelRouting
from routing_replay.local import LocalServer, local_server
from routing_replay.recorded import RecordedRows
from routing_replay.run import Run
from routing_replay.trajectory import NewTurn, Trajectory, Turn
from routing_replay.types import (
    Append,
    AppendOutcome,
    CheckpointOutcome,
    CheckpointProgress,
    Commit,
    Payload,
    Prefix,
    Provenance,
    ReleaseOutcome,
    RestoreOutcome,
    RunSettings,
    RunSummary,
    SampleRead,
    SampleRows,
    SampleState,
    ServerInfo,
    TokenCheck,
    WeightSpan,
    sample_handle,
    token_check,
)

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Append",
    "AppendOutcome",
    "Appender",
    "CancelledError",
    "CheckpointOutcome",
    "CheckpointProgress",
    "Client",
    "Commit",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "Geometry",
    "GroupLimit",
    "InternalError",
    "InvalidArgumentError",
    "LocalServer",
    "ModelRouting",
    "NewTurn",
    "NotFoundError",
    "OutOfRangeError",
    "Payload",
    "PermissionDeniedError",
    "Prefix",
    "Provenance",
    "RecordedRows",
    "ReleaseOutcome",
    "ResourceExhaustedError",
    "RestoreOutcome",
    "RoutingReplayError",
    "Run",
    "RunSettings",
    "RunSummary",
    "SampleRead",
    "SampleRows",
    "SampleState",
    "ServerInfo",
    "TokenCheck",
    "Trajectory",
    "Turn",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "WeightSpan",
    "__version__",
    "local_server",
    "sample_handle",
    "token_check",
]
