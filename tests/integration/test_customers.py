"""Several customers of one worker: their requests never collide, and rounds are the worker's."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiops import ASP, BSP, blocking
from aiops.errors import Closed, UsageError
from aiops.optim import Add
from local_jobs import local_job, pause, served, together, until
from van_bodies import resume

SIZE = 64


def ones() -> Any:
    return np.ones(SIZE, np.float32)


async def test_two_customers_that_push_the_same_numbers_are_not_taken_for_each_other() -> None:
    """Each numbers its pushes from 1; ps-lite's servers had no customer in the key of a repeat."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), consistency=ASP())
        async with worker.customer("left") as left, worker.customer("right") as right:
            theirs = [await user.table("w") for user in (left, right)]
            for round_ in range(20):
                await together(t.push(ones()) for t in (table, *theirs))
                for server in cluster.servers:  # what was not answered is sent again
                    for link in served(server)[:: 1 + round_ % 2]:
                        link.stream.abort()
            assert (await theirs[0].pull() == 60).all()
        assert (await table.pull() == 60).all()


async def test_rounds_have_the_pushes_of_all_customers_of_a_worker() -> None:
    async with local_job(2) as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        tables = await together(worker.table("w", SIZE, optimizer=Add()) for worker in workers)
        async with workers[0].customer("other") as other:
            mine = await other.table("w")
            assert mine is await other.table("w")
            for clock in range(5):
                assert (await mine.pull() == 2 * clock).all()
                pushes = [mine.push_soon(2 * ones())]  # `tick` waits for it
                await together([tables[0].push(ones()), tables[1].push(ones())])
                await together(worker.tick() for worker in workers)
                assert all(push.done() for push in pushes)
            # The mean of 3 and 1: the two customers are one contributor.
            assert (await tables[1].pull() == 10).all()
        await together(worker.close() for worker in workers)


@pytest.mark.parametrize("servers", [1, 2])
async def test_push_pull_of_a_customer_seals_only_what_has_arrived(servers: int) -> None:
    """The seal goes over the worker's connection, the push over the customer's."""
    async with local_job(servers) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), consistency=BSP(reduce="sum"))
        async with worker.customer("other") as other:
            view = await other.table("w")
            for clock in range(1, 6):
                background = table.push_soon(ones())
                assert (await view.push_pull(ones()) == 2 * clock).all()
                assert background.done()
                await worker.tick()


async def test_a_transfer_that_stands_still_does_not_hold_up_another_customer() -> None:
    """Its window is full, and its connection takes no more."""
    async with local_job() as cluster, cluster.connect() as worker:
        big = await worker.table("big", 8_000_000, consistency=ASP())
        small = await worker.table("small", SIZE, optimizer=Add(), consistency=ASP())
        async with worker.customer("small-requests") as user:
            pause(cluster.servers[0])
            bulk = asyncio.ensure_future(big.push(np.ones(8_000_000, np.float32)))
            for link in served(cluster.servers[0]):
                if link.hello.customers > 1:
                    resume(link.stream)
            view = await user.table("small")
            assert (await view.push(ones(), timeout_s=60)).status == "applied"
            assert (await view.pull(timeout_s=60) == 1).all()
            assert not bulk.done()
            for link in served(cluster.servers[0]):
                link.stream.abort()
            await bulk
        assert (await small.pull() == 1).all()


async def test_a_closed_customer_is_another_one_the_next_time() -> None:
    """Its numbers are known to the servers: who began again at 1 would be taken for a repeat."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), consistency=ASP())
        for count in range(1, 4):
            user = worker.customer("again")
            assert worker.customer("again") is user
            async with user:
                await (await user.table("w")).push(ones())
            with pytest.raises(Closed, match=r"worker\.customer makes another one"):
                await user.open()
            assert (await table.pull() == count).all()
        assert len(served(cluster.servers[0])) == 1


async def test_the_number_of_customers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiops.workers.customer_handle.CUSTOMERS_MAX", 3)
    async with local_job() as cluster, cluster.connect() as worker:
        for name in ("a", "b"):
            await worker.customer(name).open()
        with pytest.raises(UsageError, match="customer c: this worker has had 3 customers"):
            worker.customer("c")
        assert worker.stats()["servers"][0]["sent"] > 0


async def test_the_end_of_the_worker_is_that_of_its_customers() -> None:
    async with local_job() as cluster:
        async with cluster.connect() as worker:
            await worker.table("w", SIZE, optimizer=Add(), consistency=ASP())
            user = worker.customer("other")
            view = await user.table("w")
        with pytest.raises(Closed):
            await view.pull()
        await user.close()
        await until(lambda: not served(cluster.servers[0]))


def test_the_blocking_twin() -> None:
    with blocking.LocalCluster(2) as cluster, cluster.connect() as worker:
        table = worker.table("w", SIZE, optimizer=Add(), consistency=ASP())
        rows = worker.sparse_table("rows", 4, optimizer=Add(), consistency=ASP())
        with worker.customer("other") as other:
            other.table("w").push(ones())
            other.sparse_table("rows").push([7], np.ones((1, 4), np.float32))
        assert (table.pull() == 1).all()
        assert (rows.pull([7]) == 1).all()


async def test_sparse_tables_have_customers_too() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        rows = await worker.sparse_table("rows", 4, optimizer=Add())
        async with worker.customer("other") as other:
            view = await other.sparse_table("rows")
            row = np.ones((1, 4), np.float32)
            await together([rows.push([1, 2], np.repeat(row, 2, axis=0)), view.push([2], 2 * row)])
            await worker.tick()
            assert (await view.pull([1, 2]))[:, 0].tolist() == [1, 3]
