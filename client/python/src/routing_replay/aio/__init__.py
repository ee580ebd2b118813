"""The client for asyncio: as routing_replay, with calls that are awaited.

    from routing_replay import Geometry
    from routing_replay.aio import Client

    async with Client("server:7400") as client:
        run = await client.run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
        await run.append("step1/0", rows, tokens=tokens, seal=True)
        await run.flush()

A client belongs to the event loop in which it is first used, and does not survive os.fork: its calls raise
FailedPreconditionError in the child, where a new one can be made.
"""

from routing_replay.aio.appender import Appender
from routing_replay.aio.client import Client
from routing_replay.aio.run import Run

__all__ = ["Appender", "Client", "Run"]
