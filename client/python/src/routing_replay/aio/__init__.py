"""The client for asyncio: as routing_replay, with calls that are awaited.

64 agents at once, which share one run, its queue and its connection:

    import asyncio

    from routing_replay import Geometry
    from routing_replay.aio import Client, Run

    async def agent(run: Run, name: str) -> None:
        trajectory = run.trajectory(name, group=7)
        context = await first_context(name)
        for _ in range(3):
            answer = await ask_engine(context, start=trajectory.next_row(context))
            context = answer.context
            await trajectory.add(answer.rows, tokens=context, start=answer.start, weight_version=17)
        await trajectory.seal()
        done = await run.commit(name, len(context))           # Of this sample alone.
        print(name, done.status)

    async def main() -> None:
        async with Client("server:7400") as client:
            run = await client.run("grpo-42", Geometry(num_layers=48, num_experts=128, top_k=8))
            await asyncio.gather(*(agent(run, f"step7/{i}") for i in range(64)))
            await run.flush()                                 # Raises what was refused.

What waits waits in threads of the library, which are none of the loop's executor; the loop goes on. A call that is
cancelled, or times out in asyncio.wait_for, raises when it has ended, which is soon: nothing touches its arguments any
more. Calls of one client may be made in several event loops; an appender with on_outcome belongs to one.

A client does not survive os.fork: in the child its calls raise FailedPreconditionError, where a new one can be made.
"""

from routing_replay.aio.run import Appender, Client, Run, Trajectory

__all__ = ["Appender", "Client", "Run", "Trajectory"]
