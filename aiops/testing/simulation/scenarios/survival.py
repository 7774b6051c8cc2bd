"""Survival: BSP goes on when workers die, and nothing of a dead worker's round is half in.

In life: synchronous training with `on_worker_loss="continue"`. One worker may be frozen for so
long that it is declared dead, replaced under its name, and woken again: a zombie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from aiops.consistency import BSP
from aiops.errors import AiopsError
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.scenarios.common import HEARTBEAT_S, Broken, all_end, count, read
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["survival"]

FROZEN_S = 14 * HEARTBEAT_S
"""Longer than the six periods after which silence is death."""


async def survival(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 4,
    servers: int = 3,
    steps: int = 30,
    kills: int = 2,
) -> None:
    """Each push adds one to a column of its own, on every server; then the columns are read."""
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    shape = (16 * servers, steps * (workers + kills + 1))
    numbers = iter(range(shape[1]))
    sealed: list[int] = []

    async def train(worker: Worker) -> None:
        table = await worker.table(
            "counts", shape=shape, optimizer=Add(), consistency=BSP(reduce="sum")
        )
        for _ in range(steps):
            number = next(numbers, None)
            if number is None:
                return
            before = await table.pull()
            ones = np.zeros(shape, np.float32)
            ones[:, number] = 1
            await asyncio.sleep(loop.rng.expovariate(20))
            await table.push(ones)
            await worker.tick()
            after = await table.pull()
            if not (after[:, number] == 1).all() or not (after >= before).all():
                raise Broken(f"the round of push {number} has closed without it, or goes back")
            sealed.append(number)

    names = [f"worker-{rank}" for rank in range(workers)]
    running = {name: cluster.worker(name, train) for name in names}
    victims = [*names, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.3, gentle_s=2 * HEARTBEAT_S)
    storm = loop.create_task(nemesis.run(2.0))
    zombie = await _freeze_and_replace(cluster, running, train, seen)
    for _ in range(kills):
        await asyncio.sleep(loop.rng.uniform(0.1, 0.8))
        name = loop.rng.choice(list(running))
        if not running[name].done():
            count(seen, "kill")
            cluster.kill(name)
            del running[name]
    await storm
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running.values())
    if zombie is not None:
        await _must_have_failed(zombie)
    counts = await read(cluster, "counts")
    await cluster.close()
    _check(counts, sealed)


async def _freeze_and_replace(
    cluster: SimCluster,
    running: dict[str, asyncio.Task[None]],
    train: Callable[[Worker], Awaitable[None]],
    seen: dict[str, int],
) -> asyncio.Task[None] | None:
    """In some runs, freeze a worker until it is dead, replace it, and let it wake up."""
    loop = cluster.loop
    if loop.rng.random() < 0.5:
        return None
    name = loop.rng.choice(list(running))
    # Not before its first heartbeat: a node that has just joined has a longer grace.
    await asyncio.sleep(loop.rng.uniform(2 * HEARTBEAT_S, 3 * HEARTBEAT_S))
    frozen = cluster.processes[name]
    if running[name].done() or frozen.stopped:
        return None
    count(seen, "zombie")
    zombie = running[name]
    frozen.stop()
    await asyncio.sleep(FROZEN_S)
    running[name] = cluster.worker(name, train, process=f"{name}-again")
    await asyncio.sleep(loop.rng.uniform(0.0, 1.0))
    frozen.go_on()
    return zombie


async def _must_have_failed(zombie: asyncio.Task[None]) -> None:
    try:
        async with asyncio.timeout(60):
            await zombie
    except AiopsError:
        return
    except TimeoutError:
        raise Broken("a worker that was replaced waits for ever") from None
    raise Broken("a worker that was declared dead and replaced ended as if nothing had been")


def _check(counts: Float32Array, sealed: list[int]) -> None:
    if not np.isin(counts, (0, 1)).all():
        raise Broken(f"parts of pushes were applied {np.unique(counts).tolist()} times")
    if not (counts == counts[0]).all():
        raise Broken("a contribution is in some servers' parts and not in others'")
    for number in sealed:
        if counts[0, number] != 1:
            raise Broken(f"push {number} was seen in a closed round and is not there")
