"""A job may fail while a worker is still on its way in: it learns why, and at once."""

from __future__ import annotations

import asyncio

import pytest

import aiops
from aiops.errors import NodeFailed
from aiops.van import TcpVan
from aiops.van.base import Accept, Address, Stream
from local_jobs import local_job


class Lonely(TcpVan):
    """A van that reaches the scheduler, but no server ever answers it."""

    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.waits = asyncio.Event()

    async def dial(self, address: Address, accept: Accept) -> Stream:
        if str(address) != self.scheduler:
            self.waits.set()
            await asyncio.get_running_loop().create_future()
        return await super().dial(address, accept)


async def fail_on_arrival(cluster: aiops.LocalCluster, once: asyncio.Event) -> None:
    async with cluster.connect():
        await once.wait()
        raise ArithmeticError("a bug in the training script")


async def test_a_failure_reaches_a_worker_that_still_looks_for_its_servers() -> None:
    """A script that crashes in its first line ends the whole job, not only those who are in."""
    async with local_job() as cluster:
        van = Lonely(cluster.address)
        failing = asyncio.create_task(fail_on_arrival(cluster, van.waits))
        with pytest.raises(NodeFailed, match="a bug in the training script"):
            await aiops.connect(cluster.address, heartbeat_thread=False, van=van)
        with pytest.raises(ArithmeticError):
            await failing
