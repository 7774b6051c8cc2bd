"""In which order the members of a ring follow each other, from measured links; nothing is measured.

A ring is as fast as its slowest link, so the order is the one whose slowest link is the fastest: a
bottleneck travelling salesman. Exact for up to `EXACT_MAX` members, by a table over subsets; above,
nearest neighbours from every start, then reversals as long as they help.

References
----------
M. Held, R. M. Karp, "A Dynamic Programming Approach to Sequencing Problems", J. SIAM 10(1), 1962
(the table); G. A. Croes, "A Method for Solving Traveling-Salesman Problems", Operations Research
6(6), 1958 (reversals).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.collective.steps import Schedule, Step, Transfer

__all__ = ["EXACT_MAX", "in_order", "pairings", "ring_order", "slowest_link"]

Matrix = NDArray[Any]

EXACT_MAX: Final = 10
"""A table for so many members takes a tenth of a second, and for each one more twice as long."""

WORTH_IT: Final = 1.25
"""The usual order stays unless another one is so much better: a measurement of equal links differs
by some percent, and an order that changes from run to run changes bits. Where members share hosts
it also leaves each host once only, which a slowest link does not tell."""


def slowest_link(bandwidth: Matrix, order: Sequence[int]) -> float:
    """Return the bandwidth of the slowest link of a cycle; infinite for a single member."""
    links = [bandwidth[a, b] for a, b in zip(order, [*order[1:], order[0]], strict=True) if a != b]
    return float(min(links, default=np.inf))


def ring_order(bandwidth: Matrix, usual: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the members in the order of the ring; the same for the same matrix.

    Parameters
    ----------
    bandwidth : array of shape (p, p)
        From each member to each other, above zero. Of both directions the slower one counts.
    usual
        The order without measuring; that of the ranks if not given.

    Returns
    -------
    order
        Each member once, 0 first unless it is the usual one, which it is if no other is a quarter
        better.

    Raises
    ------
    ValueError
        The matrix is not square, or a link has no bandwidth above zero.
    """
    size = len(bandwidth)
    if bandwidth.shape != (size, size):
        raise ValueError(f"a square matrix is needed, not one of shape {bandwidth.shape}")
    both = np.minimum(bandwidth, bandwidth.T).astype(float)
    np.fill_diagonal(both, np.inf)
    if not np.all(both > 0):
        raise ValueError("each link needs a bandwidth above zero")
    usual = tuple(usual) or tuple(range(size))
    if size < 4:  # there is one cycle only
        return usual
    best = _exact(both) if size <= EXACT_MAX else _improved(both)
    if slowest_link(both, best) < WORTH_IT * slowest_link(both, usual):
        return usual
    return best if best[1] < best[-1] else (0, *best[:0:-1])  # of both ways round always the same


def _exact(links: Matrix) -> tuple[int, ...]:
    """Fill the table: for each subset with 0 and each end in it, the widest way from 0 to there."""
    size = len(links)
    rows = links.tolist()
    best: dict[tuple[int, int], tuple[float, int]] = {(1, 0): (float("inf"), 0)}
    for count in range(1, size):
        for others in combinations(range(1, size), count):
            subset = 1 | sum(1 << other for other in others)
            for last in others:
                before = subset & ~(1 << last)
                ends = [end for end in others if end != last] or [0]
                best[subset, last] = max(
                    (min(best[before, end][0], rows[end][last]), -end) for end in ends
                )
    whole = (1 << size) - 1
    last = max(range(1, size), key=lambda end: min(best[whole, end][0], rows[end][0]))
    order, subset = [], whole
    while last:
        order.append(last)
        subset, last = subset & ~(1 << last), -best[subset, last][1]
    return (0, *reversed(order))


def _improved(links: Matrix) -> tuple[int, ...]:
    """Take the best of nearest neighbours from every start, then reverse parts while it helps."""
    size = len(links)
    best = tuple(range(size))
    for start in range(size):
        order, left = [start], set(range(size)) - {start}
        while left:
            order.append(max(left, key=lambda other: (links[order[-1], other], -other)))
            left.remove(order[-1])
        best = max(best, _reversed_while_better(links, order), key=lambda o: slowest_link(links, o))
    at = best.index(0)
    return best[at:] + best[:at]


def _reversed_while_better(links: Matrix, order: list[int]) -> tuple[int, ...]:
    size = len(order)
    while True:
        width = slowest_link(links, order)
        worst = next(i for i in range(size) if links[order[i - 1], order[i]] == width)
        order = order[worst:] + order[:worst]  # the slowest link is from the last to the first
        for cut in range(1, size - 1):
            # first ... cut | cut+1 ... last becomes cut ... first | cut+1 ... last
            if min(links[order[0], order[cut + 1]], links[order[-1], order[cut]]) > width:
                order = order[cut::-1] + order[cut + 1 :]
                break
        else:
            return tuple(order)


def in_order(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Return a schedule in which the places of a ring are those of `order`, not the ranks."""

    def renamed(transfer: Transfer | None) -> Transfer | None:
        return None if transfer is None else transfer._replace(peer=order[transfer.peer])

    return tuple(Step(renamed(step.send), renamed(step.receive), step.combine) for step in schedule)


def pairings(size: int) -> list[dict[int, int]]:
    """Return rounds of pairs, so that each two members meet once and nobody meets two at a time.

    Returns
    -------
    rounds
        For each round the partner of each member that has one, in both directions. By the circle
        method: member 0 stays where it is, the others move on by one place.
    """
    places: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        pairs = zip(places[: len(places) // 2], places[: len(places) // 2 - 1 : -1], strict=True)
        met = [(a, b) for a, b in pairs if a is not None and b is not None]
        rounds.append(dict(met) | {b: a for a, b in met})
        places = [places[0], places[-1], *places[1:-1]]
    return rounds if size > 1 else []
