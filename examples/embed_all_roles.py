"""All three roles inside a program that has its own event loop and its own work to do.

The program owns the loop. Scheduler, servers and workers are objects in it, next to a "service" of
the program's own that always has the newest weights, without asking for them.
"""

import asyncio

import numpy as np

import aiops
from aiops.optim import Momentum

STEPS = 60
TARGET = np.linspace(-1, 1, 1000, dtype=np.float32)


def join(scheduler, name):
    """Become a worker. Heartbeats need no thread where the scheduler shares the loop."""
    return aiops.connect(scheduler.address, name=name, heartbeat_thread=False)


async def open_weights(worker):
    return await worker.table("weights", TARGET.shape, optimizer=Momentum(lr=0.1, momentum=0.5))


async def train(scheduler, name):
    """Be a worker that pushes gradients."""
    async with join(scheduler, name) as worker:
        weights = await open_weights(worker)
        async for _ in worker.steps(STEPS):
            await weights.push(await weights.pull() - TARGET)


async def serve(scheduler):
    """Be a worker that contributes nothing (`finish` says so) and follows what the others do."""
    seen = 0
    async with join(scheduler, "service") as worker:
        weights = await open_weights(worker)
        await worker.finish()
        async for version, values in weights.updates():
            seen += 1
            if version == STEPS:
                return seen, float(np.abs(values - TARGET).max())


async def main():
    async with (
        aiops.Scheduler(servers=2, workers=3, end_when_idle=True) as scheduler,
        aiops.Server(scheduler.address, heartbeat_thread=False),
        aiops.Server(scheduler.address, heartbeat_thread=False),
    ):
        (seen, error), *_ = await asyncio.gather(
            serve(scheduler), train(scheduler, "trainer-1"), train(scheduler, "trainer-2")
        )
        ended = await scheduler.wait_ended()
    print(f"the service saw {seen} versions; the largest error is {error:.4f}")
    print(f"the job ended because {ended.reason}")


loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
finally:
    loop.close()
