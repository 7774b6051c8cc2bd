"""A workload whose history tells which pushes took effect: unique numbers into small tables.

    export AIOPS_HISTORY=run
    aiops chaos --cut-every-s 1 --servers 2 --workers 4 -- python -m aiops.testing.ledger
    aiops verify

Each push of each worker adds a number of its own: a power of four, into elements that only this
worker's pushes of the same few steps touch. So the values of a pull show every single push, and
one that was applied twice has a sum that no other pushes have.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

import numpy as np

import aiops
from aiops.consistency import ASP, BSP
from aiops.optim import Add
from aiops.workers.worker import Worker
from aiops_protocol.payload import Float32Array

__all__ = ["TABLES", "keep_ledger", "numbers"]

TABLES: Final = ("ledger-asp", "ledger-bsp")
"""What to name in `AIOPS_HISTORY_VALUES`; running this module does it by itself."""

ROWS: Final = 8
"""Each push is the same in every row, so that every shard of up to so many servers has it."""

POWERS: Final = 10
"""Pushes per element: four to the tenth, a million, is far from where float32 skips integers."""


def numbers(rank: int, step: int, workers: int, steps: int) -> Float32Array:
    """Return what a worker pushes in a step."""
    columns = -(-steps // POWERS)
    pushed = np.zeros((ROWS, workers * columns), np.float32)
    pushed[:, rank * columns + step // POWERS] = 4.0 ** (step % POWERS)
    return pushed


async def keep_ledger(worker: Worker, steps: int = 100) -> dict[str, float]:
    """Push unique numbers into an asynchronous and a bulk-synchronous table.

    Parameters
    ----------
    worker
        One of the workers that the job begins with; all call this with the same `steps`.

    Returns
    -------
    sums : dict
        Per table the sum of all its elements when this worker had finished.
    """
    workers = max(worker.world_size, int(os.environ.get("AIOPS_WORKERS", "1")))
    shape = numbers(0, 0, workers, steps).shape
    asp = await worker.table(TABLES[0], shape=shape, optimizer=Add(), consistency=ASP())
    bsp = await worker.table(TABLES[1], shape=shape, optimizer=Add(), consistency=BSP(reduce="sum"))
    async for step in worker.steps(steps):
        pushed = numbers(worker.rank, step, workers, steps)
        await asp.push(pushed)
        await bsp.push(pushed)
        if step % POWERS == 0:
            await asp.pull()
            await bsp.pull()
    # No barrier here: one that was started again has more steps to go, which wait for the others.
    await worker.finish()
    return {
        TABLES[0]: float((await asp.pull()).sum(dtype=np.float64)),
        TABLES[1]: float((await bsp.pull()).sum(dtype=np.float64)),
    }


async def _main(steps: int) -> None:
    async with aiops.connect() as worker:
        print(worker.name, await keep_ledger(worker, steps), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="steps of each worker")
    os.environ.setdefault("AIOPS_HISTORY_VALUES", ",".join(TABLES))
    aiops.run(_main(parser.parse_args().steps))
