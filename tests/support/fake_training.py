"""A cluster of fake workers in one event loop, for tests of the training loop.

Rounds, the mean in rank order, the common stop and barriers behave as a real cluster's; there are
no servers, no frames and no failures. The tests of real clusters are elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from aiops.compression import Codec
from aiops.consistency import BSP
from aiops.optim import Optimizer
from aiops_protocol.payload import Float32Array

Result = TypeVar("Result")


@dataclass(frozen=True)
class FakeMember:
    """A node as the workers know it."""

    role: str
    rank: int


class FakeTable:
    """Values with an optimizer; BSP rounds close when all workers have ticked."""

    def __init__(
        self, init: Float32Array, optimizer: Optimizer, consistency: object, workers: int
    ) -> None:
        self.values = init.copy()
        self.optimizer = optimizer
        self.consistency = consistency
        self.bsp = isinstance(consistency, BSP)
        self.workers = workers
        self.version = 0
        self.state = {slot: np.zeros_like(init) for slot in optimizer.slots}
        self.open: dict[int, dict[int, Float32Array | None]] = {}
        self.changed = asyncio.Condition()

    def push(self, rank: int, clock: int, gradient: Float32Array) -> None:
        assert np.isfinite(gradient).all()
        if self.bsp:
            contributions = self.open.setdefault(clock, {})
            assert rank not in contributions, "the loop pushes once per clock"
            contributions[rank] = gradient.copy()
        else:
            self._update(gradient.copy())

    async def seal(self, clock: int, rank: int) -> None:
        async with self.changed:
            contributions = self.open.setdefault(clock, {})
            contributions.setdefault(rank, None)
            if len(contributions) == self.workers and self.bsp:
                self._close(self.open.pop(clock))
            self.changed.notify_all()

    def _close(self, contributions: dict[int, Float32Array | None]) -> None:
        pushed = [g for _, g in sorted(contributions.items()) if g is not None]
        if not pushed:
            self.version += 1
            return
        total = pushed[0].copy()
        for gradient in pushed[1:]:
            total += gradient
        self._update(total / np.float32(len(pushed)))

    def _update(self, gradient: Float32Array) -> None:
        self.version += 1
        scratch = np.empty_like(gradient)
        optimizer = self.optimizer.at(self.version - 1)
        optimizer.update(self.values, gradient, self.state, self.version, scratch)


class FakeHandle:
    """A worker's handle of a table."""

    def __init__(self, table: FakeTable, worker: FakeWorker) -> None:
        self.table = table
        self.worker = worker

    async def pull(self, *, out: Float32Array) -> Float32Array:
        if self.table.bsp:
            async with self.table.changed:
                await self.table.changed.wait_for(lambda: self.table.version == self.worker.clock)
        await asyncio.sleep(0)  # lets the others move, as a round trip would
        self.worker.counts["pulled"] += out.nbytes
        np.copyto(out, self.table.values)
        return out

    def prefetch(self) -> None:
        """What it would fetch, `pull` fetches at once."""

    async def push(self, gradient: Float32Array) -> None:
        if self.worker.cluster.drops():
            return
        self.worker.counts["pushed"] += gradient.nbytes
        self.table.push(self.worker.rank, self.worker.clock, gradient)
        await asyncio.sleep(0)


class FakeCluster:
    """Workers that share tables, a stop and barriers. Ranks may have gaps."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        clock: int = 0,
        drops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ranks = ranks
        self.drops = drops
        self.tables: dict[str, FakeTable] = {}
        self.workers = [FakeWorker(self, rank, clock) for rank in ranks]
        self.stop_at: int | None = None
        self.stop_reason: str | None = None
        self.stops: list[tuple[int, str]] = []
        self.at_barrier: Counter[str] = Counter()
        self.moved = asyncio.Condition()

    async def run(self, train: Callable[[FakeWorker], Awaitable[Result]]) -> list[Result]:
        return await asyncio.gather(*(train(worker) for worker in self.workers))


class FakeWorker:
    """A worker as the training loop sees it."""

    def __init__(self, cluster: FakeCluster, rank: int, clock: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.clock = clock
        self.planned = 0
        self.counts = Counter(pulled=0, pushed=0, retransmitted=0, control=0)
        self.metrics: dict[str, float] = {}
        self.spans: list[tuple[str, int]] = []

    @property
    def members(self) -> list[FakeMember]:
        servers = [FakeMember("server", rank) for rank in range(3)]
        return [*servers, *(FakeMember("worker", rank) for rank in reversed(self.cluster.ranks))]

    @property
    def stop_reason(self) -> str | None:
        return self.cluster.stop_reason

    async def table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        init: Float32Array,
        optimizer: Optimizer,
        consistency: Any,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
    ) -> FakeHandle:
        assert compression is pull_compression is None, "not in this fake"
        assert init.shape == shape
        made = FakeTable(init, optimizer, consistency, len(self.cluster.ranks))
        table = self.cluster.tables.setdefault(name, made)
        table.version = self.clock if table is made else table.version
        assert (table.optimizer, table.consistency) == (optimizer, consistency)
        return FakeHandle(table, self)

    async def ring(self, name: str, /) -> Any:
        raise AssertionError("nobody trains in a ring here")

    def steps(self, n: int, /) -> AsyncIterator[int]:
        self.planned += n
        return self._steps(self.planned)

    async def _steps(self, n: int) -> AsyncIterator[int]:
        while self.clock < min(n, self.cluster.stop_at or n):
            yield self.clock
            for table in self.cluster.tables.values():
                await table.seal(self.clock, self.rank)
            self.clock += 1

    async def stop(self, reason: str) -> None:
        self.cluster.stops.append((self.rank, reason))
        if self.cluster.stop_at is None:
            self.cluster.stop_at = max(worker.clock for worker in self.cluster.workers) + 1
            self.cluster.stop_reason = reason

    async def barrier(self, name: str) -> None:
        async with self.cluster.moved:
            self.cluster.at_barrier[name] += 1
            self.cluster.moved.notify_all()
            everybody = len(self.cluster.ranks)
            await self.cluster.moved.wait_for(
                lambda: self.cluster.at_barrier[name] % everybody == 0
            )

    def publish_metrics(self, **metrics: float) -> None:
        self.metrics.update(metrics)

    def stats(self) -> dict[str, Any]:
        latency = {"count": self.clock, "p50_s": 0.001 * (self.rank + 1), "p99_s": 0.01}
        return {
            "latency": {"push": latency, "pull": latency},
            "bytes": dict(self.counts),
            "servers": {0: {"sent": self.counts["pushed"], "received": 7}},
        }

    @contextmanager
    def span(self, name: str, step: int) -> Iterator[None]:
        self.spans.append((name, step))
        yield
