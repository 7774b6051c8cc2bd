"""Real connections that do not move, or move unseen: what is replaced, and what must not be."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.optim import Add
from aiops.testing import ChaosCluster
from local_jobs import guarded, served, until

ELEMENTS = 150_000
ONES = np.ones(ELEMENTS, np.float32)


def links(worker: aiops.Worker) -> list[dict[str, int]]:
    """What the worker's connections to servers have seen."""
    return list(worker.stats()["servers"].values())


async def counts(worker: aiops.Worker, elements: int = ELEMENTS, **settings: Any) -> aiops.Table:
    """A table that adds, after some quick calls: so the worker knows the way as a fast one."""
    table = await worker.table("counts", shape=(elements,), optimizer=Add(), **settings)
    for _ in range(20):
        await table.pull(slice(0, 10))
        await asyncio.sleep(0.01)
    return table


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_connection_that_is_dead_without_a_sign_is_replaced_within_seconds() -> None:
    """TCP alone would notice after minutes, and the call would have given up by then."""
    async with guarded(), ChaosCluster(servers=1) as cluster, cluster.connect() as worker:
        table = await counts(worker, 1000, consistency=aiops.ASP())
        for _ in range(2):
            cluster.proxies[0].forget()
            await table.push(ONES[:1000])  # within the time of the guard; TCP takes longer
        assert (await table.pull() == 2).all()
        (link,) = links(worker)
        assert (link["replaced"], link["reconnections"]) == (2, 2)
        # The server gives up its ends of the dead ones as well, long before TCP would.
        await until(lambda: len(served(cluster.servers[0])) == 1)


async def test_what_moves_slowly_behind_a_buffer_is_not_sent_again() -> None:
    """The proxy takes everything at once and delivers it at its leisure."""
    async with guarded(), ChaosCluster(servers=1) as cluster, cluster.connect() as worker:
        table = await counts(worker, consistency=aiops.ASP())
        cluster.proxies[0].set(rate_bytes_per_s=4 * ELEMENTS / 3)
        await table.push(ONES)  # three seconds of silence, in which the server is asked
        (link,) = links(worker)
        assert link["replaced"] == link["reconnections"] == 0
        assert worker.stats()["bytes"]["retransmitted"] == 0
        cluster.proxies[0].set(rate_bytes_per_s=None)
        assert (await table.pull() == 1).all()


async def test_what_waits_by_rule_is_asked_about_once_and_never_sent_again() -> None:
    async with (
        guarded(),
        ChaosCluster(servers=1) as cluster,
        cluster.connect() as worker,
        cluster.connect() as slow,
    ):
        table, other = await asyncio.gather(counts(worker), counts(slow))
        await table.push(ONES)
        await worker.tick()
        waiting = asyncio.ensure_future(table.pull())
        await asyncio.sleep(3.0)
        await other.push(ONES)
        await slow.tick()
        assert (await waiting == 1).all()
        for one in (worker, slow):
            (link,) = links(one)
            assert link["asked"] <= 1
            assert link["replaced"] == 0
            assert one.stats()["bytes"]["retransmitted"] == 0


async def test_a_black_hole_of_everything_replaces_nothing() -> None:
    """Nobody answers a probe, so there is nobody to send anything to; then it heals."""
    async with guarded(), ChaosCluster(servers=1) as cluster, cluster.connect() as worker:
        table = await counts(worker, consistency=aiops.ASP())
        cluster.proxies[0].hold()
        pushing = asyncio.ensure_future(table.push(ONES))
        await until(lambda: links(worker)[0]["asked"])
        await asyncio.sleep(1.5)  # and a probe that fails
        cluster.proxies[0].release()
        await pushing
        (link,) = links(worker)
        assert link["replaced"] == link["reconnections"] == 0
        assert worker.stats()["bytes"]["retransmitted"] == 0
