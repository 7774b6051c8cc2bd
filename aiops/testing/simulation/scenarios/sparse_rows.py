"""The sparse table of `conservation`: whose rows were changed by which push, and how often.

A push adds a power of four in one column of some rows; the digits to the base of four then tell how
often each push was applied. The lists of keys repeat, so that most travel as their signatures.
"""

from __future__ import annotations

import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops.consistency import ASP
from aiops.optim import Add
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.scenarios.common import Broken, all_end
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["SparseRows"]

POWERS: Final = 11
"""Pushes that share a column: a float32 holds so many digits to the base of four exactly."""

ROWS: Final = 96
"""On four servers about 24 each: lists long enough to be cached."""


class SparseRows:
    """The pushes to a sparse table, numbered from 0.

    Parameters
    ----------
    pushes
        How many there may be.
    rng
        Draws the lists of keys.
    """

    def __init__(self, pushes: int, rng: random.Random) -> None:
        self._width = -(-pushes // POWERS)
        keys = [rng.getrandbits(63) for _ in range(ROWS)]
        # The last one makes frames that are sent again without asking the server first.
        self._lists = [rng.sample(keys, size) for size in (ROWS, 3 * ROWS // 4, 4)]
        self._pushed: dict[int, list[int]] = {}
        self._acknowledged: list[int] = []

    async def push(self, worker: Worker, number: int, rng: random.Random) -> None:
        """Push once."""
        table = await worker.sparse_table("rows", self._width, optimizer=Add(), consistency=ASP())
        keys = self._pushed[number] = rng.choice(self._lists)
        rows = np.zeros((len(keys), self._width), np.float32)
        rows[:, number // POWERS] = 4.0 ** (number % POWERS)
        await table.push(keys, rows)
        self._acknowledged.append(number)

    async def check(self, cluster: SimCluster) -> None:
        """Read the table and compare; `Broken` if a push was lost, doubled, or went elsewhere."""
        if not self._pushed:
            return
        asked = sorted(self._lists[0])
        digits = _digits(await _read(cluster, asked))
        for number, keys in self._pushed.items():
            times = digits[:, number // POWERS, number % POWERS]
            named = np.isin(asked, keys)
            if (times > named).any():
                raise Broken(f"rows of sparse push {number} were changed {times.tolist()} times")
            if number in self._acknowledged and not times[named].all():
                raise Broken(f"sparse push {number} was acknowledged and is not there")
        if digits.sum() != sum(
            digits[:, number // POWERS, number % POWERS].sum() for number in self._pushed
        ):
            raise Broken("rows were changed that nobody has pushed")


def _digits(values: Float32Array) -> NDArray[np.int64]:
    powers: NDArray[np.int64] = 4 ** np.arange(POWERS)
    return values.astype(np.int64)[:, :, None] // powers % 4


async def _read(cluster: SimCluster, keys: list[int]) -> Float32Array:
    async def pull(worker: Worker) -> Float32Array:
        await worker.finish()
        table = await worker.sparse_table("rows")
        return await table.pull(keys)

    task = cluster.worker("sparse-reader", pull)
    await all_end([task])
    values: Float32Array = task.result()
    return values
