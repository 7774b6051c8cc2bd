"""aiops: an asyncio parameter server and collective library with its own wire protocol.

Start with `connect` (be a worker), `LocalCluster` (a whole cluster in this process), or
`Scheduler` and `Server` (embed the roles). `aiops.optim` has what servers do with a push,
`aiops.compression` how it travels in fewer bytes, `aiops.init` the initial values,
`aiops.collective` all-reduce without servers, `aiops.errors` every error, `aiops.blocking` all
of it for code without asyncio.
"""

from __future__ import annotations

from aiops import blocking, collective, compression, errors, filters, functions, init, optim
from aiops.consistency import ASP, BSP, SSP, Quorum
from aiops.local_cluster import LocalCluster
from aiops.local_sgd import LocalSGD
from aiops.runtime.observer import fetch_status
from aiops.runtime.running import run
from aiops.runtime.scheduler_node import Scheduler
from aiops.runtime.server_node import Server
from aiops.tables.local_copy import LocalCopy
from aiops.tables.sparse_table import SparseTable
from aiops.tables.table import PushResult, Table
from aiops.workers.connecting import connect
from aiops.workers.customer_handle import CustomerHandle
from aiops.workers.ring import Ring
from aiops.workers.worker import Worker

__all__ = [
    "ASP",
    "BSP",
    "SSP",
    "CustomerHandle",
    "LocalCluster",
    "LocalCopy",
    "LocalSGD",
    "PushResult",
    "Quorum",
    "Ring",
    "Scheduler",
    "Server",
    "SparseTable",
    "Table",
    "Worker",
    "blocking",
    "collective",
    "compression",
    "connect",
    "errors",
    "fetch_status",
    "filters",
    "functions",
    "init",
    "optim",
    "run",
]
