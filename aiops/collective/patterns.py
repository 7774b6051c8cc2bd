"""The building blocks of schedules: what one member of a list of ranks does.

Each function takes the ranks that take part, in order, and this rank's place among them, and
gives this rank's steps. Chunk i is the business of the i-th of them. `schedule.py` puts blocks
together into whole collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiops.collective.steps import Combine, Span, Step, Transfer

__all__ = [
    "binomial_broadcast",
    "binomial_reduce",
    "chain_broadcast",
    "chain_reduce",
    "doubling_exchange",
    "doubling_gather",
    "halving_scatter",
    "receive",
    "ring_gather",
    "ring_scatter",
    "send",
]


def send(peer: int, span: Span) -> Step:
    """Only send."""
    return Step(Transfer(peer, *span), None, Combine.REPLACE)


def receive(peer: int, span: Span, combine: Combine = Combine.REPLACE) -> Step:
    """Only receive."""
    return Step(None, Transfer(peer, *span), combine)


def ring_scatter(ranks: Sequence[int], place: int, chunks: Sequence[Span]) -> Iterator[Step]:
    """Reduce along a ring until chunk i is whole at the i-th rank: p-1 steps.

    Chunk i starts at the rank after its owner and goes once around; each rank adds its own.
    """
    parts = len(ranks)
    after, before = ranks[(place + 1) % parts], ranks[place - 1]
    for step in range(parts - 1):
        out, into = chunks[(place - step - 1) % parts], chunks[(place - step - 2) % parts]
        yield Step(Transfer(after, *out), Transfer(before, *into), Combine.INCOMING_FIRST)


def ring_gather(ranks: Sequence[int], place: int, chunks: Sequence[Span]) -> Iterator[Step]:
    """Pass whole chunks around a ring until everybody has all of them: p-1 steps."""
    parts = len(ranks)
    after, before = ranks[(place + 1) % parts], ranks[place - 1]
    for step in range(parts - 1):
        out, into = chunks[(place - step) % parts], chunks[(place - step - 1) % parts]
        yield Step(Transfer(after, *out), Transfer(before, *into), Combine.REPLACE)


def doubling_exchange(ranks: Sequence[int], place: int, span: Span) -> Iterator[Step]:
    """Exchange and reduce everything over distances 1, 2, 4, ...; a power of two of ranks.

    Both ends of an exchange compute the same sum; the operand of the lower ranks comes first on
    both, so that they compute the same bits.
    """
    distance = 1
    while distance < len(ranks):
        peer = ranks[place ^ distance]
        order = Combine.INCOMING_FIRST if place & distance else Combine.OWN_FIRST
        yield Step(Transfer(peer, *span), Transfer(peer, *span), order)
        distance *= 2


def halving_scatter(ranks: Sequence[int], place: int, chunks: Sequence[Span]) -> Iterator[Step]:
    """Halve what is reduced over distances p/2, ..., 2, 1 until chunk i is whole at the i-th rank.

    A power of two of ranks; the chunks lie side by side.
    """
    low, high = 0, len(ranks)
    while high - low > 1:
        middle = (low + high) // 2
        lower = Span(chunks[low].begin, chunks[middle - 1].end)
        upper = Span(chunks[middle].begin, chunks[high - 1].end)
        peer = ranks[place ^ (high - low) // 2]
        if place < middle:
            yield Step(Transfer(peer, *upper), Transfer(peer, *lower), Combine.OWN_FIRST)
            high = middle
        else:
            yield Step(Transfer(peer, *lower), Transfer(peer, *upper), Combine.INCOMING_FIRST)
            low = middle


def doubling_gather(ranks: Sequence[int], place: int, chunks: Sequence[Span]) -> Iterator[Step]:
    """Exchange whole chunks over distances 1, 2, 4, ...; a power of two of ranks."""
    distance = 1
    while distance < len(ranks):
        mine = place // distance * distance
        theirs = mine ^ distance
        yield Step(
            Transfer(ranks[place ^ distance], *_joined(chunks[mine : mine + distance])),
            Transfer(ranks[place ^ distance], *_joined(chunks[theirs : theirs + distance])),
            Combine.REPLACE,
        )
        distance *= 2


def binomial_reduce(ranks: Sequence[int], place: int, span: Span) -> Iterator[Step]:
    """Reduce everything up a binomial tree to the first rank: ceil(lg p) rounds."""
    distance = 1
    while distance < len(ranks):
        if place & distance:
            yield send(ranks[place - distance], span)
            return
        if place + distance < len(ranks):
            yield receive(ranks[place + distance], span, Combine.OWN_FIRST)
        distance *= 2


def binomial_broadcast(ranks: Sequence[int], place: int, span: Span) -> Iterator[Step]:
    """Send everything down the same tree from the first rank: ceil(lg p) rounds."""
    reach = 1
    while reach < len(ranks) and not place & reach:
        reach *= 2
    if place:
        yield receive(ranks[place - reach], span)
    distance = reach // 2
    while distance:
        if place + distance < len(ranks):
            yield send(ranks[place + distance], span)
        distance //= 2


def chain_reduce(ranks: Sequence[int], place: int, span: Span) -> Iterator[Step]:
    """Reduce everything along a chain to the last rank: a left fold in the order of the ranks."""
    if place:
        yield receive(ranks[place - 1], span, Combine.INCOMING_FIRST)
    if place < len(ranks) - 1:
        yield send(ranks[place + 1], span)


def chain_broadcast(ranks: Sequence[int], place: int, span: Span) -> Iterator[Step]:
    """Send everything along a chain from the first rank; in segments it costs one length."""
    if place:
        yield receive(ranks[place - 1], span)
    if place < len(ranks) - 1:
        yield send(ranks[place + 1], span)


def _joined(chunks: Sequence[Span]) -> Span:
    return Span(chunks[0].begin, chunks[-1].end)
