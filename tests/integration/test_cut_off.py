"""One node alone loses the scheduler; everybody else goes on, and the node learns what it is."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest

import aiops
from aiops.errors import NodeFailed, StaleIncarnation
from aiops.optim import Add
from aiops.testing import FaultProxy
from van_bodies import GUARD_S

HEARTBEAT_S = 0.1


async def push_for_ever(worker: aiops.Worker, consistency: aiops.BSP | aiops.ASP) -> None:
    table = await worker.table("w", 40, optimizer=Add(), consistency=consistency)
    while True:
        await table.push(np.ones(40, np.float32))
        await worker.tick()
        await table.pull()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("consistency", [aiops.BSP(), aiops.ASP()], ids=["bsp", "asp"])
@pytest.mark.parametrize("hears", ["goodbye", "refusal"])
async def test_a_worker_that_was_given_up_is_told_so_by_a_server(
    hears: str, consistency: aiops.BSP | aiops.ASP
) -> None:
    """It is this worker that is lost, not the server that says so."""
    sock = socket.create_server(("127.0.0.1", 0))
    async with (
        asyncio.timeout(GUARD_S),
        aiops.Scheduler(
            servers=1, workers=1, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
        ) as scheduler,
        FaultProxy(scheduler.address) as control,
        FaultProxy("{}:{}".format(*sock.getsockname())) as data,
        aiops.Server(scheduler.address, sock=sock, advertise=data.address),
    ):
        connecting = aiops.connect(control.address)
        worker = await connecting.__aenter__()
        training = asyncio.create_task(push_for_ever(worker, consistency))
        while worker.clock < 2:
            await asyncio.sleep(0.01)
        control.hold()
        if hears == "refusal":
            data.hold()  # what the server says on this connection never arrives
            while scheduler.status()["workers"][0]["state"] != "lost":
                await asyncio.sleep(0.01)
            data.cut()
            data.release()
        with pytest.raises(StaleIncarnation, match=r"^server 0 .* has given this worker up: "):
            await training
        control.release()
        with pytest.raises(StaleIncarnation):
            await connecting.__aexit__(None, None, None)


async def test_a_server_that_was_given_up_ends_by_itself() -> None:
    """Its workers are told by the scheduler that it is lost."""
    async with (
        asyncio.timeout(GUARD_S),
        aiops.Scheduler(servers=1, workers=1, heartbeat_s=HEARTBEAT_S) as scheduler,
        FaultProxy(scheduler.address) as proxy,
        aiops.Server(proxy.address) as server,
    ):
        connecting = aiops.connect(scheduler.address)
        worker = await connecting.__aenter__()
        training = asyncio.create_task(push_for_ever(worker, aiops.ASP()))
        while worker.clock < 2:
            await asyncio.sleep(0.01)
        proxy.hold()
        with pytest.raises(NodeFailed, match=r"server 0 .* is lost .*; with it went w \[0, 40\)"):
            await training
        with pytest.raises(NodeFailed):
            await connecting.__aexit__(None, None, None)
        ended = await server.wait_ended()
        assert not ended.ok
        assert "has not answered for" in ended.reason
