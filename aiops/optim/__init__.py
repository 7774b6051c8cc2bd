"""Updaters: what a server does with a push.

Each is a frozen record of settings with one elementwise step over float32 arrays. This room knows
arrays and settings; it knows no frames, rounds, clocks or sockets. Start reading at `base.py`.
"""

from aiops.optim.adam import Adam
from aiops.optim.assign import Add, Assign
from aiops.optim.base import Optimizer, optimizer_from, optimizer_names, register
from aiops.optim.momentum import Momentum
from aiops.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "Add",
    "Assign",
    "Momentum",
    "Optimizer",
    "optimizer_from",
    "optimizer_names",
    "register",
]
