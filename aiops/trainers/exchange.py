"""How gradients become new weights: by servers in every step or every so many, or in a ring.

All ways have the same calls, so that the loop knows only one. What does not live here: the loop
itself, the local steps' own bookkeeping (`aiops.local_sgd`), and the ring (`in_ring.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from aiops.collective.member import Order
from aiops.consistency import consistency_from
from aiops.local_sgd import LocalSGD
from aiops.trainers.config import TrainConfig
from aiops.trainers.handles import TrainingTable, TrainingWorker
from aiops.trainers.in_ring import InRing
from aiops_protocol.payload import Float32Array

TABLE: Final = "model"


class Exchange(Protocol):
    """The weights of one worker, and what becomes of its gradients."""

    weights: Float32Array

    @property
    def among_workers(self) -> Mapping[str, int]:
        """Bytes by cause that have not gone over servers."""
        ...

    @property
    def latency(self) -> Mapping[str, Mapping[str, Any]]:
        """Latencies by verb of what has not gone over servers."""
        ...

    @property
    def compression(self) -> Mapping[str, Mapping[str, Any]]:
        """What compression has done that is not of a table."""
        ...

    def steps(self, n: int) -> AsyncIterator[int]:
        """Yield step numbers."""
        ...

    async def fetch(self) -> None:
        """Bring the weights up to date before a step."""
        ...

    async def give(self, gradient: Float32Array) -> None:
        """Do what is to be done with the gradient of a step."""
        ...

    async def newest(self) -> Float32Array:
        """Return the weights as all workers have them."""
        ...

    async def end(self) -> None:
        """Take part in no exchange any more."""
        ...


async def open_exchange(
    worker: TrainingWorker, config: TrainConfig, initial: Float32Array
) -> Exchange:
    """Create the table or tables of a training, or join them."""
    if config.sync == "ring":
        order: Order = "rank" if config.ring_order == "rank" else "any"
        optimizer = config.make_optimizer()
        return await InRing.open(worker, initial, optimizer, order, config.compression)
    if config.local is not None:
        return Local(await _open_local(worker, config, initial))
    table = await worker.table(
        TABLE,
        shape=initial.shape,
        init=initial,
        optimizer=config.make_optimizer(),
        consistency=consistency_from(config.consistency),
        compression=config.compression,
        pull_compression=config.pull_compression,
    )
    return EachStep(worker, table, np.empty_like(initial))


async def _open_local(
    worker: TrainingWorker, config: TrainConfig, initial: Float32Array
) -> LocalSGD:
    local = config.local
    assert local is not None
    return await LocalSGD.open(
        worker,
        TABLE,
        initial,
        every=local.every,
        outer=local.outer(),
        inner=config.make_optimizer(),
        fragments=local.fragments,
        delay=local.delay,
        consistency=consistency_from(config.consistency),
        compression=config.compression,
        pull_compression=config.pull_compression,
    )


class EachStep:
    """Pull before and push after every gradient; the servers have the optimizer."""

    among_workers: Mapping[str, int] = {}
    latency: Mapping[str, Mapping[str, Any]] = {}
    compression: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, worker: TrainingWorker, table: TrainingTable, weights: Float32Array) -> None:
        self._worker = worker
        self._table = table
        self.weights = weights

    def steps(self, n: int) -> AsyncIterator[int]:
        """Yield step numbers, a clock each."""
        return self._worker.steps(n)

    async def fetch(self) -> None:
        """Pull."""
        await self._table.pull(out=self.weights)

    async def give(self, gradient: Float32Array) -> None:
        """Push."""
        await self._table.push(gradient)

    async def newest(self) -> Float32Array:
        """Pull."""
        return await self._table.pull(out=self.weights)

    async def end(self) -> None:
        """Do nothing: servers wait for nobody who has finished."""


class Local:
    """Step weights of one's own; the changes are exchanged between steps."""

    among_workers: Mapping[str, int] = {}
    latency: Mapping[str, Mapping[str, Any]] = {}
    compression: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, local: LocalSGD) -> None:
        self._local = local
        self.weights = local.values

    def steps(self, n: int) -> AsyncIterator[int]:
        """Yield step numbers, many to a clock."""
        return self._local.steps(n)

    async def fetch(self) -> None:
        """Do nothing: the weights are here."""

    async def give(self, gradient: Float32Array) -> None:
        """Step the weights."""
        self._local.apply(gradient)

    async def newest(self) -> Float32Array:
        """Pull."""
        return await self._local.pull()

    async def end(self) -> None:
        """Do nothing: servers wait for nobody who has finished."""
