"""The same API without asyncio: `with aiops.blocking.connect() as worker`.

Each object here has the names of its twin in `aiops` and calls it on an event loop in a thread
of its own, so arguments, results and errors are the twin's; only `await`, `async with` and
`async for` are gone. Nothing about tables, clocks or the network is decided here.

Pulls and pushes may come from several threads at once. The clock (`steps`, `tick`, `finish`) is
moved by one thread at a time; a second one is refused with `UsageError`.
"""

from __future__ import annotations

from aiops.blocking.customer_handle import CustomerHandle
from aiops.blocking.local_cluster import LocalCluster
from aiops.blocking.local_sgd import LocalSGD
from aiops.blocking.ring import Ring
from aiops.blocking.sparse_table import SparseTable
from aiops.blocking.status import fetch_status
from aiops.blocking.table import LocalCopy, Table
from aiops.blocking.worker import Worker, connect

__all__ = [
    "CustomerHandle",
    "LocalCluster",
    "LocalCopy",
    "LocalSGD",
    "Ring",
    "SparseTable",
    "Table",
    "Worker",
    "connect",
    "fetch_status",
]
