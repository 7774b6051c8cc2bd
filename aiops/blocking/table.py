"""The blocking twins of `aiops.Table` and `aiops.LocalCopy`.

Reading an attribute is done in the caller's thread, everything else on the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

import aiops.tables.local_copy
import aiops.tables.table
from aiops.blocking.loop_thread import LoopThread
from aiops.optim import Optimizer
from aiops.tables.layout import Rows
from aiops.tables.table import PushResult
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.blocking.worker import Worker

__all__ = ["LocalCopy", "Table"]


class Table:
    """One dense table; made by `worker.table(...)`. The twin of `aiops.Table`.

    Attributes
    ----------
    name, shape
        As created.
    """

    def __init__(self, worker: Worker, table: aiops.tables.table.Table, loop: LoopThread) -> None:
        self._worker = worker
        self._table = table
        self._loop = loop
        self.name = table.name
        self.shape = table.shape

    def __repr__(self) -> str:
        return f"<blocking Table {self.name} shape={self.shape} version={self.version}>"

    @property
    def worker(self) -> Worker:
        """The worker that opened the table."""
        return self._worker

    @property
    def local(self) -> LocalCopy:
        """The versioned local copy, refreshed by every whole pull."""
        return LocalCopy(self._table.local, self._loop)

    @property
    def shards(self) -> int:
        """Into how many shards the table is cut."""
        return self._table.shards

    @property
    def allow_nonfinite(self) -> bool:
        """Whether NaN and infinity may pass."""
        return self._table.allow_nonfinite

    @property
    def has_rounds(self) -> bool:
        """Whether the table's version rises by rounds (BSP)."""
        return self._table.has_rounds

    @property
    def version(self) -> int:
        """Version of the values this worker has seen last; 0 before the first pull."""
        return self._table.version

    @property
    def wanted_version(self) -> int:
        """The version that a pull gets now: in BSP an exact one, 0 (the newest) otherwise."""
        return self._table.wanted_version

    @property
    def partition(self) -> list[dict[str, int]]:
        """Which server holds which keys; see `aiops.Table.partition`."""
        return self._table.partition

    def compression_state(self) -> dict[str, NDArray[Any]]:
        """Return what compression holds back; see `aiops.Table.compression_state`."""
        return self._loop.do(self._table.compression_state)

    def load_compression_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what was held back; see `aiops.Table.load_compression_state`."""
        self._loop.do(self._table.load_compression_state, state)

    def pull(
        self,
        rows: Rows | None = None,
        *,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Fetch the current values from the servers; see `aiops.Table.pull`."""
        return self._loop.call(self._table.pull, rows, out=out, timeout_s=timeout_s)

    def push(
        self,
        grad: Float32Array,
        rows: Rows | None = None,
        *,
        weight: float | None = None,
        ack: str = "applied",
        timeout_s: float | None = None,
    ) -> PushResult:
        """Send a gradient and wait for the acknowledgement; see `aiops.Table.push`.

        The array is borrowed until this returns or raises.
        """
        return self._loop.call(
            self._table.push, grad, rows, weight=weight, ack=ack, timeout_s=timeout_s
        )

    def assign(
        self, values: Float32Array, rows: Rows | None = None, *, timeout_s: float | None = None
    ) -> PushResult:
        """Set rows to these values, past the optimizer; see `aiops.Table.assign`."""
        return self._loop.call(self._table.assign, values, rows, timeout_s=timeout_s)

    def call(
        self,
        function: str,
        /,
        *,
        timeout_s: float | None = None,
        **settings: float | int | bool | str | None,
    ) -> list[Float32Array]:
        """Run a function that reads on every shard; see `aiops.Table.call`."""
        return self._loop.call(self._table.call, function, timeout_s=timeout_s, **settings)

    def transform(
        self,
        function: str,
        /,
        *,
        timeout_s: float | None = None,
        **settings: float | int | bool | str | None,
    ) -> None:
        """Run a function that changes values on every shard; see `aiops.Table.transform`."""
        self._loop.call(self._table.transform, function, timeout_s=timeout_s, **settings)

    def push_pull(
        self,
        grad: Float32Array,
        *,
        out: Float32Array | None = None,
        weight: float | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Push, and fetch the values after it; see `aiops.Table.push_pull`."""
        return self._loop.call(
            self._table.push_pull, grad, out=out, weight=weight, timeout_s=timeout_s
        )

    def push_soon(self, grad: Float32Array, *, weight: float | None = None) -> Future[PushResult]:
        """Copy the gradient now and send it in the background; see `aiops.Table.push_soon`.

        Returns a `concurrent.futures.Future` of the result; nobody has to wait for it.
        """
        return self._loop.start(self._table.push_soon, grad, weight=weight)

    def flush(self) -> None:
        """Wait until every background push is acknowledged; see `aiops.Table.flush`."""
        self._loop.call(self._table.flush)

    def prefetch(self) -> None:
        """Begin to fetch what the next whole `pull` will ask for; see `aiops.Table.prefetch`."""
        self._loop.do(self._table.prefetch)

    def updates(self) -> Iterator[tuple[int, Float32Array]]:
        """Iterate over new versions as they come into being; see `aiops.Table.updates`.

        Each step of the loop waits for the next version.
        """
        return self._updates(self._loop.do(self._table.updates))

    def _updates(
        self, versions: AsyncIterator[tuple[int, Float32Array]]
    ) -> Iterator[tuple[int, Float32Array]]:
        async def following() -> tuple[int, Float32Array]:
            return await anext(versions)

        while True:
            yield self._loop.call(following)


class LocalCopy:
    """A worker's copy of one table; `table.local`. The twin of `aiops.LocalCopy`."""

    def __init__(self, local: aiops.tables.local_copy.LocalCopy, loop: LoopThread) -> None:
        self._local = local
        self._loop = loop

    def __repr__(self) -> str:
        return f"<blocking {self._local!r}>"

    @property
    def version(self) -> int:
        """Version of the values; 0 before the first refresh."""
        return self._local.version

    @property
    def values(self) -> Float32Array:
        """The values, read-only; see `aiops.LocalCopy.values`."""
        return self._local.values

    @property
    def age_s(self) -> float:
        """Seconds since the last refresh."""
        return self._local.age_s

    def pull_every(self, period_s: float) -> None:
        """Refresh in the background; see `aiops.LocalCopy.pull_every`."""
        self._loop.do(self._local.pull_every, period_s)

    def check(self) -> None:
        """Raise the error that has ended the background puller, if one has."""
        self._loop.do(self._local.check)

    def stop(self) -> None:
        """End the background puller. Idempotent."""
        self._loop.do(self._local.stop)

    def use(self, optimizer: Optimizer) -> None:
        """Choose the optimizer of `apply`; its state starts from zero."""
        self._loop.do(self._local.use, optimizer)

    def apply(self, gradient: Float32Array) -> None:
        """Step the local copy by the local optimizer; see `aiops.LocalCopy.apply`."""
        self._loop.do(self._local.apply, gradient)

    def push_delta(self) -> PushResult:
        """Push what `apply` has changed; see `aiops.LocalCopy.push_delta`."""
        return self._loop.call(self._local.push_delta)
