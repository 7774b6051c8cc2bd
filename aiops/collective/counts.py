"""How many messages and elements each collective moves, by formula.

Tests hold these against schedules as they were executed; the cost model rests on them. The
formulas are those of Thakur, Rabenseifner and Gropp (2005), made exact for lengths that the
number of ranks does not divide: where they say n(p-1)/p, a rank sends n less its own chunk.
"""

from __future__ import annotations

from typing import NamedTuple

from aiops.collective.schedule import Algorithm, Groups
from aiops.collective.steps import chunk_spans

__all__ = ["Counts", "all_reduce_counts"]


class Counts(NamedTuple):
    """What one rank sends, and how many messages lie one after the other on the longest way."""

    rounds: int
    messages: int
    elements: int


def all_reduce_counts(
    algorithm: Algorithm, rank: int, world_size: int, count: int, groups: Groups | None = None
) -> Counts:
    """Count one rank's part of `schedule.all_reduce`.

    Parameters
    ----------
    algorithm, rank, world_size, count, groups
        As for `schedule.all_reduce`.

    Returns
    -------
    counts
        `rounds` of the whole collective, `messages` and `elements` that this rank sends.
    """
    if world_size == 1:
        return Counts(0, 0, 0)
    match algorithm:
        case "ring":
            return _ring(rank, world_size, count)
        case "recursive-doubling" | "halving-doubling":
            return _folded(algorithm, rank, world_size, count)
        case "tree":
            return _tree(rank, world_size, count)
        case "chain":
            sends = (rank < world_size - 1) + (rank > 0)
            return Counts(2 * (world_size - 1), sends, sends * count)
        case "hierarchical":
            assert groups is not None
            return _hierarchical(rank, groups, count)


def _ring(place: int, parts: int, count: int) -> Counts:
    """Send everything but its own chunk, then everything but the chunk of the next."""
    chunks = chunk_spans(count, parts)
    kept = chunks[place].elements + chunks[(place + 1) % parts].elements
    return Counts(2 * (parts - 1), 2 * (parts - 1), 2 * count - kept)


def _folded(algorithm: Algorithm, rank: int, world_size: int, count: int) -> Counts:
    levels = world_size.bit_length() - 1
    parts = 1 << levels
    surplus = world_size - parts
    fold = 2 if surplus else 0
    rounds = fold + (levels if algorithm == "recursive-doubling" else 2 * levels)
    if rank < 2 * surplus and rank % 2:
        return Counts(rounds, 1, count)
    extra = int(rank < 2 * surplus)  # the result, back to the rank that was folded into this one
    if algorithm == "recursive-doubling":
        return Counts(rounds, levels + extra, (levels + extra) * count)
    place = rank // 2 if rank < 2 * surplus else rank - surplus
    chunks = chunk_spans(count, parts)
    # Scattering, it gives away all but its own chunk. Gathering, it sends its aligned block of
    # 1, 2, 4, ... chunks.
    scattered = count - chunks[place].elements
    blocks = [place >> level << level for level in range(levels)]
    gathered = sum(
        chunks[begin + (1 << level) - 1].end - chunks[begin].begin
        for level, begin in enumerate(blocks)
    )
    return Counts(rounds, 2 * levels + extra, scattered + gathered + extra * count)


def _tree(place: int, parts: int, count: int) -> Counts:
    levels = (parts - 1).bit_length()
    low_bit = (place & -place).bit_length() - 1 if place else levels
    children = sum(place + (1 << level) < parts for level in range(low_bit))
    messages = children + (place > 0)
    return Counts(2 * levels, messages, messages * count)


def _hierarchical(rank: int, groups: Groups, count: int) -> Counts:
    group = next(group for group in groups if rank in group)
    place, here = group.index(rank), [rank in group for group in groups].index(True)
    members, others = len(group), len(groups)
    if len({len(group) for group in groups}) > 1:
        inside = _tree(place, members, count) if members > 1 else Counts(0, 0, 0)
        between = _ring(here, others, count) if place == 0 else Counts(0, 0, 0)
        rounds = 2 * max((len(group) - 1).bit_length() for group in groups) + 2 * (others - 1)
        return Counts(
            rounds, inside.messages + between.messages, inside.elements + between.elements
        )
    mine = chunk_spans(count, members)[place].elements
    inside = _ring(place, members, count) if members > 1 else Counts(0, 0, 0)
    between = _ring(here, others, mine) if others > 1 else Counts(0, 0, 0)
    return Counts(
        inside.rounds + between.rounds,
        inside.messages + between.messages,
        inside.elements + between.elements,
    )
