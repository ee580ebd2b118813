"""routing-replay: carries the expert choices of a Mixture-of-Experts model from the rollout engine to the trainer.

    from routing_replay import Client, Geometry

    run = Client("server:7400").run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
    run.append("step1/0", rows, tokens=tokens, group=1, weight_version=17, seal=True)  # rows: ids [rows, layers, K]
    run.flush()
    back = run.read_one("step1/0", layers=[3, 4]).rows                                 # ids [rows, 2, K]

The asyncio forms are in routing_replay.aio; exceptions in routing_replay.errors.
"""

from routing_replay._native import VERSION
from routing_replay.appender import Appender as Appender
from routing_replay.client import Client as Client
from routing_replay.errors import AbortedError as AbortedError
from routing_replay.errors import AlreadyExistsError as AlreadyExistsError
from routing_replay.errors import CancelledError as CancelledError
from routing_replay.errors import DataLossError as DataLossError
from routing_replay.errors import DeadlineExceededError as DeadlineExceededError
from routing_replay.errors import FailedPreconditionError as FailedPreconditionError
from routing_replay.errors import InternalError as InternalError
from routing_replay.errors import InvalidArgumentError as InvalidArgumentError
from routing_replay.errors import NotFoundError as NotFoundError
from routing_replay.errors import OutOfRangeError as OutOfRangeError
from routing_replay.errors import PermissionDeniedError as PermissionDeniedError
from routing_replay.errors import ResourceExhaustedError as ResourceExhaustedError
from routing_replay.errors import RoutingReplayError as RoutingReplayError
from routing_replay.errors import UnauthenticatedError as UnauthenticatedError
from routing_replay.errors import UnavailableError as UnavailableError
from routing_replay.errors import UnimplementedError as UnimplementedError
from routing_replay.errors import UnknownError as UnknownError
from routing_replay.geometry import Geometry as Geometry
from routing_replay.local import LocalServer as LocalServer
from routing_replay.local import local_server as local_server
from routing_replay.run import Run as Run
from routing_replay.trajectory import NewTurn as NewTurn
from routing_replay.trajectory import Trajectory as Trajectory
from routing_replay.trajectory import Turn as Turn
from routing_replay.types import Append as Append
from routing_replay.types import AppendOutcome as AppendOutcome
from routing_replay.types import CheckpointOutcome as CheckpointOutcome
from routing_replay.types import Commit as Commit
from routing_replay.types import Payload as Payload
from routing_replay.types import RecordedRows as RecordedRows
from routing_replay.types import ReleaseOutcome as ReleaseOutcome
from routing_replay.types import RestoreOutcome as RestoreOutcome
from routing_replay.types import RunSettings as RunSettings
from routing_replay.types import SampleRead as SampleRead
from routing_replay.types import SampleRows as SampleRows
from routing_replay.types import SampleState as SampleState
from routing_replay.types import ServerInfo as ServerInfo
from routing_replay.types import TokenCheck as TokenCheck
from routing_replay.types import WeightSpan as WeightSpan
from routing_replay.types import sample_handle as sample_handle
from routing_replay.types import token_check as token_check

__version__ = VERSION
