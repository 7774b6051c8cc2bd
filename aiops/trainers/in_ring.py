"""A model without servers: each worker holds all of it, and gradients are averaged in a ring.

The arithmetic is the servers' own (`aiops.shards`), on the whole model; with `order="rank"` the
weights have the bits that servers would give them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import numpy as np

from aiops.collective.call import Array
from aiops.collective.compressed import CompressedReducer
from aiops.collective.member import Order
from aiops.errors import CollectiveAborted
from aiops.observability import LatencyHistogram
from aiops.optim import Optimizer
from aiops.shards.reduction import Sum
from aiops.shards.shard import Shard
from aiops.workers.ring import Ring
from aiops_protocol.payload import Float32Array

__all__ = ["RING", "InRing", "RingWorker"]

RING = "gradients"


class RingWorker(Protocol):
    """A worker that can form a ring."""

    async def ring(self, name: str, /) -> Ring:
        """Form a ring of all workers."""
        ...

    def steps(self, n: int, /) -> AsyncIterator[int]:
        """Yield step numbers; each iteration ends with a tick."""
        ...


class InRing:
    """The whole model at one worker, kept the same as at all others.

    A worker that is lost leaves the ring, and the step is taken without it; one that comes later
    is let in after a step and gets the model, the optimizer's state and the count of steps.
    """

    def __init__(
        self,
        worker: RingWorker,
        ring: Ring,
        shard: Shard,
        order: Order,
        compression: str | None = None,
    ) -> None:
        self.weights: Float32Array = shard.values
        self._worker = worker
        self._ring = ring
        self._shard = shard
        self._order: Order = order
        self._version = 0
        self._has_model = ring.generation == 1  # which begins with the start values, everywhere
        self._mean = np.empty(shard.size, np.float32)
        self._pushes = LatencyHistogram()
        self._reducer = CompressedReducer(ring, compression, (shard.size,)) if compression else None

    @classmethod
    async def open(
        cls,
        worker: RingWorker,
        initial: Float32Array,
        optimizer: Optimizer,
        order: Order,
        compression: str | None = None,
    ) -> InRing:
        """Form the ring; in one that trains already, wait to be let in.

        Parameters
        ----------
        worker
            All workers of the job call this.
        initial
            Start values, the same for all, shape (size,).
        optimizer
            What a mean gradient does to the values.
        order
            In which order the gradients are added; see `Ring.all_reduce`.
        compression
            How gradients travel, as the spelling of a codec; they are then added in the order of
            the ranks. What is lost is held back by each member; see `CompressedReducer`.
        """
        shard = Shard(0, initial.size, optimizer, initial.copy())
        table = cls(worker, await worker.ring(RING), shard, order, compression)
        await table._settle()
        return table

    @property
    def among_workers(self) -> Mapping[str, int]:
        """Bytes that went to and came from the other workers."""
        traffic = self._ring.traffic
        return {"pushed": traffic["sent"], "pulled": traffic["received"]}

    @property
    def latency(self) -> Mapping[str, Mapping[str, Any]]:
        """How long the averages took, by the name that they have with servers."""
        return {"push": self._pushes.summary()}

    @property
    def compression(self) -> Mapping[str, Mapping[str, Any]]:
        """What compression has done, by ring."""
        return {RING: self._reducer.stats()} if self._reducer is not None else {}

    def steps(self, n: int) -> AsyncIterator[int]:
        """Yield step numbers, a clock each."""
        return self._worker.steps(n)

    async def fetch(self) -> None:
        """Do nothing: the weights are here."""

    async def newest(self) -> Float32Array:
        """Return the weights."""
        return self.weights

    async def give(self, gradient: Float32Array) -> None:
        """Average the gradient over all workers, and step the weights by it."""
        while True:
            try:
                begun = time.perf_counter()
                await self._average(gradient)
                self._pushes.record(time.perf_counter() - begun)
                break
            except CollectiveAborted:
                await self._form_anew()
        self._version += 1
        with np.errstate(all="ignore"):  # overflow shows in the values
            self._shard.step([self._mean], Sum(), self._version)
        if self._ring.wanted:
            await self._form_anew()

    async def _average(self, gradient: Float32Array) -> None:
        if self._reducer is not None:
            self._mean = await self._reducer.reduce(gradient, "mean")
            return
        np.copyto(self._mean, gradient)
        await self._ring.all_reduce(self._mean, "mean", order=self._order)

    async def _form_anew(self) -> None:
        await self._ring.reform()
        await self._settle()
        if self._reducer is not None:
            self._reducer.formed_anew()

    async def _settle(self) -> None:
        """Give the model to those who lack it; whoever is lost meanwhile is done without."""
        while self._ring.generation > 1:
            try:
                have = await self._ring.all_gather(np.full(1, self._has_model, np.float32))
                if have.any() and not have.all():
                    await self._share(int(have.argmax()))
                self._has_model = True
                return
            except CollectiveAborted:
                await self._ring.reform()

    async def _share(self, giver: int) -> None:
        """Take over everything that one member has."""
        version = np.full(1, self._version, np.float64)
        arrays: list[Array] = [version, self._shard.values, *self._shard.state.values()]
        for array in arrays:
            await self._ring.broadcast(array, root=giver)
        self._version = int(version[0])

    async def end(self) -> None:
        """Take part in no step any more; the others go on without waiting."""
        await self._ring.leave()
