"""Comeback: a killed worker that is started again goes on where the job is, in all its tables.

In life: synchronous training of several tables with `on_worker_loss="continue"`, under a supervisor
that starts again what has died. All come to the end of the loop together, and to the barrier there.
"""

from __future__ import annotations

import asyncio

import numpy as np

from aiops.consistency import BSP
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.scenarios.common import (
    HEARTBEAT_S,
    Broken,
    all_end,
    count,
    start_again,
)
from aiops.workers.worker import Worker

__all__ = ["comeback"]

APART_S = 0.3
"""Mean time between two openings: others go on in between."""


async def comeback(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 3,
    servers: int = 2,
    tables: int = 2,
    steps: int = 30,
    kills: int = 2,
) -> None:
    """Train with kills and restarts; nobody does a step again whose round it has seen closed."""
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    closed: dict[str, int] = {}  # by name: the steps below this are in a closed round
    ended: list[int] = []

    async def train(worker: Worker) -> None:
        opened = []
        for index in range(tables):
            opened.append(
                await worker.table(f"t{index}", 16 * servers, optimizer=Add(), consistency=BSP())
            )
            if worker.incarnation > 1:
                await asyncio.sleep(loop.rng.expovariate(1 / APART_S))
        first = True
        async for step in worker.steps(steps):
            if first and step < closed.get(worker.name, 0):
                raise Broken(f"{worker.name} does step {step} again, whose round has closed")
            first = False
            if loop.rng.random() < 0.5:  # who does not pull runs ahead, and its pushes wait
                for table in opened:
                    await table.pull()
                closed[worker.name] = step
            ack = loop.rng.choice(["received", "applied"])
            await asyncio.sleep(loop.rng.expovariate(20))
            for table in opened:
                result = await table.push(np.ones(16 * servers, np.float32), ack=ack)
                count(seen, result.status)
        await worker.barrier("end", timeout_s=60.0)
        ended.append(worker.postoffice.job_clock)

    names = [f"worker-{rank}" for rank in range(workers)]
    running = {name: cluster.worker(name, train) for name in names}
    victims = [*names, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.3, gentle_s=2 * HEARTBEAT_S)
    storm = loop.create_task(nemesis.run(2.0))
    for _ in range(kills):
        await asyncio.sleep(loop.rng.uniform(0.2, 1.0))
        name = loop.rng.choice(names)
        if not running[name].done():
            count(seen, "kill")
            cluster.kill(name)
            await asyncio.sleep(loop.rng.expovariate(2))
            running[name] = start_again(cluster, name, train)
    await storm
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running.values())
    await cluster.close()
    if max(ended) - min(ended) > 1:
        raise Broken(f"the loops ended at clocks {sorted(ended)} of the job")
