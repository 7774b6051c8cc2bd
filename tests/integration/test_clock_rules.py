"""The rules of the clock: which version a call sees, and what a round is made of."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import UsageError
from aiops.optim import SGD, Add, Assign
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, parked_at, random_array, same_bits, together, until


def filled(value: float, size: int = 4) -> Float32Array:
    return np.full(size, value, np.float32)


async def summing(worker: aiops.Worker, name: str = "w", **settings: object) -> aiops.Table:
    """A BSP table whose values are the sum of the rounds' means."""
    return await worker.table(name, 4, optimizer=Add(), **settings)  # type: ignore[arg-type]


async def test_the_first_pull_is_the_initial_value_and_never_waits() -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as other:
        await summing(other)  # takes part and never ticks
        table = await summing(worker, init=0.0)
        assert (await table.pull() == 0).all()
        assert table.version == 0


async def test_a_pull_sees_the_version_of_the_clock_also_after_a_push() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await summing(worker)
        for clock in range(3):
            assert (await table.pull() == clock).all()
            await table.push(filled(1))
            assert (await table.pull() == clock).all()
            assert table.version == clock == worker.clock
            await worker.tick()


async def test_pushes_of_one_clock_add_up_before_the_mean() -> None:
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        left, right = await together(summing(worker) for worker in (a, b))
        await left.push(filled(1))
        await left.push(filled(2))
        await left.push(filled(8)[:1], rows=[3])
        await right.push(filled(4))
        await together(worker.tick() for worker in (a, b))
        assert same_bits(await left.pull(), np.array([3.5, 3.5, 3.5, 7.5], np.float32))


async def test_the_sum_of_one_clock_is_in_the_order_of_the_calls() -> None:
    """A contribution is a left fold too, so its bits are those of the calls in order."""
    gradients = [random_array((4,), seed) for seed in range(5)]
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker)
        for gradient in gradients:
            await table.push(gradient)
        await worker.tick()
        expected = gradients[0]
        for gradient in gradients[1:]:
            expected = expected + gradient
        assert same_bits(await table.pull(), expected)


async def test_who_does_not_push_is_not_in_the_divisor() -> None:
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        left, _ = await together(summing(worker) for worker in (a, b))
        await left.push(filled(6))
        await together(worker.tick() for worker in (a, b))
        assert (await left.pull() == 6).all()


async def test_a_push_of_few_rows_counts_on_every_shard() -> None:
    """The divisor is of the table: also where a contributor has pushed nothing."""
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in (a, b))
        assert len({part["server"] for part in tables[0].partition}) == 2
        await tables[0].push(filled(4, 64))
        await tables[1].push(filled(2, 1), rows=[0])
        await together(worker.tick() for worker in (a, b))
        expected = filled(2, 64)
        expected[0] = 3
        assert same_bits(await tables[0].pull(), expected)


async def test_nobody_pushed_values_stay_and_the_version_rises() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, init=3.0, optimizer=SGD(lr=1.0, weight_decay=0.5))
        await worker.tick()
        assert (await table.pull() == 3).all()
        assert table.version == 1


async def test_push_pull_seals_and_returns_the_next_version() -> None:
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in (a, b))
        values = await together(
            table.push_pull(filled(rank + 1, 64)) for rank, table in enumerate(tables)
        )
        assert all((value == 1.5).all() for value in values)
        for table, worker in zip(tables, (a, b), strict=True):
            assert table.version == 1
            assert worker.clock == 0
            for call in (table.push, table.assign, table.push_pull, table.push_soon):
                with pytest.raises(UsageError, match=r"sealed this clock.*tick"):
                    await call(filled(1, 64))
            assert (await table.pull() == 1.5).all()
            await worker.tick()
            assert worker.clock == 1
        values = await together(table.push_pull(filled(1, 64)) for table in tables)
        assert all((value == 2.5).all() for value in values)


async def test_push_pull_in_asp_returns_what_the_push_has_made() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        out = np.empty(64, np.float32)
        for count in range(1, 4):
            assert (await table.push_pull(filled(1, 64)) == 2 * count - 1).all()
            assert await table.push_pull(filled(1, 64), out=out) is out
            assert (out == 2 * count).all()


async def test_assign_takes_effect_at_the_close_before_gradients() -> None:
    """Lowest rank first come: the assignment of the highest rank is the one that stays."""
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        left, right = await together(summing(worker) for worker in (a, b))
        await right.assign(filled(20))
        await left.assign(filled(10))
        await left.assign(filled(7)[:2], rows=[0, 1])
        await left.push(filled(1))
        assert (await left.pull() == 0).all()
        await together(worker.tick() for worker in (a, b))
        assert (await left.pull() == 21).all()
        await left.assign(filled(5)[:1], rows=slice(2, 3))
        await together(worker.tick() for worker in (a, b))
        assert same_bits(await right.pull(), np.array([21, 21, 5, 21], np.float32))


