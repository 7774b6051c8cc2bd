"""SSP through the public handles: who waits, who does not, and what the messages say."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP, SSP, Table, Worker
from aiops.consistency import Consistency
from aiops.errors import ConfigError, TableMismatch
from aiops.optim import Add

ONE = np.ones(3, np.float32)


async def opened(worker: Worker, staleness: int = 1, name: str = "w") -> Table:
    return await worker.table(
        name, shape=(3,), optimizer=Add(), consistency=SSP(staleness=staleness)
    )


async def test_a_worker_that_only_pushes_does_not_run_away() -> None:
    async def train(worker: Worker) -> int:
        table = await opened(worker, 1)
        await worker.barrier("open")
        if worker.rank == 1:
            await worker.barrier("stuck")
            await worker.finish()
            return 0
        for _ in range(2):
            await table.push(ONE)
            await worker.tick()
        pushing = asyncio.ensure_future(table.push(ONE))
        await worker.barrier("stuck")
        assert not pushing.done()
        await pushing
        return int((await table.pull())[0])

    async with aiops.LocalCluster(servers=2) as cluster:
        assert (await cluster.run(train, workers=2))[0] == 3


async def test_own_writes_are_seen_also_by_a_prefetch() -> None:
    async def train(worker: Worker) -> None:
        table = await opened(worker, 5)
        for step in range(4):
            table.prefetch()
            await table.push(ONE)
            assert (await table.pull())[0] >= step + 1
            await worker.tick()

    async with aiops.LocalCluster(servers=1) as cluster:
        await cluster.run(train, workers=1)


async def test_push_pull_and_updates_work_without_rounds() -> None:
    async with aiops.LocalCluster(servers=2) as cluster, cluster.connect() as worker:
        table = await opened(worker, 0)
        assert not table.has_rounds
        updates = aiter(table.updates())
        assert (await anext(updates))[1].tolist() == [0, 0, 0]
        assert (await table.push_pull(ONE)).tolist() == [1, 1, 1]
        while (newest := await anext(updates))[1][0] != 1:
            pass
        assert newest[0] == table.version
        await table.assign(7 * ONE)
        await worker.tick()
        await worker.finish()
        assert (await table.pull()).tolist() == [7, 7, 7]


async def test_a_late_worker_enters_near_the_others_and_nobody_waits_for_its_past() -> None:
    async with aiops.LocalCluster(servers=2) as cluster, cluster.connect(name="first") as first:
        table = await opened(first, 1)
        for _ in range(10):
            await table.push(ONE)
            await first.tick()
        async with cluster.connect(name="late") as late:
            second = await opened(late, 1)
            assert (await second.pull()).tolist() == [10, 10, 10]
            await second.push(ONE)
            await late.tick()
            for _ in range(2):
                await table.push(ONE)
                await first.tick()
            await second.push(ONE)
        assert (await table.pull()).tolist() == [14, 14, 14]


async def test_the_staleness_of_a_table_is_one_setting_for_all() -> None:
    async with aiops.LocalCluster(servers=1) as cluster, cluster.connect() as worker:
        await opened(worker, 1)
        with pytest.raises(TableMismatch, match="'staleness': 1"):
            await opened(worker, 2)
        with pytest.raises(ConfigError, match="pass BSP"):
            await worker.table("v", shape=(1,), consistency="ssp")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [ASP(), SSP(staleness=9)], ids=["asp", "ssp"])
async def test_the_staleness_of_gradients_is_counted(mode: Consistency) -> None:
    """The same by the workers that push and by the servers, whatever the way of reading."""
    async with aiops.LocalCluster(servers=2) as cluster:
        one = await cluster.connect(name="one")
        two = await cluster.connect(name="two")
        first, second = [
            await worker.table("w", shape=(40,), optimizer=Add(), consistency=mode)
            for worker in (one, two)
        ]
        ones = np.ones(40, np.float32)
        await first.push(ones)  # computed on nothing
        await first.pull()
        await second.pull()
        for _ in range(3):
            await second.push(ones)  # its own pushes make nothing stale
        await first.push(ones)
        first.prefetch()
        await first.pull()
        await second.push_pull(ones)
        await first.push(ones)
        await second.push(ones)
        assert one.stats()["tables"]["w"]["staleness"] == {1: 2, 3: 2}
        assert two.stats()["tables"]["w"]["staleness"] == {0: 6, 1: 4}
        status = await aiops.fetch_status(cluster.address)
        while "w" not in status["staleness"] or sum(status["staleness"]["w"].values()) < 14:
            await asyncio.sleep(0.05)
            status = await aiops.fetch_status(cluster.address)
        assert status["staleness"]["w"] == {"0": 6, "1": 6, "3": 2}
        for worker in (one, two):
            await worker.close()
