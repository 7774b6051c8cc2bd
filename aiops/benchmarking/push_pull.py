"""`aiops bench push-pull`: one worker and one server in two processes, against a raw socket.

Here live the list of what is measured and aiops as a peer of `rounds`. The servers add each pushed
array into their own (float32) and answer only after that, as the raw socket's does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Final

import numpy as np

import aiops
from aiops import ASP
from aiops.benchmarking.cluster import ServingProcess
from aiops.benchmarking.processors import placed
from aiops.benchmarking.raw import RawClient
from aiops.benchmarking.rounds import (
    IN_FLIGHT,
    PULL,
    PUSH,
    PUSH_IN_FLIGHT,
    Case,
    Peer,
    RawPeer,
    Row,
    measure_in_turns,
)
from aiops.optim import Add
from aiops_protocol.limits import KiB, MiB
from aiops_protocol.payload import Float32Array

_COUNTS: Final = {4: 200, 4 * KiB: 200, 64 * KiB: 60, MiB: 16, 16 * MiB: 3, 64 * MiB: 2}
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 2
QUICK_DIVISOR: Final = 10


def cases(*, quick: bool = False, bytes_max: int = 64 * MiB) -> list[Case]:
    """Return what is measured, in order.

    Parameters
    ----------
    quick
        Fewer operations in a round.
    bytes_max
        Larger sizes are left out.
    """
    divisor = QUICK_DIVISOR if quick else 1
    found = [
        Case(op, size, max(count // divisor, 1))
        for size, count in _COUNTS.items()
        for op in (PUSH, PULL)
    ]
    found.append(Case(PUSH_IN_FLIGHT, 4 * KiB, 4_000 // divisor))
    return [case for case in found if case.size <= bytes_max]


async def measure_push_pull(
    *,
    quick: bool = False,
    bytes_max: int = 64 * MiB,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure push and pull between two processes, and the raw socket in the same rounds.

    Parameters
    ----------
    quick
        Fewer rounds, for a first look.
    bytes_max
        Leave out larger sizes.
    progress
        Called with one line before each round.

    Returns
    -------
    rows : list of Row
        For each case the row of aiops and that of the raw socket.
    """
    planned = cases(quick=quick, bytes_max=bytes_max)
    sizes = sorted({case.size for case in planned})
    with ExitStack() as both:
        with placed(1):
            serving = both.enter_context(ServingProcess())
            raw = both.enter_context(RawClient())
        both.enter_context(placed(0))
        async with aiops.connect(serving.scheduler, name="bench") as worker:
            tables = {
                size: await worker.table(
                    f"bytes-{size}", shape=(size // 4,), optimizer=Add(), consistency=ASP()
                )
                for size in sizes
            }
            peers: list[Peer] = [AiopsPeer(tables), RawPeer(raw)]
            return await measure_in_turns(
                peers, planned, rounds=QUICK_ROUNDS if quick else ROUNDS, progress=progress
            )


class AiopsPeer:
    """aiops as a peer: one table for each size, all on one server.

    Parameters
    ----------
    tables
        By size in bytes.
    """

    name = "aiops"

    def __init__(self, tables: Mapping[int, aiops.Table]) -> None:
        self._tables = tables

    async def sample(self, case: Case) -> list[float]:
        """Perform one round of a case."""
        table = self._tables[case.size]
        array = np.ones(case.size // 4, np.float32)
        samples = []
        if case.op == PUSH_IN_FLIGHT:
            started_at = perf_counter()
            await self._push_in_flight(table, array, case.count)
            return [(perf_counter() - started_at) / case.count]
        if case.op == PUSH:
            for _ in range(case.count):
                started_at = perf_counter()
                await table.push(array)
                samples.append(perf_counter() - started_at)
        else:
            for _ in range(case.count):
                started_at = perf_counter()
                await table.pull(out=array)
                samples.append(perf_counter() - started_at)
        return samples

    async def pull(self, out: Float32Array) -> None:
        """Read what the server holds."""
        await self._tables[out.nbytes].pull(out=out)

    async def _push_in_flight(self, table: aiops.Table, array: Float32Array, count: int) -> None:
        waiting = iter(range(count))

        async def push_the_next() -> None:
            for _ in waiting:
                await table.push(array)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT, count)):
                group.create_task(push_the_next())
