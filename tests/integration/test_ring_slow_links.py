"""Rings whose members reach each other through slow proxies: real sockets, real pieces.

What the proxies do is certain on any machine: nothing passes quicker than they let it. How long
anything takes is not asserted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

import aiops
from aiops.testing import FaultProxy, Faults
from aiops.testing.proxy import ReservedPort
from aiops.workers.ring import Ring
from local_jobs import local_job

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


class Behind(NamedTuple):
    """A member's door behind a proxy, through which all members before it come."""

    proxy: FaultProxy
    door: dict[str, Any]


@asynccontextmanager
async def behind(*proxies: dict[str, Any]) -> AsyncIterator[list[Behind]]:
    """Open so many proxies, with these settings."""
    async with AsyncExitStack() as stack:
        doors = []
        for options in proxies:
            port = stack.enter_context(ReservedPort())
            proxy = FaultProxy(str(port.address), **options)
            await stack.enter_async_context(proxy)
            door = {"bind": str(port.address), "advertise": proxy.address, "transport": "tcp"}
            doors.append(Behind(proxy, door))
        yield doors


async def sum_of(ring: Ring, count: int) -> None:
    array = np.full(count, ring.rank + 1, np.float32)
    await ring.all_reduce(array, algorithm="ring")
    assert (array == sum(range(1, ring.world_size + 1))).all()


async def test_the_measured_order_avoids_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 1 is reached by member 0 only through its door, and that is slow."""
    monkeypatch.setattr("aiops.workers.ring_links.MANY", 64 * 1024)
    slow = {"faults": Faults(rate_bytes_per_s=1e6)}
    count = 200_000

    async with local_job() as cluster, behind({}, slow, {}, {}) as doors:
        passed = doors[1].proxy.counters

        async def member(worker: aiops.Worker) -> tuple[list[int], int, int]:
            door = doors[worker.rank].door
            ring = await worker.ring("measured", topology="measured", **door)
            while abs(ring.order.index(0) - ring.order.index(1)) in (1, 3):
                await ring.reform()  # a busy machine may make all links as slow, for a while
            by_rank = await worker.ring("rank")
            at = []
            for one in (ring, by_rank):
                at.append(passed.forwarded)
                await ring.barrier()  # all have looked
                await sum_of(one, count)
                await ring.barrier()  # all have everything
            return ring.order, at[1] - at[0], passed.forwarded - at[1]

        results = await cluster.run(member, workers=4)
    for order, measured, in_rank_order in results:
        assert order == [0, 2, 1, 3]
        assert measured < 10_000  # who has begun, and that all is there
        assert in_rank_order > count  # a quarter of the array, six times, less what is on its way


async def test_pieces_take_the_connection_with_the_least_on_its_way() -> None:
    """One connection takes a window at a time, so that the others get their share."""
    async with local_job() as cluster, behind({}, {"window_bytes": 64 * 1024}) as doors:

        async def member(worker: aiops.Worker) -> list[int]:
            ring = await worker.ring("r", connections=4, **doors[worker.rank].door)
            await sum_of(ring, 4)
            await ring.barrier()
            await sum_of(ring, 1 << 20)  # four pieces to each other member
            (peer,) = ring._group.peers.values()
            return [lane.link.bytes_received for lane in peer.lanes if lane.link is not None]

        received = await cluster.run(member, workers=2)
    for lanes in received:
        assert len(lanes) == 4
        assert all(size > 1 << 19 for size in lanes), lanes
