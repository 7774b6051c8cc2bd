"""Jobs of the real nodes on virtual time, for tests of how long something takes.

What a test says about seconds holds on any machine there, to the last digit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.seal import sealed
from aiops.workers.worker import Worker

T = TypeVar("T")


def on_virtual_time(
    main: Callable[[SimCluster, Worker], Awaitable[T]],
    *,
    workers: int = 1,
    servers: int = 1,
    delay_s: float = 1e-4,
    **options: Any,
) -> list[T]:
    """Run a job to its end; returns what `main` returns in each worker, in rank order.

    Every message takes `delay_s`. The options are those of `aiops.Scheduler`.
    """
    results: dict[int, T] = {}

    async def work(cluster: SimCluster, worker: Worker) -> None:
        rank = worker.rank
        results[rank] = await main(cluster, worker)

    async def job(cluster: SimCluster) -> None:
        await cluster.start()
        names = [f"worker-{rank}" for rank in range(workers)]
        await asyncio.gather(*(cluster.worker(name, partial(work, cluster)) for name in names))
        await cluster.close()

    with_virtual_time(job, servers=servers, workers=workers, delay_s=delay_s, **options)
    return [results[rank] for rank in range(workers)]


def with_virtual_time(
    job: Callable[[SimCluster], Awaitable[object]],
    *,
    servers: int = 1,
    delay_s: float = 1e-4,
    **options: Any,
) -> None:
    """Call `job` with a cluster that is not started yet, and close the loop after it."""
    loop = SimLoop(1)

    async def body() -> None:
        cluster = SimCluster(loop, servers, **options)
        cluster.network.delay_s, cluster.network.jitter_s = delay_s, 0.0
        await job(cluster)

    with sealed(loop):
        try:
            loop.run_until_complete(body())
        finally:
            loop.bury()
    assert not loop.strays
