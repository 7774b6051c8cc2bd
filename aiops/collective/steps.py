"""The words of a schedule: one step of one rank, and how a length is cut into chunks.

Only the data lives here; which steps make up a collective is said in `patterns.py` and
`schedule.py`. Positions and lengths are element indices, never bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["Combine", "Schedule", "Span", "Step", "Transfer", "chunk_spans"]


class Combine(Enum):
    """What becomes of received elements.

    The order of the two operands is part of the schedule, since bits depend on it: which NaN
    survives an addition, and whether the maximum of 0.0 and -0.0 is the one or the other.
    """

    REPLACE = "replace"
    INCOMING_FIRST = "incoming first"  # own = operation(incoming, own)
    OWN_FIRST = "own first"  # own = operation(own, incoming)


class Span(NamedTuple):
    """The elements [begin, end)."""

    begin: int
    end: int

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return self.end - self.begin


class Transfer(NamedTuple):
    """One message: its other end, and the elements that it carries."""

    peer: int
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """How many elements the message carries; a message may be empty."""
        return self.end - self.begin


class Step(NamedTuple):
    """What one rank does at a time: at most one message out and one in, both at once.

    What is sent are the elements as they were before this step received anything. Between two
    ranks messages keep their order, so the k-th message that one sends is the k-th that the
    other expects, and nothing else is needed to match them. An empty message is a message (the
    counts of the literature hold for every length); a runtime may leave it out, because both
    ends know that it is empty.
    """

    send: Transfer | None
    receive: Transfer | None
    combine: Combine


Schedule: TypeAlias = "tuple[Step, ...]"
"""The steps of one rank, in order.

Where a step sends what the step before it received, a runtime may cut both into segments and send
each on as soon as it is combined.
"""


def chunk_spans(count: int, parts: int) -> Sequence[Span]:
    """Cut [0, count) into `parts` spans in order; chunk i is [count*i//parts, count*(i+1)//parts).

    Sizes differ by at most one element; with fewer elements than parts some are empty.
    """
    bounds = [count * part // parts for part in range(parts + 1)]
    return [Span(*pair) for pair in pairwise(bounds)]
