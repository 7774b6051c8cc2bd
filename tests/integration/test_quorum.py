"""Quorums through the public handles: one that hangs blocks nobody, and all see one version."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import BSP, Quorum, Table, Worker
from aiops.consistency import Consistency, Late
from aiops.errors import ConfigError
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from aiops_protocol.payload import Float32Array
from bits import same_bits
from virtual_jobs import on_virtual_time

F = np.float32
ONE = np.ones(300, F)  # over three servers

GRACE_S = 0.1


async def opened(worker: Worker, mode: Consistency) -> Table:
    return await worker.table("w", shape=(300,), optimizer=Add(), consistency=mode)


@pytest.mark.parametrize(
    ("mode", "grace_s"),
    [(Quorum(3, grace_s=GRACE_S), GRACE_S), (BSP(drop_slowest=1), 0.0)],
    ids=["quorum", "drop-slowest"],
)
def test_one_that_hangs_costs_the_grace_and_no_more(mode: Consistency, grace_s: float) -> None:
    """The time of a round is at most the grace and 1.2 times that of the others."""
    step_s, rounds = 0.15, 4

    async def train(cluster: SimCluster, worker: Worker) -> list[float]:
        table = await opened(worker, mode)
        times: list[float] = []
        await worker.barrier("open")
        if worker.rank == 3:
            await worker.barrier("done")
            return times
        for _ in range(rounds):
            began = cluster.loop.time()
            await table.pull()
            await asyncio.sleep(step_s)
            await table.push(ONE)
            await worker.tick()
            await table.pull()
            times.append(cluster.loop.time() - began)
        await worker.barrier("done")
        return times

    *others, _ = on_virtual_time(train, servers=2, workers=4)
    for times in others:
        for took_s in times:
            assert step_s + grace_s <= took_s <= grace_s + 1.2 * step_s


@pytest.mark.parametrize("late", ["drop", "next"])
@pytest.mark.parametrize("servers", [1, 3])
async def test_who_was_away_goes_on_with_the_newest(late: Late, servers: int) -> None:
    """And what it had pushed before counts in the next round, or not at all."""
    mode = Quorum(2, grace_s=0, late=late)

    async def train(worker: Worker) -> list[str]:
        table = await opened(worker, mode)
        statuses = []
        if worker.rank == 2:
            statuses.append((await table.push(30 * ONE)).status)
        await worker.barrier("away")
        for _ in range(3 if worker.rank < 2 else 0):
            statuses.append((await table.push(ONE)).status)
            await worker.tick()
            await table.pull()
        await worker.barrier("back")
        if worker.rank == 2:
            statuses.append((await table.push(3 * ONE)).status)
            await worker.tick()
            assert (await table.pull()).tolist() == [3.0] * 300
            assert table.version == table.wanted_version == 3
            await table.push(np.zeros(300, F))
            await worker.tick()
            await table.core.place.settled()
            assert worker.stats()["tables"]["w"]["late"] == 1
        await worker.barrier("sealed")
        if worker.rank == 0:
            statuses.append((await table.push(6 * ONE)).status)
            await worker.tick()
        expected = 3 + (6 + 0) / 2 if late == "drop" else 3 + (6 + 33 + 0) / 3
        if worker.rank != 1:
            assert (await table.pull()).tolist() == [expected] * 300
        return statuses

    async with aiops.LocalCluster(servers=servers) as cluster:
        results = await cluster.run(train, workers=3)
    assert results[0] == ["applied"] * 4
    assert results[2] == ["applied", "dropped" if late == "drop" else "late"]


@pytest.mark.parametrize("mode", [Quorum(3, grace_s=60), BSP()], ids=["quorum", "bsp"])
async def test_when_nobody_is_late_it_is_bsp_to_the_bit(mode: Consistency) -> None:
    """Also its push_pull, and the values that a subscriber gets."""
    gradients = [np.linspace(-1, rank + 0.1, 300).astype(F) for rank in range(4)]

    async def train(worker: Worker) -> tuple[Float32Array, Float32Array]:
        table = await opened(worker, mode)
        await worker.barrier("open")
        updates = aiter(table.updates())
        assert (await anext(updates))[0] == 0
        values = await table.push_pull(gradients[worker.rank], weight=worker.rank + 1)
        await worker.tick()
        version, seen = await anext(updates)
        assert version == 1
        await worker.barrier("seen")
        return values, seen

    async with aiops.LocalCluster(servers=3) as cluster:
        results = await cluster.run(train, workers=4)
    total = gradients[0] * F(1)
    for rank in range(1, 4):
        total = total + gradients[rank] * F(rank + 1)
    expected = np.divide(total, F(10))
    for values, seen in results:
        assert same_bits(values, expected)
        assert same_bits(seen, expected)


async def test_a_worker_that_only_pushes_catches_up() -> None:
    """It hears of the newer version from the answers to what it pushes and seals."""

    async def train(worker: Worker) -> int:
        table = await opened(worker, Quorum(1, grace_s=0))
        await worker.barrier("open")
        if worker.rank == 0:
            for _ in range(5):
                await table.push_pull(ONE)
                await worker.tick()
            await worker.barrier("ahead")
            return 0
        await worker.barrier("ahead")
        assert (await table.push(ONE)).status == "dropped"
        await worker.tick()
        result = await table.push(ONE)
        assert result.status == "applied"
        return result.version

    async with aiops.LocalCluster(servers=2) as cluster:
        assert (await cluster.run(train, workers=2))[1] == 5


async def test_nonsense_is_refused_before_anything_is_made() -> None:
    async def train(worker: Worker) -> None:
        with pytest.raises(ConfigError, match="minimum=3 of 2 workers can never be reached"):
            await opened(worker, Quorum(3))

    async with aiops.LocalCluster(servers=1) as cluster:
        await cluster.run(train, workers=2)
