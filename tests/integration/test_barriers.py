"""Barriers: all or nobody, again and again, and an error that names who is missing."""

from __future__ import annotations

import asyncio

import pytest

import aiops
from aiops.errors import BarrierTimeout, ConfigError, NodeFailed, UsageError
from local_jobs import local_job, together, turns, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


async def test_nobody_passes_before_all_have_come() -> None:
    arrived = [0] * 5

    async def visit(worker: aiops.Worker) -> None:
        for visit in range(1, 21):
            await turns(worker.rank * 3 % 7)
            arrived[worker.rank] = visit
            await worker.barrier("b")
            assert min(arrived) >= visit

    async with local_job() as cluster:
        await cluster.run(visit, workers=5)


async def test_barriers_of_several_names_at_once() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        for _ in range(3):
            await together(worker.barrier(name) for worker in (a, b) for name in ("x", "y", "z"))


async def test_a_timeout_names_all_who_are_missing() -> None:
    async with (
        local_job() as cluster,
        cluster.connect(name="here") as here,
        cluster.connect(name="busy") as busy,
        cluster.connect(name="lazy"),
        cluster.connect(name="done") as done,
    ):
        await done.finish()
        await busy.tick()
        busy._reports.send()
        await until(lambda: cluster.status()["workers"][1]["clock"] == 1)
        with pytest.raises(
            BarrierTimeout, match=r"barrier epoch: after \d+\.\d+ s 2 missing"
        ) as caught:
            await here.barrier("epoch", timeout_s=0.1)
        assert caught.value.missing == [
            "worker 1 (busy): alive, at clock 1",
            "worker 2 (lazy): alive, at clock 0",
        ]
        assert round(caught.value.elapsed_s, 3) >= 0.1  # the clock counts whole milliseconds
        assert "worker 2 (lazy)" in str(caught.value)


async def test_a_barrier_works_again_after_a_timeout() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        for _ in range(3):
            with pytest.raises(BarrierTimeout):
                await a.barrier("x", timeout_s=0.02)
        for _ in range(2):
            await together(worker.barrier("x", timeout_s=60) for worker in (a, b))


@pytest.mark.parametrize("used_before", [False, True])
async def test_a_cancelled_barrier_is_gone_on_with(used_before: bool) -> None:
    """The same call again meets those who wait for the first one, also if that has opened."""
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        if used_before:
            await together(worker.barrier("x") for worker in (a, b))
        for opens_in_between in (True, False):
            waiting = asyncio.ensure_future(a.barrier("x"))
            await until(lambda: cluster.status()["barriers"])
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            if opens_in_between:
                await b.barrier("x", timeout_s=60)
                await a.barrier("x", timeout_s=60)
            else:
                again = asyncio.ensure_future(a.barrier("x", timeout_s=60))
                await turns(5)
                assert not again.done()
                await b.barrier("x", timeout_s=60)
                await again
        await together(worker.barrier("x", timeout_s=60) for worker in (a, b))


@pytest.mark.parametrize("used_before", [False, True])
async def test_a_cancelled_barrier_with_a_later_deadline(used_before: bool) -> None:
    """The deadline of the cancelled call does not end the one that goes on with it."""
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        if used_before:
            await together(worker.barrier("x") for worker in (a, b))
        waiting = asyncio.ensure_future(a.barrier("x", timeout_s=0.05))
        await turns(5)
        waiting.cancel()
        await asyncio.wait([waiting])
        again = asyncio.ensure_future(a.barrier("x", timeout_s=60))
        await asyncio.wait([again], timeout=0.1)
        assert not again.done()
        await b.barrier("x", timeout_s=60)
        await again


async def test_waiting_twice_at_one_barrier_is_refused() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        waiting = asyncio.ensure_future(a.barrier("x"))
        await turns(1)
        with pytest.raises(UsageError, match="waits at it already"):
            await a.barrier("x")
        await b.barrier("x")
        await waiting


async def test_who_finishes_or_leaves_opens_the_barrier() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        async with cluster.connect():
            waiting = asyncio.ensure_future(a.barrier("x"))
            await b.finish()
            await turns(10)
            assert not waiting.done()
        await waiting


async def test_a_finished_worker_may_wait_for_the_others() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        await a.finish()
        waiting = asyncio.ensure_future(a.barrier("x"))
        await turns(10)
        assert not waiting.done()
        await b.barrier("x")
        await waiting


async def test_the_end_of_the_job_ends_the_wait() -> None:
    async with local_job() as cluster:
        a = await cluster.connect()
        bad = await cluster.connect()
        waiting = asyncio.ensure_future(a.barrier("x"))
        await turns(3)
        await bad.close(RuntimeError("on purpose"))
        with pytest.raises(NodeFailed, match="on purpose"):
            await waiting
        with pytest.raises(NodeFailed):
            await a.close()


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ü", 3])
async def test_a_name_that_may_not_travel(name: str) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="barrier's name"):
            await worker.barrier(name)
        await worker.barrier("x")
