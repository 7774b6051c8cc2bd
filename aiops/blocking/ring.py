"""The blocking twin of `aiops.Ring`.

Reading an attribute is done in the caller's thread, everything else on the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import DTypeLike

import aiops.workers.ring
from aiops.blocking.loop_thread import LoopThread
from aiops.collective.call import Array
from aiops.collective.cost_model import Choice
from aiops.collective.member import BUCKET_BYTES, AlgorithmChoice, Order, Reduction
from aiops.compression import Codec

__all__ = ["Ring"]


class Ring:
    """One worker's handle of a ring; made by `worker.ring(...)`. The twin of `aiops.Ring`.

    An array that a call was given belongs to it until it returns.
    """

    def __init__(self, ring: aiops.workers.ring.Ring, loop: LoopThread) -> None:
        self._ring = ring
        self._loop = loop

    def __repr__(self) -> str:
        return f"<blocking {self._ring!r}>"

    @property
    def name(self) -> str:
        """The ring's name."""
        return self._ring.name

    @property
    def rank(self) -> int:
        """Place of this member in the ring, from 0; `reform` changes it."""
        return self._ring.rank

    @property
    def world_size(self) -> int:
        """How many members there are; `reform` changes it."""
        return self._ring.world_size

    @property
    def generation(self) -> int:
        """How often the ring has been formed, this time included."""
        return self._ring.generation

    @property
    def workers(self) -> list[int]:
        """The worker ranks of all members, in the order of their places in the ring."""
        return self._ring.workers

    @property
    def newcomers(self) -> list[int]:
        """The places of those who were not in the generation before; see `aiops.Ring`."""
        return self._ring.newcomers

    @property
    def wanted(self) -> bool:
        """Whether a worker waits to enter; see `aiops.Ring`."""
        return self._ring.wanted

    @property
    def broken(self) -> bool:
        """Whether every call will fail until `reform`."""
        return self._ring.broken

    @property
    def order(self) -> list[int]:
        """The members' places in the order in which sums over TCP go round."""
        return self._ring.order

    @property
    def transport(self) -> str:
        """How calls travel: "tcp", "shared-memory" or "shared-memory+tcp"."""
        return self._ring.transport

    def reform(self, *, timeout_s: float | None = None) -> None:
        """Form the ring anew; see `aiops.Ring.reform`."""
        self._loop.call(self._ring.reform, timeout_s=timeout_s)

    def leave(self) -> None:
        """Take part in no call any more; see `aiops.Ring.leave`."""
        self._loop.call(self._ring.leave)

    @property
    def traffic(self) -> Mapping[str, int]:
        """Bytes of arrays `sent` to and `received` from other members."""
        return self._ring.traffic

    def explain(self, kind: str, count: int, *, item_bytes: int = 4) -> Choice:
        """Return which algorithm "auto" takes for a call, and why; see `aiops.Ring.explain`."""
        return self._ring.explain(kind, count, item_bytes=item_bytes)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Make an array in the memory that this ring moves best; see `aiops.Ring.empty`."""
        return self._loop.do(self._ring.empty, shape, dtype)

    def all_reduce(
        self,
        array: Array | Sequence[Array],
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
        compression: Codec | str | None = None,
    ) -> None:
        """Reduce the arrays of all members, in place; see `aiops.Ring.all_reduce`."""
        self._loop.call(
            self._ring.all_reduce,
            array,
            op,
            order=order,
            algorithm=algorithm,
            timeout_s=timeout_s,
            compression=compression,
        )

    def all_reduce_async(
        self,
        arrays: Array | Sequence[Array],
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Future[None]:
        """Begin an all-reduce and go on computing; see `aiops.Ring.all_reduce_async`.

        Returns a `concurrent.futures.Future`; its `result()` waits, or raises.
        """
        return self._loop.start(
            self._ring.all_reduce_async,
            arrays,
            op,
            order=order,
            algorithm=algorithm,
            timeout_s=timeout_s,
            bucket_bytes=bucket_bytes,
        )

    def reduce_scatter(
        self,
        array: Array,
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
    ) -> Array:
        """Reduce and return this rank's chunk of the result; see `aiops.Ring.reduce_scatter`."""
        return self._loop.call(
            self._ring.reduce_scatter,
            array,
            op,
            order=order,
            algorithm=algorithm,
            timeout_s=timeout_s,
        )

    def all_gather(
        self, array: Array, *, algorithm: AlgorithmChoice = "auto", timeout_s: float | None = None
    ) -> Array:
        """Return the arrays of all members, stacked; see `aiops.Ring.all_gather`."""
        return self._loop.call(
            self._ring.all_gather, array, algorithm=algorithm, timeout_s=timeout_s
        )

    def broadcast(
        self,
        array: Array,
        *,
        root: int = 0,
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
    ) -> None:
        """Give all members the content of the array of `root`; see `aiops.Ring.broadcast`."""
        self._loop.call(
            self._ring.broadcast, array, root=root, algorithm=algorithm, timeout_s=timeout_s
        )

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until all members have called this; see `aiops.Ring.barrier`."""
        self._loop.call(self._ring.barrier, timeout_s=timeout_s)
