"""Measures the links between the members of a ring, all of them at once, two by two.

Each two members meet in one round: a little goes to and fro, and much goes both ways at once.
What follows from it is `aiops.collective.network`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.collective.member import Member
from aiops.collective.network import Network, network_of
from aiops.collective.plan import make_plan
from aiops.collective.steps import Combine, Schedule, Step, Transfer
from aiops.collective.topology import pairings
from aiops.runtime.ring_call import RingWork
from aiops.runtime.ring_group import RingGroup

__all__ = ["measured_links", "measured_network"]

FEW: Final = 1024
MANY: Final = 256 * 1024
"""Elements of float32 that are sent: 4 KiB take the time of a message, and 1 MiB mostly that of its
bytes, on links below 10 Gbit/s. More would take long on slow ones (0.1 s at 100 Mbit/s)."""

LEGS: Final = 4
"""How often the few go to and fro: what else a call costs, and that one member begins it later, is
then a small part."""

REPEATS: Final = 3
FEW_REPEATS: Final = 3 * REPEATS
"""How often; the quickest counts, as something else may run at any time."""


async def measured_links(group: RingGroup, timeout_s: float) -> NDArray[Any]:
    """Return the seconds that exchanges with each member took, as this one has seen them.

    All members call this at once. For errors see `Ring.all_reduce`.

    Returns
    -------
    row : array of float64, shape (p, 1 + repeats)
        As `aiops.collective.network.network_of` takes them from all members.
    """
    row = np.zeros((group.size, REPEATS + 1))
    for number, pairs in enumerate(pairings(group.size)):
        partner = pairs.get(group.index)
        few = _work(number, FEW, _to_and_fro(group.index, partner))
        many = _work(number, MANY, _both_ways(group.index, partner))
        seconds = [await _seconds(group, few, timeout_s) for _ in range(FEW_REPEATS)]
        row_of = [min(seconds), *[await _seconds(group, many, timeout_s) for _ in range(REPEATS)]]
        if partner is not None:
            row[partner] = row_of
    return row


async def measured_network(
    ring: Member, group: RingGroup, timeout_s: float, usual: Sequence[int]
) -> Network:
    """Measure the links, tell all members, and return what follows: the same on all."""
    rows = await ring.all_gather(await measured_links(group, timeout_s), algorithm="ring")
    return network_of(rows, LEGS, 4 * FEW, 4 * MANY, usual)


async def _seconds(group: RingGroup, work: RingWork, timeout_s: float) -> float:
    if group.over is not None:
        raise group.over
    call = group.call(work, timeout_s)
    try:
        await call.future
    except asyncio.CancelledError:
        group.cancel(call)
        raise
    return call.exchange_s


def _to_and_fro(index: int, partner: int | None) -> Schedule:
    if partner is None:
        return ()
    few = Transfer(partner, 0, FEW)
    there, back = Step(few, None, Combine.REPLACE), Step(None, few, Combine.REPLACE)
    return LEGS // 2 * ((there, back) if index < partner else (back, there))


def _both_ways(index: int, partner: int | None) -> Schedule:
    if partner is None:
        return ()
    low, high = Transfer(partner, 0, MANY), Transfer(partner, MANY, 2 * MANY)
    send, receive = (low, high) if index < partner else (high, low)
    return (Step(send, receive, Combine.REPLACE),)


def _work(number: int, size: int, schedule: Schedule) -> RingWork:
    source, work = np.zeros(2 * size, np.float32), np.empty(2 * size, np.float32)
    words = f'topology="measured": round {number} of measuring, {4 * size} bytes'
    return RingWork("ring", words, make_plan(schedule), source, work, np.add, _nothing)


def _nothing() -> None:
    """Nothing is left to do: only the time counts."""
