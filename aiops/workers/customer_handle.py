"""CustomerHandle: a further user of one worker, with connections of its own; `Worker.customer`.

What lives here: opening, its views of tables, and the end. The clock, the contributions to rounds
and their seals stay the worker's.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aiops.checks import check_timeout
from aiops.errors import Closed, UsageError
from aiops.runtime.customer import Customer
from aiops.tables.sparse_table import SparseTable
from aiops.tables.table import Table
from aiops_protocol.limits import CUSTOMERS_MAX

if TYPE_CHECKING:
    from aiops.workers.worker import Worker

__all__ = ["CustomerHandle", "Customers"]

OPEN_TIMEOUT_S = 60.0
"""How long connecting to all servers may take; they are there already."""

T = TypeVar("T", Table, SparseTable)


class CustomerHandle:
    """A further customer of a worker; made by `worker.customer(name)`, used as `async with`.

    It has connections, windows and numbers of its own, so that its requests are not held up by
    those of others; in everything else it is the worker. `tick` waits for its pushes as well, and
    they are part of the same contribution.

    Attributes
    ----------
    name
        As given.
    customer
        What sends its requests, for those who build on it.
    """

    def __init__(self, worker: Worker, name: str, customer: Customer) -> None:
        self.name = name
        self.customer = customer
        self._worker = worker
        self._views: dict[str, Table | SparseTable] = {}
        self._opened = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<CustomerHandle {self.name} of worker {self._worker.rank}>"

    async def __aenter__(self) -> Self:
        """Connect to every server."""
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def open(self, *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Connect to every server; a second call does nothing.

        Raises
        ------
        DialFailed, PeerMisbehaved
            A server cannot be reached.
        Closed
            It was closed before: ask the worker for another one.
        """
        if self._closed:
            raise Closed(f"customer {self.name} was closed; worker.customer makes another one")
        timeout_s = check_timeout(timeout_s, f"customer {self.name}")
        if not self._opened:
            await self.customer.open(timeout_s)
            self._opened = True

    async def table(
        self, name: str, shape: tuple[int, ...] | int | None = None, **settings: Any
    ) -> Table:
        """Return a table as this customer uses it; arguments and errors as for `Worker.table`.

        The worker opens it, if it has not, and takes part in its rounds.
        """
        await self.open()
        return self._view(await self._worker.table(name, shape, **settings))

    async def sparse_table(
        self, name: str, width: int | None = None, **settings: Any
    ) -> SparseTable:
        """Return a sparse table as this customer uses it; see `Worker.sparse_table`."""
        await self.open()
        return self._view(await self._worker.sparse_table(name, width, **settings))

    def _view(self, main: T) -> T:
        known = self._views.get(main.name)
        if known is None:
            known = self._views[main.name] = main.used_by(self.customer)
        assert isinstance(known, type(main))
        return known

    async def close(self) -> None:
        """Wait until what was pushed is acknowledged, and close the connections. Idempotent.

        Raises
        ------
        AiopsError
            What a background push has met.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._worker.postoffice.failure is None:
                for view in self._views.values():
                    await view.core.writes.own_settled()
        finally:
            for view in self._views.values():
                view.close()
            await self.customer.close()


class Customers:
    """All further customers that a worker has had."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._by_name: dict[str, CustomerHandle] = {}
        self._made: list[Customer] = []

    @property
    def all(self) -> list[Customer]:
        """The worker's own, and every further one, those that are closed included."""
        return [self._worker.main_customer, *self._made]

    def get(self, name: str) -> CustomerHandle:
        """Return the open customer of this name, or a new one."""
        known = self._by_name.get(name)
        if known is not None and not known._closed:
            return known
        number = len(self._made) + 1
        if number >= CUSTOMERS_MAX:
            raise UsageError(
                f"customer {name}: this worker has had {CUSTOMERS_MAX} customers, all there can "
                "be; use those that are open"
            )
        main = self._worker.main_customer
        customer = Customer(main.van, self._worker.postoffice, number)
        customer.witness = main.witness
        self._made.append(customer)
        handle = self._by_name[name] = CustomerHandle(self._worker, name, customer)
        return handle

    async def close(self) -> None:
        """Close the connections of all of them."""
        for customer in self._made:
            await customer.close()