async def test_assign_in_asp_is_at_once() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, optimizer=SGD(lr=0.5), consistency=ASP())
        await table.assign(filled(3))
        assert (await table.pull() == 3).all()
        await table.push(filled(2))
        assert (await table.pull() == 2).all()


async def test_the_assign_updater_sets_what_was_pushed() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, init=9.0, optimizer=Assign(), consistency=ASP())
        await table.push(filled(3))
        assert (await table.pull() == 3).all()


async def test_steps_are_numbered_through_all_loops() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker)
        seen = []
        for count in (3, 0, 4):
            async for step in worker.steps(count):
                assert step == worker.clock
                await table.push(filled(1))
                seen.append(step)
        assert seen == [0, 1, 2, 3, 4, 5, 6]
        assert worker.clock == 7
        assert (await table.pull() == 7).all()
        assert table.version == 7


async def test_break_leaves_the_clock_open_until_the_next_loop() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker)
        async for step in worker.steps(10):
            await table.push(filled(1))
            if step == 2:
                break
        assert worker.clock == 2
        assert (await table.pull() == 2).all()
        numbers = []
        async for step in worker.steps(2):
            numbers.append(step)
            await table.push(filled(1))
        assert numbers == [10, 11]
        assert worker.clock == 5
        assert (await table.pull() == 5).all()


async def test_break_then_tick_or_finish_seals() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker)
        async for _ in worker.steps(10):
            await table.push(filled(1))
            break
        await worker.tick()
        assert (worker.clock, table.wanted_version) == (1, 1)
        async for _ in worker.steps(1):
            await table.push(filled(1))
            break
        await worker.finish()
        assert worker.clock == 2
        assert (await table.pull() == 2).all()


@pytest.mark.parametrize("count", [-1, 1.5, "3", True, None])
async def test_steps_takes_a_whole_number(count: object) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(UsageError, match="steps"):
            worker.steps(count)  # type: ignore[arg-type]  # that is the point


async def test_after_finish_pulls_work_and_changes_do_not() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker)
        free = await worker.table("a", 4, optimizer=Add(), consistency=ASP())
        await table.push(filled(1))
        await worker.finish()
        await worker.finish()
        assert (await table.pull() == 1).all()
        assert (await table.pull(rows=[0]) == 1).all()
        for one in (table, free):
            for call in (one.push, one.assign, one.push_pull, one.push_soon):
                with pytest.raises(UsageError, match=r"finished; pull still works"):
                    await call(filled(1))
        with pytest.raises(UsageError, match="finished"):
            await worker.tick()
        with pytest.raises(UsageError, match="finished"):
            async for _ in worker.steps(1):
                pass
        late = await worker.table("late", 4)
        assert (await late.pull() == 0).all()


async def test_tables_of_several_rules_gate_only_their_own_calls() -> None:
    """A push to a round that is not open yet waits; everything else of this worker goes on."""
    async with local_job() as cluster, cluster.connect() as fast, cluster.connect() as slow:
        rounds, _ = await together(summing(worker) for worker in (fast, slow))
        free = await fast.table("a", 4, optimizer=Add(), consistency=ASP())
        await fast.tick()
        waiting = asyncio.ensure_future(rounds.push(filled(1)))
        for count in range(1, 100):
            await free.push(filled(1))
            assert (await free.pull() == count).all()
        assert not waiting.done()
        await slow.tick()
        await waiting


async def test_a_large_push_that_waits_lets_other_tables_pass() -> None:
    """Also when what waits by rule fills the window of bytes."""
    size = 4 * 1024 * 1024  # 16 MiB, twice the window
    async with local_job() as cluster, cluster.connect() as fast, cluster.connect() as slow:
        tables = await together(worker.table("w", size, optimizer=Add()) for worker in (fast, slow))
        free = await fast.table("a", 4, optimizer=Add(), consistency=ASP())
        await fast.tick()
        waiting = asyncio.ensure_future(tables[0].push(np.ones(size, np.float32)))
        await until(lambda: parked_at(cluster.servers[0]) >= 8)
        await free.push(filled(1))
        assert (await free.pull() == 1).all()
        assert not waiting.done()
        await slow.tick()
        await waiting


async def test_tables_count_rounds_from_where_they_were_opened() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        first = await summing(worker, "first")
        for _ in range(5):
            await worker.tick()
        second = await summing(worker, "second")
        assert (await second.pull() == 0).all()
        assert second.version == 0
        await worker.tick()
        await first.pull()
        await second.pull()
        assert (first.version, second.version, worker.clock) == (6, 1, 6)


async def test_bsp_is_the_default_with_sgd() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, init=1.0)
        assert table.has_rounds
        await table.push(filled(100))
        assert (await table.pull() == 1).all()
        await worker.tick()
        assert same_bits(await table.pull(), filled(1) - np.float32(0.01) * filled(100))
        with pytest.raises(UsageError, match="consistency"):
            await worker.table("w", 4, init=1.0, consistency=ASP())
        again = await worker.table("w", 4, init=1.0, consistency=BSP())
        assert again is table
