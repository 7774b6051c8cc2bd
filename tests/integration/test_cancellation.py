"""What a cancelled or timed-out call leaves behind: nothing half done, and no borrowed memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.errors import RequestTimeout, UsageError
from aiops.optim import Add
from aiops.roles.retries import Retries
from aiops_protocol.payload import Float32Array
from local_jobs import go_on, local_job, pause, same_bits, served, together, turns, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

LARGE = 4 * 1024 * 1024 + 17
"""16 MiB: more than the window, and than the kernel holds for a peer that does not read."""


def ones(size: int) -> Float32Array:
    return np.ones(size, np.float32)


async def summing(worker: aiops.Worker, size: int, **settings: Any) -> aiops.Table:
    return await worker.table("w", size, optimizer=Add(), consistency=ASP(), **settings)


async def cancelled(call: Coroutine[Any, Any, object], after_turns: int) -> bool:
    """Start a call, cancel it after some turns of the loop; tell whether it was in time."""
    task = asyncio.ensure_future(call)
    await turns(after_turns)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def settled_values(table: aiops.Table) -> set[float]:
    await table.flush()
    return set(np.unique(await table.pull()).tolist())


# --- pushes ---


async def test_a_push_may_be_overwritten_when_it_has_returned() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await summing(worker, LARGE)
        gradient = np.empty(LARGE, np.float32)
        for count in range(1, 4):
            gradient[:] = 1
            await table.push(gradient)
            gradient[:] = 1e9
            assert await settled_values(table) == {count}


@pytest.mark.parametrize("kind", ["push", "assign", "push_pull"])
async def test_a_cancelled_push_to_a_stalled_server_happens_whole(kind: str) -> None:
    """Some of it has left, so the rest is copied; the array is the caller's at once."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, LARGE)
        pause(cluster.servers[0])
        gradient = ones(LARGE)
        assert await cancelled(getattr(table, kind)(gradient), 3)
        gradient[:] = 1e9
        go_on(cluster.servers[0])
        assert await settled_values(table) == {1}
        await table.push(ones(LARGE))
        assert await settled_values(table) == {2}
        # Bytes that had changed on their way would have cost the connection.
        assert worker.stats()["bytes"]["retransmitted"] == 0


async def test_a_cancelled_push_of_which_nothing_has_left_never_was() -> None:
    """It waited for the window behind another one."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, LARGE)
        pause(cluster.servers[0])
        first = asyncio.ensure_future(table.push(ones(LARGE)))
        await turns(2)
        assert await cancelled(table.push(10 * ones(LARGE)), 2)
        go_on(cluster.servers[0])
        await first
        assert await settled_values(table) == {1}


@pytest.mark.parametrize("after_turns", [*range(0, 24, 2), 40, 80])
async def test_a_push_cancelled_at_any_turn_is_whole_or_not_at_all(after_turns: int) -> None:
    size = 2 * 1024 * 1024
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await summing(worker, size)
        gradient = ones(size)
        await cancelled(table.push(gradient), after_turns)
        gradient[:] = 1e9
        assert await settled_values(table) in ({0.0}, {1.0})
        await table.push(ones(size))
        assert await settled_values(table) in ({1.0}, {2.0})
        validate(worker)


async def test_a_cancelled_push_is_sent_again_from_its_own_copy() -> None:
    """The connection is lost after the cancellation, and the array has changed since."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, LARGE)
        pause(cluster.servers[0])
        gradient = ones(LARGE)
        assert await cancelled(table.push(gradient), 3)
        gradient[:] = 1e9
        for link in list(cluster.servers[0]._links.values()):
            link.abort()
        assert await settled_values(table) == {1}
        assert worker.stats()["bytes"]["retransmitted"] > 0


async def test_what_a_cancelled_push_meets_is_raised_by_the_next_tick() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, LARGE)
        pause(cluster.servers[0])
        task = asyncio.ensure_future(table.push(ones(LARGE), timeout_s=0.1))
        await turns(3)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(RequestTimeout, match="push table w: no answer"):
            await worker.tick()
        assert worker.clock == 0
        go_on(cluster.servers[0])
        await worker.tick()
        assert worker.clock == 1


