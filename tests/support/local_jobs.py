"""Clusters for tests: guarded against hanging, and checked to leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops.runtime.running import loop_factory
from aiops.van.link import Link
from aiops_protocol.payload import Float32Array
from van_bodies import GUARD_S, leaving_nothing, resume, stall

T = TypeVar("T")


@asynccontextmanager
async def guarded() -> AsyncIterator[None]:
    """Give up after `GUARD_S`; no task, socket or thread may be left."""
    threads = set(threading.enumerate())
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        yield
    assert set(threading.enumerate()) <= threads


@asynccontextmanager
async def local_job(
    servers: int = 1, *, heartbeat_s: float | None = None, **options: Any
) -> AsyncIterator[aiops.LocalCluster]:
    """Give a local cluster, guarded; the servers' own invariants are checked at the end."""
    cluster = aiops.LocalCluster(servers, **options)
    if heartbeat_s is not None:
        cluster._options["heartbeat_s"] = heartbeat_s
    async with guarded(), cluster:
        yield cluster
        cluster.scheduler._running.validate()
        for server in cluster.servers:
            server._core.validate()


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all at once; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def served(server: aiops.Server) -> list[Link]:
    """Return a server's ends of its data connections."""
    return list(server._links.values())


def pause(server: aiops.Server) -> None:
    """Let a server read nothing from its workers, as if its process were stopped."""
    for link in served(server):
        stall(link.stream)


def go_on(server: aiops.Server) -> None:
    """Let a paused server read again."""
    for link in served(server):
        resume(link.stream)


def requests_of(server: aiops.Server) -> int:
    """Return how many requests the server has handled."""
    return server.meter.frames


def parked_at(server: aiops.Server) -> int:
    """Return how many mutations wait at a server for their round."""
    return sum(1 for table in server._core.tables.values() for _ in table.parked)


def random_array(shape: tuple[int, ...], *seed: int) -> Float32Array:
    """Return values with full mantissas, so that a different order of sums shows."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rank_ordered_mean(gradients: Iterable[Float32Array], count: int | None) -> Float32Array:
    """Return the float32 left fold, divided by `float32(count)` unless it is `None`."""
    first, *rest = gradients
    total = first.copy()
    for gradient in rest:
        total = total + gradient
    return total if count is None else np.divide(total, np.float32(count))


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether two float32 arrays are the same to the last bit; -0.0 is not 0.0 here."""
    return left.shape == right.shape and left.tobytes() == right.tobytes()


class SyncJob:
    """A local cluster with one worker, for tests that are no coroutines (hypothesis)."""

    def __init__(self, servers: int) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self._cluster = aiops.LocalCluster(servers)
        self._worker: aiops.Worker
        self._made = 0

    def __enter__(self) -> SyncJob:
        self._runner.__enter__()
        self._runner.run(self._cluster.__aenter__())
        self._worker = self._runner.run(self._connect())
        return self

    async def _connect(self) -> aiops.Worker:
        worker: aiops.Worker = await self._cluster.connect()
        return worker

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._worker.close())
        self._runner.run(self._cluster.__aexit__())
        self._runner.__exit__(None, None, None)

    def table(self, shape: tuple[int, ...], **settings: Any) -> aiops.Table:
        """Return a fresh table."""
        self._made += 1
        return self.run(self._worker.table(f"t{self._made}", shape, **settings))

    def sparse_table(self, width: int, **settings: Any) -> aiops.SparseTable:
        """Return a fresh sparse table."""
        self._made += 1
        return self.run(self._worker.sparse_table(f"t{self._made}", width, **settings))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one call to its end."""

        async def guarded_call() -> T:
            async with asyncio.timeout(GUARD_S):
                return await call

        return self._runner.run(guarded_call())
