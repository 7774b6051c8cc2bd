"""The sparse table of `agreement`: rows that are pushed in rounds, compressed in most runs.

What each worker holds back for each key must be charged once for each push; so the rows have the
bits that one process computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aiops.compression import codec_from
from aiops.optim import SGD
from aiops.tables.row_compression import RowCompressor
from aiops.testing.simulation.scenarios.common import Broken
from aiops.workers.worker import Worker
from aiops_protocol.codecs import mix
from aiops_protocol.key_list import Keys
from aiops_protocol.key_list import mix as mixed
from aiops_protocol.payload import Float32Array

__all__ = ["TrainedRows"]

NAME: Final = "rows"
WIDTH: Final = 20
KEYS: Final = 50
RATE: Final = np.float32(0.25)

PUSHES: Final = (None, "one-bit", "int8", "qsgd:4", "fp16+lz4")
PULLS: Final = (None, "bf16")


class TrainedRows:
    """Rows under training.

    Parameters
    ----------
    draw
        Decides how they are compressed.
    """

    def __init__(self, draw: int) -> None:
        self._push = PUSHES[draw % len(PUSHES)]
        self._pull = PULLS[draw // len(PUSHES) % len(PULLS)]

    async def open(self, worker: Worker) -> None:
        """Create the table, or join it."""
        await worker.sparse_table(
            NAME,
            WIDTH,
            optimizer=SGD(lr=float(RATE)),
            compression=self._push,
            pull_compression=self._pull,
        )

    async def push(self, worker: Worker, step: int) -> None:
        """Push the rows of a step."""
        table = await worker.sparse_table(NAME)
        await table.push(*_batch(worker.rank, step))

    async def check(
        self, worker: Worker, workers: int, steps: int, takes_part: Callable[[int, int], bool]
    ) -> None:
        """Read all rows, and compare; `Broken` if they are not those of one process."""
        table = await worker.sparse_table(NAME)
        given = await table.pull(np.arange(KEYS, dtype=np.uint64))
        expected = self._alone(workers, steps, takes_part)
        if given.tobytes() != expected.tobytes():
            raise Broken(f"rows by {self._push} and {self._pull} are not those of one process")

    def _alone(
        self, workers: int, steps: int, takes_part: Callable[[int, int], bool]
    ) -> Float32Array:
        rows: Float32Array = np.zeros((KEYS, WIDTH), np.float32)
        seeds = [mix(*NAME.encode(), rank) for rank in range(workers)]
        senders = [RowCompressor(self._push or "dense", WIDTH, seed) for seed in seeds]
        for step in range(steps):
            ranks = [rank for rank in range(workers) if takes_part(rank, step)]
            total = np.full((KEYS, WIDTH), -0.0, np.float32)
            for rank in ranks:
                keys, gradient = _batch(rank, step)
                words = mixed(keys)
                order = np.argsort(words)
                encoded, _ = senders[rank].encode(words[order], gradient[order])
                total[keys[order].astype(np.int64)] += encoded.dense().reshape(-1, WIDTH)
            named = np.unique(np.concatenate([_batch(rank, step)[0] for rank in ranks]))
            mean = total[named.astype(np.int64)] / np.float32(len(ranks))
            rows[named.astype(np.int64)] -= RATE * mean
        if self._pull is not None:
            rows = codec_from(self._pull).encode(rows.reshape(-1), {}, 0).dense()
        return rows.reshape(KEYS, WIDTH)


def _batch(rank: int, step: int) -> tuple[Keys, Float32Array]:
    source = np.random.Generator(np.random.Philox(key=[rank, step + 1_000_000]))
    keys = np.sort(source.choice(KEYS, 12, replace=False)).astype(np.uint64)
    rows: Float32Array = source.standard_normal((12, WIDTH), np.float32)
    return keys, rows
