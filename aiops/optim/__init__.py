"""Updaters: what a server does with a push.

Each is a frozen record of settings with one elementwise step over float32 arrays. This room knows
arrays and settings; it knows no frames, rounds, clocks or sockets. Start reading at `base.py`.
"""

from aiops.optim.adam import Adam, AdamW
from aiops.optim.adaptive import Adagrad, RMSProp
from aiops.optim.assign import Add, Assign
from aiops.optim.base import Optimizer, Steps, optimizer_from, optimizer_names, register
from aiops.optim.clipping import clip_by_global_norm
from aiops.optim.momentum import Momentum
from aiops.optim.proximal import FTRL, ProximalSGD
from aiops.optim.schedules import Constant, Cosine, InverseSqrt, Schedule, Stage, Step, WarmUp
from aiops.optim.sgd import SGD

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Add",
    "Assign",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Momentum",
    "Optimizer",
    "ProximalSGD",
    "RMSProp",
    "Schedule",
    "Stage",
    "Step",
    "Steps",
    "WarmUp",
    "clip_by_global_norm",
    "optimizer_from",
    "optimizer_names",
    "register",
]
