"""Quorums: rounds that do not wait for the late, under faults. Nothing is half in or takes long.

In life: long rounds of workers that come and go, of which some hang.
"""

from __future__ import annotations

import asyncio

import numpy as np

from aiops.consistency import Late, Quorum
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

__all__ = ["quorums"]

AWAY_S = 2.0
"""How long one worker hangs at first."""

GRACE_S = 0.1
ROUND_S = 0.2
"""What a round may take besides the grace: messages of a simulated network take up to 50 ms."""

CALM_ROUNDS = 3


async def quorums(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 4,
    servers: int = 3,
    steps: int = 8,
    kills: int = 1,
) -> None:
    """Each push adds one to a column of its own, on every server; then the columns are read."""
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    late: Late = loop.rng.choice(["drop", "next"])
    minimum = loop.rng.choice([2, workers - 1])
    mode = Quorum(minimum, grace_s=GRACE_S, late=late, reduce="sum")
    shape = (16 * servers, steps * (workers + kills))
    numbers = iter(range(shape[1]))
    in_time: list[int] = []
    met: asyncio.Future[None] = loop.create_future()

    async def train(worker: Worker) -> None:
        if worker.incarnation == 1:
            calm = await worker.table("calm", shape=(48,), optimizer=Add(), consistency=mode)
            await worker.barrier("open")
            await _hang(loop, worker, calm)
            await worker.barrier("calm")
            if not met.done():
                met.set_result(None)
        table = await worker.table("counts", shape=shape, optimizer=Add(), consistency=mode)
        newest, before = 0, np.zeros(shape, np.float32)
        for _ in range(loop.rng.randint(steps // 2, steps)):
            number = next(numbers, None)
            values = await table.pull()
            if table.version < newest or not (values >= before).all():
                raise Broken("a read goes back")
            _check_parts(values)
            newest, before = table.version, values
            await asyncio.sleep(loop.rng.choice([0.005, 0.005, 0.3]))
            if number is None:
                return
            ones = np.zeros(shape, np.float32)
            ones[:, number] = 1
            result = await table.push(ones)
            count(seen, f"contribution {result.status}")
            if result.status == "applied" and late == "next":
                in_time.append(number)
            await worker.tick()

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
            await asyncio.sleep(loop.rng.expovariate(2))
            running[name] = start_again(cluster, name, train)
    await storm
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running.values())
    counts = await read(cluster, "counts")
    await cluster.close()
    _check(counts, late, kills, workers, in_time)


async def _hang(loop: SimLoop, worker: Worker, table: Table) -> None:
    """Let one worker hang: it costs the others the grace, and no more."""
    if worker.rank == 0:
        await asyncio.sleep(AWAY_S)
        return
    began = loop.time()
    for _ in range(CALM_ROUNDS):
        await table.pull()
        await table.push(np.ones(48, np.float32))
        await worker.tick()
    await table.pull()
    took_s = loop.time() - began
    if took_s > CALM_ROUNDS * (GRACE_S + ROUND_S):
        raise Broken(f"{CALM_ROUNDS} rounds took {took_s:.2f} s while one worker hung")


def _check_parts(values: Float32Array) -> None:
    if not (values == values[0]).all():
        raise Broken("a contribution is in some servers' parts and not in others'")


def _check(counts: Float32Array, late: Late, kills: int, workers: int, in_time: list[int]) -> None:
    if not np.isin(counts, (0, 1)).all():
        raise Broken(f"parts of pushes were applied {np.unique(counts).tolist()} times")
    _check_parts(counts)
    # Kept are all but those that a killed worker had not sealed, and the last late ones, after
    # which no round has closed any more.
    lost = sum(counts[0, number] == 0 for number in in_time)
    if late == "next" and lost > kills + workers:
        raise Broken(f"{lost} contributions that were kept are in no round")
