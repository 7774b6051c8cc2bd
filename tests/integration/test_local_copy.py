"""The local copy: refreshed by pulls, stepped here, and its difference pushed."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import ConfigError, NodeFailed, UsageError
from aiops.optim import SGD, Add
from aiops_protocol.payload import Float32Array
from local_jobs import go_on, local_job, pause, same_bits, together, turns, until


def ones(size: int = 4) -> Float32Array:
    return np.ones(size, np.float32)


async def table_of(
    worker: aiops.Worker, consistency: Any, size: int = 4, **settings: Any
) -> aiops.Table:
    return await worker.table("w", size, optimizer=Add(), consistency=consistency, **settings)


async def version_of(copy: aiops.LocalCopy, version: int) -> None:
    await until(lambda: copy.version == version)


async def test_the_local_copy_has_version_and_age() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP())
        local = table.local
        assert local.version == table.version == 0
        for need in (lambda: local.values, lambda: local.age_s):
            with pytest.raises(UsageError, match="no local copy yet: pull it"):
                need()
        with pytest.raises(UsageError, match="no local copy"):
            local.apply(ones())
        await table.push(ones())
        await worker.tick()
        values = await table.pull()
        assert local.version == table.version == 1
        assert 0 <= local.age_s < 5
        assert same_bits(local.values, values)
        assert not np.shares_memory(local.values, values)
        await table.pull(rows=[0])  # not a whole one
        await worker.tick()
        await table.pull(rows=[0])
        assert local.version == 1


async def test_the_copy_of_a_large_table_is_kept_from_its_first_use_on() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP(), 1024 * 1024 + 1)
        await table.pull()
        assert table.local.age_s < 5
        with pytest.raises(UsageError, match=r"w is large.*pull again"):
            _ = table.local.values
        values = await table.pull()
        assert same_bits(table.local.values, values)
        await table.push(ones(table.shape[0]))
        assert same_bits(await table.pull(), table.local.values)


async def test_apply_steps_here_and_push_delta_tells_the_servers() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        left = await table_of(a, ASP(), init=10.0)
        right = await b.table("w")
        for table, lr in ((left, 1.0), (right, 2.0)):
            await table.pull()
            with pytest.raises(UsageError, match="nothing was applied"):
                await table.local.push_delta()
            table.local.use(SGD(lr=lr))
            for _ in range(3):
                table.local.apply(ones())
        assert (left.local.values == 7).all()
        assert (right.local.values == 4).all()
        assert (await (await b.table("w")).pull(rows=slice(None)) == 10).all()
        await together(table.local.push_delta() for table in (left, right))
        assert (left.local.values == 7).all()
        left.local.apply(ones())
        await left.local.push_delta()
        for table in (left, right):
            assert (await table.pull() == 10 - 3 - 6 - 1).all()
            assert (table.local.values == 0).all()


async def test_a_refresh_drops_what_was_not_pushed() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        await table.pull()
        table.local.use(SGD(lr=1.0))
        table.local.apply(ones())
        await table.pull()
        assert (table.local.values == 0).all()
        with pytest.raises(UsageError, match="nothing was applied"):
            await table.local.push_delta()


async def test_what_happens_during_push_delta_is_counted_once() -> None:
    """A step meanwhile belongs to the next delta; a refresh meanwhile is the new beginning."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        await table.pull()
        table.local.use(SGD(lr=1.0))
        table.local.apply(ones())
        pushing = asyncio.ensure_future(table.local.push_delta())
        await turns(1)
        table.local.apply(ones())
        await pushing
        await table.local.push_delta()
        assert (await table.pull() == -2).all()

        table.local.apply(ones())
        pause(cluster.servers[0])
        pushing = asyncio.ensure_future(table.local.push_delta())
        await turns(1)
        table.local.refresh(100 * ones(), 99)
        go_on(cluster.servers[0])
        await pushing
        table.local.apply(ones())
        await table.local.push_delta()
        assert (await table.pull() == -4).all()


async def test_a_delta_that_did_not_arrive_is_not_forgotten() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        await table.pull()
        table.local.use(SGD(lr=1.0))
        table.local.apply(ones())
        worker.finished = True
        with pytest.raises(UsageError, match="finished"):
            await table.local.push_delta()
        worker.finished = False
        await table.local.push_delta()
        assert (await table.pull() == -1).all()


@pytest.mark.parametrize(
    ("gradient", "why"),
    [
        (np.ones(4), "float64"),
        (np.ones(5, np.float32), "shape"),
        (np.full(4, np.nan, np.float32), "nan"),
    ],
    ids=["dtype", "shape", "nan"],
)
async def test_what_apply_refuses(gradient: Any, why: str) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        await table.pull()
        with pytest.raises(UsageError, match=f"apply to the local copy of table w.*{why}"):
            table.local.apply(gradient)
        with pytest.raises(ConfigError, match=r"use: .*SGD"):
            table.local.use(0.1)  # type: ignore[arg-type]  # that is the point
        assert (table.local.values == 0).all()


async def test_the_background_puller_keeps_the_copy_fresh() -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as reader:
        table = await table_of(worker, ASP())
        copy = (await reader.table("w")).local
        copy.pull_every(0.002)
        for count in range(1, 4):
            await table.push(ones())
            await version_of(copy, count)
            assert (copy.values == count).all()
        copy.pull_every(0.003)
        await table.push(ones())
        await until(lambda: copy.version == 4)
        copy.stop()
        copy.stop()
        await table.push(ones())
        await turns(20)
        assert copy.version == 4
        for wrong in (0, -1, 0.001, float("nan")):
            with pytest.raises(ConfigError, match="period_s is"):
                copy.pull_every(wrong)


async def test_the_end_of_the_background_puller_is_not_silent() -> None:
    async with local_job() as cluster:
        reader = await cluster.connect()
        copy = (await table_of(reader, ASP())).local
        copy.pull_every(0.002)
        await until(lambda: copy._refreshes)
        await (await cluster.connect()).close(RuntimeError("on purpose"))
        await until(lambda: copy._puller is not None and copy._puller.done())
        for need in (copy.check, lambda: copy.values, lambda: copy.age_s):
            with pytest.raises(NodeFailed, match="on purpose"):
                need()
        with pytest.raises(NodeFailed):
            await reader.close()


async def test_a_step_is_in_one_delta_whatever_becomes_of_the_call() -> None:
    """Two calls at once, a call without a step since, and a call that is cancelled."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        await table.pull()
        table.local.use(SGD(lr=1.0))
        table.local.apply(ones())
        pushing = asyncio.ensure_future(table.local.push_delta())
        await turns(1)
        with pytest.raises(UsageError, match="nothing was applied"):
            await table.local.push_delta()
        await pushing
        with pytest.raises(UsageError, match="nothing was applied"):
            await table.local.push_delta()

        table.local.apply(ones())
        pause(cluster.servers[0])
        pushing = asyncio.ensure_future(table.local.push_delta())
        await turns(3)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        table.local.apply(ones())
        go_on(cluster.servers[0])
        await table.local.push_delta()
        await worker.tick()
        assert (await table.pull() == -3).all()
