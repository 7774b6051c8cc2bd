"""Transports: what moves bytes between nodes, and one contract for all of them.

`base` is the contract; `tcp` and `memory` fulfil it. Frames are known only to `link`.
"""

from aiops.van.base import Accept, Address, Listener, Stream, StreamHandler, Van
from aiops.van.memory import MemoryVan
from aiops.van.tcp import TcpVan

__all__ = [
    "Accept",
    "Address",
    "Listener",
    "MemoryVan",
    "Stream",
    "StreamHandler",
    "TcpVan",
    "Van",
]