async def test_a_cancelled_push_of_a_round_is_in_that_round() -> None:
    """The seal waits for it, whatever the caller did."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", LARGE, optimizer=Add())
        pause(cluster.servers[0])
        gradient = ones(LARGE)
        assert await cancelled(table.push(gradient), 3)
        gradient[:] = 1e9
        ticking = asyncio.ensure_future(worker.tick())
        await turns(3)
        assert worker.clock == 0
        go_on(cluster.servers[0])
        await ticking
        assert await settled_values(table) == {1}
        assert table.version == 1


# --- pulls ---


@pytest.mark.parametrize("after_turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
@pytest.mark.parametrize("kind", ["pull", "push_pull", "rows"])
async def test_out_is_not_written_after_a_cancellation(kind: str, after_turns: int) -> None:
    size = 4 * 1024 * 1024
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await summing(worker, size, init=1.0)
        out = np.zeros(size, np.float32)
        call: Coroutine[Any, Any, object]
        if kind == "rows":
            call = table.pull(slice(0, size), out=out)
        elif kind == "pull":
            call = table.pull(out=out)
        else:
            call = table.push_pull(np.zeros(size, np.float32), out=out)
        await cancelled(call, after_turns)
        out[:] = 7
        for _ in range(3):
            assert await settled_values(table) == {1}
        assert (out == 7).all()
        validate(worker)


async def test_a_pull_that_waits_by_rule_can_be_cancelled() -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as other:
        tables = await together(one.table("w", 4, optimizer=Add()) for one in (worker, other))
        await worker.tick()
        out = np.zeros(4, np.float32)
        assert await cancelled(tables[0].pull(out=out), 20)
        out[:] = 7
        await other.tick()
        assert (await tables[0].pull() == 0).all()
        assert (out == 7).all()


# --- the clock ---


@pytest.mark.parametrize("after_turns", range(6))
async def test_push_pull_of_a_round_cancelled_at_any_turn(after_turns: int) -> None:
    """The clock is closed once, with the push or without it."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add())
        gradient = ones(64)
        await cancelled(table.push_pull(gradient), after_turns)
        gradient[:] = 1e9
        await worker.tick()
        assert await settled_values(table) in ({0.0}, {1.0})
        assert (worker.clock, table.version) == (1, 1)
        before = (await table.pull())[0]
        assert (await table.push_pull(ones(64)) == before + 1).all()


@pytest.mark.parametrize("servers", [1, 2])
async def test_push_pull_cancelled_while_it_waits_for_the_round(servers: int) -> None:
    async with (
        local_job(servers) as cluster,
        cluster.connect() as worker,
        cluster.connect() as other,
    ):
        tables = await together(one.table("w", 64, optimizer=Add()) for one in (worker, other))
        gradient, out = ones(64), np.zeros(64, np.float32)
        task = asyncio.ensure_future(tables[0].push_pull(gradient, out=out))
        await until(lambda: tables[0].core.place.sealed_early)
        task.cancel()
        await asyncio.wait([task])
        gradient[:] = out[:] = 7
        with pytest.raises(UsageError, match="sealed this clock"):
            await tables[0].push(ones(64))
        await together(one.tick() for one in (worker, other))
        assert await settled_values(tables[0]) == {1}
        assert (out == 7).all()


