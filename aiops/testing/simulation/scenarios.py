"""Scenarios: what a simulated cluster does under faults, and what must be true afterwards.

conservation   workers push integers in ASP, die and come back; every acknowledged push is
               applied once, every other one once or not at all
agreement      workers train in BSP; the weights are those of a single process, bit for bit
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np

from aiops.consistency import ASP, BSP
from aiops.errors import AiopsError
from aiops.optim import SGD, Add
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.seal import sealed
from aiops.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["SCENARIOS", "Outcome", "run_scenario"]

HEARTBEAT_S: Final = 0.5


class Outcome(msgspec.Struct):
    """How a run ended.

    `failure` is empty when everything held. `seen` counts what happened in it, for the
    `sometimes` goals of a sweep: things that must happen in some run, or the sweep proves little.
    """

    seed: int
    scenario: str
    failure: str
    digest: str
    virtual_s: float
    turns: int
    seen: dict[str, int]


class Broken(Exception):
    """A promise does not hold."""


Scenario = Callable[[SimLoop, dict[str, int]], Awaitable[None]]


async def conservation(
    loop: SimLoop,
    seen: dict[str, int],
    *,
    workers: int = 4,
    servers: int = 3,
    pushes: int = 25,
    kills: int = 2,
) -> None:
    """Push integers under faults; count how often each part of each push was applied.

    Every push has elements of its own, some on each server, to which it adds one. At the end
    an element is 1 if that part was applied once, 0 if never, and anything else is a fault.
    """
    cluster = SimCluster(
        loop, servers, workers=workers, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
    )
    await cluster.start()
    width = 16 * servers
    total = pushes * workers * (kills + 1)
    acked: dict[int, None] = {}
    numbers = iter(range(total))
    done = {f"worker-{index}": 0 for index in range(workers)}

    async def push_all(worker: Worker) -> None:
        table = await worker.table(
            "counts", shape=(width, total), optimizer=Add(), consistency=ASP()
        )
        while done[worker.name] < pushes:
            number = next(numbers)
            ones = np.zeros((width, total), np.float32)
            ones[:, number] = 1
            rows = sorted(loop.rng.sample(range(width), loop.rng.randint(1, width)))
            await asyncio.sleep(loop.rng.expovariate(20))
            await table.push(ones[rows], rows=np.asarray(rows))
            acked[number] = None
            touched[number] = rows
            done[worker.name] += 1

    touched: dict[int, list[int]] = {}
    running = {name: cluster.worker(name, push_all) for name in done}
    nemesis = Nemesis(
        cluster,
        [*done, *(f"server-{index}" for index in range(servers))],
        mean_pause_s=0.2,
        gentle_s=4 * HEARTBEAT_S,
    )
    storm = loop.create_task(nemesis.run(3.0))
    for _ in range(kills):
        await asyncio.sleep(loop.rng.uniform(0.3, 1.5))
        name = loop.rng.choice(list(running))
        if not running[name].done():
            seen["kill"] = seen.get("kill", 0) + 1
            cluster.kill(name)
            await asyncio.sleep(loop.rng.expovariate(2))
            running[name] = cluster.worker(name, push_all)
    await storm
    for kind, count in nemesis.injected.items():
        seen[kind] = seen.get(kind, 0) + count
    await _all_end(running.values())
    counts = await _read(cluster, "counts")
    await cluster.close()
    if not np.isin(counts, (0, 1)).all():
        raise Broken(f"parts of pushes were applied {np.unique(counts).tolist()} times")
    for number in acked:
        if not (counts[touched[number], number] == 1).all():
            raise Broken(f"push {number} was acknowledged and is not there")
    seen["unknown"] = int(counts.any(axis=0).sum()) - len(acked)


async def agreement(
    loop: SimLoop, seen: dict[str, int], *, workers: int = 3, servers: int = 2, steps: int = 15
) -> None:
    """Train in BSP under faults that kill nobody; compare with a single process, bit for bit."""
    cluster = SimCluster(loop, servers, workers=workers, heartbeat_s=HEARTBEAT_S)
    await cluster.start()
    shape = (7, 11)

    def gradient(rank: int, step: int, weights: Float32Array) -> Float32Array:
        noise = np.random.Generator(np.random.Philox(key=[rank, step])).standard_normal(
            shape, np.float32
        )
        return weights * np.float32(0.3) + noise

    async def train(worker: Worker) -> Float32Array:
        table = await worker.table(
            "weights", shape=shape, init=0.5, optimizer=SGD(lr=0.1), consistency=BSP()
        )
        async for step in worker.steps(steps):
            weights = await table.pull()
            await asyncio.sleep(loop.rng.expovariate(30))
            await table.push(gradient(worker.rank, step, weights))
        return await table.pull()

    names = [f"worker-{rank}" for rank in range(workers)]
    running = [cluster.worker(name, train) for name in names]
    nemesis = Nemesis(
        cluster,
        [*names, *(f"server-{index}" for index in range(servers))],
        mean_pause_s=0.15,
        gentle_s=2 * HEARTBEAT_S,
    )
    await nemesis.run(2.0)
    for kind, count in nemesis.injected.items():
        seen[kind] = seen.get(kind, 0) + count
    await _all_end(running)
    await cluster.close()
    expected: Float32Array = np.full(shape, 0.5, np.float32)
    for step in range(steps):
        total = gradient(0, step, expected)
        for rank in range(1, workers):
            total = total + gradient(rank, step, expected)
        expected = (expected - np.float32(0.1) * (total / np.float32(workers))).astype(np.float32)
    for task in running:
        if task.result().tobytes() != expected.tobytes():
            raise Broken("the weights are not those of a single process")


async def _all_end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until all have ended; after the faults everything must come to rest."""
    try:
        async with asyncio.timeout(120):
            for task in tasks:
                await task
    except TimeoutError:
        raise Broken("120 s after the last fault somebody still waits") from None
    except AiopsError as error:
        raise Broken(f"after faults that everybody survives: {error!r}") from error


async def _read(cluster: SimCluster, name: str) -> Float32Array:
    async def read(worker: Worker) -> Float32Array:
        table = await worker.table(name)
        return await table.pull()

    task = cluster.worker("reader", read)
    await _all_end([task])
    values: Float32Array = task.result()
    return values


SCENARIOS: Final[dict[str, Scenario]] = {"conservation": conservation, "agreement": agreement}


def run_scenario(name: str, seed: int) -> Outcome:
    """Run one scenario with one seed, in a sealed simulation."""
    loop = SimLoop(seed)
    seen: dict[str, int] = {}
    failure = ""
    with sealed(loop):
        try:
            loop.run_until_complete(SCENARIOS[name](loop, seen))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if loop.strays and not failure:
            failure = f"an exception that nobody handled: {loop.strays[0]}"
        loop.bury()
    return Outcome(seed, name, failure, loop.digest, loop.time(), loop.turns, seen)
