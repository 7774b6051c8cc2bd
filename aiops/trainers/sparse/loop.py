"""The training loop of sparse models: one worker's part, and the report of all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from aiops.consistency import consistency_from
from aiops.tables.sparse_table import SparseTable
from aiops.trainers.sparse.config import SparseConfig
from aiops.trainers.sparse.metrics import area_under_curve, log_loss
from aiops.trainers.sparse.models import SparseModel
from aiops.trainers.sparse.stream import batches
from aiops.trainers.sparse.time_spent import Stopwatch
from aiops.workers.worker import Worker
from aiops_protocol.key_list import Keys
from aiops_protocol.payload import Float32Array

__all__ = ["SparseReport", "train_sparse"]

READ_ROWS: Final = 2048
"""Rows at a time where nothing is learned."""

LOOK_S: Final = 0.02
"""How often a worker that has ended looks whether the others have."""


class SparseReport(NamedTuple):
    """What came out at one worker; what is `None` only the first one has looked at.

    `train_log_loss` is of this worker's last pass, each row before it was learned from. Without a
    test file the numbers of the test are those of the training rows. `nonzero` counts the features
    with a weight other than zero, of `features` in the training rows. `time_s` says what this
    worker's `seconds` went to: `read`, `compute`, `pull`, `push`, `tick`; `processor_s` is what a
    processor worked for the first two.
    """

    train_log_loss: float
    steps: int
    seconds: float
    time_s: dict[str, float]
    processor_s: float
    test_auc: float | None = None
    test_log_loss: float | None = None
    features: int | None = None
    nonzero: int | None = None


async def train_sparse(
    worker: Worker,
    config: SparseConfig,
    data: Path,
    test: Path | None = None,
    *,
    show: Callable[[str], None] = lambda line: None,
) -> SparseReport:
    """Train with all workers of the job, each on its part of the file; call it in each of them.

    Parameters
    ----------
    worker
        One worker; their number must not change meanwhile.
    config
        The settings, the same everywhere.
    data, test
        `.libsvm` files that every worker can read.
    show
        Called with one line now and then.

    Raises
    ------
    DataError
        A file cannot be read, or a line breaks the grammar.
    """
    model = config.make_model()
    table = await worker.sparse_table(
        config.model,
        model.width,
        init=model.init,
        optimizer=config.make_optimizer(),
        consistency=consistency_from(config.consistency),
    )
    watch = Stopwatch()
    steps, loss = 0, float("nan")
    for epoch in range(config.epochs):
        seen: list[tuple[float, int]] = []
        for batch in batches(
            data,
            config.batch_size,
            part=worker.rank,
            parts=worker.world_size,
            hash_names=config.hash_names,
        ):
            watch.lap("read")
            weights = await table.pull(batch.keys)
            watch.lap("pull")
            scores, gradient = model.learn(weights, batch)
            seen.append((log_loss(batch.labels, scores), scores.size))
            watch.lap("compute")
            await table.push(batch.keys, gradient)
            watch.lap("push")
            await worker.tick()
            watch.lap("tick")
            steps += 1
            if steps % 100 == 0:
                show(f"epoch {epoch + 1} of {config.epochs}, step {steps}: loss {_mean(seen):.4f}")
        loss = _mean(seen)
    watch.lap("read")
    await worker.finish()
    watch.lap("tick")
    seconds = sum(watch.time_s.values())
    own = SparseReport(loss, steps, seconds, watch.time_s, watch.processor_s)
    await _all_finished(worker)
    if worker.rank:
        return own
    labels, predicted, _ = await _predict(table, model, test or data, config)
    _, _, (features, nonzero) = await _predict(table, model, data, config, counting=True)
    auc, test_loss = area_under_curve(labels, predicted), log_loss(labels, predicted)
    return own._replace(test_auc=auc, test_log_loss=test_loss, features=features, nonzero=nonzero)


async def _all_finished(worker: Worker) -> None:
    """Wait for the others: who has finished is not counted at barriers any more."""
    while any(node.role == "worker" and node.state == "alive" for node in worker.members):
        worker.check()
        await asyncio.sleep(LOOK_S)


def _mean(seen: list[tuple[float, int]]) -> float:
    rows = sum(count for _, count in seen)
    return sum(loss * count for loss, count in seen) / rows if rows else float("nan")


async def _predict(
    table: SparseTable,
    model: SparseModel,
    path: Path,
    config: SparseConfig,
    *,
    counting: bool = False,
) -> tuple[Float32Array, Float32Array, tuple[int, int]]:
    """Return labels and scores of a file; if asked, how many features it has, and not at zero."""
    labels: list[Float32Array] = []
    scores: list[Float32Array] = []
    known: list[Keys] = []
    alive: list[Keys] = []
    for batch in batches(path, READ_ROWS, hash_names=config.hash_names):
        weights = await table.pull(batch.keys)
        labels.append(batch.labels)
        scores.append(model.scores(weights, batch))
        if counting:
            known.append(batch.keys)
            alive.append(batch.keys[weights[:, 0] != 0])
            if len(known) > 64:
                known, alive = [_once(known)], [_once(alive)]
    nothing = np.empty(0, np.float32)
    return (
        np.concatenate([nothing, *labels]),
        np.concatenate([nothing, *scores]),
        (_once(known).size, _once(alive).size),
    )


def _once(keys: list[Keys]) -> Keys:
    return np.unique(np.concatenate([np.empty(0, np.uint64), *keys]))
