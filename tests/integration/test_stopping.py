"""A stop that one asks for is a stop of all, at one step boundary."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.optim import Add
from local_jobs import local_job, together, turns, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
@pytest.mark.parametrize("asks_at", [0, 1, 7])
async def test_all_stop_at_one_boundary(consistency: Any, asks_at: int) -> None:
    async def train(worker: aiops.Worker) -> tuple[int, int, str | None]:
        table = await worker.table("w", 40, optimizer=Add(), consistency=consistency)
        last = -1
        async for step in worker.steps(1000):
            last = step
            if worker.rank == 2 and step == asks_at:
                await worker.stop("good enough")
            await table.push(np.ones(40, np.float32))
            await table.pull()
            await turns(worker.rank)
        async for _ in worker.steps(10):
            raise AssertionError("there is no step after the stop")
        return last, worker.clock, worker.stop_reason

    async with local_job(2) as cluster:
        results = await cluster.run(train, workers=4)
        document = cluster.status()
    last, clock, reason = results[0]
    assert set(results) == {(last, clock, reason)}
    assert asks_at < clock == last + 1 < 1000
    assert reason == "good enough"
    assert document["stop"] == "good enough"
    assert {worker["clock"] for worker in document["workers"]} == {clock}


async def test_the_first_of_several_stops_counts() -> None:
    async def train(worker: aiops.Worker) -> tuple[int, str | None]:
        async for _ in worker.steps(100):
            await worker.stop(f"worker {worker.rank} is tired")
        return worker.clock, worker.stop_reason

    async with local_job() as cluster:
        results = await cluster.run(train, workers=3)
    assert len(set(results)) == 1
    assert results[0][1] in {f"worker {rank} is tired" for rank in range(3)}


async def test_a_stop_does_not_wait_for_who_has_finished_or_left() -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as idle:
        async with cluster.connect():
            pass
        await idle.finish()
        steps = []
        async for step in worker.steps(100):
            steps.append(step)
            if step == 3:
                await worker.stop("enough")
                await until(lambda: worker.postoffice.stop_at is not None)
        assert steps == [0, 1, 2, 3]


async def test_who_finishes_while_a_stop_is_agreed_on_holds_it_up_no_more() -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as slow:
        waiting = asyncio.ensure_future(_count(worker, 100))
        async for _ in slow.steps(1):
            await until(lambda: worker.clock > 3)
            await slow.stop("enough")
            await until(lambda: worker.postoffice.stop_vote is not None)
            await slow.finish()
            break
        assert await waiting == worker.clock == worker.postoffice.stop_vote


async def _count(worker: aiops.Worker, steps: int) -> int:
    count = 0
    async for _ in worker.steps(steps):
        count += 1
        await asyncio.sleep(0.001)
    return count


async def test_a_late_joiner_learns_of_the_stop() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        await worker.stop("enough")
        await until(lambda: worker.stop_reason)
        async with cluster.connect() as late:
            assert await _count(late, 5) == 0
            assert late.stop_reason == "enough"


async def test_the_owner_of_the_scheduler_can_stop_the_job() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        counting = [asyncio.ensure_future(_count(worker, 1000)) for worker in (a, b)]
        await until(lambda: a.clock > 2)
        await cluster.scheduler.stop("by hand")
        counts = await together(counting)
        assert counts[0] == counts[1] == a.clock < 1000
        assert a.stop_reason == b.stop_reason == "by hand"


async def test_a_reason_of_any_kind() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        await worker.stop("\udcff" + "x" * 5000)
        await until(lambda: worker.stop_reason)
        assert worker.stop_reason == ("?" + "x" * 5000)[:1024]
