"""What scenarios share: a broken promise, waiting for everybody, reading a table at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from aiops.errors import AiopsError
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["HEARTBEAT_S", "REST_S", "Broken", "Scenario", "all_end", "count", "read", "start_again"]

HEARTBEAT_S: Final = 0.5
"""The heartbeat period of simulated clusters: the default of real ones."""

REST_S: Final = 120.0
"""So long after the last fault everything must have come to rest."""

Scenario: TypeAlias = Callable[[SimLoop, dict[str, int]], Awaitable[None]]
"""Runs a cluster under faults, raises `Broken` if a promise does not hold, and counts in the
dictionary what has happened."""


class Broken(Exception):
    """A promise does not hold."""


def count(seen: dict[str, int], what: str, times: int = 1) -> None:
    """Count something that happened."""
    seen[what] = seen.get(what, 0) + times


async def all_end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until all have ended; after the faults everything must come to rest."""
    try:
        async with asyncio.timeout(REST_S):
            for task in tasks:
                await task
    except TimeoutError:
        raise Broken(f"{REST_S:g} s after the last fault somebody still waits") from None
    except AiopsError as error:
        raise Broken(f"after faults that everybody survives: {error!r}") from error


def start_again(
    cluster: SimCluster, name: str, main: Callable[[Worker], Awaitable[Any]]
) -> asyncio.Task[Any]:
    """Start a worker that was killed.

    Whatever harms its link to the scheduler ends now: a stranger may be at an address that a
    person gave, so who gets damaged bytes from there at first raises at once, as it should.
    """
    cluster.network.repair(name, "scheduler")
    return cluster.worker(name, main)


async def read(cluster: SimCluster, name: str) -> Float32Array:
    """Return a table's values as a new worker sees them."""

    async def pull(worker: Worker) -> Float32Array:
        await worker.finish()
        table = await worker.table(name)
        return await table.pull()

    task = cluster.worker(f"reader-{name}", pull)
    await all_end([task])
    values: Float32Array = task.result()
    return values
