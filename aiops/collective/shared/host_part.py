"""What the members of one host do for a call whose other members are on other hosts.

They combine their arrays, exchange the sums with the other hosts, and hand the results around. Each
of the first members is a *lane*: it has a chunk of the array, which it combines over the arrays of
its host, and exchanges with the members that have the same chunk on the other hosts. There are as
many lanes as members on the smallest host. All lanes put their results into segments of their own,
which the others copy.

The exchange between hosts is somebody else's, and so is the agreement: nothing here is in effect
for anybody, and nobody's array is written. `complete` says that the whole result is on this host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import REDUCTIONS, Call
from aiops.collective.shared.board import Board, Facts
from aiops.collective.shared.calls import fold, text_of
from aiops.collective.shared.memory import STAGED_BYTES_KEPT
from aiops.collective.shared.neighbours import BLOCK_BYTES, TURN_BYTES, Neighbours
from aiops.collective.shared.pages import Location
from aiops.collective.shared.reading import Reading
from aiops.collective.steps import Span, chunk_spans

__all__ = ["HostPart", "LoneMember", "lanes_of"]

Array = NDArray[Any]


def lanes_of(hosts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each lane its member on each host, in the order of the hosts."""
    return [[host[lane] for host in hosts] for lane in range(min(map(len, hosts)))]


class HostPart(Neighbours):
    """One member's part in what its host does; for the parameters see `Neighbours`.

    For each call come `combine`, then the exchange of what it returns, if this member is a lane,
    then `complete` and, once all hosts are so far, `results`.

    Attributes
    ----------
    lanes
        How many lanes there are, the same on all hosts; set before the first call.
    """

    lanes = 1
    _sums: Array = np.empty(0, np.uint8)

    def span(self, count: int) -> Span:
        """Return the chunk of this member's lane; empty if it is none."""
        return self._spans(count)[self.index]

    def _spans(self, count: int) -> list[Span]:
        lanes = chunk_spans(count, self.lanes)
        return [*lanes, *[Span(count, count)] * (self.size - self.lanes)]

    async def combine(self, call: Call, flat: Array) -> tuple[Array, Array]:
        """Meet the others, and combine this lane's chunk of the arrays of this host.

        Parameters
        ----------
        call, flat
            An all-reduce, and this member's array, flat and contiguous; only read.

        Returns
        -------
        sums, results
            The chunk as this host has it, and where the chunk of the result has to be put.

        Raises
        ------
        CollectiveMismatch
            The calls of this host's members differ.
        Exception
            What `stop` was given.
        """
        return await self._alone(self._combine(call, flat))

    async def _combine(self, call: Call, flat: Array) -> tuple[Array, Array]:
        number = await self._begin()
        mine, memory = self.span(call.count), self._memory
        location = self._arena.locate(flat)
        if location is None:
            staged = memory.grown(memory.staged, flat.nbytes)
            await self._stage(flat, staged.array[: flat.nbytes].view(flat.dtype), mine)
            location = Location(staged.number, 0)
        size = mine.elements * flat.itemsize
        results = memory.grown(memory.results, size)
        self._own.describe(number, text_of(call), 0, Facts(*location, results.number))
        await self._arrive(number)
        sums = self._room(size).view(flat.dtype)
        await self._fold(call, self._parts(flat, mine, number) if mine.elements else (), sums)
        return sums, results.array[:size].view(flat.dtype)

    async def complete(self, call: Call, flat: Array) -> list[tuple[Span, Array]]:
        """Say that this lane's result is in its place, and wait for those of all others.

        Returns
        -------
        results
            Chunks of the result, and where they are: in the memory of all lanes. They stay there
            until all members of the host have come to the next call.

        Raises
        ------
        Exception
            What `stop` was given.
        """
        return await self._alone(self._complete(call, flat))

    async def _complete(self, call: Call, flat: Array) -> list[tuple[Span, Array]]:
        number = self.begun
        self._tell(Board.VOTED, number)
        # Not for the results, which everybody confirms anyway: who has not voted may still read
        # the others' arrays, and who has confirmed may be cancelled and write into its own.
        await self._until(partial(self._all, Board.VOTED, number), number)
        spans = self._spans(call.count)
        chunk = spans[self.index].elements * flat.itemsize
        self.reading.count(call, flat.nbytes, chunk, at_once=False)
        self._memory.trim()
        return [
            (span, self._result(lane, number)[: span.elements * flat.itemsize].view(flat.dtype))
            for lane, span in enumerate(spans)
            if span.elements
        ]

    def _result(self, lane: int, number: int) -> Array:
        if lane == self.index:
            return self._memory.results.array
        return self._memory.of(lane, self._boards[lane].facts(number).result)

    def _room(self, size: int) -> Array:
        """Return memory for the sums of this host; it is kept, for fresh pages cost much."""
        if self._sums.nbytes < size or self._sums.nbytes > max(size, STAGED_BYTES_KEPT):
            self._sums = np.empty(size, np.uint8)
        return self._sums[:size]

    async def _fold(self, call: Call, parts: Sequence[Array], sums: Array) -> None:
        block = BLOCK_BYTES // sums.itemsize
        since = 0
        for begin in range(0, sums.size, block):
            where = slice(begin, begin + block)
            fold(REDUCTIONS[call.op], [part[where] for part in parts], sums[where])
            since += BLOCK_BYTES * self.size
            if since >= TURN_BYTES:
                since = 0
                await asyncio.sleep(0)
                self.check()


class LoneMember:
    """`HostPart` for the only member of its host: nothing is shared, and nobody is waited for."""

    def __init__(self) -> None:
        self.begun = 0
        self.reading = Reading(1)
        self._stopped: Callable[[], Exception] | None = None
        self._results: Array = np.empty(0, np.uint8)

    async def combine(self, call: Call, flat: Array) -> tuple[Array, Array]:
        """Return the array itself, and where its result has to be put."""
        self.check()
        size = flat.nbytes
        if self._results.nbytes < size or self._results.nbytes > max(size, STAGED_BYTES_KEPT):
            self._results = np.empty(size, np.uint8)
        return flat, self._results[:size].view(flat.dtype)

    async def complete(self, call: Call, flat: Array) -> list[tuple[Span, Array]]:
        """Return the result: it is complete."""
        return [(Span(0, flat.size), self._results[: flat.nbytes].view(flat.dtype))]

    def check(self) -> None:
        """Raise what `stop` was given, once it was."""
        if self._stopped is not None:
            raise self._stopped()

    def missing(self, word: int = Board.ARRIVED) -> list[int]:
        """Return nobody: see `Neighbours.missing`."""
        return []

    def stop(self, error: Callable[[], Exception]) -> None:
        """Refuse what comes with this error."""
        self._stopped = self._stopped or error

    def close(self) -> None:
        """Let go of the memory."""
        self._results = np.empty(0, np.uint8)
