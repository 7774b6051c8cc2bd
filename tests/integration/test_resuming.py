"""Workers that come back after a loss, or late, while the others train on several tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

import aiops
from aiops import BSP, SSP
from aiops.optim import Add
from local_jobs import local_job, together, until

SIZE = 16
STEPS = 60
FOR_EVER = 1_000_000


class Crash(Exception):
    """The end of a worker, for a test."""


async def open_tables(
    worker: aiops.Worker, pause: Callable[[], Awaitable[None]]
) -> list[aiops.Table]:
    first = await worker.table("a", SIZE, optimizer=Add(), consistency=BSP())
    await pause()
    second = await worker.table("b", SIZE, optimizer=Add(), consistency=BSP())
    return [first, second]


async def train(
    worker: aiops.Worker,
    tables: list[aiops.Table],
    done: list[int],
    crash_at: int = -1,
    steps: int = STEPS,
) -> None:
    async for step in worker.steps(steps):
        await together(table.pull(timeout_s=60) for table in tables)
        await together(table.push(np.ones(SIZE, np.float32)) for table in tables)
        done.append(step)
        if step == crash_at:
            raise Crash
        await asyncio.sleep(0)


def waits(cluster: aiops.LocalCluster) -> bool:
    """Whether a pull waits at a server for somebody's seal."""
    return any(table.pulls for server in cluster.servers for table in server._core.tables.values())


@pytest.mark.parametrize("apart", [False, True])
async def test_a_worker_that_comes_back_goes_on_with_the_others(apart: bool) -> None:
    """Also when these close rounds between its opening of one table and of the next."""
    async with local_job(2, on_worker_loss="continue") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        done: list[list[int]] = [[], []]

        async def no_pause() -> None:
            """Open the next one at once."""

        tables = await together(open_tables(worker, no_pause) for worker in workers)
        calm = asyncio.ensure_future(train(workers[0], tables[0], done[0]))
        with pytest.raises(Crash):
            await train(workers[1], tables[1], done[1], crash_at=20)
        await workers[1].close(Crash())
        await until(lambda: len(done[0]) > 30)
        again = await cluster.connect(name="worker-1")
        assert again.clock >= 20, "what it had sealed is not done again"

        async def pause() -> None:
            if apart:
                await until(lambda: waits(cluster) or calm.done())

        theirs = await open_tables(again, pause)
        await together([calm, train(again, theirs, done[1])])
        assert done[0] == list(range(STEPS))
        assert done[1][-1] == STEPS - 1
        assert done[1] == sorted(set(done[1]))
        await together(worker.barrier("end", timeout_s=60) for worker in (workers[0], again))
        await together(worker.close() for worker in (workers[0], again))


@pytest.mark.parametrize("rule", [BSP(), SSP(staleness=2)], ids=["bsp", "ssp"])
async def test_a_latecomer_of_two_tables_waits_for_nobody_who_waits_for_it(
    rule: aiops.BSP | aiops.SSP,
) -> None:
    """The others go on while it has opened one table and not yet the other."""
    async with local_job(2, on_worker_loss="continue") as cluster:
        early = await cluster.connect()
        names = ("a", "b")  # of which it opens the first, and the second when all wait for it
        mine = [await early.table(n, SIZE, optimizer=Add(), consistency=rule) for n in names]
        done: list[int] = []

        async def train_early() -> None:
            await train(early, mine, done)
            await early.finish()  # nobody waits for it from now on

        running = asyncio.ensure_future(train_early())
        await until(lambda: len(done) > 5)
        late = await cluster.connect()
        theirs = []
        for name in names:
            theirs.append(await late.table(name))
            await until(lambda: waits(cluster) or running.done())
        steps: list[int] = []
        await together([running, train(late, theirs, steps)])
        assert steps == list(range(STEPS)), "its own clock begins at 0"
        await together(worker.close() for worker in (early, late))


async def test_a_common_stop_is_at_one_clock_of_the_job() -> None:
    """Whoever came late has fewer clocks of its own; all the same it stops with the others."""
    async with local_job(on_worker_loss="continue") as cluster:
        early = await cluster.connect()
        table = await early.table("a", SIZE, optimizer=Add())
        done: list[int] = []
        steps: list[int] = []
        running = asyncio.ensure_future(train(early, [table], done, steps=FOR_EVER))
        await until(lambda: len(done) > 10)
        late = await cluster.connect()
        theirs = await late.table("a")
        also = asyncio.ensure_future(train(late, [theirs], steps, steps=FOR_EVER))
        await until(lambda: len(steps) > 5)
        await early.stop("enough")
        await together([running, also])
        assert len(done) < FOR_EVER
        assert early.postoffice.job_clock == late.postoffice.job_clock
        assert late.clock == len(steps) < early.clock
        await together(worker.barrier("end", timeout_s=60) for worker in (early, late))
        await together(worker.close() for worker in (early, late))
