"""Jobs that have rings but no tables: no server is started, and nothing waits for one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops.errors import AiopsError, CollectiveAborted, UsageError
from local_jobs import local_job, together


async def test_steps_barriers_and_rings() -> None:
    async def work(worker: aiops.Worker) -> int:
        ring = await worker.ring("r", timeout_s=10)
        array = np.ones(5, np.float32)
        async for _ in worker.steps(3):
            await ring.all_reduce(array)
        await worker.barrier("done")
        await worker.finish()
        assert (array == 8).all()
        return worker.clock

    async with local_job(servers=0) as cluster:
        assert await cluster.run(work, workers=2) == [3, 3]
        assert cluster.status()["servers"] == []


async def test_tables_are_refused_with_the_reason() -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        for wrong in (worker.table("w", 3), worker.sparse_table("s", 4), worker.table("w")):
            with pytest.raises(UsageError, match=r"no servers.*servers=1"):
                await wrong


async def test_a_server_is_refused() -> None:
    async with local_job(servers=0) as cluster:
        with pytest.raises(AiopsError, match="has its 0 servers already"):
            await aiops.Server(cluster.address).__aenter__()


async def test_who_is_lost_is_replaced_under_its_name() -> None:
    async with local_job(servers=0, on_worker_loss="continue") as cluster:
        cluster.scheduler.expect_workers(2)
        lost = asyncio.Event()

        async def stays() -> None:
            async with cluster.connect(name="stays") as worker:
                ring = await worker.ring("r", timeout_s=10)
                with pytest.raises(CollectiveAborted, match="is lost: RuntimeError: gone"):
                    await ring.barrier()
                lost.set()
                await ring.reform()
                while not ring.wanted:
                    await ring.barrier()
                await ring.reform()
                await ring.barrier()

        async def goes() -> None:
            async with cluster.connect(name="goes") as worker:
                await worker.ring("r", timeout_s=10)
                raise RuntimeError("gone")

        async def comes() -> None:
            await lost.wait()
            async with cluster.connect(name="goes") as worker:
                ring = await worker.ring("r", timeout_s=10)
                assert (worker.rank, ring.world_size) == (1, 2)
                await ring.barrier()

        async def falls() -> None:
            with pytest.raises(RuntimeError, match="gone"):
                await goes()

        await together([stays(), falls(), comes()])
