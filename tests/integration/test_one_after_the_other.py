"""A cluster that outlives its workers: what one run leaves behind for the next."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.optim import Add
from van_bodies import GUARD_S

LOOPS = ["asyncio", "uvloop"]


@pytest.mark.asyncio(loop_factories=LOOPS)
async def test_a_stop_is_for_those_who_were_there() -> None:
    """A notebook that stops one run early and starts the next in the same cluster."""

    async def train(worker: aiops.Worker) -> int:
        done = 0
        async for step in worker.steps(10):
            done += 1
            if step == 3 and worker.rank == 0:
                await worker.stop("enough")
        return done

    async def train_whole(worker: aiops.Worker) -> int:
        return len([step async for step in worker.steps(10)])

    async with asyncio.timeout(GUARD_S), aiops.LocalCluster(servers=1) as cluster:
        first = await cluster.run(train, workers=2)
        assert first == [first[0]] * 2
        assert first[0] < 10
        assert await cluster.run(train_whole, workers=2) == [10, 10]


@pytest.mark.asyncio(loop_factories=LOOPS)
async def test_a_server_that_leaves_after_its_workers_does_not_fail_the_job() -> None:
    """The natural order of nested `async with` when all roles are embedded."""
    async with asyncio.timeout(GUARD_S), aiops.Scheduler(servers=1) as scheduler:
        async with (
            aiops.Server(scheduler.address, heartbeat_thread=False),
            aiops.connect(scheduler.address, heartbeat_thread=False) as worker,
        ):
            table = await worker.table("t", shape=(3,), optimizer=Add(), consistency=ASP())
            await table.push(np.ones(3, np.float32))
        ended = await scheduler.wait_ended()
        assert ended.ok
        assert "has left" in ended.reason
