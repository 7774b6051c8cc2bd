"""Many workers, many tables, many pushes: nothing piles up."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.optim import Add
from local_jobs import local_job, parked_at, random_array, rank_ordered_mean, same_bits, together


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_64_workers_of_one_process_reach_a_barrier_and_train() -> None:
    async def train(worker: aiops.Worker) -> tuple[int, bytes]:
        assert worker.world_size == 64
        part = worker.shard(1000)
        table = await worker.table("w", (50, 4), optimizer=Add())
        await worker.barrier("start")
        async for step in worker.steps(5):
            await table.pull()
            await table.push(random_array((50, 4), step, worker.rank))
        await worker.barrier("end")
        return part.stop - part.start, (await table.pull()).tobytes()

    expected = np.zeros((50, 4), np.float32)
    for step in range(5):
        gradients = [random_array((50, 4), step, rank) for rank in range(64)]
        expected = expected + rank_ordered_mean(gradients, 64)
    async with local_job(2) as cluster:
        results = await cluster.run(train, workers=64)
    assert sum(part for part, _ in results) == 1000
    assert {values for _, values in results} == {expected.tobytes()}


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
async def test_two_thousand_pushes_leave_nothing_behind(consistency: Any) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=consistency)
        sizes = []
        for round_ in range(2):
            for count in range(1000):
                await table.push(np.ones(64, np.float32))
                if count % 10 == 0:
                    table.prefetch()
                    await table.pull()
                if count % 50 == 0:
                    await worker.tick()
            await worker.tick()
            await table.pull()
            sizes.append(remembered(worker, table, cluster))
            assert (await table.pull() == 1000 * (round_ + 1)).all()
        assert sizes[0] == sizes[1]
        stats = worker.stats()
        assert stats["latency"]["push"]["count"] == 2000
        assert 0 < stats["latency"]["push"]["p50_s"] <= stats["latency"]["push"]["p99_s"] < 1
        assert stats["bytes"]["retransmitted"] == 0
        payload = 2000 * 256
        assert payload < stats["bytes"]["pushed"] < payload + 2000 * 2 * 96 + 50 * 2 * 96
        assert set(stats["servers"]) == {0, 1}
        for traffic in stats["servers"].values():
            assert traffic["sent"] > payload / 2
            assert traffic["received"] > 0


def remembered(
    worker: aiops.Worker, table: aiops.Table, cluster: aiops.LocalCluster
) -> dict[str, int]:
    """Count everything that could pile up."""
    channels = [server.channel for server in worker.main_customer._servers.values()]
    for channel in channels:
        channel.validate()
    return {
        "operations": len(worker.main_customer._operations),
        "in flight": sum(len(channel._flight) for channel in channels),
        "queued": sum(channel.waiting for channel in channels),
        "awaited": len(table.core.writes._awaited),
        "alone": len(table.core.writes._alone),
        "seals": len(table.core.place._seals),
        "tasks": len(asyncio.all_tasks()),
        "parked": sum(parked_at(server) for server in cluster.servers),
        "pulls": sum(
            len(held.pulls) for server in cluster.servers for held in server._core.tables.values()
        ),
        "inboxes": sum(
            len(held.inboxes) for server in cluster.servers for held in server._core.tables.values()
        ),
    }


async def test_sixty_four_pushes_in_flight_at_once() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 2000, optimizer=Add(), consistency=ASP())
        for _ in range(5):
            await together(table.push(np.ones(2000, np.float32)) for _ in range(200))
        assert (await table.pull() == 1000).all()


async def test_two_jobs_of_one_process_do_not_mix() -> None:
    async def train(worker: aiops.Worker, value: float) -> float:
        table = await worker.table("w", 40, optimizer=Add())
        async for _ in worker.steps(10):
            await table.push(np.full(40, value, np.float32))
        return float((await table.pull())[0])

    async with local_job(2) as left, aiops.LocalCluster(2) as right:
        assert left.scheduler.job != right.scheduler.job
        results = await together(
            cluster.run(lambda worker, value=value: train(worker, value), workers=3)  # type: ignore[misc]
            for cluster, value in ((left, 1.0), (right, 2.0))
        )
    assert results == [[10.0] * 3, [20.0] * 3]


async def test_the_same_bytes_come_back_from_a_large_table() -> None:
    size = 16 * 1024 * 1024 // 4 + 3
    values = random_array((size,), 5)
    async with local_job(3) as cluster, cluster.connect() as worker:
        table = await worker.table("w", size, init=values, consistency=ASP())
        out = np.empty(size, np.float32)
        assert same_bits(await table.pull(out=out), values)
        await table.assign(-values)
        assert same_bits(await table.pull(), -values)
