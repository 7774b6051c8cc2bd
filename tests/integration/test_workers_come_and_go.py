"""Workers that finish early, come late, leave by an error, or never open a table."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.errors import AiopsError, Closed, NodeFailed, TooManyRestarts, UsageError
from aiops.optim import Add
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, together, until


def ones(size: int = 4) -> Float32Array:
    return np.ones(size, np.float32)


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_workers_with_10_100_and_1000_steps() -> None:
    """Who is finished leaves the round at once; the divisor is who contributed."""
    steps = (10, 100, 1000)

    async def train(worker: aiops.Worker) -> Float32Array:
        table = await worker.table("w", 20, optimizer=Add())
        async for _ in worker.steps(steps[worker.rank]):
            await table.push(np.full(20, (60, 6, 1)[worker.rank], np.float32))
        await worker.finish()
        await worker.barrier("others")
        return await table.pull()

    async with local_job(2) as cluster:
        results = await cluster.run(train, workers=3)
        document = cluster.status()
    expected = 10 * (67 / 3) + 90 * (7 / 2) + 900 * 1
    assert results[2] == pytest.approx(np.full(20, expected), rel=1e-5)
    assert [worker["clock"] for worker in document["workers"]] == list(steps)


async def test_leaving_cleanly_is_finishing() -> None:
    async with local_job() as cluster, cluster.connect() as stays:
        async with cluster.connect() as leaves:
            tables = await together(
                worker.table("w", 4, optimizer=Add()) for worker in (stays, leaves)
            )
            await together(table.push(ones()) for table in tables)
        await stays.tick()
        assert (await tables[0].pull() == 1).all()
        await tables[0].push(2 * ones())
        await stays.tick()
        assert (await tables[0].pull() == 3).all()


@pytest.mark.parametrize("elements", [4, 64])
@pytest.mark.parametrize("how", ["finish", "leave"])
async def test_a_worker_that_never_opened_the_table_holds_nobody_up(
    how: str, elements: int
) -> None:
    """It takes part from round 0 on, because it might still open the table; until it is done."""
    async with local_job(2) as cluster, cluster.connect() as trains:
        idle = await cluster.connect()
        table = await trains.table("w", elements, optimizer=Add())
        await table.push(ones(elements))
        await trains.tick()
        waiting = asyncio.ensure_future(table.pull())
        if how == "finish":
            await idle.finish()
        else:
            await idle.close()
        assert (await waiting == 1).all()
        await idle.close()


async def test_a_late_joiner_enters_at_the_next_round() -> None:
    async def until_10(worker: aiops.Worker, table: aiops.Table, value: float) -> Float32Array:
        while table.wanted_version < 10:
            await table.push(np.full(64, value, np.float32))
            await worker.tick()
        return await table.pull()

    async with local_job(2) as cluster, cluster.connect() as early:
        first = await early.table("w", 64, optimizer=Add())
        async for _ in early.steps(5):
            await first.push(ones(64))
        assert (await first.pull() == 5).all()
        async with cluster.connect() as late:
            assert late.clock == 0
            second = await late.table("w")
            # Version 5 is open and might be closing on some shard: 6 is the first for certain.
            assert second.wanted_version == 6
            pulled = asyncio.ensure_future(second.pull())
            results = await together([until_10(early, first, 1), until_10(late, second, 3)])
            assert (await pulled == 6).all()
            assert all((result == 6 + 2 * 4).all() for result in results)


async def test_who_joins_when_nobody_takes_part_any_more_goes_on_at_once() -> None:
    async with local_job(2) as cluster:
        async with cluster.connect() as first:
            table = await first.table("w", 64, optimizer=Add())
            for _ in range(3):
                await table.push(ones(64))
                await first.tick()
        async with cluster.connect() as second:
            table = await second.table("w")
            assert (await table.pull() == 3).all()
            assert table.version == 3
            await table.push(ones(64))
            await second.tick()
            assert (await table.pull() == 4).all()


async def test_a_worker_that_raises_ends_the_job_and_the_others_see_why() -> None:
    async with local_job() as cluster:
        async with cluster.connect(name="good") as good:
            table = await good.table("w", 4)
            with pytest.raises(ZeroDivisionError):
                await leave_by(ZeroDivisionError("division by zero"), cluster, "bad")
            with pytest.raises(NodeFailed) as caught:
                await good.barrier("never")
            assert "ZeroDivisionError: division by zero" in str(caught.value)
            assert "worker 1 (bad)" in str(caught.value)
            assert caught.value.node == "worker 1 (bad)"
            for call in (table.push(ones()), table.pull(), good.barrier("x"), good.tick()):
                with pytest.raises(NodeFailed, match="ZeroDivisionError"):
                    await call
            with pytest.raises(NodeFailed, match="ZeroDivisionError"):
                await good.table("other", 4)
            with pytest.raises(NodeFailed, match="ZeroDivisionError"):
                good.check()
            await _leave_quietly(good)
        with pytest.raises(AiopsError, match="the job has ended"):
            await cluster.connect()


async def leave_by(
    error: BaseException, cluster: aiops.LocalCluster, name: str | None = None
) -> None:
    async with cluster.connect(name=name):
        raise error


async def _leave_quietly(worker: aiops.Worker) -> None:
    with pytest.raises(NodeFailed):
        await worker.close()


async def test_leaving_a_failed_job_raises_why() -> None:
    """Code that was computing when the job failed must not end as if all were well."""
    async with local_job() as cluster:

        async def compute() -> None:
            async with cluster.connect() as good:
                bad = await cluster.connect()
                await bad.close(RuntimeError("lost for a test"))
                await until(lambda: good.postoffice.failure is not None)

        with pytest.raises(NodeFailed, match="lost for a test"):
            await compute()


async def test_run_raises_the_error_that_came_first() -> None:
    """Not the `NodeFailed` of those who only saw it."""

    async def train(worker: aiops.Worker) -> None:
        table = await worker.table("w", 4)
        async for step in worker.steps(10):
            await table.pull()
            if worker.rank == 2 and step == 3:
                raise LookupError("my data are gone")

    async with local_job(2) as cluster:
        with pytest.raises(LookupError, match="my data are gone"):
            await cluster.run(train, workers=4)


@pytest.mark.parametrize("elements", [4, 64])  # on one server, and on both
async def test_with_continue_the_others_go_on(elements: int) -> None:
    """The open clock of the lost worker is discarded, its sealed ones count."""
    seen: list[float] = []

    async def train(worker: aiops.Worker) -> None:
        table = await worker.table("w", elements, optimizer=Add())
        async for step in worker.steps(20):
            await table.pull()
            await table.push((1 + 2 * worker.rank) * ones(elements))
            if worker.rank == 1 and step == 4:
                raise LookupError("gone")
        seen.append(float((await table.pull())[0]))

    async with local_job(2, on_worker_loss="continue") as cluster:
        with pytest.raises(LookupError, match="gone"):
            await cluster.run(train, workers=2)
    assert seen == [4 * 2 + 16 * 1]


async def test_system_exit_0_is_a_clean_end() -> None:
    async with local_job() as cluster, cluster.connect() as other:

        async def script() -> None:
            async with cluster.connect() as worker:
                tables = await together(
                    one.table("w", 4, optimizer=Add()) for one in (other, worker)
                )
                await tables[1].push(ones())
                raise SystemExit(0)

        with pytest.raises(SystemExit):
            await script()
        await other.tick()
        assert (await (await other.table("w")).pull() == 1).all()


@pytest.mark.parametrize("code", [1, "trouble"])
async def test_another_system_exit_is_a_loss(code: object) -> None:
    async with local_job() as cluster:
        other = await cluster.connect()
        with pytest.raises(SystemExit):
            await leave_by(SystemExit(code), cluster)
        await until(lambda: other.postoffice.failure is not None)
        with pytest.raises(NodeFailed, match="SystemExit"):
            await other.close()


async def test_a_cancelled_worker_is_a_loss() -> None:
    async with local_job() as cluster:
        other = await cluster.connect()

        async def train() -> None:
            async with cluster.connect() as worker:
                await (await worker.table("w", 4)).pull()
                await asyncio.get_running_loop().create_future()

        task = asyncio.ensure_future(train())
        await until(lambda: cluster.status()["tables"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: other.postoffice.failure is not None)
        with pytest.raises(NodeFailed, match="CancelledError"):
            await other.close()


async def test_a_second_run_of_a_cluster_starts_from_step_0() -> None:
    """A worker that has left cleanly was no crash: who takes its name again is new."""

    async def train(worker: aiops.Worker) -> list[int]:
        table = await worker.table("w", 4, optimizer=Add())
        await worker.barrier("opened", timeout_s=60)  # so all enter at one round
        steps = []
        async for step in worker.steps(5):
            await table.push(ones())
            steps.append(step)
        return steps

    async with local_job() as cluster:
        for _ in range(2):
            assert await cluster.run(train, workers=2) == [[0, 1, 2, 3, 4]] * 2
        async with cluster.connect() as reader:
            assert (await (await reader.table("w")).pull() == 10).all()


async def test_a_worker_that_crashed_goes_on_at_its_clock() -> None:
    async with local_job(on_worker_loss="continue") as cluster, cluster.connect() as other:
        table = await other.table("a", 4, consistency=ASP())
        crashes = await cluster.connect(name="phoenix")
        async for step in crashes.steps(100):
            if step == 7:
                crashes._reports.send()
                break
        await crashes.close(RuntimeError("crash"))
        async with cluster.connect(name="phoenix") as again:
            assert (again.clock, again.incarnation, again.rank) == (7, 2, crashes.rank)
            steps = [step async for step in again.steps(10)]
            assert steps == [7, 8, 9]
        await table.pull()


@pytest.mark.parametrize("items", [0, 1, 2, 7, 100])
async def test_shards_tile_all_items_also_when_ranks_have_gaps(items: int) -> None:
    async with local_job(on_worker_loss="continue") as cluster:
        workers = [await cluster.connect() for _ in range(4)]
        await workers.pop(1).close(RuntimeError("gone"))
        await until(lambda: all(worker.world_size == 3 for worker in workers))
        parts = [worker.shard(items) for worker in workers]
        covered = [item for part in parts for item in range(items)[part]]
        assert covered == list(range(items))
        sizes = [part.stop - part.start for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for wrong in (-1, 2.5, "3", None):
            with pytest.raises(UsageError, match="shard: n is"):
                workers[0].shard(wrong)
        for worker in workers:
            await worker.close()


async def test_connect_can_be_awaited_and_closed_by_hand() -> None:
    async with local_job() as cluster:
        worker = await cluster.connect(name="by-hand")
        assert worker.name == "by-hand"
        table = await worker.table("w", 4, optimizer=Add())
        await table.push(ones())
        await worker.close()
        await worker.close()
        for call in (table.push(ones()), table.pull(), worker.tick(), worker.barrier("x")):
            with pytest.raises(Closed, match="closed"):
                await call
        async with cluster.connect() as reader:
            assert (await (await reader.table("w")).pull() == 1).all()


async def test_an_awaited_worker_is_a_context_manager_too() -> None:
    async with local_job() as cluster:
        worker = await cluster.connect()
        async with worker as same:
            assert same is worker
        with pytest.raises(Closed):
            worker.check()


async def test_closing_ends_what_is_pending() -> None:
    """Operations of other tasks fail at once, with the reason."""
    async with local_job() as cluster, cluster.connect() as other:
        await other.table("w", 4)  # never ticks
        worker = await cluster.connect()
        table = await worker.table("w")
        await worker.tick()
        pending = [
            asyncio.ensure_future(call)
            for call in (table.pull(), worker.barrier("x"), anext(table.updates()))
        ]
        table.prefetch()
        await asyncio.sleep(0)
        await worker.close(RuntimeError("enough"))
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert all(isinstance(result, Closed) for result in results), results
        with pytest.raises(NodeFailed):
            await other.barrier("never")
        await _leave_quietly(other)


async def test_a_cluster_does_not_wait_for_a_worker_that_nobody_closes() -> None:
    """It was told that the job has ended, and its connection to the scheduler ends with that."""
    async with local_job() as cluster:
        worker = await cluster.connect()
        table = await worker.table("w", 4)
        began = asyncio.get_running_loop().time()
        await cluster.scheduler.close("enough")
        assert asyncio.get_running_loop().time() - began < 2
        with pytest.raises(Closed, match="enough"):
            await table.pull()
        await worker.close()


async def test_a_worker_that_is_lost_again_and_again_is_refused_for_a_while() -> None:
    async with local_job(on_worker_loss="continue") as cluster, cluster.connect() as calm:
        for _ in range(6):
            mad = await cluster.connect(name="mad")
            await mad.close(RuntimeError("out of memory"))
        with pytest.raises(TooManyRestarts, match=r"mad was lost more than 5 times.* again in"):
            await cluster.connect(name="mad")
        await calm.barrier("b")
        async with cluster.connect(name="sane") as sane:
            await together([sane.barrier("b"), calm.barrier("b")])
