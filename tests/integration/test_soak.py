"""Many pushes over connections that are cut all the time: nothing piles up. `make soak`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops.optim import Add
from aiops.testing import ChaosCluster
from aiops_protocol.limits import WINDOW_MUTATIONS
from local_jobs import guarded, served

pytestmark = [pytest.mark.soak]

SIZE = 64
ONES = np.ones(SIZE, np.float32)
FRAME_BYTES = 88 + 4 * SIZE
GROWTH_BYTES_MAX = 8 * 1024 * 1024
"""What allocators keep to themselves; a leak of 100 bytes a push would be more."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each lost connection is a line of the log, and pytest keeps them all."""
    caplog.set_level(logging.ERROR, "aiops")


class Memory:
    """What this process holds, from a first look on."""

    def __init__(self) -> None:
        self.first = self.now()
        self.most = self.first

    @staticmethod
    def now() -> tuple[int, int, int, int]:
        """Resident bytes, descriptors, threads and tasks."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        return resident, descriptors, threading.active_count(), len(asyncio.all_tasks())

    def check(self) -> str:
        """Compare with the first look; returns both in words."""
        resident, descriptors, threads, tasks = self.now()
        assert resident - self.first[0] < GROWTH_BYTES_MAX, (self.first, self.now())
        assert descriptors <= self.first[1] + 4, "some connections may be under way"
        assert threads <= self.first[2]
        assert tasks <= self.first[3] + 4
        grown = (resident - self.first[0]) / 1024
        return f"{grown:+.0f} KiB resident, {descriptors} descriptors, {threads} threads"


def windows(worker: aiops.Worker, cluster: aiops.LocalCluster) -> int:
    """Check what both sides remember of each other; returns the most mutations in flight."""
    most = 0
    for server in worker.main_customer._servers.values():
        server.channel.validate()
        most = max(most, len(server.channel._flight))
    for node in cluster.servers:
        node._core.validate()  # windows of bits, refusals, parked bytes
        for table in node._core.tables.values():
            assert len(table.inboxes) <= 1
            assert not table.parked
    assert most <= WINDOW_MUTATIONS
    return most


async def test_a_hundred_thousand_pushes_with_a_cut_every_200_frames() -> None:
    pushes, together = 100_000, 20
    async with guarded(), ChaosCluster(servers=1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), consistency=aiops.ASP())
        cluster.proxies[0].set("up", cut_every_bytes=200 * FRAME_BYTES)
        started, memory, most = time.monotonic(), None, 0
        for done in range(0, pushes, together):
            calls = [asyncio.ensure_future(table.push(ONES)) for _ in range(together)]
            await asyncio.sleep(0)
            most = max(most, windows(worker, cluster))
            await asyncio.gather(*calls)
            if done == pushes // 10:
                memory = Memory()
        assert memory is not None
        found = memory.check()
        (link,) = worker.stats()["servers"].values()
        cluster.proxies[0].set("up", cut_every_bytes=None)
        assert (await table.pull() == pushes).all()
        stats, counters = worker.stats()["bytes"], cluster.counters
        print(
            f"\n{pushes} pushes in {time.monotonic() - started:.0f} s: {counters.cuts} cuts, "
            f"{counters.lost:,} bytes lost, {stats['retransmitted']:,} sent again, at most {most} "
            f"in flight; {found}; {link}"
        )
        assert counters.cuts > pushes / 250
        assert stats["retransmitted"] <= 2 * counters.lost


async def test_five_thousand_reconnections() -> None:
    times, between = 5_000, 12
    async with guarded(), aiops.LocalCluster(1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), consistency=aiops.ASP())
        started, memory = time.monotonic(), None
        for done in range(times):
            for link in served(cluster.servers[0]):
                link.stream.abort()
            for _ in range(between):
                await table.push(ONES)
            windows(worker, cluster)
            if done == times // 10:
                memory = Memory()
        assert memory is not None
        found = memory.check()
        (traffic,) = worker.stats()["servers"].values()
        assert traffic["reconnections"] == times
        assert (await table.pull() == times * between).all()
        print(f"\n{times} reconnections in {time.monotonic() - started:.0f} s: {found}")