async def test_a_push_that_is_sealed_happens_although_nothing_of_it_had_left() -> None:
    """The connection is down; the seal says that this worker has contributed, so it must have."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add())
        connection = worker.main_customer._servers[0]
        retries = connection._retries = Retries(asyncio.get_running_loop().time())
        retries._answers, retries._left = connection.channel.settled, 0.9  # down for a tenth of 1 s
        for link in served(cluster.servers[0]):
            link.stream.abort()
        await until(lambda: connection.link is None)
        gradient = ones(64)
        task = asyncio.ensure_future(table.push_pull(gradient))
        await turns(1)
        assert table.core.place.sealed_early
        task.cancel()
        await asyncio.wait([task])
        gradient[:] = 1e9
        await worker.tick()
        assert await settled_values(table) == {1}
        assert table.version == 1


async def test_a_cancelled_tick_leaves_the_clock_open() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        tables = await together(worker.table(name, LARGE, optimizer=Add()) for name in ("a", "b"))
        for server in cluster.servers:
            pause(server)
        soon = [table.push_soon(ones(LARGE)) for table in tables]
        assert await cancelled(worker.tick(), 5)
        assert worker.clock == 0
        for server in cluster.servers:
            go_on(server)
        await worker.tick()
        assert worker.clock == 1
        assert all(future.done() for future in soon)
        for table in tables:
            assert await settled_values(table) == {1}
            assert table.version == 1


async def test_a_worker_that_only_ticks_is_held_back_and_can_be_cancelled() -> None:
    """Seals that nobody acknowledges do not pile up, and a cancellation loses none of them."""
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as other:
        tables = await together(one.table("w", 4, optimizer=Add()) for one in (worker, other))

        async def tick_for_ever() -> None:
            while True:
                await worker.tick()

        task = asyncio.ensure_future(tick_for_ever())
        await until(lambda: len(tables[0].core.place._seals) == 16)
        await turns(50)
        clock = worker.clock
        task.cancel()
        await asyncio.wait([task])
        assert worker.clock == clock
        while other.clock < clock:
            await other.tick()
        assert (await tables[0].pull() == 0).all()
        assert tables[0].version == clock == worker.clock


@pytest.mark.parametrize("after_turns", range(5))
async def test_a_cancelled_finish_can_be_repeated(after_turns: int) -> None:
    async with local_job() as cluster, cluster.connect() as worker, cluster.connect() as other:
        tables = await together(one.table("w", 4, optimizer=Add()) for one in (worker, other))
        await tables[0].push(ones(4))
        await cancelled(worker.finish(), after_turns)
        await worker.finish()
        await other.tick()
        await other.tick()
        assert (await tables[1].pull() == 1).all()
        assert tables[1].version == 2
        await other.barrier("alone")


async def test_two_ticks_at_once_are_refused() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", LARGE, optimizer=Add())
        pause(cluster.servers[0])
        soon = table.push_soon(ones(LARGE))
        first = asyncio.ensure_future(worker.tick())
        await turns(2)
        with pytest.raises(UsageError, match="another task"):
            await worker.tick()
        go_on(cluster.servers[0])
        await first
        assert soon.done()
        assert worker.clock == 1


# --- deadlines ---


async def test_an_answer_that_lies_unread_is_no_timeout() -> None:
    """The loop was held up by a computation for longer than the deadline."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, 4)
        pull = asyncio.ensure_future(table.pull(timeout_s=0.1))
        await turns(1)
        time.sleep(0.2)  # noqa: ASYNC251  # a computation
        assert (await pull == 0).all()


@pytest.mark.parametrize("timeout_s", [0, -1, "1", float("nan"), True])
async def test_a_timeout_is_a_number_above_0(timeout_s: Any) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, 4)
        for call in (
            table.pull(timeout_s=timeout_s),
            table.push(ones(4), timeout_s=timeout_s),
            table.assign(ones(4), timeout_s=timeout_s),
            table.push_pull(ones(4), timeout_s=timeout_s),
            worker.barrier("b", timeout_s=timeout_s),
        ):
            with pytest.raises(UsageError, match="timeout_s is"):
                await call
        assert await settled_values(table) == {0}


async def test_no_deadline_is_too_far_away() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await summing(worker, 4)
        for timeout_s in (1e12, float("inf")):
            await table.push(ones(4), timeout_s=timeout_s)
            await table.pull(timeout_s=timeout_s)
            await worker.barrier("b", timeout_s=timeout_s)
        assert same_bits(await table.pull(), 2 * ones(4))


def validate(worker: aiops.Worker) -> None:
    for server in worker.main_customer._servers.values():
        server.channel.validate()
