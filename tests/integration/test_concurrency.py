"""Several tasks of one worker at one table, and loops that end in every way."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import AiopsError, NodeFailed, UsageError
from aiops.optim import Add
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
from van_bodies import GUARD_S, resume, stall

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


def ones(size: int = 64) -> Float32Array:
    return np.ones(size, np.float32)


async def test_a_worker_that_reads_late_is_not_cut_off() -> None:
    """However many calls it makes at once: what it may have asked for, the servers may hold."""
    size = 512 * 1024
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", size, optimizer=Add(), consistency=ASP())
        link = worker.main_customer._servers[0].link
        assert link is not None
        stall(link.stream)
        calls = [asyncio.ensure_future(table.pull()) for _ in range(32)]
        calls += [
            asyncio.ensure_future(table.push_pull(np.zeros(size, np.float32))) for _ in range(16)
        ]
        channel = worker.main_customer._servers[0].channel
        await until(lambda: channel._pull_bytes == 16 * 1024 * 1024)
        await until(lambda: requests_of(cluster.servers[0]) >= 32 + 16)
        await turns(50)
        resume(link.stream)
        results = await together(calls)
        assert all((result == 0).all() for result in results)
        assert worker.stats()["bytes"]["retransmitted"] == 0
        assert cluster.servers[0].meter.connections == 1


@pytest.mark.parametrize("size", [64, 3_000_000])
async def test_pulls_of_one_table_at_once(size: int) -> None:
    values = random_array((size,), 1)
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", size, init=values, consistency=ASP())
        outs = [np.empty(size, np.float32) for _ in range(3)]
        table.prefetch()
        results = await together(
            [
                *(table.pull(out=out) for out in outs),
                *(table.pull() for _ in range(3)),
                table.pull(rows=slice(0, size)),
                table.pull(rows=[0, size - 1]),
            ]
        )
        for result in results[:7]:
            assert same_bits(result, values)
        assert len({id(result) for result in results}) == 8
        assert same_bits(results[7], values[[0, -1]])


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
async def test_pushes_of_several_tasks_all_count(consistency: Any) -> None:
    async def push_all(table: aiops.Table) -> None:
        for _ in range(25):
            await table.push(ones())

    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=consistency)
        await together(push_all(table) for _ in range(8))
        await worker.tick()
        assert (await table.pull() == 200).all()


async def test_a_tick_waits_for_the_pushes_of_other_tasks() -> None:
    """They were begun in this clock, so they are in this round."""
    size = 4 * 1024 * 1024
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", size, optimizer=Add())
        for round_ in range(3):
            pushes = [asyncio.ensure_future(table.push(ones(size))) for _ in range(2)]
            await turns(1)
            await worker.tick()
            assert all(push.done() for push in pushes)
            assert (await table.pull() == 2 * (round_ + 1)).all()


async def test_a_tick_does_not_raise_what_another_task_is_told() -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add())
        pause(cluster.servers[0])
        push = asyncio.ensure_future(table.push(ones(), timeout_s=0.05))
        await turns(1)
        await worker.tick()
        with pytest.raises(AiopsError, match="no answer"):
            await push
        go_on(cluster.servers[0])


async def test_a_pull_during_push_pull() -> None:
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in (a, b))
        pushing = asyncio.ensure_future(tables[0].push_pull(ones()))
        await turns(1)
        before = await tables[0].pull()
        await until(lambda: tables[0].core.place.sealed_early)
        after = asyncio.ensure_future(tables[0].pull())
        await tables[1].push(3 * ones())
        await b.tick()
        assert (before == 0).all()
        assert (await pushing == 2).all()
        assert (await after == 2).all()


async def test_push_pull_twice_at_once_is_one_round() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add())
        results = await asyncio.gather(
            table.push_pull(ones()), table.push_pull(ones()), return_exceptions=True
        )
        counted = sum(isinstance(result, np.ndarray) for result in results)
        assert counted >= 1
        assert all(isinstance(result, np.ndarray | UsageError) for result in results)
        await worker.tick()
        assert (await table.pull() == counted).all()
        assert table.version == worker.clock == 1


async def test_a_tick_during_push_pull_is_one_clock() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add())
        pushing = asyncio.ensure_future(table.push_pull(ones()))
        await turns(1)
        await worker.tick()
        assert (await pushing == 1).all()
        await worker.tick()
        assert (await table.pull() == 1).all()
        assert table.version == worker.clock == 2


async def test_an_exception_in_a_step_leaves_the_loop_and_the_job() -> None:
    async def train(cluster: aiops.LocalCluster) -> None:
        async with cluster.connect() as worker:
            table = await worker.table("w", 64, optimizer=Add())
            async for step in worker.steps(10):
                await table.push(ones())
                if step == 3:
                    raise LookupError("no more data")

    async with local_job(2, on_worker_loss="continue") as cluster:
        with pytest.raises(LookupError, match="no more data"):
            await train(cluster)
        async with cluster.connect() as reader:
            table = await reader.table("w")
            assert (await table.pull() == 3).all()  # the open clock was discarded


async def test_steps_after_the_job_has_failed_raise_why() -> None:
    async with local_job() as cluster:
        worker = await cluster.connect()
        with pytest.raises(NodeFailed, match="on purpose"):
            await _step_until_it_fails(cluster, worker)
        with pytest.raises(NodeFailed, match="on purpose"):
            await worker.close()


async def _step_until_it_fails(cluster: aiops.LocalCluster, worker: aiops.Worker) -> None:
    async for step in worker.steps(100_000):
        if step == 3:
            await (await cluster.connect()).close(RuntimeError("on purpose"))


async def test_one_loop_within_another_goes_on_numbering() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        seen = []
        async for outer in worker.steps(2):
            seen.append(outer)
            seen += [inner async for inner in worker.steps(2)]
            break
        assert seen == [0, 2, 3]
        assert worker.clock == 3


async def test_metrics_that_may_not_travel_are_refused() -> None:
    """A report that the scheduler does not take would end this worker's part in the job."""
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(UsageError, match="publish_metrics"):
            worker.publish_metrics(**{"x" * 129: 1.0})
        worker.publish_metrics(**{f"m{i}": float(i) for i in range(256)})
        with pytest.raises(UsageError, match="at most 256 names"):
            worker.publish_metrics(one_more=1.0)
        worker.publish_metrics(m0=float("nan"), m1=0.5)
        worker._reports.send()
        await until(lambda: cluster.status()["workers"][0]["metrics"])
        metrics = cluster.status()["workers"][0]["metrics"]
        assert metrics["m1"] == 0.5
        assert "m0" not in metrics


SCRIPT = textwrap.dedent(
    """
    import asyncio, signal, sys
    import numpy as np
    import aiops

    async def main():
        async with aiops.LocalCluster() as cluster:
            async with cluster.connect() as worker:
                table = await worker.table("w", 4)
                print("running", flush=True)
                if sys.argv[2] == "computing":
                    async for step in worker.steps(10**9):
                        await table.push(np.ones(4, np.float32))
                        await table.pull()
                await worker.tick()
                other = await cluster.connect()
                await other.table("w")
                await worker.tick()
                await table.pull()
                await worker.barrier("never")

    if sys.argv[1] == "uvloop":
        aiops.run(main())
    else:
        asyncio.run(main())
    """
)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("state", ["computing", "waiting"])
async def test_control_c_ends_a_script_at_once(loop: str, state: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, loop, state,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(GUARD_S):  # both states last for ever
        assert process.stdout is not None
        assert await process.stdout.readline() == b"running\n"
        await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert b"never retrieved" not in errors
    assert b"was destroyed" not in errors
