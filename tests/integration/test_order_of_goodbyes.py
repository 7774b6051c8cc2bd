"""Who hears first that a node leaves: the scheduler, so that nobody is blamed for what follows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from aiops.errors import NodeFailed
from aiops.optim import Add
from local_jobs import local_job, turns, until
from van_bodies import resume, stall

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


async def test_a_server_that_leaves_says_so_to_the_scheduler_before_its_workers_hear_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that heard it first would end, and the job would end for want of that worker."""
    monkeypatch.setattr("aiops.runtime.control_link.LEAVE_S", 3600.0)
    async with local_job(2, heartbeat_s=3600.0, on_worker_loss="fail") as cluster:
        worker = await cluster.connect()
        table = await worker.table("w", 64, optimizer=Add())
        leaving = cluster.servers[1]
        (data,) = leaving._links.values()
        ears = [link.stream for link in cluster.scheduler._links.values()]
        for ear in ears:
            stall(ear)
        closing = asyncio.ensure_future(leaving.close("for a test"))
        await until(lambda: leaving._listener is None)
        pushing = asyncio.ensure_future(table.push(np.ones(64, np.float32)))
        await turns(50)
        assert not closing.done()
        assert not data.ended
        assert not pushing.done(), "what the server says to a request would be news as well"
        assert worker.postoffice.failure is None
        for ear in ears:
            resume(ear)
        with pytest.raises(NodeFailed, match=r"server 1 \(server-1\)"):
            await pushing
        await closing
        with pytest.raises(NodeFailed, match=r"server 1 \(server-1\) .*for a test") as caught:
            await worker.barrier("b")
        assert caught.value.node == "server 1 (server-1)"
        assert cluster.status()["ended"]["reason"].startswith("server 1 (server-1)")
        with pytest.raises(NodeFailed):
            await worker.close()
