"""Measures the links between the members of a ring, all of them at once, two by two.

Each two members meet in one round and send to each other, a little and much; the difference is what
the bytes take. What follows from it is `aiops.collective.topology`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.collective.plan import make_plan
from aiops.collective.steps import Combine, Schedule, Step, Transfer
from aiops.collective.topology import pairings
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_group import RingGroup

__all__ = ["measured_links"]

SIZES: Final = (1024, 256 * 1024)
"""Elements of float32 that are sent: 4 KiB take the time of a message, and 1 MiB mostly that of its
bytes, on links below 10 Gbit/s. More would take long on slow ones (0.1 s at 100 Mbit/s)."""

REPEATS: Final = 3
"""How often; the quickest counts, as something else may run at any time."""

LEAST_S: Final = 1e-6
"""What the bytes take at least: below it is what clocks and event loops differ by."""


async def measured_links(group: RingGroup, timeout_s: float) -> NDArray[Any]:
    """Return the bytes per second to and from each member, as this one has seen them.

    All members call this at once. For errors see `Ring.all_reduce`.

    Returns
    -------
    row : array of float64, shape (p,)
        Infinite for this member itself.
    """
    row = np.full(group.size, np.inf)
    for number, pairs in enumerate(pairings(group.size)):
        partner = pairs.get(group.index)
        seconds = dict.fromkeys(SIZES, np.inf)
        for _ in range(REPEATS):
            for size in SIZES:
                call = await _made(group, _exchange(group.index, partner, size, number), timeout_s)
                seconds[size] = min(seconds[size], call.exchange_s)
        if partner is not None:
            few, many = SIZES
            row[partner] = 4 * (many - few) / max(LEAST_S, seconds[many] - seconds[few])
    return row


async def _made(group: RingGroup, work: RingWork, timeout_s: float) -> RingCall:
    if group.over is not None:
        raise group.over
    call = group.call(work, timeout_s)
    try:
        await call.future
    except asyncio.CancelledError:
        group.cancel(call)
        raise
    return call


def _exchange(index: int, partner: int | None, size: int, number: int) -> RingWork:
    schedule: Schedule = ()
    if partner is not None:
        low, high = Transfer(partner, 0, size), Transfer(partner, size, 2 * size)
        send, receive = (low, high) if index < partner else (high, low)
        schedule = (Step(send, receive, Combine.REPLACE),)
    source, work = np.zeros(2 * size, np.float32), np.empty(2 * size, np.float32)
    words = f'topology="measured": round {number} of measuring, {4 * size} bytes'
    return RingWork("ring", words, make_plan(schedule), source, work, np.add, _nothing)


def _nothing() -> None:
    """Nothing is left to do: only the time counts."""
