"""A worker in a process of its own that pushes numbers which can be told apart afterwards.

    python tests/support/conserving.py LIFE FILE

Every push has elements of its own, on each server, to which it adds one: four neighbours per server
in the table of small pushes, a column of the table of large ones. What was acknowledged is
appended to FILE at once, so that it is known also of a process that was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops.optim import Add

WORKERS: Final = 8
SERVERS: Final = 4
LIVES: Final = 4
"""A worker that is killed is started again; each life has numbers of its own."""

PUSHES: Final = int(os.environ.get("AIOPS_PUSHES", "300"))
"""Acknowledged pushes that each worker aims at, over all its lives."""

LARGE_EVERY: Final = 10
ROWS: Final = 4 * SERVERS
NUMBERS: Final = WORKERS * LIVES * PUSHES
COLUMNS: Final = NUMBERS // LARGE_EVERY


def places(number: int) -> NDArray[np.int64]:
    """Return the elements of a small push."""
    server, place = np.divmod(np.arange(ROWS), 4)
    return server * 4 * NUMBERS + 4 * number + place


async def tables(worker: aiops.Worker) -> tuple[aiops.Table, aiops.Table]:
    """Open both tables."""
    asp = aiops.ASP()
    small = await worker.table("small", shape=(ROWS * NUMBERS,), optimizer=Add(), consistency=asp)
    large = await worker.table("large", shape=(ROWS, COLUMNS), optimizer=Add(), consistency=asp)
    return small, large


async def push_all(life: int, file: int, done: int) -> None:
    """Push until enough is acknowledged."""
    async with aiops.connect() as worker:
        small, large = await tables(worker)
        first = (int(worker.name.rpartition("-")[2]) * LIVES + life) * PUSHES
        for number in range(first, first + PUSHES - done):
            if number % LARGE_EVERY:
                await small.push(np.ones(ROWS, np.float32), rows=places(number))
            else:
                ones = np.zeros((ROWS, COLUMNS), np.float32)
                ones[:, number // LARGE_EVERY] = 1
                await large.push(ones)
            os.write(file, f"{number}\n".encode())


if __name__ == "__main__":
    descriptor = os.open(sys.argv[2], os.O_CREAT | os.O_RDWR | os.O_APPEND)
    already = os.read(descriptor, 1 << 24).count(b"\n")
    asyncio.run(push_all(int(sys.argv[1]), descriptor, already))
