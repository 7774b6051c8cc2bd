"""Prefetch, background pushes, subscriptions and the local copy."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import NodeFailed, RequestTimeout, UsageError
from aiops.optim import Add, Momentum
from aiops_protocol.payload import Float32Array
from local_jobs import (
    go_on,
    local_job,
    pause,
    random_array,
    requests_of,
    same_bits,
    together,
    turns,
    until,
)

LARGE = 4 * 1024 * 1024 + 17


def ones(size: int = 4) -> Float32Array:
    return np.ones(size, np.float32)


async def table_of(
    worker: aiops.Worker, consistency: Any, size: int = 4, **settings: Any
) -> aiops.Table:
    return await worker.table("w", size, optimizer=Add(), consistency=consistency, **settings)


async def request_after(count: int, cluster: aiops.LocalCluster) -> None:
    await until(lambda: requests_of(cluster.servers[0]) > count)


# --- prefetch ---


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
async def test_a_pull_takes_what_was_prefetched(consistency: Any) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, consistency, init=3.0)
        for clock in range(3):
            assert (await table.pull() == 3).all()
            before = requests_of(cluster.servers[0])
            table.prefetch()
            table.prefetch()
            await request_after(before, cluster)
            assert (await table.pull() == 3).all()
            assert requests_of(cluster.servers[0]) == before + 1
            out = np.empty(4, np.float32)
            table.prefetch()
            assert await table.pull(out=out) is out
            assert (out == 3).all()
            await worker.tick()
            assert table.version in (clock, 0)


async def test_a_prefetch_is_not_used_in_another_clock() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP())
        table.prefetch()
        await table.push(ones())
        await worker.tick()
        assert (await table.pull() == 1).all()


async def test_a_prefetch_is_not_used_after_a_push_without_rounds() -> None:
    """A pull sees what its own worker has pushed before it."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        for push in (table.push, table.assign, table.push_soon):
            table.prefetch()
            before = (await table.pull())[0]
            requests = requests_of(cluster.servers[0])
            table.prefetch()
            await request_after(requests, cluster)
            await push(before + ones())
            assert (await table.pull())[0] > before


async def test_a_prefetch_during_an_early_seal() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP())
        table.prefetch()
        assert (await table.push_pull(ones()) == 1).all()
        assert (await table.pull() == 1).all()


async def test_a_pull_with_a_deadline_does_not_wait_for_a_prefetch_without_one() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        pause(cluster.servers[0])
        table.prefetch()
        await turns(2)
        with pytest.raises(RequestTimeout, match="pull table w"):
            await table.pull(timeout_s=0.05)
        go_on(cluster.servers[0])
        assert (await table.pull() == 0).all()


async def test_cancelling_a_pull_of_prefetched_values() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP())
        pause(cluster.servers[0])
        table.prefetch()
        pull = asyncio.ensure_future(table.pull())
        await turns(2)
        pull.cancel()
        await asyncio.wait([pull])
        assert pull.cancelled()
        go_on(cluster.servers[0])
        assert (await table.pull() == 0).all()


async def test_an_error_of_a_prefetch_is_raised_by_the_pull() -> None:
    async with local_job() as cluster:
        worker = await cluster.connect()
        table = await table_of(worker, BSP())
        await cluster.servers[0].close()
        await until(lambda: worker.postoffice.failure is not None)
        with pytest.raises(NodeFailed):
            table.prefetch()
        with pytest.raises(NodeFailed):
            await table.pull()
        with pytest.raises(NodeFailed):
            await worker.close()


# --- push_soon ---


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
async def test_push_soon_copies_and_is_flushed_by_tick(consistency: Any) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await table_of(worker, consistency, 64)
        gradient = np.empty(64, np.float32)
        soon = []
        for count in range(1, 4):
            for _ in range(20):
                gradient[:] = 1
                soon.append(table.push_soon(gradient))
                gradient[:] = 1e9
            await worker.tick()
            assert all(future.done() for future in soon)
            assert (await table.pull() == 20 * count).all()


