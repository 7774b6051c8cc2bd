"""Conservation: whatever happens, an acknowledged push is applied once, any other at most once.

In life: asynchronous training over a bad network, with workers that die and come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aiops.consistency import ASP
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
from aiops.testing.simulation.scenarios.sparse_rows import SparseRows
from aiops.workers.customer_handle import CustomerHandle
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["conservation"]

SPARSE = 1 / 3
"""Chance that a run has a sparse table."""

CUT = 0.03
"""Chance that a message between a worker and a server is lost, with its connection."""


async def conservation(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 8,
    servers: int = 4,
    pushes: int = 20,
    kills: int = 3,
) -> None:
    """Push integers under faults; count how often each part of each push was applied.

    Every push has elements of its own, some on each server, to which it adds one. At the end
    an element is 1 if that part was applied once, 0 if never, and anything else is a fault. Three
    pushes of four are small: those are repeated at once when their connection is lost. Of the
    others the server is asked first. In every third run some workers' next push goes to a sparse
    table. In half of the runs a worker has two customers, which number their pushes alike.
    """
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    shape = (4 * servers, pushes * workers * (kills + 1))
    rows_of: dict[int, list[int]] = {}
    acknowledged: list[int] = []
    numbers = iter(range(shape[1]))
    sparse = SparseRows(shape[1] // 3 + 1, loop.rng) if loop.rng.random() < SPARSE else None
    done = {f"worker-{index}": 0 for index in range(workers)}
    customers = 2 if loop.rng.random() < 0.5 else 1
    count(seen, "two customers", customers - 1)

    async def push_all(worker: Worker) -> None:
        users = [await _open(worker, shape)]
        if customers == 2:
            users.append(await _open(worker.customer("other"), shape))
        while done[worker.name] < pushes:
            number = next(numbers)
            rows = rows_of[number] = sorted(
                loop.rng.sample(range(shape[0]), loop.rng.randint(1, shape[0]))
            )
            await asyncio.sleep(loop.rng.expovariate(15))
            large, small = loop.rng.choice(users)
            if number % 4:
                await small.push(np.ones(len(rows), np.float32), rows=_small(rows, number, shape))
            else:
                ones = np.zeros((len(rows), shape[1]), np.float32)
                ones[:, number] = 1
                await large.push(ones, rows=np.asarray(rows))
            acknowledged.append(number)
            if sparse is not None and number % 3 == 0:
                await sparse.push(worker, number // 3, loop.rng)
                count(seen, "sparse push")
            done[worker.name] += 1

    running = {name: cluster.worker(name, push_all) for name in done}
    victims = [*done, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.2, gentle_s=4 * HEARTBEAT_S)
    _cut_data(cluster, list(done), servers)
    storm = loop.create_task(nemesis.run(2.0))
    for _ in range(kills):
        await asyncio.sleep(loop.rng.uniform(0.3, 0.9))
        name = loop.rng.choice(list(running))
        if not running[name].done():
            count(seen, "kill")
            cluster.kill(name)
            await asyncio.sleep(loop.rng.expovariate(2))
            running[name] = start_again(cluster, name, push_all)
    await storm
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running.values())
    counts = await _read_both(cluster, shape)
    if sparse is not None:
        await sparse.check(cluster)
    await cluster.close()
    _check(counts, rows_of, acknowledged)
    count(seen, "unacknowledged yet applied", int(counts.any(axis=0).sum()) - len(acknowledged))


def _cut_data(cluster: SimCluster, workers: list[str], servers: int) -> None:
    """Lose messages and make repeats: they are what this scenario is about."""
    for name in workers:
        for index in range(servers):
            cluster.network.fault(name, f"server-{index}").cut = CUT
            cluster.network.fault(f"server-{index}", name).cut = CUT


async def _open(user: Worker | CustomerHandle, shape: tuple[int, int]) -> tuple[Table, Table]:
    """Open both tables, as the worker itself or a further customer."""
    size = shape[0] * shape[1]
    large = await user.table("large", shape, optimizer=Add(), consistency=ASP())
    return large, await user.table("small", (size,), optimizer=Add(), consistency=ASP())


async def _read_both(cluster: SimCluster, shape: tuple[int, int]) -> Float32Array:
    counts = await read(cluster, "large")
    values = await read(cluster, "small")
    for number in range(shape[1]):
        counts[:, number] += values[_small(np.arange(shape[0]), number, shape)]
    return counts


def _small(
    rows: Sequence[int] | NDArray[np.int64], number: int, shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the places of a push in the table of small pushes: four neighbours on each server."""
    server, place = np.divmod(np.asarray(rows, np.int64), 4)
    return server * (4 * shape[1]) + 4 * number + place


def _check(counts: Float32Array, rows_of: dict[int, list[int]], acknowledged: list[int]) -> None:
    if not np.isin(counts, (0, 1)).all():
        raise Broken(f"parts of pushes were applied {np.unique(counts).tolist()} times")
    for number in acknowledged:
        if not (counts[rows_of[number], number] == 1).all():
            raise Broken(f"push {number} was acknowledged and is not there")
