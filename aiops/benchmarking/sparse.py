"""`aiops bench sparse`: rows of a sparse table, against numpy's own gather and scatter of them.

A worker here and a server in a second process hold a table; each call names other random rows of
it, or the same ones again, whose key list the server has cached. In turns with them numpy reads and
adds the same rows of an array of this process: no network, no index, no second copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops import ASP
from aiops.benchmarking.cluster import ServingProcess
from aiops.benchmarking.processors import placed
from aiops.errors import AiopsError
from aiops.optim import Add
from aiops_protocol.payload import Float32Array

__all__ = ["SparseRow", "measure_sparse"]

WIDTH: Final = 16
ROWS: Final = 1_000_000
KEYS: Final = 100_000
ROUNDS: Final = 15
QUICK_ROUNDS: Final = 2

OPS: Final = ("pull", "push", "pull, keys again", "push, keys again")


@dataclass(frozen=True, slots=True)
class SparseRow:
    """What came out for one operation and peer; seconds are of one call.

    `bytes` are those of the values of a call; `ratio_to_raw` is the time in that of numpy, and
    `rate_of_raw` its inverse, the rate reached as a part of numpy's.
    """

    op: str
    bytes: int
    peer: str
    median_s: float
    min_s: float
    max_s: float
    ratio_to_raw: float
    rate_of_raw: float
    keys_per_s: float


async def measure_sparse(
    *,
    quick: bool = False,
    rows: int = ROWS,
    keys: int = KEYS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[SparseRow]:
    """Measure pulls and pushes of random rows of width 16.

    Parameters
    ----------
    quick
        Fewer rounds, for a first look.
    rows
        Rows of the table.
    keys
        Rows of each call, all different.
    progress
        Called with one line now and then.

    Returns
    -------
    rows : list of SparseRow
        For each operation the row of aiops and that of numpy.
    """
    with ExitStack() as both:
        with placed(1):
            serving = both.enter_context(ServingProcess())
        both.enter_context(placed(0))
        async with aiops.connect(serving.scheduler, name="bench") as worker:
            table = await worker.sparse_table("rows", WIDTH, optimizer=Add(), consistency=ASP())
            ours = np.zeros((rows, WIDTH), np.float32)
            progress(f"making {rows:,} rows of width {WIDTH}")
            for start in range(0, rows, keys):
                some = np.arange(start, min(start + keys, rows))
                await table.push(some, np.ones((some.size, WIDTH), np.float32))
                ours[some] += 1
            return await _measure(table, ours, keys, QUICK_ROUNDS if quick else ROUNDS, progress)


async def _measure(
    table: aiops.SparseTable,
    ours: Float32Array,
    count: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[SparseRow]:
    rng = np.random.default_rng(1)
    again = rng.permutation(len(ours))[:count]
    for _ in range(3):  # after the second time the server knows the list
        await table.pull(again)
    gradient = np.ones((count, WIDTH), np.float32)
    samples: dict[tuple[str, str], list[float]] = {
        (op, peer): [] for op in OPS for peer in ("aiops", "numpy")
    }
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}")
        for op in OPS:
            keys = again if op.endswith("again") else rng.permutation(len(ours))[:count]
            started_at = perf_counter()
            if op.startswith("pull"):
                await table.pull(keys)
            else:
                await table.push(keys, gradient)
            samples[op, "aiops"].append(perf_counter() - started_at)
            samples[op, "numpy"].append(_numpy(op, ours, keys, gradient))
    await _check(table, ours, rng)
    return [
        _row(op, peer, samples[op, peer], samples[op, "numpy"], count)
        for op in OPS
        for peer in ("aiops", "numpy")
    ]


def _numpy(op: str, ours: Float32Array, keys: NDArray[np.int64], gradient: Float32Array) -> float:
    started_at = perf_counter()
    if op.startswith("pull"):
        ours[keys]
    else:
        ours[keys] += gradient
    return perf_counter() - started_at


async def _check(table: aiops.SparseTable, ours: Float32Array, rng: np.random.Generator) -> None:
    """See to it that the server did the work that was timed."""
    keys = rng.integers(0, len(ours), 10_000)
    if not (await table.pull(keys) == ours[keys]).all():
        raise AiopsError("the rows in the table are not those that were pushed")


def _row(op: str, peer: str, samples: list[float], raw: list[float], count: int) -> SparseRow:
    median_s, raw_s = median(samples), median(raw)
    return SparseRow(
        op=op,
        bytes=4 * WIDTH * count,
        peer=peer,
        median_s=median_s,
        min_s=min(samples),
        max_s=max(samples),
        ratio_to_raw=median_s / raw_s,
        rate_of_raw=raw_s / median_s,
        keys_per_s=count / median_s,
    )
