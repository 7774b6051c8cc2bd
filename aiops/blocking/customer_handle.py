"""The blocking twin of `aiops.CustomerHandle`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import aiops.workers.customer_handle
from aiops.blocking.loop_thread import LoopThread
from aiops.blocking.sparse_table import SparseTable
from aiops.blocking.table import Table
from aiops.workers.customer_handle import OPEN_TIMEOUT_S

if TYPE_CHECKING:
    from aiops.blocking.worker import Worker

__all__ = ["CustomerHandle"]


class CustomerHandle:
    """A further customer of a worker; made by `worker.customer(name)`, used as `with`.

    The twin of `aiops.CustomerHandle`, where every method is described.

    Attributes
    ----------
    name
        As given.
    """

    def __init__(
        self, worker: Worker, handle: aiops.workers.customer_handle.CustomerHandle, loop: LoopThread
    ) -> None:
        self._worker = worker
        self._handle = handle
        self._loop = loop
        self.name = handle.name

    def __repr__(self) -> str:
        return f"<blocking {self._handle!r}>"

    def __enter__(self) -> Self:
        """Connect to every server."""
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def open(self, *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Connect to every server; a second call does nothing."""
        self._loop.call(self._handle.open, timeout_s=timeout_s)

    def table(
        self, name: str, shape: tuple[int, ...] | int | None = None, **settings: Any
    ) -> Table:
        """Return a table as this customer uses it; see `aiops.CustomerHandle.table`."""
        opened = self._loop.call(self._handle.table, name, shape, **settings)
        return Table(self._worker, opened, self._loop)

    def sparse_table(self, name: str, width: int | None = None, **settings: Any) -> SparseTable:
        """Return a sparse table as this customer uses it; see `aiops.Worker.sparse_table`."""
        opened = self._loop.call(self._handle.sparse_table, name, width, **settings)
        return SparseTable(self._worker, opened, self._loop)

    def close(self) -> None:
        """Wait until what was pushed is acknowledged, and close the connections. Idempotent."""
        self._loop.call(self._handle.close)