async def test_push_soon_leaves_before_the_caller_computes() -> None:
    """The frame is in the kernel when the call returns, although the loop does not turn."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        stream = worker.main_customer._servers[0].link.stream  # type: ignore[union-attr]  # connected
        future = table.push_soon(ones())
        assert stream.pending_bytes == 0
        assert not future.done()
        result = await future
        assert (result.status, result.version) == ("applied", 1)


async def test_push_soon_is_limited() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        pause(cluster.servers[0])
        futures = [table.push_soon(ones()) for _ in range(64)]
        with pytest.raises(UsageError, match=r"64 pushes are in flight.*flush.*tick"):
            await table.push_soon(ones())
        go_on(cluster.servers[0])
        await futures[-1]
        await table.push_soon(ones())  # awaiting one has made room
        await table.flush()
        assert (await table.pull() == 65).all()


async def test_many_push_soon_that_are_awaited_leave_nothing_behind() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        for _ in range(200):
            await table.push_soon(ones())
        assert not table.core.writes._alone
        assert (await table.pull() == 200).all()


async def test_an_error_of_push_soon_is_raised_by_tick_and_by_its_future() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, ASP())
        table.core.layout.servers[0] = 0
        pushes = [table.push_soon(ones()) for _ in range(3)]
        for part in _in_flight(worker):
            part.operation.deadline = 0.0  # out of time
        worker.main_customer._expire()
        for push in pushes[:2]:
            with pytest.raises(RequestTimeout):
                await push
        with pytest.raises(RequestTimeout, match="push table w"):
            await worker.tick()
        await worker.tick()
        assert worker.clock == 1


async def test_cancelling_the_future_does_not_stop_the_push() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP())
        table.push_soon(ones()).cancel()
        await worker.tick()
        assert (await table.pull() == 1).all()


def _in_flight(worker: aiops.Worker) -> list[Any]:
    return list(worker.main_customer._servers[0].channel._flight.values())


# --- updates ---


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("size", [4, 100, 200_000])
@pytest.mark.parametrize("servers", [1, 3])
async def test_updates_drive_training_in_rounds(servers: int, size: int) -> None:
    """In place of the pull: each version once, in order, with the bits of a pull."""
    steps = 8

    async def train(worker: aiops.Worker) -> list[Float32Array]:
        table = await worker.table("w", size, init=1.0, optimizer=Momentum(lr=0.1))
        seen: list[Float32Array] = []
        async for version, values in table.updates():
            assert version == len(seen) == table.version == worker.clock
            seen.append(values)
            if version == steps:
                return seen
            await table.push(random_array((size,), version, worker.rank))
            await worker.tick()
        raise AssertionError("not reached")

    async def train_by_pulls(worker: aiops.Worker) -> Float32Array:
        table = await worker.table("p", size, init=1.0, optimizer=Momentum(lr=0.1))
        async for step in worker.steps(steps):
            await table.push(random_array((size,), step, worker.rank))
        return await table.pull()

    async with local_job(servers) as cluster:
        results = await cluster.run(train, workers=3)
        pulled = await cluster.run(train_by_pulls, workers=3)
    for version in range(steps + 1):
        assert all(same_bits(result[version], results[0][version]) for result in results)
    assert same_bits(results[0][-1], pulled[0])


@pytest.mark.parametrize("size", [4, 100, 200_000])
async def test_a_reader_gets_each_round_as_it_closes(size: int) -> None:
    """It takes no part in the rounds; who is slow gets the newest next."""
    async with local_job(2) as cluster, cluster.connect() as worker, cluster.connect() as reader:
        await reader.finish()
        table = await table_of(worker, BSP(), size)
        updates = (await reader.table("w")).updates()
        for version in range(5):
            got, values = await anext(updates)
            assert got == version
            assert (values == version).all()
            waiting = asyncio.ensure_future(anext(updates))
            await turns(20)
            assert not waiting.done()
            await table.push(ones(size))
            await worker.tick()
            got, values = await waiting
            assert got == version + 1
            assert (values == version + 1).all()
            updates = (await reader.table("w")).updates()
        got, _ = await anext(updates)
        for _ in range(5):
            await table.push(ones(size))
            await worker.tick()
        await table.pull()
        assert (await anext(updates))[0] == got + 5


@pytest.mark.parametrize("size", [4, 100, 200_000])
async def test_a_reader_gets_what_has_changed_without_rounds(size: int) -> None:
    async with local_job(3) as cluster, cluster.connect() as worker, cluster.connect() as reader:
        table = await table_of(worker, ASP(), size)
        updates = (await reader.table("w")).updates()
        version, values = await anext(updates)
        assert version == 0
        model = np.zeros(size, np.float32)
        for row in (0, size - 1, size // 2, 0, size - 1):
            waiting = asyncio.ensure_future(anext(updates))
            await turns(20)
            assert not waiting.done()
            await table.push(ones(1), rows=[row])
            model[row] += 1
            newer, values = await waiting
            assert newer == version + 1
            assert same_bits(values, model)
            version = newer
        values[:] = 7  # what was handed out is the caller's
        await table.push(ones(1), rows=[0])
        model[0] += 1
        assert same_bits((await anext(updates))[1], model)


async def test_updates_without_rounds_come_to_the_sum_of_all_pushes() -> None:
    size, pushes = 300, 40

    async def push_all(worker: aiops.Worker) -> None:
        table = await table_of(worker, ASP(), size)
        for _ in range(pushes):
            await table.push(ones(size))

    async with local_job(3) as cluster, cluster.connect() as reader:
        table = await table_of(reader, ASP(), size)

        async def follow() -> int:
            seen = 0
            async for version, values in table.updates():
                assert version >= seen
                seen = version
                assert (np.diff(np.unique(values)) <= pushes * 3).all()
                if (values == pushes * 3).all():
                    return version
            raise AssertionError("not reached")

        following = asyncio.ensure_future(follow())
        await cluster.run(push_all, workers=3)
        assert await following == 3 * pushes * 3


async def test_a_subscription_holds_up_nobody_else() -> None:
    """However large the table: what waits for the next version leaves the window free."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await table_of(worker, BSP(), LARGE)
        free = await worker.table("a", 4, optimizer=Add(), consistency=ASP())

        async def follow() -> int:
            async for version, values in table.updates():
                assert (values == version).all()
                if version == 3:
                    return version
            raise AssertionError("not reached")

        following = asyncio.ensure_future(follow())
        for clock in range(3):
            assert (await table.pull() == clock).all()
            await table.push(ones(LARGE))
            await free.push(ones())
            assert (await free.pull() == clock + 1).all()
            await worker.tick()
        assert await following == 3


