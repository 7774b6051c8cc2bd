"""Agreement: BSP under faults that kill nobody gives the weights of a single process, bit for bit.

In life: synchronous training while connections break, links slow down and nodes stall.
"""

from __future__ import annotations

import asyncio

import numpy as np

from aiops.consistency import BSP
from aiops.optim import SGD
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.scenarios.common import HEARTBEAT_S, Broken, all_end, count
from aiops.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["agreement"]

SHAPE = (7, 11)
RATE = np.float32(0.1)
STEPS_TO_A_BARRIER = 6


async def agreement(
    loop: SimLoop, seen: dict[str, int], *, workers: int = 3, servers: int = 2, steps: int = 20
) -> None:
    """Train under faults; compare with the same arithmetic done in one place."""
    cluster = SimCluster(loop, servers, workers=workers, heartbeat_s=HEARTBEAT_S)
    await cluster.start()
    arrived: dict[int, int] = {}  # by step, at the barrier

    async def train(worker: Worker) -> Float32Array:
        table = await worker.table(
            "weights", shape=SHAPE, init=0.5, optimizer=SGD(lr=float(RATE)), consistency=BSP()
        )
        async for step in worker.steps(steps):
            if step % STEPS_TO_A_BARRIER == 0:
                arrived[step] = arrived.get(step, 0) + 1
                await worker.barrier("all")
                if arrived[step] != workers:
                    raise Broken(f"the barrier of step {step} opened for {arrived[step]} workers")
            weights = await table.pull()
            await asyncio.sleep(loop.rng.expovariate(30))
            if _takes_part(worker.rank, step):
                await table.push(_gradient(worker.rank, step, weights))
        return await table.pull()

    names = [f"worker-{rank}" for rank in range(workers)]
    running = [cluster.worker(name, train) for name in names]
    victims = [*names, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.15, gentle_s=2 * HEARTBEAT_S)
    await nemesis.run(2.0)
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running)
    await cluster.close()
    expected = _alone(workers, steps)
    for task in running:
        if task.result().tobytes() != expected.tobytes():
            raise Broken("the weights are not those of a single process")


def _takes_part(rank: int, step: int) -> bool:
    return (rank + step) % 4 != 0


def _gradient(rank: int, step: int, weights: Float32Array) -> Float32Array:
    source = np.random.Generator(np.random.Philox(key=[rank, step]))
    noise = source.standard_normal(SHAPE, np.float32)
    return weights * np.float32(0.3) + noise


def _alone(workers: int, steps: int) -> Float32Array:
    weights: Float32Array = np.full(SHAPE, 0.5, np.float32)
    for step in range(steps):
        ranks = [rank for rank in range(workers) if _takes_part(rank, step)]
        total = _gradient(ranks[0], step, weights)
        for rank in ranks[1:]:
            total = total + _gradient(rank, step, weights)
        weights = weights - RATE * (total / np.float32(len(ranks)))
    return weights
