"""Performs the schedules of all ranks over arrays in one memory, step by step.

First the messages of all ranks are put into one order in which they can be performed one after the
other (`Execution`), then they are performed, for a few elements of each chunk at a time, so that
what one message writes is still in the processor's cache when the next one reads it. Cutting the
elements does not touch the order in which any of them is combined, hence not the bits.

No waiting and no threads here: several threads may perform different parts at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from aiops.collective.call import Array
from aiops.collective.steps import Combine, Schedule, Span, Step, Transfer

__all__ = ["Execution", "Message"]

CACHE_BYTES: Final = 16 * 1024 * 1024
"""How much of all arrays together is worked on at a time. Each element is read and written several
times meanwhile, so it has to stay in the processor's outer cache; smaller pieces take longer for
the calls themselves. Measured with four ranks of 64 MB on two cores with 32 MB of cache: 9 to 11
ms, with 4 MB 12 to 17, with 1 MB 24 to 30."""

PART_BYTES: Final = 256 * 1024
"""Arrays that fit are cut, too, so that there is work for several threads: a chunk into as many
parts as it has of these, up to `PARTS_LEAST`."""

PARTS_LEAST: Final = 8


class Message(NamedTuple):
    """One message of a call, as it was performed."""

    step: int
    sender: int
    receiver: int
    begin: int
    end: int
    combine: Combine
    copied: bool = False  # kept aside first, because the sender receives into the same elements

    def __str__(self) -> str:
        what = "" if self.combine is Combine.REPLACE else ", combined"
        return (
            f"step {self.step}: rank {self.sender} to rank {self.receiver}, "
            f"elements [{self.begin}, {self.end}){what}"
        )


class _Posted(NamedTuple):
    step: int
    sender: int
    transfer: Transfer


class Execution:
    """The messages of a call in an order in which they can be performed.

    Parameters
    ----------
    schedules
        The steps of each rank.
    count
        Elements of each array.
    item_bytes
        Size of an element.

    Attributes
    ----------
    messages
        All of them, in order.
    parts
        How many pieces the work is cut into; `perform` takes one.
    """

    def __init__(self, schedules: Sequence[Schedule], count: int, item_bytes: int) -> None:
        self.messages: list[Message] = []
        self._order(schedules)
        cuts = {0, count}
        for message in self.messages:
            cuts |= {message.begin, message.end}
        self._atoms = [Span(*pair) for pair in pairwise(sorted(cuts))]
        at = {atom.begin: index for index, atom in enumerate(self._atoms)} | {
            count: len(self._atoms)
        }
        self._within = [range(at[m.begin], at[m.end]) for m in self.messages]
        longest = max((atom.elements for atom in self._atoms), default=0)
        for_threads = min(PARTS_LEAST, -(-longest * item_bytes // PART_BYTES))
        for_cache = -(-count * item_bytes * len(schedules) // CACHE_BYTES)
        self.parts = max(1, for_threads, for_cache)

    def _order(self, schedules: Sequence[Schedule]) -> None:
        """Let all ranks go on in lockstep: first everybody sends, then everybody receives."""
        left = [deque(enumerate(schedule)) for schedule in schedules]
        posted: dict[tuple[int, int], deque[_Posted]] = {}
        sent = [False] * len(left)
        while any(left):
            for rank, steps in enumerate(left):
                if steps and not sent[rank]:
                    number, step = steps[0]
                    sent[rank] = True
                    if step.send is not None:
                        wire = posted.setdefault((rank, step.send.peer), deque())
                        wire.append(_Posted(number, rank, step.send))
            for rank, steps in enumerate(left):
                if steps and self._receive(rank, steps[0][1], posted):
                    steps.popleft()
                    sent[rank] = False

    def _receive(
        self, rank: int, step: Step, posted: dict[tuple[int, int], deque[_Posted]]
    ) -> bool:
        if step.receive is None:
            return True
        peer, begin, end = step.receive
        wire = posted.get((peer, rank))
        if not wire:
            return False
        number, _, transfer = wire.popleft()
        assert transfer[1:] == (begin, end)
        overwritten = any(
            other.transfer.begin < end and begin < other.transfer.end
            for (sender, _), others in posted.items()
            if sender == rank
            for other in others
        )
        self.messages.append(Message(number, peer, rank, begin, end, step.combine, overwritten))
        return True

    def perform(
        self, part: int, arrays: Sequence[Array], operation: np.ufunc, divisor: int | None = None
    ) -> None:
        """Perform all messages for one of the `parts`.

        Parameters
        ----------
        part
            Which one.
        arrays
            One flat array for each rank; changed in place.
        operation
            Takes two operands and `out`.
        divisor
            What all elements are divided by at the end, for a mean.
        """
        spans = [
            slice(
                atom.begin + atom.elements * part // self.parts,
                atom.begin + atom.elements * (part + 1) // self.parts,
            )
            for atom in self._atoms
        ]
        kept: dict[tuple[int, int], Array] = {}
        with np.errstate(all="ignore"):  # infinity less infinity is NaN, and travels on
            for message, atoms in zip(self.messages, self._within, strict=True):
                own, source = arrays[message.receiver], arrays[message.sender]
                for atom in atoms:
                    where = spans[atom]
                    _perform(message, own[where], source[where], operation, kept, atom)
            if divisor is not None:
                for array in arrays:
                    for where in spans:
                        own = array[where]
                        np.divide(own, own.dtype.type(divisor), out=own)


def _perform(
    message: Message,
    own: Array,
    source: Array,
    operation: np.ufunc,
    kept: dict[tuple[int, int], Array],
    atom: int,
) -> None:
    incoming = kept.pop((message.sender, atom), source)
    if message.copied:
        kept[message.receiver, atom] = own.copy()
    if message.combine is Combine.REPLACE:
        np.copyto(own, incoming)
    elif message.combine is Combine.INCOMING_FIRST:
        operation(incoming, own, out=own)
    else:
        operation(own, incoming, out=own)
