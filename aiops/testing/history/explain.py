"""Which of some uncertain mutations explain the values that were seen? Numbers only.

A mutation is all in or all out. Where only one of them touches an element, the element tells;
what is left over is tried out, if it is not too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Candidate", "Explanation", "explain"]

Numbers = NDArray[np.float64]

TRIED_MAX: Final = 12
"""Mutations that are tried in and out together: 4096 ways."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutation that may be in: what it adds, and whether it must be in."""

    amount: Numbers
    needed: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What follows from the values.

    Attributes
    ----------
    inside
        For each candidate whether it is in; `None` where the values do not tell.
    wrong
        The element that nothing explains, and by how much it is off; or `None`.
    miscounted
        The values are explained, but not by as many mutations as there were.
    """

    inside: list[bool | None]
    wrong: tuple[int, float] | None = None
    miscounted: bool = False


def explain(rest: Numbers, candidates: Sequence[Candidate], count: int | None) -> Explanation:
    """Find the candidates whose sum is `rest`.

    Parameters
    ----------
    rest
        What was seen, less everything that is certainly in.
    candidates
        What may be in.
    count
        How many of them are in, where that is known.
    """
    inside: list[bool | None] = [True if one.needed else None for one in candidates]
    rest = rest - sum((one.amount for one in candidates if one.needed), np.zeros_like(rest))
    while True:
        rest, changed, wrong = _settle(rest, candidates, inside)
        if wrong is not None:
            return Explanation(inside, wrong)
        if not changed:
            break
    return _try(rest, candidates, inside, count)


def _settle(
    rest: Numbers, candidates: Sequence[Candidate], inside: list[bool | None]
) -> tuple[Numbers, bool, tuple[int, float] | None]:
    """Decide the candidates that alone touch some element; the rest must be nothing elsewhere."""
    open_ = [place for place, known in enumerate(inside) if known is None]
    touched = np.zeros(rest.shape, np.int64)
    for place in open_:
        touched += candidates[place].amount != 0
    off = np.flatnonzero((touched == 0) & (rest != 0))
    if off.size:
        return rest, False, (int(off[0]), float(rest[off[0]]))
    changed = False
    for place in open_:
        amount = candidates[place].amount
        alone = np.flatnonzero((touched == 1) & (amount != 0))
        if not alone.size:
            continue
        changed = True
        inside[place] = bool(rest[alone[0]] != 0)
        if inside[place]:
            rest = rest - amount
        off = alone[rest[alone] != 0]
        if off.size:
            return rest, False, (int(off[0]), float(rest[off[0]]))
    return rest, changed, None


def _try(
    rest: Numbers,
    candidates: Sequence[Candidate],
    inside: list[bool | None],
    count: int | None,
) -> Explanation:
    """Try the undecided ones; keep what all ways that fit have in common."""
    open_ = [place for place, known in enumerate(inside) if known is None]
    if len(open_) > TRIED_MAX:
        return Explanation(inside)
    known = sum(1 for one in inside if one)
    adding_up = [
        way
        for way in product((False, True), repeat=len(open_))
        if not _left(rest, [candidates[place] for place in open_], way).any()
    ]
    if not adding_up:
        off = int(np.flatnonzero(rest)[0]) if rest.any() else 0
        return Explanation(inside, (off, float(rest[off])))
    fitting = [way for way in adding_up if count is None or known + sum(way) == count]
    if not fitting:
        return Explanation(inside, miscounted=True)
    for index, place in enumerate(open_):
        answers = {way[index] for way in fitting}
        inside[place] = answers.pop() if len(answers) == 1 else None
    return Explanation(inside)


def _left(rest: Numbers, candidates: Sequence[Candidate], way: Sequence[bool]) -> Numbers:
    for one, is_in in zip(candidates, way, strict=True):
        if is_in:
            rest = rest - one.amount
    return rest
