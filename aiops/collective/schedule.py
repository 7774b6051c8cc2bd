"""Collectives as pure data: what each rank sends to whom, and what it does with what comes.

A schedule is a tuple of steps (`steps.py`) made of the blocks in `patterns.py`; nothing here
moves a byte, waits or knows a clock. Every function takes any number of ranks from one up and
any length, also 0 and fewer elements than ranks. How many messages and elements there are
is said by formula in `counts.py`, what they cost in `cost_model.py`.

Which element is combined with which, and in which order, depends only on the schedule's
arguments, so the bits of a result are the same run after run. They are the same on all ranks
because each element is either finished by one rank and then copied, or computed by several from
the same two operands in the same order.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19(1), 2005. P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69(2), 2009 (ring).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias, get_args

from aiops.collective import patterns
from aiops.collective.steps import Combine, Schedule, Span, Step, Transfer, chunk_spans

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Groups",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
]

Algorithm: TypeAlias = Literal[
    "ring", "recursive-doubling", "halving-doubling", "tree", "chain", "hierarchical"
]
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)

Groups: TypeAlias = "tuple[tuple[int, ...], ...]"
"""The ranks of each host, for example ((0, 1), (2, 3)): each rank in exactly one group."""

# Schedules are asked for again for each array of a model at each step; one is some microseconds
# of work per step of it. Thousands of differently sized arrays are not usual.
_REMEMBERED: Final = 1024


@lru_cache(_REMEMBERED)
def all_reduce(
    algorithm: Algorithm, rank: int, world_size: int, count: int, groups: Groups | None = None
) -> Schedule:
    """Reduce `count` elements so that every rank has all of the result.

    Parameters
    ----------
    algorithm
        With p ranks and n elements, in sequence and sent per rank:

        ==================  ====================  ==============================================
        ring                2(p-1) messages       2n(p-1)/p
        recursive-doubling  lg p                  n lg p; for short arrays
        halving-doubling    2 lg p                2n(p-1)/p for a power of two
        tree                2 lg p                n lg p at the root
        chain               2(p-1)                2n; a left fold in the order of the ranks
        hierarchical        2(m-1) + 2(g-1)       2n(m-1)/m inside a group of m, and
                                                  2(n/m)(g-1)/g between g groups
        ==================  ====================  ==============================================

        With no power of two, both kinds of doubling fold the surplus ranks into their
        neighbours first: two messages of n more.
    rank, world_size
        Whose steps, of how many ranks.
    count
        Elements of the array.
    groups
        For "hierarchical": which ranks share a host. Groups of one size share the work of the
        slow links among all members; of different sizes, the first of each group speaks for it.

    Raises
    ------
    ValueError
        `rank` is not below `world_size`, or the groups do not hold each rank once.
    """
    _check(rank, world_size, count)
    everybody, everything = range(world_size), Span(0, count)
    match algorithm:
        case "ring":
            return _ring(everybody, rank, everything)
        case "recursive-doubling" | "halving-doubling":
            return tuple(_folded_all_reduce(algorithm, rank, world_size, count))
        case "tree":
            return (
                *patterns.binomial_reduce(everybody, rank, everything),
                *patterns.binomial_broadcast(everybody, rank, everything),
            )
        case "chain":
            return (
                *patterns.chain_reduce(everybody, rank, everything),
                *patterns.chain_broadcast(everybody[::-1], world_size - 1 - rank, everything),
            )
        case "hierarchical":
            return _hierarchical(rank, _checked_groups(groups, world_size), count)
    raise ValueError(_unknown("all-reduce", algorithm, ALGORITHMS))


@lru_cache(_REMEMBERED)
def reduce_scatter(algorithm: Algorithm, rank: int, world_size: int, count: int) -> Schedule:
    """Reduce `count` elements so that rank i has chunk i (`chunk_spans`) of the result.

    The other chunks of its array are then used up: they hold partial results.

    Parameters
    ----------
    algorithm
        "ring": p-1 messages, n(p-1)/p elements per rank. "halving-doubling": lg p messages and as
        many elements for a power of two, one message more otherwise. "chain": 2(p-1) messages, a
        left fold in the order of the ranks.
    rank, world_size, count
        As for `all_reduce`.
    """
    _check(rank, world_size, count)
    everybody, chunks = range(world_size), chunk_spans(count, world_size)
    match algorithm:
        case "ring":
            return tuple(patterns.ring_scatter(everybody, rank, chunks))
        case "halving-doubling":
            return tuple(_folded_scatter(rank, world_size, count))
        case "chain":
            return (
                *patterns.chain_reduce(everybody, rank, Span(0, count)),
                *_chain_scatter(rank, world_size, chunks),
            )
    known = ("ring", "halving-doubling", "chain")
    raise ValueError(_unknown("reduce-scatter", algorithm, known))


@lru_cache(_REMEMBERED)
def all_gather(algorithm: Algorithm, rank: int, world_size: int, count: int) -> Schedule:
    """Give every rank all of `count` elements, of which rank i has chunk i (`chunk_spans`).

    Parameters
    ----------
    algorithm
        "ring": p-1 messages, n(p-1)/p elements per rank. "halving-doubling": lg p messages and as
        many elements for a power of two; otherwise the surplus ranks send their chunk to a
        neighbour first and get everything from it last.
    rank, world_size, count
        As for `all_reduce`.
    """
    _check(rank, world_size, count)
    match algorithm:
        case "ring":
            return tuple(
                patterns.ring_gather(range(world_size), rank, chunk_spans(count, world_size))
            )
        case "halving-doubling":
            return tuple(_folded_gather(rank, world_size, count))
    raise ValueError(_unknown("all-gather", algorithm, ("ring", "halving-doubling")))


@lru_cache(_REMEMBERED)
def broadcast(
    algorithm: Algorithm, rank: int, world_size: int, count: int, root: int = 0
) -> Schedule:
    """Give every rank the elements of `root`.

    Parameters
    ----------
    algorithm
        "tree": ceil(lg p) rounds of n elements. "chain": p-1 rounds, but in segments it costs
        hardly more than one length: for long arrays.
    rank, world_size, count
        As for `all_reduce`.
    root
        The rank that gives.
    """
    ranks, place = _from_root(rank, world_size, count, root)
    match algorithm:
        case "tree":
            return tuple(patterns.binomial_broadcast(ranks, place, Span(0, count)))
        case "chain":
            return tuple(patterns.chain_broadcast(ranks, place, Span(0, count)))
    raise ValueError(_unknown("broadcast", algorithm, ("tree", "chain")))


@lru_cache(_REMEMBERED)
def reduce(algorithm: Algorithm, rank: int, world_size: int, count: int, root: int = 0) -> Schedule:
    """Reduce `count` elements to `root`; the arrays of the others are then used up.

    Parameters
    ----------
    algorithm
        "tree": ceil(lg p) rounds of n elements. "chain": a left fold in the order of the ranks,
        p-1 rounds, and one message more if `root` is not the last rank.
    rank, world_size, count
        As for `all_reduce`.
    root
        The rank that has the result.
    """
    ranks, place = _from_root(rank, world_size, count, root)
    everything, last = Span(0, count), world_size - 1
    match algorithm:
        case "tree":
            return tuple(patterns.binomial_reduce(ranks, place, everything))
        case "chain":
            steps = list(patterns.chain_reduce(range(world_size), rank, everything))
            if root != last and rank == last:
                steps.append(patterns.send(root, everything))
            if root != last and rank == root:
                steps.append(patterns.receive(last, everything))
            return tuple(steps)
    raise ValueError(_unknown("reduce", algorithm, ("tree", "chain")))


@lru_cache(_REMEMBERED)
def barrier(rank: int, world_size: int) -> Schedule:
    """Let nobody end before everybody has begun: ceil(lg p) empty messages per rank.

    The dissemination barrier of D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
    synchronization", IJPP 17(1), 1988.
    """
    _check(rank, world_size, 0)
    steps = []
    distance = 1
    while distance < world_size:
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        steps.append(Step(Transfer(to, 0, 0), Transfer(source, 0, 0), Combine.REPLACE))
        distance *= 2
    return tuple(steps)


def _ring(ranks: Sequence[int], place: int, span: Span) -> Schedule:
    chunks = [
        Span(span.begin + chunk.begin, span.begin + chunk.end)
        for chunk in chunk_spans(span.elements, len(ranks))
    ]
    return (
        *patterns.ring_scatter(ranks, place, chunks),
        *patterns.ring_gather(ranks, place, chunks),
    )


# --- no power of two: each of the first `surplus` odd ranks is folded into the rank before it ---


def _fold(world_size: int) -> tuple[list[int], int]:
    """Return the ranks that go on, a power of two of them, and how many others there are."""
    surplus = world_size - (1 << world_size.bit_length() - 1)
    going_on = [*range(0, 2 * surplus, 2), *range(2 * surplus, world_size)]
    return going_on, surplus


def _folded_all_reduce(
    algorithm: Algorithm, rank: int, world_size: int, count: int
) -> Iterator[Step]:
    going_on, surplus = _fold(world_size)
    everything = Span(0, count)
    if rank < 2 * surplus and rank % 2:
        yield patterns.send(rank - 1, everything)
        yield patterns.receive(rank - 1, everything)
        return
    if rank < 2 * surplus:
        yield patterns.receive(rank + 1, everything, Combine.OWN_FIRST)
    place = going_on.index(rank)
    if algorithm == "recursive-doubling":
        yield from patterns.doubling_exchange(going_on, place, everything)
    else:
        chunks = chunk_spans(count, len(going_on))
        yield from patterns.halving_scatter(going_on, place, chunks)
        yield from patterns.doubling_gather(going_on, place, chunks)
    if rank < 2 * surplus:
        yield patterns.send(rank + 1, everything)


def _pair_spans(world_size: int, count: int) -> Sequence[Span]:
    """For each rank that goes on: its own chunk, and with it that of the rank folded into it."""
    chunks, (_, surplus) = chunk_spans(count, world_size), _fold(world_size)
    pairs = [Span(chunks[2 * i].begin, chunks[2 * i + 1].end) for i in range(surplus)]
    return [*pairs, *chunks[2 * surplus :]]


def _folded_scatter(rank: int, world_size: int, count: int) -> Iterator[Step]:
    going_on, surplus = _fold(world_size)
    chunks = chunk_spans(count, world_size)
    if rank < 2 * surplus and rank % 2:
        yield patterns.send(rank - 1, Span(0, count))
        yield patterns.receive(rank - 1, chunks[rank])
        return
    if rank < 2 * surplus:
        yield patterns.receive(rank + 1, Span(0, count), Combine.OWN_FIRST)
    pairs = _pair_spans(world_size, count)
    yield from patterns.halving_scatter(going_on, going_on.index(rank), pairs)
    if rank < 2 * surplus:
        yield patterns.send(rank + 1, chunks[rank + 1])


def _folded_gather(rank: int, world_size: int, count: int) -> Iterator[Step]:
    going_on, surplus = _fold(world_size)
    chunks = chunk_spans(count, world_size)
    if rank < 2 * surplus and rank % 2:
        yield patterns.send(rank - 1, chunks[rank])
        yield patterns.receive(rank - 1, Span(0, count))
        return
    if rank < 2 * surplus:
        yield patterns.receive(rank + 1, chunks[rank + 1])
    pairs = _pair_spans(world_size, count)
    yield from patterns.doubling_gather(going_on, going_on.index(rank), pairs)
    if rank < 2 * surplus:
        yield patterns.send(rank + 1, Span(0, count))


# --- others ---


def _chain_scatter(rank: int, world_size: int, chunks: Sequence[Span]) -> Iterator[Step]:
    """From the last rank down the chain, each keeps its chunk and passes on what lies before."""
    if rank < world_size - 1:
        yield patterns.receive(rank + 1, Span(0, chunks[rank].end))
    if rank:
        yield patterns.send(rank - 1, Span(0, chunks[rank - 1].end))


def _hierarchical(rank: int, groups: Groups, count: int) -> Schedule:
    group = next(group for group in groups if rank in group)
    place, everything = group.index(rank), Span(0, count)
    if len({len(group) for group in groups}) == 1:
        chunks = chunk_spans(count, len(group))
        alike = [other[place] for other in groups]
        return (
            *patterns.ring_scatter(group, place, chunks),
            *_ring(alike, alike.index(rank), chunks[place]),
            *patterns.ring_gather(group, place, chunks),
        )
    first = [other[0] for other in groups]
    return (
        *patterns.binomial_reduce(group, place, everything),
        *(_ring(first, first.index(rank), everything) if rank in first else ()),
        *patterns.binomial_broadcast(group, place, everything),
    )


def _from_root(rank: int, world_size: int, count: int, root: int) -> tuple[Sequence[int], int]:
    _check(rank, world_size, count)
    if not 0 <= root < world_size:
        raise ValueError(f"root is {root}, but the ranks are 0 to {world_size - 1}")
    return [(root + i) % world_size for i in range(world_size)], (rank - root) % world_size


def _check(rank: int, world_size: int, count: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, but world_size is {world_size}")
    if count < 0:
        raise ValueError(f"count is {count}; it cannot be negative")


def _checked_groups(groups: Groups | None, world_size: int) -> Groups:
    if groups is None:
        raise ValueError('algorithm="hierarchical" needs groups=, the ranks of each host')
    if sorted(rank for group in groups for rank in group) != list(range(world_size)):
        raise ValueError(f"groups must hold each of the ranks 0 to {world_size - 1} once: {groups}")
    if not all(groups):
        raise ValueError(f"a group is empty: {groups}")
    return groups


def _unknown(what: str, algorithm: str, known: Sequence[str]) -> str:
    return f"no {what} by {algorithm!r}; there are: {', '.join(known)}"
