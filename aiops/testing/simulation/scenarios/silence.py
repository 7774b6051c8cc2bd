"""Silence: what a worker does about connections that do not move, or hardly, while everybody lives.

In life: narrow links, a middlebox that forgets connections, links that fail one way and heal, and
workers that wait long for a slow one. A run has one kind of weather. No bit may be lost, nothing
that moves or waits by rule may be sent again, and what is dead must be noticed soon.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import numpy as np

from aiops.consistency import BSP
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.scenarios.common import HEARTBEAT_S, Broken, all_end, count
from aiops.workers.worker import Worker

__all__ = ["WEATHERS", "silence"]

WEATHERS: Final = ("narrow", "hole", "one-way", "waits", "fine")

ELEMENTS: Final = 60_000
"""On each server 120 KB a push: seconds on a narrow link, and less than a segment."""

NOTICED_S: Final = 9.0
"""By then a dead connection has been replaced: four missing notices, and seven RTOs."""

KERNEL_S: Final = 300.0
"""The kernel's own patience; nothing here may wait for it."""

ASKED_MAX: Final = 2
"""Questions per server and step to a worker that waits by rule: notices say the rest."""


async def silence(
    loop: SimLoop, seen: dict[str, int], *, workers: int = 2, servers: int = 2, steps: int = 4
) -> None:
    """Train under one kind of weather; look at the values, the time, and what was sent again."""
    cluster = SimCluster(loop, servers, workers=workers, heartbeat_s=HEARTBEAT_S)
    cluster.network.stall_timeout_s = KERNEL_S
    await cluster.start()
    weather = loop.rng.choice(WEATHERS)
    count(seen, weather)
    counted: list[dict[str, Any]] = []
    started = loop.create_future()

    async def train(worker: Worker) -> float:
        table = await worker.table(
            "counts", shape=(ELEMENTS,), optimizer=Add(), consistency=BSP(reduce="sum")
        )
        await worker.barrier("ready")
        if not started.done():
            started.set_result(loop.time())
        async for _ in worker.steps(steps):
            await table.pull()
            slow = weather == "waits" and worker.rank == 0
            await asyncio.sleep(loop.rng.uniform(5, 20) if slow else loop.rng.expovariate(20))
            await table.push(np.ones(ELEMENTS, np.float32))
        values = await table.pull()
        counted.append(worker.stats())
        if not (values == steps * workers).all():
            raise Broken(f"the values are {np.unique(values).tolist()}")
        return loop.time()

    running = [cluster.worker(f"worker-{rank}", train) for rank in range(workers)]
    begun_at = await started
    worst_s = await _WEATHERS[weather](cluster, workers, servers, steps)
    await all_end(running)
    took_s = max(task.result() for task in running) - begun_at
    await cluster.close()
    if took_s > worst_s:
        raise Broken(f"{weather}: it took {took_s:.1f} s, not {worst_s:.1f} s at most")
    _check(weather, counted, steps, seen)


def _check(weather: str, counted: list[dict[str, Any]], steps: int, seen: dict[str, int]) -> None:
    links = [link for stats in counted for link in stats["servers"].values()]
    replaced = sum(link["replaced"] for link in links)
    again = sum(stats["bytes"]["retransmitted"] for stats in counted)
    if weather == "hole":
        count(seen, "replaced", replaced)
    elif replaced or again:
        raise Broken(f"{weather}: {replaced} connections replaced, {again} bytes sent again")
    if weather == "waits" and any(link["asked"] > ASKED_MAX * steps for link in links):
        raise Broken(f"what waits by rule was asked about {links} times")


async def _narrow(cluster: SimCluster, workers: int, servers: int, steps: int) -> float:
    rate = cluster.loop.rng.uniform(3e4, 3e5)
    for one, other in _links(workers, servers):
        cluster.network.fault(one, other).rate_bytes_per_s = rate
        cluster.network.fault(other, one).rate_bytes_per_s = rate
    return 10.0 + 2 * (steps + 1) * 4 * ELEMENTS / servers / rate * 1.5


async def _hole(cluster: SimCluster, workers: int, servers: int, steps: int) -> float:
    holes, rng = 0, cluster.loop.rng
    for _ in range(rng.randint(1, 3)):
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        streams = [s for s in cluster.network.streams if _is_data(s.host, s.peer_host)]
        if streams:
            holes += 1
            cluster.network.swallow(rng.choice(streams))
    return 5.0 + NOTICED_S * holes


async def _one_way(cluster: SimCluster, workers: int, servers: int, steps: int) -> float:
    rng, down_s = cluster.loop.rng, 0.0
    for _ in range(rng.randint(1, 2)):
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        pair = list(rng.choice(_links(workers, servers)))
        rng.shuffle(pair)
        cluster.network.partition(*pair, both_ways=False)
        lasts_s = rng.uniform(0.5, 6.0)
        down_s += lasts_s
        await asyncio.sleep(lasts_s)
        cluster.network.repair(*pair)
    return 5.0 + down_s


async def _waits(cluster: SimCluster, workers: int, servers: int, steps: int) -> float:
    return 5.0 + 20.0 * steps


async def _fine(cluster: SimCluster, workers: int, servers: int, steps: int) -> float:
    return 5.0


_WEATHERS: Final = {
    "narrow": _narrow,
    "hole": _hole,
    "one-way": _one_way,
    "waits": _waits,
    "fine": _fine,
}


def _links(workers: int, servers: int) -> list[tuple[str, str]]:
    return [(f"worker-{w}", f"server-{s}") for w in range(workers) for s in range(servers)]


def _is_data(one: str, other: str) -> bool:
    return "scheduler" not in (one, other)
