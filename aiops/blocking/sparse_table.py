"""The blocking twin of `aiops.SparseTable`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

import aiops.tables.sparse_table
from aiops.blocking.loop_thread import LoopThread
from aiops.tables.key_layout import Wanted
from aiops.tables.table import PushResult
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.blocking.worker import Worker

__all__ = ["SparseTable"]


class SparseTable:
    """One sparse table; made by `worker.sparse_table(...)`. The twin of `aiops.SparseTable`.

    Attributes
    ----------
    name, width
        As created.
    """

    def __init__(
        self, worker: Worker, table: aiops.tables.sparse_table.SparseTable, loop: LoopThread
    ) -> None:
        self._worker = worker
        self._table = table
        self._loop = loop
        self.name = table.name
        self.width = table.width

    def __repr__(self) -> str:
        return f"<blocking SparseTable {self.name} width={self.width} version={self.version}>"

    @property
    def worker(self) -> Worker:
        """The worker that opened the table."""
        return self._worker

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
        """Version of the rows that this worker has pulled last; 0 before the first pull."""
        return self._table.version

    @property
    def partition(self) -> list[dict[str, int]]:
        """Which server holds which keys: server, begin, end."""
        return self._table.partition

    def compression_state(self) -> dict[str, NDArray[Any]]:
        """Return what compression holds back; see `aiops.SparseTable.compression_state`."""
        return self._loop.do(self._table.compression_state)

    def load_compression_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what was held back; see `aiops.SparseTable.load_compression_state`."""
        self._loop.do(self._table.load_compression_state, state)

    def pull(
        self,
        keys: Wanted,
        *,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Fetch the rows of these keys; see `aiops.SparseTable.pull`."""
        return self._loop.call(self._table.pull, keys, out=out, timeout_s=timeout_s)

    def push(
        self,
        keys: Wanted,
        grads: Float32Array,
        *,
        weight: float | None = None,
        ack: str = "applied",
        timeout_s: float | None = None,
    ) -> PushResult:
        """Send gradients of rows; see `aiops.SparseTable.push`."""
        return self._loop.call(
            self._table.push, keys, grads, weight=weight, ack=ack, timeout_s=timeout_s
        )

    def assign(
        self, keys: Wanted, values: Float32Array, *, timeout_s: float | None = None
    ) -> PushResult:
        """Set rows to these values; see `aiops.SparseTable.assign`."""
        return self._loop.call(self._table.assign, keys, values, timeout_s=timeout_s)
