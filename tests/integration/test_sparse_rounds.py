"""Rounds over rows as over elements: weights as in a dense table, a quorum with a late worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiops
import aiops.blocking
from aiops import ASP, BSP, Quorum, Worker
from aiops.consistency import Consistency, Late
from aiops.errors import UsageError
from aiops.optim import SGD, Add
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, same_bits

F = np.float32
KEYS = np.arange(100, dtype=np.uint64) * np.uint64(2**57)
"""On every server."""


@pytest.mark.parametrize("servers", [1, 3])
async def test_the_mean_of_rows_goes_by_samples(servers: int) -> None:
    """To the bit as in a dense table beside it; a clock without a weight counts one again."""

    async def train(worker: Worker) -> tuple[Float32Array, Float32Array]:
        rows = await worker.sparse_table("r", 3, optimizer=SGD(lr=0.5))
        dense = await worker.table("d", (100, 3), optimizer=SGD(lr=0.5))
        samples = 10 * worker.rank + 1
        for step, weight in enumerate([samples, None, 1 / samples]):
            gradient = np.random.default_rng([step, worker.rank]).normal(size=(100, 3)).astype(F)
            order = np.random.default_rng(worker.rank).permutation(100)
            await rows.push(KEYS[order], gradient[order], weight=weight)
            await dense.push(gradient, weight=weight)
            await worker.tick()
        return await rows.pull(KEYS), await dense.pull()

    async with local_job(servers=servers) as cluster:
        results = await cluster.run(train, workers=3)
    for found, expected in results:
        assert found.any()
        assert same_bits(found, expected)


async def test_weights_of_rows_count_whoever_has_a_key() -> None:
    """Who pushed is in the divisor of every row with its weight, as zeros of a dense table are."""

    async def train(worker: Worker) -> list[float]:
        table = await worker.sparse_table("r", 1, optimizer=Add())
        keys = KEYS if worker.rank == 0 else KEYS[:1]
        await table.push(keys, np.ones((len(keys), 1), F), weight=[3, 1][worker.rank])
        await worker.tick()
        values: list[float] = (await table.pull(KEYS))[:, 0].tolist()
        return values

    async with local_job(servers=2) as cluster:
        for values in await cluster.run(train, workers=2):
            assert values == [1.0] + [0.75] * 99


async def test_the_words_of_a_wrong_weight_are_those_of_a_dense_table() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        rows = await worker.sparse_table("t", 1, optimizer=Add())
        dense = await worker.table("d", (1, 1), optimizer=Add())
        one = np.ones((1, 1), F)

        async def refused(weight: Any, rows: Any = rows, dense: Any = dense) -> str:
            with pytest.raises(UsageError) as expected:
                await dense.push(one, weight=weight)
            with pytest.raises(UsageError) as found:
                await rows.push([1], one, weight=weight)
            assert str(found.value) == str(expected.value)
            return str(found.value)

        rows.core.title = dense.core.title = "the table"  # the names cannot be the same
        for weight in (0, -1, np.nan, np.inf, "many", True):
            assert "above 0" in await refused(weight)
        with pytest.raises(UsageError, match="shape"):  # and takes no weight of it
            await rows.push([1], np.ones((2, 1), F), weight=7)
        await rows.push([1], one, weight=2)
        await dense.push(one, weight=2)
        assert "in this clock has the weight 2" in await refused(3)
        await worker.tick()
        assert (await rows.pull([1])).tolist() == [[1.0]]
        modes: dict[str, Consistency] = {"asp": ASP(), "sum": BSP("sum")}
        for name, mode in modes.items():
            other = await worker.sparse_table(f"{name}-rows", 1, consistency=mode)
            twin = await worker.table(f"{name}-dense", (1, 1), consistency=mode)
            other.core.title = twin.core.title = "the table"
            assert 'only in tables with rounds and reduce="mean"' in await refused(2, other, twin)


def test_the_blocking_twin_passes_the_weight_on() -> None:
    def train(worker: aiops.blocking.Worker) -> float:
        table = worker.sparse_table("r", 1, optimizer=Add())
        table.push([5], np.full((1, 1), worker.rank, F), weight=[1, 3][worker.rank])
        worker.tick()
        return float(table.pull([5])[0, 0])

    with aiops.blocking.LocalCluster(servers=1) as cluster:
        assert cluster.run(train, workers=2) == [0.75, 0.75]


@pytest.mark.parametrize("late", ["drop", "next"])
@pytest.mark.parametrize("servers", [1, 3])
async def test_a_quorum_over_rows_does_not_wait_for_who_is_late(late: Late, servers: int) -> None:
    """What it pushed meanwhile counts in the next round with its weight, or not at all: then not
    even the row comes into being that nobody else has touched."""
    alone = 2**63 + 1
    asked = np.append(KEYS, np.uint64(alone))
    ones = np.ones((100, 1), F)

    async def train(worker: Worker) -> list[str]:
        table = await worker.sparse_table(
            "r", 1, optimizer=Add(), consistency=Quorum(2, grace_s=0, late=late)
        )
        statuses = []
        await worker.barrier("away")
        for _ in range(3 if worker.rank < 2 else 0):
            statuses.append((await table.push(KEYS, ones)).status)
            await worker.tick()
            await table.pull(KEYS)
        await worker.barrier("back")
        if worker.rank == 2:
            pushed = await table.push(asked, np.full((101, 1), 8, F), weight=2)
            statuses.append(pushed.status)
            await worker.tick()
            assert (await table.pull(asked))[:, 0].tolist() == [3.0] * 100 + [0.0]
            assert table.version == 3
            await table.push(KEYS, 0 * ones)
            await worker.tick()
            await table.core.place.settled()
            assert worker.stats()["tables"]["r"]["late"] == 1
        await worker.barrier("sealed")
        if worker.rank == 0:
            statuses.append((await table.push(KEYS, 6 * ones)).status)
            await worker.tick()
        if worker.rank != 1:
            # rank 0 with weight 1, rank 2 with 1 for its zeros, and with 2 for what came late
            everywhere, there = (6 / 2, 0.0) if late == "drop" else ((6 + 2 * 8) / 4, 2 * 8 / 4)
            values = (await table.pull(asked))[:, 0].tolist()
            assert values == [3 + everywhere] * 100 + [there]
        await worker.barrier("seen")
        return statuses

    async with local_job(servers=servers) as cluster:
        results = await cluster.run(train, workers=3)
        rows = sum(server._core.sparse_tables()["r"][0] for server in cluster.servers)
    assert results[0] == ["applied"] * 4
    assert results[2] == ["dropped" if late == "drop" else "late"]
    assert rows == (100 if late == "drop" else 101)
