"""What a push waits for: to be received, or applied; and that it is applied once either way."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP, SSP
from aiops.errors import RequestTimeout, UsageError
from aiops.optim import Add
from local_jobs import local_job, parked_at, served, together

SIZE = 64
KEYS = np.arange(SIZE, dtype=np.uint64) * 2**55  # on all servers


def ones() -> Any:
    return np.ones(SIZE, np.float32)


class Rows:
    """A sparse table that is used as a dense one of `SIZE` numbers: a row for each."""

    def __init__(self, table: aiops.SparseTable) -> None:
        self.table = table
        self.core = table.core

    async def push(self, array: Any, **options: Any) -> aiops.PushResult:
        keys = KEYS.copy()
        try:
            return await self.table.push(keys, array.reshape(SIZE, 1), **options)
        finally:
            keys[:] = 7  # the caller's own again, too

    async def pull(self) -> Any:
        return await self.table.pull(KEYS)


async def open_table(kind: str, worker: aiops.Worker, rule: Any, name: str = "w") -> Any:
    """Open a table of `SIZE` numbers to which pushes are added."""
    if kind == "dense":
        return await worker.table(name, SIZE, optimizer=Add(), consistency=rule)
    return Rows(await worker.sparse_table(name, 1, optimizer=Add(), consistency=rule))


async def ahead_by_one(cluster: aiops.LocalCluster, kind: str, rule: Any) -> tuple[Any, ...]:
    """Return two workers and their tables; the first has sealed a clock that the other has not."""
    workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
    tables = await together(open_table(kind, worker, rule) for worker in workers)
    await tables[0].push(ones())
    await workers[0].tick()
    return (*workers, *tables)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", [BSP(reduce="sum"), SSP(staleness=0)], ids=["bsp", "ssp"])
async def test_a_push_that_waits_for_its_round_is_received_and_then_applied_once(
    kind: str, servers: int, rule: BSP | SSP
) -> None:
    async with local_job(servers) as cluster:
        fast, slow, mine, theirs = await ahead_by_one(cluster, kind, rule)
        gradient = 2 * ones()
        result = await mine.push(gradient, ack="received", timeout_s=60)
        assert result.status == "received"
        assert sum(parked_at(server) for server in cluster.servers) == servers
        gradient[:] = 99  # the caller's own again
        with pytest.raises(RequestTimeout):
            await mine.push(ones(), timeout_s=0.05)  # that one would be applied, and waits
        ticking = asyncio.ensure_future(fast.tick())
        await theirs.push(ones())
        await slow.tick()
        await ticking
        await slow.tick()
        # 1 + 1 in the first round, 2 + 1 in the second: who gave up waiting has pushed as well.
        assert (await mine.pull() == 5).all()
        assert sum(parked_at(server) for server in cluster.servers) == 0
        await together(worker.close() for worker in (fast, slow))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
async def test_what_was_received_outlives_a_lost_connection(kind: str) -> None:
    """It is sent again, byte for byte, though its caller has long gone on."""
    async with local_job() as cluster:
        fast, slow, mine, theirs = await ahead_by_one(cluster, kind, BSP(reduce="sum"))
        gradient = 2 * ones()
        assert (await mine.push(gradient, ack="received")).status == "received"
        gradient[:] = 99
        for link in served(cluster.servers[0]):
            link.stream.abort()
        await theirs.push(ones())
        await slow.tick()
        await fast.tick()
        await slow.tick()
        assert (await mine.pull() == 4).all()
        await together(worker.close() for worker in (fast, slow))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
async def test_a_push_that_need_not_wait_is_applied_at_either_level(kind: str) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        for name, rule in (("a", ASP()), ("b", BSP()), ("s", SSP(staleness=1))):
            table = await open_table(kind, worker, rule, name)
            assert (await table.push(ones(), ack="received")).status == "applied"


@pytest.mark.parametrize("kind", ["dense", "sparse"])
async def test_a_refusal_of_what_was_received_is_raised_by_the_next_tick(
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with local_job() as cluster:
        fast, slow, mine, theirs = await ahead_by_one(cluster, kind, BSP())
        rule = cluster.servers[0]._core.tables[mine.core.table_id].rule
        assert (await mine.push(ones(), ack="received")).status == "received"

        def fail(*_: Any) -> None:
            raise ArithmeticError("for a test")

        monkeypatch.setattr(rule, "push", fail)
        await slow.tick()
        with pytest.raises(aiops.errors.RemoteError, match="for a test"):
            await fast.tick()
        del theirs
        await together(worker.close(RuntimeError("for a test")) for worker in (fast, slow))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("ack", ["replicated", "durable", "Applied", "", None, 1])
async def test_a_level_that_servers_cannot_give_is_refused_by_name(kind: str, ack: Any) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await open_table(kind, worker, BSP())
        with pytest.raises(
            UsageError, match=r'push to table w: ack=.*"applied" or "received"'
        ) as e:
            await table.push(ones(), ack=ack)
        assert ("neither replicas nor snapshots" in str(e.value)) == (
            ack in ("replicated", "durable")
        )
