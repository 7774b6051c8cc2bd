"""Bounded: SSP under faults. Nobody reads older things than the bound allows, and it is reached.

In life: training on machines of which now this one is slow and now that one, with workers that
die, come back under their name, and take unequal numbers of steps.
"""

from __future__ import annotations

import asyncio

import numpy as np

from aiops.consistency import SSP
from aiops.optim import Add
from aiops.tables.table import Table
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.scenarios.common import (
    HEARTBEAT_S,
    Broken,
    all_end,
    count,
    read,
    start_again,
)
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["bounded"]

AWAY_S = 1.0
"""How long one worker does nothing at first: the others must come just to the bound."""


class _Pushes:
    """Who pushed what in which clock of the table, and where everybody is."""

    def __init__(self, staleness: int, most: int) -> None:
        self.staleness = staleness
        self.most = most
        self.by: dict[int, tuple[str, int]] = {}  # number: life of a worker, clock
        self.acknowledged: list[int] = []
        self.clocks: dict[str, int] = {}  # of those who take part
        self.spread = 0

    def needed(self, life: str, clock: int) -> list[int]:
        """Return what a read has to contain: all old enough, and all of one's own."""
        return [
            number
            for number in self.acknowledged
            if self.by[number][0] == life or self.by[number][1] < clock - self.staleness
        ]

    def check_gate(self, clock: int) -> None:
        behind = min(self.clocks.values(), default=clock)
        if behind < clock - self.staleness:
            raise Broken(f"at clock {clock} somebody went on while another was at {behind}")

    def completed(self, life: str) -> None:
        self.clocks[life] += 1
        spread = max(self.clocks.values()) - min(self.clocks.values())
        if spread > self.staleness + 1:
            raise Broken(f"workers are {spread} clocks apart")
        self.spread = max(self.spread, spread)


async def bounded(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 3,
    servers: int = 2,
    steps: int = 8,
    kills: int = 1,
) -> None:
    """Each push adds one to a column of its own on every server, so a read tells what is in it."""
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    staleness = loop.rng.choice([0, 1, 2])
    pushes = _Pushes(staleness, steps * (workers + kills) * 2)
    mode = SSP(staleness=staleness)
    shape = (16 * servers, pushes.most)
    met: asyncio.Future[None] = loop.create_future()

    async def train(worker: Worker) -> None:
        if worker.incarnation == 1:
            reach = await worker.table("reach", shape=(2,), optimizer=Add(), consistency=mode)
            await worker.barrier("open")
            await _reach(loop, worker, reach, staleness)
            await worker.barrier("reached")
            if not met.done():
                met.set_result(None)
        table = await worker.table("counts", shape=shape, optimizer=Add(), consistency=mode)
        life = f"{worker.name}/{worker.incarnation}"
        pushes.clocks[life] = table.wanted_version
        reads = loop.rng.random() < 0.7
        for _ in range(loop.rng.randint(steps // 2, steps)):
            await _step(loop, table, life, pushes, reads=reads)
            await worker.tick()
            pushes.completed(life)
        del pushes.clocks[life]

    names = [f"worker-{rank}" for rank in range(workers)]
    running = {name: cluster.worker(name, train) for name in names}
    await met
    victims = [*names, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.2, gentle_s=2 * HEARTBEAT_S)
    storm = loop.create_task(nemesis.run(1.0))
    for _ in range(kills):
        await asyncio.sleep(loop.rng.uniform(0.05, 0.5))
        name = loop.rng.choice(names)
        if not running[name].done():
            count(seen, "kill")
            cluster.kill(name)
            for life in [life for life in pushes.clocks if life.startswith(f"{name}/")]:
                del pushes.clocks[life]
            await asyncio.sleep(loop.rng.expovariate(2))
            running[name] = start_again(cluster, name, train)
    await storm
    count(seen, "bound reached", pushes.spread == staleness + 1)
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running.values())
    counts = await read(cluster, "counts")
    await cluster.close()
    if not np.isin(counts, (0, 1)).all() or not (counts[:, pushes.acknowledged] == 1).all():
        raise Broken("an acknowledged push is not in every part once")


async def _reach(loop: SimLoop, worker: Worker, table: Table, staleness: int) -> None:
    """Let one worker do nothing for a while: the others come to the bound, and no further."""
    back_at = loop.time() + AWAY_S
    if worker.rank == 0:
        await asyncio.sleep(AWAY_S)
    for clock in range(staleness + 2):
        await table.pull()
        await table.push(np.zeros(2, np.float32))
        await worker.tick()
        early = loop.time() < back_at - AWAY_S / 10
        if worker.rank and early and clock > staleness:
            raise Broken(f"{clock + 1} clocks were completed while another had done none")
        if worker.rank and not early and clock <= staleness:
            raise Broken(f"only {clock} clocks could be completed of {staleness + 1}")
    await table.pull()


async def _step(loop: SimLoop, table: Table, life: str, pushes: _Pushes, *, reads: bool) -> None:
    clock = table.wanted_version
    if reads:
        needed = pushes.needed(life, clock)
        values = await table.pull()
        pushes.check_gate(clock)
        if not (values[:, needed] == 1).all():
            raise Broken(f"a read at clock {clock} lacks pushes that are old enough, or its own")
    await asyncio.sleep(loop.rng.choice([0.005, 0.005, 0.1]))
    number = len(pushes.by)
    if number == pushes.most:
        return
    pushes.by[number] = life, clock
    ones: Float32Array = np.zeros(table.shape, np.float32)
    ones[:, number] = 1
    await table.push(ones)
    pushes.check_gate(clock)
    pushes.acknowledged.append(number)
