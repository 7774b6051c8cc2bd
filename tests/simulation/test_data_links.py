"""What a worker does about its connection to a server, on a simulated network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from aiops.consistency import ASP
from aiops.errors import RequestTimeout
from aiops.optim import Add
from aiops.roles.actions import Action
from aiops.roles.server import ServerCore
from aiops.tables.table import Table
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.seal import sealed
from aiops.workers.worker import Worker
from aiops_protocol.frames import Push, Request

SHAPE = (8, 1000)
ONES = np.ones(SHAPE, np.float32)


def simulated(body: Callable[[SimCluster], Awaitable[Any]], seed: int = 1) -> Any:
    """Run a body with a cluster of one server; returns what the body returns."""
    loop = SimLoop(seed)

    async def run() -> Any:
        cluster = SimCluster(loop, 1, workers=1)
        await cluster.start()
        result = await body(cluster)
        await cluster.close()
        return result

    try:
        with sealed(loop):
            return loop.run_until_complete(run())
    finally:
        loop.bury()


async def counting(worker: Worker) -> Table:
    """Open a table that adds."""
    return await worker.table("counts", shape=SHAPE, optimizer=Add(), consistency=ASP())


def test_a_server_that_lives_is_never_given_up_however_long_the_way_there_is_broken() -> None:
    async def body(cluster: SimCluster) -> tuple[str, float]:
        async def work(worker: Worker) -> tuple[str, float]:
            table = await counting(worker)
            await table.push(ONES)
            cluster.network.partition("worker-0", "server-0")
            with pytest.raises(RequestTimeout) as caught:
                await table.push(ONES, timeout_s=100.0)
            cluster.network.repair("worker-0", "server-0")
            await table.push(ONES)
            return str(caught.value), float((await table.pull())[0, 0])

        return await cluster.worker("worker-0", work)  # type: ignore[no-any-return]

    text, count = simulated(body)
    assert "not connected: gave up connecting to server 0" in text
    assert count in (2, 3), "what was given up may have taken effect, once"


def test_the_log_says_why_a_server_ended_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def body(cluster: SimCluster) -> None:
        async def work(worker: Worker) -> None:
            table = await counting(worker)
            cluster.network.fault("worker-0", "server-0").corrupt = 1.0
            pushing = asyncio.ensure_future(table.push(ONES))
            await asyncio.sleep(0.2)
            cluster.network.repair("worker-0", "server-0")
            await pushing

        await cluster.worker("worker-0", work)

    simulated(body)
    lost = [line for line in caplog.text.splitlines() if "connection_lost" in line]
    assert any(re.search(r"the server ended the connection: .+ \([A-Z_]+\)", line) for line in lost)
    assert not any("None" in line for line in lost)


def test_a_push_that_the_server_has_lost_is_noticed_and_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later pushes are answered, so the connection is well; this one will never be."""
    request = ServerCore.request
    swallowed: list[int] = []

    def forgetful(self: ServerCore, peer: int, found: Request, now: float) -> list[Action]:
        if isinstance(found, Push) and found.seq == 2 and not swallowed:
            swallowed.append(found.seq)
            return []
        return request(self, peer, found, now)

    async def body(cluster: SimCluster) -> tuple[float, float, dict[str, int]]:
        async def work(worker: Worker) -> tuple[float, float, dict[str, int]]:
            table = await counting(worker)
            await table.push(ONES)
            begun = cluster.loop.time()
            lost = asyncio.ensure_future(table.push(ONES))
            while not lost.done():
                await table.push(ONES)
                await asyncio.sleep(0.05)
            await lost
            took_s = cluster.loop.time() - begun
            (link,) = worker.stats()["servers"].values()
            pulled = await table.pull()
            assert (pulled == pulled[0, 0]).all()
            return took_s, float(pulled[0, 0]), link

        return await cluster.worker("worker-0", work)  # type: ignore[no-any-return]

    monkeypatch.setattr(ServerCore, "request", forgetful)
    took_s, count, link = simulated(body)
    assert swallowed == [2]
    assert link["replaced"] == 1
    assert took_s < 10.0
    assert count == int(count) > 2
