"""Calls that run out of time, when, and what their errors say; on virtual time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP, SSP
from aiops.errors import AiopsError, NameInUse, RequestTimeout
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from virtual_jobs import on_virtual_time, with_virtual_time

ONES = np.ones((64, 2), np.float32)


def test_a_timeout_names_server_address_table_keys_and_time() -> None:
    async def work(cluster: SimCluster, worker: aiops.Worker) -> None:
        table = await worker.table("weights", (64, 2), optimizer=Add(), consistency=ASP())
        assert cluster.scheduler is not None
        silent = cluster.scheduler.status()["servers"][1]
        part = next(part for part in table.partition if part["server"] == 1)
        process = cluster.processes[silent["name"]]
        process.stop()
        for verb, call in (
            ("push", table.push(ONES, timeout_s=0.05)),
            ("pull", table.pull(timeout_s=0.05)),
            ("assign", table.assign(ONES, timeout_s=0.05)),
            ("push_pull", table.push_pull(ONES, timeout_s=0.05)),
        ):
            began = cluster.loop.time()
            with pytest.raises(RequestTimeout) as caught:
                await call
            assert str(caught.value) == (
                f"{verb} table weights: no answer from server 1 ({silent['name']}) at "
                f"{silent['address']} for keys [{part['begin']}, {part['end']}) within 0.05 s"
            )
            assert caught.value.operation == verb
            assert caught.value.elapsed_s == pytest.approx(0.05)
            assert cluster.loop.time() - began == pytest.approx(0.05)
            assert isinstance(caught.value, TimeoutError)
            assert "weights" in repr(caught.value)
        process.go_on()
        assert (await table.pull()).shape == (64, 2)
        for server in worker.main_customer._servers.values():
            server.channel.validate()

    on_virtual_time(work, servers=2)


def test_a_timeout_by_rule_names_whom_it_waits_for() -> None:
    async def work(cluster: SimCluster, worker: aiops.Worker) -> None:
        table = await worker.table("w", 4, optimizer=Add())
        await worker.barrier("opened")
        if worker.rank == 0:
            await worker.tick()
            with pytest.raises(
                RequestTimeout, match=r"pull table w: .*it waits by rule for worker 1 .*, 2 .*$"
            ):
                await table.pull(timeout_s=2.0)
        await worker.barrier("two-are-missing")
        if worker.rank == 1:
            await worker.tick()
        elif worker.rank == 0:
            with pytest.raises(RequestTimeout, match=r"it waits by rule for worker 2 .*$"):
                await table.pull(timeout_s=2.0)
        await worker.barrier("one-is-missing")
        if worker.rank == 2:
            await worker.tick()
        elif worker.rank == 0:
            assert (await table.pull(timeout_s=2.0) == 0).all()

    on_virtual_time(work, workers=3)


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_fast_one_is_stopped_at_the_bound_by_the_slow_one(staleness: int) -> None:
    """And goes on when the slow one has ticked; what the slow one pushed is then in its pulls."""
    reached: list[int] = []
    one = np.ones(3, np.float32)

    async def train(cluster: SimCluster, worker: aiops.Worker) -> float:
        table = await worker.table(
            "w", shape=(3,), optimizer=Add(), consistency=SSP(staleness=staleness)
        )
        await worker.barrier("open")
        if worker.rank == 1:
            await worker.barrier("may-go")
            await table.push(100 * one)
            await worker.tick()
            await worker.barrier("done")
            return 0.0
        for _ in range(staleness + 1):
            await table.pull()
            await table.push(one)
            await worker.tick()
            reached.append(worker.clock)
        with pytest.raises(RequestTimeout, match=r"worker 1 \(\d clocks behind\)"):
            await table.pull(timeout_s=1.5)
        await worker.barrier("may-go")
        value = float((await table.pull())[0])
        await worker.barrier("done")
        return value

    values = on_virtual_time(train, servers=2, workers=2)
    assert reached == list(range(1, staleness + 2))
    assert values[0] == 100 + staleness + 1


def test_a_job_that_does_not_become_complete_ends() -> None:
    async def never(worker: aiops.Worker) -> None:
        raise AssertionError("there is no job to take part in")

    async def job(cluster: SimCluster) -> None:
        cluster._options["servers"] = 2  # of which one is started
        await cluster.start()
        assert cluster.scheduler is not None
        ending = asyncio.ensure_future(cluster.scheduler.wait_ended())
        with pytest.raises(AiopsError, match=r"only 1 of 2 servers and 1 of 1 workers"):
            await cluster.worker("worker-0", never)
        assert not (await ending).ok
        assert cluster.loop.time() == pytest.approx(0.2, abs=0.1)
        await cluster.close()

    with_virtual_time(job, workers=1, join_timeout_s=0.2)


def test_the_name_of_a_live_worker_is_refused() -> None:
    """After seven periods, in which a dead one would have been found out."""

    async def never(worker: aiops.Worker) -> None:
        raise AssertionError("two workers have one name")

    async def work(cluster: SimCluster, worker: aiops.Worker) -> None:
        began = cluster.loop.time()
        with pytest.raises(NameInUse, match="a live worker has the name worker-0"):
            await cluster.worker(worker.name, never, process="twin")
        assert cluster.loop.time() - began >= 7 * 0.5
        await worker.barrier("x")
        assert worker.world_size == 1

    on_virtual_time(work)