async def test_a_hundred_subscriptions_hold_up_nobody_else() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        tables = await together(worker.table(f"t{i}", 16 * 1024) for i in range(100))
        updates = [table.updates() for table in tables]
        await together(anext(update) for update in updates)
        waiting = [asyncio.ensure_future(anext(update)) for update in updates]
        await turns(20)
        large = await worker.table("large", LARGE, init=2.0, consistency=ASP())
        assert (await large.pull() == 2).all()
        await worker.tick()
        results = await asyncio.gather(*waiting)
        assert all(version == 1 for version, _ in results)


async def test_updates_end_when_the_job_ends_well() -> None:
    async with local_job() as cluster, cluster.connect() as reader:
        table = await table_of(reader, ASP())

        async def follow() -> int:
            return len([version async for version, _ in table.updates()])

        following = asyncio.ensure_future(follow())
        await until(lambda: table.local.version == 0 and requests_of(cluster.servers[0]) >= 2)
        closing = asyncio.ensure_future(cluster.scheduler.close("enough"))
        assert await following == 1
        await reader.close()
        await closing


async def test_updates_end_by_the_error_of_a_failed_job() -> None:
    async with local_job() as cluster:
        reader = await cluster.connect()
        updates = (await table_of(reader, ASP())).updates()
        await anext(updates)
        waiting = asyncio.ensure_future(anext(updates))
        await turns(5)
        await (await cluster.connect()).close(RuntimeError("on purpose"))
        with pytest.raises(NodeFailed, match="on purpose"):
            await waiting
        with pytest.raises(NodeFailed):
            await reader.close()


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
@pytest.mark.parametrize("size", [4, 200_000])
async def test_a_cancelled_update_goes_on_with_the_next(consistency: Any, size: int) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await table_of(worker, consistency, size)
        updates = table.updates()
        assert (await anext(updates))[0] == 0
        for after_turns in range(8):
            waiting = asyncio.ensure_future(anext(updates))
            await turns(after_turns)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
        await table.push(ones(size))
        await worker.tick()
        _, values = await anext(updates)
        assert (values[[0]] == 1).all()
